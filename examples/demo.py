"""Trains two small networks on scikit-learn's digits, once with PyTorch's layers and once with
epigrad's.

Both libraries start from the same weights and see the same batches, step by step in turns. Shown
side by side: loss and accuracy, the distance of the gradients from a float64 reference, the time of
a step, and the bytes that autograd keeps for backward. ``make demo`` runs it; it writes demo.png
beside itself.
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
# A round of one operation is a few milliseconds; where the machine is busy, there are enough of
# them for a free one.
ROUND_SECONDS, LEAST_ROUNDS = 1.0, 30
LIBRARIES = ("PyTorch", "epigrad")
COLORS = {"PyTorch": "#d9673a", "epigrad": "#2a7f9e"}
BUSY = "[bold red]this machine is busy: times mean little[/]"
PICTURE = pathlib.Path(__file__).with_name("demo.png")


# --- the networks, in each library's own words ----------------------------------------------------


def torch_gelu_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 10))


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


class SwiGLUNet(nn.Module):
    """Blocks whose result is mixed with their input: x = lerp(x, block(norm(x)), mix), mix being
    learned."""

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
        self.mixes = nn.ParameterList(torch.full((96,), 0.5) for _ in range(2))
        self.head = linear(96, 10)
        self.lerp = lerp

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, block, mix in zip(self.norms, self.blocks, self.mixes, strict=True):
            x = self.lerp(x, block(norm(x)), mix)
        return self.head(x)


def torch_swiglu_net() -> nn.Module:
    return SwiGLUNet(nn.Linear, TorchSwiGLU, torch.lerp)


def epigrad_swiglu_net() -> nn.Module:
    return SwiGLUNet(epigrad.nn.Linear, epigrad.nn.GatedMLP, epigrad.lerp)


NETWORKS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "Linear + GELU": {"PyTorch": torch_gelu_net, "epigrad": epigrad_gelu_net},
    "SwiGLU + lerp skip": {"PyTorch": torch_swiglu_net, "epigrad": epigrad_swiglu_net},
}


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


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
    models: dict[str, nn.Module] = {}
    for name, make in makers.items():
        torch.manual_seed(SEED)
        models[name] = make()
    for ours, theirs in zip(*(model.parameters() for model in models.values()), strict=True):
        assert torch.equal(ours, theirs), "the same seed gives both libraries the same weights"

    results = {name: Result() for name in models}
    batch = slice(0, BATCH)
    reference = gradients(copy.deepcopy(models["PyTorch"]).double(), data.train_x[batch].double(), data.train_y[batch])
    for name, model in models.items():
        results[name].gradient_error = largest_error(
            gradients(model, data.train_x[batch], data.train_y[batch]), reference
        )
        parameters = list(model.parameters())
        results[name].saved_bytes = saved_bytes(lambda: model(data.train_x[batch]), parameters)  # noqa: B023

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


def operations() -> list[Operation]:
    """Time of forward and backward, and memory kept in between, of single operations."""
    torch.manual_seed(SEED)
    x = torch.randn(256, 256, requires_grad=True)
    bias = torch.randn(512, requires_grad=True)
    # Weights of the size that a layer starts with: preactivations are around 1.
    up, wide, down = ((torch.randn(n, k) / k**0.5).requires_grad_() for n, k in ((512, 256), (1024, 256), (256, 512)))
    preactivation = torch.randn(256, 1024, requires_grad=True)
    start, end, mix = (torch.randn(size, requires_grad=True) for size in ((512, 512), (512, 512), (512,)))
    linear = functional.linear

    def torch_swiglu(input: Tensor) -> Tensor:
        value, gate = input.chunk(2, dim=-1)
        return value * functional.silu(gate)

    cases: list[tuple[str, Sequence[Tensor], Callable[..., Tensor], Callable[..., Tensor]]] = [
        (
            "linear + GELU",
            (x, up, bias),
            lambda x, w, b: functional.gelu(linear(x, w, b)),
            lambda x, w, b: epigrad.linear(x, w, b, "gelu"),
        ),
        (
            "MLP, GELU",
            (x, up, bias, down),
            lambda x, w, b, d: linear(functional.gelu(linear(x, w, b)), d),
            lambda x, w, b, d: epigrad.mlp(x, w, b, d, None, "gelu"),
        ),
        (
            "MLP, SwiGLU",
            (x, wide, down),
            lambda x, w, d: linear(torch_swiglu(linear(x, w)), d),
            lambda x, w, d: epigrad.gated_mlp(x, w, None, d, None),
        ),
        ("SwiGLU alone", (preactivation,), torch_swiglu, epigrad.gated_activation),
        ("lerp", (start, end, mix), torch.lerp, epigrad.lerp),
    ]
    measured = []
    for name, tensors, theirs, ours in cases:
        forwards = {library: _bound(f, tensors) for library, f in zip(LIBRARIES, (theirs, ours), strict=True)}
        grad = torch.randn_like(forwards["PyTorch"]())
        steps = {library: _step(forward, tensors, grad) for library, forward in forwards.items()}
        timings = interleaved(steps, ROUND_SECONDS, LEAST_ROUNDS)
        parameters = [tensor for tensor in tensors if any(tensor is known for known in (bias, up, wide, down, mix))]
        measured.append(
            Operation(
                name,
                timings,
                {library: saved_bytes(forward, parameters) for library, forward in forwards.items()},
            )
        )
    return measured


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
    return f"{timing.fastest * 1e3:.2f} ms +-{(timing.high - timing.low) / 2 / timing.fastest:.0%}"


def busy(timings: Sequence[Timing]) -> bool:
    """Whether the rounds differ by more than the code does: where a quarter of them takes twice the
    fastest."""
    return any(timing.high > 2 * timing.fastest for timing in timings)


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
        title="One operation, forward and backward",
        title_justify="left",
        caption=f"time: fastest of {_rounds(timings)} rounds, {SPREAD}",
        caption_justify="left",
    )
    table.add_column("operation")
    for library in LIBRARIES:
        table.add_column(f"{library}, time", justify="right", style=COLORS[library])
    for library in LIBRARIES:
        table.add_column(f"{library}, kept", justify="right", style=COLORS[library])
    for operation in measured:
        times = [_told(operation.timings[library]) for library in LIBRARIES]
        table.add_row(operation.name, *times, *(f"{operation.saved[name] / 1024:,.0f} KiB" for name in LIBRARIES))
    console.print(table)


def draw(results: dict[str, dict[str, Result]], measured: list[Operation]) -> None:
    """Both loss curves above, time and memory of single operations below."""
    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, grid = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    figure.suptitle("epigrad beside PyTorch: scikit-learn's digits, on CPU", fontsize=14, fontweight="bold")
    for axes, (network, pair) in zip(grid[0], results.items(), strict=True):
        epochs = range(1, EPOCHS + 1)
        axes.plot(epochs, pair["PyTorch"].losses, color=COLORS["PyTorch"], linewidth=5, alpha=0.45, label="PyTorch")
        axes.plot(epochs, pair["epigrad"].losses, color=COLORS["epigrad"], linewidth=1.6, label="epigrad")
        axes.set(title=f"{network}: training loss", xlabel="epoch", ylabel="cross entropy", yscale="log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        accuracies = "\n".join(f"{library}: {pair[library].accuracy:.2%} right" for library in LIBRARIES)
        axes.text(0.97, 0.72, f"on images not seen\n{accuracies}", transform=axes.transAxes, ha="right", va="top")
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
    names = [operation.name for operation in measured]
    timings = [[operation.timings[library] for library in LIBRARIES] for operation in measured]
    # From the fastest round, the bar's height, up to the third quartile.
    whiskers = [[(timing.high - timing.fastest) * 1e3 for timing in pair] for pair in timings]
    bars(grid[1][0], names, [[timing.fastest * 1e3 for timing in pair] for pair in timings], "{:.2f}", whiskers)
    rounds = _rounds([timing for pair in timings for timing in pair])
    grid[1][0].set(
        title="Forward and backward of one operation",
        ylabel=f"milliseconds: fastest of {rounds} rounds\n(line: up to the third quartile)",
    )
    bars(grid[1][1], names, [[o.saved[library] / 1024 for library in LIBRARIES] for o in measured], "{:,.0f}")
    grid[1][1].set(title="Kept for backward, parameters aside", ylabel="KiB")
    figure.savefig(PICTURE, dpi=150)
    pyplot.close(figure)


def bars(
    axes: pyplot.Axes,
    names: Sequence[str],
    heights: Sequence[Sequence[float]],
    label: str,
    whiskers: Sequence[Sequence[float]] | None = None,
) -> None:
    """A pair of bars for each name, and a line up from each as long as its whisker."""
    width = 0.4
    for place, library in enumerate(LIBRARIES):
        positions = [index + (place - 0.5) * width for index in range(len(names))]
        values = [pair[place] for pair in heights]
        above = [[0.0] * len(values), [pair[place] for pair in whiskers]] if whiskers else None
        style = {"ecolor": "#777777", "capsize": 2, "elinewidth": 1}
        drawn = axes.bar(
            positions, values, width * 0.95, color=COLORS[library], label=library, yerr=above, error_kw=style
        )
        axes.bar_label(drawn, [label.format(value) for value in values], fontsize=8, padding=2)
    axes.set_xticks(range(len(names)), [name.replace(", ", ",\n").replace(" + ", " +\n") for name in names])
    axes.legend(frameon=False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def main() -> None:
    console = Console()
    console.print(
        f"epigrad {epigrad.__version__} and PyTorch {torch.__version__}, {torch.get_num_threads()} threads: "
        f"training each network for {EPOCHS} epochs, in both"
    )
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        console.print(BUSY)
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
        measured = operations()
        progress.update(last, advance=1)
    print_results(console, results, measured)
    if busy([timing for operation in measured for timing in operation.timings.values()]):
        console.print(BUSY)
    draw(results, measured)
    console.print(f"the loss curves and the bars are in {os.path.relpath(PICTURE)}")


if __name__ == "__main__":
    main()
