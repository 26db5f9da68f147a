"""Autocast: products behave as F.linear, the others as F.glu and torch.lerp; and GradScaler."""

from __future__ import annotations

import copy
from typing import Any

import epigrad
import pytest
import torch
from epigrad import errors
from epigrad._core import autocast_cache
from torch import Tensor
from torch.nn import functional

from tests.support.devices import on_devices
from tests.support.features import feature
from tests.support.layouts import assert_same_bits
from tests.support.operators import FUNCTIONS, each_function

PRODUCTS = ("matmul_bias_activation", "linear", "gated_linear", "mlp", "gated_mlp", "grouped_linear", "experts")
SCALES = {"experts": 1}
"""The place of a tensor that stays in float32 beside half types."""
LOW = (torch.bfloat16, torch.float16)


@feature("autocast")
@on_devices
@each_function
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_call_under_autocast(op: str, dtype: torch.dtype, compiled: bool, device: str) -> None:
    function, tensors = FUNCTIONS[op].function, FUNCTIONS[op].tensors(device)
    called = torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function
    with torch.autocast(device, dtype):
        out = called(*tensors)
    lowered = op in PRODUCTS
    assert out.dtype == (dtype if lowered else torch.float32)
    grads = torch.autograd.grad(out.float().sin().sum(), tensors)
    # As tensors that were cast by hand: gradients come back in the tensors' own dtype.
    stays = SCALES.get(op)
    cast = [t.to(dtype) if lowered and place != stays else t for place, t in enumerate(tensors)]
    want = function(*cast)
    assert_same_bits(out.detach(), want.detach())
    for one, other in zip(grads, torch.autograd.grad(want.float().sin().sum(), tensors), strict=True):
        assert one.dtype == torch.float32
        assert_same_bits(one, other)


RULES: list[tuple[str, dict[str, Any], torch.dtype]] = [
    ("enabled", {}, torch.float32),
    ("half tensors", {}, torch.float16),
    ("float64", {}, torch.float64),
    ("disabled", {"enabled": False}, torch.float32),
    ("of another device", {"device_type": "cuda"}, torch.float32),
]


@on_devices
@pytest.mark.parametrize(("options", "dtype"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_the_dtype_is_that_of_linear(options: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    if options.get("device_type") == "cuda" and (device == "cuda" or not torch.cuda.is_available()):
        options = {"enabled": False}
    x, weight, bias = FUNCTIONS["linear"].tensors(device, dtype)
    # PyTorch's cache of cast weights does not tell a nested block's dtype from the outer one's.
    with torch.autocast(**({"device_type": device, "dtype": torch.bfloat16, "cache_enabled": False} | options)):
        want = functional.linear(x, weight, bias)
        assert epigrad.linear(x, weight, bias).dtype == want.dtype
        assert epigrad.matmul_bias_activation(x, weight.mT, bias).dtype == want.dtype
        with torch.autocast(device, enabled=False):
            assert epigrad.linear(x, weight, bias).dtype == dtype
        with torch.autocast(device, torch.float16):
            assert epigrad.linear(x, weight, bias).dtype == functional.linear(x, weight, bias).dtype


@on_devices
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_learned_parameters_follow_the_input(compiled: bool, device: str) -> None:
    """As torch.nn.PReLU's, behind a product that autocast has lowered. float64 stays a mix."""
    for module in (epigrad.nn.PReLU(4, device=device), epigrad.nn.XIELU(device=device)):
        called = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
        x = torch.randn(3, 4, device=device, dtype=torch.bfloat16, requires_grad=True)
        with pytest.raises(errors.DTypeError):
            module(x)
        with torch.autocast(device, torch.bfloat16):
            out = called(x)
        assert out.dtype == torch.bfloat16
        out.float().sin().sum().backward()
        assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())
        cast = copy.deepcopy(module).bfloat16()
        assert_same_bits(out.detach(), cast(x).detach())
        with torch.autocast(device, torch.bfloat16), pytest.raises(errors.DTypeError):
            module.double()(x)


@on_devices
def test_mixed_dtypes(device: str) -> None:
    x, weight, bias = FUNCTIONS["linear"].tensors(device)
    mixed = (x.bfloat16(), weight, bias.half())
    with pytest.raises(errors.DTypeError, match=r"bfloat16.*float32|float32.*bfloat16"):
        epigrad.linear(*mixed)
    with torch.autocast(device, torch.bfloat16):
        assert epigrad.linear(*mixed).dtype == torch.bfloat16
        with pytest.raises(RuntimeError):
            functional.linear(x.double(), weight, bias)
        with pytest.raises(errors.DTypeError):
            epigrad.linear(x.double(), weight, bias)
        with pytest.raises(RuntimeError):
            torch.lerp(x, x.bfloat16(), 0.5)
        with pytest.raises(errors.DTypeError):
            epigrad.lerp(x, x.bfloat16(), 0.5)


def _casts_of(weight: Tensor, x: Tensor) -> set[int]:
    """Where the casts of a weight that three calls save are, each in a mode of its own twice."""
    seen = set[int]()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape == weight.shape:
            seen.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outs = [epigrad.linear(x, weight, None, "gelu") for _ in range(3)]
    torch.stack(outs).float().sum().backward()
    return seen


@on_devices
def test_a_parameter_is_cast_once_under_autocast(device: str) -> None:
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    x = torch.randn(2, 4, device=device, requires_grad=True)
    with torch.autocast(device, torch.bfloat16):
        with torch.no_grad():  # a cast without a graph serves no later call that has one
            epigrad.linear(x, weight)
        with torch.inference_mode():
            epigrad.linear(x, weight)
        assert len(_casts_of(weight, x)) == 1
        assert weight.grad is not None and weight.grad.dtype == torch.float32
        with torch.autocast(device, torch.float16):
            assert epigrad.linear(x, weight).dtype == torch.float16
        before = epigrad.linear(x, weight)
        with torch.no_grad():
            weight.mul_(2)
        after = epigrad.linear(x, weight)
        assert_same_bits(after.detach(), 2 * before.detach())
    with torch.autocast(device, torch.bfloat16, cache_enabled=False):
        assert len(_casts_of(weight, x)) == 3


@on_devices
def test_casts_of_parameters_are_freed_where_autocast_ends(device: str) -> None:
    weight, x = torch.randn(4, 4, device=device, requires_grad=True), torch.randn(2, 4, device=device)

    def alive() -> int:
        return sum(len(casts) for each in autocast_cache._alive.values() if (casts := each()) is not None)

    with torch.autocast(device, torch.bfloat16):
        epigrad.linear(x, weight)
        with torch.autocast(device, enabled=False):
            pass
        assert alive() == 1
        torch.clear_autocast_cache()
        assert alive() == 0
        epigrad.linear(x, weight)
    assert alive() == 0
    weight.data.mul_(2)  # which a version does not tell
    with torch.autocast(device, torch.bfloat16):
        got = epigrad.linear(x, weight)
    assert_same_bits(got.detach(), epigrad.linear(x.bfloat16(), weight.detach().bfloat16()))


@on_devices
def test_grad_scaler(device: str) -> None:
    def train(linear: Any, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        layer = linear(16, 8).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        for step in range(4):
            x = torch.randn(32, 16, device=device)
            with torch.autocast(device, dtype):
                loss = layer(x).float().square().mean()
            if step == 2:
                loss = loss * float("inf")  # a step that is left out
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 512.0
        return [parameter.detach() for parameter in layer.parameters()]

    for one, other in zip(train(epigrad.nn.Linear, torch.float16), train(torch.nn.Linear, torch.float16), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
