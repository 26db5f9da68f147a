"""Writes the tables of docs/performance.md about operations on a GPU, from its record.

    python -m tests.tools.gpu_tables

tests/docs/test_pages.py fails where a table is stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.tools import readme

PAGE = readme.PERFORMANCE
OPERATIONS = "<!-- python -m tests.tools.gpu_tables writes this table of operations -->\n"
SLOWER = "<!-- python -m tests.tools.gpu_tables writes this table of slower rows -->\n"
# A ratio from here on is no noise.
SLOW = 1.02

Row = dict[str, Any]


class Line(NamedTuple):
    """A line of the first table.

    Attributes:
        name: what the table calls it.
        op: the operation in the record.
        size: the size in the record.
        direction: the direction in the record.
        dtypes: whose rows count.
    """

    name: str
    op: str
    size: str
    direction: str
    dtypes: tuple[str, ...] = ("bfloat16",)


WIDE, HIDDEN, LAYER, BOTH = "[8192, 28672]", "[8192, 14336]", "8192x4096x14336", "forward + backward"
LINES = (
    Line("gated activations, [8192, 28672], forward", "gated", WIDE, "forward"),
    Line("the same, backward", "gated", WIDE, "backward"),
    Line("`lerp`, [8192, 14336], forward and backward", "lerp", HIDDEN, BOTH),
    Line("`linear` + activation, 8192x4096x14336, forward", "linear", LAYER, "forward"),
    Line("the same, backward", "linear", LAYER, "backward"),
    Line("GELU MLP of that size, forward and backward", "mlp", LAYER, BOTH),
    Line("gated MLP of that size, forward and backward", "gated_mlp", LAYER, BOTH),
    Line("`gated_linear`, SwiGLU of that size, forward and backward", "gated_linear", LAYER, BOTH),
    Line("small layer, 32x64x64, float32 and bfloat16", "linear", "32x64x64", BOTH, ("float32", "bfloat16")),
)


def _range(rows: list[Row], ratio: str) -> str:
    values = [f"{row[ratio]:.2f}" for row in rows if ratio in row]
    low, high = min(values, key=float), max(values, key=float)
    return low if low == high else f"{low}-{high}"


def _kept(rows: list[Row]) -> str:
    """MiB that each library keeps for backward, where the record has that."""
    kept = {
        tuple(round(row["memory"][name]["kept"] / 2**20) for name in ("epigrad", "eager", "compile"))
        for row in rows
        if row.get("memory", {}).get("compile")
    }
    if not kept:
        return ""
    ((ours, eager, compiled),) = kept  # all kinds keep as much
    return f"{ours} MiB; eager {eager}, compile {compiled}"


def operations_table(rows: list[Row]) -> str:
    """A line for each operation: from the least ratio of its kinds to the largest."""
    text = "| operation | to eager | to compile | kept for backward |\n|---|---|---|---|\n"
    for line in LINES:
        found = [
            row
            for row in rows
            if (row["op"], row["size"], row["direction"]) == (line.op, line.size, line.direction)
            and row["dtype"] in line.dtypes
        ]
        large = "" if line.size == "32x64x64" else _kept(found)
        text += f"| {line.name} | {_range(found, 'ratio')} | {_range(found, 'ratio_to_compile')} | {large} |\n"
    return text


def slower_table(rows: list[Row]) -> str:
    """A line for each operation, direction and dtype that is slower than another library."""

    def slow(ratio: str) -> Callable[[Row], bool]:
        return lambda row: row.get(ratio, 0) > SLOW

    lines: dict[tuple[str, ...], list[list[Row]]] = {}
    for column, ratio in enumerate(("ratio", "ratio_to_compile")):
        for row in filter(slow(ratio), rows):
            name = f"{row['op'].replace('_', ' ')} {row['kind']}, {row['size']}"
            lines.setdefault((name, row["direction"]), [[], []])[column].append(row)
    text = "| operation | direction | to eager | to compile |\n|---|---|---|---|\n"
    for label, columns in lines.items():
        cells = [
            ", ".join(f"{row['dtype']} {row[ratio]:.2f}" for row in column)
            for column, ratio in zip(columns, ("ratio", "ratio_to_compile"), strict=True)
        ]
        text += f"| {' | '.join((*label, *cells))} |\n"
    return text


def filled(page: str) -> str:
    """The page with both tables anew."""
    rows = readme.rows(readme.H200)
    page = readme.filled(page, operations_table(rows), OPERATIONS)
    return readme.filled(page, slower_table(rows), SLOWER)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
