"""The table of ``python -m epigrad bench --device cuda``.

Device rows are timed by events, with the host out of the way, on several sets of tensors in turn,
so that no cache has what a call reads; a backward row has its forwards before the first event. Wall
rows are timed by the wall clock, where the host is what takes the time, graph rows as replays of a
CUDA graph. The candidates of a row take turns, the ceiling among them: ``copy_`` of as many bytes
as the operation has to move, or `torch.mm` for its products alone.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from epigrad._core import tables
from epigrad.cli.cuda_rows import BOTH, FORWARD, Case, cases, sets_needed, traffic
from epigrad.cli.machine import cuda_facts
from epigrad.cli.operations import Operation
from epigrad.cli.picture import plot
from epigrad.cli.report import Progress, Report, command, failure, no_rows, seconds_told, told
from epigrad.cli.table import print_table
from epigrad.cli.timing import Candidates, Prepared, Timing, interleaved, interleaved_bursts, interleaved_on_cuda

__all__ = ["measure", "run"]

# How long a row is measured, and after how long no other row is begun.
SECONDS, QUICK_SECONDS, BUDGET = 0.35, 0.1, 440.0

Row = dict[str, Any]
Step = Callable[[], object]
Set = tuple[list[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """How rows are measured.

    Attributes:
        device: where the tensors are; on CPU every row is timed by the wall clock, which is of use
            to tests only.
        seconds: how long a row is measured.
        compiled: whether torch.compile is.
    """

    device: torch.device
    seconds: float
    compiled: bool

    @property
    def on_cuda(self) -> bool:
        """Whether there are events, graphs and memory statistics."""
        return self.device.type == "cuda"


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the requested files; 1 if a row of epigrad's failed."""
    begin, budget = time.perf_counter(), BUDGET if args.seconds is None else args.seconds
    device = torch.device("cuda", torch.cuda.current_device())
    settings = Settings(device, QUICK_SECONDS if args.quick else SECONDS, args.compile is not False)
    chosen = []
    for case in cases(args.quick):
        directions = [d for d in case.directions if args.rows is None or args.rows.search(case.label(d))]
        if directions:
            chosen.append((case, directions))
    if not chosen:
        return no_rows(args, "cuda")
    report = Report(
        device=torch.cuda.get_device_name(device),
        command=command(args, "cuda"),
        unit="seconds of one call: median, quartiles, fastest",
        path=args.json,
        slug="cuda",
        facts=cuda_facts(device),
    )
    with Progress(sum(len(directions) for _, directions in chosen), args.json) as progress, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*TensorFloat32")
        for case, directions in chosen:
            late = time.perf_counter() - begin > budget
            rows = _skipped(case, directions, budget) if late else measure(case, directions, settings)
            for direction in directions:
                progress.begin(case.label(direction))
                row = next(rows)
                report.add(row)
                progress.end(f"{case.label(direction)}: {_summary(row)}")
            rows.close()
    report.finish(lambda: _print(report.rows))
    if args.plot is not None:
        _plot(report.place(args.plot, "png"), report)
    return int(any("error" in row for row in report.rows))


def _named(case: Case, direction: str) -> Row:
    return {
        "op": case.op,
        "kind": case.kind,
        "size": case.size,
        "dtype": case.dtype,
        "direction": direction,
        "clock": case.clock,
    }


def _skipped(case: Case, directions: Sequence[str], budget: float) -> Generator[Row]:
    for direction in directions:
        yield {**_named(case, direction), "skipped": f"after {budget:.0f} seconds"}


def measure(case: Case, directions: Sequence[str], settings: Settings) -> Generator[Row]:
    """A row for each direction, which says what failed if anything did: the others are measured all
    the same."""
    problem: Problem | None = None
    reason = ""
    try:
        try:
            problem = Problem(case, settings)
        except Exception as error:
            reason = failure(error)
        for direction in directions:
            row = _named(case, direction)
            try:
                row |= {"error": reason} if problem is None else problem.measure(direction)
            except Exception as error:
                row["error"] = failure(error)
            yield row
    finally:
        problem = None
        if settings.on_cuda:
            gc.collect()
            torch.cuda.empty_cache()


