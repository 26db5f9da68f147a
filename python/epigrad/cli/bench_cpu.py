"""The sweep of ``python -m epigrad bench --device cpu``: each operation over sizes, as a curve.

A point of a curve is one operation, kind, size, dtype, direction (the forward alone, or with the
backward to all inputs) and number of threads (one, or all that PyTorch has). The candidates of a
point take turns, and what they return is allocated in the time that is measured. Its ratio is that
of their fastest rounds: others of this machine can only make a round slower. A call of more than a
second has one round.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad._core import tables
from epigrad.cli import operations
from epigrad.cli.machine import backend, cpu_name
from epigrad.cli.operations import Operation
from epigrad.cli.picture import plot_curves
from epigrad.cli.report import Progress, Report, command, no_rows, told
from epigrad.cli.table import print_table
from epigrad.cli.timing import interleaved

# How long a point is measured.
SECONDS, QUICK_SECONDS = 0.5, 0.05

# A call that takes longer is measured once.
SLOW = 1.0

# Where PyTorch multiplies float16 without vector instructions, a larger product takes a minute.
MOST_FLOAT16 = 1 << 28

# What a ratio may be for epigrad to be at least as fast, within noise.
LEVEL = 1.02

# What chooses the instructions of epigrad's kernels and of PyTorch's.
ENVIRONMENT = (
    "EPIGRAD_CPU_ENGINE",
    "EPIGRAD_CPU_THREADS",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
)

FORWARD, BOTH = "forward", "forward and backward"

Shapes = tuple[tuple[int, ...], ...]

PRODUCTS = (
    (1, 64, 256),
    (16, 128, 512),
    (64, 256, 256),
    (100, 256, 1000),
    (64, 256, 1024),
    (128, 256, 512),
    (256, 256, 1024),
    (256, 768, 3072),
    (512, 1024, 1024),
    (1024, 1024, 4096),
)
"""Rows, inputs and outputs of a layer, or hidden features of a block, by their product."""

ELEMENTS = tuple((n,) for n in (64, 1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24))


@dataclass(frozen=True, slots=True)
class Curve:
    """An operation over sizes; it gives a point for each size, dtype, direction and thread count.

    Attributes:
        name: what is printed.
        make: from a kind, epigrad's function and PyTorch's.
        kind: the kind that is measured by default.
        all_kinds: those measured with ``--all-kinds``.
        shapes: from a size, the shapes of the inputs, all of which get a gradient.
        sizes: of the points.
        goal: what the geometric mean of the ratios is to be at most, forward and backward
            together where there are both, on all threads.
        directions: what is measured.
    """

    name: str
    make: Callable[[str], tuple[Operation, Operation]]
    kind: str
    all_kinds: Callable[[], tuple[str, ...]]
    shapes: Callable[..., Shapes]
    sizes: tuple[tuple[int, ...], ...]
    goal: float
    directions: tuple[str, ...] = (FORWARD, BOTH)


def _rows(n: int) -> tuple[int, int]:
    """A shape of so many elements, a power of two."""
    return max(1, n // 1024), min(n, 1024)


def _tensors() -> tuple[str, ...]:
    return ("tensor",)


def _product(layout: str) -> Curve:
    """A product alone, whose operands are read transposed where the layout says T."""

    def shapes(m: int, k: int, n: int) -> Shapes:
        return (k, m) if layout[0] == "T" else (m, k), (n, k) if layout[1] == "T" else (k, n)

    return Curve(
        "product", operations.product, layout, lambda: (layout,), shapes, PRODUCTS, 1.05, directions=(FORWARD,)
    )


CURVES = (
    *map(_product, operations.layouts()),
    Curve(
        "linear",
        operations.linear,
        "gelu",
        operations.activations,
        lambda m, k, n: ((m, k), (n, k), (n,)),
        PRODUCTS,
        0.95,
    ),
    Curve(
        "gated_linear",
        operations.gated_linear,
        "swiglu",
        operations.gated_kinds,
        lambda m, k, n: ((m, k), (n, k), (n, k)),
        PRODUCTS,
        0.95,
    ),
    Curve(
        "mlp",
        operations.mlp,
        "gelu_tanh",
        operations.activations,
        lambda m, k, n: ((m, k), (n, k), (k, n)),
        PRODUCTS,
        0.95,
    ),
    Curve(
        "gated_mlp",
        operations.gated_mlp,
        "swiglu",
        operations.gated_kinds,
        lambda m, k, n: ((m, k), (2 * n, k), (k, n)),
        PRODUCTS,
        0.90,
    ),
    Curve(
        "activation",
        operations.activation,
        "gelu",
        operations.activations,
        lambda n: (_rows(n),),
        ELEMENTS,
        0.65,
    ),
    Curve(
        "gated_activation", operations.gated, "swiglu", operations.gated_kinds, lambda n: (_rows(n),), ELEMENTS, 0.65
    ),
    Curve("lerp", operations.lerp, "number", operations.lerp_weights, lambda n: (_rows(n),) * 3, ELEMENTS, 0.65),
    Curve(
        "lerp by columns",
        operations.lerp,
        "tensor",
        _tensors,
        lambda n: (_rows(n), _rows(n), _rows(n)[1:]),
        ELEMENTS,
        0.65,
    ),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement of a curve."""

    curve: Curve
    kind: str
    size: tuple[int, ...]
    dtype: str
    direction: str
    threads: int

    @property
    def label(self) -> str:
        """What ``--rows`` searches."""
        size = "x".join(map(str, self.size))
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.curve.name} {self.kind} {size} {self.dtype} {self.direction}, {threads}"


