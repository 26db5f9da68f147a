"""The rules of elementwise operators: activations, gated activations and products, lerp, and
activations whose parameters are tensors.

prelu's weight has one element, or one for each index of the input's second dimension. xielu's
alphas have one element each. lerp's weight is a tensor, or the number `factor` where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from epigrad._autograd import formulas
from epigrad._autograd.functions import (
    ActivationProblem,
    Elementwise,
    GatedActivationProblem,
    GatedProduct,
    GatedProductProblem,
    LearnableProblem,
    Lerp,
    LerpProblem,
)
from epigrad._core.call import Call
from epigrad._core.launcher import factor_of, overload
from epigrad._core.torch_state import as_input
from epigrad.ops import batching, shapes
from epigrad.ops.operator import Rules


def _activation(call: Call, input: Tensor) -> Tensor:
    return formulas.activated(call.activation, input)


def _activation_composed(call: Call, input: Tensor) -> Tensor:
    return formulas.composed(call.activation, input)


def _gated_activation(call: Call, input: Tensor) -> Tensor:
    return formulas.gated(call.gated, *formulas.split_gate(input, call.dim, call.gate))


def _gated_activation_composed(call: Call, input: Tensor) -> Tensor:
    return formulas.gated_composed(call.gated, *formulas.split_gate(input, call.dim, call.gate))


def _halved(call: Call, input: Tensor) -> shapes.Shapes:
    place, sizes = range(input.dim())[call.dim], input.shape
    return ((*sizes[:place], shapes.half(call.op, "input", sizes[place]), *sizes[place + 1 :]),)


def _gated_product(call: Call, value: Tensor, gate: Tensor) -> Tensor:
    return formulas.gated(call.gated, value, gate)


def _gated_product_composed(call: Call, value: Tensor, gate: Tensor) -> Tensor:
    return formulas.gated_composed(call.gated, value, gate)


def _lerp(
    call: Call, start: Tensor, end: Tensor, weight: Tensor | None, formula: Callable[..., Tensor] = formulas.lerp
) -> Tensor:
    return formula(start, end, factor_of(call) if weight is None else weight)


def _broadcast(call: Call, *tensors: Tensor | None) -> shapes.Shapes:
    return (shapes.broadcast(*[tensor.shape for tensor in tensors if tensor is not None]),)


def _lerp_batched(info: Any, in_dims: batching.InDims, *tensors: Any, **options: Any) -> Any:
    """The rule of `torch.vmap`. Slices broadcast, so each is padded to the longest rank."""
    return overload("lerp")(*batching.aligned(tensors, batching.dims_of(in_dims, len(tensors))), **options), 0


def _learnable(call: Call, *tensors: Tensor) -> Tensor:
    return formulas.learnable(call.op, call.parameters, *tensors)


def _learnable_composed(call: Call, *tensors: Tensor) -> Tensor:
    return formulas.LEARNABLE[call.op].composed(*tensors, *call.parameters)


def _with_small(call: Call, input: Tensor, *parameters: Tensor) -> shapes.Shapes:
    """The input's shape, of parameters of one element; prelu's may have one for each channel."""
    for parameter in parameters:
        if parameter.dim() and not (isinstance(parameter.shape[0], int) and parameter.shape[0] == 1):
            channels = input.shape[1] if call.op == "prelu" and input.dim() > 1 else 1
            shapes.same(call.op, "elements of a parameter", parameter.shape[0], channels)
    return (input.shape,)


def _batch_last(name: str) -> Callable[..., Any]:
    """The rule of `torch.vmap`. A batch of inputs becomes the last dimension, since prelu's weight
    belongs to the second one. If parameters are batched, each slice is a call.
    """

    def rule(info: Any, in_dims: batching.InDims, input: Tensor, *rest: Any, **options: Any) -> Any:
        dim, *others = in_dims
        # After a sample of one dimension, the batch would be the second dimension.
        becomes_channels = name == "prelu" and input.dim() < 3
        if dim is None or becomes_channels or any(other is not None for other in others):
            return batching.slice_by_slice(overload(name))(info, in_dims, input, *rest, **options)
        out = overload(name)(input.movedim(dim, -1), *rest, **options)
        return out, out.dim() - 1

    return rule


def _learnable_rules(name: str) -> Rules:
    return Rules(
        Elementwise,
        LearnableProblem,
        _learnable,
        _learnable_composed,
        batched=_batch_last(name),
        casts=as_input,
        shapes=_with_small,
    )


RULES = {
    "activation": Rules(
        Elementwise,
        ActivationProblem,
        _activation,
        _activation_composed,
        batched=batching.of_one_shape("activation", 1),
        gradients_batched=batching.of_one_shape("activation_backward", 2),
    ),
    "gated_activation": Rules(
        Elementwise,
        GatedActivationProblem,
        _gated_activation,
        _gated_activation_composed,
        batched=batching.of_one_shape("gated_activation", 1),
        gradients_batched=batching.of_one_shape("gated_activation_backward", 2),
        shapes=_halved,
    ),
    "gated_product": Rules(
        GatedProduct,
        GatedProductProblem,
        _gated_product,
        _gated_product_composed,
        batched=batching.of_one_shape("gated_product", 2),
        gradients_batched=batching.of_one_shape("gated_product_backward", 3),
    ),
    "lerp": Rules(
        Lerp, LerpProblem, _lerp, partial(_lerp, formula=torch.lerp), batched=_lerp_batched, shapes=_broadcast
    ),
    "prelu": _learnable_rules("prelu"),
    "xielu": _learnable_rules("xielu"),
}
"""The rules of each operation, by its name."""
