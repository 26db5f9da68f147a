"""The table of ``python -m epigrad bench --device cpu``.

Every row is a forward and a backward, to all inputs, but for the products, which are one `torch.mm`
each. The candidates of a row take turns, and what they return is allocated in the time that is
measured.

For the small layer there is also what a call costs beyond its bare products: its time less that of
the three products alone, on the same shapes and on ready buffers (in epigrad the core's ``linear``
and ``linear_backward`` without bias and activation, in PyTorch `torch.mm` three times). And of
epigrad what it costs beyond its kernels: its time less that of the same ``linear`` and
``linear_backward``, bias and activation included, on ready buffers. That is all that Python,
autograd and the allocator add.
"""

from __future__ import annotations

import argparse
import pathlib
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad._core import loader, selection, tables
from epigrad._core.call import Call
from epigrad.cli import operations
from epigrad.cli.operations import Operation
from epigrad.cli.report import Progress, Report, no_rows, plot, told
from epigrad.cli.table import print_table
from epigrad.cli.timing import interleaved

__all__ = ["CASES", "run"]

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
        goals: for each dtype how many times as long as epigrad PyTorch is to take, at least.
        forward: whether that is all.
        beyond_product: whether the three bare products and the bare kernels are measured too.
        spread: of a layer, about the standard deviation of its preactivations. At 1 the activation
            is neither flat nor a straight line; at 32 slopes are denormal numbers too, which some
            processors are slow with.
    """

    name: str
    make: Callable[[str], tuple[Operation, Operation]]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]
    all_kinds: Callable[[], tuple[str, ...]]
    goals: Mapping[str, float]
    forward: bool = False
    beyond_product: bool = False
    spread: float = 1.0


def _goals(float32: float, float64: float, bfloat16: float, float16: float) -> Mapping[str, float]:
    return {"float32": float32, "float64": float64, "bfloat16": bfloat16, "float16": float16}


def _product(size: int) -> Case:
    return Case(
        f"product {size}x{size}x{size}",
        operations.product,
        ((size, size),) * 2,
        operations.layouts(),
        operations.layouts,
        _goals(0.95, 0.95, 0.9, 2.0),
        forward=True,
    )


def _large_layer(name: str, goals: Mapping[str, float], spread: float = 1.0) -> Case:
    shapes = ((1024, 1024), (4096, 1024), (4096,))
    return Case(name, operations.linear, shapes, ("gelu",), operations.activations, goals, spread=spread)


def _lerp_by(shape: tuple[int, ...], weight: tuple[int, ...]) -> Case:
    """A weight that is broadcast along memory, or between: its gradient is a sum of neighbours."""
    return Case(
        f"lerp 4M by {list(weight)}",
        operations.lerp,
        (shape, shape, weight),
        ("tensor",),
        lambda: ("tensor",),
        _goals(1.0, 1.0, 1.0, 1.0),
    )


CASES = (
    _large_layer("linear 1024x1024->4096", _goals(1.0, 1.0, 1.3, 2.2)),
    _large_layer("linear 1024x1024->4096 of 32", _goals(1.0, 1.0, 1.0, 1.0), spread=32.0),
    _product(1024),
    _product(2048),
    Case(
        "gated [2048, 4096]",
        operations.gated,
        ((2048, 4096),),
        ("swiglu", "geglu"),
        operations.gated_kinds,
        _goals(1.8, 1.8, 2.0, 2.0),
    ),
    Case(
        "lerp 4M",
        operations.lerp,
        ((4, 1024, 1024),) * 3,
        operations.lerp_weights(),
        operations.lerp_weights,
        _goals(1.5, 1.5, 1.5, 1.5),
    ),
    Case(
        "lerp 4M by [1024]",
        operations.lerp,
        ((4, 1024, 1024), (4, 1024, 1024), (1024,)),
        ("tensor",),
        lambda: ("tensor",),
        _goals(1.8, 1.8, 1.8, 1.8),
    ),
    _lerp_by((4096, 1024), (4096, 1)),
    _lerp_by((2**20, 2, 2), (2**20, 1, 2)),
    Case(
        "linear 32x64->64",
        operations.linear,
        ((32, 64), (64, 64), (64,)),
        ("gelu",),
        operations.activations,
        _goals(1.5, 1.5, 1.5, 1.5),
        beyond_product=True,
    ),
)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the requested files."""
    rows = [
        (case, kind, str(dtype["name"]))
        for case in CASES
        for kind in (case.all_kinds() if args.all_kinds else case.kinds)
        for dtype in tables.DTYPES
    ]
    if args.rows is not None:
        rows = [row for row in rows if args.rows.search(_label(*row))]
    if not rows:
        return no_rows(args, "cpu")
    seconds = QUICK_SECONDS if args.quick else SECONDS
    if args.seconds is not None:
        seconds = args.seconds / len(rows)
    report = Report(
        device=_cpu_name(),
        command=_command(args),
        unit="seconds of one forward and backward, of a product: median, quartiles, fastest",
        path=args.json,
        slug="cpu",
        facts={"threads": torch.get_num_threads(), "backend": _backend()},
    )
    with Progress(len(rows), args.json) as progress:
        for case, kind, dtype in rows:
            progress.begin(_label(case, kind, dtype))
            row = _measure(case, kind, dtype, seconds, args.quick, bool(args.compile))
            report.add(row)
            progress.end(f"{_label(case, kind, dtype)}: {told(row['epigrad'])}, ratio {row['ratio']:.2f}")
    report.finish(lambda: _print(report.rows))
    if args.plot is not None:
        title = f"epigrad {tables.VERSION} on {report.device}, {torch.get_num_threads()} threads"
        bars = [(_label(row["case"], row["kind"], row["dtype"]), row["ratio"], None) for row in report.rows]
        goals = [row["goals"]["eager"] for row in report.rows]
        plot(report.place(args.plot, "png"), title, "forward and backward, products forward alone", bars, goals)
    return 0


