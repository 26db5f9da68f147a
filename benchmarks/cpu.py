"""The sweep of ``python -m benchmarks cpu``: each operation over sizes, as a curve.

A point of a curve is one operation, kind, size, dtype, direction (the forward alone, or with the
backward to all inputs) and number of threads (one, or all that PyTorch has). A point that takes
long has one round. A point that PyTorch takes too long for is skipped, and so is what is left when
the time is over; small sizes come first.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from epigrad.cli import machine, report
from epigrad.cli import operations as common
from epigrad.cli.contest import Pair
from epigrad.cli.operations import BOTH, DTYPES, FORWARD, LIMIT, Operation, Point, rows_of
from epigrad.cli.report import Row, told
from epigrad.cli.runner import Task
from epigrad.cli.table import print_table

from benchmarks import operations, pictures
from benchmarks.record import Record

# How long everything takes, and a fast point.
BUDGET, QUICK_BUDGET = 1200.0, 60.0
SECONDS, QUICK_SECONDS = 0.5, 0.25

# A size's time predicts the next one's if that is at most NEAR times the work.
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

CPU = torch.device("cpu")

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
        name: the operation's.
        make: from a kind, epigrad's function and PyTorch's.
        kind: what is measured without ``--all-kinds``.
        shapes: from a size, the shapes of the inputs.
        all_kinds: those measured with ``--all-kinds``.
        goal: what the geometric mean of the ratios is to be at most, forward and backward
            together where there are both, on all threads.
        sizes: of the points.
        directions: what is measured.
    """

    name: str
    make: Callable[[str], Pair]
    kind: str
    shapes: Callable[..., common.Shapes]
    all_kinds: Callable[[], tuple[str, ...]]
    goal: float
    sizes: tuple[tuple[int, ...], ...] = PRODUCTS
    directions: tuple[str, ...] = (FORWARD, BOTH)

    def operation(self, kind: str) -> Operation:
        return Operation(self.name, kind, self.make(kind), self.shapes)


def _product(layout: str) -> Curve:
    """A product alone, whose operands are read transposed where the layout says T."""

    def shapes(m: int, k: int, n: int) -> common.Shapes:
        return (k, m) if layout[0] == "T" else (m, k), (n, k) if layout[1] == "T" else (k, n)

    return Curve("product", operations.product, layout, shapes, lambda: (layout,), 1.05, directions=(FORWARD,))


def _own(name: str, make: Callable[[str], Pair], all_kinds: Callable[[], tuple[str, ...]], goal: float) -> Curve:
    """A layer or a block that `bench` has, too."""
    own = next(operation for operation in common.OPERATIONS if operation.name == name)
    return Curve(name, make, own.kind, own.shapes, all_kinds, goal)


def _elements(
    name: str, make: Callable[[str], Pair], kind: str, all_kinds: Callable[[], tuple[str, ...]], inputs: int = 1
) -> Curve:
    """An operation whose inputs have one shape."""
    return Curve(name, make, kind, lambda n: (rows_of(n),) * inputs, all_kinds, 0.65, ELEMENTS)


CURVES = (
    *map(_product, operations.layouts()),
    _own("linear", operations.linear, operations.activations, 0.95),
    Curve(
        "gated_linear",
        operations.gated_linear,
        "swiglu",
        lambda m, k, n: ((m, k), (n, k), (n, k)),
        operations.gated_kinds,
        0.95,
    ),
    _own("mlp", operations.mlp, operations.activations, 0.95),
    _own("gated_mlp", operations.gated_mlp, operations.gated_kinds, 0.90),
    _elements("activation", operations.activation, "gelu", operations.activations),
    _elements("gated_activation", operations.gated, "swiglu", operations.gated_kinds),
    _elements("lerp", operations.lerp, "number", operations.lerp_weights, inputs=3),
    Curve(
        "lerp by columns",
        operations.lerp,
        "tensor",
        lambda n: (rows_of(n),) * 2 + (rows_of(n)[1:],),
        lambda: ("tensor",),
        0.65,
        ELEMENTS,
    ),
)


