"""Measures every activation and its slope through the public interface against 60-digit arithmetic, in ULP.

    python tests/ulp.py                 writes docs/accuracy.md
    python tests/ulp.py cuda FILE       writes the same for the GPU: docs/accuracy-cuda.md is such a file
    python tests/ulp.py webgpu FILE     and for the adapter: docs/accuracy-webgpu.md

test_ulp.py holds the same measurement, on fewer points, to its bounds.

With K = 0 the preactivation is the bias alone, so that matmul_bias_activation is the activation itself and the bias
gradient of a one-row problem is its slope.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import epigrad
import golden
import mpmath
import oracle
import torch
from devices import computes, memory_of, running_on
from mpmath import mpf
from torch import Tensor

ACTIVATIONS = [name for name in golden.ACTIVATIONS if name != "none"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FROM_OUTPUT: dict[str, Callable[[mpf], mpf]] = {
    "relu": lambda y: mpf(y > 0),
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: (1 - y) * (1 + y),
}

# Where each slope is zero, and where float64 results pass from normal numbers through denormals to zero.
CROSSINGS = {"gelu": -0.7517915246935645, "gelu_tanh": -0.7524614220710162, "silu": -1.2784645427610738}
TAILS = {
    "gelu": (37.0, 38.7),
    "gelu_tanh": (21.0, 22.0),
    "silu": (700.0, 753.0),
    "sigmoid": (700.0, 747.0),
    "tanh": (350.0, 374.0),
}


# Where a decay falls from below what float32 holds beside 1 to below what its largest number lifts to a bfloat16.
FAR = {
    "gelu": (11.0, 20.0),
    "gelu_tanh": (8.5, 13.5),
    "silu": (60.0, 200.0),
    "sigmoid": (60.0, 200.0),
    "tanh": (30.0, 100.0),
}


@dataclass(frozen=True)
class Worst:
    """The largest error of a measurement, in units in the last place, and the argument that has it."""

    ulps: float
    argument: float
    points: int


def arguments(activation: str, dtype: torch.dtype, count: int) -> Tensor:
    """About 6 * count finite arguments: all exponents, ordinary magnitudes, tails, and around the slope's zero."""
    generator = torch.Generator().manual_seed(2)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    def either_sign(values: Tensor) -> Tensor:
        return values * (1 - 2 * torch.randint(2, (count,), generator=generator))

    everywhere = either_sign(torch.exp2(uniform(-1074, 1023)))
    ordinary = [either_sign(torch.exp2(uniform(-40, 10))), either_sign(uniform(0, 2)), either_sign(uniform(0, 45))]
    tail = -uniform(*TAILS.get(activation, (0.0, 1.0)))
    near = CROSSINGS.get(activation, 0.0) + either_sign(torch.exp2(uniform(-45, -2)))
    values = torch.cat([everywhere, *ordinary, tail, near]).to(dtype)
    finite: Tensor = values[values.isfinite()]
    return finite