def _label(case: Case | str, kind: str, dtype: str) -> str:
    return f"{case if isinstance(case, str) else case.name} {kind} {dtype}"


def _command(args: argparse.Namespace) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in ("quick", "all_kinds", "compile") if getattr(args, name)]
    if args.rows is not None:
        flags.append(f"--rows {args.rows.pattern!r}")
    return " ".join(["python -m epigrad bench --device cpu", *flags])


def _measure(case: Case, kind: str, dtype: str, seconds: float, quick: bool, compiled: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in case.shapes]
    if case.make is operations.linear:
        tensors[1] *= case.spread / tensors[1].shape[1] ** 0.5
    tensors = [tensor.to(getattr(torch, dtype)).requires_grad_(not case.forward) for tensor in tensors]
    ours, eager = case.make(kind)
    grad = None
    if not case.forward:
        with torch.no_grad():
            shape = eager(*tensors).shape
        grad = torch.randn(shape, generator=generator).to(tensors[0].dtype)
    candidates: dict[str, Callable[[], object]] = {
        "epigrad": _step(ours, tensors, grad),
        "eager": _step(eager, tensors, grad),
    }
    row: dict[str, Any] = {"case": case.name, "kind": kind, "dtype": dtype}
    row["direction"] = "forward" if case.forward else "both"
    if compiled:
        step = _step(torch.compile(eager), tensors, grad)
        try:
            step()
            candidates["compile"] = step
        except Exception as error:  # whatever its compiler may raise: the row says so
            row["compile_error"] = str(error).strip().splitlines()[0]
    if case.beyond_product and grad is not None:
        candidates["epigrad_products"] = _epigrad_products(tensors, grad)
        candidates["epigrad_kernels"] = _epigrad_kernels(tensors, grad, kind)
        candidates["eager_products"] = _eager_products(tensors, grad)
    timings = interleaved(candidates, seconds, least=1 if quick else 3, wanted=0 if quick else 8)
    row |= {name: asdict(timing) for name, timing in timings.items()}
    row["ratio"] = timings["epigrad"].median / timings["eager"].median
    row["goals"] = {"eager": round(1 / case.goals[dtype], 3)}
    row["short_of"] = {name: goal for name, goal in row["goals"].items() if row["ratio"] > goal}
    if case.beyond_product:
        for name in ("epigrad", "eager"):
            row[f"{name}_beyond_product"] = timings[name].median - timings[f"{name}_products"].median
        row["epigrad_beyond_kernels"] = timings["epigrad"].median - timings["epigrad_kernels"].median
    return row


