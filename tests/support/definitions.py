"""Every activation's slope and curvature from its definition, in 60-digit arithmetic (mpmath): what
errors in ULP are measured from, and golden numbers are made of, with the values of the oracle.
Nothing here is shared with the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
from mpmath import mp, mpf

from tests.support import oracle

DIGITS = 60
mp.dps = DIGITS

Terms = Callable[[mpf], tuple[mpf, ...]]

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


def gelu(x: mpf) -> tuple[mpf, ...]:
    return normal_cdf(x), x * phi(x)


def gelu_tanh(x: mpf) -> tuple[mpf, ...]:
    twice_u = 2 * SQRT_2_OVER_PI * (x + mpf("0.044715") * x**3)
    slope = 2 * SQRT_2_OVER_PI * (1 + 3 * mpf("0.044715") * x**2)
    return logistic(twice_u), x * slope * logistic(twice_u) * logistic(-twice_u)


def swish(beta: float) -> Terms:
    return lambda x: (logistic(beta * x), beta * x * logistic(beta * x) * logistic(-beta * x))


def elu(scale: mpf, factor: mpf, width: mpf) -> Terms:
    return lambda x: (scale if x > 0 else factor / width * mpmath.exp(x / width),)


def softplus(beta: float, threshold: float) -> Terms:
    return lambda x: (mpf(1) if beta * mpf(x) > threshold else logistic(beta * x),)


def mish(x: mpf) -> tuple[mpf, ...]:
    power = mpmath.exp(-abs(x))
    w, one = (1 + 2 * power, power * power) if x > 0 else (power * (power + 2), mpf(1))
    # tanh(log(1 + e^x)) is w / (w + 2 one), and one less its square 4 one (w + one) / (w + 2 one)^2
    return w / (w + 2 * one), x * logistic(x) * 4 * one * (w + one) / (w + 2 * one) ** 2


def softcap(cap: float) -> Terms:
    return lambda x: (1 / mpmath.cosh(x / cap) ** 2,)


SELU = mpf("1.0507009873554804934193349852946"), mpf("1.6732632423543772848170429916717")

# The terms whose sum is the derivative, where differences of values would lose the tails.
SLOPE_TERMS: dict[str, Terms] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": swish(1.0),
    "sigmoid": lambda x: (logistic(x) * logistic(-x),),
    "tanh": softcap(1.0),
    "mish": mish,
    "quick_gelu": swish(1.702),
    "swish": swish(1.0),
    "swish(beta=-1.3)": swish(-1.3),
    "elu": elu(mpf(1), mpf(1), mpf(1)),
    "elu(alpha=-0.7)": elu(mpf(1), mpf(-0.7), mpf(1)),
    "selu": elu(SELU[0], SELU[0] * SELU[1], mpf(1)),
    "celu": elu(mpf(1), mpf(1), mpf(1)),
    "celu(alpha=0.3)": elu(mpf(1), mpf(0.3), mpf(0.3)),
    "softplus": softplus(1.0, 20.0),
    "softplus(beta=2.5, threshold=1.5)": softplus(2.5, 1.5),
    "softcap": softcap(30.0),
    "softcap(cap=1.7)": softcap(1.7),
}


def gelu_bend(x: mpf) -> tuple[mpf, ...]:
    return 2 * phi(x), -x * x * phi(x)


def gelu_tanh_bend(x: mpf) -> tuple[mpf, ...]:
    scale, cubic = 2 * SQRT_2_OVER_PI, mpf("0.044715")
    twice_u, slope, bend = scale * (x + cubic * x**3), scale * (1 + 3 * cubic * x**2), scale * 6 * cubic * x
    first, second = logistic_slope(twice_u), logistic_bend(twice_u)
    return 2 * slope * first, x * bend * first, x * slope**2 * second


def logistic_slope(x: mpf) -> mpf:
    return logistic(x) * logistic(-x)


def logistic_bend(x: mpf) -> mpf:
    return -logistic_slope(x) * mpmath.tanh(x / 2)


def swish_bend(beta: float) -> Terms:
    return lambda x: (2 * beta * logistic_slope(beta * x), mpf(beta) ** 2 * x * logistic_bend(beta * x))


def elu_bend(factor: mpf, width: mpf) -> Terms:
    return lambda x: (mpf(0) if x > 0 else factor / width**2 * mpmath.exp(x / width),)


def softplus_bend(beta: float, threshold: float) -> Terms:
    return lambda x: (mpf(0) if beta * mpf(x) > threshold else beta * logistic_slope(beta * x),)


def mish_bend(x: mpf) -> tuple[mpf, ...]:
    """2 t' + x t'' of t = tanh(log(1 + e^x)), with t' = s (1 - t^2) and s' = s (1 - s)."""
    t = mish(x)[0]
    falling = 4 * (1 + mpmath.exp(x)) ** 2 / (mpmath.exp(x) * (mpmath.exp(x) + 2) + 2) ** 2  # 1 - t^2
    first = logistic(x) * falling
    return 2 * first, x * first * logistic(-x), -2 * x * first * logistic(x) * t


