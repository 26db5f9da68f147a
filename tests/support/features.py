"""Which test runs which function under which part of PyTorch, and the record of what passed.

A test has the mark `feature`; its parameters `op` and `device` say the rest. Where EPIGRAD_FEATURES
names a file, a run of pytest writes its record there (conftest.py). tests/tools/features.py makes
docs/features.md of such records.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

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
    "FSDP2 x TP",
    "EP",
    "EP x FSDP2",
    "float32 gradients",
    "jit.trace",
    "ONNX",
    "fx",
    "CUDA graph",
)

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


def feature(*names: str, rows: Mapping[str, str] | None = None) -> pytest.MarkDecorator:
    """Marks a test that runs its `op`, or every one, under these features.

    Args:
        rows: what docs/features.md calls each function that the test runs; None has the functions
            of tests/support/operators.py.
    """
    assert set(names) <= set(FEATURES), names
    return pytest.mark.feature(names, rows)


def cells_of(item: pytest.Function) -> list[Cell]:
    """What a marked test shows."""
    from tests.support.operators import NAMES

    params = item.callspec.params if hasattr(item, "callspec") else {}
    cells: list[Cell] = []
    for mark in item.iter_markers("feature"):
        names, rows = mark.args
        rows = rows or {op: op for op in NAMES}
        shown = [rows[params["op"]]] if "op" in params else rows.values()
        cells += [(name, row, params.get("device", "cpu")) for name in names for row in shown]
    return cells


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
    store(path, record)


def store(path: Path, record: Record) -> None:
    """Writes a record."""
    text = json.dumps({**asdict(record), "cells": []}, indent=1)
    cells = ",\n".join(f"  {json.dumps(cell)}" for cell in record.cells)
    path.write_text(text.replace('"cells": []', f'"cells": [\n{cells}\n ]') + "\n")


def load(path: Path) -> Record:
    """A record as `save` has written it."""
    text = json.loads(path.read_text())
    return Record(**{**text, "cells": tuple((name, op, device) for name, op, device in text["cells"])})