def _step(operation: Operation, tensors: list[Tensor], grad: Tensor | None) -> Callable[[], object]:
    def step() -> None:
        if grad is None:
            operation(*tensors)
            return
        torch.autograd.grad(operation(*tensors), tensors, grad, allow_unused=True)

    return step


def _epigrad_products(tensors: list[Tensor], grad: Tensor) -> Callable[[], object]:
    core, (x, weight, _) = loader.core(), (tensor.detach() for tensor in tensors)
    out, grad_x, grad_weight = torch.empty_like(grad), torch.empty_like(x), torch.empty_like(weight)
    forward = Call("linear")

    def products() -> None:
        core.launch(forward, (x, weight), (True,), (out,))
        core.launch(forward.backward, (grad, x, weight), (True, True), (grad_x, grad_weight))

    return products


def _epigrad_kernels(tensors: list[Tensor], grad: Tensor, kind: str) -> Callable[[], object]:
    """What the whole call runs, and nothing around it."""
    core, inputs = loader.core(), tuple(tensor.detach() for tensor in tensors)
    out, grads = torch.empty_like(grad), tuple(torch.empty_like(tensor) for tensor in inputs)
    # What save="auto" keeps: nothing without an activation, the output where the derivative is a
    # function of it.
    from_output = tables.ACTIVATIONS[kind].from_output
    pre = None if kind == "none" or from_output else torch.empty_like(grad)
    backward = (grad, *inputs, pre, out if from_output else None)
    forward = Call("linear", kind)

    def kernels() -> None:
        core.launch(forward, inputs, (True, pre is not None), (out, pre))
        core.launch(forward.backward, backward, (True, True, True), grads)

    return kernels


def _eager_products(tensors: list[Tensor], grad: Tensor) -> Callable[[], object]:
    x, weight, _ = (tensor.detach() for tensor in tensors)
    out, grad_x, grad_weight = torch.empty_like(grad), torch.empty_like(x), torch.empty_like(weight)

    def products() -> None:
        torch.mm(x, weight.t(), out=out)
        torch.mm(grad, weight, out=grad_x)
        torch.mm(grad.t(), x, out=grad_weight)

    return products


def _print(results: list[dict[str, Any]]) -> None:
    compiled = any("compile" in row or "compile_error" in row for row in results)
    header = ["forward + backward", "dtype", "epigrad", "PyTorch", "ratio", "goal"]
    header += ["torch.compile"] if compiled else []
    rows = []
    for row in results:
        cells = [f"{row['case']} {row['kind']}", row["dtype"], told(row["epigrad"]), told(row["eager"])]
        cells += [f"{row['ratio']:.2f}", f"{row['goals']['eager']:.2f} {'short' if row['short_of'] else 'met'}"]
        if compiled:
            cells.append(told(row["compile"]) if "compile" in row else "failed")
        rows.append(cells)
    print_table("Median time and half the distance of the quartiles; of products the forward alone", header, rows)
    beyond = [
        [f"{row['case']} {row['kind']}", row["dtype"]] + [f"{row[name] * 1e6:.0f} us" for name in BEYOND]
        for row in results
        if "epigrad_beyond_product" in row
    ]
    header = ["forward + backward", "dtype", "epigrad", "PyTorch", "epigrad, beyond the kernels"]
    print_table("Beyond the three bare products", header, beyond)
    for reason in sorted({row["compile_error"] for row in results if "compile_error" in row}):
        print(f"torch.compile failed: {reason}")


def _backend() -> str:
    """The engine that computes, as the backend says it."""
    return next(info.detail for info in selection.backends() if info.name == "cpu")


def _cpu_name() -> str:
    """The processor's model, where the system tells."""
    try:
        match = re.search(r"^model name\s*: (.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()
