"""The modes of check. Each tests a problem and returns the failure as text, empty if there is none.

correct   output and gradients against the oracle; nothing else is written
bitwise   the same bits again, with other threads, other needs and other layouts
bad       a malformed call raises an error of the right class, and writes nothing
leak      calls again and again keep no memory
race      calls from several threads at once give the bits of one after the other
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import itertools
import random
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from epigrad import errors
from epigrad._check.bounds import Bounded, breach
from epigrad._check.calls import Inputs, Results, backend_of, run
from epigrad._check.defects import spoiled
from epigrad._check.expected import expected_of
from epigrad._check.layouts import same_bits, unchanged
from epigrad._check.operations import OPERATIONS
from epigrad._check.problem import Problem
from epigrad._check.spoilable import Call
from epigrad._core.invariance import batch_invariant

Mode = Callable[[Problem, str], str]


def names_of(problem: Problem) -> tuple[str, ...]:
    names = ("out", *[f"grad_{name}" for name in problem.shapes])
    return (*names, *[f"second_{name}" for name in ("grad", *problem.shapes)]) if problem.entry == "second" else names


def correct(problem: Problem, backend: str) -> str:
    with backend_of(backend) as device:
        inputs = Inputs.of(problem, device)
        results = run(problem, inputs)
    # OpenMP's threads wait for each other, which takes milliseconds for each small tensor where
    # others compute.
    with _threads(1):
        return _compared(problem, backend, inputs, results)


def _compared(problem: Problem, backend: str, inputs: Inputs, results: Results) -> str:
    dtype = problem.torch_dtype
    exact = functools.partial(Bounded.exact, dtype=dtype, backend=backend)
    given = {name: None if t is None else exact(t) for name, t in inputs.given.items()}
    expected = expected_of(problem, exact(inputs.grad), given)
    for name, got, want in zip(names_of(problem), results, expected, strict=True):
        if got is None:
            continue
        if want is None:
            return f"{name}: a result where none can exist"
        operand = name.removeprefix("grad_")
        if got.dtype != (right := dtype if name == "out" else problem.dtype_of_gradient(operand)):
            return f"{name}: {got.dtype}, want {right}"
        if name.startswith("grad_") and problem.is_added(operand):
            want = want + exact(problem.held(operand))
        if wrong := breach(got, want):
            return f"{name}: {wrong}"
    return ""


def bitwise(problem: Problem, backend: str) -> str:
    with backend_of(backend) as device:
        inputs = Inputs.of(problem, device)
        results = run(problem, inputs)
        ways: dict[str, Callable[[], Results]] = {"again": lambda: run(problem, inputs)}
        if device == "cpu":
            ways["on another number of threads"] = lambda: _on_other_threads(problem, inputs)
        # A small layer on a GPU has another kernel where a weight's gradient is wanted in float32.
        if device == "cpu" or not (problem.row.multiplies and problem.grads.startswith("float32")):
            ways["for one gradient"] = lambda: _one_gradient(problem, inputs)
        if not problem.row.multiplies:
            given = {name: None if t is None else t.contiguous() for name, t in inputs.given.items()}
            ways[CONTIGUOUS] = lambda: run(problem, Inputs(given, inputs.grad.contiguous(), inputs.others))
        for way, compute in ways.items():
            for name, one, other in zip(names_of(problem), results, compute(), strict=True):
                if one is None or other is None or same_bits(one, other):
                    continue
                is_sum = one.shape != problem.out_shape and problem.op != "gated_activation"
                if way != CONTIGUOUS or not is_sum:
                    return f"{name}: other bits {way}"
        with batch_invariant():
            return _other_rows(problem, inputs)


CONTIGUOUS = "contiguous"
"""A way to compute in which sums may have other bits: their order follows the layout."""


def _other_rows(problem: Problem, inputs: Inputs) -> str:
    """Compute some rows alone, which has the same bits in this mode: rows of a layer, rows of one
    group, or tokens of experts."""
    dims = problem.row_dims
    name, first = next(iter(inputs.given.items()))
    if dims is None or first is None or not first.shape[dims[0]]:
        return ""
    rng = random.Random(problem.seed)
    begin, end = _some_group(inputs.others["offsets"], rng) if "offsets" in inputs.others else (0, first.shape[dims[0]])
    if begin == end:
        return ""
    begin = rng.randrange(begin, end)
    rows = slice(begin, rng.randint(begin + 1, end))
    some = _rows_alone(problem, inputs, rows)
    tensors = first, inputs.grad, some.grad, some.given[name]
    if first.is_cuda and not all(tensor is not None and tensor.is_contiguous() for tensor in tensors):
        return ""
    sizes = list(problem.sizes)
    sizes[OPERATIONS[problem.op].index("rows")] = rows.stop - rows.start
    found, results = run(dataclasses.replace(problem, sizes=tuple(sizes)), some), run(problem, inputs)
    for what, dim, alone, whole in zip(names_of(problem), reversed(dims), found, results, strict=False):
        # The mode is for rows that are contiguous, those of results too.
        if alone is None or whole is None or (first.is_cuda and not whole.is_contiguous()):
            continue
        if not same_bits(alone, _narrowed(whole, dim, rows)):
            return f"{what}: other bits for rows {rows.start} to {rows.stop} alone"
    return ""


def _rows_alone(problem: Problem, inputs: Inputs, rows: slice) -> Inputs:
    """The operands of some rows; of a group's rows, all others are empty."""
    dims = problem.row_dims
    assert dims is not None
    places = dict.fromkeys(("scale", "index"), 0)
    places[next(iter(inputs.given))] = dims[0]
    given = {
        name: tensor if tensor is None or name not in places else _narrowed(tensor, places[name], rows)
        for name, tensor in inputs.given.items()
    }
    integers = {
        name: _narrowed(t, 0, rows) if name == "index" else t.clamp(rows.start, rows.stop) - rows.start
        for name, t in inputs.others.items()
    }
    return Inputs(given, _narrowed(inputs.grad, dims[1], rows), integers)


