"""Writes docs/features.md: what of PyTorch each function has been run under, and on which devices.

    python -m tests.tools.features [PYTEST'S ARGUMENT]...

runs the tests that have the mark `feature`; a tick is one that passed. What is not here comes from
records that other machines wrote (tests/support/features.py) and that lie in docs/results. On a
machine with an accelerator this keeps such a record, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.adapters import ADAPTED
from tests.support.features import FEATURES, Cell, Record, load, store
from tests.support.operators import NAMES
from tests.support.repository import ROOT
from tests.tools.records import RESULTS, line

PAGE = ROOT / "docs" / "features.md"
ROWS = (*NAMES, *ADAPTED.values())

DEVICES = {"cpu": "On the CPU", "cuda": "On NVIDIA GPUs"}

_HEAD = """# What works with what

A tick is a test that passes. It runs the function and its gradients under this part of PyTorch, and compares them with
the plain function or with PyTorch's own operations. CI runs the tests of the CPU on every change. Those of GPUs have
records.

`LowRank` rows have adapters that learn beside frozen weights. Parallel training runs on two processes, gloo on CPUs and
NCCL on GPUs. FSDP2 and DDP are tested with and without activation checkpointing, FSDP2 with `reshard_after_forward` on
and off. TP splits the hidden features of experts. EP [spreads experts](howto/expert-parallel.md), also under autocast,
activation checkpointing and DDP. FSDP2 x TP and EP x FSDP2 run on four processes, the latter in mixed precision too.
"float32 gradients" are those of 16-bit operands under FSDP2 and DDP, which are
[summed in float32](pytorch.md#gradients-in-float32).

`python -m tests.tools.features` writes this page, and `tests/docs/test_features.py` fails where it is stale.
"""


def records() -> dict[str, Record]:
    """The records of docs/results that have ticks of GPUs, by their files' names. Ticks of a CPU do
    not count, since CI has one."""
    found = {path.name: load(path) for path in sorted(RESULTS.glob("*-features-*.json"))}
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
            op = row[0].replace("`", "")
            cells |= {(name, op, device) for name, cell in zip(rows[0][1:], row[1:], strict=True) if cell}
    return cells


def write(cells: Iterable[Cell], runs: dict[str, Record]) -> str:
    """The page of these ticks, and of the records that those of other machines come from."""
    ticks = set(cells)
    parts = [_HEAD]
    for device, title in DEVICES.items():
        columns = [name for name in FEATURES if any((name, op, device) in ticks for op in ROWS)]
        shown = [op for op in ROWS if any((name, op, device) in ticks for name in columns)]
        if not columns:
            continue
        rows: list[Sequence[str]] = [["function", *columns], ["---", *[":-:"] * len(columns)]]
        for op in shown:
            name_of_row = " + ".join(f"`{part}`" for part in op.split(" + "))
            rows.append([name_of_row, *("✓" if (name, op, device) in ticks else "" for name in columns)])
        lines = [re.sub(" +", " ", line(row).rstrip()) for row in rows]
        sources = [
            f"- [{run.machine}](results/{name}), {run.date}: PyTorch {run.versions['torch']}, "
            f"Python {run.versions['python']}"
            for name, run in runs.items()
            if device != "cpu" and any(cell[2] == device for cell in run.cells)
        ]
        parts.append(
            "\n".join([f"## {title}", "", *(["Recorded on:", "", *sources, ""] if sources else []), *lines, ""])
        )
    return "\n".join(parts)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "features.json")
        environment = dict(os.environ, EPIGRAD_FEATURES=str(path))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "feature", *sys.argv[1:], "tests"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        here = load(path)
    if _of(here):
        name = f"{here.date}-features-{re.sub('[^a-z0-9]+', '-', here.machine.lower())}.json"
        store(RESULTS / name, here)
    cpu = {cell for cell in here.cells if cell[2] == "cpu"}
    PAGE.write_text(write(cpu | recorded(), records()))


if __name__ == "__main__":
    main()
