"""Calls of one geometry again and again. The extension remembers what Go has said of it, and the
third call is run by a kernel that is held for it (cbridge/prepared.c). On CUDA, and for small
passes over elements on the CPU, that is a program which Go does not see.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import epigrad
import pytest
import torch
from epigrad import _native, backward, errors, forward
from epigrad._core import loader
from epigrad._core.call import Call
from torch import Tensor

from tests.support.devices import needs, on_devices
from tests.support.layouts import assert_same_bits
from tests.support.processes import run_script
from tests.support.tiers import thorough

on_cuda = needs("cuda")

TIMES = 6
HELD = TIMES - 2  # the first call of a geometry asks what there is, the second asks for its kernel


def runs(device: str) -> int:
    """How many calls have been run by a kernel that was held, on CUDA without Go."""
    loader.core()
    native = importlib.import_module("epigrad._native")
    return int(native.runs_alone() if device == "cuda" else native.runs_prepared())


_widths = itertools.count(301)


def layer(device: str, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of a width that nothing else in this process has: what has run once is held one call
    sooner."""
    width = next(_widths)
    x, weight = torch.randn(rows, width, device=device), torch.randn(40, width, device=device)
    return x, weight, torch.randn(40, device=device)


@pytest.fixture(autouse=True)
def _nothing_is_held() -> None:
    loader.core().control.ClearPlanCache()


@on_devices
def test_the_third_call_is_run_by_what_is_held_and_every_one_has_the_same_bits(device: str) -> None:
    x, weight, bias = layer(device, 5)
    before, want = runs(device), forward.linear(x, weight, bias, "gelu")
    for time in range(1, TIMES):
        assert_same_bits(forward.linear(x, weight, bias, "gelu"), want, f"call {time}")
    assert runs(device) - before == HELD
    for time in range(TIMES):
        out = torch.full_like(want, torch.nan)
        assert_same_bits(forward.linear(x, weight, bias, "gelu", out=out), want, f"call {time} into given memory")
    assert runs(device) - before == 2 * HELD
    others = [x + time for time in range(TIMES)]
    results = [forward.linear(other, weight, bias, "gelu") for other in others]
    assert runs(device) - before == 2 * HELD + TIMES
    for other, got in zip(others, results, strict=True):
        loader.core().control.ClearPlanCache()
        assert_same_bits(got, forward.linear(other, weight, bias, "gelu"), "by Go")


@on_devices
def test_outputs_that_may_overlap_are_checked_every_time(device: str) -> None:
    """Go says whether tensors share an element: C runs what lies apart."""
    whole = torch.randn(8, next(_widths) * 2, device=device)
    left, right = whole.chunk(2, 1)
    want = torch.lerp(left, left * 2, 0.25)
    before = runs(device)
    for _ in range(TIMES):
        torch.testing.assert_close(forward.lerp(left, left * 2, 0.25, out=right), want)
    assert runs(device) == before
    apart = torch.empty_like(whole).chunk(2, 1)[1]
    for _ in range(TIMES):
        assert_same_bits(forward.lerp(left, left * 2, 0.25, out=apart), right)
        for shared in (left, whole[:, 1 : left.shape[1] + 1]):
            with pytest.raises(errors.InvalidProblemError, match="shares memory"):
                forward.lerp(left, left * 2, 0.25, out=shared)
    assert runs(device) - before >= HELD


@on_devices
def test_layouts_and_offsets(device: str) -> None:
    whole = torch.randn(64, 65, device=device)
    for x in (whole.T, whole[:, 1:], whole[1:, ::2], whole[3:4].expand(64, 65)):
        want = torch.empty_strided(x.shape, (x.shape[1], 1), device=device)
        forward.lerp(x, x * 2, 0.25, out=want)
        before = runs(device)
        for time in range(TIMES):
            assert_same_bits(forward.lerp(x, x * 2, 0.25), want, f"strides {x.stride()}, call {time}")
        assert runs(device) - before >= HELD


@pytest.mark.parametrize(("width", "alone"), [(65, True), (6500, False)])
def test_small_passes_on_the_cpu_need_no_go(width: int, alone: bool) -> None:
    whole = torch.randn(3, 32, width)
    grad, x, y = (
        whole[:, :, 1:],
        whole.transpose(0, 1)[:, :, 1:].transpose(0, 1),
        whole[:1, :, :1].expand(3, 32, width - 1),
    )
    both = torch.randn(3, 32, 2 * width)[..., 2:]
    calls: list[Callable[[], tuple[Tensor | None, ...]]] = [
        lambda: (forward.activation(x, "gelu"),),
        lambda: (forward.gated_activation(both, "swiglu"),),
        lambda: (forward.gated_product(x, y, "geglu"),),
        lambda: (forward.lerp(x, y, 0.25),),
        lambda: (forward.lerp(x, y, x),),
        lambda: (backward.activation_backward(grad, x, "leaky_relu"),),
        lambda: (backward.gated_activation_backward(grad, both, "swiglu"),),
        lambda: backward.lerp_backward(grad, None, None, 0.25, needs=(True, True, False)),
    ]
    counted: Callable[[], int] = _native.runs_alone
    for number, call in enumerate(calls):
        first, before = call(), counted()
        for time in range(1, TIMES):
            for one, other in zip(call(), first, strict=True):
                if other is not None:
                    assert one is not None
                    assert_same_bits(one, other, f"call {number}, time {time}")
        assert counted() - before == (HELD if alone else 0), number