def points(threads: int, every_kind: bool, quick: bool = False) -> Iterator[Point]:
    """All points on one thread and on `threads`, small sizes first. The quick ones are of three
    sizes, on all threads, with the backward where there is one."""
    for place in range(max(len(curve.sizes) for curve in CURVES)):
        for count in (threads,) if quick else sorted({1, threads}):
            for curve in CURVES:
                if place >= len(curve.sizes) or (quick and curve.sizes[place] not in QUICK_SIZES):
                    continue
                kinds = curve.all_kinds() if every_kind else (curve.kind,)
                directions = curve.directions[-1:] if quick else curve.directions
                for kind, direction, dtype in itertools.product(kinds, directions, DTYPES):
                    yield Point(curve.operation(kind), curve.sizes[place], dtype, direction, count)


def subject(args: argparse.Namespace) -> Record:
    """The table of a CPU."""
    threads = torch.get_num_threads()
    chosen = list(points(threads, args.all_kinds, args.quick))
    if args.rows is not None:
        chosen = [point for point in chosen if args.rows.search(point.label)]
    if args.dtypes is not None:
        chosen = [point for point in chosen if point.dtype in args.dtypes]
    budget = QUICK_BUDGET if args.quick else BUDGET
    sweep = Sweep(
        max(LIMIT, (args.seconds or budget) / max(1, len(chosen))), 0 if args.quick else 5, bool(args.compile)
    )
    return Record(
        slug="cpu",
        device=machine.cpu_name(),
        unit="seconds of one call: median, quartiles, fastest; ratio: epigrad's fastest over PyTorch's",
        title="",
        tasks=[Task(point.label, point.fields, functools.partial(sweep.measure, point)) for point in chosen],
        names={"case": "operation", "kind": "kind", "size": "size", "dtype": "dtype"},
        columns={"epigrad": ("epigrad", told), "ratio": ("ratio", "{:.2f}".format)},
        seconds=QUICK_SECONDS if args.quick else SECONDS,
        budget=budget,
        facts={
            **machine.facts(CPU),
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        },
        tables=_print,
        picture=pictures.draw_curves,
    )


def work_of(point: Point) -> int:
    """The multiplications of a product, or the elements."""
    return math.prod(point.size)


class Sweep:
    """Measures points, and remembers how long PyTorch takes for each curve."""

    def __init__(self, limit: float, wanted: int, compiled: bool) -> None:
        self.limit, self.wanted, self.compiled = limit, wanted, compiled
        self.known: dict[tuple[object, ...], tuple[int, float]] = {}  # work and PyTorch's seconds, by curve

    def measure(self, point: Point, seconds: float) -> Row:
        """A point's row, or why it was skipped."""
        curve = (point.operation.name, point.operation.kind, point.dtype, point.direction, point.threads)
        work, took = self.known.get(curve, (work_of(point), 0.0))
        expected = took * work_of(point) / work
        if expected > self.limit and work_of(point) <= NEAR * work:
            return {"skipped": f"PyTorch takes {report.seconds_told(expected)}"}
        row = point.measure(CPU, self.compiled, seconds, self.limit, self.wanted)
        self.known[curve] = work_of(point), row.pop("took") if "took" in row else row["eager"]["fastest"]
        return row


def summary(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each operation, dtype, direction and number of threads: the geometric mean of the ratios,
    the worst, and the part that is at most `LEVEL`; and whether a whole curve reaches its goal.
    """
    groups: dict[tuple[str, str, str, str, int], list[dict[str, Any]]] = {}
    for row in (row for row in rows if "ratio" in row):
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


def _print(rows: Sequence[Row]) -> None:
    """A line for each operation and dtype: on the most threads, with the backward if it was
    measured."""
    lines = summary(rows)
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
    for row in rows:
        if "skipped" in row:
            what = (f"{row['case']} {row['kind']}", _told_size(row["size"]), row["skipped"])
            skipped.setdefault(what, {})[row["dtype"]] = None
    header = ["operation", "size", "why", "dtypes"]
    told_dtypes = ["all" if len(each) == len(DTYPES) else " ".join(each) for each in skipped.values()]
    print_table("Skipped", header, [[*what, each] for what, each in zip(skipped, told_dtypes, strict=True)])
    print("Below 1 epigrad is faster. Means are geometric, over sizes.")
    if len(shown) < len(lines):
        print("--json and --plot have all rows: forward alone and one thread too.")


def _told_size(size: Iterable[int]) -> str:
    return "x".join(map(str, size))
