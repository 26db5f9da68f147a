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

`python -m tests.tools.accuracy` wrote this page. In every test run `tests/accuracy/test_ulp.py` repeats the measurement
on fewer points.

A cell has the largest error measured on the CPU's {engine}, in units in the last place (ULP) of the dtype, and the
argument that causes it. The reference is mpmath with {digits} digits. Rounding the exact result once costs up to 0.5
ULP.

- **Bounds** that the tests hold on every engine: 4 ULP in float64, 2 in float32, and 0.51 in the half types.
- **Arithmetic**: half types and float32 compute in float32, and in float64 where a result is below about 2^-100. In
  float32 elu, selu, celu, softplus and mish compute in float64, and so does gelu below -6.5. The Go kernels compute all
  dtypes in float64.
- **Worst cases**: [kinds.md](kinds.md#worst-cases) has those of all numbers. In float64 they are from a search, and
  may exceed the bound.
- **Points**: all exponents down to the smallest denormal, numbers between 2^-40 and 2^10, [-2, 2], [-45, 45], the
  negative tail where results become denormal and then zero, and the neighbourhood of the slope's zero.
- **Value** is `epigrad.forward.matmul_bias_activation` with K = 0 and the arguments as bias.
- **Slope** is the bias gradient of one row of ones. The slopes of gelu, gelu_tanh, silu, swish, quick_gelu and mish are
  sums of two terms that cancel where the slope crosses zero: there the unit is that of the larger term.
- **Parameters** are the defaults, unless the row names others. `swish` with its default is `silu`.
- **From output** is the slope from a saved output, which counts as exact.
- **PyTorch** is eager PyTorch {torch} on the same CPU and points. Large numbers there belong to tiny
  results, where the formula cancels or underflows. The absolute error stays small.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}
Infinities and NaN follow PyTorch where its CPU kernels agree among themselves, and the limit where they do not:

| value, slope at | -inf | +inf | NaN |
|---|---|---|---|
{special}"""

ON_CUDA = """# Accuracy of the activations on a GPU

`python -m tests.tools.accuracy cuda FILE` wrote this page on an {name}, {date},
with PyTorch {torch}. On a GPU `tests/accuracy/test_ulp.py` repeats it on fewer points.
[accuracy.md](accuracy.md) explains columns and points; PyTorch's columns are of the same GPU.

Float64 computes in float64, the other dtypes in float32. The bounds that the tests hold are 4 ULP in float64 and
float32, and 1 in bfloat16 and float16. [kinds.md](kinds.md#worst-cases) has the worst cases of all numbers, which are
larger than those of these points.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}"""


ON_WEBGPU = """# Accuracy of the activations through WebGPU

`python -m tests.tools.accuracy webgpu FILE` wrote this page, {date}, with PyTorch {torch}, on
{name}.
`tests/accuracy/test_ulp.py` repeats it on fewer points of your adapter. [accuracy.md](accuracy.md) explains columns and
points; PyTorch's columns are of the same machine's CPU.

All dtypes compute in float32. The bounds that the tests hold are {bounds[0]} ULP in float32, and {bounds[1]} in
bfloat16 and float16. Gelu's left tail has the most roundings. They can add up to 9.6 ULP
(`kernels/webgpu/activation.wgsl`); the worst of all float32 from -4 to -1/2 has 5.94. An adapter may flush denormals to
zero, as WGSL allows, and the tests accept it.

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