@on_devices
def test_gradients_and_inference_mode(device: str) -> None:
    x, weight, bias = (t.requires_grad_() for t in layer(device, 7))
    grad = torch.randn(7, 40, device=device)
    first, before = None, runs(device)
    for time in range(TIMES):
        found = torch.autograd.grad(epigrad.linear(x, weight, bias, "gelu"), (x, weight, bias), grad)
        first = found if first is None else first
        for index, (one, other) in enumerate(zip(found, first, strict=True)):
            assert_same_bits(one, other, f"call {time}, gradient {index}")
    assert runs(device) - before == 2 * HELD
    with torch.inference_mode():
        before = runs(device)
        for _ in range(TIMES):
            out = epigrad.linear(x, weight, bias, "gelu")
        assert runs(device) - before == HELD and not out.requires_grad


@on_devices
@thorough
def test_more_geometries_than_are_remembered_from_several_threads(device: str) -> None:
    weight, bias = layer(device, 1)[1:]
    whole = torch.randn(700, weight.shape[1], device=device)
    mixed = {rows: forward.lerp(whole[:rows], whole[:rows] * 2, 0.25) for rows in range(1, 701)}
    layers = {rows: forward.linear(whole[:rows], weight, bias, "silu") for rows in range(1, 701)}
    before = runs(device)

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
    assert runs(device) - before > 700


@on_cuda
def test_a_tuning_block_is_seen(tmp_path: Path) -> None:
    x, weight = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    exact = (x.double() @ weight.double().T).float()
    for _ in range(TIMES):
        before = epigrad.linear(x, weight)
    cache, alone = tmp_path / "choices.json", runs("cuda")
    with epigrad.tuning(cache):
        for _ in range(TIMES):
            inside = epigrad.linear(x, weight)
        assert TIMES - 2 <= runs("cuda") - alone < TIMES, "the first call inside is Go's, which times candidates"
    assert cache.exists()
    # of 512 terms, another algorithm's
    torch.testing.assert_close(inside, exact, rtol=1e-4, atol=1e-3)
    alone = runs("cuda")
    assert_same_bits(epigrad.linear(x, weight), before, "after the block")
    assert runs("cuda") == alone


@on_devices
def test_a_cache_that_is_cleared_gives_its_kernels_back(device: str) -> None:
    x = torch.randn(9, device=device)
    for _ in range(TIMES):
        epigrad.lerp(x, x, 0.5)
    before = runs(device)
    loader.core().control.ClearPlanCache()
    epigrad.lerp(x, x, 0.5)
    assert runs(device) == before
    epigrad.lerp(x, x, 0.5)
    assert runs(device) == before + 1


@on_cuda
def test_a_graph_captures_them() -> None:
    x, weight, bias = layer("cuda", 6)
    for _ in range(TIMES):
        want = forward.linear(x, weight, bias, "relu")
    graph, before = torch.cuda.CUDAGraph(), runs("cuda")
    with torch.cuda.graph(graph):
        out = forward.linear(x, weight, bias, "relu")
    assert runs("cuda") - before == 1
    out.fill_(0)
    graph.replay()
    assert_same_bits(out, want, "replayed")


@on_cuda
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


@on_devices
def test_what_is_wrong_is_refused_every_time(device: str) -> None:
    good = torch.zeros(64, device=device)
    for _ in range(TIMES):
        epigrad.lerp(good, good, 0.5)
        with pytest.raises(errors.DTypeError):
            epigrad.lerp(good, good.double(), 0.5)
        with pytest.raises(errors.InvalidProblemError):
            epigrad.lerp(good, good[:3], 0.5)
        with pytest.raises(errors.InvalidProblemError):
            forward.lerp(good, good, 0.5, out=good[:3])


@on_devices
def test_a_number_is_no_part_of_the_geometry(device: str) -> None:
    start, end = torch.zeros(8, device=device), torch.ones(8, device=device)
    for time in range(TIMES):
        assert epigrad.lerp(start, end, time / 8).tolist() == [time / 8] * 8


