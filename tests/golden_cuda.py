"""Makes the polynomials that kernels/cuda rests on, from definitions, in 60-digit arithmetic (mpmath).

    python tests/golden_cuda.py

writes kernels/cuda/activation_table.cuh, which is committed; running it again does not change it. Each polynomial is a
Chebyshev expansion cut where the rest, relative to the function that it is a part of, is below the bound that stands
beside it. test_cuda_formulas.py measures the finished formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import golden
import mpmath
import numpy as np
from mpmath import mp, mpf

TABLE = Path(__file__).resolve().parent.parent / "kernels" / "cuda" / "activation_table.cuh"
# tanh x = x + x^3 R(x^2) up to here, and 1 - 2e/(1+e) above, where an arithmetic has no bound of its own.
TANH_NEAR = mpf("0.55")


@dataclass(frozen=True)
class Arithmetic:
    """One of the ways in which the kernels compute (kernels/cuda/arithmetic.cuh)."""

    name: str
    real: type[np.float32 | np.float64]
    bits: int
    """The polynomials' error is at most 2^-bits."""
    last: int
    """Where t e^(-t^2/2) is zero after rounding."""
    centre: mpf
    """The c of the normal tail's variable (t-c)/(t+c). Large needs fewer terms, small feels rounding less."""
    tanh_near: mpf = TANH_NEAR

    def round(self, x: mpf) -> np.float32 | np.float64:
        return self.real(mpmath.nstr(x, 30))

    def literal(self, x: mpf) -> str:
        return str(self.round(x)) + ("f" if self.real is np.float32 else "")

    def rest(self, x: mpf) -> mpf:
        """What a literal leaves out."""
        return x - mpf(float(self.round(x)))

    @property
    def exact(self) -> bool:
        """Whether results are good to the last places; then exponents, and what dominates a sum, have two parts."""
        return self.bits > 20

    @property
    def c_type(self) -> str:
        return "float" if self.real is np.float32 else "double"


ARITHMETICS = (
    Arithmetic("Half", np.float32, 16, 15, mpf(3)),
    Arithmetic("Single", np.float32, 26, 15, mpf(2)),
    Arithmetic("Double", np.float64, 57, 39, mpf(3)),
)


def expansion(function: Callable[[mpf], mpf], low: mpf, high: mpf, bound: mpf) -> list[mpf]:
    """Ascending coefficients of the shortest Chebyshev expansion with a relative error below bound."""
    points = [low + (high - low) * i / 100 for i in range(101)]
    values = [function(x) for x in points]
    for degree in range(1, 40):
        coefficients: list[mpf] = golden.polynomial(function, low, high, degree)
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


def rests(
    a: Arithmetic,
    function: Callable[[str, str, str, str], str],
    polynomial: Callable[[str, list[mpf]], str],
    names: Sequence[str] = ("exp_rest", "tanh_rest"),
) -> str:
    """What is left of e^r and of tanh after their first terms, each a polynomial."""
    # r^2 <= 0.1202 times the rest is below an eighth of e^r, and the rest of tanh below an eighth of tanh.
    bound, reach = 8 * mpf(2) ** -a.bits, mpmath.log(2) / 2 * mpf("1.001")
    exponential = expansion(exp_rest, -reach, reach, bound) if "exp_rest" in names else []
    texts = {
        "exp_rest": ("(e^r - 1 - r) / r^2 for |r| <= ln2/2, to 2^-{} of e^r.", "r", exponential),
        "tanh_rest": (
            "(tanh x / x - 1) / x^2 as a function of x^2, for |x| <= tanh_near, to 2^-{} of tanh x.",
            "square",
            expansion(tanh_rest, mpf("1e-9"), a.tanh_near**2, bound),
        ),
    }
    chosen = [(name, *texts[name]) for name in names]
    return "".join(function(name, says.format(a.bits), x, polynomial(x, terms)) for name, says, x, terms in chosen)


