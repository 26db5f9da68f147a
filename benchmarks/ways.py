"""The ways that products with epilogues can go on Hopper (go/backend/cuda/ways.go), over sizes:
what the rule takes, and what it loses to the fastest.

Each way runs for a while alone, since a GPU's clock falls with the power that it draws. The ways
take turns. `loss` is the rule's time over the fastest way's.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from functools import partial

import epigrad
import torch
from epigrad import backward, forward
from epigrad.cli import machine
from epigrad.cli.report import Row
from epigrad.cli.runner import Subject, Task
from torch import Tensor

from benchmarks.timing import Step

TOKENS = (512, 2048, 8192, 16384)
FEATURES = ((768, 3072), (1024, 4096), (1600, 6400), (2048, 8192), (4096, 4096), (4096, 14336))
SECONDS, TURNS = 0.06, 3
WAYS = {"narrow": 1, "wide": 2, "separated": 3}


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


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").div(shape[-1] ** 0.5).bfloat16()


def layer(rows: int, depth: int, columns: int) -> Step:
    x, weight, bias = drawn(rows, depth), drawn(columns, depth), drawn(columns)
    return partial(forward.linear, x, weight, bias, "gelu", return_preactivation=True)


def gated_layer(rows: int, depth: int, columns: int) -> Step:
    x, value, gate = drawn(rows, depth), drawn(columns, depth), drawn(columns, depth)
    return partial(forward.gated_linear, x, value, gate, return_preactivation=True)


def hidden_backward(rows: int, features: int, hidden: int) -> Step:
    """The gradient of a hidden layer's bias, and nothing else of mlp's backward."""
    x, grad, pre = drawn(rows, features), drawn(rows, features), drawn(rows, hidden)
    weight1, bias1, weight2 = drawn(hidden, features), drawn(hidden), drawn(features, hidden)
    operands = (grad, x, weight1, bias1, weight2, None, "gelu")
    return partial(backward.mlp_backward, *operands, preactivation=pre, needs=(False, False, True, False, False))


def ways_of(step: Step, folder: pathlib.Path) -> dict[str, pathlib.Path | None]:
    """The tuning files that name the ways of a call; None for the rule's."""
    found = folder / "found.json"
    with epigrad.tuning(found):
        step()
    choices: dict[str, str] = json.loads(found.read_text())
    (key,) = [key for key in choices if " way: " in key]
    files: dict[str, pathlib.Path | None] = {"rule": None}
    for name, way in WAYS.items():
        if name != "wide" or "gated" not in key:  # gated layers have narrow tiles alone
            files[name] = path = folder / f"{name}.json"
            path.write_text(json.dumps(choices | {key: base64.b64encode(bytes([way])).decode()}))
    return files


def measure(make: Callable[[int, int, int], Step], size: tuple[int, int, int], seconds: float) -> Row:
    """Microseconds of the rule's way and of the others."""
    step = make(*size)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = ways_of(step, pathlib.Path(folder))
        for _ in range(TURNS):
            for name, path in files.items():
                with epigrad.tuning(path) if path else contextlib.nullcontext():
                    times.setdefault(name, []).append(sustained(step))
    row: Row = {name: round(1e6 * statistics.median(each), 2) for name, each in times.items()}
    return row | {"loss": round(row["rule"] / min(row[name] for name in row if name != "rule"), 3)}


def subject(args: argparse.Namespace) -> Subject:
    """The table of layers, of gated ones, and of the backward of hidden ones."""
    torch.manual_seed(0)
    device = torch.device("cuda", torch.cuda.current_device())
    sizes = [(tokens, features, hidden) for tokens in TOKENS for features, hidden in FEATURES]
    down = [(tokens, hidden, features) for tokens, features, hidden in sizes if hidden != features]
    problems: list[tuple[Callable[..., Step], tuple[int, int, int]]] = [(layer, size) for size in sizes + down]
    problems += [(make, size) for make in (gated_layer, hidden_backward) for size in sizes]
    return Subject(
        slug="ways",
        device=machine.name(device),
        unit="microseconds in bfloat16; sizes are rows, depth and columns of the layer",
        title="Microseconds of each way, and the rule's time over the fastest's",
        tasks=[
            Task(f"{make.__name__} {size}", {"call": make.__name__, "size": size}, partial(measure, make, size))
            for make, size in problems
        ],
        names={"call": "call", "size": "size"},
        columns={name: (name, str) for name in ("rule", *WAYS, "loss")},
        seconds=SECONDS,
        facts=machine.facts(device),
    )
