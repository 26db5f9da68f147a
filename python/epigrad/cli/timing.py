"""Times functions against each other on a machine whose speed drifts: interleaved, so that a slow second hits all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Timing", "interleaved"]


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
        """The timing of samples in seconds, of which there is at least one."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, min(samples), len(samples))

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        return (self.high - self.low) / 2 / self.median


def interleaved(
    candidates: Mapping[str, Callable[[], object]], seconds: float, least: int = 3, most: int = 2000
) -> dict[str, Timing]:
    """Call each candidate once per round, with another one first each time, until `seconds` have passed.

    There are at least `least` rounds and at most `most`. The first round warms caches up and counts only if it is the
    only one.
    """
    names = list(candidates)
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter()
        rounds = 0
        while rounds < most and (rounds < least or time.perf_counter() - begin < seconds):
            first = rounds % len(names)
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                candidates[name]()
                samples[name].append(time.perf_counter() - start)
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return {name: Timing.of(taken[1:] or taken) for name, taken in samples.items()}
