"""Runs a table of measurements: the time, progress, failures, the file, the table, the picture.

A `Subject` says what its rows are and how they are told. Those of `bench` are here, those of the
repository's records in its folder ``benchmarks``.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epigrad.cli.picture import draw_bars
from epigrad.cli.report import Progress, Report, Row, failure, told_name
from epigrad.cli.table import print_table

Column = tuple[str, Callable[[Any], str]]
Bar = tuple[str, float, float | None]


@dataclass(frozen=True, slots=True)
class Task:
    """A measurement.

    Attributes:
        label: what ``--rows`` searches and progress shows.
        fields: what each of its rows begins with.
        measure: what each has besides, from the seconds that it may take; or that of the one row.
    """

    label: str
    fields: Row
    measure: Callable[[float], Row | Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A table.

    Attributes:
        slug: begins the name of its file.
        device: the name of what computes.
        unit: what the numbers of the file are.
        title: stands above the printed table.
        tasks: in the order in which they are measured.
        names: the fields that name a row, with their headings.
        columns: other fields that are printed where a row has them: a heading, and how a value is
            told.
        seconds: the most that a task may take.
        budget: the seconds after which no other task begins, which tasks share; infinite, if each
            has its own.
        facts: further facts about the machine.
        bars: a label, epigrad's ratio to PyTorch eager and that of `torch.compile`, for the
            picture.
    """

    slug: str
    device: str
    unit: str
    title: str
    tasks: Sequence[Task]
    names: Mapping[str, str]
    columns: Mapping[str, Column]
    seconds: float
    budget: float = math.inf
    facts: Row = field(default_factory=dict)
    bars: Callable[[Sequence[Row]], list[Bar]] = lambda rows: []

    def told(self, task: Task, row: Row) -> str:
        """A row on the line of progress."""
        if reason := row.get("error") or row.get("skipped"):
            return str(reason)
        own = [told_name(row[name]) for name in self.names if name in row and name not in task.fields]
        cells = (f"{heading} {tell(row[name])}" for name, (heading, tell) in self.columns.items() if name in row)
        return " ".join([*own, ", ".join(cells)])

    def print(self, rows: Sequence[Row]) -> None:
        print_rows(self.title, self.names, self.columns, rows)

    def draw(self, path: pathlib.Path, report: Report) -> bool:
        """Whether there was something to draw."""
        bars, versions = self.bars(report.rows), report.contents()["versions"]
        if bars:
            title = f"epigrad {versions['epigrad']} on {report.device}, PyTorch {versions['torch']}"
            draw_bars(path, title, bars)
        return bool(bars)


def run(subject: Subject, args: argparse.Namespace, command: str) -> int:
    """Measure, print the table and write the requested files; 1 if anything failed."""
    tasks = [task for task in subject.tasks if args.rows is None or args.rows.search(task.label)]
    if not tasks:
        args.error(f"--rows {args.rows.pattern!r}: matches no row on {subject.slug}")
    report = Report(subject.device, command, subject.unit, args.json, subject.slug, {**subject.facts})
    most = math.inf if args.seconds else subject.seconds
    budget = args.seconds or subject.budget
    begin = time.perf_counter()
    with Progress(len(tasks), args.json) as progress:
        for place, task in enumerate(tasks):
            progress.begin(task.label)
            left = budget - (time.perf_counter() - begin)
            if math.isinf(subject.budget):
                rows = _measured(task, min(most, budget / len(tasks)))
            elif left > 0:
                rows = _measured(task, min(most, left / (len(tasks) - place)))
            else:
                rows = [{**task.fields, "skipped": f"{budget:g} s were over"}]
            report.add(*rows)
            progress.end(f"{task.label}: {'; '.join(subject.told(task, row) for row in rows)}")
    report.finish(lambda: _print(subject, report))
    if args.plot is not None and not subject.draw(path := report.place(args.plot, "png"), report):
        print(f"{path}: no row to draw", file=sys.stderr)
    return int(any("error" in row for row in report.rows))


def _measured(task: Task, seconds: float) -> list[Row]:
    """A task's rows; one that says what failed, if it did: the others are measured all the same."""
    try:
        found = task.measure(seconds)
        return [{**task.fields, **row} for row in ([found] if isinstance(found, dict) else found)]
    except Exception as error:
        return [{**task.fields, "error": failure(error)}]


def print_rows(title: str, names: Mapping[str, str], columns: Mapping[str, Column], rows: Sequence[Row]) -> None:
    """Print those columns that any row has."""
    shown = {name: column for name, column in columns.items() if any(row.get(name) for row in rows)}
    lines = [
        [
            *(told_name(row.get(name, "-")) for name in names),
            *(tell(row[name]) if name in row else "-" for name, (_, tell) in shown.items()),
            "failed" if "error" in row else "skipped" if "skipped" in row else "",
        ]
        for row in rows
    ]
    header = [*names.values(), *(heading for heading, _ in shown.values()), "note"]
    if lines and not any(line[-1] for line in lines):
        header, lines = header[:-1], [line[:-1] for line in lines]
    print_table(title, header, lines)


def _print(subject: Subject, report: Report) -> None:
    subject.print(report.rows)
    told: dict[str, str] = {}  # each reason once, with the first row that has it
    for row in report.rows:
        for what in ("error", "compile_error", "skipped"):
            if what in row:
                told.setdefault(
                    f"{what}: {row[what]}", " ".join(told_name(row[name]) for name in subject.names if name in row)
                )
    for reason, row_name in told.items():
        print(f"{reason} ({row_name})")
