"""Rows whose bits depend neither on other rows nor on how many there are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import epigrad
import pytest
import torch
from epigrad.plan import GatedActivation, GemmEpilogue
from torch import Tensor

from tests.support.cases import DTYPES, FULL
from tests.support.devices import needs, on_devices
from tests.support.layouts import assert_same_bits
from tests.support.tiers import thorough

Results = tuple[Tensor, Tensor]
"""The output, and the gradient to the input."""

ROWS = 4096
SOME = (1, 2, 3, 7, 8, 16, 33, 64, 100, 127, 128, 129, 255, 256, 500, 512, 1000, 1024, 2047, 2048, 2049, 4095)
"""Numbers of rows: around tiles, and around the number that CUDA chooses kernels for."""

SIZES = {
    "aligned": (64, 48),
    "odd": (37, 51),
    "one feature": (1, 24),
    "wide": (520, 776),
}
"""Features of the input and of the output, or of the hidden layer."""


def drawn(device: str, dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 100 * len(shape)))
    return (values / shape[-1] ** 0.5).to(device, dtype)


Layer = Callable[..., Tensor]


def layers(device: str, dtype: torch.dtype, features: int, wide: int) -> dict[str, Layer]:
    """Functions of an input [M, features], and those of the rows that a layer routes."""

    def weights(*shape: int, seed: int = 0) -> Tensor:
        return drawn(device, dtype, *shape, seed=seed)

    up, gate, down = weights(wide, features), weights(wide, features, seed=1), weights(features, wide, seed=2)
    bias = weights(wide, seed=3)
    both = torch.cat([up, gate])
    groups_up, groups_down = weights(5, 2 * wide, features), weights(5, features, wide)
    index = torch.randint(5, (ROWS, 2), generator=torch.Generator().manual_seed(1)).to(device)
    scale = torch.rand(ROWS, 2, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    return {
        "linear": lambda x, rows: epigrad.linear(x, up, bias, "gelu"),
        "linear, recomputed": lambda x, rows: epigrad.linear(x, up, bias, "silu", save="recompute"),
        "linear alone": lambda x, rows: epigrad.linear(x, up),
        "matmul": lambda x, rows: epigrad.matmul_bias_activation(x, up.mT, None, "relu2"),
        "gated_linear": lambda x, rows: epigrad.gated_linear(x, up, gate, kind="swiglu"),
        "mlp": lambda x, rows: epigrad.mlp(x, up, bias, down, None, "gelu_tanh"),
        "gated_mlp": lambda x, rows: epigrad.gated_mlp(x, both, None, down, None, "geglu"),
        "experts": lambda x, rows: epigrad.experts(x, index[rows], scale[rows], groups_up, None, groups_down, None),
    }


def computed(layer: Layer, x: Tensor, grad: Tensor, rows: slice) -> Results:
    """A layer of these rows alone; backward runs outside of the mode."""
    leaf = x[rows].clone().requires_grad_()
    with epigrad.batch_invariant():
        out = layer(leaf, rows)
    (grad_input,) = torch.autograd.grad(out, leaf, grad[rows, : out.shape[1]])
    return out.detach(), grad_input


def assert_alone(layer: Layer, x: Tensor, grad: Tensor, counts: Sequence[int], what: str) -> None:
    """So many rows have the bits that they have among all."""
    whole = computed(layer, x, grad, slice(0, len(x)))
    for count in counts:
        begin = (count * 7919) % (len(x) - count + 1)
        rows = slice(begin, begin + count)
        for name, all_rows, alone in zip(("output", "grad_input"), whole, computed(layer, x, grad, rows), strict=True):
            assert_same_bits(alone, all_rows[rows], f"{what}: {name} of rows {begin} to {begin + count}")


@on_devices
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_alone(dtype: torch.dtype, sizes: str, device: str) -> None:
    features, wide = SIZES[sizes]
    x, grad = drawn(device, dtype, ROWS, features), drawn(device, dtype, ROWS, max(features, wide), seed=4)
    length = ROWS if device == "cuda" else 40 if sizes == "wide" else 300
    counts = SOME if device == "cuda" else tuple(count for count in (1, 2, 7, 33, 64, 129, 256) if count < length)
    for name, layer in layers(device, dtype, features, wide).items():
        assert_alone(layer, x[:length], grad[:length], counts, name)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_of_rows(dtype: torch.dtype, device: str) -> None:
    """On a CPU in `make test-full`; else there all small ones, and those around tiles."""
    features, wide = (264, 136) if device == "cuda" else (24, 40)
    counts = range(1, ROWS + 1) if device == "cuda" or FULL else (*range(1, 130), *SOME, ROWS)
    x, grad = drawn(device, dtype, ROWS, features), drawn(device, dtype, ROWS, features + wide, seed=4)
    made = layers(device, dtype, features, wide)
    identity = torch.eye(features, device=device, dtype=dtype)
    made["the gradient to the preactivation"] = lambda x, rows: epigrad.linear(x, identity, None, "gelu")
    for name in ("linear", "gated_linear", "the gradient to the preactivation"):
        assert_alone(made[name], x, grad, counts, name)


@needs("cuda")
@pytest.mark.parametrize("shape", [(4096, 4096), (14336, 4096), (768, 3072)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_layers_of_models(shape: tuple[int, int], dtype: torch.dtype) -> None:
    features, wide = shape
    x, grad = drawn("cuda", dtype, ROWS, features), drawn("cuda", dtype, ROWS, max(shape), seed=4)
    up, bias = drawn("cuda", dtype, wide, features), drawn("cuda", dtype, wide, seed=3)
    for activation in ("gelu", None):
        assert_alone(lambda x, rows, act=activation: epigrad.linear(x, up, bias, act), x, grad, SOME, f"{activation}")


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_rows_may_hold_anything(dtype: torch.dtype, device: str) -> None:
    x, grad = drawn(device, dtype, 200, 64), drawn(device, dtype, 200, 64, seed=4)
    for name, layer in layers(device, dtype, 64, 48).items():
        want = computed(layer, x, grad, slice(0, 200))
        for value in (torch.nan, torch.inf, 0.0, 1e-40):
            other, other_grad = x.clone(), grad.clone()
            other[::2] = value
            other_grad[::2] = value
            for one, two in zip(want, computed(layer, other, other_grad, slice(0, 200)), strict=True):
                assert_same_bits(two[1::2], one[1::2], f"{name} beside {value}")


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_groups_of_rows(dtype: torch.dtype, device: str) -> None:
    """A group's rows have the bits that they have as the only rows."""
    weight, bias = drawn(device, dtype, 4, 48, 64), drawn(device, dtype, 4, 48)
    x, grad = drawn(device, dtype, 300, 64), drawn(device, dtype, 300, 48, seed=4)
    ends = (1, 130, 130, 300)

    def run(begin: int, end: int, offsets: tuple[int, ...]) -> Results:
        leaf = x[begin:end].clone().requires_grad_()
        with epigrad.batch_invariant():
            out = epigrad.grouped_linear(leaf, weight, bias, "gelu", offsets=torch.tensor(offsets, device=device))
        return out.detach(), torch.autograd.grad(out, leaf, grad[begin:end])[0]

    whole = run(0, 300, ends)
    for group, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
        for count in {1, (end - begin) // 2, end - begin} if end > begin else ():
            alone = run(begin, begin + count, (0,) * group + (count,) * (4 - group))
            for one, all_rows in zip(alone, whole, strict=True):
                assert_same_bits(one, all_rows[begin : begin + count], f"group {group}, {count} rows")


@on_devices
def test_plans_say_so(device: str) -> None:
    sizes = {"m": 64, "n": 64, "k": 640, "activation": "relu", "dtype": torch.float32, "device": device}
    with epigrad.batch_invariant():
        assert GemmEpilogue.select(**sizes).precision_guarantee.batch_invariant
    assert GemmEpilogue.select(**sizes).precision_guarantee.batch_invariant == (device == "cpu")
    elementwise = GatedActivation.select(input_shape=(4, 6), kind="glu", dtype=torch.float32, device=device)
    assert elementwise.precision_guarantee.batch_invariant


@on_devices
@thorough
def test_compiled_code_has_the_mode_of_its_calls(device: str) -> None:
    """Inside and outside of the block, and for backward outside of it."""
    torch.compiler.reset()
    x, grad = drawn(device, torch.float32, 40, 64), drawn(device, torch.float32, 40, 64, seed=4)
    layer = layers(device, torch.float32, 64, 48)["linear"]
    compiled = torch.compile(layer, fullgraph=True)
    leaf = x.clone().requires_grad_()
    without = compiled(leaf, None)
    assert_same_bits(without, layer(x, None))
    for one, two in zip(computed(compiled, x, grad, slice(0, 5)), computed(layer, x, grad, slice(0, 5)), strict=True):
        assert_same_bits(one, two)
    assert_same_bits(compiled(leaf, None), without)


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes what operators are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[bool] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.modes.append(bool((kwargs or {}).get("batch_invariant", False)))
        return function(*args, **(kwargs or {}))


def test_blocks_nest_and_are_a_threads_own() -> None:
    x, weight = torch.ones(2, 3), torch.ones(4, 3)

    def mode() -> bool:
        with Recorder() as recorder:
            epigrad.linear(x, weight)
        return any(recorder.modes)

    assert not mode()
    with epigrad.batch_invariant():
        assert mode()
        with epigrad.batch_invariant(False):
            assert not mode()
        assert mode()
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(mode()))
        thread.start()
        thread.join()
        assert found == [False]
    assert not mode()