def _narrowed(tensor: Tensor, dim: int, rows: slice) -> Tensor:
    return tensor.narrow(dim, rows.start, rows.stop - rows.start)


def _some_group(offsets: Tensor, rng: random.Random) -> tuple[int, int]:
    """Where the rows of a group that has some begin and end."""
    ends = offsets.tolist()
    groups = [(begin, end) for begin, end in itertools.pairwise([0, *ends]) if begin < end]
    return rng.choice(groups) if groups else (0, 0)


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads of PyTorch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_other_threads(problem: Problem, inputs: Inputs) -> Results:
    with _threads(1 if torch.get_num_threads() > 1 else 2):
        return run(problem, inputs)


def _one_gradient(problem: Problem, inputs: Inputs) -> Results:
    places = [place for place, ask in enumerate(problem.asked()) if ask]
    if not places:
        return run(problem, inputs)
    chosen = places[problem.seed % len(places)]
    return run(
        dataclasses.replace(problem, needs=tuple([place == chosen for place in range(len(problem.shapes))])), inputs
    )


def bad(problem: Problem, backend: str) -> str:
    with backend_of(backend) as device:
        call = Call.of(problem, backend, device)
        defect = spoiled(call)
        tensors = [t for t in (*call.tensors.values(), *call.outputs.values()) if isinstance(t, Tensor)]
        with unchanged(*[tensor for tensor in tensors if not tensor.is_meta]):
            try:
                call.run()
            except errors.EpigradError as error:
                if not isinstance(error, defect.error):
                    return f"{defect.name}: {type(error).__name__}, want {defect.error.__name__}: {error}"
            except Exception as error:
                return f"{defect.name}: {type(error).__name__}, want {defect.error.__name__}: {error}"
            else:
                return f"{defect.name}: no error, want {defect.error.__name__}"
    return ""


LEAK_ROUNDS, LEAK_CALLS = 4, 300
"""Rounds of a problem, and calls of a round. The first round fills caches."""


def leak(problem: Problem, backend: str) -> str:
    """Compute in rounds, and count memory after each: a leak grows in every round."""
    with backend_of(backend) as device:
        inputs = Inputs.of(problem, device)
        counted: list[dict[str, int]] = []
        for _ in range(LEAK_ROUNDS):
            for _ in range(LEAK_CALLS):
                run(problem, inputs)
            gc.collect()
            counted.append(_held(device))
    for what, least in _LEAST_LEAK.items():
        grown = [after[what] - before[what] for before, after in itertools.pairwise(counted) if what in after]
        if grown and min(grown) >= least:
            return f"{what}: {min(grown)} more after each {LEAK_CALLS} calls"
    return ""


_LEAST_LEAK = {
    "Python's blocks of memory": LEAK_CALLS // 2,
    "bytes of malloc": 16 * LEAK_CALLS,
    "bytes of the device": 1,
    # what Go has not collected yet is garbage of a few MB, which other counts do not show
    "bytes of the process": 4 << 20,
}


def _held(device: str) -> dict[str, int]:
    """What the process has, as far as it can be counted here."""
    held = {"Python's blocks of memory": sys.getallocatedblocks()}
    if device == "cuda":
        held["bytes of the device"] = torch.cuda.memory_allocated()
    if (counted := _mallinfo()) is not None:
        held["bytes of malloc"] = int(counted().uordblks)
    statm = Path("/proc/self/statm")
    if statm.exists():
        held["bytes of the process"] = int(statm.read_text().split()[1]) * resource.getpagesize()
    return held


class _Mallinfo(ctypes.Structure):
    """What glibc counts (mallinfo2(3)): ten numbers, of which one is of the bytes in use."""

    _fields_ = [("others", ctypes.c_size_t * 7), ("uordblks", ctypes.c_size_t), ("rest", ctypes.c_size_t * 2)]


@functools.cache
def _mallinfo() -> Any:
    """glibc's function, or None elsewhere."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo
    return function


RACE_THREADS = 4


def race(problem: Problem, backend: str) -> str:
    """Compute on several threads at once, which have other problems too."""
    with backend_of(backend) as device:
        others = [dataclasses.replace(problem, seed=problem.seed ^ bit) for bit in range(RACE_THREADS)]
        prepared = [(each, Inputs.of(each, device)) for each in others]
        wanted = [run(each, inputs) for each, inputs in prepared]
    wrong: list[str] = []

    def compute(thread: int) -> None:
        try:
            with backend_of(backend):
                for place in itertools.islice(itertools.cycle(range(RACE_THREADS)), thread, thread + 2 * RACE_THREADS):
                    each, inputs = prepared[place]
                    for name, one, other in zip(names_of(each), run(each, inputs), wanted[place], strict=True):
                        if one is not None and other is not None and not same_bits(one, other):
                            wrong.append(f"{name}: other bits beside other threads")
        except Exception as error:
            wrong.append(f"beside other threads: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=compute, args=(thread,)) for thread in range(RACE_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong[0] if wrong else ""


MODES: dict[str, Mode] = {"correct": correct, "bitwise": bitwise, "bad": bad, "leak": leak, "race": race}
