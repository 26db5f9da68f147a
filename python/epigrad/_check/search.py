"""Draws problems, and shrinks those that fail."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from epigrad._check.modes import MODES
from epigrad._check.operations import OPERATIONS
from epigrad._check.problem import DTYPES, Problem, drawn

SHRINK_SECONDS, MOST_FAILURES = 20.0, 10
WITHOUT_GROUPS = tuple(name for name, operation in OPERATIONS.items() if operation.integers is None)


@dataclass(frozen=True)
class Failure:
    """A problem that failed.

    Attributes:
        mode: what was asked.
        problem: the smallest that fails alike.
        drawn: the one that was drawn.
        wrong: what is wrong with it.
    """

    mode: str
    problem: Problem
    drawn: Problem
    wrong: str

    def command(self, backend: str) -> str:
        """The command line that shows it again."""
        return f"python -m epigrad check --mode {self.mode} --backend {backend} --problem '{self.problem}'"


def verdict(mode: str, problem: Problem, backend: str) -> str:
    """What is wrong with a problem; an error that nobody expects is wrong too."""
    try:
        return MODES[mode](problem, backend)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def problems(mode: str, backend: str, seed: int) -> Iterator[Problem]:
    """Random problems that a backend has kernels for: the same for a seed everywhere."""
    ops = WITHOUT_GROUPS if backend == "webgpu" else tuple(OPERATIONS)
    dtypes = tuple(dtype for dtype in DTYPES if backend != "webgpu" or dtype != "float64")
    number = 0
    while True:
        yield drawn(random.Random(f"{seed} {mode} {number}"), ops, dtypes)
        number += 1


def search(
    mode: str, backend: str, seed: int, goes_on: Callable[[int], bool], tell: Callable[[Failure], None]
) -> tuple[int, list[Failure]]:
    """Ask this of problems until `goes_on` of their number says no, or `MOST_FAILURES` failed, and
    tell each failure when it is found.

    Returns:
        How many there were, and those that failed.
    """
    failures: list[Failure] = []
    count = 0
    for problem in problems(mode, backend, seed):
        if len(failures) == MOST_FAILURES or not goes_on(count):
            break
        count += 1
        if wrong := verdict(mode, problem, backend):
            failures.append(shrunk(Failure(mode, problem, problem, wrong), backend))
            tell(failures[-1])
    return count, failures


def shrunk(failure: Failure, backend: str) -> Failure:
    """The simplest problem that is found to fail too, in a way that begins alike."""
    end = time.monotonic() + SHRINK_SECONDS
    begins = failure.wrong.partition(":")[0]
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for simpler in failure.problem.simpler():
            wrong = verdict(failure.mode, simpler, backend)
            if wrong.partition(":")[0] == begins:
                failure = Failure(failure.mode, simpler, failure.drawn, wrong)
                smaller = True
                break
            if time.monotonic() > end:
                break
    return failure
