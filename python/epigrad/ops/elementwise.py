"""The rules of elementwise operators: activations, gated activations and products, lerp, and
activations whose parameters are tensors.

A parameter has one element. prelu's weight may have one for each channel, an index of the input's
second dimension. lerp's weight is a tensor, or the number `factor` where there is none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from epigrad._autograd import formulas, layers
from epigrad._autograd.functions import Needs
from epigrad._core.call import Call
from epigrad._core.launcher import Tensors, overload
from epigrad._core.tables import OPS
from epigrad._core.torch_state import as_input, transforms_active
from epigrad.ops import batching, shapes
from epigrad.ops.operator import Rules


def _of_one(name: str, **rules: Any) -> Rules:
    """The rules of a kind of one tensor."""
    return Rules(
        layers.activated,
        lambda call, _, needs, grad, input: (layers.grad_of_hidden(call, grad, input).to(grad.dtype),),
        partial(layers.activated, composed=True),
        batched=batching.of_one_shape(name, 1),
        gradients_batched=batching.of_one_shape(f"{name}_backward", 2),
        **rules,
    )


def _filled(_: Any, *tensors: Tensor | None) -> tuple[Tensors, tuple[()]]:
    # A missing gradient is 0. A tensor that was not kept is only multiplied by a missing gradient.
    like = next(tensor for tensor in tensors if tensor is not None)
    zeros = like.new_zeros(()).expand(like.shape)
    return tuple([zeros if tensor is None else tensor for tensor in tensors]), ()


def _pulled(of: Callable[..., Any], at: Sequence[Tensor], grads: tuple[Tensor, ...]) -> Sequence[Tensor]:
    """The gradients of a function, differentiable themselves if grad mode is on."""
    if transforms_active():
        pull: Callable[..., tuple[Tensor, ...]] = torch.func.vjp(of, *at)[1]
        return pull(grads)
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        own = [tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_() for tensor in at]
        return torch.autograd.grad(of(*own), own, grads, create_graph=create_graph, materialize_grads=True)


def _of_gradients(value: Callable[..., Tensors], count: int, **rules: Any) -> Rules:
    """The rules of a backward operation with `count` gradients that has a backward of its own.

    `value` has the gradients, of a call and tensors. Where an output stands for the last tensor,
    so does its gradient.
    """

    def backward(call: Call, _: Any, needs: Needs, *tensors: Tensor | None) -> Tensors:
        if count > 1:
            tensors = _filled(None, *tensors)[0]
        grads, operands = tensors[:count], list(tensors[count:])
        places = [place for place, tensor in enumerate(operands) if tensor is not None]

        def of(*chosen: Tensor) -> Tensors:
            for place, tensor in zip(places, chosen, strict=True):
                operands[place] = tensor
            return value(call, *operands)

        wide = [formulas.computed(tensor) for tensor in operands if tensor is not None]
        found = _pulled(of, wide, tuple([formulas.computed(grad) for grad in grads]))  # type: ignore[arg-type]
        dtype = grads[0].dtype  # type: ignore[union-attr]
        return tuple([gradient.to(dtype) if need else None for gradient, need in zip(found, needs, strict=True)])

    return Rules(value, backward, **rules)


def _gated_product_gradients(call: Call, grad: Tensor, value: Tensor, gate: Tensor) -> Tensors:
    return formulas.gated_backward(call.gated, grad, value, gate, (True, True))


def _halved(call: Call, input: Tensor) -> shapes.Shapes:
    place, sizes = range(input.dim())[call.dim], input.shape
    return ((*sizes[:place], shapes.half(call.op, "input", sizes[place]), *sizes[place + 1 :]),)


def _gated_product_backward(
    call: Call, _: Any, needs: Needs, grad: Tensor, value: Tensor | None, gate: Tensor | None
) -> Tensors:
    grads = formulas.gated_backward(call.gated, grad, value, gate, needs)
    return tuple([None if gradient is None else gradient.to(grad.dtype) for gradient in grads])


def _gated_product_keeps(call: Call, needs: Needs) -> Needs:
    value, gate = needs
    return gate or formulas.keeps_value(call.gated), value or formulas.keeps_gate(call.gated)


def _gated_product_operands(
    _: Any, grad: Tensor, value: Tensor | None, gate: Tensor | None
) -> tuple[Tensors, tuple[()]]:
    # What was not kept is not read; grad_output has its shape and stands in for it.
    return (grad, grad if value is None else value, grad if gate is None else gate), ()


def _lerp_keeps(call: Call, needs: Needs) -> Needs:
    start, end, weight = needs
    return weight, weight, start or end


def _lerp_operands(of: Sequence[Any], grad: Tensor, *rest: Tensor | None) -> tuple[Tensors, tuple[Any, ...]]:
    # An operand without a shape has grad_output's.
    start, end, weight = of
    shape = grad.shape
    start, end = None if _known_equal(start, shape) else start, None if _known_equal(end, shape) else end
    return (grad, *rest), (start, end, weight)


def _known_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are equal, without a guard on a size that is a symbol."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        equal = a == b
        if type(equal) is torch.SymBool:
            # The module imports sympy, so only a process with symbols imports it.
            equal = importlib.import_module("torch.fx.experimental.symbolic_shapes").statically_known_true(equal)
        if not equal:
            return False
    return True


def _broadcast(call: Call, *tensors: Tensor | None) -> shapes.Shapes:
    return (shapes.broadcast(*[tensor.shape for tensor in tensors if tensor is not None]),)


def _lerp_batched(info: Any, in_dims: batching.InDims, *tensors: Any, **options: Any) -> Any:
    """The rule of `torch.vmap`. Slices broadcast, so each is padded to the longest rank."""
    return overload("lerp")(*batching.aligned(tensors, batching.dims_of(in_dims, len(tensors))), **options), 0


def _with_small(call: Call, input: Tensor, *parameters: Tensor) -> shapes.Shapes:
    """The input's shape, of parameters of one element, or of one for each channel."""
    for row, parameter in zip(OPS[call.op].inputs[1:], parameters, strict=True):
        if parameter.dim() and not (isinstance(parameter.shape[0], int) and parameter.shape[0] == 1):
            channels = input.shape[1] if row.channels and input.dim() > 1 else 1
            shapes.same(call.op, "elements of a parameter", parameter.shape[0], channels)
    return (input.shape,)


