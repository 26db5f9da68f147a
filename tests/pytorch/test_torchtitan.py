"""torchtitan with epigrad's override, on two processes (torchtitan_parallel.py).

torchtitan pins packages that other tests have in newer versions, so `make` installs it into a
folder of its own, with what it imports and no more.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_together

FOLDER = Path(sys.prefix) / "torchtitan"
CHECKS = ("names", "alone", "spmd_types", "partial_dtensor")


def test_the_override_trains_as_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(FOLDER)])))
    for output in run_together("tests.pytorch.torchtitan_parallel"):
        assert [line for line in output.splitlines() if line.startswith("ok ")] == [f"ok {check}" for check in CHECKS]