class Problem:
    """A case's tensors and what is timed on them."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case, self.settings = case, settings
        self.sets = _sets(case, settings.device, alone=case.clock != "device")
        self.compiled: Operation | str | None = None

    def measure(self, direction: str) -> Row:
        """Timings of all candidates, ratios, and which goals were missed."""
        case, sets = self.case, self.sets
        row: Row = {"sets": len(sets)}
        operations: dict[str, Operation] = {} if case.ours is None else {"epigrad": case.ours}
        if direction != FORWARD:
            operations |= case.variants
        operations["eager"] = case.eager
        if self.settings.compiled and case.compiled:
            compiled = self.compile()
            if isinstance(compiled, str):
                row["compile_error"] = compiled
            else:
                operations["compile"] = compiled
        candidates: dict[str, Step | Prepared] = {}
        if case.ours_backward is not None:
            candidates["epigrad"] = _in_turn([partial(case.ours_backward, *each) for each in sets])
        candidates |= {name: _step(operation, case, direction, sets) for name, operation in operations.items()}
        timings = _timed(case, direction, sets, candidates, self.settings)
        row |= {name: asdict(timing) for name, timing in timings.items()}
        row |= _ratios(timings)
        goals = dict(case.directions[direction])
        row["goals"] = goals
        row["short_of"] = {name: goal for name, goal in goals.items() if _is_short(row, name, goal)}
        if case.memory and direction == BOTH and self.settings.on_cuda:
            del candidates
            row["memory"] = {name: _memory(operation, *sets[0]) for name, operation in operations.items()}
        return row

    def compile(self) -> Operation | str:
        """The operation by torch.compile, or what it raised."""
        if self.compiled is None:
            # each case starts with nothing compiled, far from dynamo's limit of recompilations
            torch._dynamo.reset()
            try:
                compiled: Operation = torch.compile(self.case.eager, fullgraph=True, dynamic=False)
                inputs, grad = self.sets[0]
                out = compiled(*inputs)
                if self.case.gradients:
                    torch.autograd.grad(out, [inputs[index] for index in self.case.gradients], grad)
                self.compiled = compiled
            except Exception as error:  # whatever its compiler may raise
                self.compiled = failure(error)
        return self.compiled


def _timed(
    case: Case, direction: str, sets: Sequence[Set], candidates: Candidates, settings: Settings
) -> dict[str, Timing]:
    """The candidates' timings and, of a device row, the ceiling's."""
    if case.clock == "device" and direction in case.products:
        candidates = {**candidates, "products": _products(case, direction, sets)}
    elif case.clock == "device" and not case.products:
        candidates = {**candidates, "copy": _copies(case, direction, sets[0])}
    if not settings.on_cuda:
        return interleaved(candidates, settings.seconds, least=1)
    if case.clock == "wall":
        return interleaved_bursts(candidates, settings.seconds)
    if case.clock == "graph":
        candidates = {name: _graphed(step) for name, step in candidates.items() if not isinstance(step, Prepared)}
    return interleaved_on_cuda(candidates, settings.seconds)


def _ratios(timings: Mapping[str, Timing]) -> Row:
    ours = timings["epigrad"].median
    row: Row = {"ratio": ours / timings["eager"].median}
    if "compile" in timings:
        row["ratio_to_compile"] = ours / timings["compile"].median
    for name in ("copy", "products"):
        if name in timings:
            row |= {"ceiling": name, "share": timings[name].median / ours}
    return row


_REACHED = {"eager": "ratio", "compile": "ratio_to_compile", "share": "share"}


def _is_short(row: Row, name: str, goal: float) -> bool:
    """What was not measured misses no goal."""
    if _REACHED[name] not in row:
        return False
    reached = row[_REACHED[name]]
    return bool(reached < goal if name == "share" else reached > goal)


# --- what is timed --------------------------------------------------------------------------------


def _sets(case: Case, device: torch.device, alone: bool) -> list[Set]:
    """Inputs and the output's gradient, in several copies unless they are to stay in the cache."""

    def one() -> Set:
        inputs = case.make_inputs(device)
        with torch.no_grad():
            return inputs, torch.empty_like(case.eager(*inputs)).normal_()

    first = one()
    return [first, *(one() for _ in range(0 if alone else sets_needed(first[0]) - 1))]


def _in_turn(steps: Sequence[Step]) -> Step:
    turns = itertools.cycle(steps)
    return lambda: next(turns)()


def _step(operation: Operation, case: Case, direction: str, sets: Sequence[Set]) -> Step | Prepared:
    """One call, on another set each time; a backward comes after a forward that is not timed."""

    def gradients(out: Tensor, inputs: list[Tensor], grad: Tensor) -> object:
        return torch.autograd.grad(out, [inputs[index] for index in case.gradients], grad)

    def both(inputs: list[Tensor], grad: Tensor) -> object:
        return gradients(operation(*inputs), inputs, grad)

    if direction == FORWARD:
        return _in_turn([partial(operation, *inputs) for inputs, _ in sets])
    if direction == BOTH:
        return _in_turn([partial(both, *each) for each in sets])
    turns = itertools.cycle(sets)

    def prepare() -> Step:
        inputs, grad = next(turns)
        return partial(gradients, operation(*inputs), inputs, grad)

    return Prepared(prepare)


def _products(case: Case, direction: str, sets: Sequence[Set]) -> Step:
    """The bare products, on tensors that are there."""

    def one(inputs: list[Tensor], grad: Tensor) -> Step:
        pairs = case.products[direction]([x.detach() for x in inputs], grad)
        results = [a.new_empty(a.shape[0], b.shape[1]) for a, b in pairs]

        def products() -> None:
            for (a, b), result in zip(pairs, results, strict=True):
                torch.mm(a, b, out=result)

        return products

    return _in_turn([one(*each) for each in sets])


