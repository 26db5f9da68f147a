"""Measures the ways that products with epilogues can go on Hopper (go/backend/cuda/ways.go), over
sizes: what the rule takes, and what it loses to the fastest.

    python -m tests.tools.cuda_ways docs/results

writes a file named by date and device. Times are of calls that keep the GPU busy for a while, in
turns. `loss` is the rule's time over the fastest way's.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import epigrad
import torch
from epigrad import backward, forward
from epigrad.cli.machine import cuda_facts

from tests.tools.cuda_products import TURNS, Step, drawn, sustained

TOKENS = (512, 2048, 8192, 16384)
FEATURES = ((768, 3072), (1024, 4096), (1600, 6400), (2048, 8192), (4096, 4096), (4096, 14336))
WAYS = {"narrow": 1, "wide": 2, "separated": 3}


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


def measured(make: Callable[[int, int, int], Step], size: tuple[int, int, int]) -> dict[str, Any]:
    step = make(*size)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = ways_of(step, pathlib.Path(folder))
        for _ in range(TURNS):
            for name, path in files.items():
                with epigrad.tuning(path) if path else contextlib.nullcontext():
                    times.setdefault(name, []).append(sustained(step))
    found = {name: round(1e6 * statistics.median(each), 2) for name, each in times.items()}
    best = min(time for name, time in found.items() if name != "rule")
    row = {"call": make.__name__, "size": "x".join(map(str, size)), **found}
    return row | {"loss": round(found["rule"] / best, 3)}


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    name = torch.cuda.get_device_name(device)
    today = datetime.datetime.now(datetime.UTC).date()
    path = pathlib.Path(sys.argv[1]) / f"{today}-cuda-{name.lower().replace(' ', '-')}-ways.json"
    sizes = [(tokens, features, hidden) for tokens in TOKENS for features, hidden in FEATURES]
    down = [(tokens, hidden, features) for tokens, features, hidden in sizes if hidden != features]
    problems = [(layer, size) for size in sizes + down]
    problems += [(make, size) for make in (gated_layer, hidden_backward) for size in sizes]
    rows: list[dict[str, Any]] = []
    for make, size in problems:
        rows.append(measured(make, size))
        print(rows[-1], flush=True)
    head = {
        "what": "bfloat16, microseconds; sizes are rows, depth and columns of the layer",
        "command": "python -m tests.tools.cuda_ways docs/results",
        "device": name,
        "versions": {"torch": torch.__version__, "epigrad": epigrad.__version__},
        **cuda_facts(device),
    }
    body = ",\n  ".join(map(json.dumps, rows))
    path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n  {body}\n ]\n}}\n')


if __name__ == "__main__":
    main()
