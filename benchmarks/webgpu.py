"""The table of ``python -m benchmarks webgpu``.

Data lies in `epigrad.webgpu.Array`, outputs too. A call returns before its work is done, so each
candidate is timed as a burst of calls and one wait at the end. Beside epigrad stands PyTorch eager,
on CUDA where that is here (the same GPU through its vendor's own libraries) and else on the CPU;
where it is on CUDA, the ceiling of what moves memory is ``copy_`` of as many bytes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from epigrad import backward, forward
from epigrad.cli import machine
from epigrad.cli.report import Row, told
from epigrad.cli.runner import Subject, Task
from epigrad.cli.timing import Timing
from epigrad.webgpu import Array
from torch import Tensor
from torch.nn import functional as torch_functional

from benchmarks.operations import eager_product
from benchmarks.timing import Step, bursts, wait_for

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
    """The rows: products of `square` rows and columns, and other operations on tensors of the shape
    `elementwise`."""
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


def subject(args: argparse.Namespace) -> Subject:
    """The table of an adapter."""
    detail = str(machine.backend("webgpu"))
    small = args.quick or _is_software(detail)
    sizes = (SMALL_SQUARE, SMALL_ELEMENTWISE) if small else (SQUARE, ELEMENTWISE)
    peer = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Subject(
        slug="webgpu",
        device=detail.partition(" (")[0],
        unit="seconds of one call in a burst: median, quartiles, fastest",
        title=f"Median time of a call; eager is on {peer}",
        tasks=[
            Task(f"{case.name} {case.size} {dtype}", _named(case, dtype), partial(measure, case, dtype, peer))
            for case in cases(*sizes)
            for dtype in args.dtypes or DTYPES
        ],
        names={"op": "op", "size": "size", "dtype": "dtype"},
        columns={
            "epigrad": ("epigrad", told),
            "ratio": ("/eager", "{:.2f}".format),
            "share_of_copy": ("of copy_", "{:.2f}".format),
            "epigrad_rate": ("operations or bytes a second", "{:.3g}".format),
        },
        seconds=QUICK_SECONDS if args.quick else SECONDS,
        facts={"backend": detail, "eager_on": str(peer)},
        bars=lambda rows: [(f"{r['op']} {r['size']} {r['dtype']}", r["ratio"], None) for r in rows if "ratio" in r],
    )


def _is_software(detail: str) -> bool:
    return any(name in detail.lower() for name in ("llvmpipe", "swiftshader", "basic render"))


def _named(case: Case, dtype: str) -> Row:
    return {"op": case.name, "size": case.size, "dtype": dtype}


def measure(case: Case, dtype: str, peer: torch.device, seconds: float) -> Row:
    """What a row has besides its name."""
    timings = _timings(case, getattr(torch, dtype), peer, seconds)
    row: Row = {name: asdict(timing) for name, timing in timings.items()}
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
        "eager": (lambda: case.eager(tensors), wait_for(peer)),
    }
    if not case.multiplications and peer.type == "cuda":
        source, to = (torch.empty(case.traffic(1) // 2, dtype=dtype, device=peer) for _ in range(2))
        candidates["copy"] = (lambda: to.copy_(source), torch.cuda.synchronize)
    calls = {name: _calls(step, wait) for name, (step, wait) in candidates.items()}
    steps, waits = ({name: pair[which] for name, pair in candidates.items()} for which in (0, 1))
    with torch.no_grad() if "backward" not in case.name else torch.enable_grad():
        return bursts(steps, calls, waits, seconds)


def _calls(step: Step, wait: Step) -> int:
    """How many calls a burst has: as many as take long beside the wait at its end."""
    for _ in range(2):  # the first compiles
        begin = time.perf_counter()
        step()
        wait()
        took = time.perf_counter() - begin
    return max(1, min(MOST_CALLS, round(BURST_SECONDS / took)))
