"""Times a fixed list of calls of several builds of epigrad, in turns.

    python tests/tools/turns.py FILE BUILD=FOLDER BUILD=FOLDER ... [--turns 6] [--calls PATTERN]

A folder is what `pip install --no-deps --target FOLDER WHEEL` fills. Each turn starts one process
for each build, in another order each time. FILE gets the fastest call of each process, and of each
build but the first the ratio of its fastest to the first's. Only functions that 0.1 has are called.
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
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

SECONDS = 0.25
LAYERS = (
    (1, 64, 64),
    (32, 64, 64),
    (64, 256, 256),
    (128, 256, 512),
    (512, 512, 1024),
    (1024, 1024, 4096),
    (2048, 1024, 4096),
)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """The calls by their names: forward and backward, unless a name says forward."""
    import epigrad
    import torch

    def each(name: str, function: Callable[..., Any], *inputs: Any) -> Iterator[tuple[str, Callable[[], object]]]:
        yield f"{name} forward", lambda: function(*inputs)
        leaves = [x.clone().requires_grad_() for x in inputs]
        grad = torch.randn_like(function(*inputs))
        yield name, lambda: torch.autograd.grad(function(*leaves), leaves, grad)

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        return epigrad.linear(x, weight, bias, "gelu")

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for m, k, n in LAYERS:
            operands = torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n)
            name = f"linear gelu {m}x{k}->{n} {str(dtype).removeprefix('torch.')}"
            yield from each(name, linear, *(tensor.to(dtype) for tensor in operands))
    elementwise: dict[str, Callable[[Any], Any]] = {
        "activation gelu": lambda x: epigrad.activation(x, "gelu"),
        "gated_activation swiglu": lambda x: epigrad.gated_activation(x, "swiglu"),
        "lerp number": lambda x: epigrad.lerp(x, x, 0.3),
    }
    for name, function in elementwise.items():
        for elements in (64, 1 << 14, 1 << 20):
            yield from each(f"{name} {elements} float32", function, torch.randn(elements // 64, 64))


def fastest(call: Callable[[], object]) -> float:
    """Microseconds of the fastest of as many calls as `SECONDS` hold."""
    for _ in range(3):
        call()
    best, rounds, end = math.inf, 0, time.perf_counter() + SECONDS
    while rounds < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        rounds += 1
    return round(best * 1e6, 2)


def measure(pattern: str) -> None:
    """What one process does."""
    import epigrad
    import torch

    torch.manual_seed(0)
    times = {name: fastest(call) for name, call in calls() if re.search(pattern, name)}
    engine = next(info.detail for info in epigrad.backends() if info.name == "cpu")
    facts = {
        "threads": torch.get_num_threads(),
        "backend": engine,
        "torch": torch.__version__,
    }
    print(json.dumps({"times": times, "facts": facts}))


def process(folder: str, pattern: str) -> dict[str, Any]:
    """The times of one process with a build."""
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(folder).resolve()))
    command = [sys.executable, "-P", str(pathlib.Path(__file__).resolve()), "--measure", "--calls", pattern]
    done = subprocess.run(command, env=environment, cwd="/", check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, nargs="?")
    parser.add_argument("builds", nargs="*", metavar="BUILD=FOLDER")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--calls", default="", metavar="PATTERN")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.calls)
        return
    from epigrad.cli.machine import cpu_name  # not of a build, which may be older than it

    builds = dict(build.split("=", 1) for build in args.builds)
    if args.file is None or len(builds) < 2:
        parser.error("want a file and two builds or more")
    found: dict[str, list[dict[str, Any]]] = {build: [] for build in builds}
    for _ in range(args.turns):
        for build in random.sample(list(builds), len(builds)):
            found[build].append(process(builds[build], args.calls))
    first, *others = builds
    rows: list[dict[str, Any]] = []
    for name in found[first][0]["times"]:
        row = {build: [done["times"][name] for done in found[build]] for build in builds}
        rows.append({"call": name, **row, "ratio": {b: round(min(row[b]) / min(row[first]), 3) for b in others}})
    means = {b: math.exp(sum(math.log(row["ratio"][b]) for row in rows) / len(rows)) for b in others}
    report = {
        "date": datetime.date.today().isoformat(),
        "command": f"python tests/tools/turns.py FILE {' '.join(f'{b}=...' for b in builds)} --turns {args.turns}"
        + (f" --calls {args.calls!r}" if args.calls else ""),
        "device": cpu_name(),
        **found[first][0]["facts"],
        "unit": "microseconds: the fastest call of each process; ratio: of the fastest to that of the first build",
        "geometric_mean": {build: round(mean, 3) for build, mean in means.items()},
        "rows": rows,
    }
    text = json.dumps(report, indent=1)
    args.file.write_text(
        re.sub(r"\[[\d\s.,]+\]", lambda numbers: "[" + " ".join(numbers[0][1:-1].split()) + "]", text) + "\n"
    )
    print(f"geometric mean: {report['geometric_mean']}")


if __name__ == "__main__":
    main()
