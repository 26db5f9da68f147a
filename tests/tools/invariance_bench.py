"""Times layers in `epigrad.batch_invariant` beside the same without it and PyTorch's, over rows.

    python -m tests.tools.invariance_bench docs/results

writes a file named by date and device. Each contender is a CUDA graph of calls whose weights take
turns, so that they come from the device's memory; graphs take turns too, and a time is the median
of their replays, for one call.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import statistics
import sys
from collections.abc import Callable
from typing import Any

import epigrad
import torch
from torch import Tensor
from torch.nn import functional

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 2048, 4096, 8192)
SHAPES = ((4096, 4096), (4096, 14336), (14336, 4096), (768, 3072))
"""Features of the input and of the output."""
ACTIVATIONS = (None, "gelu_tanh")
DTYPES = (torch.bfloat16, torch.float32)
CACHE_BYTES = 200 << 20  # more than a device keeps
REPLAYS = 15


def graph_of(call: Callable[[Tensor], Tensor], weights: list[Tensor]) -> torch.cuda.CUDAGraph:
    """Calls with each of the weights."""
    call(weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            call(weight)
    return graph


def seconds(graphs: dict[str, torch.cuda.CUDAGraph], calls: int) -> dict[str, float]:
    """Of one call of each."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for replay in range(REPLAYS + 2):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if replay >= 2:
                times[name].append(begin.elapsed_time(end) / 1e3 / calls)
    return {name: statistics.median(found) for name, found in times.items()}


def row(dtype: torch.dtype, shape: tuple[int, int], rows: int, activation: str | None) -> dict[str, Any]:
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
    graphs = {name: graph_of(call, weights) for name, call in calls.items()}
    found = seconds(graphs, len(weights))
    fastest = min(found["epigrad"], found["eager"])
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "features": features,
        "outputs": wide,
        "rows": rows,
        "activation": activation or "none",
        **found,
        "speed_of_eager": round(found["eager"] / found["batch_invariant"], 3),
        "speed_of_fastest": round(fastest / found["batch_invariant"], 3),
    }


def main() -> None:
    """Measure and write the file."""
    (folder,) = sys.argv[1:]
    device = torch.cuda.get_device_name()
    contents: dict[str, Any] = {
        "what": "layers in batch_invariant beside the same without it and PyTorch eager: seconds of a call in a CUDA "
        "graph; speed_of_eager is eager's time over batch_invariant's, speed_of_fastest that of the faster of both",
        "date": datetime.date.today().isoformat(),
        "device": device,
        "versions": {"epigrad": epigrad.__version__, "torch": torch.__version__, "cuda": torch.version.cuda},
        "goal": {"1024 rows and more": 0.95, "fewer": 0.8},
        "rows": [],
    }
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    path = pathlib.Path(folder, f"{contents['date']}-cuda-{name}-batch-invariant.json")
    with torch.no_grad():
        for dtype in DTYPES:
            for shape in SHAPES:
                for activation in ACTIVATIONS:
                    for rows in ROWS:
                        contents["rows"].append(row(dtype, shape, rows, activation))
                        print(json.dumps(contents["rows"][-1]), flush=True)
                    path.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
