"""The table of ``python -m benchmarks cuda``.

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
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from epigrad.cli import machine
from epigrad.cli.contest import Function
from epigrad.cli.report import Row, failure, told
from epigrad.cli.runner import Bar, Task, print_rows
from epigrad.cli.table import print_table
from epigrad.cli.timing import Candidates, Prepared, Timing, interleaved, interleaved_on_cuda
from torch import Tensor

from benchmarks.cuda_rows import BOTH, FORWARD, Case, cases, sets_needed, traffic
from benchmarks.record import Record
from benchmarks.timing import bursts, captured

# How long a row is measured, and after how long no other row is begun.
SECONDS, QUICK_SECONDS, BUDGET = 0.35, 0.1, 440.0

Step = Callable[[], object]
Set = tuple[list[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """How rows are measured.

    Attributes:
        device: where the tensors are; on CPU every row is timed by the wall clock, which is of use
            to tests only.
        compiled: whether torch.compile is.
    """

    device: torch.device
    compiled: bool

    @property
    def on_cuda(self) -> bool:
        """Whether there are events, graphs and memory statistics."""
        return self.device.type == "cuda"


def subject(args: argparse.Namespace) -> Record:
    """The table of a GPU."""
    device = torch.device("cuda", torch.cuda.current_device())
    warnings.filterwarnings("ignore", message=".*TensorFloat32")
    settings = Settings(device, args.compile is not False)
    chosen = [case for case in cases(args.quick) if args.dtypes is None or case.dtype in args.dtypes]
    return Record(
        slug="cuda",
        device=machine.name(device),
        unit="seconds of one call: median, quartiles, fastest",
        title="",
        tasks=list(tasks(chosen, settings)),
        names=NAMES,
        columns=COLUMNS,
        seconds=QUICK_SECONDS if args.quick else SECONDS,
        budget=BUDGET,
        facts=machine.facts(device),
        tables=_print,
        bars=_bars,
    )


NAMES = {"op": "op", "kind": "kind", "size": "size", "dtype": "dtype", "direction": "direction", "clock": "clock"}
COLUMNS = {
    "epigrad": ("epigrad", told),
    "eager": ("eager", told),
    "ratio": ("/eager", "{:.3f}".format),
    "ratio_to_compile": ("/compile", "{:.3f}".format),
    "share": ("share of the ceiling", "{:.3f}".format),
}


def tasks(cases: Iterable[Case], settings: Settings) -> Iterator[Task]:
    """A task for each direction of each case. Those of a case share its tensors, which the next one
    frees."""
    latest: dict[str, Problem] = {}

    def measured(case: Case, direction: str, seconds: float) -> Row:
        if not latest or latest["problem"].case is not case:
            latest.clear()
            if settings.on_cuda:
                gc.collect()
                torch.cuda.empty_cache()
            latest["problem"] = Problem(case, settings)
        return latest["problem"].measure(direction, seconds)

    for case in cases:
        fields = {name: getattr(case, name) for name in NAMES if name != "direction"}
        for direction in case.directions:
            yield Task(case.label(direction), {**fields, "direction": direction}, partial(measured, case, direction))


class Problem:
    """A case's tensors and what is timed on them."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case, self.settings = case, settings
        self.sets = _sets(case, settings.device, alone=case.clock != "device")
        self.compiled: Function | str | None = None

    def measure(self, direction: str, seconds: float) -> Row:
        """Timings of all candidates, ratios, and which goals were missed."""
        case, sets = self.case, self.sets
        row: Row = {"sets": len(sets)}
        operations: dict[str, Function] = {} if case.ours is None else {"epigrad": case.ours}
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
        timings = _timed(case, direction, sets, candidates, self.settings, seconds)
        row |= {name: asdict(timing) for name, timing in timings.items()}
        row |= _ratios(timings)
        goals = dict(case.directions[direction])
        row["goals"] = goals
        row["short_of"] = {name: goal for name, goal in goals.items() if _is_short(row, name, goal)}
        if case.memory and direction == BOTH and self.settings.on_cuda:
            del candidates
            row["memory"] = {name: _memory(operation, *sets[0]) for name, operation in operations.items()}
        return row

    def compile(self) -> Function | str:
        """The operation by torch.compile, or what it raised."""
        if self.compiled is None:
            # each case starts with nothing compiled, far from dynamo's limit of recompilations
            torch._dynamo.reset()
            try:
                compiled: Function = torch.compile(self.case.eager, fullgraph=True, dynamic=False)
                inputs, grad = self.sets[0]
                out = compiled(*inputs)
                if self.case.gradients:
                    torch.autograd.grad(out, [inputs[index] for index in self.case.gradients], grad)
                self.compiled = compiled
            except Exception as error:  # whatever its compiler may raise
                self.compiled = failure(error)
        return self.compiled


