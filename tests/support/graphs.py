"""CUDA graphs of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

_Results = TypeVar("_Results")


def captured(run: Callable[[], _Results]) -> tuple[torch.cuda.CUDAGraph, _Results]:
    """A graph of a call, and its results, which each replay overwrites. The call is warmed up on a
    side stream, as PyTorch asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results
