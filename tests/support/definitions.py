"""Every activation and its slope from its definition, in 60-digit arithmetic (mpmath): what errors
in ULP are measured from, and golden numbers are made of. Nothing here is shared with the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
from mpmath import mp, mpf

from tests.support import oracle

DIGITS = 60
mp.dps = DIGITS

SQRT_2_OVER_PI = mpmath.sqrt(2 / mp.pi)


def phi(x: mpf) -> mpf:
    """The standard normal density."""
    return mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mp.pi)


def logistic(x: mpf) -> mpf:
    """1 / (1 + e^-x), by the side that does not overflow."""
    return 1 / (1 + mpmath.exp(-x)) if x >= 0 else mpmath.exp(x) / (1 + mpmath.exp(x))


def normal_cdf(x: mpf) -> mpf:
    """Phi(x); beyond the reach of mpmath's erfc, where no double can tell, 0 or 1."""
    if abs(x) > 1e6:
        return mpf(x > 0)
    return mpmath.erfc(-x / mpmath.sqrt(mpf(2))) / 2


def double(x: mpf) -> float:
    """The nearest float64, or infinity. float(x) rounds twice where the result is denormal."""
    if abs(x) < mpf(2) ** -1022:
        return math.ldexp(int(mpmath.nint(mpmath.ldexp(x, 1074))), -1074)
    return float(x)


def gelu(x: mpf) -> mpf:
    return x * normal_cdf(x)


def gelu_slope_terms(x: mpf) -> tuple[mpf, mpf]:
    return normal_cdf(x), x * phi(x)


def gelu_tanh(x: mpf) -> mpf:
    return x * logistic(2 * SQRT_2_OVER_PI * (x + mpf("0.044715") * x**3))


def gelu_tanh_slope_terms(x: mpf) -> tuple[mpf, mpf]:
    twice_u = 2 * SQRT_2_OVER_PI * (x + mpf("0.044715") * x**3)
    slope = 2 * SQRT_2_OVER_PI * (1 + 3 * mpf("0.044715") * x**2)
    return logistic(twice_u), x * slope * logistic(twice_u) * logistic(-twice_u)


def silu_slope_terms(x: mpf) -> tuple[mpf, mpf]:
    return logistic(x), x * logistic(x) * logistic(-x)


# The terms whose sum is the derivative, where differences of values would lose the tails. tanh' is
# sech^2.
SLOPE_TERMS: dict[str, Callable[[mpf], tuple[mpf, ...]]] = {
    "gelu": gelu_slope_terms,
    "gelu_tanh": gelu_tanh_slope_terms,
    "silu": silu_slope_terms,
    "sigmoid": lambda x: (logistic(x) * logistic(-x),),
    "tanh": lambda x: (1 / mpmath.cosh(x) ** 2,),
}
VALUES: dict[str, Callable[[mpf], mpf]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * logistic(x),
    "sigmoid": logistic,
    "tanh": mpmath.tanh,
}
ACTIVATIONS = tuple(name for name in oracle.ACTIVATIONS if "(" not in name)
"""All of them, with their default parameters. Those without a row here are the oracle's."""


def value(name: str, x: mpf) -> mpf:
    """The activation at a point."""
    return VALUES.get(name, oracle.ACTIVATIONS[name].exact)(x)


def slope(name: str, x: mpf) -> tuple[mpf, mpf]:
    """The slope, and what its rounding is relative to: itself, or the largest of its terms where
    they cancel."""
    if name not in SLOPE_TERMS:
        slope = oracle.difference(name, x)
        return slope, abs(slope)
    terms = SLOPE_TERMS[name](x)
    total = mpmath.fsum(terms)
    return total, max(abs(part) for part in (total, *terms))
