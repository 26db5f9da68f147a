"""Writes docs/accuracy*.md: errors of every activation and its slope in ULP, beside PyTorch's.

    python -m tests.tools.accuracy                 writes docs/accuracy.md
    python -m tests.tools.accuracy cuda FILE       the same for the GPU: docs/accuracy-cuda.md
    python -m tests.tools.accuracy webgpu FILE     and for the adapter: docs/accuracy-webgpu.md

tests/accuracy/test_ulp.py holds the same measurement, on fewer points, to its bounds.
"""

from __future__ import annotations

import datetime
import math
import sys
from pathlib import Path

import epigrad
import torch
from torch import Tensor

from tests.support import definitions, oracle
from tests.support.devices import computes, memory_of, running_on
from tests.support.repository import ROOT
from tests.support.ulp import (
    ACTIVATIONS,
    BOUND,
    DTYPES,
    FROM_OUTPUT,
    OTHERS,
    Worst,
    arguments,
    measure_slope,
    measure_slope_from_output,
    measure_value,
    slope_of,
    value_of,
)


def eager(activation: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own value and slope."""
    leaf = x.clone().requires_grad_()
    y = oracle.ACTIVATIONS[activation].eager(leaf)
    y.backward(torch.ones_like(y))
    assert leaf.grad is not None
    return y.detach(), leaf.grad


def table(count: int, device: str = "cpu") -> str:
    """The rows of docs/accuracy.md, or of the GPU's page."""

    def cell(measured: Worst) -> str:
        if math.isinf(measured.ulps):
            return f"not finite at {measured.argument:.4g}"
        size = f"{measured.ulps:.2f}" if measured.ulps < 100 else f"{measured.ulps:.1e}"
        return size if measured.ulps == 0 else f"{size} at {measured.argument:.6g}"

    rows = []
    for dtype in (dtype for dtype in DTYPES if computes(device, dtype)):
        for activation in (*ACTIVATIONS, *OTHERS):
            x = arguments(activation, dtype, count).to(memory_of(device))
            with running_on(device):
                y = value_of(activation, x)
                slope = slope_of(activation, preactivation=x)
                from_output = slope_of(activation, output=y) if activation in FROM_OUTPUT else None
            eager_value, eager_slope = eager(activation, x)
            cells = [
                cell(measure_value(activation, x, y)),
                cell(measure_slope(activation, x, slope)),
                "" if from_output is None else cell(measure_slope_from_output(activation, y, from_output)),
                cell(measure_value(activation, x, eager_value)),
                cell(measure_slope(activation, x, eager_slope)),
            ]
            heads = [activation, str(dtype).removeprefix("torch."), str(len(x))]
            rows.append("| " + " | ".join(heads + cells) + " |\n")
    return "".join(rows)


def special_values() -> str:
    """A row for each activation: its value and its slope at infinities and NaN."""

    def told(value: float, slope: float) -> str:
        return ", ".join(
            "NaN" if math.isnan(x) else f"{x:+.3g}" if math.isinf(x) else f"{x:.3g}" for x in (value, slope)
        )

    rows = []
    for activation in ACTIVATIONS:
        x = torch.tensor([-math.inf, math.inf, math.nan], requires_grad=True)
        y = epigrad.activation(x, activation)
        (slope,) = torch.autograd.grad(y, x, torch.ones(3))
        rows.append(f"| {activation} | {' | '.join(map(told, y.tolist(), slope.tolist()))} |\n")
    return "".join(rows)


DOCUMENT = """# Accuracy of the activations

Written by `python -m tests.tools.accuracy` from a measurement; `tests/accuracy/test_ulp.py` repeats it on fewer points
in every test run.

The largest error met, in units in the last place (ULP) of the dtype, and the argument that has it, on the CPU's
{engine}. The reference is computed from the definitions with {digits} digits (mpmath).
A half is what rounding the exact result once costs. The bounds that the tests hold for every engine are 4 ULP in
float64, 2 in float32, and 0.51 in the half types. Half types are computed in float32, and in float64 where a result
is below about 2^-100. So is float32, except elu, selu, celu, softplus and mish, which it computes in float64. The Go
kernels compute all dtypes in float64. [kinds.md](kinds.md#worst-cases) has the worst of all numbers, and in float64
what a search for the worst finds, which may be above the bound.

- **Points**: magnitudes of all exponents down to the smallest denormal, ordinary ones between 2^-40 and 2^10, [-2, 2],
  [-45, 45], the far negative tail where results become denormal and then zero, and around the slope's zero.
- **Value** is `epigrad.forward.matmul_bias_activation` with K = 0 and the arguments as bias.
- **Slope** is the bias gradient of one row of ones. The slopes of gelu, gelu_tanh, silu, swish, quick_gelu and mish are
  sums of two terms that cancel where the slope crosses zero: there the unit is that of the larger term.
- **Parameters** are the defaults, or those that the row names. `swish` with its default is `silu`.
- **From output** is the slope from a saved output, which is taken as exact.
- **PyTorch** is eager PyTorch {torch} on the same machine's CPU, on the same points. A large number there
  belongs to a tiny result: the formula cancels or underflows. The absolute error stays small.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}
Infinities and NaN follow PyTorch where its CPU kernels agree among themselves, and the limit where they do not:

| value, slope at | -inf | +inf | NaN |
|---|---|---|---|
{special}"""

ON_CUDA = """# Accuracy of the activations on a GPU

Written by `python -m tests.tools.accuracy cuda FILE` on an {name}, {date}, with PyTorch {torch};
`tests/accuracy/test_ulp.py` repeats it on fewer points where there is a GPU. [accuracy.md](accuracy.md) says what the
columns mean and which points are taken; PyTorch's are of the same GPU.

Float64 computes in float64, the other dtypes in float32. The bounds that the tests hold are 4 ULP in float64 and
float32, and 1 in bfloat16 and float16. The points are few beside all numbers: over 3.7 million in float32 the worst
that was met is 3.95, in gelu. [kinds.md](kinds.md#worst-cases) has the worst of all numbers, which is larger.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}"""


ON_WEBGPU = """# Accuracy of the activations through WebGPU

Written by `python -m tests.tools.accuracy webgpu FILE`, {date}, with PyTorch {torch}, on
{name}.
`tests/accuracy/test_ulp.py` repeats it on fewer points on the adapter that is there.
[accuracy.md](accuracy.md) says what the columns mean and which points are taken; PyTorch's are of the same machine's
CPU.

All dtypes compute in float32. The bounds that the tests hold are {bounds[0]} ULP in float32, and {bounds[1]} in
bfloat16 and float16. Gelu's left tail has the most roundings: they add up to 9.6 ULP if all of them fall the same way
(`kernels/webgpu/activation.wgsl`), and of all 25 million float32 from -4 to -1/2 the worst has 5.94. An adapter may
take denormals to be zero, as WGSL lets it: there the tests let it too.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}"""


def main() -> None:
    if len(sys.argv) == 1:
        path = ROOT / "docs" / "accuracy.md"
        engine = next(info.detail for info in epigrad.backends() if info.name == "cpu").split(" on ")[0]
        facts = {"engine": engine, "digits": definitions.DIGITS, "torch": torch.__version__}
        path.write_text(DOCUMENT.format(rows=table(4000), special=special_values(), **facts))
        return
    device, file = sys.argv[1:]
    today, rows = datetime.date.today(), table(1000, device)
    if device == "webgpu":
        name = next(info.detail for info in epigrad.backends() if info.name == device).rsplit(", ", 2)[0]
        bounds = [f"{BOUND[device][dtype]:g}" for dtype in (torch.float32, torch.bfloat16)]
        text = ON_WEBGPU.format(name=name, date=today, torch=torch.__version__, rows=rows, bounds=bounds)
    else:
        name = torch.cuda.get_device_name(device)
        text = ON_CUDA.format(name=name, date=today, torch=torch.__version__, rows=rows)
    Path(file).write_text(text)


if __name__ == "__main__":
    main()
