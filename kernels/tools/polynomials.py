"""Makes polynomials from definitions, in 60-digit arithmetic (mpmath): what the programs beside
this share.

Each polynomial is a Chebyshev expansion cut where the rest, relative to the function that it is a
part of, is below a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
from mpmath import mp, mpf

DIGITS = 60
mp.dps = DIGITS

SQRT_2_OVER_PI = mpmath.sqrt(2 / mp.pi)
LN_2 = mpmath.log(2)
INV_SQRT_2PI = 1 / mpmath.sqrt(2 * mp.pi)

# gelu_tanh(x) = x s(C1 x + C3 x^3), with the logistic function s.
GELU_TANH_C1 = 2 * SQRT_2_OVER_PI
GELU_TANH_C3 = mpf("0.044715") * GELU_TANH_C1

# tanh x = x + x^3 R(x^2) up to here, and 1 - 2e/(1+e) above, where an arithmetic has no bound of
# its own.
TANH_NEAR = mpf("0.55")


@dataclass(frozen=True)
class Arithmetic:
    """One of the ways in which kernels compute (kernels/cpu/arithmetic.h,
    kernels/cuda/arithmetic.cuh)."""

    name: str
    real: type[np.float32 | np.float64]
    bits: int
    """The polynomials' error is at most 2^-bits."""
    last: int
    """Where t e^(-t^2/2) is zero after rounding."""
    centre: mpf
    """The c of the normal tail's variable (t-c)/(t+c). Large needs fewer terms, small feels
    rounding less."""
    tanh_near: mpf = TANH_NEAR

    def round(self, x: mpf) -> np.float32 | np.float64:
        return self.real(mpmath.nstr(x, 30))

    def literal(self, x: mpf) -> str:
        return str(self.round(x)) + ("f" if self.real is np.float32 else "")

    def rest(self, x: mpf) -> mpf:
        """What a literal leaves out."""
        return x - mpf(float(self.round(x)))

    def normal(self, y: mpf) -> mpf:
        """W(t) (t+c) for y = (t-c)/(t+c)."""
        t = self.centre * (1 + y) / (1 - y)
        return normal_tail(t) * (t + self.centre)

    @property
    def exact(self) -> bool:
        """Whether results are good to the last places; then exponents, and what dominates a sum,
        have two parts."""
        return self.bits > 20

    @property
    def c_type(self) -> str:
        return "float" if self.real is np.float32 else "double"

    def constants(self) -> dict[str, mpf]:
        """The constants that every formula has, by name."""
        return {
            "log2_e": 1 / LN_2,
            "inv_sqrt_2pi": INV_SQRT_2PI,
            "gelu_tanh_c1": GELU_TANH_C1,
            "gelu_tanh_c3": GELU_TANH_C3,
            "gelu_tanh_3c3": 3 * GELU_TANH_C3,
            "normal_centre": self.centre,
            "tanh_near": self.tanh_near,
        }

    def two_part_constants(self) -> dict[str, mpf]:
        """Those of them that exact formulas have in two parts."""
        if self.real is np.float64:
            return {
                "ln2": LN_2,
                "ln2_low": self.rest(LN_2),
                "gelu_tanh_c1_low": self.rest(GELU_TANH_C1),
                "gelu_tanh_c3_low": self.rest(GELU_TANH_C3),
            }
        # Both parts that end in _high have so few bits that products with them, or differences, are
        # exact.
        ln2_high, c1_high = mpf(355) / 512, mpf(817) / 512
        return {
            "ln2_high": ln2_high,
            "ln2_rest": LN_2 - ln2_high,
            "gelu_tanh_c1_high": c1_high,
            "gelu_tanh_c1_rest": GELU_TANH_C1 - c1_high,
            "gelu_tanh_c3_low": self.rest(GELU_TANH_C3),
        }


def normal_tail(t: mpf) -> mpf:
    """W(t) = Phi(-t) e^(t^2/2)."""
    return mpmath.erfc(t / mpmath.sqrt(mpf(2))) * mpmath.exp(t * t / 2) / 2


