"""``python -m epigrad bench``: this machine, against PyTorch eager and `torch.compile`.

Every row is a forward and a backward, to all inputs, and the candidates of a row take turns. For the small layer there
is also what a call costs beyond its bare products: its time less that of the three products alone, on the same shapes
and on ready buffers (in epigrad the core's ``linear`` and ``linear_backward`` without bias and activation, in PyTorch
`torch.mm` three times). And of epigrad what it costs beyond its kernels: its time less that of the same ``linear`` and
``linear_backward``, bias and activation included, on ready buffers. That is all that Python, autograd and the allocator
add.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import pathlib
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from epigrad import differentiable, functional, library
from epigrad.cli.table import print_table
from epigrad.cli.timing import Timing, interleaved
from epigrad.launch import aligned_workspace

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "main"]

Operation = Callable[..., Tensor]

# How long a row is measured.
SECONDS, QUICK_SECONDS = 5.0, 0.5

# What a row of the second table tells.
BEYOND = ("epigrad_beyond_product", "eager_beyond_product", "epigrad_beyond_kernels")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table below; it gives a row for each kind and each dtype of the core.

    Attributes:
        name: what is printed.
        make: from a kind, epigrad's function and PyTorch's.
        shapes: of the inputs, all of which get a gradient.
        kinds: those measured by default.
        all_kinds: those measured with ``--all-kinds``.
        beyond_product: whether the three bare products and the bare kernels are measured too.
    """

    name: str
    make: Callable[[str], tuple[Operation, Operation]]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    all_kinds: Callable[[], tuple[str, ...]]
    beyond_product: bool = False


def _eager_activation(name: str) -> Callable[[Tensor], Tensor]:
    """PyTorch's own operator where it has one, else the formula."""
    if name == "gelu_tanh":
        return functools.partial(torch_functional.gelu, approximate="tanh")
    own = getattr(torch_functional, name, None) or getattr(torch, name, None)
    return own if callable(own) else differentiable.ACTIVATIONS[name].value


def _linear(activation: str) -> tuple[Operation, Operation]:
    eager = _eager_activation(activation)
    return (
        lambda x, weight, bias: functional.linear(x, weight, bias, activation),
        lambda x, weight, bias: eager(torch_functional.linear(x, weight, bias)),
    )


def _gated(kind: str) -> tuple[Operation, Operation]:
    eager = _eager_activation(library.core().gated_kind("bench", kind))

    def halves(x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * eager(gate)

    return lambda x: functional.gated_activation(x, kind), torch_functional.glu if kind == "glu" else halves


def _lerp(weight: str) -> tuple[Operation, Operation]:
    if weight == "number":
        return lambda start, end, _: functional.lerp(start, end, 0.3), lambda start, end, _: torch.lerp(start, end, 0.3)
    return functional.lerp, torch.lerp


def _activations() -> tuple[str, ...]:
    return tuple(name for name in library.core().activations if name is not None)


def _gated_kinds() -> tuple[str, ...]:
    return tuple(library.core().gated_kinds)


def _lerp_weights() -> tuple[str, ...]:
    return ("number", "tensor")


CASES = (
    Case("linear 1024x1024->4096", _linear, ((1024, 1024), (4096, 1024), (4096,)), ("gelu",), _activations),
    Case("gated [2048, 4096]", _gated, ((2048, 4096),), ("swiglu",), _gated_kinds),
    Case("lerp 4M", _lerp, ((4, 1024, 1024),) * 3, ("number", "tensor"), _lerp_weights),
    Case("linear 32x64->64", _linear, ((32, 64), (64, 64), (64,)), ("gelu",), _activations, beyond_product=True),
)


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser("bench", help="this machine, against PyTorch eager and torch.compile")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--all-kinds", action="store_true", help="every activation and gated kind")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too (needs its C++ compiler)")
    parser.add_argument("--json", type=pathlib.Path, metavar="PATH", help="write JSON to a file, or into a directory")
    parser.add_argument("--plot", type=pathlib.Path, metavar="PNG", help="draw the ratios (needs matplotlib)")
    parser.set_defaults(run=main, error=parser.error)