def _batch_last(name: str) -> Callable[..., Any]:
    """The rule of `torch.vmap`. A batch of inputs becomes the last dimension, since channels are
    the second one. If parameters are batched, each slice is a call.
    """
    has_channels = any(argument.channels for argument in OPS[name].inputs)

    def rule(info: Any, in_dims: batching.InDims, input: Tensor, *rest: Any, **options: Any) -> Any:
        dim, *others = in_dims
        # After a sample of one dimension, the batch would be the second dimension.
        becomes_channels = has_channels and input.dim() < 3
        if dim is None or becomes_channels or any(other is not None for other in others):
            return batching.slice_by_slice(overload(name))(info, in_dims, input, *rest, **options)
        out = overload(name)(input.movedim(dim, -1), *rest, **options)
        return out, out.dim() - 1

    return rule


def _of_tensors(row: formulas.Learnable, **rules: Any) -> Rules:
    value, backward = partial(formulas.learnable, row), partial(formulas.learnable_backward, row)
    return Rules(value, backward, lambda call, *tensors: row.composed(*tensors, *call.parameters), **rules)


def _with_parameters(name: str, row: formulas.Learnable) -> Rules:
    """The rules of an activation whose parameters are tensors."""
    return _of_tensors(row, batched=_batch_last(name), casts=as_input, shapes=_with_small)


RULES = {
    "activation": _of_one("activation"),
    "activation_backward": _of_gradients(
        lambda call, *tensors: (layers.grad_of_hidden(call, *tensors),),
        1,
        operands=lambda _, *tensors: ((*tensors, None)[:4], ()),  # the output is the last
    ),
    "gated_activation_backward": _of_gradients(
        lambda call, *tensors: (layers.grad_of_hidden(call, *tensors),),
        1,
        shapes=lambda call, grad, input: (input.shape,),
    ),
    "gated_product_backward": _of_gradients(_gated_product_gradients, 2, operands=_filled),
    "gated_activation": _of_one("gated_activation", shapes=_halved),
    "gated_product": Rules(
        lambda call, value, gate: formulas.gated_unrounded(call.gated, value, gate).to(value.dtype),
        _gated_product_backward,
        lambda call, value, gate: formulas.gated_composed(call.gated, value, gate),
        keeps=_gated_product_keeps,
        operands=_gated_product_operands,
        batched=batching.of_one_shape("gated_product", 2),
        gradients_batched=batching.of_one_shape("gated_product_backward", 3),
    ),
    "lerp": _of_tensors(
        formulas.LERP,
        keeps=_lerp_keeps,
        operands=_lerp_operands,
        batched=_lerp_batched,
        shapes=_broadcast,
    ),
    **{name: _with_parameters(name, row) for name, row in formulas.LEARNABLE.items()},
}
"""The rules of each operation, by its name."""
