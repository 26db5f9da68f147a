"""Trains a small language model with a mixture of experts twice, without epigrad and with it.

The model is transformers' Qwen3-MoE, over the characters of this repository's own pages. Both
copies start from the same weights and see the same batches: one as transformers computes it, the
other after ``patch``. Then single layers take turns, also one for which PyTorch is faster.
``make demo`` runs it; it writes demo.png beside itself.
"""

from __future__ import annotations

import copy
import math
import os
import pathlib
import re
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib

matplotlib.use("Agg")

import epigrad
import torch
import transformers
from epigrad.cli.timing import Timing, interleaved
from epigrad.instruments import kept_bytes
from epigrad.integrations.transformers import patch
from matplotlib import pyplot
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

SEED = 0
LETTERS = 170  # that the model writes
STEPS, BATCH, CONTEXT, RATE = 400, 8, 64, 4e-3
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
SECONDS = {"step": 8.0, "layer": 2.0}  # of timing
EQUAL = 1.02  # times that differ by less are called equal
PYTORCH, EPIGRAD = "PyTorch", "epigrad"
COLORS = {PYTORCH: "#d9673a", EPIGRAD: "#2a7f9e", "equal": "#8a8a8a"}
BUSY = "Other programs kept this machine busy, so these times say nothing. Run it again on an idle one."
ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = pathlib.Path(__file__).with_name("demo.png")

Pair = dict[str, nn.Module]
"""A module as PyTorch computes it, and as epigrad does, by library."""


# --- the text and the model -----------------------------------------------------------------------


def prose() -> str:
    """The words of this repository's pages, without their code, tables and links."""
    pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    text = "\n".join(page.read_text() for page in pages)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^[|#<!:].*$", "", text, flags=re.M)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = text.replace("`", "").lower()
    return " ".join(re.findall(r"(?<!\S)[a-z]+[.,]?(?!\S)", text))


def language_models(characters: int) -> tuple[Pair, str]:
    """The same model twice, the second one patched, and what `patch` says."""
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=characters, tie_word_embeddings=True, **SIZES, **EXPERTS))
    model.set_experts_implementation("grouped_mm")  # transformers' fastest
    patched = copy.deepcopy(model)
    report = patch(patched)
    return {PYTORCH: model, EPIGRAD: patched}, str(report)


@dataclass(frozen=True)
class Training:
    losses: dict[str, list[float]]
    timings: dict[str, Timing]

    @property
    def apart(self) -> tuple[float, float]:
        """The median difference of the two losses, and the largest."""
        differences = [abs(one - other) for one, other in zip(*self.losses.values(), strict=True)]
        return statistics.median(differences), max(differences)


