"""Calls of one geometry again and again: the third is run by a program that Go does not see (cbridge/program.c)."""

from __future__ import annotations

import importlib
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
ALONE = TIMES - 2  # the first call of a geometry asks what there is, the second asks for its program


def runs_alone() -> int:
    """How many calls have been run without Go."""
    library.core()
    return int(importlib.import_module("epigrad._native").runs_alone())


def layer(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = torch.randn(rows, 24, device="cuda"), torch.randn(40, 24, device="cuda")
    return x, weight, torch.randn(40, device="cuda")


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    library.core().control.ClearPlanCache()


def test_the_third_call_is_run_alone_and_every_one_has_the_same_bits() -> None:
    x, weight, bias = layer(5)
    want, out = torch.empty(5, 40, device="cuda"), torch.empty(5, 40, device="cuda")
    before = runs_alone()
    for _ in range(TIMES):
        forward.linear(x, weight, bias, "gelu", out=want)
    assert runs_alone() == before, "memory of the caller's is always Go's to check"
    for time in range(TIMES):
        assert_same_bits(forward.linear(x, weight, bias, "gelu"), want, f"call {time}")
    assert runs_alone() - before == ALONE
    for time in range(TIMES):
        other = x + time
        got = forward.linear(other, weight, bias, "gelu")
        assert_same_bits(got, forward.linear(other, weight, bias, "gelu", out=out), f"call {time} on other memory")
    assert runs_alone() - before == ALONE + TIMES


def test_layouts_and_offsets() -> None:
    whole = torch.randn(64, 65, device="cuda")
    for x in (whole.T, whole[:, 1:], whole[1:, ::2], whole[3:4].expand(64, 65)):
        want = torch.empty_strided(x.shape, (x.shape[1], 1), device="cuda")
        forward.lerp(x, x * 2, 0.25, out=want)
        before = runs_alone()
        for time in range(TIMES):
            assert_same_bits(forward.lerp(x, x * 2, 0.25), want, f"strides {x.stride()}, call {time}")
        assert runs_alone() - before >= ALONE


def test_gradients_and_inference_mode() -> None:
    x, weight, bias = (t.requires_grad_() for t in layer(7))
    grad = torch.randn(7, 40, device="cuda")
    first, before = None, runs_alone()
    for time in range(TIMES):
        found = torch.autograd.grad(epigrad.linear(x, weight, bias, "gelu"), (x, weight, bias), grad)
        first = found if first is None else first
        for index, (one, other) in enumerate(zip(found, first, strict=True)):
            assert_same_bits(one, other, f"call {time}, gradient {index}")
    assert runs_alone() - before == 2 * ALONE
    with torch.inference_mode():
        before = runs_alone()
        for _ in range(TIMES):
            out = epigrad.linear(x, weight, bias, "gelu")
        assert runs_alone() - before == ALONE and not out.requires_grad


def test_more_geometries_than_are_remembered_from_several_threads() -> None:
    weight, bias = layer(1)[1:]
    whole = torch.randn(700, 24, device="cuda")
    mixed = {rows: forward.lerp(whole[:rows], whole[:rows] * 2, 0.25) for rows in range(1, 701)}
    layers = {rows: forward.linear(whole[:rows], weight, bias, "silu") for rows in range(1, 701)}
    before = runs_alone()

    def run(seed: int) -> None:
        for rows in range(1 + seed, 701, 3):
            for _ in range(TIMES):
                got = epigrad.lerp(whole[:rows], whole[:rows] * 2, 0.25)
                out = epigrad.linear(whole[:rows], weight, bias, "silu")
            assert_same_bits(got, mixed[rows], f"lerp of {rows} rows")
            assert_same_bits(out, layers[rows], f"linear of {rows} rows")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, seed % 3) for seed in range(6)]:
            done.result()
    assert runs_alone() - before > 700


def test_a_tuning_block_is_seen(tmp_path: Path) -> None:
    x, weight = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    exact = (x.double() @ weight.double().T).float()
    for _ in range(TIMES):
        before = epigrad.linear(x, weight)
    cache, alone = tmp_path / "choices.json", runs_alone()
    with epigrad.tuning(cache):
        for _ in range(TIMES):
            inside = epigrad.linear(x, weight)
        assert TIMES - 2 <= runs_alone() - alone < TIMES, "the first call inside is Go's, which times candidates"
    assert cache.exists()
    torch.testing.assert_close(inside, exact, rtol=1e-4, atol=1e-3)  # of 512 terms, another algorithm's
    alone = runs_alone()
    assert_same_bits(epigrad.linear(x, weight), before, "after the block")
    assert runs_alone() == alone


def test_a_cache_that_is_cleared_gives_its_kernels_back() -> None:
    x = torch.randn(9, device="cuda")
    for _ in range(TIMES):
        epigrad.lerp(x, x, 0.5)
    before = runs_alone()
    library.core().control.ClearPlanCache()
    epigrad.lerp(x, x, 0.5)
    assert runs_alone() == before
    epigrad.lerp(x, x, 0.5)
    assert runs_alone() == before + 1


def test_a_graph_captures_them() -> None:
    x, weight, bias = layer(6)
    for _ in range(TIMES):
        want = forward.linear(x, weight, bias, "relu")
    graph, before = torch.cuda.CUDAGraph(), runs_alone()
    with torch.cuda.graph(graph):
        out = forward.linear(x, weight, bias, "relu")
    assert runs_alone() - before == 1
    out.fill_(0)
    graph.replay()
    assert_same_bits(out, want, "replayed")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_nothing_is_allocated_on_the_current_device_for_another() -> None:
    x = torch.randn(1 << 20, device="cuda:1")
    epigrad.lerp(x, x, 0.5)
    with torch.cuda.device(0):
        torch.cuda.synchronize(0)
        torch.cuda.reset_peak_memory_stats(0)
        before = torch.cuda.memory_stats(0)["allocation.all.allocated"]
        for _ in range(TIMES):
            assert epigrad.lerp(x, x, 0.5).device == x.device
        assert torch.cuda.memory_stats(0)["allocation.all.allocated"] == before


def test_what_is_wrong_is_refused_every_time() -> None:
    good = torch.zeros(64, device="cuda")
    for _ in range(TIMES):
        epigrad.lerp(good, good, 0.5)
        with pytest.raises(errors.DTypeError):
            epigrad.lerp(good, good.double(), 0.5)
        with pytest.raises(errors.InvalidProblemError):
            epigrad.lerp(good, good[:3], 0.5)
        with pytest.raises(errors.InvalidProblemError):
            forward.lerp(good, good, 0.5, out=good[:3])


def test_a_number_is_no_part_of_the_geometry() -> None:
    start, end = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    for time in range(TIMES):
        assert epigrad.lerp(start, end, time / 8).tolist() == [time / 8] * 8


def test_outputs_are_on_the_tensors_device_and_of_their_dtype() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = torch.randn(3, 4, device="cuda", dtype=dtype)
        for _ in range(TIMES):
            out = forward.lerp(x, x, 0.5)
            assert (out.dtype, out.device, out.shape, out.stride()) == (dtype, x.device, x.shape, x.stride())


def test_nothing_is_left_behind() -> None:
    x, weight, bias = layer(8)
    for _ in range(TIMES):
        epigrad.linear(x, weight, bias, "gelu")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(100 * TIMES):
        epigrad.linear(x, weight, bias, "gelu")
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