def main(args: argparse.Namespace) -> int:
    """Measure, print the table and write the files that were asked for."""
    for path in (args.json, args.plot):
        if path is not None and not path.absolute().parent.is_dir():
            args.error(f"{path}: there is no such directory")
    if args.plot is not None and importlib.util.find_spec("matplotlib") is None:
        args.error("--plot needs matplotlib: pip install 'epigrad[bench]'")
    rows = [
        (case, kind, str(dtype["name"]))
        for case in CASES
        for kind in (case.all_kinds() if args.all_kinds else case.kinds)
        for dtype in json.loads(library.control_call(library.core().control.Tables))["dtypes"]
    ]
    results = []
    with _progress(len(rows)) as advance:
        for case, kind, dtype in rows:
            advance(f"{case.name} {kind} {dtype}")
            results.append(_measure(case, kind, dtype, args.quick, args.compile))
    _print(results)
    report = {
        "date": datetime.date.today().isoformat(),
        "command": _command(args),
        "device": _cpu_name(),
        "threads": torch.get_num_threads(),
        "versions": {
            "epigrad": library.core().version,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "go": json.loads(library.control_call(library.core().control.DoctorFacts))["go_version"],
        },
        "unit": "seconds of one forward and backward: median, quartiles, fastest",
        "rows": results,
    }
    if args.json is not None:
        _write(args.json, report)
    if args.plot is not None:
        _plot(args.plot, report)
    return 0


def _measure(case: Case, kind: str, dtype: str, quick: bool, compiled: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in case.shapes]
    if case.make is _linear:
        # Of a layer's size: preactivations are around 1, where the activation is neither flat nor a straight line.
        tensors[1] /= tensors[1].shape[1] ** 0.5
    tensors = [tensor.to(getattr(torch, dtype)).requires_grad_() for tensor in tensors]
    ours, eager = case.make(kind)
    with torch.no_grad():
        out = eager(*tensors)
    grad = torch.randn(out.shape, generator=generator).to(out.dtype)
    del out
    candidates: dict[str, Callable[[], object]] = {
        "epigrad": _step(ours, tensors, grad),
        "eager": _step(eager, tensors, grad),
    }
    row: dict[str, Any] = {"case": case.name, "kind": kind, "dtype": dtype}
    if compiled:
        step = _step(torch.compile(eager), tensors, grad)
        try:
            step()
            candidates["compile"] = step
        except Exception as error:  # whatever its compiler may raise: the row says so
            row["compile_error"] = str(error).strip().splitlines()[0]
    if case.beyond_product:
        candidates["epigrad_products"] = _epigrad_products(tensors, grad)
        candidates["epigrad_kernels"] = _epigrad_kernels(tensors, grad, kind)
        candidates["eager_products"] = _eager_products(tensors, grad)
    timings = interleaved(candidates, QUICK_SECONDS if quick else SECONDS, least=1 if quick else 3)
    row |= {name: asdict(timing) for name, timing in timings.items()}
    row["ratio"] = timings["epigrad"].median / timings["eager"].median
    if case.beyond_product:
        for name in ("epigrad", "eager"):
            row[f"{name}_beyond_product"] = timings[name].median - timings[f"{name}_products"].median
        row["epigrad_beyond_kernels"] = timings["epigrad"].median - timings["epigrad_kernels"].median
    return row


def _step(operation: Operation, tensors: list[Tensor], grad: Tensor) -> Callable[[], object]:
    def step() -> None:
        torch.autograd.grad(operation(*tensors), tensors, grad, allow_unused=True)

    return step


def _epigrad_products(tensors: list[Tensor], grad: Tensor) -> Callable[[], object]:
    core, (x, weight, _) = library.core(), (tensor.detach() for tensor in tensors)
    out, grad_x, grad_weight = torch.empty_like(grad), torch.empty_like(x), torch.empty_like(weight)
    backward, outputs = (grad, x, weight), (grad_x, grad_weight)
    _, size = core.infer("linear_backward", None, 0, False, None, backward, (True, True, False))
    workspace = aligned_workspace(size, x.device)

    def products() -> None:
        threads = torch.get_num_threads()
        core.run("linear", None, 0, False, None, (x, weight), (out,), None, 0, threads, False)
        core.run("linear_backward", None, 0, False, None, backward, outputs, workspace, 0, threads, False)

    return products


