"""Pairs of functions that only records have: one by epigrad, one composed of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from epigrad import backward, functional
from epigrad._autograd import formulas
from epigrad._core import loader, tables
from epigrad._core.call import Call
from epigrad.cli import operations as common
from epigrad.cli.contest import Function, Pair
from epigrad.kinds import Activation, Gated
from torch import Tensor
from torch.nn import functional as torch_functional

Backward = Callable[[Sequence[Tensor], Tensor], object]


def eager_activation(name: str) -> Function:
    """PyTorch's own operator where it has one, else the formula."""
    if name == "gelu_tanh":
        return partial(torch_functional.gelu, approximate="tanh")
    own = getattr(torch_functional, name, None) or getattr(torch, name, None)
    return own if callable(own) else partial(formulas.composed, Activation(name))


def eager_product(kind: str) -> Function:
    """A gated kind of value and gate."""
    gated = Gated(kind)
    activation = tables.GATED_KINDS[gated.name].activation
    if not activation or gated != Gated(gated.name):
        return partial(formulas.gated_composed, gated)
    eager = eager_activation(activation)
    return lambda value, gate: value * eager(gate)


def eager_gated(kind: str) -> Function:
    """A gated kind of one tensor, whose second half is the gate."""
    eager = eager_product(kind)
    return torch_functional.glu if kind == "glu" else lambda x: eager(*x.chunk(2, -1))


def activations() -> tuple[str, ...]:
    """The names of the core's table."""
    return tuple(tables.ACTIVATIONS)


def gated_kinds() -> tuple[str, ...]:
    """The names of the core's table."""
    return tuple(tables.GATED_KINDS)


def lerp_weights() -> tuple[str, ...]:
    """The kinds of `lerp`."""
    return ("number", "tensor")


def layouts() -> tuple[str, ...]:
    """The kinds of `product`: whether the left and the right operand lie as they are multiplied, or
    transposed."""
    return ("NN", "NT", "TN")


def activation(name: str) -> Pair:
    """An activation alone."""
    eager = eager_activation(name)
    return lambda x: functional.activation(x, name), lambda x: eager(x)


def product(layout: str) -> Pair:
    """A product alone. Its operands are contiguous, and read transposed where the layout says T."""

    def operands(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left.t() if layout[0] == "T" else left, right.t() if layout[1] == "T" else right

    def ours(left: Tensor, right: Tensor) -> Tensor:
        left, right = operands(left, right)
        return functional.linear(left, right.t())

    return ours, lambda left, right: torch.mm(*operands(left, right))


def biased(name: str) -> Function:
    """An activation of a sum with a bias, by PyTorch."""
    eager = eager_activation(name)
    return lambda x, bias: eager(x + bias)


def bias_gradient(name: str) -> Backward:
    """The gradient of such a bias alone: the column sums of ``grad * act'(preactivation)``."""

    def ours(inputs: Sequence[Tensor], grad: Tensor) -> object:
        pre, bias = (x.detach() for x in inputs)
        x, weight = pre.new_empty(pre.shape[0], 1), pre.new_empty(pre.shape[1], 1)
        saved = None if name == "none" else pre
        return backward.linear_backward(grad, x, weight, bias, name, preactivation=saved, needs=(False, False, True))

    return ours


def accumulated_weight_gradient() -> Pair:
    """A layer's weight gradient, added to one in float32."""
    targets: dict[tuple[str, int, int], Tensor] = {}  # each side's, for the sizes that it met

    def target(side: str, grad: Tensor, x: Tensor) -> Tensor:
        key = (side, grad.shape[1], x.shape[1])
        if key not in targets:
            dtype = torch.float32 if grad.itemsize == 2 else grad.dtype
            targets[key] = grad.new_zeros(key[1:], dtype=dtype)
        return targets[key]

    def ours(grad: Tensor, x: Tensor) -> Tensor:
        main_grad, needs = target("epigrad", grad, x), (False, True, False)
        weight = x.new_empty(()).expand(main_grad.shape)  # of which nothing but the shape counts
        backward.linear_backward(grad, x, weight, needs=needs, out=(None, main_grad, None), accumulate=True)
        return main_grad

    def eager(grad: Tensor, x: Tensor) -> Tensor:
        return target("eager", grad, x).add_(grad.T @ x)

    return ours, eager


def biased_gated(kind: str) -> Function:
    """A gated activation of a sum with a bias, by PyTorch."""
    eager = eager_gated(kind)
    return lambda x, bias: eager(x + bias)


def gated_and_bias_gradient(kind: str) -> Backward:
    """The gradient of the input of a gated activation and, in the same pass, that of the bias in
    it."""

    def ours(inputs: Sequence[Tensor], grad: Tensor) -> object:
        tensors = (grad, inputs[0].detach())
        return loader.core().launch(Call("gated_activation_backward", kind, dim=-1), tensors, (True, True))

    return ours


def gated(kind: str, gate: str = "second") -> Pair:
    """A gated activation of one tensor, whose gate is the second half, or the even elements."""
    eager = eager_product(kind)
    composed = eager_gated(kind) if gate == "second" else lambda x: eager(x[..., 1::2], x[..., ::2])
    return lambda x: functional.gated_activation(x, kind, gate=gate), composed


def learnable(name: str) -> Pair:
    """prelu or xielu, whose parameters are tensors."""
    return getattr(functional, name), formulas.LEARNABLE[name].composed


def gated_product(kind: str) -> Pair:
    """A gated activation of two tensors."""
    return lambda value, gate: functional.gated_product(value, gate, kind), eager_product(kind)


def lerp(weight: str) -> Pair:
    """Linear interpolation by a number, or by a tensor."""
    if weight == "number":
        return (
            lambda start, end, *_: functional.lerp(start, end, 0.3),
            lambda start, end, *_: torch.lerp(start, end, 0.3),
        )
    return functional.lerp, torch.lerp


def linear(name: str) -> Pair:
    """A layer of input, weight and bias."""
    return common.linear(name, eager_activation(name))


def mlp(name: str, save: str = "auto") -> Pair:
    """A block of two layers."""
    return common.block(partial(functional.mlp, save=save), name, eager_activation(name))


def gated_mlp(kind: str, save: str = "auto") -> Pair:
    """A gated block of two layers."""
    return common.block(partial(functional.gated_mlp, save=save), kind, eager_gated(kind))


def gated_linear(kind: str, save: str = "auto") -> Pair:
    """A gated layer with two weights and no biases."""
    eager = eager_product(kind)
    return (
        lambda x, value, gate: functional.gated_linear(x, value, gate, kind=kind, save=save),
        lambda x, value, gate: eager(torch_functional.linear(x, value), torch_functional.linear(x, gate)),
    )
