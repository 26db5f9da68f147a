"""The operators ``torch.ops.epigrad``: PyTorch's own checks of them, and who calls them."""

from __future__ import annotations

from typing import Any

import epigrad
import pytest
import torch
from epigrad import ops
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.devices import on_devices
from tests.support.layouts import assert_same_bits
from tests.support.operators import FUNCTIONS, NAMES, each_function, each_in_turns


class Calls(TorchDispatchMode):
    """Records the calls of this package's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "epigrad":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        return [func._schema.name.removeprefix("epigrad::") for func, _, _ in self.calls]


def as_leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.is_floating_point())


def test_every_operator_has_a_call_and_a_backward() -> None:
    assert set(FUNCTIONS) == set(NAMES) <= set(epigrad.__all__)
    first = {operator.name for operator in ops.OPERATORS if not operator.row.is_second}
    assert first == {*NAMES, *(f"{name}_backward" for name in NAMES)}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
@on_devices
@each_in_turns
def test_opcheck_of_what_forward_and_backward_call(op: str, device: str) -> None:
    function, tensors = FUNCTIONS[op].function, FUNCTIONS[op].tensors(device)
    with Calls() as seen:
        function(*tensors).sum().backward()
    assert seen.names == [op, f"{op}_backward"]
    for func, args, kwargs in seen.calls:
        torch.library.opcheck(func, tuple(map(as_leaf, args)), kwargs)


@each_function
def test_the_dispatched_way_gives_the_bits_of_the_plain_one(op: str) -> None:
    function, tensors = FUNCTIONS[op].function, FUNCTIONS[op].tensors()
    plain = function(*tensors)
    plain_grads = torch.autograd.grad(plain.sin().sum(), tensors)
    with Calls():
        seen = function(*tensors)
        grads = torch.autograd.grad(seen.sin().sum(), tensors)
    assert_same_bits(seen.detach(), plain.detach())
    for one, other in zip(grads, plain_grads, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("save", ["auto", "preactivation", "recompute"])
def test_an_operator_keeps_what_save_says(save: str) -> None:
    x, weight, bias = FUNCTIONS["linear"].tensors()
    for activation, kept in (("gelu", save != "recompute"), ("tanh", save == "preactivation"), ("none", False)):
        out, preactivation = torch.ops.epigrad.linear(x, weight, bias, activation, save=save)
        assert preactivation.shape == (out.shape if kept else (0,))
        grads = torch.autograd.grad(out.sum(), (x, weight, bias))
        want = torch.autograd.grad(epigrad.linear(x, weight, bias, activation, save=save).sum(), (x, weight, bias))
        for one, other in zip(grads, want, strict=True):
            assert_same_bits(one, other)
    with torch.no_grad(), Calls() as seen:
        epigrad.linear(x, weight, bias, "gelu", save=save)
    assert seen.calls[0][2] == {"save": "recompute"}
