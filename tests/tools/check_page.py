"""The table of docs/promises.md, from the records of tests/tools/check_record.py.

A row is a record: of an engine of the CPU, or of another backend, on one device.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from epigrad._check.modes import MODES

from tests.tools.records import RESULTS, Record, load, table

WANTED = {"cpu": 1_000_000, "webgpu": 100_000, "cuda": 1_000_000}
"""Problems of a record, by its backend."""


def records(folder: Path) -> dict[Path, Record]:
    """Those of a folder."""
    return {path: load(path) for path in sorted(folder.glob("*-check.json"))}


def backend(path: Path) -> str:
    """What a record is of, by its file's name."""
    name = path.name.split("-")[3]
    assert name in WANTED, path
    return name


def engine(record: Record) -> str:
    """The engine of a CPU, or nothing."""
    found = re.match(r"engine (\w+)", record["runs"][0]["backend"])
    return found[1] if found else ""


def in_c(path: Path) -> Record:
    """The record of the program in C with the same engine, by tests/tools/seeds_record.py."""
    name = path.name[len("2026-01-01") :].replace("-check.json", "-seeds.json")
    found = sorted(path.parent.glob(f"*{name}"))
    return load(found[-1]) if found else {}


def where(path: Path, record: Record) -> str:
    """What computed."""
    run = record["runs"][0]
    if backend(path) == "cpu":
        return f"{run['device']}, engine `{engine(record)}`"
    return f"WebGPU: {run['backend'].split(' (')[0]}" if backend(path) == "webgpu" else str(run["device"])


def seeds(record: Record) -> str:
    """The seeds of all runs, as ranges."""
    every = sorted({seed for run in record["runs"] for seed in range(run["first_seed"], run["last_seed"] + 1)})
    ranges = []
    for _, group in itertools.groupby(enumerate(every), lambda place: place[1] - place[0]):
        members = [seed for _, seed in group]
        ranges.append(f"{members[0]} to {members[-1]}" if len(members) > 1 else str(members[0]))
    return ", ".join(ranges)


def counts(record: Record) -> list[int]:
    """Problems of each mode."""
    return [record["problems"].get(mode, {"problems": 0})["problems"] for mode in MODES]


def cells(path: Path, record: Record) -> list[str]:
    """A record's row."""
    failed = sum(mode["failed"] for mode in record["problems"].values())
    link = f"[{where(path, record)}](results/{path.name})"
    program = in_c(path)
    failed += program.get("failed", 0)
    compiled = f"{program['problems']:,}" if program else ""
    numbers = [f"{number:,}" for number in (*counts(record), sum(counts(record)), WANTED[backend(path)])]
    return [link, *numbers, f"{failed:,}" if failed else "none", seeds(record), compiled]


def written(folder: Path = RESULTS) -> str:
    """The table."""
    found = records(folder)
    if not found:
        return "No runs are recorded yet.\n"
    head = ["where", *MODES, "problems", "wanted", "failed", "seeds", "in C"]
    text = table(head, [cells(path, record) for path, record in found.items()])
    missing = [name for name in WANTED if name not in {backend(path) for path in found}]
    return text + "".join(f"\nNo run of `--backend {name}` is recorded.\n" for name in missing)
