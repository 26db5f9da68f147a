"""Parallel training on two processes gives the gradients of one: DDP, FSDP2 and tensor parallel
(distributed.py)."""

from __future__ import annotations

import pytest
import torch

from tests.support.devices import on_devices
from tests.support.features import feature
from tests.support.operators import NAMES
from tests.support.processes import run_together

WORLD = 2


@feature("DDP", "FSDP2", "TP")
@on_devices
def test_two_processes_train_as_one(device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < WORLD:
        pytest.skip("one GPU: two processes need two")
    # One launch for all checks: starting two processes takes longer than they do.
    for output in run_together("tests.pytorch.distributed", device, world=WORLD):
        for check in ("DDP", "FSDP2", "TP"):
            assert [line for line in output.splitlines() if line.startswith(f"ok {check} ")] == [
                f"ok {check} {op}" for op in NAMES
            ]
