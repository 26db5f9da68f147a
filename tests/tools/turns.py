"""Times a fixed list of calls of several builds of epigrad, in turns.

    python tests/tools/turns.py FILE BUILD=FOLDER BUILD=FOLDER ... [--turns 6] [--calls PATTERN]

A folder is what `pip install --no-deps --target FOLDER WHEEL` fills. Each turn starts one process
for each build, in another order each time. FILE gets the fastest call of each process, and of each
build but the first the ratio of its fastest to the first's. Only functions that 0.1 has are called.

With --compiled the calls are tiny ones of `torch.compile`: what counts there is the host's time.
Each has PyTorch's own operations beside it, compiled too, and FILE gets the ratio to them. The two
take turns within a process.
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


def compiled_calls() -> Iterator[tuple[str, tuple[Callable[[], object], Callable[[], object]]]]:
    """Pairs of calls by their names: epigrad's and PyTorch's own operations, both compiled."""
    import epigrad
    import torch
    from torch.nn import functional

    def mlp(x: Any, first: Any, second: Any, bias: Any) -> Any:
        return epigrad.mlp(x, first, bias, second, bias, "gelu_tanh")

    def own_mlp(x: Any, first: Any, second: Any, bias: Any) -> Any:
        hidden = functional.gelu(functional.linear(x, first, bias), approximate="tanh")
        return functional.linear(hidden, second, bias)

    pairs: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "linear gelu": (
            lambda x, first, second, bias: epigrad.linear(x, first, bias, "gelu"),
            lambda x, first, second, bias: functional.gelu(functional.linear(x, first, bias)),
        ),
        "mlp gelu_tanh": (mlp, own_mlp),
    }
    leaves = [tensor.requires_grad_() for tensor in (torch.randn(8, 8), torch.randn(8, 8), torch.randn(8))]
    x, grad = torch.randn(4, 8), torch.randn(4, 8)

    def forward(function: Any) -> object:
        with torch.no_grad():
            return function(x, *leaves)

    def training(function: Any) -> None:
        torch.autograd.backward(function(x, *leaves), grad)

    for name, pair in pairs.items():
        ours, own = (torch.compile(function, fullgraph=True) for function in pair)
        yield f"{name} forward", (lambda ours=ours: forward(ours), lambda own=own: forward(own))  # type: ignore[misc]
        yield name, (lambda ours=ours: training(ours), lambda own=own: training(own))  # type: ignore[misc]


def in_turns(pair: tuple[Callable[[], object], Callable[[], object]]) -> list[float]:
    """Microseconds of each of two calls: the fastest of many rounds of a hundred calls each."""
    best = [math.inf, math.inf]
    for round_ in range(60):
        for which, call in enumerate(pair):
            start = time.perf_counter()
            for _ in range(100):
                call()
            if round_:
                best[which] = min(best[which], (time.perf_counter() - start) / 100)
    return [round(seconds * 1e6, 2) for seconds in best]


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


def measure(pattern: str, compiled: bool) -> None:
    """What one process does."""
    import epigrad
    import torch

    torch.manual_seed(0)
    times: dict[str, Any]
    if compiled:
        torch.set_num_threads(1)
        times = {name: in_turns(pair) for name, pair in compiled_calls() if re.search(pattern, name)}
    else:
        times = {name: fastest(call) for name, call in calls() if re.search(pattern, name)}
    engine = next(info.detail for info in epigrad.backends() if info.name == "cpu")
    facts = {
        "threads": torch.get_num_threads(),
        "backend": engine,
        "torch": torch.__version__,
    }
    print(json.dumps({"times": times, "facts": facts}))


def process(folder: str, pattern: str, compiled: bool) -> dict[str, Any]:
    """The times of one process with a build."""
    # Inductor's cache does not know which build compiled what is in it.
    environment = dict(
        os.environ, PYTHONPATH=str(pathlib.Path(folder).resolve()), TORCHINDUCTOR_FORCE_DISABLE_CACHES="1"
    )
    command = [sys.executable, "-P", str(pathlib.Path(__file__).resolve()), "--measure", "--calls", pattern]
    command += ["--compiled"] if compiled else []
    done = subprocess.run(command, env=environment, cwd="/", check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, nargs="?")
    parser.add_argument("builds", nargs="*", metavar="BUILD=FOLDER")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--calls", default="", metavar="PATTERN")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.calls, args.compiled)
        return
    from epigrad.cli.machine import cpu_name  # not of a build, which may be older than it

    builds = dict(build.split("=", 1) for build in args.builds)
    if args.file is None or len(builds) < 2:
        parser.error("want a file and two builds or more")
    found: dict[str, list[dict[str, Any]]] = {build: [] for build in builds}
    for _ in range(args.turns):
        for build in random.sample(list(builds), len(builds)):
            found[build].append(process(builds[build], args.calls, args.compiled))
    first, *others = builds
    rows: list[dict[str, Any]] = []
    for name in found[first][0]["times"]:
        if args.compiled:
            pairs = {build: [done["times"][name] for done in found[build]] for build in builds}
            ratio = {b: round(statistics.median(ours / own for ours, own in pairs[b]), 3) for b in builds}
            rows.append({"call": name, **pairs, "ratio": ratio})
            continue
        row = {build: [done["times"][name] for done in found[build]] for build in builds}
        rows.append({"call": name, **row, "ratio": {b: round(min(row[b]) / min(row[first]), 3) for b in others}})
    means = {b: math.exp(sum(math.log(row["ratio"][b]) for row in rows) / len(rows)) for b in rows[0]["ratio"]}
    report = {
        "date": datetime.date.today().isoformat(),
        "command": f"python tests/tools/turns.py FILE {' '.join(f'{b}=...' for b in builds)} --turns {args.turns}"
        + (f" --calls {args.calls!r}" if args.calls else "")
        + (" --compiled" if args.compiled else ""),
        "device": cpu_name(),
        **found[first][0]["facts"],
        "unit": "microseconds of epigrad and of PyTorch's own, compiled both, the fastest round of each process; "
        "ratio: the median of theirs"
        if args.compiled
        else "microseconds: the fastest call of each process; ratio: of the fastest to that of the first build",
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
