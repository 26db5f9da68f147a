"""Adapters (LoRA) against weights in which they are, in every dtype."""

from __future__ import annotations

import epigrad
import pytest
import torch
from torch import Tensor

from tests.support import adapters
from tests.support.adapters import CALLS, leaves
from tests.support.devices import on_devices
from tests.support.layouts import assert_same_bits
from tests.support.parity import REDRAWS
from tests.support.tolerance import explain_breach, worst_relative_error

DTYPES = [
    (torch.float64, torch.float64),
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
]
each_call = pytest.mark.parametrize("op", CALLS)


def eagers(op: str, tensors: list[Tensor], grad: Tensor, scale: float) -> list[Tensor]:
    """PyTorch's results of the tensors."""
    inputs = leaves(tensors)
    out = adapters.eager(op, *inputs, scale=scale)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def assert_parity(op: str, tensors: list[Tensor], got: list[Tensor], grad: Tensor, scale: float) -> None:
    """By the tolerance rule. PyTorch's worst error is that over other draws as well, of grad too:
    nothing else is in the gradient of the last bias.
    """
    theirs, wanted = eagers(op, tensors, grad, scale), adapters.reference(op, grad, tensors, scale)
    names = ["out", *adapters.row(op).tensors]
    worst = [worst_relative_error(*pair) for pair in zip(theirs, wanted, strict=True)]
    for draw in range(REDRAWS):
        breaches = [explain_breach(*each) for each in zip(got, wanted, worst, strict=True)]
        if not any(breaches):
            return
        others = adapters.drawn(op, tensors[0].dtype, tensors[-1].dtype, seed=1 + draw)
        drawn = torch.randn_like(grad)
        pairs = zip(eagers(op, others, drawn, scale), adapters.reference(op, drawn, others, scale), strict=True)
        worst = [max(error, worst_relative_error(*pair)) for error, pair in zip(worst, pairs, strict=True)]
    raise AssertionError(dict(zip(names, breaches, strict=False)))


@pytest.mark.parametrize(("save", "scale"), [("auto", 0.75), ("recompute", 1.0)])
@pytest.mark.parametrize(("dtype", "wide"), DTYPES, ids=str)
@each_call
@on_devices
def test_a_layer_has_the_updated_weight(
    op: str, dtype: torch.dtype, wide: torch.dtype, scale: float, save: str, device: str
) -> None:
    drawn = adapters.drawn(op, dtype, wide)
    tensors = [tensor.to(device) for tensor in drawn]
    inputs = leaves(tensors)
    out = adapters.call(op, *inputs, scale=scale, save=save)
    grad = torch.randn_like(out)
    got = [out.detach(), *torch.autograd.grad(out, inputs, grad)]
    assert_parity(op, drawn, [result.cpu() for result in got], grad.cpu(), scale)
    assert_same_bits(adapters.call(op, *tensors, scale=scale), out.detach(), "without a graph")
    room = epigrad.backward
    stateless = adapters.call(op, grad, *tensors, scale=scale, room=room)
    for one, other in zip(stateless, got[1:], strict=True):
        assert_same_bits(one, other)
    assert_same_bits(adapters.call(op, *tensors, scale=scale, room=epigrad.forward), out.detach())
