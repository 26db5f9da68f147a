"""The table of ``python -m epigrad bench --device webgpu``.

Data lies in `epigrad.webgpu.Array`, outputs too. A call returns before its work is done, so each
candidate is timed as a burst of calls and one wait at the end. Beside epigrad stands PyTorch eager,
on CUDA where that is here (the same GPU through its vendor's own libraries) and else on the CPU;
where it is on CUDA, the ceiling of what moves memory is ``copy_`` of as many bytes.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from epigrad import backward, forward
from epigrad._core import selection, tables
from epigrad.cli.operations import eager_product
from epigrad.cli.picture import plot
from epigrad.cli.report import Progress, Report, command, no_rows, seconds_told, told
from epigrad.cli.table import print_table
from epigrad.cli.timing import Timing, interleaved
from epigrad.webgpu import Array

__all__ = ["Case", "cases", "measure", "run"]

DTYPES = ("float32", "bfloat16", "float16")

# How long a row is measured, and how long a burst takes at least.
SECONDS, QUICK_SECONDS = 1.0, 0.1
BURST_SECONDS, MOST_CALLS = 0.01, 200

# Rows and columns of the elementwise problems, and the size of the square products; a software
# adapter gets small ones.
ELEMENTWISE, SQUARE = (8192, 14336), 4096
SMALL_ELEMENTWISE, SMALL_SQUARE = (256, 448), 128

# They are declared for tensors, and take arrays as well.
_forward: Any = forward
_backward: Any = backward

Row = dict[str, Any]
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One row.

    Attributes:
        name: what is measured, with its kind.
        shapes: of the inputs.
        outputs: shapes of what is written.
        ours: epigrad's call on inputs and outputs, which are arrays.
        eager: PyTorch's on the inputs.
        multiplications: of its products; 0 where memory is what counts.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    ours: Callable[[Sequence[Any], Sequence[Any]], object]
    eager: Callable[[Sequence[Tensor]], object]
    multiplications: int = 0

    @property
    def size(self) -> str:
        """How the problem's size is printed."""
        return " ".join("x".join(map(str, shape)) for shape in self.shapes[:2])

    def traffic(self, itemsize: int) -> int:
        """Bytes that are read and written."""
        return itemsize * sum(math.prod(shape) for shape in (*self.shapes, *self.outputs))