def far_arguments(activation: str, dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor]:
    """Arguments far out, and gradients of every size."""
    generator = torch.Generator().manual_seed(3)
    low, high = FAR[activation]
    info = torch.finfo(dtype)

    def signed(values: Tensor) -> Tensor:
        return (values * (1 - 2 * torch.randint(2, (count,), generator=generator))).to(dtype)

    def spread(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    sizes = torch.exp2(spread(math.log2(info.smallest_normal * info.eps), math.log2(info.max) - 1))
    return signed(spread(low, high)), signed(sizes)


def ulp(scale: mpf, dtype: torch.dtype) -> mpf:
    """The distance between neighbours of a dtype at a magnitude."""
    info = torch.finfo(dtype)
    if scale == 0:
        return mpf(info.smallest_normal) * mpf(info.eps)
    exponent = mpmath.frexp(abs(scale))[1]
    return max(mpmath.ldexp(1, int(exponent) - 1), mpf(info.smallest_normal)) * mpf(info.eps)


def rounded_to_infinity(exact: mpf, dtype: torch.dtype) -> float:
    """The infinity that a dtype rounds a number to, or 0 where it has a finite number for it."""
    info = torch.finfo(dtype)
    halfway = mpf(info.max) + mpmath.ldexp(info.eps / 2, math.frexp(info.max)[1] - 1)
    return math.copysign(math.inf, exact) if abs(exact) >= halfway else 0.0


@cache
def reference(activation: str, x: float) -> tuple[mpf, mpf, mpf]:
    """The value, the slope, and what the slope's rounding is relative to."""
    return golden.value(activation, mpf(x)), *golden.slope(activation, mpf(x))


@cache
def flushed_below(device: str) -> float:
    """What a device takes to be zero, as WGSL lets it: denormals, or nothing as on Mesa's lavapipe."""
    smallest = torch.finfo(torch.float32).smallest_normal
    with running_on(device):
        half = epigrad.lerp(torch.tensor([smallest / 2]), torch.zeros(1), 0.0)
    return smallest if half == 0 else 0.0


def worst(results: Tensor, at: Tensor, references: Iterable[tuple[mpf, mpf]], flushed: float = 0.0) -> Worst:
    """Compares with (reference, scale of its last place).

    Infinity is right where the reference rounds to it, and else as far off as a NaN: infinitely. Below `flushed` zero
    is right too.
    """
    largest, argument = -1.0, math.nan
    for got, x, (want, scale) in zip(results.tolist(), at.tolist(), references, strict=True):
        if got == 0 and abs(want) < flushed:
            continue
        if math.isfinite(got):
            error = float(abs(mpf(got) - want) / ulp(scale, results.dtype))
        else:
            error = 0.0 if got == rounded_to_infinity(want, results.dtype) else math.inf
        if error > largest:
            largest, argument = error, x
    return Worst(largest, argument, len(at))


def value_of(activation: str, x: Tensor) -> Tensor:
    """act(x): a product with K = 0 whose bias is x."""
    return epigrad.forward.matmul_bias_activation(x.new_empty(1, 0), x.new_empty(0, len(x)), x, activation).reshape(-1)


def slope_of(
    activation: str, *, preactivation: Tensor | None = None, output: Tensor | None = None, times: Tensor | None = None
) -> Tensor:
    """act'(x) from x or from act(x): the bias gradient of one row of ones, or of other gradients."""
    given = preactivation if preactivation is not None else output
    assert given is not None
    _, _, grad_bias = epigrad.backward.matmul_bias_activation_backward(
        given.new_ones(1, len(given)) if times is None else times.reshape(1, -1),
        given.new_empty(1, 0),
        given.new_empty(0, len(given)),
        torch.zeros_like(given),
        activation,
        preactivation=None if preactivation is None else preactivation.reshape(1, -1),
        output=None if output is None else output.reshape(1, -1),
        needs=(False, False, True),
    )
    assert grad_bias is not None
    return grad_bias


def eager(activation: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own value and slope."""
    leaf = x.clone().requires_grad_()
    y = oracle.ACTIVATIONS[activation].eager(leaf)
    y.backward(torch.ones_like(y))
    assert leaf.grad is not None
    return y.detach(), leaf.grad


@mpmath.workdps(golden.DIGITS)  # whatever another module has set since
def measure_value(activation: str, x: Tensor, result: Tensor, flushed: float = 0.0) -> Worst:
    return worst(result, x, ((r[0], r[0]) for r in (reference(activation, at) for at in x.tolist())), flushed)


@mpmath.workdps(golden.DIGITS)  # whatever another module has set since
def measure_slope(activation: str, x: Tensor, result: Tensor, flushed: float = 0.0) -> Worst:
    return worst(result, x, ((r[1], r[2]) for r in (reference(activation, at) for at in x.tolist())), flushed)


@mpmath.workdps(golden.DIGITS)  # whatever another module has set since
def measure_far_slope(activation: str, x: Tensor, gradients: Tensor, result: Tensor) -> Worst:
    slopes = [reference(activation, at)[1:] for at in x.tolist()]
    return worst(
        result, x, ((s * mpf(g), scale * mpf(g)) for (s, scale), g in zip(slopes, gradients.tolist(), strict=True))
    )


@mpmath.workdps(golden.DIGITS)  # whatever another module has set since
def measure_slope_from_output(activation: str, y: Tensor, result: Tensor, flushed: float = 0.0) -> Worst:
    """The saved output is taken as exact: what its rounding costs is not the formula's."""
    exact = [FROM_OUTPUT[activation](mpf(at)) for at in y.tolist()]
    return worst(result, y, zip(exact, exact, strict=True), flushed)


def table(count: int, device: str = "cpu") -> str:
    """The rows of docs/accuracy.md, or of the GPU's page."""

    def cell(measured: Worst) -> str:
        if math.isinf(measured.ulps):
            return f"not finite at {measured.argument:.4g}"
        size = f"{measured.ulps:.2f}" if measured.ulps < 100 else f"{measured.ulps:.1e}"
        return size if measured.ulps == 0 else f"{size} at {measured.argument:.6g}"

    rows = []
    for dtype in (dtype for dtype in DTYPES if computes(device, dtype)):
        for activation in ACTIVATIONS:
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


DOCUMENT = """# Accuracy of the activations

Written by `python tests/ulp.py` from a measurement; `tests/test_ulp.py` repeats it on fewer points in every test run.

The largest error met, in units in the last place (ULP) of the dtype, and the argument that has it, on the CPU's
{engine}. The reference is computed from the definitions with {digits} digits (mpmath). A half is what rounding the
exact result once costs. The bounds that the tests hold for every engine are 4 ULP in float64 and 0.51 ULP in the other
dtypes: float32 computes in float64 and rounds once; the half types compute in float32, in the Go kernels in float64.

- **Points**: magnitudes of all exponents down to the smallest denormal, ordinary ones between 2^-40 and 2^10, [-2, 2],
  [-45, 45], the far negative tail where results become denormal and then zero, and around the slope's zero.
- **Value** is `epigrad.forward.matmul_bias_activation` with K = 0 and the arguments as bias.
- **Slope** is the bias gradient of one row of ones. gelu', gelu_tanh' and silu' are sums of two terms that cancel where
  the slope crosses zero (near -0.75 and -1.28): there the unit is that of the larger term.
- **From output** is the slope from a saved output, which is taken as exact.
- **PyTorch** is eager PyTorch {torch} on the same machine's CPU, on the same points. A large number there
  belongs to a tiny result: the formula cancels or underflows. The absolute error stays small.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}
Infinities and NaN follow PyTorch where its CPU kernels agree among themselves, and the limit where they do not:

| | -inf | +inf | NaN |
|---|---|---|---|
| gelu, gelu_tanh, silu | NaN | +inf | NaN |
| their slopes | NaN | NaN | NaN |
| relu, its slope | 0, 0 | +inf, 1 | NaN, 1 |
| sigmoid, its slope | 0, 0 | 1, 0 | NaN, NaN |
| tanh, its slope | -1, 0 | 1, 0 | NaN, NaN |
"""

ON_CUDA = """# Accuracy of the activations on a GPU

Written by `python tests/ulp.py cuda FILE` on an {name},
{date}, with PyTorch {torch}. `tests/test_ulp.py` repeats it on fewer points where there is a GPU.
[accuracy.md](accuracy.md) explains the columns and the points. PyTorch's columns are of the same GPU.

Float64 computes in float64, the other dtypes in float32. The bounds that the tests hold are 4 ULP in float64 and
float32, and 1 in bfloat16 and float16. The points are few beside all numbers: over 3.7 million in float32 the worst
that was met is 3.95, in gelu.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}"""


ON_WEBGPU = """# Accuracy of the activations through WebGPU

Written by `python tests/ulp.py webgpu FILE`, {date}, with PyTorch {torch}, on
{name}.
`tests/test_ulp.py` repeats it on fewer points on the adapter that is there. [accuracy.md](accuracy.md) explains the
columns and the points. PyTorch's columns are of the same machine's CPU.

All dtypes compute in float32. The bounds that the tests hold are {bounds[0]} ULP in float32, and {bounds[1]} in
bfloat16 and float16. Gelu's left tail has the most roundings: they add up to 9.6 ULP if all of them fall the same way
(`kernels/webgpu/activation.wgsl`), and of all 25 million float32 from -4 to -1/2 the worst has 5.94. An adapter may
take denormals to be zero, as WGSL lets it: there the tests let it too.

| activation | dtype | points | value | slope | from output | PyTorch value | PyTorch slope |
|---|---|---:|---|---|---|---|---|
{rows}"""

# What test_ulp.py allows. Float64 formulas round several times. On CPU float32 computes in float64 and the half types
# in that or in float32 (by the engine), and the result is rounded visibly once; on a GPU float32 has about as many
# roundings as float64. On WebGPU it is what those of gelu's left tail
# can add up to.
BOUND = {
    "cpu": {torch.float64: 4.0, torch.float32: 0.51, torch.bfloat16: 0.51, torch.float16: 0.51},
    "cuda": {torch.float64: 4.0, torch.float32: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    "webgpu": {torch.float32: 10.0, torch.bfloat16: 1.0, torch.float16: 1.0},
}


def main() -> None:
    if len(sys.argv) == 1:
        path = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
        engine = next(info.detail for info in epigrad.backends() if info.name == "cpu").split(" on ")[0]
        rows = table(4000)
        path.write_text(DOCUMENT.format(engine=engine, digits=golden.DIGITS, torch=torch.__version__, rows=rows))
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