def softcap_bend(cap: float) -> Terms:
    return lambda x: (-2 * mpmath.tanh(x / cap) / mpmath.cosh(x / cap) ** 2 / cap,)


# The terms whose sum is the second derivative, where it is not 0 everywhere.
CURVATURE_TERMS: dict[str, Terms] = {
    "gelu": gelu_bend,
    "gelu_tanh": gelu_tanh_bend,
    "silu": swish_bend(1.0),
    "sigmoid": lambda x: (logistic_bend(x),),
    "tanh": softcap_bend(1.0),
    "mish": mish_bend,
    "quick_gelu": swish_bend(1.702),
    "swish": swish_bend(1.0),
    "swish(beta=-1.3)": swish_bend(-1.3),
    "elu": elu_bend(mpf(1), mpf(1)),
    "elu(alpha=-0.7)": elu_bend(mpf(-0.7), mpf(1)),
    "selu": elu_bend(SELU[0] * SELU[1], mpf(1)),
    "celu": elu_bend(mpf(1), mpf(1)),
    "celu(alpha=0.3)": elu_bend(mpf(0.3), mpf(0.3)),
    "softplus": softplus_bend(1.0, 20.0),
    "softplus(beta=2.5, threshold=1.5)": softplus_bend(2.5, 1.5),
    "softcap": softcap_bend(30.0),
    "softcap(cap=1.7)": softcap_bend(1.7),
    "relu2": lambda x: (mpf(2 if x > 0 else 0),),
    "hardswish": lambda x: (mpf(1) / 3 if abs(x) < 3 else mpf(0),),
}
ACTIVATIONS = tuple(name for name in oracle.ACTIVATIONS if "(" not in name)
"""All of them, with their default parameters."""


def value(name: str, x: mpf) -> mpf:
    """The activation at a point."""
    if name == "selu":  # the oracle's constants are doubles
        return SELU[0] * x if x > 0 else SELU[0] * SELU[1] * mpmath.expm1(x)
    return oracle.ACTIVATIONS[name].exact(x)


def slope(name: str, x: mpf) -> tuple[mpf, mpf]:
    """The slope, and what its rounding is relative to: itself, or the largest of its terms where
    they cancel."""
    if name not in SLOPE_TERMS:
        slope = oracle.difference(name, x)
        return slope, abs(slope)
    terms = SLOPE_TERMS[name](x)
    total = mpmath.fsum(terms)
    return total, max(abs(part) for part in (total, *terms))


def curvature(name: str, x: mpf) -> tuple[mpf, mpf]:
    """The second derivative, and the largest of its terms."""
    terms = CURVATURE_TERMS[name](x) if name in CURVATURE_TERMS else (mpf(0),)
    total = mpmath.fsum(terms)
    return total, max(abs(part) for part in (total, *terms))
