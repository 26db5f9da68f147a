"""torchtitan with epigrad's overrides, on two processes (torchtitan_parallel.py)."""

from __future__ import annotations

import pytest

from tests.support.processes import run_together, torchtitan_path
from tests.support.tiers import nightly

CHECKS = [
    *("names", "alone", "spmd_types", "partial_dtensor"),
    *("names of mixtures", "mixture alone"),
    *(f"mixture {way} {backend}" for way in ("ep", "tp", "FSDP2") for backend in ("spmd_types", "partial_dtensor")),
]


@nightly
def test_the_overrides_train_as_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", torchtitan_path())
    for output in run_together("tests.pytorch.torchtitan_parallel"):
        assert [line for line in output.splitlines() if line.startswith("ok ")] == [f"ok {check}" for check in CHECKS]