def train(models: Pair, data: Tensor, steps: Sequence[int] | Iterator[int]) -> Training:
    """Train both models on the same batches, in turns."""
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=RATE) for name, model in models.items()}
    schedules = [torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS) for optimizer in optimizers.values()]
    generator = torch.Generator().manual_seed(SEED)
    losses: dict[str, list[float]] = {name: [] for name in models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for step in steps:
        tokens = windows(data, generator)
        for name in sorted(models, reverse=step % 2 == 0):
            begin = time.perf_counter()
            loss = training_step(models[name], optimizers[name], tokens)
            seconds[name].append(time.perf_counter() - begin)
            losses[name].append(loss.item())
        for schedule in schedules:
            schedule.step()
    return Training(losses, {name: Timing.of(taken[1:]) for name, taken in seconds.items()})  # the first warms up


def windows(data: Tensor, generator: torch.Generator) -> Tensor:
    start = torch.randint(len(data) - CONTEXT, (BATCH, 1), generator=generator)
    return data[start + torch.arange(CONTEXT)]


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def write(model: nn.Module, characters: str, start: str, count: int) -> str:
    """What the model continues `start` with."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.tensor([[characters.index(character) for character in start]])
    for _ in range(count):
        chances = (model(input_ids=tokens[:, -CONTEXT:]).logits[0, -1] / 0.4).softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)[None]], 1)
    return "".join(characters[token] for token in tokens[0])


# --- what is measured -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One bar: seconds of forward and backward, and bytes kept in between, by library."""

    name: str
    timings: dict[str, Timing]
    kept: dict[str, int]

    @property
    def ms(self) -> tuple[float, float]:
        """PyTorch's time and epigrad's."""
        return self.timings[PYTORCH].fastest * 1e3, self.timings[EPIGRAD].fastest * 1e3

    @property
    def mib(self) -> tuple[float, float]:
        """PyTorch's memory and epigrad's."""
        return self.kept[PYTORCH] / 2**20, self.kept[EPIGRAD] / 2**20


def step_row(name: str, models: Pair, tokens: Tensor, timings: dict[str, Timing] | None = None) -> Row:
    """A training step of the language model, timed here unless it was before."""
    if timings is None:
        optimizers = {library: torch.optim.AdamW(model.parameters(), lr=1e-4) for library, model in models.items()}
        steps = {n: lambda n=n: training_step(models[n], optimizers[n], tokens) for n in models}
        timings = interleaved(steps, SECONDS["step"])
    calls = {n: partial(model, input_ids=tokens, labels=tokens) for n, model in models.items()}
    return Row(name, timings, {n: kept_bytes(call, models[n].parameters()) for n, call in calls.items()})


def layer_row(name: str, modules: Callable[[], Sequence[nn.Module]], rows: int, features: int) -> Row:
    """Forward and backward of one layer, in float32."""
    torch.manual_seed(SEED)
    x = torch.randn(rows, features, requires_grad=True)
    layers = dict(zip((PYTORCH, EPIGRAD), modules(), strict=True))
    for ours, theirs in zip(*(layer.parameters() for layer in layers.values()), strict=True):
        theirs.data.copy_(ours.data)

    def call(layer: nn.Module) -> Callable[[], object]:
        grad_output = torch.ones_like(layer(x))
        return lambda: torch.autograd.grad(layer(x), [x, *layer.parameters()], grad_output)

    timings = interleaved({library: call(layer) for library, layer in layers.items()}, SECONDS["layer"], most=10_000)
    kept = {library: kept_bytes(partial(layer, x), layer.parameters()) for library, layer in layers.items()}
    return Row(name, timings, kept)


class SwiGLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, dim=-1)
        return value * functional.silu(gate)


def layer_rows() -> Iterator[Row]:
    def mlps() -> Sequence[nn.Module]:
        up, down = nn.Linear(512, 2 * 1376, bias=False), nn.Linear(1376, 512, bias=False)
        return nn.Sequential(up, SwiGLU(), down), epigrad.nn.GatedMLP(512, 1376, kind="swiglu")

    def small() -> Sequence[nn.Module]:
        return nn.Sequential(nn.Linear(64, 256), nn.GELU()), epigrad.nn.Linear(64, 256, activation="gelu")

    yield layer_row("SwiGLU MLP, 512 x 512", mlps, 512, 512)
    yield layer_row("SwiGLU gates, 4M numbers", lambda: (SwiGLU(), epigrad.nn.GatedActivation("swiglu")), 2048, 2048)
    yield layer_row("small GELU layer, 128 x 64", small, 128, 64)


def slope_errors() -> tuple[Tensor, dict[str, Tensor]]:
    """Relative errors of the slope of GELU in float32, at points below zero.

    The reference is Phi(x) + x phi(x) in float64, with Phi(x) = erfc(-x / sqrt 2) / 2.
    """
    x = torch.linspace(-12, -1, 1101)
    exact = torch.special.erfc(-x.double() / math.sqrt(2)) / 2
    exact += x.double() * (-x.double().square() / 2).exp() / math.sqrt(2 * math.pi)

    def error(gelu: Callable[[Tensor], Tensor]) -> Tensor:
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(gelu(at).sum(), at)
        return ((slope - exact) / exact).abs()

    return x, {PYTORCH: error(functional.gelu), EPIGRAD: error(lambda at: epigrad.activation(at, "gelu"))}


