"""Trains two small networks on scikit-learn's digits, once with PyTorch's layers and once with
epigrad's.

Both libraries start from the same weights and see the same batches, step by step in turns. Shown
side by side: loss and accuracy, the distance of the gradients from a float64 reference, the time of
a step, and the bytes that autograd keeps for backward. Then each operation of the networks is
measured by itself, at the size and on the numbers that it has there. ``make demo`` runs it; it
writes demo.png beside itself.
"""

from __future__ import annotations

import copy
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import epigrad
import matplotlib
import torch
from epigrad.cli.timing import Timing, interleaved
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

matplotlib.use("Agg")
from matplotlib import pyplot

SEED = 0
EPOCHS = 12
BATCH = 128
# A round of one operation is less than a millisecond; where the machine is busy, there are enough
# of them for a free one, in up to ten times the seconds.
ROUND_SECONDS, WANTED_ROUNDS = 1.0, 300
# Times that differ by less are called equal.
EQUAL = 1.02
LIBRARIES = ("PyTorch", "epigrad")
COLORS = {"PyTorch": "#d9673a", "epigrad": "#2a7f9e", "equal": "#8a8a8a"}
BUSY = "this machine was busy: times mean little"
PICTURE = pathlib.Path(__file__).with_name("demo.png")


# --- the networks, in each library's own words ----------------------------------------------------


def torch_gelu_net() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, 256), nn.GELU()),
        nn.Sequential(nn.Linear(256, 128), nn.GELU()),
        nn.Linear(128, 10),
    )


def epigrad_gelu_net() -> nn.Module:
    return nn.Sequential(
        epigrad.nn.Linear(64, 256, activation="gelu"),
        epigrad.nn.Linear(256, 128, activation="gelu"),
        epigrad.nn.Linear(128, 10),
    )


class TorchSwiGLU(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * functional.silu(gate))


class Mix(nn.Module):
    """lerp(start, end, mix), mix being learned."""

    def __init__(self, features: int, lerp: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.full((features,), 0.5))
        self.lerp = lerp

    def forward(self, start: Tensor, end: Tensor) -> Tensor:
        return self.lerp(start, end, self.mix)


class SwiGLUNet(nn.Module):
    """Blocks whose result is mixed with their input: x = mix(x, block(norm(x)))."""

    def __init__(
        self,
        linear: Callable[[int, int], nn.Module],
        block: Callable[[int, int], nn.Module],
        lerp: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.stem = linear(64, 96)
        self.norms = nn.ModuleList(nn.LayerNorm(96) for _ in range(2))
        self.blocks = nn.ModuleList(block(96, 192) for _ in range(2))
        self.mixes = nn.ModuleList(Mix(96, lerp) for _ in range(2))
        self.head = linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, block, mix in zip(self.norms, self.blocks, self.mixes, strict=True):
            x = mix(x, block(norm(x)))
        return self.head(x)


def torch_swiglu_net() -> nn.Module:
    return SwiGLUNet(nn.Linear, TorchSwiGLU, torch.lerp)


def epigrad_swiglu_net() -> nn.Module:
    return SwiGLUNet(epigrad.nn.Linear, epigrad.nn.GatedMLP, epigrad.lerp)


NETWORKS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "Linear + GELU": {"PyTorch": torch_gelu_net, "epigrad": epigrad_gelu_net},
    "SwiGLU + lerp skip": {"PyTorch": torch_swiglu_net, "epigrad": epigrad_swiglu_net},
}
# All that the libraries do on their own: by network, the module of an operation, and its name. The
# second block has the sizes of the first. LayerNorm is PyTorch's in both.
OPERATIONS: dict[str, dict[str, str]] = {
    "Linear + GELU": {"0": "linear + GELU", "1": "linear + GELU", "2": "linear"},
    "SwiGLU + lerp skip": {"stem": "linear", "blocks.0": "MLP, SwiGLU", "mixes.0": "lerp", "head": "linear"},
}


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def batch(self) -> tuple[Tensor, Tensor]:
        """One batch, in memory of its own."""
        return self.train_x[:BATCH].clone(), self.train_y[:BATCH].clone()


def digits() -> Data:
    """1797 images of 8x8 pixels, one in five for testing."""
    bunch = load_digits()
    x = torch.tensor(bunch.data, dtype=torch.float32) / 16 - 0.5
    y = torch.tensor(bunch.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(SEED))
    x, y = x[order], y[order]
    tests = len(x) // 5
    return Data(x[tests:], y[tests:], x[:tests], y[:tests])


