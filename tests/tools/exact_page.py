"""What docs/kinds.md says of the records of tests/tools/exact.py: the worst errors with their
arguments, and what was walked whole."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.tools import records

RECORDS = sorted(records.RESULTS.glob("*-exact-*.json"))
HALVES = ("bfloat16", "float16")


def argument(dtype: str, at: float) -> str:
    """The shortest decimal that is this number in its dtype; bfloat16 is read as float32."""
    kinds = {"float64": np.float64, "float16": np.float16}
    return str(kinds.get(dtype, np.float32)(at))


def worst(row: dict[str, Any], what: str) -> str:
    """An error and its argument."""
    if not row["worst"][what]:
        return ""
    ulps, at = row["worst"][what][0]
    where = argument(row["dtype"], at)
    if math.isinf(ulps):  # the next largest is of interest too
        return f"overflow at {where}; {worst(row | {'worst': {what: row['worst'][what][1:]}}, what)}"
    return f"{ulps:.3f} at {where}" if ulps else "0"


def extent(row: dict[str, Any]) -> str:
    """How many numbers were walked."""
    if row["dtype"] == "float64":
        return f"{row['points'] / 1e6:.3g} million"
    share = row["points"] / row["of"]
    return "all" if share == 1 else f"the first {share:.0%}"


def halves(rows: Iterable[dict[str, Any]]) -> str:
    """A sentence for each half type."""
    text = ""
    for dtype in HALVES:
        whole = [row for row in rows if row["dtype"] == dtype and row["points"] == row["of"]]
        if whole:
            value, slope = (max(whole, key=lambda row: row["worst"][what][0]) for what in ("value", "slope"))
            text += (
                f"- **{dtype}**: all {whole[0]['of']} numbers of {len(whole)} activations. The worst value is "
                f"{value['activation']},\n  {worst(value, 'value')}; the worst slope is "
                f"{slope['activation']}, {worst(slope, 'slope')}.\n"
            )
    return text


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each activation and wider dtype that was walked."""
    lines = [
        [f"`{row['activation']}`", row["dtype"], extent(row), worst(row, "value"), worst(row, "slope")]
        for row in rows
        if row["dtype"] not in HALVES and row["points"]
    ]
    return records.table(["activation", "dtype", "numbers", "value", "slope"], lines)


def checked(rows: list[dict[str, Any]]) -> str:
    """How near mpmath was, in one sentence."""
    checks = [row["checked_by_mpmath"] for row in rows if "checked_by_mpmath" in row]
    if not checks:
        return ""
    points, largest = checks[0]["points"], max(check["largest_difference"] for check in checks)
    return (
        f"\nmpmath measured {points} points of each float64 row again. The largest difference of an error is "
        f"{largest:.1e} ULP.\n"
    )


def cost(rows: list[dict[str, Any]]) -> str:
    """What walking all of float32 took, where the record has it."""
    whole = [row for row in rows if row["dtype"] == "float32" and row["points"] == row["of"] and "seconds" in row]
    if not whole:
        return ""
    slowest = max(whole, key=lambda row: row["seconds"] * row["threads"])
    minutes, threads = slowest["seconds"] / 60, slowest["threads"]
    return (
        f"\nWalking all of float32 took at most {minutes:.1f} minutes an activation, on {threads} "
        f"thread{'s' if threads > 1 else ''}.\n"
    )


def largest(dtype: str) -> float:
    """The largest error of a value or a slope in the records, in ULP."""
    rows = [row for path in RECORDS for row in records.load(path)["rows"] if row["dtype"] == dtype]
    return max(ulps for row in rows for places in row["worst"].values() for ulps, _ in places)


def worst_cases() -> str:
    """A part for each record."""
    parts = []
    for path in RECORDS:
        record = records.load(path)
        rows = record["rows"]
        engine = record["backend"].split(",")[0]
        where = record["device"] if record["device"] in engine else f"{record['device']}, {engine}"
        title = f"[{where}, {record['date']}](results/{path.name}):\n\n"
        parts.append(f"{title}{halves(rows)}\n{table(rows)}{cost(rows)}{checked(rows)}")
    return "\n".join(parts)
