"""A subject with tables or a picture of its own."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epigrad.cli.report import Report, Row
from epigrad.cli.runner import Subject


@dataclass(frozen=True, slots=True)
class Record(Subject):
    """A subject.

    Attributes:
        tables: prints others in place of the table of rows.
        picture: draws another in place of bars, from a record with rows to draw.
    """

    tables: Callable[[Sequence[Row]], None] | None = None
    picture: Callable[[pathlib.Path, Row], None] | None = None

    def print(self, rows: Sequence[Row]) -> None:
        if self.tables is None:
            Subject.print(self, rows)
        else:
            self.tables(rows)

    def draw(self, path: pathlib.Path, report: Report) -> bool:
        if self.picture is None:
            return Subject.draw(self, path, report)
        has_rows = not all("error" in row or "skipped" in row for row in report.rows)
        if has_rows:
            self.picture(path, report.contents())
        return has_rows