def polynomial(function: Callable[[mpf], mpf], low: mpf, high: mpf, degree: int) -> list[mpf]:
    """Ascending coefficients of the function's Chebyshev expansion over [low, high], near the best
    polynomial there."""
    center, half = (low + high) / 2, (high - low) / 2
    nodes = 4 * degree
    angles = [mp.pi * (2 * k + 1) / (2 * nodes) for k in range(nodes)]
    values = [function(center + half * mpmath.cos(angle)) for angle in angles]
    total = [mpf(0)] * (degree + 1)
    # T_0 = 1 and T_1 = z in powers of the variable, z = (variable - center)/half; T_(j+1) = 2 z T_j
    # - T_(j-1).
    previous, current = [mpf(0)], [mpf(1)]
    for j in range(degree + 1):
        weight = mpf(1 if j == 0 else 2) / nodes
        c = weight * mpmath.fsum(v * mpmath.cos(j * a) for v, a in zip(values, angles, strict=True))
        for i, power in enumerate(current):
            total[i] += c * power
        factor = 1 if j == 0 else 2
        after = [-center / half * factor * power for power in current] + [mpf(0)]
        for i, power in enumerate(current):
            after[i + 1] += factor * power / half
        for i, power in enumerate(previous):
            after[i] -= power
        previous, current = current, after
    return total


def expansion(function: Callable[[mpf], mpf], low: mpf, high: mpf, bound: mpf) -> list[mpf]:
    """Ascending coefficients of the shortest Chebyshev expansion with a relative error below
    bound."""
    points = [low + (high - low) * i / 100 for i in range(101)]
    values = [function(x) for x in points]
    for degree in range(1, 40):
        coefficients: list[mpf] = polynomial(function, low, high, degree)
        descending = coefficients[::-1]
        if all(abs(mpmath.polyval(descending, x) - v) < bound * abs(v) for x, v in zip(points, values, strict=True)):
            return coefficients
    raise AssertionError("no polynomial of a reasonable degree is as good as that")


def exp_rest(r: mpf) -> mpf:
    """(e^r - 1 - r) / r^2."""
    return mpmath.hyp1f1(1, 3, r) / 2


def tanh_rest(square: mpf) -> mpf:
    """(tanh x / x - 1) / x^2 as a function of x^2."""
    with mpmath.extradps(60):
        x = mpmath.sqrt(square)
        return (mpmath.tanh(x) / x - 1) / square


def atanh_rest(square: mpf) -> mpf:
    """(atanh x / x - 1) / x^2 as a function of x^2. With x = e/(2+e), log(1+e) is 2 atanh x."""
    with mpmath.extradps(60):
        x = mpmath.sqrt(square)
        return (mpmath.atanh(x) / x - 1) / square


def rests(
    a: Arithmetic,
    function: Callable[[str, str, str, str], str],
    evaluate: Callable[[str, list[mpf]], str],
    names: Sequence[str] = ("exp_rest", "tanh_rest"),
) -> str:
    """What is left of e^r, of tanh and of atanh after their first terms, each a polynomial."""
    # r^2 <= 0.1202 times the rest is below an eighth of e^r, and the rest of tanh below an eighth
    # of tanh. So is the rest of atanh.
    bound, reach = 8 * mpf(2) ** -a.bits, mpmath.log(2) / 2 * mpf("1.001")
    exponential = expansion(exp_rest, -reach, reach, bound) if "exp_rest" in names else []
    texts = {
        "exp_rest": ("(e^r - 1 - r) / r^2 for |r| <= ln2/2, to 2^-{} of e^r.", "r", exponential),
        "tanh_rest": (
            "(tanh x / x - 1) / x^2 as a function of x^2, for |x| <= tanh_near, to 2^-{} of tanh x.",
            "square",
            expansion(tanh_rest, mpf("1e-9"), a.tanh_near**2, bound),
        ),
        "atanh_rest": (
            "(atanh x / x - 1) / x^2 as a function of x^2, for |x| <= 1/3, to 2^-{} of atanh x.",
            "square",
            expansion(atanh_rest, mpf("1e-9"), mpf(1) / 9, bound),
        ),
    }
    chosen = [(name, *texts[name]) for name in names]
    return "".join(function(name, says.format(a.bits), x, evaluate(x, terms)) for name, says, x, terms in chosen)
