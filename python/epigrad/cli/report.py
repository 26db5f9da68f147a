"""What the tables of `bench` share: progress, and a JSON file that grows row by row."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from epigrad._core import loader, tables
from epigrad.cli.timing import Timing

Row = dict[str, Any]

PICTURES = (".png", ".svg", ".pdf")

STDOUT = pathlib.Path("-")
"""A ``--json`` without a path."""


def seconds_told(seconds: float) -> str:
    unit, scale = ("us", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 0.9995 else ("s", 1)
    return f"{seconds * scale:.3g} {unit}"


def told(timing: Row) -> str:
    """A median time and half the distance of the quartiles, as a part of it."""
    return f"{seconds_told(timing['median'])} +-{Timing(**timing).spread:.0%}"


def told_name(value: Any) -> str:
    """A field that names a row: a size with crosses."""
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def failure(error: Exception) -> str:
    """An error's class and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def command(program: str, args: argparse.Namespace) -> str:
    """The command line that measures the same."""
    parts = [program]
    for name, value in vars(args).items():
        option = f"--{name.replace('_', '-')}"
        if name in ("command", "json", "plot", "subjects") or callable(value) or value in (None, False, ()):
            parts += ["--no-compile"] if name == "compile" and value is False else []
        elif value is True:
            parts.append(option)
        elif isinstance(value, re.Pattern):
            parts.append(f"{option} {value.pattern!r}")
        else:
            parts.append(f"{option} {','.join(value) if isinstance(value, tuple) else format(value, '')}")
    return " ".join(parts)


def written(contents: dict[str, Any]) -> str:
    """A file's text: a line for each row, and numbers with six digits."""
    head = _rounded({name: value for name, value in contents.items() if name != "rows"})
    rows = ",\n  ".join(json.dumps(_rounded(row)) for row in contents["rows"])
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


class Progress:
    """rich's progress bar on a terminal where it is installed, else one line for each row, and one
    for each minute of a row; on stderr where stdout is for JSON.
    """

    LINE_SECONDS = 60.0

    def __init__(self, total: int, json: pathlib.Path | None = None) -> None:
        self.stream = sys.stderr if json == STDOUT else sys.stdout
        self.total = total
        self.done = 0
        self.bar: Any = None
        self.told = 0.0

    def __enter__(self) -> Progress:
        if self.stream.isatty() and importlib.util.find_spec("rich") is not None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.table import Column

            # A long name is cut short, so that the bar is not.
            name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
            columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeElapsedColumn(), name)
            self.bar = Progress(*columns, transient=True, expand=True, console=Console(file=self.stream))
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, text: str) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=text, completed=self.done)
        self.done += 1
        self.told = time.monotonic()

    def describe(self, text: str, part: float) -> None:
        """What the row that has begun does, and which part of it is done, from 0 to 1."""
        if self.bar is not None:
            self.bar.update(self.task, description=text, completed=self.done - 1 + min(part, 1.0))
        elif time.monotonic() >= self.told + self.LINE_SECONDS:
            self.told = time.monotonic()
            print(f"{self.done}/{self.total} {text}", file=self.stream, flush=True)

    def note(self, text: str) -> None:
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)

    def end(self, text: str) -> None:
        if self.bar is None:
            print(f"{self.done}/{self.total} {text}", file=self.stream, flush=True)


@dataclass
class Report:
    """Facts about the machine and rows; written anew after each row, so that a run that is stopped
    keeps its rows.

    Attributes:
        device: the name of what computes.
        command: the command line that gives this table.
        unit: what the numbers are.
        path: a file, or a directory that gets a file named by date and device; None writes nothing,
            and `STDOUT` is for `finish`.
        facts: further facts about the machine.
        slug: begins the file's name, before the device's.
    """

    device: str
    command: str
    unit: str
    path: pathlib.Path | None
    slug: str
    facts: dict[str, Any] = field(default_factory=dict)
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    rows: list[Row] = field(default_factory=list)

    def add(self, *rows: Row) -> None:
        """Keep rows, in the file too."""
        self.rows.extend(rows)
        if self.path is not None and self.path != STDOUT:
            path = self.place(self.path, "json")
            half = path.with_suffix(".part")
            half.write_text(written(self.contents()))
            os.replace(half, path)

    def finish(self, print_tables: Callable[[], None]) -> None:
        """Print the tables and where the file is, or the JSON on stdout."""
        if self.path == STDOUT:
            print(written(self.contents()), end="")
            return
        print_tables()
        if self.path is not None:
            print(f"wrote {self.place(self.path, 'json')}")

    def place(self, path: pathlib.Path, suffix: str) -> pathlib.Path:
        """The path itself, or in a directory a name of date and device."""
        if not path.is_dir():
            return path
        name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|CPU|@.*", "", self.device).lower()).strip("-")
        return path / f"{self.date}-{self.slug}-{name}.{suffix}"

    def contents(self) -> dict[str, Any]:
        return {
            "date": self.date,
            "command": self.command,
            "device": self.device,
            **self.facts,
            "versions": {
                "epigrad": tables.VERSION,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "go": json.loads(loader.control_call(loader.core().control.DoctorFacts))["go_version"],
            },
            "unit": self.unit,
            "rows": self.rows,
        }


def check_paths(args: argparse.Namespace, tables: int = 1) -> None:
    """Refuse before measuring what could not be written afterwards."""
    if args.json == STDOUT and tables > 1:
        args.error("--json writes one object per table: for several want --json DIRECTORY")
    for path in (args.json, args.plot):
        check_path(args, path)
        if path is not None and path != STDOUT and tables > 1 and not path.is_dir():
            args.error(f"{path}: is one file, want a directory for several tables")
    if args.plot is not None and importlib.util.find_spec("matplotlib") is None:
        args.error("--plot needs matplotlib: pip install 'epigrad[bench]'")
    if args.plot is not None and args.plot.suffix not in ("", *PICTURES):
        args.error(f"{args.plot}: want a directory, or a file name that ends in {', '.join(PICTURES)}")


def check_path(args: argparse.Namespace, path: pathlib.Path | None) -> None:
    """Refuse a file that could not be written."""
    if path is None or path == STDOUT:
        return
    if not path.absolute().parent.is_dir():
        args.error(f"{path}: its directory does not exist")
    if not path.suffix and not path.is_dir():
        args.error(f"{path}: want an existing directory, or a file name with a suffix")
