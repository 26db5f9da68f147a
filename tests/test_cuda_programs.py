"""Calls of one geometry again and again: the third is run by a program that Go does not see (cbridge/program.c)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import epigrad
import pytest
import torch
from devices import needs
from epigrad import errors, forward, library
from layouts import assert_same_bits
from torch import Tensor

pytestmark = needs("cuda")

TIMES = 6


def layer(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = torch.randn(rows, 24, device="cuda"), torch.randn(40, 24, device="cuda")
    return x, weight, torch.randn(40, device="cuda")


def test_every_time_the_same() -> None:
    x, weight, bias = layer(5)
    want, out = torch.empty(5, 40, device="cuda"), torch.empty(5, 40, device="cuda")
    forward.linear(x, weight, bias, "gelu", out=want)  # into memory of the caller's: always Go's to run
    for time in range(TIMES):
        assert_same_bits(forward.linear(x, weight, bias, "gelu"), want, f"call {time}")
        other = x + time
        got = epigrad.linear(other, weight, bias, "gelu")
        assert_same_bits(got, forward.linear(other, weight, bias, "gelu", out=out), f"call {time} on other memory")


def test_more_geometries_than_are_remembered_from_several_threads() -> None:
    weight, bias = layer(1)[1:]
    whole = torch.randn(700, 24, device="cuda")
    want = {rows: forward.lerp(whole[:rows], whole[:rows] * 2, 0.25) for rows in range(1, 701)}

    def run(seed: int) -> None:
        for rows in range(1 + seed, 701, 3):
            for _ in range(TIMES):
                got = epigrad.lerp(whole[:rows], whole[:rows] * 2, 0.25)
            assert_same_bits(got, want[rows], f"{rows} rows")
            epigrad.linear(whole[:rows], weight, bias, "silu")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, seed % 3) for seed in range(6)]:
            done.result()


def test_a_tuning_block_is_seen(tmp_path: Path) -> None:
    x, weight = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    exact = (x.double() @ weight.double().T).float()
    for _ in range(TIMES):
        before = epigrad.linear(x, weight)
    cache = tmp_path / "choices.json"
    with epigrad.tuning(cache):
        for _ in range(TIMES):
            inside = epigrad.linear(x, weight)
    assert cache.exists(), "the first call inside is Go's, which times candidates"
    torch.testing.assert_close(inside, exact, rtol=1e-4, atol=1e-3)  # of 512 terms, another algorithm's
    assert_same_bits(epigrad.linear(x, weight), before, "after the block")


def test_what_is_wrong_is_refused_every_time() -> None:
    bytes_ = torch.zeros(4 * 65, dtype=torch.uint8, device="cuda")
    good = bytes_[:256].view(torch.float32)
    for _ in range(TIMES):
        epigrad.lerp(good, good, 0.5)
    with pytest.raises(errors.DTypeError):
        epigrad.lerp(good, good.double(), 0.5)
    with pytest.raises(errors.InvalidProblemError):
        epigrad.lerp(good, good[:3], 0.5)


def test_a_number_is_no_part_of_the_geometry() -> None:
    start, end = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    for time in range(TIMES):
        assert epigrad.lerp(start, end, time / 8).tolist() == [time / 8] * 8


def test_outputs_are_on_the_tensors_device_and_of_their_dtype() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = torch.randn(3, 4, device="cuda", dtype=dtype)
        for _ in range(TIMES):
            out = library.core().launch("activation", "relu", (x,), (True,), None)[0]
            assert out is not None
            assert (out.dtype, out.device, out.shape, out.stride()) == (dtype, x.device, x.shape, x.stride())
