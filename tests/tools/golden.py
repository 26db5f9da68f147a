"""Makes the golden numbers of the Go tests: values and slopes of every activation, in 60-digit
arithmetic (mpmath).

    python -m tests.tools.golden

writes kernels/portable/testdata/activation_golden.json, which is committed; running it again does
not change it.
"""

from __future__ import annotations

import json
import math

import mpmath
from mpmath import mpf

from tests.support.definitions import ACTIVATIONS, DIGITS, double, slope, value
from tests.support.repository import ROOT

FILE = ROOT / "kernels" / "portable" / "testdata" / "activation_golden.json"

# Ordinary arguments, both sides of each slope's zero, and the tails down to and into denormals.
MAGNITUDES = [
    *(5e-324, 1e-310, 1e-300, 1e-17, 1e-9, 0.001, 0.00271, 0.0625, 0.3, 0.5, 0.7517915, 0.7519, 1.0, 1.2784645, 1.2785),
    *(2.0, 3.5, 5.9, 8.0, 12.7, 18.3, 20.9, 21.4, 21.7, 26.0, 30.0, 36.5, 37.6, 38.2, 38.5, 100.0, 354.0, 371.5, 700.0),
    *(709.5, 730.25, 744.25, 750.0, 1e4, 1e16, 1e300),
]


@mpmath.workdps(DIGITS)
def rows() -> list[list[str | float]]:
    """The golden rows: name, x, act(x), act'(x), what rounding act'(x) is relative to; "inf" beyond
    float64's range."""
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
    lines = ",\n".join(json.dumps(row) for row in rows())
    FILE.write_text(f"[\n{lines}\n]\n")
