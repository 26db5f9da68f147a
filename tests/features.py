"""The table docs/features.md: what of PyTorch each function has been run under, and on which devices.

A tick is a test that passed: `feature` marks it, its parameters `op` and `device` say the rest. `python
tests/features.py` runs the marked tests and writes the table. What is not here comes from records that other machines
wrote, where EPIGRAD_FEATURES names a file to write, and that lie in docs/results.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "features.md"
RECORDS = PAGE.parent / "results"

FEATURES = (
    "eager",
    "compile",
    "export",
    "AOTInductor",
    "vmap",
    "func.grad",
    "jvp",
    "autocast",
    "checkpoint",
    "DDP",
    "FSDP2",
    "TP",
    "jit.trace",
    "ONNX",
    "fx",
    "CUDA graph",
)

DEVICES = {"cpu": "On the CPU", "cuda": "On NVIDIA GPUs"}

Cell = tuple[str, str, str]
"""A feature, a function, a device."""


@dataclass(frozen=True)
class Record:
    """What one run of the tests on a machine with an accelerator has shown.

    Attributes:
        date: the day, as 2026-11-21.
        machine: the accelerators.
        versions: of Python and PyTorch.
        cells: what passed.
    """

    date: str
    machine: str
    versions: dict[str, str]
    cells: tuple[Cell, ...]


_HEAD = """# What works with what

A tick is a test in `tests` that runs the function, its gradients too where there are any, under this part of PyTorch
and compares it with the plain function or with PyTorch's own operations. `python tests/features.py` writes this page
from the tests that pass, and `tests/test_features.py` fails where it is stale. Parallel training runs on two processes:
gloo on CPUs, NCCL on GPUs.
"""


def feature(*names: str) -> pytest.MarkDecorator:
    """Marks a test that runs its `op`, or every one, under these features."""
    assert set(names) <= set(FEATURES), names
    return pytest.mark.feature(names)


def cells_of(item: pytest.Function) -> list[Cell]:
    """What a marked test shows."""
    from operators import NAMES

    mark = item.get_closest_marker("feature")
    assert mark is not None
    params = item.callspec.params if hasattr(item, "callspec") else {}
    ops = [params["op"]] if "op" in params else NAMES
    return [(name, op, params.get("device", "cpu")) for name in mark.args[0] for op in ops]


def save(path: Path, passed: Iterable[Cell], failed: Iterable[Cell]) -> None:
    """Writes the record of a run; a cell has a tick if all of its tests that ran have passed."""
    import torch

    gpus = torch.cuda.device_count()
    record = Record(
        date=datetime.date.today().isoformat(),
        machine=f"{gpus} x {torch.cuda.get_device_name()}" if gpus else "CPU",
        versions={"python": sys.version.split()[0], "torch": torch.__version__},
        cells=tuple(sorted(set(passed) - set(failed))),
    )
    _store(path, record)


def _store(path: Path, record: Record) -> None:
    text = json.dumps({**asdict(record), "cells": []}, indent=1)
    cells = ",\n".join(f"  {json.dumps(cell)}" for cell in record.cells)
    path.write_text(text.replace('"cells": []', f'"cells": [\n{cells}\n ]') + "\n")


def load(path: Path) -> Record:
    """A record as `save` has written it."""
    text = json.loads(path.read_text())
    return Record(**{**text, "cells": tuple((name, op, device) for name, op, device in text["cells"])})


def records() -> dict[str, Record]:
    """The records of docs/results, by their files' names; of the CPU they say nothing, since CI has one."""
    found = {path.name: load(path) for path in sorted(RECORDS.glob("*-features-*.json"))}
    return {name: record for name, record in found.items() if _of(record)}


def _of(record: Record) -> set[Cell]:
    return {cell for cell in record.cells if cell[2] != "cpu"}


def recorded() -> set[Cell]:
    """All cells of the records."""
    return set().union(*map(_of, records().values()))


def read(page: str) -> set[Cell]:
    """The ticks of a page."""
    cells: set[Cell] = set()
    for device, title in DEVICES.items():
        _, found, rest = page.partition(f"## {title}\n")
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in rest.partition("\n## ")[0].splitlines()
            if line.startswith("|")
        ]
        for row in rows[2:] if found else []:
            op = row[0].strip("`")
            cells |= {(name, op, device) for name, cell in zip(rows[0][1:], row[1:], strict=True) if cell}
    return cells


def write(cells: Iterable[Cell], runs: dict[str, Record]) -> str:
    """The page of these ticks, and of the records that those of other machines come from."""
    from operators import NAMES

    ticks = set(cells)
    parts = [_HEAD]
    for device, title in DEVICES.items():
        columns = [name for name in FEATURES if any((name, op, device) in ticks for op in NAMES)]
        if not columns:
            continue
        rows: list[Sequence[str]] = [["function", *columns], ["---", *[":-:"] * len(columns)]]
        rows += [[f"`{op}`", *("✓" if (name, op, device) in ticks else "" for name in columns)] for op in NAMES]
        lines = [re.sub(" +", " ", f"| {' | '.join(row)} |") for row in rows]
        sources = [
            f"- [{run.machine}](results/{name}), {run.date}: PyTorch {run.versions['torch']}, "
            f"Python {run.versions['python']}"
            for name, run in runs.items()
            if any(cell[2] == device for cell in run.cells)
        ]
        parts.append(
            "\n".join([f"## {title}", "", *(["Recorded on:", "", *sources, ""] if sources else []), *lines, ""])
        )
    return "\n".join(parts)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "features.json")
        environment = dict(os.environ, EPIGRAD_FEATURES=str(path))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "feature", *sys.argv[1:], str(Path(__file__).parent)]
        subprocess.run(command, env=environment, check=True)
        here = load(path)
    if _of(here):
        name = f"{here.date}-features-{re.sub('[^a-z0-9]+', '-', here.machine.lower())}.json"
        _store(RECORDS / name, here)
    cpu = {cell for cell in here.cells if cell[2] == "cpu"}
    PAGE.write_text(write(cpu | recorded(), records()))


if __name__ == "__main__":
    main()