def test_backward_remembers_the_mode() -> None:
    x, weight = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    for enabled in (True, False):
        with Recorder() as recorder, epigrad.batch_invariant(enabled):
            out = epigrad.linear(x, weight, None, "gelu").sum()
            recorder.modes.clear()
        with Recorder() as recorder, epigrad.batch_invariant(not enabled):
            out.backward()
        assert any(recorder.modes) == enabled


@thorough
def test_the_environment_switches_it_on() -> None:
    program = (
        "import epigrad, torch; plan = epigrad.plan.GemmEpilogue.select(m=1, n=1, k=1, activation='relu', "
        "dtype=torch.float32); print(plan._problem.call.batch_invariant)"
    )
    for value, want in (("1", "True"), ("0", "False"), ("", "False")):
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "EPIGRAD_BATCH_INVARIANT": value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == want


def test_a_word_that_is_no_switch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPIGRAD_BATCH_INVARIANT", "yes")
    with pytest.raises(epigrad.errors.InvalidProblemError, match="EPIGRAD_BATCH_INVARIANT: 'yes'"):
        epigrad.linear(torch.ones(1, 1), torch.ones(1, 1))
    with pytest.raises(epigrad.errors.InvalidProblemError, match="EPIGRAD_BATCH_INVARIANT: 'yes'"):
        epigrad.plan.GemmEpilogue.select(m=1, n=1, k=1, dtype=torch.float32)
