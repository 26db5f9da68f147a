"""Experts that are spread over processes give what one process gives (expert_parallel.py)."""

from __future__ import annotations

import epigrad.parallel
import pytest
import torch
from epigrad import errors
from epigrad.parallel.chunks import MOST_CHUNKS, most_chunks

from tests.pytorch.expert_parallel import CHECKS, OF_FOUR
from tests.support.devices import on_devices
from tests.support.features import feature
from tests.support.processes import run_together


def run_checks(names: list[str], world: int, device: str = "cpu") -> None:
    if device == "cuda" and torch.cuda.device_count() < world:
        pytest.skip(f"fewer than {world} GPUs")
    # One launch for all checks: starting processes takes longer than they do.
    for output in run_together("tests.pytorch.expert_parallel", device, *names, world=world):
        assert [line for line in output.splitlines() if line.startswith("ok ")] == [f"ok {name}" for name in names]


@on_devices
@feature("EP", rows={op: op for op in ("experts", "experts + LowRank")})
def test_two_processes_compute_as_one(device: str) -> None:
    run_checks([*CHECKS], 2, device)


@on_devices
def test_three_processes_compute_as_one(device: str) -> None:
    run_checks(["equality", "bits", "groups", "disagreement"], 3, device)


@on_devices
@feature("EP x FSDP2", rows={"experts": "experts"})
def test_beside_other_parallelism(device: str) -> None:
    run_checks([*OF_FOUR], 4, device)


def test_a_process_that_ends_ends_the_others() -> None:
    first, second = run_together("tests.pytorch.expert_parallel", "cpu", "death")
    assert "ok death" in first and "ok" not in second


def test_without_processes() -> None:
    tokens, index, weight = torch.ones(2, 4), torch.zeros(2, 1, dtype=torch.int64), torch.ones(1, 4, 4)
    with pytest.raises(errors.BackendUnavailableError, match=r"call torch\.distributed\.init_process_group\(\)"):
        epigrad.parallel.experts(tokens, index, torch.ones(2, 1), weight, None, weight, None, "relu")


@pytest.mark.parametrize(
    ("ranks", "each", "hidden", "pays"),
    [
        (2, 8, 768, False),  # Qwen3-30B-A3B in one host
        (8, 8, 768, False),
        (16, 8, 768, True),  # in two, over a network
        (128, 8, 768, True),
        (8, 8, 256, True),  # small experts
        (16, 2, 14336, False),  # large ones, as Mixtral's
    ],
)
def test_one_chunk_unless_rows_travel_longer_than_they_are_multiplied(
    ranks: int, each: int, hidden: int, pays: bool
) -> None:
    cuda, columns = torch.device("cuda"), 3 * hidden
    assert most_chunks(ranks, each, columns, torch.bfloat16, cuda) == (MOST_CHUNKS if pays else 1)
    assert most_chunks(ranks, each, columns, torch.float32, cuda) == 1
    assert most_chunks(ranks, each, columns, torch.bfloat16, torch.device("cpu")) == 1
