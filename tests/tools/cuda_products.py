"""Measures products with their epilogues in one kernel (kernels/cuda/product_sm90.cuh).

    python -m tests.tools.cuda_products docs/results

writes a file named by date and device. Each way to compute runs for a while alone, since a GPU's
clock falls with the power that it draws, and the ways take turns. Ratios are of median times:
``speed`` is torch.mm's over ours, ``over_eager`` and ``over_compile`` are ours over PyTorch's.
Kernels of a backward are timed by the profiler.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import epigrad
import torch
from epigrad import backward, forward
from epigrad.cli.machine import cuda_facts
from torch import Tensor
from torch.nn import functional as torch_functional

Step = Callable[[], object]
Block = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]

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
            "eager": lambda: (
                torch_functional.silu(torch_functional.linear(x, gate)) * torch_functional.linear(x, weight)
            ),
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
    for name, columns, kind in (("mlp", hidden, "gelu"), ("gated_mlp", 2 * hidden, "swiglu")):
        weight1 = drawn(columns, features)
        bias = drawn(columns) if name == "mlp" else None
        operands = [t.clone().requires_grad_() for t in (x, weight1, weight2)]
        ours: Block = partial(mlp if name == "mlp" else gated_mlp, kind)
        eager: Block = eager_mlp if name == "mlp" else eager_gated_mlp
        compiled = torch.compile(eager, dynamic=False)
        ways = {"epigrad": ours, "eager": eager, "compile": compiled}
        times = in_turns({way: partial(trained, block, operands, bias, grad) for way, block in ways.items()})
        pre = forward.linear(x, weight1, bias)
        gradients = partial(getattr(backward, f"{name}_backward"), grad, x, weight1, bias, weight2, None, kind)
        found[name] = {
            "kind": kind,
            "microseconds": times,
            "over_eager": round(times["epigrad"] / times["eager"], 3),
            "over_compile": round(times["epigrad"] / times["compile"], 3),
            "backward": kernels_of(partial(gradients, preactivation=pre)),
        }
    found["torch.mm of the hidden gradient"] = sum(kernels_of(lambda: torch.mm(grad, weight2)).values())
    return found


def trained(block: Block, operands: list[Tensor], bias: Tensor | None, grad: Tensor) -> object:
    x, weight1, weight2 = operands
    return torch.autograd.grad(block(x, weight1, bias, weight2), operands, grad)


def mlp(kind: str, x: Tensor, weight1: Tensor, bias: Tensor | None, weight2: Tensor) -> Tensor:
    return epigrad.mlp(x, weight1, bias, weight2, None, kind)


def gated_mlp(kind: str, x: Tensor, weight1: Tensor, bias: Tensor | None, weight2: Tensor) -> Tensor:
    return epigrad.gated_mlp(x, weight1, bias, weight2, None, kind)


def eager_mlp(x: Tensor, weight1: Tensor, bias: Tensor | None, weight2: Tensor) -> Tensor:
    hidden = torch_functional.gelu(torch_functional.linear(x, weight1, bias))
    return torch_functional.linear(hidden, weight2)


def eager_gated_mlp(x: Tensor, weight1: Tensor, bias: Tensor | None, weight2: Tensor) -> Tensor:
    value, gate = torch_functional.linear(x, weight1, bias).chunk(2, -1)
    return torch_functional.linear(value * torch_functional.silu(gate), weight2)


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    name = torch.cuda.get_device_name(device)
    today = datetime.datetime.now(datetime.UTC).date()
    slug = name.lower().replace(" ", "-")
    path = pathlib.Path(sys.argv[1]) / f"{today}-cuda-{slug}-fused-products.json"
    record = {
        "what": "bfloat16, microseconds. layer: act(x weight' + bias) with the preactivation, but for none; "
        "gated: two weights; blocks: forward and backward",
        "command": "python -m tests.tools.cuda_products docs/results",
        "device": name,
        "versions": {"torch": torch.__version__, "epigrad": epigrad.__version__},
        **cuda_facts(device),
        "rows": [],
    }
    for shape in SHAPES:
        row = {"size": "x".join(map(str, shape)), **products(*shape), **blocks(*shape)}
        record["rows"].append(row)
        head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)[:-2]
        rows = ",\n  ".join(map(json.dumps, record["rows"]))
        path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n')
        print(
            row["size"],
            row["speed"],
            row["gated speed"],
            *(row[b]["over_eager"] for b in ("mlp", "gated_mlp")),
            flush=True,
        )


if __name__ == "__main__":
    main()
