"""Tables on the terminal: rich's where it is installed, else plain columns."""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["print_table"]

_WIDE = 10_000  # characters, where nothing limits them

# Cells that say at a glance how things are, where colours are shown.
_STYLES = {"yes": "green", "no": "red", "ok": "green", "met": "green", "short": "yellow", "failed": "red"}


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a header; without rows, nothing. Only the width of a terminal, or COLUMNS,
    folds what is too long for it."""
    if not rows:
        return
    cells = [[str(cell) for cell in row] for row in rows]
    try:
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _print_plain(title, header, cells)
        return
    table = Table(title=title, title_justify="left", title_style="bold", highlight=False)
    for name in header:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    console = Console(markup=False)
    if not (console.is_terminal or console.is_jupyter or os.environ.get("COLUMNS")):
        console.width = max(console.width, Measurement.get(console, console.options.update(width=_WIDE), table).maximum)
    console.print(table)


def _print_plain(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    lines = [list(header), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    print(title)
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()
