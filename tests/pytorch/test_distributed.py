"""Parallel training on several processes gives the gradients of one: DDP, FSDP2 and tensor parallel
(distributed.py)."""

from __future__ import annotations

import pytest
import torch
from epigrad._core import tables

from tests.support.adapters import ADAPTED
from tests.support.devices import on_devices
from tests.support.features import feature
from tests.support.operators import NAMES
from tests.support.processes import run_together

WORLD = 2
OPS = {op: op for op in NAMES} | {row: row for row in ADAPTED.values()}
EXACT = {op: op for op in NAMES if tables.OPS[op].multiplies} | {
    row: row for row in (ADAPTED["linear"], ADAPTED["experts"])
}


def passed(output: str, check: str) -> list[str]:
    """The functions of which a process says that they pass."""
    start = f"ok {check}: "
    return [line.removeprefix(start) for line in output.splitlines() if line.startswith(start)]


@feature("DDP", "FSDP2", "TP", rows=OPS)
@feature("float32 gradients", rows=EXACT)
@on_devices
def test_two_processes_train_as_one(device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < WORLD:
        pytest.skip("one GPU: two processes need two")
    # One launch for all checks: starting two processes takes longer than they do.
    for output in run_together("tests.pytorch.distributed", device, world=WORLD):
        for check in ("DDP", "FSDP2", "TP"):
            assert passed(output, check) == list(OPS)
        assert passed(output, "float32 gradients") == list(EXACT)


@feature("FSDP2 x TP", rows=OPS)
@on_devices
def test_four_processes_train_as_one(device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < 2 * WORLD:
        pytest.skip("four processes need four GPUs")
    if torch.__version__ < "2.12":
        pytest.skip("shards of two halves need PyTorch 2.12")
    for output in run_together("tests.pytorch.distributed", device, "FSDP2 x TP", world=2 * WORLD):
        assert passed(output, "FSDP2 x TP") == list(OPS)
