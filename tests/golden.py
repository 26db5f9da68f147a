"""Makes the numbers that kernels/portable rests on, from definitions, in 60-digit arithmetic (mpmath).

    python tests/golden.py

writes kernels/portable/normal_table.go (the polynomials of the normal tail) and
kernels/portable/testdata/activation_golden.json (values and slopes of every activation). Both are committed; running it
again changes neither.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import mpmath
import oracle
from mpmath import mp, mpf

DIGITS = 60
mp.dps = DIGITS

PORTABLE = Path(__file__).resolve().parent.parent / "kernels" / "portable"
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


# The terms whose sum is the derivative, where differences of values would lose the tails. tanh' is sech^2.
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


# Ordinary arguments, both sides of each slope's zero, and the tails down to and into denormals.
MAGNITUDES = [
    *(5e-324, 1e-310, 1e-300, 1e-17, 1e-9, 0.001, 0.00271, 0.0625, 0.3, 0.5, 0.7517915, 0.7519, 1.0, 1.2784645, 1.2785),
    *(2.0, 3.5, 5.9, 8.0, 12.7, 18.3, 20.9, 21.4, 21.7, 26.0, 30.0, 36.5, 37.6, 38.2, 38.5, 100.0, 354.0, 371.5, 700.0),
    *(709.5, 730.25, 744.25, 750.0, 1e4, 1e16, 1e300),
]

# W(t) = Phi(-t) e^(t^2/2): (t + CENTRE) W as a polynomial in (t - CENTRE)/(t + CENTRE) on [FROM, SPLIT], and t W as one
# in 1/t^2 on [SPLIT, LAST].
CENTRE, FROM, SPLIT, LAST = mpf(2), mpf("0.5"), mpf(5), mpf(40)
MIDDLE_DEGREE, FAR_DEGREE = 19, 15


def normal_tail(t: mpf) -> mpf:
    return mpmath.erfc(t / mpmath.sqrt(mpf(2))) * mpmath.exp(t * t / 2) / 2


def middle(y: mpf) -> mpf:
    t = CENTRE * (1 + y) / (1 - y)
    return normal_tail(t) * (t + CENTRE)


def far(z: mpf) -> mpf:
    t = 1 / mpmath.sqrt(z)
    return normal_tail(t) * t


def polynomial(function: Callable[[mpf], mpf], low: mpf, high: mpf, degree: int) -> list[mpf]:
    """Ascending coefficients of the function's Chebyshev expansion over [low, high], near the best polynomial there."""
    center, half = (low + high) / 2, (high - low) / 2
    nodes = 4 * degree
    angles = [mp.pi * (2 * k + 1) / (2 * nodes) for k in range(nodes)]
    values = [function(center + half * mpmath.cos(angle)) for angle in angles]
    total = [mpf(0)] * (degree + 1)
    # T_0 = 1 and T_1 = z in powers of the variable, z = (variable - center)/half; T_(j+1) = 2 z T_j - T_(j-1).
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


@mpmath.workdps(DIGITS)  # whatever another module has set since
def normal_table() -> str:
    """The text of normal_table.go."""

    def table(name: str, coefficients: list[mpf]) -> str:
        rows = "".join(f"\t{float(c)!r},\n" for c in coefficients)
        low = float(coefficients[0] - float(coefficients[0]))
        return f"var {name} = [{len(coefficients)}]float64{{\n{rows}}}\n\nconst {name}Low = {low!r}\n"

    low, high = (FROM - CENTRE) / (FROM + CENTRE), (SPLIT - CENTRE) / (SPLIT + CENTRE)
    return (
        "// Code generated by tests/golden.py; DO NOT EDIT.\n\npackage portable\n\n"
        "// Coefficients of normalTail's polynomials in ascending powers: Chebyshev expansions, computed with\n"
        f"// {mp.dps} digits. A Low is the rest of the first coefficient, which dominates.\n\n"
        f"// normalTailMiddle is W(t) (t+c) in powers of (t-c)/(t+c), c = {int(CENTRE)}, "
        f"for {float(FROM)} <= t <= {int(SPLIT)}.\n"
        + table("normalTailMiddle", polynomial(middle, low, high, MIDDLE_DEGREE))
        + f"\n// normalTailFar is W(t) t in powers of 1/t^2, for {int(SPLIT)} <= t <= {int(LAST)}.\n"
        + table("normalTailFar", polynomial(far, 1 / LAST**2, 1 / SPLIT**2, FAR_DEGREE))
    )


def slope(name: str, x: mpf) -> tuple[mpf, mpf]:
    """The slope, and what its rounding is relative to: itself, or the largest of its terms where they cancel."""
    if name not in SLOPE_TERMS:
        slope = oracle.difference(name, x)
        return slope, abs(slope)
    terms = SLOPE_TERMS[name](x)
    total = mpmath.fsum(terms)
    return total, max(abs(part) for part in (total, *terms))


@mpmath.workdps(DIGITS)
def rows() -> list[list[str | float]]:
    """The golden rows: name, x, act(x), act'(x), what rounding act'(x) is relative to; "inf" beyond float64's range."""
    result: list[list[str | float]] = []
    for name in ACTIVATIONS:
        for magnitude in MAGNITUDES:
            for x in (magnitude, -magnitude):
                numbers = [x, double(value(name, mpf(x))), *map(double, slope(name, mpf(x)))]
                assert not any(map(math.isnan, numbers)), f"{name} at {x}: {numbers}"
                # JSON has no infinity: what float64 cannot hold is a string.
                result.append([name, *(number if math.isfinite(number) else str(number) for number in numbers)])
    return result


if __name__ == "__main__":
    (PORTABLE / "normal_table.go").write_text(normal_table())
    lines = ",\n".join(json.dumps(row) for row in rows())
    (PORTABLE / "testdata" / "activation_golden.json").write_text(f"[\n{lines}\n]\n")