@dataclass
class Result:
    """What is told of one network in one library."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loss: float = 0.0
    accuracy: float = 0.0
    gradient_error: float = 0.0
    saved_bytes: int = 0

    @property
    def timing(self) -> Timing:
        """Of the steps but the first, which warms up."""
        return Timing.of(self.seconds[1:])


def compare(
    makers: dict[str, Callable[[], nn.Module]], data: Data, advance: Callable[[str], None]
) -> dict[str, Result]:
    """Train one network in both libraries, in turns."""
    models = _seeded(makers)
    results = {name: Result() for name in models}
    x, y = data.batch()
    reference = gradients(copy.deepcopy(models["PyTorch"]).double(), x.double(), y)
    for name, model in models.items():
        results[name].gradient_error = largest_error(gradients(model, x, y), reference)
        results[name].saved_bytes = saved_bytes(_bound(model, (x,)), list(model.parameters()))

    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=4e-3) for name, model in models.items()}
    shuffle = torch.Generator().manual_seed(SEED)
    for _ in range(EPOCHS):
        batches = torch.randperm(len(data.train_x), generator=shuffle).split(BATCH)
        sums = dict.fromkeys(models, 0.0)
        for step, chosen in enumerate(batches):
            for name in LIBRARIES if step % 2 else LIBRARIES[::-1]:
                start = time.perf_counter()
                optimizers[name].zero_grad()
                loss = functional.cross_entropy(models[name](data.train_x[chosen]), data.train_y[chosen])
                loss.backward()
                optimizers[name].step()
                results[name].seconds.append(time.perf_counter() - start)
                sums[name] += loss.item() * len(chosen) / len(data.train_x)
        for name, result in results.items():
            result.losses.append(sums[name])
        advance("  ".join(f"{name} {sums[name]:.4f}" for name in LIBRARIES))

    for name, model in models.items():
        with torch.no_grad():
            output = model(data.test_x)
        results[name].loss = functional.cross_entropy(output, data.test_y).item()
        results[name].accuracy = (output.argmax(1) == data.test_y).double().mean().item()
    return results


def _seeded(makers: dict[str, Callable[[], nn.Module]]) -> dict[str, nn.Module]:
    models: dict[str, nn.Module] = {}
    for name, make in makers.items():
        torch.manual_seed(SEED)
        models[name] = make()
    for ours, theirs in zip(*(model.parameters() for model in models.values()), strict=True):
        assert torch.equal(ours, theirs), "the same seed gives both libraries the same weights"
    return models


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))


def largest_error(found: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """The largest difference over all parameters, each relative to the largest gradient of its
    parameter."""
    pairs = zip(found, reference, strict=True)
    return max(((got.double() - want).abs().max() / want.abs().max()).item() for got, want in pairs)


def saved_bytes(forward: Callable[[], Tensor], parameters: Sequence[Tensor] = ()) -> int:
    """The memory that autograd keeps for backward, parameters aside; what shares memory counts
    once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = forward()
    del graph
    return sum(kept.values())


# --- one operation at a time ----------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    name: str
    timings: dict[str, Timing]
    saved: dict[str, int]


def operations(x: Tensor) -> list[Operation]:
    """Time of forward and backward, and memory kept in between, of each operation of the networks,
    on what it is given there when `x` is a batch."""
    return [
        operation(name, {library: network.get_submodule(path) for library, network in networks.items()}, inputs)
        for network, names in OPERATIONS.items()
        for networks in [_seeded(NETWORKS[network])]
        for (path, name), inputs in zip(
            names.items(), inputs_of(networks["PyTorch"], list(names), x).values(), strict=True
        )
    ]


