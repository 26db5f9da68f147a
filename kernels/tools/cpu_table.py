"""Makes the polynomials that kernels/cpu rests on, from definitions, in 60-digit arithmetic
(mpmath).

    python kernels/tools/cpu_table.py

writes kernels/cpu/activation_table.h, which is committed; running it again does not change it.
tests/accuracy/test_ulp.py measures the finished formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf
from polynomials import INV_SQRT_2PI, LN_2, Arithmetic, expansion, polynomial, rests

TABLE = Path(__file__).resolve().parents[1] / "cpu" / "activation_table.h"

# kernels/cpu/arithmetic.h says what each is for.
ARITHMETICS = (
    # Half's float formulas end before 12, and single has PIECES instead of a normal tail. Beyond 21
    # a slope is nothing beside a float, whatever gradient it is multiplied by.
    Arithmetic("half", np.float32, 20, 12, mpf(3)),
    Arithmetic("single", np.float32, 28, 12, mpf(0)),
    Arithmetic("wide", np.float64, 31, 21, mpf(3)),
    # 1 - 2e/(1+e) feels the rounding of its quotient most where tanh is just above 1/2: the
    # polynomial goes beyond.
    Arithmetic("exact", np.float64, 57, 39, mpf(3), tanh_near=mpf("0.9")),
)

# Single has t Phi(-t) and its slope in pieces between 0 and LAST, which are shorter where t is
# larger: piece i is where (t^2/2 + BEND t) times a factor rounds to i.
PIECES, DEGREE, LAST, BEND = 16, 8, mpf("6.5"), mpf("1.5")
# The centres that are tried for a piece, and what lies between two of them.
CENTRES, STEP = 1000, mpf(2) ** -20


def product(t: mpf) -> mpf:
    """t Phi(-t)."""
    return t * mpmath.erfc(t / mpmath.sqrt(mpf(2))) / 2


def slope(t: mpf) -> mpf:
    """Phi(-t) - t phi(t), the slope of t Phi(-t)."""
    return mpmath.erfc(t / mpmath.sqrt(mpf(2))) / 2 - t * INV_SQRT_2PI * mpmath.exp(-t * t / 2)


def around(function: Callable[[mpf], mpf], centre: mpf, low: mpf, high: mpf) -> list[mpf]:
    """The function's polynomial between low and high, of t less the centre."""
    return polynomial(lambda u: function(centre + u), low - centre, high - centre, DEGREE)


def moved(powers: list[mpf], by: mpf) -> list[mpf]:
    """A polynomial of x as one of x - by."""
    powers = list(powers)
    for first in range(len(powers) - 1):
        for i in reversed(range(first, len(powers) - 1)):
            powers[i] += by * powers[i + 1]
    return powers


def piece(a: Arithmetic, low: mpf, high: mpf) -> tuple[mpf, list[mpf], list[mpf]]:
    """A centre, and the polynomials of product and slope around it. Their first two numbers are
    nearly floats: rounding the others costs little (Gal, 1986). The first piece's centre is 0, so
    that results of small numbers are exact."""
    if not low:
        return low, *([f(low), *around(f, low, low, high)[1:]] for f in (product, slope))
    middle = mpmath.floor((low + high) / 2 / STEP) * STEP
    near = [around(f, middle, low, high) for f in (product, slope)]

    def left_out(by: mpf) -> mpf:
        ends = [mpmath.polyval(powers[::-1], by, derivative=True) for powers in near]
        return max(max(abs(a.rest(y)), abs(a.rest(dy)) * (high - low) / 2) / abs(y) for y, dy in ends)

    by = min((i * STEP for i in range(CENTRES)), key=left_out)
    return middle + by, *(moved(powers, by) for powers in near)


