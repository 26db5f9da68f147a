"""Measures every activation and its slope through the public interface against 60-digit arithmetic,
in ULP.

With K = 0 the preactivation is the bias alone, so that matmul_bias_activation is the activation
itself and the bias gradient of a one-row problem is its slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import epigrad
import mpmath
import torch
from epigrad import Activation
from mpmath import mpf
from torch import Tensor

from tests.support import definitions, oracle
from tests.support.cases import parsed
from tests.support.devices import running_on

ACTIVATIONS = [name for name in definitions.ACTIVATIONS if name != "none"]
OTHERS = [name for name in oracle.ACTIVATIONS if "(" in name]
"""With parameters that are not the defaults."""

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FROM_OUTPUT: dict[str, Callable[[mpf], mpf]] = {
    "relu": lambda y: mpf(y > 0),
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: (1 - y) * (1 + y),
}

# Where each slope is zero, and where float64 results pass from normal numbers through denormals to
# zero.
CROSSINGS = {
    "gelu": -0.7517915246935645,
    "gelu_tanh": -0.7524614220710162,
    "silu": -1.2784645427610738,
    "swish": -1.2784645427610738,
    "swish(beta=-1.3)": 1.2784645427610738 / 1.3,
    "quick_gelu": -1.2784645427610738 / 1.702,
    "mish": -1.1924312145402567,
    "hardswish": -1.5,
}
TAILS = {
    "gelu": (37.0, 38.7),
    "gelu_tanh": (21.0, 22.0),
    "silu": (700.0, 753.0),
    "sigmoid": (700.0, 747.0),
    "tanh": (350.0, 374.0),
    "swish": (700.0, 753.0),
    "swish(beta=-1.3)": (-753.0 / 1.3, -700.0 / 1.3),
    "quick_gelu": (700.0 / 1.702, 753.0 / 1.702),
    "mish": (700.0, 753.0),
    "elu": (700.0, 747.0),
    "elu(alpha=-0.7)": (700.0, 747.0),
    "selu": (700.0, 747.0),
    "celu": (700.0, 747.0),
    "celu(alpha=0.3)": (210.0, 224.0),
    "softplus": (700.0, 747.0),
    "softplus(beta=2.5, threshold=1.5)": (280.0, 299.0),
    "softcap": (10500.0, 11220.0),
    "softcap(cap=1.7)": (595.0, 636.0),
}


# Where a decay falls from below what float32 holds beside 1 to below what its largest number lifts
# to a bfloat16.
FAR = {
    "gelu": (11.0, 20.0),
    "gelu_tanh": (8.5, 13.5),
    "silu": (60.0, 200.0),
    "sigmoid": (60.0, 200.0),
    "tanh": (30.0, 100.0),
    "swish": (60.0, 200.0),
    "swish(beta=-1.3)": (46.0, 154.0),
    "quick_gelu": (35.0, 118.0),
    "mish": (60.0, 200.0),
    "elu": (60.0, 200.0),
    "elu(alpha=-0.7)": (60.0, 200.0),
    "selu": (60.0, 200.0),
    "celu": (60.0, 200.0),
    "celu(alpha=0.3)": (18.0, 60.0),
    "softplus": (60.0, 200.0),
    "softplus(beta=2.5, threshold=1.5)": (24.0, 80.0),
    "softcap": (900.0, 3000.0),
    "softcap(cap=1.7)": (51.0, 170.0),
}

# What a result may be off. Formulas round several times, which is seen in the dtype that they
# compute in. On the CPU float32's carry what most roundings leave out; on a GPU it has about as
# many roundings as float64. On WebGPU it is what those of gelu's left tail can add up to.
BOUND = {
    "cpu": {torch.float64: 4.0, torch.float32: 2.0, torch.bfloat16: 0.51, torch.float16: 0.51},
    "cuda": {torch.float64: 4.0, torch.float32: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0},
    "webgpu": {torch.float32: 10.0, torch.bfloat16: 1.0, torch.float16: 1.0},
}
# How often the longest path of a second derivative's formula rounds, in kernels/portable, cpu and
# cuda. Each rounding moves the result by at most a unit in the last place of its largest term: no
# step amplifies an error, and a factor that enters squared counts twice. With v = beta x,
#
#   logistic'(v) times a factor   6: e^-v, 1+e twice, its square, the product, the quotient
#   tanh(v/2) as a factor         5: e^-v, which (1-e) doubles at most, 1-e, 1+e, the quotient
#   2 - v tanh(v/2) as a factor   5: a sum, and e^-v, 1-e, 1+e, the quotient in its smaller term
#
# and the others by their formulas in kernels/portable/curvature.go.
CURVATURE_ROUNDINGS = {
    "hardswish": 1,
    "elu": 4,
    "selu": 4,
    "celu": 4,
    "softplus": 6,
    "gelu": 6,
    "sigmoid": 11,
    "tanh": 11,
    "silu": 11,
    "swish": 13,
    "quick_gelu": 13,
    "softcap": 13,
    "mish": 18,
    "gelu_tanh": 19,
}


def curvature_bound(activation: str, device: str, dtype: torch.dtype) -> float:
    """What a second derivative may be off, in units of its largest term.

    In half types all roundings but the last are of float32, as for values and slopes. A GPU has a
    reciprocal and a product for each of at most three quotients.
    """
    if dtype.itemsize == 2:
        return BOUND[device][dtype]
    roundings = CURVATURE_ROUNDINGS.get(activation.partition("(")[0], 0)
    return float(roundings + (3 if roundings and device == "cuda" else 0))


@dataclass(frozen=True)
class Worst:
    """The largest error of a measurement, in units in the last place, and the argument that has
    it."""

    ulps: float
    argument: float
    points: int


def arguments(activation: str, dtype: torch.dtype, count: int, seed: int = 2) -> Tensor:
    """About 6 * count finite arguments: all exponents, ordinary magnitudes, tails, and around the
    slope's zero."""
    generator = torch.Generator().manual_seed(seed)

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
    return definitions.value(activation, mpf(x)), *definitions.slope(activation, mpf(x))