def inputs_of(network: nn.Module, paths: Sequence[str], x: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """What modules of a network are called with; the batch needs no gradient, all else does."""
    found: dict[str, tuple[Tensor, ...]] = {}

    def keep(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found[path] = tuple(t.detach().requires_grad_(t.requires_grad) for t in inputs)

        return hook

    hooks = [network.get_submodule(path).register_forward_pre_hook(keep(path)) for path in paths]
    network(x)
    for hook in hooks:
        hook.remove()
    return {path: found[path] for path in paths}


def operation(name: str, modules: dict[str, nn.Module], inputs: tuple[Tensor, ...]) -> Operation:
    steps, saved = {}, {}
    for library, module in modules.items():
        parameters = list(module.parameters())
        forward = _bound(module, inputs)
        output = forward()
        wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
        steps[library] = _step(forward, wanted, torch.ones_like(output))
        saved[library] = saved_bytes(forward, parameters)
    features = [parameter.shape[1] for parameter in parameters if parameter.dim() == 2] + [output.shape[1]]
    sizes = f"{len(output)}x{' to '.join(map(str, features))}"
    return Operation(f"{name}, {sizes}", interleaved(steps, ROUND_SECONDS, wanted=WANTED_ROUNDS), saved)


def _bound(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> Callable[[], Tensor]:
    return lambda: function(*tensors)


def _step(forward: Callable[[], Tensor], tensors: Sequence[Tensor], grad: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(forward(), tensors, grad)


# --- what is shown --------------------------------------------------------------------------------


SPREAD = "+- half the distance of the quartiles"


def _rounds(timings: Sequence[Timing]) -> str:
    fewest, most = min(timing.rounds for timing in timings), max(timing.rounds for timing in timings)
    return f"{fewest}" if fewest == most else f"{fewest} to {most}"


def _told(timing: Timing) -> str:
    return f"{timing.fastest * 1e6:,.0f} us +-{(timing.high - timing.low) / 2 / timing.fastest:.0%}"


def busy(timings: Sequence[Timing]) -> bool:
    """Whether the rounds differ by more than the code does: where a quarter of them takes twice the
    fastest."""
    return any(timing.high > 2 * timing.fastest for timing in timings)


def verdict(ours: float, theirs: float, better: str) -> str:
    """Who is `better`, and by what factor."""
    if max(ours, theirs) <= EQUAL * min(ours, theirs):
        return "equal"
    ahead = "epigrad" if ours < theirs else "PyTorch"
    return f"{ahead} {max(ours, theirs) / min(ours, theirs):.2f}x {better}"


def print_results(console: Console, results: dict[str, dict[str, Result]], measured: list[Operation]) -> None:
    steps = [result.timing for pair in results.values() for result in pair.values()]
    table = Table(
        title="The same networks, the same weights at the start, the same batches",
        title_justify="left",
        caption="gradient error: at the start, against float64, relative to the parameter's largest gradient; "
        f"time: fastest of {_rounds(steps)} steps, {SPREAD}; "
        "kept for backward: memory that autograd holds, parameters aside",
        caption_justify="left",
    )
    table.add_column("network")
    table.add_column("")
    for library in LIBRARIES:
        table.add_column(library, justify="right", style=COLORS[library])
    rows: list[tuple[str, Callable[[Result], str]]] = [
        ("training loss", lambda r: f"{r.losses[-1]:.5f}"),
        ("test loss", lambda r: f"{r.loss:.5f}"),
        ("test accuracy", lambda r: f"{r.accuracy:.2%}"),
        ("largest gradient error", lambda r: f"{r.gradient_error:.1e}"),
        ("time of a step", lambda r: _told(r.timing)),
        ("kept for backward", lambda r: f"{r.saved_bytes / 1024:,.0f} KiB"),
    ]
    for network, pair in results.items():
        for place, (label, told) in enumerate(rows):
            values = [told(pair[library]) for library in LIBRARIES]
            table.add_row("" if place else network, label, *values, end_section=label == rows[-1][0])
    console.print(table)

    timings = [operation.timings[library] for operation in measured for library in LIBRARIES]
    table = Table(
        title="Each operation of the networks, forward and backward",
        title_justify="left",
        caption=f"time: fastest of {_rounds(timings)} rounds, {SPREAD}; kept: PyTorch / epigrad",
        caption_justify="left",
    )
    table.add_column("operation")
    for library in LIBRARIES:
        table.add_column(library, justify="right", style=COLORS[library])
    table.add_column("time")
    table.add_column("kept, KiB", justify="right")
    for operation in measured:
        times = [_told(operation.timings[library]) for library in LIBRARIES]
        kept = " / ".join(f"{operation.saved[library] / 1024:,.0f}" for library in LIBRARIES)
        theirs, ours = (operation.timings[library].fastest for library in LIBRARIES)
        table.add_row(operation.name, *times, verdict(ours, theirs, "faster"), kept)
    console.print(table)


def draw(results: dict[str, dict[str, Result]], measured: list[Operation], was_busy: bool) -> None:
    """Both loss curves above; below, epigrad's time and memory as parts of PyTorch's."""
    # At a README's width an inch is 100 pixels.
    pyplot.rcParams.update({"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure = pyplot.figure(figsize=(8.4, 10.5), layout="constrained")
    title = "epigrad beside PyTorch: scikit-learn's digits, on CPU"
    figure.suptitle(title, fontsize=12, fontweight="bold")
    curves, times, memory = figure.subfigures(3, 1, height_ratios=[3, 4, 3.2])
    for axes, (network, pair) in zip(curves.subplots(1, 2), results.items(), strict=True):
        epochs = range(1, EPOCHS + 1)
        axes.plot(epochs, pair["PyTorch"].losses, color=COLORS["PyTorch"], linewidth=5, alpha=0.45, label="PyTorch")
        axes.plot(epochs, pair["epigrad"].losses, color=COLORS["epigrad"], linewidth=1.6, label="epigrad")
        axes.set(title=f"{network}: training loss", xlabel="epoch", ylabel="cross entropy", yscale="log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        accuracies = "\n".join(f"{library}: {pair[library].accuracy:.2%} right" for library in LIBRARIES)
        axes.text(0.97, 0.68, f"on images not seen\n{accuracies}", transform=axes.transAxes, ha="right", va="top")
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)

    steps = {f"{network}, a step": {name: r.timing for name, r in pair.items()} for network, pair in results.items()}
    timings = steps | {o.name: o.timings for o in measured}
    axes = times.subplots()
    took = [(name, pair["epigrad"].fastest * 1e6, pair["PyTorch"].fastest * 1e6) for name, pair in timings.items()]
    bars(axes, took, "faster", "us")
    rounds = _rounds([timing for pair in timings.values() for timing in pair.values()])
    axes.set(
        title="Time of a training step, and of forward and backward of each operation",
        xlabel=f"epigrad's time / PyTorch's, each the fastest of {rounds} rounds in turns (less is faster)",
    )
    if was_busy:
        times.suptitle(BUSY, fontsize=13, fontweight="bold", color="#b00020")
    axes = memory.subplots()
    kept = [(o.name, o.saved["epigrad"] / 1024, o.saved["PyTorch"] / 1024) for o in measured]
    bars(axes, kept, "less", "KiB")
    axes.set(title="Kept for backward, parameters aside", xlabel="epigrad's memory / PyTorch's (less is better)")
    figure.savefig(PICTURE, dpi=150)
    pyplot.close(figure)


def bars(axes: pyplot.Axes, rows: Sequence[tuple[str, float, float]], better: str, unit: str) -> None:
    """A bar for each name, epigrad's number as a part of PyTorch's; it says who is `better`, and
    both numbers."""
    ratios = [ours / theirs for _, ours, theirs in rows]
    verdicts = [verdict(ours, theirs, better) for _, ours, theirs in rows]
    drawn = axes.barh(range(len(rows)), ratios, color=[COLORS[told.split()[0]] for told in verdicts])
    labels = [
        f"{told} ({ours:,.0f} / {theirs:,.0f} {unit})" for told, (_, ours, theirs) in zip(verdicts, rows, strict=True)
    ]
    axes.bar_label(drawn, labels, padding=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    axes.axvline(1, color="#444444", linewidth=1, zorder=0)
    axes.set_xlim(0, 1.75 * max(1, *ratios))
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()


def main() -> None:
    console = Console()
    console.print(
        f"epigrad {epigrad.__version__} and PyTorch {torch.__version__}, {torch.get_num_threads()} threads: "
        f"training each network for {EPOCHS} epochs, in both"
    )
    was_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    data = digits()
    results = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[loss]}"), console=console) as progress:
        tasks = {network: progress.add_task(network, total=EPOCHS, loss="") for network in NETWORKS}
        last = progress.add_task("single operations", total=1, loss="")
        for network, makers in NETWORKS.items():
            results[network] = compare(
                makers, data, lambda loss, task=tasks[network]: progress.update(task, advance=1, loss=f"loss {loss}")
            )
        measured = operations(data.batch()[0])
        progress.update(last, advance=1)
    print_results(console, results, measured)
    timings = [result.timing for pair in results.values() for result in pair.values()]
    timings += [timing for operation in measured for timing in operation.timings.values()]
    was_busy = was_busy or busy(timings)
    if was_busy:
        console.print(f"[bold red]{BUSY}[/]")
    draw(results, measured, was_busy)
    console.print(f"the loss curves and the bars are in {os.path.relpath(PICTURE)}")


if __name__ == "__main__":
    main()