@on_devices
def test_outputs_are_on_the_tensors_device_and_of_their_dtype(device: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = torch.randn(3, 4, device=device, dtype=dtype)
        for _ in range(TIMES):
            out = forward.lerp(x, x, 0.5)
            assert (out.dtype, out.device, out.shape, out.stride()) == (dtype, x.device, x.shape, x.stride())


@on_cuda
def test_nothing_is_left_behind() -> None:
    x, weight, bias = layer("cuda", 8)
    for _ in range(TIMES):
        epigrad.linear(x, weight, bias, "gelu")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(100 * TIMES):
        epigrad.linear(x, weight, bias, "gelu")
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_number_of_threads_is_no_part_of_the_geometry() -> None:
    x, weight, bias = layer("cpu", 4096)
    want, threads = forward.linear(x, weight, bias, "gelu"), torch.get_num_threads()
    before = runs("cpu")
    try:
        for time in range(TIMES):
            torch.set_num_threads(1 + time % 2)
            assert_same_bits(forward.linear(x, weight, bias, "gelu"), want, f"call {time}")
    finally:
        torch.set_num_threads(threads)
    assert runs("cpu") - before == TIMES - 1


# In a process of its own, which remembers nothing of other tests. When each geometry had one place
# of 512, every round forgot 24 of the 100.
PROGRAM = """
import torch, epigrad
from epigrad import _native, forward
whole = torch.ones(120, 8)
epigrad.backends()
def asked(rows):
    before = _native.inferred()
    for count in range(1, rows + 1):
        out = forward.lerp(whole[:count], whole[:count], 0.5)
        assert out.shape == (count, 8)
    return _native.inferred() - before
print(asked(50), asked(50), asked(100), asked(100), asked(100))
"""


@thorough
def test_geometries_that_share_a_place_do_not_drive_each_other_out() -> None:
    assert run_script(PROGRAM, timeout=300).split()[-5:] == ["50", "0", "50", "0", "0"]


SQUARE = torch.ones(2, 2)
LINEAR, LEAKY = Call("linear", "silu"), Call("linear", "leaky_relu", (0.25,))
GATED = Call("gated_activation", "glu", dim=1)
CHANGES: dict[str, tuple[Call, Call, tuple[torch.Tensor, ...], tuple[bool, ...]]] = {
    "op": (LINEAR, LINEAR._replace(op="matmul_bias_activation"), (SQUARE, SQUARE), (True,)),
    "kind": (LINEAR, LINEAR._replace(kind="tanh"), (SQUARE, SQUARE), (True,)),
    "parameters": (LEAKY, LEAKY._replace(parameters=(0.5,)), (SQUARE, SQUARE), (True,)),
    "dim": (GATED, GATED._replace(dim=0), (SQUARE,), (True,)),
    "gate": (GATED, GATED._replace(gate=1), (SQUARE,), (True,)),
    "accumulate": (
        Call("linear_backward"),
        Call("linear_backward", accumulate=True),
        (SQUARE, SQUARE, SQUARE),
        (False, True, False),
    ),
    "backend": (LINEAR, LINEAR._replace(backend="cpu"), (SQUARE, SQUARE), (True,)),
    "batch_invariant": (LINEAR, LINEAR._replace(batch_invariant=True), (SQUARE, SQUARE), (True,)),
}


def asked(call: Callable[[], object]) -> int:
    """How often Go is asked for outputs."""
    before = _native.inferred()
    call()
    return _native.inferred() - before


@pytest.mark.parametrize("field", Call._fields)
def test_every_field_of_a_call_is_in_the_key(field: str) -> None:
    one, other, inputs, needs = CHANGES[field]
    assert [a == b for a, b in zip(one, other, strict=True)].count(False) == 1
    infer = loader.core().infer
    infer(one, inputs, needs)
    asked_again = asked(lambda: infer(one, inputs, needs))
    assert (asked_again, asked(lambda: infer(other, inputs, needs))) == (0, 1)
    assert asked(lambda: infer(other, inputs, needs)) == 0


def test_parameters_are_checked_though_the_geometry_is_known() -> None:
    core = loader.core()
    core.launch(LEAKY, (SQUARE, SQUARE), (True,))
    with pytest.raises(ValueError, match="slope: got NaN"):
        core.launch(LEAKY._replace(parameters=(float("nan"),)), (SQUARE, SQUARE), (True,))


def test_any_number_of_lerp_has_one_entry() -> None:
    core = loader.core()
    core.launch(Call("lerp", None, (0.5,)), (SQUARE, SQUARE), (True,))
    for weight in (0.25, -3.0, float("inf")):
        call = Call("lerp", None, (weight,))
        assert asked(lambda call=call: core.launch(call, (SQUARE, SQUARE), (True,))) == 0
