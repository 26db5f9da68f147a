"""Times functions against each other on a machine whose speed drifts: interleaved, so that a slow
second hits all.

`interleaved` reads the wall clock, `interleaved_on_cuda` what a GPU itself takes, and `in_turns`
the one that a device has.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A candidate of which a part is not timed: each round `prepare` gives what is."""

    prepare: Callable[[], Step]


Candidates = Mapping[str, Step | Prepared]

# Cycles of a second, for a pause of the GPU: above the clock of any, since a pause too long only
# costs time.
_CYCLES_PER_SECOND = 2.2e9


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call, over rounds."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    fastest: float
    rounds: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, min(samples), len(samples))

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        return (self.high - self.low) / 2 / self.median


def interleaved(
    candidates: Candidates,
    seconds: float,
    least: int = 3,
    most: int = 2000,
    wanted: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Call each candidate once per round, in another order each time, until `seconds` have passed.

    There are at least `least` rounds and at most `most`; `wanted` are worth up to ten times the
    seconds. The first round warms caches up and counts only if it is the only one. `clock` times a
    call.
    """

    def measure(order: list[str]) -> dict[str, float]:
        taken = {}
        for name in order:
            step = _ready(candidates[name])
            start = clock()
            step()
            taken[name] = clock() - start
        return taken

    return timed(measure, list(candidates), seconds, least, most, wanted)


def interleaved_on_cuda(candidates: Candidates, seconds: float, least: int = 5, most: int = 400) -> dict[str, Timing]:
    """The same by the GPU's own clock: events around each candidate's work on the current stream.

    The GPU first pauses for longer than the host needs to queue a round, so that it never waits for
    the host between the two events of a candidate.
    """

    def queue() -> None:
        for step in [_ready(candidate) for candidate in candidates.values()]:
            step()

    queue()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    queue()
    pause = int(1.5 * (time.perf_counter() - begin) * _CYCLES_PER_SECOND)
    torch.cuda.synchronize()

    def measure(order: list[str]) -> dict[str, float]:
        marks = {name: (_event(), _event()) for name in order}
        torch.cuda._sleep(pause)  # type: ignore[no-untyped-call]
        steps = {name: _ready(candidates[name]) for name in order}
        for name, step in steps.items():
            start, end = marks[name]
            start.record()
            step()
            end.record()
        torch.cuda.synchronize()
        return {name: start.elapsed_time(end) / 1e3 for name, (start, end) in marks.items()}

    return timed(measure, list(candidates), seconds, least, most)


def _ready(candidate: Step | Prepared) -> Step:
    return candidate.prepare() if isinstance(candidate, Prepared) else candidate


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def in_turns(candidates: Candidates, device: torch.device, seconds: float, wanted: int = 0) -> dict[str, Timing]:
    """Timings on a device, by its own clock. A candidate that takes long on a CPU has one round."""
    if device.type == "cuda":
        return interleaved_on_cuda(candidates, seconds)
    timings = interleaved(candidates, 0, least=2)  # of which one warms up
    if sum(timing.fastest for timing in timings.values()) <= (4 if wanted else 1) * seconds:
        timings = interleaved(candidates, seconds, least=1, wanted=wanted)
    return timings


def timed(
    measure: Callable[[list[str]], dict[str, float]],
    names: list[str],
    seconds: float,
    least: int,
    most: int,
    wanted: int = 0,
) -> dict[str, Timing]:
    """Timings of the rounds that `measure` takes in the order it is given.

    Each round has an order of its own: whoever runs before one leaves it caches to write back,
    which on a GPU is worth one percent.
    """
    shuffle = random.Random(0).shuffle
    order = list(names)
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter()
        rounds = 0
        while rounds < most and (
            rounds < least or time.perf_counter() - begin < (seconds if rounds >= wanted else 10 * seconds)
        ):
            shuffle(order)
            for name, taken in measure(order).items():
                samples[name].append(taken)
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return {name: Timing.of(taken[1:] or taken) for name, taken in samples.items()}
