"""The tables of docs/performance.md about operations on a GPU, from its record."""

from __future__ import annotations

from typing import NamedTuple

from tests.tools import readme
from tests.tools.records import Row, ratios, rows, span, table

# A ratio from here on is no noise.
SLOW = 1.02
TO = ("ratio", "ratio_to_compile")


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


def operations_table() -> str:
    """A line for each operation: from the least ratio of its kinds to the largest."""
    lines = []
    for line in LINES:
        found = [
            row
            for row in rows(readme.GPU)
            if (row["op"], row["size"], row["direction"]) == (line.op, line.size, line.direction)
            and row["dtype"] in line.dtypes
        ]
        large = "" if line.size == "32x64x64" else _kept(found)
        lines.append([line.name, *(span(ratios(found, ratio), "-") for ratio in TO), large])
    return table(["operation", "to eager", "to compile", "kept for backward"], lines)


def slower_table() -> str:
    """A line for each operation, direction and dtype that is slower than another library."""
    lines: dict[tuple[str, str], list[list[Row]]] = {}
    for column, ratio in enumerate(TO):
        for row in rows(readme.GPU):
            if row.get(ratio, 0) > SLOW:
                name = f"{row['op'].replace('_', ' ')} {row['kind']}, {row['size']}"
                lines.setdefault((name, row["direction"]), [[], []])[column].append(row)
    cells = []
    for label, columns in lines.items():
        told = [[f"{row['dtype']} {row[ratio]:.2f}" for row in own] for own, ratio in zip(columns, TO, strict=True)]
        cells.append([*label, *map(", ".join, told)])
    return table(["operation", "direction", "to eager", "to compile"], cells)
