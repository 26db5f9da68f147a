"""Tensor subclasses where only a gradient is one, and arguments of wrong types on the way through
the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import epigrad
import pytest
import torch
from epigrad import errors
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

from tests.support.layouts import assert_same_bits
from tests.support.operators import FUNCTIONS, each_function


class Waiting(Tensor):
    """A wrapper that computes on the tensor inside, as a collective's result does once it is
    there."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Waiting:
        made: Waiting = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrapped(value: Any) -> Any:
            return value.inner if isinstance(value, Waiting) else value

        return func(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs or {}))


class Named(Tensor):
    """A subclass that adds nothing but its name."""


SUBCLASSES: dict[str, Callable[[Tensor], Tensor]] = {
    "dispatch": Waiting,
    "function": lambda tensor: tensor.as_subclass(Named),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["first_order", "create_graph"])
@pytest.mark.parametrize("wrap", SUBCLASSES)
@each_function
def test_a_gradient_that_is_a_subclass(op: str, wrap: str, create_graph: bool) -> None:
    """Row 2 of what an attack found: the backward was refused, where that of F.linear works."""

    class WrapGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad_output: Tensor) -> Tensor:
            return SUBCLASSES[wrap](grad_output)

    tensors = FUNCTIONS[op].tensors()
    out = FUNCTIONS[op].function(*tensors)
    grad = torch.randn_like(out)
    want = torch.autograd.grad(out, tensors, grad, retain_graph=True)
    wrapped = WrapGradient.apply(FUNCTIONS[op].function(*tensors))
    got = torch.autograd.grad(wrapped, tensors, grad, create_graph=create_graph)
    for ours, theirs in zip(got, want, strict=True):
        assert_same_bits(ours.detach().as_subclass(Tensor), theirs)


def watched_calls(call: Callable[[Tensor], Any]) -> list[Callable[[], Any]]:
    """A call by every way through the operators."""

    def fake() -> Any:
        with FakeTensorMode():
            return call(torch.empty(3, 4))

    def forward_mode() -> Any:
        return torch.func.jvp(call, (torch.randn(3, 4),), (torch.randn(3, 4),))

    return [
        lambda: torch.vmap(call)(torch.randn(2, 3, 4)),
        lambda: torch.func.grad(lambda x: call(x).sum())(torch.randn(3, 4)),
        lambda: call(torch.randn(3, 4).as_subclass(Named)),
        lambda: torch.jit.trace(call, torch.randn(3, 4)),
        fake,
        forward_mode,
    ]


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: epigrad.linear(x, x[..., :3, :], None, 3), "linear: activation: 3, want one of"),
        (lambda x: epigrad.linear(x, x[..., :3, :], None, b"relu"), "linear: activation: b'relu', want one of"),
        (lambda x: epigrad.activation(x, b"relu"), "activation: activation: b'relu', want one of"),
        (lambda x: epigrad.activation(x, "swash"), "activation: activation: 'swash', want one of"),
        (lambda x: epigrad.gated_activation(x, b"glu"), "gated_activation: kind: b'glu', want one of"),
        (lambda x: epigrad.gated_activation(x, None), "gated_activation: kind: None, want one of"),
        (lambda x: epigrad.gated_activation(x, dim=1.5), "gated_activation: dim: float, want an int"),
        (lambda x: epigrad.gated_activation(x, gate=1), "gated_activation: gate: 1, want"),
        (lambda x: epigrad.gated_product(x, x, 3), "gated_product: kind: 3, want one of"),
        (lambda x: epigrad.mlp(x, x, None, x.mT, None, ["relu"]), r"mlp: activation: ['relu'], want one of"),
        (lambda x: epigrad.gated_mlp(x, x, None, x.mT, None, "relu"), "gated_mlp: kind: 'relu', want one of"),
        (lambda x: epigrad.gated_mlp(x, x, None, x.mT, None, gate=b"first"), "gated_mlp: gate: b'first', want"),
        (lambda x: epigrad.linear(x, x[..., :3, :], save=3), "linear: save: 3, want"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_types_by_the_operators_are_the_errors_of_plain_calls(call: Callable[[Tensor], Any], text: str) -> None:
    """Row 4: a bare RuntimeError of the dispatcher's, and bytes were accepted."""
    for run in (lambda: call(torch.randn(3, 4)), *watched_calls(call)):
        with pytest.raises(errors.InvalidProblemError) as caught:
            run()
        assert text in str(caught.value)


def test_wrong_types_in_a_compiled_function() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: Tensor) -> Tensor:
        return epigrad.activation(x, "swash")

    with pytest.raises(Exception, match="'swash', want one of"):
        compiled(torch.randn(3))