def pieces(a: Arithmetic) -> str:
    """What single_normal of kernels/cpu/arithmetic.h reads."""
    # Less than PIECES - 1/2, since a tie is rounded to an even number.
    factor = (PIECES - mpf("0.51")) / (LAST**2 / 2 + BEND * LAST)

    def start(i: mpf) -> mpf:
        return mpmath.sqrt(BEND**2 + 2 * i / factor) - BEND if i > 0 else mpf(0)

    def row(numbers: Sequence[mpf]) -> str:
        return f"{{{', '.join(map(a.literal, numbers))}}}"

    half = mpf("0.5")
    centres, *tables = zip(*(piece(a, start(i - half), start(i + half)) for i in range(PIECES)), strict=True)
    text = f"enum {{ single_normal_pieces = {PIECES}, single_normal_degree = {DEGREE} }};\n"
    for name, value in {"last": LAST, "bend": factor * BEND, "square": factor / 2}.items():
        text += f"#define single_normal_{name} {a.literal(value)}\n"
    text += "// The pieces' centres.\n"
    text += f"static const float single_normal_centres[single_normal_pieces] = {row(centres)};\n"
    for function, table in zip((product, slope), tables, strict=True):
        rows = ",\n".join(f"    {row(powers)}" for powers in zip(*table, strict=True))
        text += f"// {function.__doc__} A row has the factors of one power.\n"
        name = f"single_normal_{function.__name__}_powers[single_normal_degree + 1][single_normal_pieces]"
        text += f"static const float {name} = {{\n{rows}}};\n"
    return text


def section(a: Arithmetic) -> str:
    """The definitions of one arithmetic."""
    c, bound, registers = a.centre, mpf(2) ** -a.bits, "f" if a.real is np.float32 else "d"
    constants = {"normal_centre": c}
    if a.name == "single":
        constants = a.constants() | a.two_part_constants() | {"ln2": LN_2}
        del constants["normal_centre"]
    elif a.name == "exact":
        constants = a.constants() | a.two_part_constants()
    elif a.name == "wide":
        constants |= {"log2_e": 1 / LN_2, "ln2": LN_2, "inv_sqrt_2pi": INV_SQRT_2PI, "normal_last": mpf(a.last)}
    text = f"// {a.name}\n" + "".join(f"#define {a.name}_{n} {a.literal(v)}\n" for n, v in constants.items())

    def chain(x: str, coefficients: list[mpf]) -> str:
        text = f"{registers}_set({a.literal(coefficients[-1])})"
        for coefficient in reversed(coefficients[:-1]):
            text = f"{registers}_fma({x}, {text}, {registers}_set({a.literal(coefficient)}))"
        return text

    def expression(x: str, coefficients: list[mpf]) -> str:
        """Even and odd powers apart, which halves the waiting."""
        if len(coefficients) < 5:
            return chain(x, coefficients)
        odd, even = (chain(f"{x} * {x}", coefficients[first::2]) for first in (1, 0))
        return f"{registers}_fma({x}, {odd}, {even})"

    def function(name: str, comment: str, x: str, body: str) -> str:
        return f"// {comment}\n#define {a.name}_{name}({x}) {body}\n"

    if a.name == "single":
        return text + pieces(a) + rests(a, function, expression)
    tail = expansion(a.normal, mpf(-1), (a.last - c) / (a.last + c), bound)
    says = f"W(t) (t+c) for y = (t-c)/(t+c) and 0 <= t <= {a.last}, to 2^-{a.bits}"
    if a.name in ("half", "wide"):
        text += function("normal_tail", f"{says}.", "y", expression("y", tail))
        return text + rests(a, function, expression, ("exp_rest", "atanh_rest"))
    # The first coefficient dominates: it is added last, with the part of it that the literal leaves
    # out.
    first, low = a.literal(tail[0]), a.literal(a.rest(tail[0]))
    body = f"d_add(d_set({first}), d_fma(y, {expression('y', tail[1:])}, d_set({low})))"
    text += function("normal_tail", f"{says}.", "y", body)
    return text + rests(a, function, expression, ("exp_rest", "tanh_rest", "atanh_rest"))


def text() -> str:
    """The text of activation_table.h."""
    return (
        "// Code generated by kernels/tools/cpu_table.py; DO NOT EDIT.\n//\n"
        "// The constants and polynomials that activations are computed with. arithmetic.h includes it.\n//\n"
        f"// Polynomials are Chebyshev expansions, computed with {mp.dps} digits. W(t) = Phi(-t) e^(t^2/2).\n"
        "// A _low is what the constant before it leaves out.\n"
        "#pragma once\n\n// clang-format off\n" + "\n".join(map(section, ARITHMETICS))
    )


if __name__ == "__main__":
    TABLE.write_text(text())