def points(threads: int, every_kind: bool) -> Iterator[Point]:
    """All points on one thread and on so many."""
    for curve in CURVES:
        for kind in curve.all_kinds() if every_kind else (curve.kind,):
            for count in sorted({1, threads}):
                for direction in curve.directions:
                    for dtype in tables.DTYPES:
                        for size in curve.sizes:
                            if dtype["name"] == "float16" and math.prod(size) > MOST_FLOAT16:
                                continue
                            yield Point(curve, kind, size, str(dtype["name"]), direction, count)


def run(args: argparse.Namespace) -> int:
    """Measure, print the summary and write the requested files."""
    threads = torch.get_num_threads()
    chosen = [p for p in points(threads, args.all_kinds) if args.rows is None or args.rows.search(p.label)]
    if not chosen:
        return no_rows(args, "cpu")
    seconds = QUICK_SECONDS if args.quick else SECONDS
    if args.seconds is not None:
        seconds = args.seconds / len(chosen)
    report = Report(
        device=cpu_name(),
        command=command(args, "cpu"),
        unit="seconds of one call: median, quartiles, fastest; ratio: epigrad's fastest over PyTorch's",
        path=args.json,
        slug="cpu",
        facts={
            "threads": threads,
            "backend": backend("cpu"),
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            "summary": [],
        },
    )
    try:
        with Progress(len(chosen), args.json) as progress:
            for point in chosen:
                progress.begin(point.label)
                row = _measure(point, seconds, args.quick, bool(args.compile))
                report.add(row)
                to_compile = f", to compile {row['ratio_to_compile']:.2f}" if "ratio_to_compile" in row else ""
                progress.end(f"{point.label}: {told(row['epigrad'])}, ratio {row['ratio']:.2f}{to_compile}")
    finally:
        torch.set_num_threads(threads)
    report.facts["summary"] = summary(report.rows)
    report.add()
    report.finish(lambda: _print(report))
    if args.plot is not None:
        title = f"epigrad {tables.VERSION} on {report.device}: time over PyTorch eager's (below 1 is faster)"
        plot_curves(report.place(args.plot, "png"), title, report.rows)
    return 0


