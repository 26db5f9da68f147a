"""Times a fixed list of calls of several builds of epigrad, in turns.

    python benchmarks/turns.py FILE BUILD=FOLDER BUILD=FOLDER ... [--turns 6] [--calls PATTERN]

A folder is what `pip install --no-deps --target FOLDER WHEEL` fills. Each turn starts one process
for each build, in another order each time. In a process each call takes turns with PyTorch's own
operations: layers, blocks and elementwise operations of three sizes. With `--device cuda` they run
in bursts of ten with one wait at the end. FILE gets the fastest of both in each process, and the
ratio to PyTorch of each build. Calls that a build lacks are left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

SECONDS = 0.5
# A call, or epigrad's call and PyTorch's own operations.
Call = Callable[[], object]
Pair = tuple[Call, Call]

# Rows, inputs and outputs of a layer, or hidden features of a block; and shapes of tensors. Small,
# middle and large, as the columns of docs/upgrade.md are.
LAYERS = {
    "cpu": ((16, 128, 512), (128, 256, 1024), (512, 512, 2048)),
    "cuda": ((64, 768, 3072), (2048, 768, 3072), (8192, 4096, 14336)),
}
# One row, with a weight of 1 MB in float32 and one of 16 MB.
ROWS = ((1, 512, 512), (1, 1024, 4096))
TENSORS = {
    "cpu": ((16, 256), (256, 1024), (2048, 1024)),
    "cuda": ((64, 4096), (2048, 4096), (8192, 14336)),
}
# Calls of a round: the host runs ahead of a GPU.
BURST = {"cpu": 1, "cuda": 10}


def calls(device: str = "cpu") -> Iterator[tuple[str, Pair]]:
    """Pairs of calls by operation, size, dtype and direction: epigrad's and PyTorch's own."""
    import epigrad
    import torch
    from torch.nn import functional

    def layer(x: Any, weight: Any, bias: Any) -> Any:
        return functional.gelu(functional.linear(x, weight, bias))

    def mlp(x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> Any:
        hidden = functional.gelu(functional.linear(x, weight1, bias1), approximate="tanh")
        return functional.linear(hidden, weight2, bias2)

    def gate(x: Any) -> Any:
        value, gate = x.chunk(2, -1)
        return value * functional.silu(gate)

    def gated_mlp(x: Any, weight_in: Any, weight_out: Any) -> Any:
        return functional.linear(gate(functional.linear(x, weight_in)), weight_out)

    # Each with the shapes of its inputs, from rows, inputs and outputs or from a tensor's shape.
    layers: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
        "linear gelu": (
            lambda x, w, b: epigrad.linear(x, w, b, "gelu"),
            layer,
            lambda m, k, n: ((m, k), (n, k), (n,)),
        ),
        "mlp gelu_tanh": (
            lambda x, up, bias1, down, bias2: epigrad.mlp(x, up, bias1, down, bias2, "gelu_tanh"),
            mlp,
            lambda m, k, n: ((m, k), (n, k), (n,), (k, n), (k,)),
        ),
        "gated_mlp swiglu": (
            lambda x, first, second: epigrad.gated_mlp(x, first, None, second, None, "swiglu"),
            gated_mlp,
            lambda m, k, n: ((m, k), (2 * n, k), (k, n)),
        ),
    }
    products: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
        "linear": (epigrad.linear, functional.linear, lambda m, k, n: ((m, k), (n, k), (n,))),
    }
    elementwise: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
        "gated_activation swiglu": (
            lambda x: epigrad.gated_activation(x, "swiglu"),
            gate,
            lambda rows, columns: ((rows, 2 * columns),),
        ),
        "activation gelu": (lambda x: epigrad.activation(x, "gelu"), functional.gelu, lambda *shape: (shape,)),
        "lerp by a number": (
            lambda start, end: epigrad.lerp(start, end, 0.3),
            lambda start, end: torch.lerp(start, end, 0.3),
            lambda *shape: (shape, shape),
        ),
    }
    for operations, sizes in ((products, ROWS), (layers, LAYERS[device]), (elementwise, TENSORS[device])):
        for dtype in (torch.float32, torch.bfloat16):
            for name, (ours, own, shapes) in operations.items():
                for size in sizes:
                    drawn = [torch.randn(shape, device=device) / shape[-1] ** 0.5 for shape in shapes(*size)]
                    operands = [tensor.to(dtype) for tensor in drawn]
                    label = f"{name}, {'x'.join(map(str, size))}, {str(dtype).removeprefix('torch.')}"
                    yield f"{label}, forward", _forward(ours, own, operands)
                    yield f"{label}, forward and backward", _training(ours, own, operands)


def _forward(ours: Callable[..., Any], own: Callable[..., Any], operands: list[Any]) -> Pair:
    return lambda: ours(*operands), lambda: own(*operands)


def _training(ours: Callable[..., Any], own: Callable[..., Any], operands: list[Any]) -> Pair:
    import torch

    leaves = [tensor.clone().requires_grad_() for tensor in operands]
    grad = torch.randn_like(own(*operands))

    def gradients(function: Callable[..., Any]) -> Call:
        return lambda: torch.autograd.grad(function(*leaves), leaves, grad)

    return gradients(ours), gradients(own)


def in_turns(pair: Pair, calls: int, wait: Call) -> list[float]:
    """Microseconds of each of two calls: the fastest of five rounds of `calls` calls each, or of as
    many rounds as fit into `SECONDS`. A round ends with a wait. The first is not counted."""
    best = [math.inf, math.inf]
    end = time.perf_counter() + SECONDS
    done = -1
    while done < 5 or time.perf_counter() < end:
        for which, call in enumerate(pair):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
            if done >= 0:
                best[which] = min(best[which], (time.perf_counter() - start) / calls)
        done += 1
    return [round(seconds * 1e6, 2) for seconds in best]


def measure(pattern: str, device: str) -> None:
    """What one process does."""
    import epigrad
    import torch

    torch.manual_seed(0)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    chosen = ((name, pair) for name, pair in calls(device) if re.search(pattern, name))
    times = {name: in_turns(pair, BURST[device], wait) for name, pair in chosen}
    facts: dict[str, Any]
    if device == "cuda":
        facts = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    else:
        facts = {"threads": torch.get_num_threads()}
    facts["backend"] = next(info.detail for info in epigrad.backends() if info.name == device)
    facts["torch"] = torch.__version__
    print(json.dumps({"times": times, "facts": facts}))


def process(folder: str, pattern: str, device: str) -> dict[str, Any]:
    """The times of one process with a build."""
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(folder).resolve()))
    command = [sys.executable, "-P", str(pathlib.Path(__file__).resolve()), "--measure", "--calls", pattern]
    command += ["--device", device]
    done = subprocess.run(command, env=environment, cwd="/", check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows_of(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each call that all builds have, with the times and the ratios of each build."""
    rows: list[dict[str, Any]] = []
    for name in next(iter(found.values()))[0]["times"]:
        if all(name in processes[0]["times"] for processes in found.values()):
            times = {build: [done["times"][name] for done in processes] for build, processes in found.items()}
            ratio = {b: round(statistics.median(ours / own for ours, own in times[b]), 3) for b in times}
            rows.append({"call": name, **times, "ratio": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, nargs="?")
    parser.add_argument("builds", nargs="*", metavar="BUILD=FOLDER")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--calls", default="", metavar="PATTERN")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.calls, args.device)
        return
    from epigrad.cli.machine import cpu_name  # not of a build, which may be older than it

    builds = dict(build.split("=", 1) for build in args.builds)
    if args.file is None or len(builds) < 2:
        parser.error("want a file and two builds or more")
    load = os.getloadavg()[0]
    found: dict[str, list[dict[str, Any]]] = {build: [] for build in builds}
    for _ in range(args.turns):
        for build in random.sample(list(builds), len(builds)):
            found[build].append(process(builds[build], args.calls, args.device))
    rows = rows_of(found)
    if not rows:
        parser.error(f"--calls {args.calls!r}: no call that all builds have is named so")
    means = {b: math.exp(sum(math.log(row["ratio"][b]) for row in rows) / len(rows)) for b in builds}
    report = {
        "date": datetime.date.today().isoformat(),
        "command": f"python benchmarks/turns.py FILE {' '.join(f'{b}=...' for b in builds)} --turns {args.turns}"
        + (f" --calls {args.calls!r}" if args.calls else "")
        + (f" --device {args.device}" if args.device != "cpu" else ""),
        "device": cpu_name(),
        "load_before": round(load, 2),
        **next(iter(found.values()))[0]["facts"],
        "unit": "microseconds of epigrad and of PyTorch eager, the fastest call of each process; "
        "ratio: the median of theirs",
        "geometric_mean": {build: round(mean, 3) for build, mean in means.items()},
        "rows": rows,
    }
    args.file.write_text(json.dumps(report) + "\n")
    print(f"geometric mean: {report['geometric_mean']}")


if __name__ == "__main__":
    main()
