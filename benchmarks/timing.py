"""Times beside those of `epigrad.cli.timing`: what the host takes to keep a GPU busy, and steps of
training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from epigrad.cli.timing import Timing, interleaved, timed

Step = Callable[[], object]
_Results = TypeVar("_Results")


def bursts(
    steps: Mapping[str, Step], calls: Mapping[str, int], wait: Mapping[str, Step], seconds: float
) -> dict[str, Timing]:
    """Seconds of a call, of as many in a row as `calls` says and one wait at their end."""

    def burst(name: str) -> Step:
        def run() -> None:
            for _ in range(calls[name]):
                steps[name]()
            wait[name]()

        return run

    found = interleaved({name: burst(name) for name in steps}, seconds)
    return {
        name: Timing(t.median / n, t.low / n, t.high / n, t.fastest / n, t.rounds)
        for name, t in found.items()
        for n in [calls[name]]
    }


def wait_for(device: torch.device) -> Step:
    """What ends a burst: a CPU's calls are done when they return."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def steps_and_host(
    steps: Mapping[str, Step], seconds: float, wait: Step, burst: int, least: int = 5, most: int = 400
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Of long steps: the time of one in a burst with one wait at its end, and the time
    until the first call returned, when the GPU had nothing else to do."""
    returned: dict[str, list[float]] = {name: [] for name in steps}

    def measure(order: list[str]) -> dict[str, float]:
        taken = {}
        for name in order:
            wait()
            begin = time.perf_counter()
            steps[name]()
            returned[name].append(time.perf_counter() - begin)
            for _ in range(burst - 1):
                steps[name]()
            wait()
            taken[name] = (time.perf_counter() - begin) / burst
        return taken

    walls = timed(measure, list(steps), seconds, least, most)
    return walls, {name: Timing.of(samples[1:] or samples) for name, samples in returned.items()}


def captured(run: Callable[[], _Results]) -> tuple[torch.cuda.CUDAGraph, _Results]:
    """A graph of a call, and its results, which each replay overwrites. The call is warmed up on a
    side stream, as PyTorch asks."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results