def _measure(point: Point, seconds: float, quick: bool, compiled: bool) -> dict[str, Any]:
    torch.set_num_threads(point.threads)
    generator = torch.Generator().manual_seed(0)
    both = point.direction == BOTH
    tensors = [t.requires_grad_(both) for t in operands(point, generator)]
    ours, eager = point.curve.make(point.kind)
    grad = None
    if both:
        with torch.no_grad():
            like = eager(*tensors)
        grad = torch.randn(like.shape, generator=generator).to(like.dtype)
    candidates = {"epigrad": _step(ours, tensors, grad), "eager": _step(eager, tensors, grad)}
    row: dict[str, Any] = {
        "case": point.curve.name,
        "kind": point.kind,
        "size": list(point.size),
        "work": math.prod(point.size),
        "dtype": point.dtype,
        "direction": point.direction,
        "threads": point.threads,
    }
    if compiled:
        step = _step(torch.compile(eager), tensors, grad)
        try:
            step()
            candidates["compile"] = step
        except Exception as error:  # whatever its compiler may raise: the row says so
            row["compile_error"] = str(error).strip().splitlines()[0]
    first = interleaved(candidates, 0, least=2)  # of which one warms up
    slow = max(timing.fastest for timing in first.values()) > SLOW
    timings = first if slow else interleaved(candidates, seconds, least=1 if quick else 5)
    row |= {name: asdict(timing) for name, timing in timings.items()}
    for name, ratio in (("eager", "ratio"), ("compile", "ratio_to_compile")):
        if name in timings:
            row[ratio] = timings["epigrad"].fastest / timings[name].fastest
    return row


def operands(point: Point, generator: torch.Generator) -> list[Tensor]:
    """A point's tensors. A layer's weights are such that preactivations have the standard deviation
    1, where activations are bent.
    """
    tensors = []
    for place, shape in enumerate(point.curve.shapes(*point.size)):
        tensor = torch.randn(shape, generator=generator)
        if place > 0 and len(point.size) == 3 and len(shape) == 2:
            tensor /= shape[-1] ** 0.5
        tensors.append(tensor.to(getattr(torch, point.dtype)))
    return tensors


def _step(operation: Operation, tensors: list[Tensor], grad: Tensor | None) -> Callable[[], object]:
    def step() -> None:
        if grad is None:
            operation(*tensors)
            return
        torch.autograd.grad(operation(*tensors), tensors, grad, allow_unused=True)

    return step


def summary(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each operation, direction and number of threads: the geometric mean of the ratios, the
    worst, and the part that is at most `LEVEL`; and whether a whole curve reaches its goal.

    Products and layers of float16 have lines of their own. On many processors PyTorch multiplies it
    without vector instructions, and its ratios would flatter a mean.
    """
    groups: dict[tuple[str, str, str, int, bool], list[dict[str, Any]]] = {}
    for row in rows:
        apart = row["dtype"] == "float16" and len(row["size"]) == 3
        key = (row["case"], row["kind"], row["direction"], row["threads"], apart)
        groups.setdefault(key, []).append(row)
    curves = {curve.name: curve for curve in CURVES}
    most = max((threads for _, _, _, threads, _ in groups), default=1)
    lines = []
    for (case, kind, direction, threads, apart), members in groups.items():
        worst = max(members, key=lambda row: float(row["ratio"]))
        ratios = [row["ratio"] for row in members]
        curve = curves[case]
        whole = {tuple(row["size"]) for row in members} >= set(curve.sizes)
        has_goal = whole and not apart and direction == curve.directions[-1] and threads == most
        lines.append(
            {
                "case": case,
                "kind": kind,
                "direction": direction,
                "threads": threads,
                "dtypes": list(dict.fromkeys(row["dtype"] for row in members)),
                "points": len(members),
                "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
                "worst": worst["ratio"],
                "worst_at": {"size": worst["size"], "dtype": worst["dtype"]},
                "share_at_level": sum(ratio <= LEVEL for ratio in ratios) / len(ratios),
                "goal": curve.goal if has_goal else None,
            }
        )
    return lines


def _print(report: Report) -> None:
    header = ["operation", "direction", "threads", "dtypes", "geometric mean", "goal", "worst", f"at most {LEVEL}"]
    lines = []
    for line in report.facts["summary"]:
        mean, goal, at = line["geometric_mean"], line["goal"], line["worst_at"]
        lines.append(
            [
                f"{line['case']} {line['kind']}",
                line["direction"],
                line["threads"],
                ", ".join(line["dtypes"]),
                f"{mean:.2f}",
                "" if goal is None else f"{goal:.2f} {'met' if mean <= goal else 'short'}",
                f"{line['worst']:.2f} at {'x'.join(map(str, at['size']))} {at['dtype']}",
                f"{line['share_at_level']:.0%}",
            ]
        )
    print_table("Time over PyTorch eager's", header, lines)
    for reason in sorted({row["compile_error"] for row in report.rows if "compile_error" in row}):
        print(f"torch.compile failed: {reason}")
