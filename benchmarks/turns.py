"""Times a fixed list of calls of several builds of epigrad, in turns.

    python benchmarks/turns.py FILE BUILD=FOLDER BUILD=FOLDER ... [--turns 6] [--calls PATTERN]

A folder is what `pip install --no-deps --target FOLDER WHEEL` fills. Each turn starts one process
for each build, in another order each time. FILE gets the fastest call of each process, and of each
build but the first the ratio of its fastest to the first's. Calls that a build lacks are left out.

With --eager and --compiled each call has PyTorch's own operations beside it, and FILE gets the
ratio to them. The two take turns within a process. With --eager the calls are layers, blocks and
elementwise operations of three sizes; with --device cuda they run on a GPU, in bursts of ten with
one wait at the end. With --compiled they are tiny ones of `torch.compile`, where the host's time is
what counts.
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
# A call, or epigrad's call and PyTorch's own operations.
Call = Callable[[], object]
Pair = tuple[Call, Call]
LAYERS = (
    (1, 64, 64),
    (32, 64, 64),
    (64, 256, 256),
    (128, 256, 512),
    (512, 512, 1024),
    (1024, 1024, 4096),
    (2048, 1024, 4096),
)


# Rows, inputs and outputs of a layer, or hidden features of a block; and shapes of tensors. Small,
# middle and large, as the columns of docs/upgrade.md are.
EAGER_LAYERS = {
    "cpu": ((16, 128, 512), (128, 256, 1024), (512, 512, 2048)),
    "cuda": ((64, 768, 3072), (2048, 768, 3072), (8192, 4096, 14336)),
}
EAGER_TENSORS = {
    "cpu": ((16, 256), (256, 1024), (2048, 1024)),
    "cuda": ((64, 4096), (2048, 4096), (8192, 14336)),
}
# Calls of a round: the host runs ahead of a GPU.
BURST = {"cpu": 1, "cuda": 10}


def calls() -> Iterator[tuple[str, Call]]:
    """The calls by their names: forward and backward, unless a name says forward."""
    import epigrad
    import torch

    def each(name: str, function: Callable[..., Any], *inputs: Any) -> Iterator[tuple[str, Call]]:
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
        if not hasattr(epigrad, name.split()[0]):
            continue
        for elements in (64, 1 << 14, 1 << 20):
            yield from each(f"{name} {elements} float32", function, torch.randn(elements // 64, 64))


def eager_calls(device: str = "cpu") -> Iterator[tuple[str, Pair]]:
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
    elementwise: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
        "gated_activation swiglu": (
            lambda x: epigrad.gated_activation(x, "swiglu"),
            gate,
            lambda rows, columns: ((rows, 2 * columns),),
        ),
        "lerp by a number": (
            lambda start, end: epigrad.lerp(start, end, 0.3),
            lambda start, end: torch.lerp(start, end, 0.3),
            lambda *shape: (shape, shape),
        ),
    }
    for operations, sizes in ((layers, EAGER_LAYERS[device]), (elementwise, EAGER_TENSORS[device])):
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


def compiled_calls() -> Iterator[tuple[str, Pair]]:
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


def in_turns(pair: Pair, calls: int, rounds: int, seconds: float, wait: Call = lambda: None) -> list[float]:
    """Microseconds of each of two calls: the fastest of rounds of so many calls each, of at least
    so many rounds, and of as many as fit into the seconds. A round ends with a wait. The first
    round is not counted."""
    best = [math.inf, math.inf]
    end = time.perf_counter() + seconds
    done = -1
    while done < rounds or time.perf_counter() < end:
        for which, call in enumerate(pair):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
            if done >= 0:
                best[which] = min(best[which], (time.perf_counter() - start) / calls)
        done += 1
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


def measure(pattern: str, mode: str, device: str) -> None:
    """What one process does."""
    import epigrad
    import torch

    torch.manual_seed(0)
    times: dict[str, Any]
    if mode == "compiled":
        torch.set_num_threads(1)
        times = {name: in_turns(pair, 100, 60, 0) for name, pair in compiled_calls() if re.search(pattern, name)}
    elif mode == "eager":
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        times = {
            name: in_turns(pair, BURST[device], 5, 2 * SECONDS, wait)
            for name, pair in eager_calls(device)
            if re.search(pattern, name)
        }
    else:
        times = {name: fastest(call) for name, call in calls() if re.search(pattern, name)}
    facts: dict[str, Any] = {
        "backend": next(info.detail for info in epigrad.backends() if info.name == device),
        "torch": torch.__version__,
    }
    if device == "cuda":
        facts = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, **facts}
    else:
        facts = {"threads": torch.get_num_threads(), **facts}
    print(json.dumps({"times": times, "facts": facts}))


def process(folder: str, pattern: str, mode: str, device: str) -> dict[str, Any]:
    """The times of one process with a build."""
    # Inductor's cache does not know which build compiled what is in it.
    environment = dict(
        os.environ, PYTHONPATH=str(pathlib.Path(folder).resolve()), TORCHINDUCTOR_FORCE_DISABLE_CACHES="1"
    )
    command = [sys.executable, "-P", str(pathlib.Path(__file__).resolve()), "--measure", "--calls", pattern]
    command += ["--device", device]
    command += [f"--{mode}"] if mode else []
    done = subprocess.run(command, env=environment, cwd="/", check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


UNITS = {
    "": "microseconds: the fastest call of each process; ratio: of the fastest to that of the first build",
    "eager": "microseconds of epigrad and of PyTorch eager, the fastest call of each process; "
    "ratio: the median of theirs",
    "compiled": "microseconds of epigrad and of PyTorch's own, compiled both, the fastest round of each process; "
    "ratio: the median of theirs",
}


def rows_of(found: dict[str, list[dict[str, Any]]], mode: str) -> list[dict[str, Any]]:
    """A row for each call that all builds have, with the times and the ratios of each build."""
    first, *others = found
    rows: list[dict[str, Any]] = []
    for name in found[first][0]["times"]:
        if not all(name in processes[0]["times"] for processes in found.values()):
            continue
        times = {build: [done["times"][name] for done in processes] for build, processes in found.items()}
        if mode:
            ratio = {b: round(statistics.median(ours / own for ours, own in times[b]), 3) for b in times}
        else:
            ratio = {b: round(min(times[b]) / min(times[first]), 3) for b in others}
        rows.append({"call": name, **times, "ratio": ratio})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, nargs="?")
    parser.add_argument("builds", nargs="*", metavar="BUILD=FOLDER")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--calls", default="", metavar="PATTERN")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of --eager; cpu if not given")
    modes = parser.add_mutually_exclusive_group()
    for mode in ("eager", "compiled"):
        modes.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode, default="")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.calls, args.mode, args.device)
        return
    from epigrad.cli.machine import cpu_name  # not of a build, which may be older than it

    builds = dict(build.split("=", 1) for build in args.builds)
    if args.file is None or len(builds) < 2:
        parser.error("want a file and two builds or more")
    if args.device == "cuda" and args.mode != "eager":
        parser.error("--device cuda is for --eager")
    load = os.getloadavg()[0]
    found: dict[str, list[dict[str, Any]]] = {build: [] for build in builds}
    for _ in range(args.turns):
        for build in random.sample(list(builds), len(builds)):
            found[build].append(process(builds[build], args.calls, args.mode, args.device))
    rows = rows_of(found, args.mode)
    if not rows:
        parser.error(f"--calls {args.calls!r}: no call that all builds have is named so")
    means = {b: math.exp(sum(math.log(row["ratio"][b]) for row in rows) / len(rows)) for b in rows[0]["ratio"]}
    report = {
        "date": datetime.date.today().isoformat(),
        "command": f"python benchmarks/turns.py FILE {' '.join(f'{b}=...' for b in builds)} --turns {args.turns}"
        + (f" --calls {args.calls!r}" if args.calls else "")
        + (f" --{args.mode}" if args.mode else "")
        + (f" --device {args.device}" if args.device != "cpu" else ""),
        "device": cpu_name(),
        "load_before": round(load, 2),
        **next(iter(found.values()))[0]["facts"],
        "unit": UNITS[args.mode],
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