@cache
def flushed_below(device: str) -> float:
    """What a device takes to be zero, as WGSL lets it: denormals, or nothing as on Mesa's
    lavapipe."""
    smallest = torch.finfo(torch.float32).smallest_normal
    with running_on(device):
        half = epigrad.lerp(torch.tensor([smallest / 2]), torch.zeros(1), 0.0)
    return smallest if half == 0 else 0.0


def worst(results: Tensor, at: Tensor, references: Iterable[tuple[mpf, mpf]], flushed: float = 0.0) -> Worst:
    """Compares with (reference, scale of its last place).

    Infinity is right where the reference rounds to it, and else as far off as a NaN: infinitely.
    Below `flushed` zero is right too.
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
    kind = parsed(Activation, activation)
    return epigrad.forward.matmul_bias_activation(x.new_empty(1, 0), x.new_empty(0, len(x)), x, kind).reshape(-1)


def slope_of(
    activation: str, *, preactivation: Tensor | None = None, output: Tensor | None = None, times: Tensor | None = None
) -> Tensor:
    """act'(x) from x or from act(x): the bias gradient of one row of ones, or of other
    gradients."""
    given = preactivation if preactivation is not None else output
    assert given is not None
    _, _, grad_bias = epigrad.backward.matmul_bias_activation_backward(
        given.new_ones(1, len(given)) if times is None else times.reshape(1, -1),
        given.new_empty(1, 0),
        given.new_empty(0, len(given)),
        torch.zeros_like(given),
        parsed(Activation, activation),
        preactivation=None if preactivation is None else preactivation.reshape(1, -1),
        output=None if output is None else output.reshape(1, -1),
        needs=(False, False, True),
    )
    assert grad_bias is not None
    return grad_bias


@mpmath.workdps(definitions.DIGITS)  # whatever another module has set since
def measure_value(activation: str, x: Tensor, result: Tensor, flushed: float = 0.0) -> Worst:
    return worst(result, x, ((r[0], r[0]) for r in (reference(activation, at) for at in x.tolist())), flushed)


@mpmath.workdps(definitions.DIGITS)  # whatever another module has set since
def measure_slope(activation: str, x: Tensor, result: Tensor, flushed: float = 0.0) -> Worst:
    return worst(result, x, ((r[1], r[2]) for r in (reference(activation, at) for at in x.tolist())), flushed)


def curvature_of(activation: str, x: Tensor, times: float = 1.0) -> Tensor:
    """act''(x), or a number times it."""
    kind, ones = parsed(Activation, activation), torch.ones_like(x)
    second = torch.ops.epigrad.activation_backward_backward
    curvature: Tensor = second(ones, times * ones, x, kind.name, parameters=list(kind.values))[1]
    return curvature


@mpmath.workdps(definitions.DIGITS)  # whatever another module has set since
def measure_curvature(activation: str, x: Tensor, result: Tensor) -> Worst:
    return worst(result, x, (definitions.curvature(activation, mpf(at)) for at in x.tolist()))


@mpmath.workdps(definitions.DIGITS)  # whatever another module has set since
def measure_far_slope(activation: str, x: Tensor, gradients: Tensor, result: Tensor) -> Worst:
    slopes = [reference(activation, at)[1:] for at in x.tolist()]
    return worst(
        result, x, ((s * mpf(g), scale * mpf(g)) for (s, scale), g in zip(slopes, gradients.tolist(), strict=True))
    )


@mpmath.workdps(definitions.DIGITS)  # whatever another module has set since
def measure_slope_from_output(activation: str, y: Tensor, result: Tensor, flushed: float = 0.0) -> Worst:
    """The saved output is taken as exact: what its rounding costs is not the formula's."""
    exact = [FROM_OUTPUT[activation](mpf(at)) for at in y.tolist()]
    return worst(result, y, zip(exact, exact, strict=True), flushed)
