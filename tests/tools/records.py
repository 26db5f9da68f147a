"""Records of docs/results, and what the tables that pages make of them share.

    python -m tests.tools.records FILE...

packs records: a row's values without its names, which stand once above all rows, and a timing's
likewise; and pictures, into a few colours. `load` gives the rows with names again. What a benchmark
has just written is read as well.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

RESULTS = ROOT / "docs" / "results"

Row = dict[str, Any]
Record = dict[str, Any]

COLOURS = 24
ABSENT = "-"  # the value of a column that a row does not have


def load(path: Path) -> Record:
    """A record, with the names of its rows' values."""
    record: Record = json.loads(path.read_text())
    columns = record.pop("columns", None)
    if columns is not None:
        record["rows"] = [_named(row, columns) for row in record["rows"]]
    return record


def _named(values: list[Any], columns: list[list[str]]) -> Row:
    row: Row = {}
    for (name, *parts), value in zip(columns, values, strict=True):
        if value != ABSENT:
            row[name] = dict(zip(parts, value, strict=True)) if parts else value
    return row


# --- tables ---------------------------------------------------------------------------------------

Source = tuple[str, str]
"""A machine, and the record that it measured."""


def rows(source: Source) -> list[Row]:
    """The rows of a record."""
    found: list[Row] = load(ROOT / source[1])["rows"]
    return found


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return line(heads) + "|---" * len(heads) + "|\n" + "".join(map(line, lines))


def line(cells: Iterable[str]) -> str:
    """A line of one."""
    return f"| {' | '.join(cells)} |\n"


def geometric_mean(numbers: Collection[float]) -> float:
    """Of ratios."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def ratios(rows: Iterable[Row], field: str = "ratio") -> list[float]:
    """The ratios of those rows that have one."""
    return [row[field] for row in rows if field in row]


def of_memory(rows: Iterable[Row], what: str, other: str) -> list[float]:
    """What is kept, or the peak, over eager's or compiled's, where it was recorded."""
    found = (row.get("memory", {}) for row in rows)
    return [memory["epigrad"][what] / memory[other][what] for memory in found if memory.get(other)]


def span(ratios: Collection[float], between: str = " to ") -> str:
    """The least and the largest of some ratios, rounded; one number if they are the same."""
    return between.join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))) if ratios else ""


def numbered(sources: Iterable[tuple[str, str | Path]]) -> str:
    """Links to records by their machines; several of a machine have numbers behind its name."""
    paths: dict[str, list[str | Path]] = {}
    for machine, path in sources:
        paths.setdefault(machine, []).append(path)
    return ", ".join(
        f"[{machine}]({own[0]})"
        if len(own) == 1
        else f"{machine} {', '.join(f'[{number}]({path})' for number, path in enumerate(own, 1))}"
        for machine, own in paths.items()
    )


# --- files ----------------------------------------------------------------------------------------


def packed(record: Record) -> str:
    """A record's text: a line for each row."""
    rows = record.get("rows")
    if not rows or not all(isinstance(row, dict) for row in rows):
        return _written(record, [])
    columns: dict[str, list[str]] = {}
    for row in rows:
        for name, value in row.items():
            parts = [name, *value] if isinstance(value, dict) and value else [name]
            # of several shapes, a column's values keep their own names
            columns[name] = parts if columns.get(name, parts) == parts else [name]
    lines = [
        json.dumps([_unnamed(row.get(name, ABSENT), parts) for name, parts in columns.items()], separators=(",", ":"))
        for row in rows
    ]
    return _written({**record, "columns": list(columns.values())}, lines)


def _unnamed(value: Any, column: list[str]) -> Any:
    return list(value.values()) if len(column) > 1 and isinstance(value, dict) else value


def _written(record: Record, rows: list[str]) -> str:
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items() if not rows or name != "rows"]
    if rows:
        parts.append('"rows": [\n' + ",\n".join(rows) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def pack_picture(path: Path) -> None:
    """Write a picture again with its most frequent colours, and what its file says."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    with Image.open(path) as picture:
        said = PngInfo()
        if description := picture.info.get("Description"):
            said.add_text("Description", description)
        plain = picture.convert("RGB")
    frequent = sorted(plain.getcolors(1 << 24), reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for _, colour in frequent for value in colour] + [255] * 3 * (256 - len(frequent)))
    plain.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True, pnginfo=said)


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        if path.suffix == ".png":
            pack_picture(path)
            continue
        record = load(path)
        path.write_text(packed(record))
        assert load(path) == record, path


if __name__ == "__main__":
    main()