def _timed(
    case: Case, direction: str, sets: Sequence[Set], candidates: Candidates, settings: Settings, seconds: float
) -> dict[str, Timing]:
    """The candidates' timings and, of a device row, the ceiling's."""
    if case.clock == "device" and direction in case.products:
        candidates = {**candidates, "products": _products(case, direction, sets)}
    elif case.clock == "device" and not case.products:
        candidates = {**candidates, "copy": _copies(case, direction, sets[0])}
    if not settings.on_cuda:
        return interleaved(candidates, seconds, least=1)
    steps = {name: step for name, step in candidates.items() if not isinstance(step, Prepared)}
    if case.clock == "wall":
        return bursts(steps, dict.fromkeys(steps, 50), dict.fromkeys(steps, torch.cuda.synchronize), seconds)
    if case.clock == "graph":
        candidates = {name: captured(step)[0].replay for name, step in steps.items()}
    return interleaved_on_cuda(candidates, seconds)


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


def _step(operation: Function, case: Case, direction: str, sets: Sequence[Set]) -> Step | Prepared:
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


def _memory(operation: Function, inputs: list[Tensor], grad: Tensor) -> dict[str, int]:
    """Bytes that lie between forward and backward (the first input among them, the result not), and
    at the peak."""
    wanted = [x for x in inputs if x.requires_grad]
    torch.autograd.grad(operation(*inputs), wanted, grad)
    found = machine.memory(lambda: operation(*inputs), lambda out: torch.autograd.grad(out, wanted, grad))
    return found | {"kept": found["kept"] + inputs[0].nbytes}


# --- what is told ---------------------------------------------------------------------------------


def _print(rows: Sequence[Row]) -> None:
    print_rows("epigrad's median time, and its ratios to PyTorch's (below 1 epigrad is faster)", NAMES, COLUMNS, rows)
    memory = [
        [*_told_name(row), name, _mib(bytes_["kept"]), _mib(bytes_["peak"])]
        for row in rows
        for name, bytes_ in row.get("memory", {}).items()
    ]
    print_table("Memory: kept for backward, the input included, and peak", ["op", "size", "by", "kept", "peak"], memory)
    missed = [
        [*_told_name(row), row["dtype"], row["direction"], name, goal, f"{row[_REACHED[name]]:.3f}"]
        for row in rows
        for name, goal in row.get("short_of", {}).items()
    ]
    print_table("Short of a goal", ["op", "size", "dtype", "direction", "against", "goal", "reached"], missed)


def _told_name(row: Row) -> list[str]:
    """Operation, and size: 8192x28672, whatever the operation calls it."""
    return [f"{row['op']} {row['kind']}", str(row["size"]).strip("[]").replace(", ", "x")]


def _mib(bytes_: int) -> str:
    return f"{bytes_ / 2**20:.0f} MiB"


def _bars(rows: Sequence[Row]) -> list[Bar]:
    """bfloat16's backward rows: what training in it takes."""
    return [
        (_bar_label(row), row["ratio"], row["compile"]["median"] / row["eager"]["median"] if "compile" in row else None)
        for row in rows
        if row["dtype"] == "bfloat16"
        and row["direction"] != FORWARD
        and "epigrad" in row
        # that goal alone has the grid of sizes, too many to draw
        and row["goals"] != {"eager": 1.0}
    ]


def _bar_label(row: Row) -> str:
    parts = [row["op"], row["kind"], row["size"]]
    if row["clock"] != "device":
        parts.append(row["clock"])
    elif row["direction"] == BOTH:
        parts.append("with forward")
    return " ".join(parts)