def _epigrad_kernels(tensors: list[Tensor], grad: Tensor, kind: str) -> Callable[[], object]:
    """What the whole call runs, and nothing around it."""
    core, inputs = library.core(), tuple(tensor.detach() for tensor in tensors)
    out, grads = torch.empty_like(grad), tuple(torch.empty_like(tensor) for tensor in inputs)
    # What save="auto" keeps: nothing without an activation, the output where the derivative is a function of it.
    from_output = core.activations[kind].from_output
    pre = None if kind == "none" or from_output else torch.empty_like(grad)
    backward = (grad, *inputs, pre, out if from_output else None)
    needs = (True, True, True)
    _, size = core.infer("linear_backward", kind, 0, False, None, backward, needs)
    workspace = aligned_workspace(size, grad.device)

    def kernels() -> None:
        threads = torch.get_num_threads()
        core.run("linear", kind, 0, False, None, inputs, (out, pre), None, 0, threads, False)
        core.run("linear_backward", kind, 0, False, None, backward, grads, workspace, 0, threads, False)

    return kernels


def _eager_products(tensors: list[Tensor], grad: Tensor) -> Callable[[], object]:
    x, weight, _ = (tensor.detach() for tensor in tensors)
    out, grad_x, grad_weight = torch.empty_like(grad), torch.empty_like(x), torch.empty_like(weight)

    def products() -> None:
        torch.mm(x, weight.t(), out=out)
        torch.mm(grad, weight, out=grad_x)
        torch.mm(grad.t(), x, out=grad_weight)

    return products


class _progress:  # noqa: N801 (used as a function)
    """rich's progress bar where it is installed, else one line for each row."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.bar: Any = None

    def __enter__(self) -> Callable[[str], None]:
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            return print
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, transient=True)
        self.bar.start()
        task = self.bar.add_task("", total=self.total)
        done = iter(range(self.total))
        return lambda text: self.bar.update(task, description=text, completed=next(done))

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def _print(results: list[dict[str, Any]]) -> None:
    compiled = any("compile" in row or "compile_error" in row for row in results)
    header = ["forward + backward", "dtype", "epigrad", "PyTorch", "ratio", *(["torch.compile"] if compiled else [])]
    rows = []
    for row in results:
        cells = [f"{row['case']} {row['kind']}", row["dtype"], _told(row["epigrad"]), _told(row["eager"])]
        cells.append(f"{row['ratio']:.2f}")
        if compiled:
            cells.append(_told(row["compile"]) if "compile" in row else "failed")
        rows.append(cells)
    print_table("Median time and half the distance of the quartiles", header, rows)
    beyond = [
        [f"{row['case']} {row['kind']}", row["dtype"]] + [f"{row[name] * 1e6:.0f} us" for name in BEYOND]
        for row in results
        if "epigrad_beyond_product" in row
    ]
    header = ["forward + backward", "dtype", "epigrad", "PyTorch", "epigrad, beyond the kernels"]
    print_table("Beyond the three bare products", header, beyond)
    for reason in sorted({row["compile_error"] for row in results if "compile_error" in row}):
        print(f"torch.compile failed: {reason}")


def _told(timing: dict[str, Any]) -> str:
    spread = Timing(**timing).spread
    unit, scale = ("us", 1e6) if timing["median"] < 1e-3 else ("ms", 1e3)
    return f"{timing['median'] * scale:.3g} {unit} +-{spread:.0%}"


def _command(args: argparse.Namespace) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in ("quick", "all_kinds", "compile") if getattr(args, name)]
    return " ".join(["python -m epigrad bench", *flags])


def _cpu_name() -> str:
    """The processor's model, where the system tells."""
    try:
        match = re.search(r"^model name\s*: (.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def _write(path: pathlib.Path, report: dict[str, Any]) -> None:
    if path.is_dir():
        slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|CPU|@.*", "", report["device"]).lower()).strip("-")
        path = path / f"{report['date']}-cpu-{slug}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {path}")


def _plot(path: pathlib.Path, report: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report["rows"][::-1]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(rows)), layout="constrained")
    axes.barh(range(len(rows)), [row["ratio"] for row in rows], color="#2a7f9e")
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [f"{row['case']}  {row['kind']}  {row['dtype']}" for row in rows], fontsize=8)
    axes.set_xlabel("time of epigrad / time of PyTorch eager, forward and backward (less is faster)")
    title = f"epigrad {report['versions']['epigrad']} on {report['device']}, {report['threads']} threads"
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"wrote {path}")