def specialisation(a: Arithmetic) -> str:
    """The text of Table<...> for one arithmetic."""
    c, ln2, bound = a.centre, mpmath.log(2), mpf(2) ** -a.bits
    c1 = 2 * golden.SQRT_2_OVER_PI
    c3 = mpf("0.044715") * c1
    constants = {
        "log2_e": 1 / ln2,
        "inv_sqrt_2pi": 1 / mpmath.sqrt(2 * mp.pi),
        "gelu_tanh_c1": c1,
        "gelu_tanh_c3": c3,
        "gelu_tanh_3c3": 3 * c3,
        "normal_centre": c,
        "tanh_near": a.tanh_near,
    }
    if a.real is np.float64:
        constants |= {
            "ln2": ln2,
            "ln2_low": a.rest(ln2),
            "gelu_tanh_c1_low": a.rest(c1),
            "gelu_tanh_c3_low": a.rest(c3),
        }
    elif a.exact:
        # Both parts that end in _high have so few bits that products with them, or differences, are exact.
        ln2_high, c1_high = mpf(355) / 512, mpf(817) / 512
        constants |= {
            "ln2_high": ln2_high,
            "ln2_rest": ln2 - ln2_high,
            "gelu_tanh_c1_high": c1_high,
            "gelu_tanh_c1_rest": c1 - c1_high,
            "gelu_tanh_c3_low": a.rest(c3),
        }
    text = "".join(f"  static constexpr {a.c_type} {n} = {a.literal(v)};\n" for n, v in constants.items())

    def normal(y: mpf) -> mpf:
        t = c * (1 + y) / (1 - y)
        return golden.normal_tail(t) * (t + c)

    def function(name: str, comment: str, variable: str, body: str) -> str:
        head = f"static __device__ __forceinline__ {a.c_type} {name}({a.c_type} {variable})"
        return f"  // {comment}\n  {head} {{\n    return {body};\n  }}\n"

    def horner(variable: str, coefficients: list[mpf]) -> str:
        return f"horner({variable}, {', '.join(map(a.literal, coefficients))})"

    if a.exact:
        tail = expansion(normal, mpf(-1), (a.last - c) / (a.last + c), bound)
    else:
        tail = expansion(lambda r: normal(1 - 2 * c * r), 1 / (a.last + c), 1 / c, bound)
    # The first coefficient dominates: it is added last, with the part of it that the literal leaves out.
    body = f"{a.literal(tail[0])} + fused(y, {horner('y', tail[1:])}, {a.literal(a.rest(tail[0]))})"
    text += function(
        "normal_tail",
        f"W(t) (t+c) for {'y = (t-c)/(t+c)' if a.exact else 'r = 1/(t+c)'} and 0 <= t <= {a.last}, to 2^-{a.bits}.",
        "y" if a.exact else "r",
        body if a.exact else horner("r", tail),
    )
    text += rests(a, function, horner, ("exp_rest", "tanh_rest") if a.exact else ("tanh_rest",))
    return f"template <>\nstruct Table<{a.name}> {{\n{text}}};\n"


@mpmath.workdps(golden.DIGITS)  # whatever another module has set since
def activation_table() -> str:
    """The text of activation_table.cuh."""
    return (
        "// Code generated by tests/golden_cuda.py; DO NOT EDIT.\n//\n"
        "// The constants and polynomials of arithmetic.cuh: Chebyshev expansions, computed with "
        f"{mp.dps} digits. W(t) = Phi(-t) e^(t^2/2).\n"
        "// A _low is what the constant before it leaves out.\n#pragma once\n\n"
        '#include "intrinsics.cuh"\n\n// clang-format off\n'
        "namespace epigrad {\n\nstruct Half;\nstruct Single;\nstruct Double;\n\n"
        "template <class Arithmetic>\nstruct Table;\n\n"
        + "\n".join(map(specialisation, ARITHMETICS))
        + "\n}  // namespace epigrad\n"
    )


if __name__ == "__main__":
    TABLE.write_text(activation_table())
