"""The table docs/features.md: what of PyTorch each function has been run under, and on which devices.

A tick is a test that passed: `feature` marks it, its parameters `op` and `device` say the rest. `python
tests/features.py` runs the marked tests and writes the table; devices that are not there keep what it says of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "features.md"

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
    "CUDA graph",
)

DEVICES = {"cpu": "On the CPU", "cuda": "On NVIDIA GPUs"}

Cell = tuple[str, str, str]
"""A feature, a function, a device."""

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


def write(cells: Iterable[Cell]) -> str:
    """The page of these ticks."""
    from operators import NAMES

    ticks = set(cells)
    parts = [_HEAD]
    for device, title in DEVICES.items():
        columns = [name for name in FEATURES if any((name, op, device) in ticks for op in NAMES)]
        lines = ["|".join(("", "function", *columns, "")), "|".join(("", "---", *[":-:"] * len(columns), ""))]
        for op in NAMES:
            marks = ["✓" if (name, op, device) in ticks else "" for name in columns]
            lines.append("|".join(("", f"`{op}`", *marks, "")))
        if columns:
            parts.append(f"## {title}\n\n" + "\n".join(re.sub(r"\|", " | ", line).strip() for line in lines) + "\n")
    return "\n".join(parts)


def main() -> None:
    from devices import DEVICES as PRESENT

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "features.json")
        environment = dict(os.environ, EPIGRAD_FEATURES=str(path))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "feature", *sys.argv[1:], str(Path(__file__).parent)]
        subprocess.run(command, env=environment, check=True)
        passed = {(name, op, device) for name, op, device in json.loads(path.read_text())}
    old = read(PAGE.read_text()) if PAGE.exists() else set()
    PAGE.write_text(write(passed | {cell for cell in old if cell[2] not in PRESENT}))


if __name__ == "__main__":
    main()
