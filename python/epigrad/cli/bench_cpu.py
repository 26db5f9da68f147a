"""The sweep of ``python -m epigrad bench --device cpu``: each operation over sizes, as a curve.

A point of a curve is one operation, kind, size, dtype, direction (the forward alone, or with the
backward to all inputs) and number of threads (one, or all that PyTorch has). The candidates of a
point take turns, and what they return is allocated in the time that is measured. Its ratio is that
of their fastest rounds: others of this machine can only make a round slower. A point that takes
long has one round. A point that PyTorch takes too long for is skipped, and so is what is left when
the time is over; small sizes come first.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from epigrad._core import tables
from epigrad.cli import operations
from epigrad.cli.machine import backend, cpu_name
from epigrad.cli.operations import Operation
from epigrad.cli.picture import plot_curves
from epigrad.cli.report import Progress, Report, command, no_rows, seconds_told, told
from epigrad.cli.table import print_table
from epigrad.cli.timing import interleaved

# How long everything takes, and a fast point.
BUDGET, QUICK_BUDGET = 1200.0, 60.0
SECONDS, QUICK_SECONDS = 0.5, 0.25

# A point is skipped if one call of PyTorch's takes longer than this, and than the point's share of
# the time. A size tells how long the next one takes if that is at most so many times the work.
LIMIT = 0.5
NEAR = 64

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

QUICK_SIZES = ((1, 64, 256), (64, 256, 1024), (256, 768, 3072), (1 << 10,), (1 << 18,), (1 << 22,))


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
    def work(self) -> int:
        """The multiplications of a product, or the elements."""
        return math.prod(self.size)

    def row(self) -> dict[str, Any]:
        """What its row begins with."""
        return {
            "case": self.curve.name,
            "kind": self.kind,
            "size": list(self.size),
            "work": self.work,
            "dtype": self.dtype,
            "direction": self.direction,
            "threads": self.threads,
        }

    @property
    def label(self) -> str:
        """What ``--rows`` searches."""
        size = "x".join(map(str, self.size))
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.curve.name} {self.kind} {size} {self.dtype} {self.direction}, {threads}"


def points(threads: int, every_kind: bool, quick: bool = False) -> Iterator[Point]:
    """All points on one thread and on so many, small sizes first. The quick ones are of three
    sizes, on all threads, with the backward where there is one."""
    for place in range(max(len(curve.sizes) for curve in CURVES)):
        for count in (threads,) if quick else sorted({1, threads}):
            for curve in CURVES:
                if place >= len(curve.sizes) or (quick and curve.sizes[place] not in QUICK_SIZES):
                    continue
                for kind in curve.all_kinds() if every_kind else (curve.kind,):
                    for direction in curve.directions[-1:] if quick else curve.directions:
                        for dtype in tables.DTYPES:
                            yield Point(curve, kind, curve.sizes[place], str(dtype["name"]), direction, count)


def run(args: argparse.Namespace) -> int:
    """Measure, print the summary and write the requested files."""
    threads = torch.get_num_threads()
    every = points(threads, args.all_kinds, args.quick)
    chosen = [point for point in every if args.rows is None or args.rows.search(point.label)]
    if not chosen:
        return no_rows(args, "cpu")
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
        _measure_all(chosen, args, report)
    finally:
        torch.set_num_threads(threads)
    report.facts["summary"] = summary(report.rows)
    report.add()
    report.finish(lambda: _print(report))
    if args.plot is not None and (measured := _measured(report.rows)):
        title = f"epigrad {tables.VERSION} on {report.device}: time over PyTorch eager's (below 1 is faster)"
        plot_curves(report.place(args.plot, "png"), title, measured)
    return 0


def _measure_all(chosen: list[Point], args: argparse.Namespace, report: Report) -> None:
    """Share the time among the points."""
    budget = args.seconds or (QUICK_BUDGET if args.quick else BUDGET)
    limit = max(LIMIT, budget / len(chosen))
    most = math.inf if args.seconds else QUICK_SECONDS if args.quick else SECONDS
    known: dict[Point, tuple[int, float]] = {}  # work and PyTorch's seconds, by all but the size
    end = time.perf_counter() + budget
    with Progress(len(chosen), args.json) as progress:
        for place, point in enumerate(chosen):
            progress.begin(point.label)
            left, curve = end - time.perf_counter(), replace(point, size=())
            work, took = known.get(curve, (point.work, 0.0))
            expected = took * point.work / work
            if left <= 0:
                row = {**point.row(), "skipped": f"{budget:g} s were over"}
            elif expected > limit and point.work <= NEAR * work:
                row = {**point.row(), "skipped": _slow(expected)}
            else:
                seconds = min(most, left / (len(chosen) - place))
                row, took = _measure(point, seconds, limit, 0 if args.quick else 5, bool(args.compile))
                known[curve] = point.work, took
            report.add(row)
            progress.end(f"{point.label}: {_told(row)}")


def _slow(seconds: float) -> str:
    return f"PyTorch takes {seconds_told(seconds)}"


def _told(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return f"skipped: {row['skipped']}"
    to_compile = f", to compile {row['ratio_to_compile']:.2f}" if "ratio_to_compile" in row else ""
    return f"{told(row['epigrad'])}, ratio {row['ratio']:.2f}{to_compile}"


def _measure(point: Point, seconds: float, limit: float, wanted: int, compiled: bool) -> tuple[dict[str, Any], float]:
    """The row, and how long PyTorch takes for a call."""
    torch.set_num_threads(point.threads)
    generator = torch.Generator().manual_seed(0)
    both = point.direction == BOTH
    tensors = [t.requires_grad_(both) for t in operands(point, generator)]
    ours, eager = point.curve.make(point.kind)
    row = point.row()
    begin = time.perf_counter()
    with torch.no_grad():
        like = eager(*tensors)
    if (took := time.perf_counter() - begin) > limit:
        return {**row, "skipped": _slow(took)}, took
    grad = torch.randn(like.shape, generator=generator).to(like.dtype) if both else None
    candidates = {"epigrad": _step(ours, tensors, grad), "eager": _step(eager, tensors, grad)}
    if compiled:
        step = _step(torch.compile(eager), tensors, grad)
        try:
            step()
            candidates["compile"] = step
        except Exception as error:  # whatever its compiler may raise: the row says so
            row["compile_error"] = str(error).strip().splitlines()[0]
    timings = interleaved(candidates, 0, least=2)  # of which one warms up
    round_seconds = sum(timing.fastest for timing in timings.values())
    if round_seconds <= (4 if wanted else 1) * seconds:
        timings = interleaved(candidates, seconds, least=1, wanted=wanted)
    row |= {name: asdict(timing) for name, timing in timings.items()}
    for name, ratio in (("eager", "ratio"), ("compile", "ratio_to_compile")):
        if name in timings:
            row[ratio] = timings["epigrad"].fastest / timings[name].fastest
    return row, timings["eager"].fastest


def _measured(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "ratio" in row]


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
    """For each operation, dtype, direction and number of threads: the geometric mean of the ratios,
    the worst, and the part that is at most `LEVEL`; and whether a whole curve reaches its goal.
    """
    groups: dict[tuple[str, str, str, str, int], list[dict[str, Any]]] = {}
    for row in _measured(rows):
        key = (row["case"], row["kind"], row["dtype"], row["direction"], row["threads"])
        groups.setdefault(key, []).append(row)
    curves = {curve.name: curve for curve in CURVES}
    most = max((threads for *_, threads in groups), default=1)
    lines = []
    for (case, kind, dtype, direction, threads), members in groups.items():
        worst = max(members, key=lambda row: float(row["ratio"]))
        ratios = [row["ratio"] for row in members]
        curve = curves[case]
        whole = {tuple(row["size"]) for row in members} >= set(curve.sizes)
        has_goal = whole and direction == curve.directions[-1] and threads == most
        lines.append(
            {
                "case": case,
                "kind": kind,
                "dtype": dtype,
                "direction": direction,
                "threads": threads,
                "points": len(members),
                "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
                "worst": worst["ratio"],
                "worst_at": worst["size"],
                "share_at_level": sum(ratio <= LEVEL for ratio in ratios) / len(ratios),
                "goal": curve.goal if has_goal else None,
            }
        )
    return lines


def _print(report: Report) -> None:
    """A line for each operation and dtype: on the most threads, with the backward if it was
    measured."""
    lines: list[dict[str, Any]] = report.facts["summary"]
    views: dict[tuple[str, str], tuple[int, str]] = {}
    for line in lines:  # of the two directions, the longer text is the later one
        name, view = (line["case"], line["kind"]), (line["threads"], line["direction"])
        views[name] = max(view, views.get(name, view))
    shown = [line for line in lines if views[line["case"], line["kind"]] == (line["threads"], line["direction"])]
    header = ["operation", "dtype", "mean", "worst", "goal"]
    cells = []
    for line in shown:
        mean, goal = line["geometric_mean"], line["goal"]
        alone = "" if line["direction"] == BOTH or line["case"] == "product" else ", forward"
        cells.append(
            [
                f"{line['case']} {line['kind']}{alone}",
                line["dtype"],
                f"{mean:.2f}",
                f"{line['worst']:.2f} at {_told_size(line['worst_at'])}",
                "" if goal is None else f"{goal:.2f} {'met' if mean <= goal else 'short'}",
            ]
        )
    if not any(line["goal"] for line in shown):
        header, cells = header[:-1], [row[:-1] for row in cells]
    threads = max((line["threads"] for line in lines), default=1)
    title = f"epigrad's time / PyTorch eager's, forward + backward, {threads} thread{'s' * (threads > 1)}"
    print_table(title, header, cells)
    skipped: dict[tuple[str, str, str], dict[str, None]] = {}  # what, and why: the dtypes
    for row in report.rows:
        if "skipped" in row:
            what = (f"{row['case']} {row['kind']}", _told_size(row["size"]), row["skipped"])
            skipped.setdefault(what, {})[row["dtype"]] = None
    header = ["operation", "size", "why", "dtypes"]
    told_dtypes = ["all" if len(each) == len(tables.DTYPES) else " ".join(each) for each in skipped.values()]
    print_table("Skipped", header, [[*what, each] for what, each in zip(skipped, told_dtypes, strict=True)])
    for reason in sorted({row["compile_error"] for row in report.rows if "compile_error" in row}):
        print(f"torch.compile failed: {reason}")
    print("Below 1 epigrad is faster. Means are geometric, over sizes.")
    if len(shown) < len(lines):
        print("--json and --plot have all rows: forward alone and one thread too.")


def _told_size(size: Iterable[int]) -> str:
    return "x".join(map(str, size))
