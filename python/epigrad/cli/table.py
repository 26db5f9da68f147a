"""Tables on the terminal: rich's where it is installed, else plain columns."""

from __future__ import annotations

import os
from collections.abc import Sequence

_WIDE = 10_000  # characters, where nothing limits them
_GAP = 2  # characters between columns

# Cells that say at a glance how things are, where colours are shown.
_STYLES = {"yes": "green", "no": "red", "ok": "green", "met": "green", "short": "yellow", "failed": "red"}


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a header; without rows, nothing. Only the width of a terminal, or COLUMNS,
    folds what is too long for it, between words where the longest words have room."""
    if not rows:
        return
    cells = [[str(cell) for cell in row] for row in rows]
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _print_plain(title, header, cells)
        return
    look = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(highlight=False, **look)
    console = Console(markup=False)
    if not (console.is_terminal or console.is_jupyter or os.environ.get("COLUMNS")):
        console.width = _WIDE
    columns = [list(column) for column in zip(header, *cells, strict=True)]
    for name, width in zip(header, _widths(columns, console.width - _GAP * (len(header) - 1)), strict=True):
        table.add_column(name, overflow="fold", width=width)
    for row in cells:
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    console.print(Text(title, "bold"))
    console.print(table)
    console.print()


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """The columns' widths: the longest word's, and of what is left an even share, or what is
    needed if that is less. Where the words have no room, the widest are cut."""
    widths = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    missing = [max(map(len, column)) - width for column, width in zip(columns, widths, strict=True)]
    left = room - sum(widths)
    for done, place in enumerate(sorted(range(len(widths)), key=missing.__getitem__)):
        more = max(0, min(missing[place], left // (len(widths) - done)))
        widths[place] += more
        left -= more
    return widths


def _print_plain(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    lines = [list(header), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    print(title)
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()