def cases(square: int, elementwise: tuple[int, int]) -> list[Case]:
    """The rows, for products of so many rows and columns, and so large tensors otherwise."""
    shape = elementwise
    made = [_linear(n, n, n) for n in (square // 8, square)]
    made.append(_linear(square // 2, square * 3 // 16, square * 3 // 4))
    made.append(_linear_backward(square))
    for kind in ("swiglu", "geglu"):
        made += _gated(kind, shape)
    made.append(
        Case(
            "lerp tensor",
            (shape, shape, shape),
            (shape,),
            lambda x, y: _forward.lerp(*x, out=y[0]),
            lambda x: torch.lerp(*x),
        )
    )
    return made


def _gated(kind: str, shape: tuple[int, int]) -> list[Case]:
    product = eager_product(kind)

    return [
        Case(
            f"gated_product {kind}",
            (shape, shape),
            (shape,),
            lambda x, y: _forward.gated_product(*x, kind, out=y[0]),
            lambda x: product(*x),
        ),
        Case(
            f"gated_product_backward {kind}",
            (shape, shape, shape),
            (shape, shape),
            lambda x, y: _backward.gated_product_backward(*x, kind, out=y),
            lambda x: _gradients(product, x[1:], x[0]),
        ),
    ]


def _linear(m: int, k: int, n: int) -> Case:
    return Case(
        "linear gelu",
        ((m, k), (n, k), (n,)),
        ((m, n),),
        lambda x, y: _forward.linear(*x, "gelu", out=y[0]),
        lambda x: torch_functional.gelu(torch_functional.linear(*x)),
        m * k * n,
    )


def _linear_backward(n: int) -> Case:
    square = (n, n)

    def eager(x: Sequence[Tensor]) -> object:
        grad, a, weight, _, pre = x
        grad_pre = torch.ops.aten.gelu_backward(grad, pre)
        return grad_pre @ weight, grad_pre.T @ a, grad_pre.sum(0)

    return Case(
        "linear_backward gelu",
        (square, square, square, (n,), square),
        (square, square, (n,)),
        lambda x, y: _backward.linear_backward(*x[:4], "gelu", preactivation=x[4], out=y),
        eager,
        2 * n**3,
    )


def _gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> object:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, grad)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the requested files; 1 if a row of epigrad's failed."""
    info = next(info for info in selection.backends() if info.name == "webgpu")
    small = args.quick or _is_software(info.detail)
    sizes = (SMALL_SQUARE, SMALL_ELEMENTWISE) if small else (SQUARE, ELEMENTWISE)
    chosen = [
        (case, dtype)
        for case in cases(*sizes)
        for dtype in DTYPES
        if args.rows is None or args.rows.search(f"{case.name} {case.size} {dtype}")
    ]
    if not chosen:
        return no_rows(args, "webgpu")
    peer = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = Report(
        device=info.detail.partition(" (")[0],
        command=command(args, "webgpu"),
        unit="seconds of one call in a burst: median, quartiles, fastest",
        path=args.json,
        slug="webgpu",
        facts={"backend": info.detail, "eager_on": str(peer)},
    )
    begin = time.perf_counter()
    with Progress(len(chosen), args.json) as progress:
        for case, dtype in chosen:
            label = f"{case.name} {case.size} {dtype}"
            progress.begin(label)
            if args.seconds is not None and time.perf_counter() - begin > args.seconds:
                row = {**_named(case, dtype), "skipped": f"after {args.seconds:g} seconds"}
            else:
                row = measure(case, dtype, peer, QUICK_SECONDS if args.quick else SECONDS)
            report.add(row)
            progress.end(f"{label}: {_told(row)}")
    report.finish(lambda: _print(report))
    if args.plot is not None:
        bars = [(f"{r['op']} {r['size']} {r['dtype']}", r["ratio"], None) for r in report.rows if "ratio" in r]
        where = f"{report.device} through WebGPU, PyTorch {torch.__version__} on {peer}"
        title = f"epigrad {tables.VERSION} on {where}"
        plot(report.place(args.plot, "png"), title, "one call", bars)
    return int(any("error" in row for row in report.rows))


def _is_software(detail: str) -> bool:
    return any(name in detail.lower() for name in ("llvmpipe", "swiftshader", "basic render"))


def _named(case: Case, dtype: str) -> Row:
    return {"op": case.name, "size": case.size, "dtype": dtype}


def measure(case: Case, dtype: str, peer: torch.device, seconds: float) -> Row:
    """A row, which says what failed if anything did: the others are measured all the same."""
    row = _named(case, dtype)
    try:
        timings = _timings(case, getattr(torch, dtype), peer, seconds)
    except Exception as error:
        return {**row, "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
    row |= {name: asdict(timing) for name, timing in timings.items()}
    ours = timings["epigrad"].median
    row["ratio"] = ours / timings["eager"].median
    for name in ("epigrad", "eager"):
        row[f"{name}_rate"] = _rate(case, getattr(torch, dtype).itemsize, timings[name].median)
    row["unit"] = "flop/s" if case.multiplications else "byte/s"
    if "copy" in timings:
        row["share_of_copy"] = timings["copy"].median / ours
    return row


def _rate(case: Case, itemsize: int, seconds: float) -> float:
    return (2 * case.multiplications or case.traffic(itemsize)) / seconds


def _timings(case: Case, dtype: torch.dtype, peer: torch.device, seconds: float) -> Mapping[str, Timing]:
    tensors = [torch.randn(shape, device=peer).to(dtype) for shape in case.shapes]
    arrays, outputs = [Array.from_torch(x.cpu()) for x in tensors], [Array(shape, dtype) for shape in case.outputs]
    flag = Array((1,), torch.float32)
    candidates: dict[str, tuple[Step, Step]] = {
        "epigrad": (lambda: case.ours(arrays, outputs), flag.to_torch),
        "eager": (lambda: case.eager(tensors), torch.cuda.synchronize if peer.type == "cuda" else _nothing),
    }
    if not case.multiplications and peer.type == "cuda":
        source, to = (torch.empty(case.traffic(1) // 2, dtype=dtype, device=peer) for _ in range(2))
        candidates["copy"] = (lambda: to.copy_(source), torch.cuda.synchronize)
    calls = {name: _calls(step, wait) for name, (step, wait) in candidates.items()}

    def burst(name: str) -> Step:
        step, wait = candidates[name]

        def all_of_them() -> None:
            for _ in range(calls[name]):
                step()
            wait()

        return all_of_them

    with torch.no_grad() if "backward" not in case.name else torch.enable_grad():
        taken = interleaved({name: burst(name) for name in candidates}, seconds)
    return {
        name: Timing(t.median / n, t.low / n, t.high / n, t.fastest / n, t.rounds)
        for name, t in taken.items()
        for n in [calls[name]]
    }


def _nothing() -> None:
    """PyTorch's calls on the CPU are done when they return."""


def _calls(step: Step, wait: Step) -> int:
    """How many calls a burst has: as many as take long beside the wait at its end."""
    for _ in range(2):  # the first compiles
        begin = time.perf_counter()
        step()
        wait()
        took = time.perf_counter() - begin
    return max(1, min(MOST_CALLS, round(BURST_SECONDS / took)))


def _told(row: Row) -> str:
    if "epigrad" not in row:
        return str(row.get("error") or f"skipped {row['skipped']}")
    share = f", {row['share_of_copy']:.2f} of copy_" if "share_of_copy" in row else ""
    return f"epigrad {told(row['epigrad'])}, {_told_rate(row, 'epigrad')}, eager {told(row['eager'])}{share}"


def _told_rate(row: Row, name: str) -> str:
    rate, scale, unit = row[f"{name}_rate"], 1e9, "G"
    if rate >= 1e12:
        scale, unit = 1e12, "T"
    return f"{rate / scale:.3g} {unit}{row['unit']}"


def _print(report: Report) -> None:
    header = ["op", "size", "dtype", "epigrad", "/eager", "of copy_", "rate"]
    lines = []
    for row in report.rows:
        name = [row["op"], row["size"], row["dtype"]]
        if "epigrad" not in row:
            lines.append([*name, "failed" if "error" in row else "skipped", *[""] * 3])
            continue
        share = f"{row['share_of_copy']:.2f}" if "share_of_copy" in row else "-"
        time_told, rate = seconds_told(row["epigrad"]["median"]), _told_rate(row, "epigrad")
        lines.append([*name, time_told, f"{row['ratio']:.2f}", share, rate])
    print_table(f"Median time of a call on {report.device}; eager is on {report.facts['eager_on']}", header, lines)
    for row in report.rows:
        if "error" in row:
            warnings.warn(f"{row['op']} {row['size']} {row['dtype']}: {row['error']}", stacklevel=2)
