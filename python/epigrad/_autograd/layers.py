"""Layers and two-layer blocks as differentiable PyTorch operations, and their gradients.

A layer is a product of an input and a weight, of which there are three kinds: `LINEAR`, `MATMUL`
and `epigrad._autograd.grouped.Groups`.

A gradient formula takes a call, the shapes of forward's tensors, needs, grad_output, forward's
tensors, and what was kept. Either of grad_output and `grad_hidden`, the gradient of the kept
preactivation, may be None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from epigrad._autograd import formulas
from epigrad._autograd.adapted import Adapted
from epigrad._autograd.functions import By, Elementwise, Problem, differentiate
from epigrad._core.call import Call
from epigrad._core.launcher import Launcher, Tensors
from epigrad._core.tables import OPS

FORMULAS = By()
"""All by PyTorch operations."""

Needs = Sequence[bool]
Pair = tuple[Tensor, Tensor]
"""An output and a preactivation."""


class Product:
    """A product with a weight ``[N, K]``, or with a matrix ``[K, N]`` if it is not `transposed`."""

    transposed = True

    def value(self, input: Tensor, weight: Tensor | Adapted, bias: Tensor | None) -> Tensor:
        """The preactivation. An adapter's term is added before it is rounded."""
        if not isinstance(weight, Adapted):
            return self.plain(input, weight, bias)
        narrow = self.plain(formulas.computed(input), formulas.computed(weight.a), None)
        update = self.plain(narrow, formulas.computed(weight.b), None)
        return (self.plain(input, weight.weight, bias) + update).to(input.dtype)

    def plain(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The preactivation of a weight without an adapter."""
        product = torch.matmul(input, weight.mT if self.transposed else weight)
        return product if bias is None else product + bias

    def gradients(
        self,
        grad: Tensor,
        input: Tensor | None,
        weight: Tensor | None,
        dtype: torch.dtype,
        shapes: Sequence[Any],
        needs: Needs,
        formed: bool = True,
    ) -> Tensors:
        """The gradients to input, weight and bias, in a dtype, from the preactivation's, which is
        not rounded yet. The shapes are those of the three.
        """
        if not formed:
            gradients: Tensors = _Unformed.apply(self, tuple(shapes), tuple(needs), grad.to(dtype), input, weight)
            return gradients
        products = self.products(grad.to(dtype), input, weight, shapes, needs)
        return *products, self.sums(grad, shapes[2]).to(dtype) if needs[2] and shapes[2] is not None else None

    def products(
        self, grad: Tensor, input: Tensor | None, weight: Tensor | None, shapes: Sequence[Any], needs: Needs
    ) -> Tensors:
        """The gradients to input and weight, from the preactivation's, which is rounded."""
        found = _linear_gradients if self.transposed else _matmul_gradients
        return found(grad, input, weight, shapes, needs)

    def second(
        self,
        shapes: Sequence[Any],
        needs: Needs,
        grads: Tensors,
        grad: Tensor,
        input: Tensor | None,
        weight: Tensor | None,
    ) -> Tensors:
        """The gradients of `gradients`' products, which are linear in each of two tensors."""
        of_input, of_weight, of_bias = grads
        found = None
        if needs[0]:
            if of_input is not None:
                assert weight is not None
                found = self.plain(of_input, weight, of_bias)
            elif of_bias is not None:
                found = self.biases(of_bias, grad.shape)
            if of_weight is not None:
                assert input is not None
                more = self.plain(input, of_weight, None)
                found = more if found is None else found + more
        to_input, _ = self.products(grad, None, of_weight, shapes, (needs[1] and of_weight is not None, False))
        _, to_weight = self.products(grad, of_input, None, shapes, (False, needs[2] and of_input is not None))
        return found, to_input, to_weight

    def biases(self, bias: Tensor, shape: Sequence[int]) -> Tensor:
        """The bias in every row of a preactivation."""
        return bias.expand(shape)

    def sums(self, grad: Tensor, shape: Sequence[int]) -> Tensor:
        """The gradient to the bias."""
        return grad.sum_to_size(tuple(shape)) if len(shape) else grad.sum()


class _Unformed(Function):
    """`Product.gradients` without values, which are never read: empty tensors that have
    gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        product: Product,
        shapes: Sequence[Any],
        needs: Needs,
        grad: Tensor,
        input: Tensor | None,
        weight: Tensor | None,
    ) -> Tensors:
        ctx.product, ctx.shapes = product, shapes
        ctx.save_for_backward(grad, input, weight)
        ctx.set_materialize_grads(False)
        wanted = [shape if need else None for shape, need in zip(shapes, needs, strict=True)]
        return tuple([None if shape is None else grad.new_empty(()).expand(shape) for shape in wanted])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        found = ctx.product.second(ctx.shapes, ctx.needs_input_grad[3:], grads, *ctx.saved_tensors)
        return (None, None, None, *found)


def _rows(tensor: Tensor) -> Tensor:
    # Not flatten, which vectorised jacobians have no rule for.
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _linear_gradients(
    grad: Tensor, input: Tensor | None, weight: Tensor | None, shapes: Sequence[Any], needs: Needs
) -> Tensors:
    """Gradients of ``input @ weight.T`` for input ``[..., K]`` and weight ``[N, K]``."""
    grad_input = grad_weight = None
    if needs[0] and weight is not None:
        grad_input = grad @ weight
    if needs[1] and input is not None:
        grad_weight = torch.outer(grad, input) if input.dim() == 1 else _rows(grad).mT @ _rows(input)
    return grad_input, grad_weight


def _matmul_gradients(grad: Tensor, a: Tensor | None, b: Tensor | None, shapes: Sequence[Any], needs: Needs) -> Tensors:
    """Gradients of ``torch.matmul(a, b)``, each summed over the dimensions that broadcast."""
    a_shape, b_shape = tuple(shapes[0] or ()), tuple(shapes[1] or ())
    if len(b_shape) == 1:
        grad = grad.unsqueeze(-1)
    if len(a_shape) == 1:
        grad = grad.unsqueeze(-2)
    grad_a = grad_b = None
    if needs[0] and b is not None:
        columns = b.unsqueeze(-1) if len(b_shape) == 1 else b
        rows_shape = (1, *a_shape) if len(a_shape) == 1 else a_shape
        grad_a = (grad @ columns.mT).sum_to_size(rows_shape).reshape(a_shape)
    if needs[1] and a is not None:
        rows = a.unsqueeze(0) if len(a_shape) == 1 else a
        # One product over all rows sums the batch in the accumulator, before rounding.
        product = _rows(rows).mT @ _rows(grad) if len(b_shape) <= 2 else (rows.mT @ grad).sum_to_size(b_shape)
        grad_b = product.reshape(b_shape)
    return grad_a, grad_b


class _Matrix(Product):
    transposed = False


class _Composed(Product):
    def plain(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(input, weight, bias)


LINEAR, MATMUL, COMPOSED = Product(), _Matrix(), _Composed()
"""`COMPOSED` is `LINEAR` as a PyTorch user writes it."""


def _split_dim(call: Call) -> int:
    return call.dim if OPS[call.op].splits else -1


def _halves(call: Call, preactivation: Tensor) -> tuple[Tensor, Tensor]:
    return formulas.split_gate(preactivation, _split_dim(call), call.gate)


def activated(call: Call, preactivation: Tensor, composed: bool = False) -> Tensor:
    """The hidden activation of a preactivation, rounded once. If `composed`, PyTorch's own
    operations compute it, for exported graphs."""
    if not composed:
        return hidden_of(call, preactivation).to(preactivation.dtype)
    if not call.is_gated:
        return formulas.composed(call.activation, preactivation)
    return formulas.gated_composed(call.gated, *_halves(call, preactivation))


class _FromOutput(Function):
    """A gradient from the saved output, whose backward the core computes."""

    @staticmethod
    def forward(ctx: Any, core: Launcher, call: Call, grad: Tensor, output: Tensor) -> Tensor:
        ctx.problem = Problem(core, call.backward)
        ctx.save_for_backward(grad, output)
        return formulas.grad_preactivation(call.activation, grad, None, output).to(grad.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad_output, output = ctx.saved_tensors
        return None, None, *differentiate(ctx.problem, ctx.needs_input_grad[2:], grad, grad_output, None, output)


def hidden_of(call: Call, preactivation: Tensor, by: By = FORMULAS) -> Tensor:
    """The hidden activation. It is not rounded if PyTorch computes it."""
    if by.core is not None:
        hidden: Tensor = Elementwise.apply(by.core, formulas.between(call), preactivation)
        return hidden
    if not call.is_gated:
        return formulas.unrounded(call.activation, preactivation)
    return formulas.gated_unrounded(call.gated, *_halves(call, preactivation))


def grad_of_hidden(
    call: Call, grad: Tensor, preactivation: Tensor | None, output: Tensor | None = None, by: By = FORMULAS
) -> Tensor:
    """The gradient to the preactivation, from the hidden activation's. It is not rounded if PyTorch
    computes it."""
    if by.core is not None and call.kind != "none":
        between = formulas.between(call)
        if output is not None:
            from_output: Tensor = _FromOutput.apply(by.core, between, grad.to(output.dtype), output)
            return from_output
        assert preactivation is not None
        (gradient,) = differentiate(Problem(by.core, between), (True,), grad.to(preactivation.dtype), preactivation)
        assert gradient is not None
        return gradient
    if not call.is_gated:
        return formulas.grad_preactivation(call.activation, grad, preactivation, output)
    assert preactivation is not None
    value, gate = formulas.gated_backward(call.gated, grad, *_halves(call, preactivation), (True, True))
    assert value is not None and gate is not None
    return formulas.joined(value, gate, _split_dim(call), call.gate)


def added(grad: Tensor | None, extra: Tensor | None) -> Tensor | None:
    """The sum of an unrounded gradient and another, either of which may be None."""
    if grad is None or extra is None:
        return grad if extra is None else formulas.computed(extra)
    return grad + formulas.computed(extra)


def layer(
    product: Product, call: Call, input: Tensor, weight: Tensor, bias: Tensor | None, composed: bool = False
) -> Pair:
    """``act(input @ weight + bias)``."""
    preactivation = product.value(input, weight, bias)
    return activated(call, preactivation, composed), preactivation


def layer_backward(
    product: Product,
    call: Call,
    shapes: Sequence[Any],
    needs: Needs,
    grad: Tensor | None,
    input: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    preactivation: Tensor | None,
    output: Tensor | None = None,
    *,
    grad_hidden: Tensor | None = None,
    by: By = FORMULAS,
) -> Tensors:
    grad_pre = None
    if grad is not None:
        if call.kind != "none" and preactivation is None and output is None:
            assert input is not None and weight is not None
            preactivation = product.value(input, weight, bias)
        grad_pre = grad_of_hidden(call, grad, preactivation, output, by)
    total = added(grad_pre, grad_hidden)
    given = grad if grad is not None else grad_hidden
    assert total is not None and given is not None
    return product.gradients(total, input, weight, given.dtype, shapes, needs, by.formed)


def layer_second(
    product: Product,
    problem: Problem,
    wanted: Needs,
    grads: Tensors,
    grad: Tensor | None,
    input: Tensor | None,
    weight: Tensor | None,
    _: Tensor | None,
    preactivation: Tensor | None,
    output: Tensor | None,
) -> Tensors | None:
    """The backward of `layer_backward` by the core: `grads` are the gradients to its results. It is
    None without grad_output, or if the preactivation would have to be formed again.
    """
    kept = preactivation if output is None else output
    is_linear = problem.call.kind == "none"
    if grad is None or (kept is None and not is_linear):
        return None
    # Without an activation the gradient is `grad` itself, which the formula would widen.
    grad_pre = grad if is_linear else grad_of_hidden(problem.call, grad, preactivation, output, By(problem.core))
    of_pre = wanted[0], wanted[4] or wanted[5]
    needs = any(of_pre), *wanted[1:3]
    found, to_input, to_weight = product.second(problem.shapes, needs, grads, grad_pre, input, weight)
    del grad_pre  # memory is highest in the pass below
    to_grad, to_kept = found, None
    if found is not None and not is_linear:
        between = Problem(problem.core, formulas.between(problem.call).backward)
        saved = (preactivation,) if output is None else (None, output)
        to_grad, to_kept = differentiate(between, of_pre, found, grad, *saved)
    return to_grad, to_input, to_weight, None, *((to_kept, None) if output is None else (None, to_kept))


def gated_linear(
    call: Call,
    input: Tensor,
    weight_value: Tensor,
    weight_gate: Tensor,
    bias_value: Tensor | None,
    bias_gate: Tensor | None,
    composed: bool = False,
) -> Pair:
    product, gated = (COMPOSED, formulas.gated_composed) if composed else (LINEAR, formulas.gated_unrounded)
    value, gate = product.value(input, weight_value, bias_value), product.value(input, weight_gate, bias_gate)
    return gated(call.gated, value, gate).to(value.dtype), torch.cat([value, gate], -1)


def gated_linear_backward(
    call: Call,
    shapes: Sequence[Any],
    needs: Needs,
    grad: Tensor | None,
    input: Tensor | None,
    *rest: Tensor | None,
    grad_hidden: Tensor | None = None,
    by: By = FORMULAS,
) -> Tensors:
    weight_value, weight_gate, bias_value, bias_gate, preactivation = rest
    grad_pre = None
    if grad is not None:
        if preactivation is None:
            assert input is not None and weight_value is not None and weight_gate is not None
            _, preactivation = gated_linear(call, input, weight_value, weight_gate, bias_value, bias_gate)
        grad_pre = grad_of_hidden(call, grad, preactivation, by=by)
    total = added(grad_pre, grad_hidden)
    given = grad if grad is not None else grad_hidden
    assert total is not None and given is not None
    halves = formulas.split_gate(total, -1, 0)
    grad_input, of_weights, of_biases = None, [], []
    for place, (half, weight) in enumerate(zip(halves, (weight_value, weight_gate), strict=True)):
        places = (0, 1 + place, 3 + place)
        of = [shapes[i] for i in places], [needs[i] for i in places]
        of_input, of_weight, of_bias = LINEAR.gradients(half, input, weight, given.dtype, *of, by.formed)
        grad_input = of_input if grad_input is None or of_input is None else grad_input + of_input
        of_weights.append(of_weight)
        of_biases.append(of_bias)
    return (grad_input, *of_weights, *of_biases)


def block(
    call: Call,
    input: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    composed: bool = False,
) -> Pair:
    """A two-layer block: its output and its first layer's preactivation."""
    product = COMPOSED if composed else LINEAR
    preactivation = product.value(input, weight1, bias1)
    return product.value(activated(call, preactivation, composed), weight2, bias2), preactivation


def block_backward(
    call: Call,
    shapes: Sequence[Any],
    needs: Needs,
    grad: Tensor | None,
    input: Tensor | None,
    *rest: Tensor | None,
    grad_hidden: Tensor | None = None,
    by: By = FORMULAS,
) -> Tensors:
    weight1, bias1, weight2, _, preactivation = rest
    given = grad if grad is not None else grad_hidden
    assert given is not None
    first = any(needs[:3])
    if preactivation is None and (needs[3] or (first and call.kind != "none")):
        assert input is not None and weight1 is not None
        preactivation = LINEAR.value(input, weight1, bias1)
    second: list[Tensor | None] = [None, None]
    grad_pre = None
    if grad is not None:
        hidden = hidden_of(call, preactivation, by).to(given.dtype) if needs[3] and preactivation is not None else None
        of_hidden = (*grad.shape[:-1], shapes[3][1])
        if first:
            (grad_activated, _) = LINEAR.products(grad, None, weight2, (of_hidden, shapes[3]), (True, False))
            assert grad_activated is not None
            grad_pre = grad_of_hidden(call, grad_activated, preactivation, by=by)
        of_second = (of_hidden, *shapes[3:]), (False, *needs[3:])
        _, *second = LINEAR.gradients(formulas.computed(grad), hidden, weight2, given.dtype, *of_second, by.formed)
    total = added(grad_pre, grad_hidden)
    if total is None or not first:
        return None, None, None, *second
    return (*LINEAR.gradients(total, input, weight1, given.dtype, shapes[:3], needs[:3], by.formed), *second)
