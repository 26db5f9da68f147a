"""Draws problems, and shrinks those that fail."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from epigrad._check.drawing import drawn
from epigrad._check.modes import MODES
from epigrad._check.operations import OPERATIONS
from epigrad._check.problem import ARRAY, DTYPES, Problem

SHRINK_SECONDS = 20.0


@dataclass(frozen=True)
class Failure:
    """A problem that failed.

    Attributes:
        mode: the mode that it failed in.
        problem: the smallest that fails alike.
        drawn: the one that was drawn.
        wrong: the failure.
    """

    mode: str
    problem: Problem
    drawn: Problem
    wrong: str

    def command(self, backend: str) -> str:
        """The command line that shows it again."""
        return command(self.mode, self.problem, backend)


def command(mode: str, problem: Problem, backend: str) -> str:
    """The command line that asks this of a problem."""
    return f"python -m epigrad check --mode {mode} --backend {backend} --problem '{problem}'"


Tell = Callable[[str], None]
"""Is called with the command line of each problem before it is tried."""


def verdict(mode: str, problem: Problem, backend: str, tell: Tell | None = None) -> str:
    """The failure of a problem, empty if there is none; an unexpected error is a failure too."""
    if tell is not None:
        tell(command(mode, problem, backend))
    try:
        return MODES[mode](problem, backend)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def problems(mode: str, backend: str, seed: int) -> Iterator[Problem]:
    """Random problems that a backend has kernels for: the same for a seed everywhere."""
    dtypes = tuple(dtype for dtype in DTYPES if backend != "webgpu" or dtype != "float64")
    large = mode in ("correct", "bitwise")
    number = 0
    while True:
        problem = drawn(random.Random(f"{seed} {mode} {number}"), tuple(OPERATIONS), dtypes, large)
        if backend == "webgpu" and problem.takes_arrays and problem.entry == "stateless" and number % 2:
            problem = dataclasses.replace(problem, entry=ARRAY)
        if backend == "webgpu" and problem.entry == "second":  # which PyTorch computes
            problem = dataclasses.replace(problem, entry="autograd")
        yield problem
        number += 1


def search(mode: str, backend: str, seed: int, tell: Tell | None = None) -> Iterator[Failure | None]:
    """Ask this of one problem after the other: a failure, made small, or None."""
    for problem in problems(mode, backend, seed):
        wrong = verdict(mode, problem, backend, tell)
        if not wrong:
            yield None
            continue
        failure = Failure(mode, problem, problem, wrong)
        try:
            yield shrunk(failure, backend, tell)
        except KeyboardInterrupt:  # which is no reason to lose what was found
            yield failure
            raise


def warm(backend: str) -> None:
    """Load what the first calls load, so that it does not count as time of problems."""
    problem = Problem.read("linear kind=relu sizes=1x1x1x1")
    for entry in problem.entries:
        verdict("correct", dataclasses.replace(problem, entry=entry), backend)


def shrunk(failure: Failure, backend: str, tell: Tell | None = None) -> Failure:
    """The simplest problem that is found to fail too, in a way that begins alike."""
    end = time.monotonic() + SHRINK_SECONDS
    begins = failure.wrong.partition(":")[0]
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for simpler in failure.problem.simpler():
            wrong = verdict(failure.mode, simpler, backend, tell)
            if wrong.partition(":")[0] == begins:
                failure = Failure(failure.mode, simpler, failure.drawn, wrong)
                smaller = True
                break
            if time.monotonic() > end:
                break
    return failure
