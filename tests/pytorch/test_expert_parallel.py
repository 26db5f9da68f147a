"""Experts that are spread over processes give what one process gives (expert_parallel.py)."""

from __future__ import annotations

import epigrad.parallel
import pytest
import torch
from epigrad import errors

from tests.pytorch.expert_parallel import CHECKS, OF_FOUR
from tests.support.devices import on_devices
from tests.support.processes import run_together


def run_checks(names: list[str], world: int, device: str = "cpu") -> None:
    if device == "cuda" and torch.cuda.device_count() < world:
        pytest.skip(f"fewer than {world} GPUs")
    # One launch for all checks: starting processes takes longer than they do.
    for output in run_together("tests.pytorch.expert_parallel", device, *names, world=world):
        assert [line for line in output.splitlines() if line.startswith("ok ")] == [f"ok {name}" for name in names]


@on_devices
def test_two_processes_compute_as_one(device: str) -> None:
    run_checks([*CHECKS], 2, device)


@on_devices
def test_three_processes_compute_as_one(device: str) -> None:
    run_checks(["equality", "bits", "groups", "disagreement"], 3, device)


@on_devices
def test_beside_other_parallelism(device: str) -> None:
    run_checks([*OF_FOUR], 4, device)


def test_a_process_that_ends_ends_the_others() -> None:
    first, second = run_together("tests.pytorch.expert_parallel", "cpu", "death")
    assert "ok death" in first and "ok" not in second


def test_without_processes() -> None:
    tokens, index, weight = torch.ones(2, 4), torch.zeros(2, 1, dtype=torch.int64), torch.ones(1, 4, 4)
    with pytest.raises(errors.BackendUnavailableError, match=r"call torch\.distributed\.init_process_group\(\)"):
        epigrad.parallel.experts(tokens, index, torch.ones(2, 1), weight, None, weight, None, "relu")
