"""Parallel training on two processes gives the gradients of one: DDP, FSDP2 and tensor parallel
(distributed.py)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from tests.support.devices import on_devices
from tests.support.features import feature
from tests.support.operators import NAMES
from tests.support.repository import ROOT

WORLD = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@feature("DDP", "FSDP2", "TP")
@on_devices
def test_two_processes_train_as_one(device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < WORLD:
        pytest.skip("one GPU: two processes need two")
    port = str(free_port())
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    # One launch for all checks: starting two processes takes longer than they do.
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.pytorch.distributed", str(rank), str(WORLD), port, device],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        for check in ("DDP", "FSDP2", "TP"):
            assert [line for line in output.splitlines() if line.startswith(f"ok {check} ")] == [
                f"ok {check} {op}" for op in NAMES
            ]
