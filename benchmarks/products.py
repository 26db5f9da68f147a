"""Products with their epilogues in one kernel (kernels/cuda/product_sm90.cuh).

Each way to compute runs for a while alone, since a GPU's clock falls with the power that it draws,
and the ways take turns. Ratios are of median times: ``speed`` is torch.mm's over ours,
``over_eager`` and ``over_compile`` are ours over PyTorch's. Kernels of a backward are timed by the
profiler.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from epigrad import backward, forward
from epigrad.cli import contest, machine, operations
from epigrad.cli.report import Row
from epigrad.cli.runner import Subject, Task
from torch import Tensor

from benchmarks.operations import gated_linear

Step = Callable[[], object]

# rows, depth, columns: of a product, and of a block features and hidden features
SHAPES = (
    *((8192, 4096, 14336), (4096, 4096, 4096), (4096, 2048, 8192)),
    *((4096, 1024, 4096), (8192, 768, 3072), (4096, 768, 3072), (2048, 768, 3072)),
)
KINDS = ("none", "relu", "silu", "gelu_tanh", "gelu", "tanh")
SECONDS, TURNS = 0.06, 3


def sustained(step: Step) -> float:
    """Seconds of one call, of calls that keep the GPU busy for a while."""
    step()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    calls = 3
    while True:
        begin.record()
        for _ in range(calls):
            step()
        end.record()
        end.synchronize()
        seconds: float = begin.elapsed_time(end) / 1e3
        if seconds > SECONDS:
            return seconds / calls
        calls = int(calls * max(2.0, min(10.0, 1.1 * SECONDS / seconds)))


def in_turns(steps: Mapping[str, Step]) -> dict[str, float]:
    """The median of each in microseconds."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            found[name].append(sustained(step))
    return {name: round(1e6 * statistics.median(times), 2) for name, times in found.items()}


def kernels_of(step: Step, calls: int = 20) -> dict[str, float]:
    """Microseconds of each kernel in a call."""
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    found = {event.key: event.device_time_total / calls for event in profiler.key_averages()}
    return {name: round(microseconds, 2) for name, microseconds in found.items() if microseconds}


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").div(shape[-1] ** 0.5).bfloat16()


def products(rows: int, depth: int, columns: int) -> dict[str, Any]:
    """Forward of a layer and of a gated one, with the preactivation as a second result."""
    x, weight, bias = drawn(rows, depth), drawn(columns, depth), drawn(columns)
    gate = drawn(columns, depth)
    both = torch.cat((weight, gate))
    steps: dict[str, Step] = {"torch.mm": lambda: torch.mm(x, weight.T)}
    for kind in KINDS:
        steps[kind] = partial(forward.linear, x, weight, bias, kind, return_preactivation=kind != "none")
    layer = in_turns(steps)
    gated = in_turns(
        {
            "torch.mm": lambda: torch.mm(x, both.T),
            "swiglu": lambda: forward.gated_linear(x, weight, gate, return_preactivation=True),
            "swiglu alone": lambda: forward.gated_linear(x, weight, gate),
            "eager": partial(gated_linear("swiglu")[1], x, weight, gate),
        }
    )
    speed = {name: round(layer["torch.mm"] / time, 3) for name, time in layer.items()}
    return {
        "layer": layer,
        "speed": speed,
        "gated": gated,
        "gated speed": round(gated["torch.mm"] / gated["swiglu"], 3),
    }


def blocks(rows: int, features: int, hidden: int) -> dict[str, Any]:
    """Forward and backward of mlp and gated_mlp, and the kernels of their backward."""
    x, grad, weight2 = drawn(rows, features), drawn(rows, features), drawn(features, hidden)
    found: dict[str, Any] = {}
    for name, columns, kind, make in (
        ("mlp", hidden, "gelu", operations.mlp),
        ("gated_mlp", 2 * hidden, "swiglu", operations.gated_mlp),
    ):
        weight1 = drawn(columns, features)
        operands = [t.clone().requires_grad_() for t in (x, weight1, weight2)]
        ways = contest.paired(make(kind), operands, operands, compiled=True)
        times = in_turns({way: partial(candidate.step, grad) for way, candidate in ways.items()})
        pre = forward.linear(x, weight1)
        gradients = partial(getattr(backward, f"{name}_backward"), grad, x, weight1, None, weight2, None, kind)
        found[name] = {
            "kind": kind,
            "microseconds": times,
            "over_eager": round(times["epigrad"] / times["eager"], 3),
            "over_compile": round(times["epigrad"] / times["compile"], 3),
            "backward": kernels_of(partial(gradients, preactivation=pre)),
        }
    found["torch.mm of the hidden gradient"] = sum(kernels_of(lambda: torch.mm(grad, weight2)).values())
    return found


def measure(size: tuple[int, int, int], seconds: float) -> Row:
    """All of one size. How long it takes does not depend on the seconds."""
    return {**products(*size), **blocks(*size)}


def subject(args: argparse.Namespace) -> Subject:
    """The table of products and of blocks."""
    torch.manual_seed(0)
    device = torch.device("cuda", torch.cuda.current_device())
    return Subject(
        slug="products",
        device=machine.name(device),
        unit="microseconds of one call: median; speed: torch.mm's over ours",
        title="Products with epilogues: torch.mm's time over theirs",
        tasks=[Task("x".join(map(str, size)), {"size": size}, partial(measure, size)) for size in SHAPES],
        names={"size": "size"},
        columns={
            "speed": ("speed", lambda each: ", ".join(f"{name} {speed}" for name, speed in each.items())),
            "gated speed": ("gated", str),
            "mlp": ("mlp /eager", lambda each: str(each["over_eager"])),
            "gated_mlp": ("gated_mlp /eager", lambda each: str(each["over_eager"])),
        },
        seconds=SECONDS,
        facts=machine.facts(device),
    )
