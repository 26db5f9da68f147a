"""Layers in `epigrad.batch_invariant` beside the same without it and PyTorch's, over rows.

Each contender is a CUDA graph of calls whose weights take turns, so that they come from the
device's memory; graphs take turns too, and a time is of one call.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial

import epigrad
import torch
from epigrad.cli import machine
from epigrad.cli.report import Row, seconds_told
from epigrad.cli.runner import Subject, Task
from epigrad.cli.timing import interleaved_on_cuda
from torch import Tensor
from torch.nn import functional

from benchmarks.timing import captured

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 2048, 4096, 8192)
SHAPES = ((4096, 4096), (4096, 14336), (14336, 4096), (768, 3072))
"""Features of the input and of the output."""
ACTIVATIONS = (None, "gelu_tanh")
DTYPES = (torch.bfloat16, torch.float32)
CACHE_BYTES = 200 << 20  # more than a device keeps


def measure(dtype: torch.dtype, shape: tuple[int, int], activation: str | None, rows: int, seconds: float) -> Row:
    """The times of a layer's forward."""
    features, wide = shape
    count = max(4, -(-CACHE_BYTES // (features * wide * dtype.itemsize)))
    x = torch.randn(rows, features, device="cuda", dtype=dtype)
    weights = [torch.randn(wide, features, device="cuda", dtype=dtype) / features**0.5 for _ in range(min(count, 24))]
    bias = torch.randn(wide, device="cuda", dtype=dtype)

    def ours(weight: Tensor) -> Tensor:
        return epigrad.forward.linear(x, weight, bias, activation)

    def alone(weight: Tensor) -> Tensor:
        with epigrad.batch_invariant():
            return epigrad.forward.linear(x, weight, bias, activation)

    def eager(weight: Tensor) -> Tensor:
        out = functional.linear(x, weight, bias)
        return out if activation is None else functional.gelu(out, approximate="tanh")

    calls = {"batch_invariant": alone, "epigrad": ours, "eager": eager}
    graphs = {name: captured(partial(_all, call, weights))[0].replay for name, call in calls.items()}
    timings = interleaved_on_cuda(graphs, seconds)
    found = {name: timing.median / len(weights) for name, timing in timings.items()}
    fastest = min(found["epigrad"], found["eager"])
    return {
        **found,
        "speed_of_eager": round(found["eager"] / found["batch_invariant"], 3),
        "speed_of_fastest": round(fastest / found["batch_invariant"], 3),
    }


def _all(call: Callable[[Tensor], Tensor], weights: list[Tensor]) -> None:
    """Calls with each of the weights."""
    with torch.no_grad():
        for weight in weights:
            call(weight)


def subject(args: argparse.Namespace) -> Subject:
    """The table of layers."""
    device = torch.device("cuda", torch.cuda.current_device())
    tasks = []
    for dtype, shape, activation, rows in itertools.product(DTYPES, SHAPES, ACTIVATIONS, ROWS):
        fields = {"dtype": str(dtype).removeprefix("torch."), "features": shape[0], "outputs": shape[1], "rows": rows}
        fields["activation"] = activation or "none"
        label = " ".join(map(str, fields.values()))
        tasks.append(Task(label, fields, partial(measure, dtype, shape, activation, rows)))
    return Subject(
        slug="batch-invariant",
        device=machine.name(device),
        unit="seconds of a call in a CUDA graph; speed_of_eager is eager's time over batch_invariant's, "
        "speed_of_fastest that of the faster of both",
        title="Layers in batch_invariant, and the speed of others over theirs",
        tasks=tasks,
        names={name: name for name in ("dtype", "features", "outputs", "rows", "activation")},
        columns={
            "batch_invariant": ("time", seconds_told),
            **{name: (name.replace("_", " "), str) for name in ("speed_of_eager", "speed_of_fastest")},
        },
        seconds=0.2,
        facts={**machine.facts(device), "goal": {"1024 rows and more": 0.95, "fewer": 0.8}},
    )