def _copies(case: Case, direction: str, one: Set) -> Step:
    """``copy_`` of half of the bytes that the row has to move: it reads them and writes them."""
    inputs, out = one
    elements = traffic(case, direction, inputs, out) // 2 // out.itemsize
    sources = [out.new_empty(elements).normal_() for _ in range(2)]
    return _in_turn([partial(out.new_empty(elements).copy_, source) for source in sources])


def _graphed(step: Step) -> Step:
    """Replays of a CUDA graph of a step, warmed up on a side stream as PyTorch asks."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Step = graph.replay
    return replay


def _memory(operation: Operation, inputs: list[Tensor], grad: Tensor) -> dict[str, int]:
    """Bytes that lie between forward and backward (the first input among them, the result not), and
    at the peak."""
    wanted = [x for x in inputs if x.requires_grad]
    torch.autograd.grad(operation(*inputs), wanted, grad)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = operation(*inputs)
    kept = torch.cuda.memory_allocated() - before - out.nbytes + inputs[0].nbytes
    gradients = torch.autograd.grad(out, wanted, grad)
    peak = torch.cuda.max_memory_allocated() - before
    del gradients
    return {"kept": kept, "peak": peak}


# --- what is told ---------------------------------------------------------------------------------


def _summary(row: Row) -> str:
    if "epigrad" not in row:
        return str(row.get("error") or f"skipped {row['skipped']}")
    parts = [f"epigrad {told(row['epigrad'])}", f"eager {told(row['eager'])}"]
    if "compile" in row:
        parts.append(f"compile {told(row['compile'])}")
    parts.append(f"ratio {row['ratio']:.3f}")
    if "share" in row:
        parts.append(f"share {row['share']:.3f} of {row['ceiling']}")
    if row["short_of"]:
        parts.append("short of " + ", ".join(f"{name} {goal}" for name, goal in row["short_of"].items()))
    return ", ".join(parts)


def _print(rows: Sequence[Row]) -> None:
    header = ["op", "size", "dtype", "direction", "epigrad", "/eager", "/compile"]
    lines = []
    for row in rows:
        if "epigrad" not in row:
            cells = ["failed" if "error" in row else "skipped", "", ""]
        else:
            cells = [seconds_told(row["epigrad"]["median"])]
            cells += [f"{row[each]:.2f}" if each in row else "-" for each in ("ratio", "ratio_to_compile")]
        lines.append([*_told_name(row), row["dtype"], _told_direction(row), *cells])
    print_table("epigrad's median time, and its ratios to PyTorch's (below 1 epigrad is faster)", header, lines)
    memory = [
        [*_told_name(row), name, _mib(bytes_["kept"]), _mib(bytes_["peak"])]
        for row in rows
        for name, bytes_ in row.get("memory", {}).items()
    ]
    if memory:
        title = "Memory: kept for backward, the input included, and peak"
        print_table(title, ["op", "size", "by", "kept", "peak"], memory)
    missed = [
        [*_told_name(row), row["dtype"], _told_direction(row), name, goal, row[_REACHED[name]]]
        for row in rows
        for name, goal in row.get("short_of", {}).items()
    ]
    if missed:
        header = ["op", "size", "dtype", "direction", "against", "goal", "reached"]
        print_table("Short of a goal", header, [[*cells, f"{reached:.3f}"] for *cells, reached in missed])
    for what in ("error", "compile_error"):
        for row in rows:
            if what in row:
                print(f"{what}: {row['op']} {row['kind']} {row['size']} {row['dtype']} {row['direction']}: {row[what]}")


def _told_name(row: Row) -> list[str]:
    """Operation, and size: 8192x28672, whatever the operation calls it."""
    return [f"{row['op']} {row['kind']}", str(row["size"]).strip("[]").replace(", ", "x")]


def _told_direction(row: Row) -> str:
    return str(row["direction"]) + ("" if row["clock"] == "device" else f", {row['clock']}")


def _mib(bytes_: int) -> str:
    return f"{bytes_ / 2**20:.0f} MiB"


def _plot(path: pathlib.Path, report: Report) -> None:
    """bfloat16's backward rows: what training in it takes."""
    bars = [
        (_bar_label(row), row["ratio"], row["compile"]["median"] / row["eager"]["median"] if "compile" in row else None)
        for row in report.rows
        if row["dtype"] == "bfloat16"
        and row["direction"] != FORWARD
        and "epigrad" in row
        # that goal alone has the grid of sizes, too many to draw
        and row["goals"] != {"eager": 1.0}
    ]
    if not bars:
        print(f"{path}: no row of bfloat16's backward to draw", file=sys.stderr)
        return
    title = f"epigrad {tables.VERSION} on {report.device}, bfloat16, PyTorch {torch.__version__}"
    plot(path, title, "backward, or forward and backward", bars)


def _bar_label(row: Row) -> str:
    parts = [row["op"], row["kind"], row["size"]]
    if row["clock"] != "device":
        parts.append(row["clock"])
    elif row["direction"] == BOTH:
        parts.append("with forward")
    return " ".join(parts)