class Load:
    """Whether other programs use the processors, from its making on.

    Where they do, PyTorch's threads wait for each other, which flatters epigrad.
    """

    def __init__(self) -> None:
        self.begin, self.others = time.perf_counter(), _seconds_of_others()

    def busy(self, timings: Iterable[Timing]) -> bool:
        """Whether less than our threads was left to us, or a quarter of the rounds took twice the
        fastest."""
        others = (_seconds_of_others() - self.others) / (time.perf_counter() - self.begin)
        crowded = others + torch.get_num_threads() > (os.cpu_count() or 1) + 0.2
        return crowded or any(timing.high > 2 * timing.fastest for timing in timings)


def _seconds_of_others() -> float:
    """Processor seconds that all other programs have used since the start, where Linux tells."""
    try:
        line = pathlib.Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, *rest = map(int, line.split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - time.process_time()


# --- what is shown --------------------------------------------------------------------------------


def ahead(theirs: float, ours: float) -> str:
    """The library with less, or that they are equal."""
    if max(ours, theirs) <= EQUAL * min(ours, theirs):
        return "equal"
    return EPIGRAD if ours < theirs else PYTORCH


def print_rows(console: Console, rows: Sequence[Row], busy: bool) -> None:
    table = Table(box=None, title="Forward and backward; ratios are epigrad's, PyTorch = 1", title_justify="left")
    table.add_column("")
    for heading in ("PyTorch\nms", "epigrad\nms", "ratio", "PyTorch\nMiB kept", "epigrad\nMiB kept", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        (slow, fast), (large, small) = row.ms, row.mib
        numbers = [slow, fast, math.nan if busy else fast / slow, large, small, small / large]
        table.add_row(row.name, *("-" if math.isnan(number) else f"{number:.2f}" for number in numbers))
    console.print(table)
    if busy:
        console.print(f"\n{BUSY}", style="bold red")
        return
    for library, words in ((EPIGRAD, "epigrad is faster"), ("equal", "Both are equal"), (PYTORCH, "PyTorch is faster")):
        if names := [row.name for row in rows if ahead(*row.ms) == library]:
            console.print(f"{words}: {'; '.join(names)}.")


def draw(training: Training, text: str, rows: Sequence[Row], busy: bool) -> None:
    """Losses and tails above; below, epigrad's times and memory as parts of PyTorch's."""
    # At a README's width an inch is 100 pixels.
    pyplot.rcParams.update({"font.size": 8.5, "axes.titlesize": 10, "axes.titleweight": "bold"})
    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"})
    figure, grid = pyplot.subplots(2, 2, figsize=(8.8, 6.6), layout="constrained", width_ratios=[1.12, 1])
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.12)
    (losses, tails), (times, memory) = grid
    draw_losses(losses, training, text)
    draw_tails(tails)
    times.set_title("Time: no verdict, this machine was busy")
    if busy:
        times.text(0.5, 0.5, textwrap.fill(BUSY, 34), transform=times.transAxes, ha="center", va="center")
        times.set_xticks([])
    else:
        winners = [ahead(*row.ms) for row in rows]
        bars(times, [row.ms for row in rows], "ms")
        times.set(title=f"Time: epigrad is faster in {winners.count(EPIGRAD)} of {len(rows)}")
        times.set_xlabel("epigrad's time, PyTorch = 1; orange: PyTorch is faster")
    times.set(yticks=range(len(rows)), ylim=(len(rows) - 0.5, -0.5))
    times.set_yticklabels([row.name.replace(", ", "\n") for row in rows])
    bars(memory, [row.mib for row in rows], "MiB")
    large, small = rows[0].mib
    memory.set(title=f"Kept for backward: the model's is {small / large:.0%}", ylim=(len(rows) - 0.5, -0.5), yticks=[])
    memory.set_xlabel("memory that epigrad keeps, PyTorch = 1")
    figure.savefig(PICTURE, dpi=150)
    pyplot.close(figure)


def draw_losses(axes: pyplot.Axes, training: Training, text: str) -> None:
    axes.plot(training.losses[PYTORCH], color=COLORS[PYTORCH], linewidth=5, alpha=0.45, label=PYTORCH)
    axes.plot(training.losses[EPIGRAD], color=COLORS[EPIGRAD], linewidth=1.3, label=EPIGRAD)
    median, most = training.apart
    same = "Same losses" if most < 0.1 else "Losses"
    axes.set(title=f"{same}: {median:.1g} apart, at most {most:.1g}", xlabel="training step", ylim=0)
    axes.set_ylabel("loss, nats per character")
    axes.legend(frameon=False, loc="lower left", ncols=2)
    told = f"Text after {len(training.losses[EPIGRAD])} steps:\n{textwrap.fill(text, 36)}"
    axes.text(0.4, 1, told, transform=axes.transAxes, va="top", linespacing=1.4, fontsize=7.5)


def draw_tails(axes: pyplot.Axes) -> None:
    x, errors = slope_errors()
    for library, error in errors.items():
        worst = error.max().item()
        label = f"{library}, at most {worst:.0%}" if worst > 0.01 else f"{library}, at most {worst:.0e}"
        axes.semilogy(x, error.clamp(min=1e-9), color=COLORS[library], linewidth=1, label=label)
    axes.set(title=f"GELU's slope: PyTorch is up to {errors[PYTORCH].max():.0%} off", xlabel="x", ylim=(1e-9, 10))
    axes.set_ylabel("relative error against float64")
    axes.legend(frameon=False, loc="center left")


def bars(axes: pyplot.Axes, pairs: Sequence[tuple[float, float]], unit: str) -> None:
    """A bar for each pair: the second number as a part of the first, with both written beside."""
    ratios = [ours / theirs for theirs, ours in pairs]
    drawn = axes.barh(range(len(pairs)), ratios, color=[COLORS[ahead(*pair)] for pair in pairs], height=0.62)
    axes.axvline(1, color="#444444", linewidth=1, linestyle=":", zorder=0)
    labels = [f"{ours / theirs:.2f}  ({ours:.3g} of {theirs:.3g} {unit})" for theirs, ours in pairs]
    axes.bar_label(drawn, labels, padding=4, fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    axes.set_xlim(0, 1.9 * max(1, *ratios))


def main() -> None:
    console = Console(highlight=False)
    libraries = f"epigrad {epigrad.__version__}, PyTorch {torch.__version__}, transformers {transformers.__version__}"
    console.print(f"{libraries}; threads: {torch.get_num_threads()}")
    text = prose()
    characters = "".join(sorted(set(text)))
    data = torch.tensor([characters.index(character) for character in text])
    models, report = language_models(len(characters))
    console.print(f"A Qwen3-MoE with {models[PYTORCH].num_parameters():,} parameters, twice; one copy is patched:")
    console.print(report, markup=False)

    load = Load()
    console.print(f"Training both for {STEPS} steps on the text of this repository's pages, in turns:")
    training = train(models, data, track(range(STEPS), "  training", console=console, disable=not console.is_terminal))
    told = ", ".join(f"{name} {losses[-1]:.4f}" for name, losses in training.losses.items())
    median, most = training.apart
    console.print(f"  losses at the end: {told}; {median:.1g} apart (median of all steps), at most {most:.1g}")
    written = write(models[EPIGRAD], characters, "the ", LETTERS)
    console.print(f"  the patched model writes: {written}", markup=False)

    console.print("Timing a step in bfloat16, and single layers ...")
    tokens = windows(data, torch.Generator().manual_seed(SEED))
    rows = [step_row("language model, float32", models, tokens, training.timings)]
    halves = {name: model.to(torch.bfloat16) for name, model in models.items()}
    rows += [step_row("language model, bfloat16", halves, tokens), *layer_rows()]
    busy = load.busy(timing for row in rows for timing in row.timings.values())
    console.print()
    print_rows(console, rows, busy)
    draw(training, written, rows, busy)
    console.print(f"\nThe picture is {os.path.relpath(PICTURE)}. Two lines do this to your own model:\n")
    console.print(
        "from epigrad.integrations.transformers import patch\nprint(patch(model))", style="bold", markup=False
    )


if __name__ == "__main__":
    main()
