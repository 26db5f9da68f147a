"""The operators of layers with a weight for each group of rows, and of mixtures of experts.

Forward gives the output and the preactivation. It is empty if `save` keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad import errors
from epigrad._autograd.functions import PREACTIVATION, forms_preactivation
from epigrad._autograd.grouped import (
    Experts,
    ExpertsProblem,
    GroupedLinear,
    GroupedLinearProblem,
    check_offsets,
    experts_formula,
    grouped_linear_formula,
)
from epigrad._core.launcher import DISPATCHER, Launcher, Tensors
from epigrad._core.tables import GATED_KINDS, PRESETS
from epigrad._core.torch_state import as_experts, as_linear
from epigrad.ops import shapes
from epigrad.ops.operator import PARAMETERS, PRODUCT_OPTIONS, Gradients, Layers, Operator, activation_call, experts_call

Pair = tuple[Tensor, Tensor]


@dataclass
class GroupedForward(Layers):
    """A call of the layer."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    offsets: Tensor
    activation: str | None = "none"
    _: KW_ONLY
    parameters: Sequence[float] = ()
    save: str = "auto"
    backend: str | None = None

    op = "grouped_linear"

    def __post_init__(self) -> None:
        self.call = activation_call(self.op, self.activation, self.parameters, self.backend)
        self.keep = GroupedLinear.kept(self.call, self.save)
        self.needs = (True, self.keep == PREACTIVATION)
        self.tensors = (self.input, self.weight, self.bias, self.offsets)

    def recorded(self) -> Pair:
        return self.returned(GroupedLinear.apply(DISPATCHER, self.call, self.keep, *self.tensors))

    def formula(self) -> Pair:
        check_offsets(self.op, self.offsets, self.input.shape[0])
        return self._formula(False)

    def composed(self) -> Pair:
        return self._formula(True)

    def _formula(self, composed: bool) -> Pair:
        operands = (self.input, self.weight, self.bias, self.offsets)
        out, preactivation = grouped_linear_formula(self.call, *operands, composed=composed)
        return self.returned((out, preactivation if self.needs[1] else None))

    def of_one_dtype(self) -> Tensors:
        return (self.input, self.weight, self.bias)

    def symbolic(self) -> shapes.Shapes:
        shape = _grouped_shape(self.op, self.input, self.weight, self.bias, self.offsets)
        return shape, shape


def _grouped_shape(op: str, input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor) -> shapes.Shape:
    _ranks(op, input=(input, 2), weight=(weight, 3), bias=(bias, 2), offsets=(offsets, 1))
    shapes.same(op, "K", input.shape[1], weight.shape[2])
    shapes.same(op, "offsets", offsets.shape[0], weight.shape[0])
    if bias is not None:
        shapes.same_shape(op, "bias", bias.shape, weight.shape[:2])
    return input.shape[0], weight.shape[1]


def _ranks(op: str, **tensors: tuple[Tensor | None, int]) -> None:
    for name, (tensor, rank) in tensors.items():
        if tensor is not None and tensor.dim() != rank:
            raise errors.InvalidProblemError(f"{op}: {name}: {tensor.dim()} dimensions, want {rank}")


@dataclass
class GroupedBackward(Gradients):
    """A call of the layer's gradients. Of tensors that are not needed, only the shape is read."""

    grad_output: Tensor
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    offsets: Tensor
    activation: str | None = "none"
    preactivation: Tensor | None = None
    _: KW_ONLY
    parameters: Sequence[float] = ()
    needs: Sequence[bool] = (True,) * 3
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = activation_call(GroupedForward.op, self.activation, self.parameters, self.backend)
        inputs = (self.input, self.weight, self.bias, self.offsets)
        self.tensors = (self.grad_output, *inputs, self.preactivation)
        self.sizes: Any = tuple([None if tensor is None else tensor.shape for tensor in inputs])

    def problem(self, core: Launcher) -> GroupedLinearProblem:
        return GroupedLinearProblem(core, self.call, self.sizes)

    def formula(self) -> Any:
        check_offsets(self.call.backward.op, self.offsets, self.input.shape[0])
        return self.composed()

    def composed(self) -> Any:
        return super().formula()

    def of_one_dtype(self) -> Tensors:
        return (self.grad_output, self.input, self.weight, self.bias, self.preactivation)

    def symbolic(self) -> shapes.Shapes:
        op = "grouped_linear_backward"
        out = _grouped_shape(op, self.input, self.weight, self.bias, self.offsets)
        shapes.same_shape(op, "grad_output", self.grad_output.shape, out)
        return tuple(self.sizes[:3])


@dataclass
class ExpertsForward(Layers):
    """A call of the mixture."""

    input: Tensor
    index: Tensor
    scale: Tensor
    weight_in: Tensor
    bias_in: Tensor | None
    weight_out: Tensor
    bias_out: Tensor | None
    kind: str = "swiglu"
    _: KW_ONLY
    parameters: Sequence[float] = ()
    gate: str = "second"
    save: str = "auto"
    backend: str | None = None

    op = "experts"

    def __post_init__(self) -> None:
        self.call = experts_call(self.op, self.kind, self.parameters, self.backend, self.gate)
        self.keep = Experts.kept(self.call, self.save)
        self.needs = (True, self.keep == PREACTIVATION)
        layers = (self.weight_in, self.bias_in, self.weight_out, self.bias_out)
        self.operands = (self.input, self.index, self.scale, *layers)
        self.tensors: Tensors = self.operands

    def recorded(self) -> Pair:
        return self.returned(Experts.apply(DISPATCHER, self.call, self.keep, *self.tensors))

    def formula(self) -> Pair:
        out, preactivation = experts_formula(self.call, *self.operands)
        return self.returned((out, preactivation if self.needs[1] else None))

    def composed(self) -> Pair:
        return self.formula()

    def of_one_dtype(self) -> Tensors:
        return (self.input, *_beside(self.scale, self.input), *self.operands[3:])

    def symbolic(self) -> shapes.Shapes:
        return _mixture_shapes(self.op, self.kind, *self.operands)


def _beside(scale: Tensor, input: Tensor) -> Tensors:
    """The scale, if it may not be float32 beside the input."""
    return () if scale.dtype == torch.float32 and input.dtype.itemsize == 2 else (scale,)


def _mixture_shapes(
    op: str,
    kind: str,
    input: Tensor,
    index: Tensor,
    scale: Tensor,
    weight_in: Tensor,
    bias_in: Tensor | None,
    weight_out: Tensor,
    bias_out: Tensor | None,
) -> shapes.Shapes:
    _ranks(op, input=(input, 2), index=(index, 2), weight_in=(weight_in, 3), bias_in=(bias_in, 2))
    shapes.same(op, "tokens", index.shape[0], input.shape[0])
    shapes.same_shape(op, "scale", scale.shape, index.shape)
    shapes.same(op, "K", weight_in.shape[2], input.shape[1])
    columns = weight_in.shape[1]
    features = shapes.half(op, "weight_in", columns) if _is_gated(kind) else columns
    shapes.same_shape(op, "weight_out", weight_out.shape, (weight_in.shape[0], input.shape[1], features))
    for name, bias, weight in (("bias_in", bias_in, weight_in), ("bias_out", bias_out, weight_out)):
        if bias is not None:
            shapes.same_shape(op, name, bias.shape, weight.shape[:2])
    return tuple(input.shape), (index.shape[0] * index.shape[1], columns)


def _is_gated(kind: str) -> bool:
    return kind in GATED_KINDS or kind in PRESETS


@dataclass
class ExpertsBackward(Gradients):
    """A call of the mixture's gradients. Of tensors that are not needed, only the shape is read."""

    grad_output: Tensor
    input: Tensor
    index: Tensor
    scale: Tensor
    weight_in: Tensor
    bias_in: Tensor | None
    weight_out: Tensor
    bias_out: Tensor | None
    kind: str = "swiglu"
    preactivation: Tensor | None = None
    _: KW_ONLY
    parameters: Sequence[float] = ()
    gate: str = "second"
    needs: Sequence[bool] = (True,) * 6
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = experts_call(ExpertsForward.op, self.kind, self.parameters, self.backend, self.gate)
        layers = (self.weight_in, self.bias_in, self.weight_out, self.bias_out)
        self.operands = (self.input, self.index, self.scale, *layers)
        self.tensors = (self.grad_output, *self.operands, self.preactivation)
        self.sizes: Any = tuple([None if tensor is None else tensor.shape for tensor in self.operands])

    def problem(self, core: Launcher) -> ExpertsProblem:
        return ExpertsProblem(core, self.call, self.sizes)

    def differentiated(self) -> Tensors:
        return (self.input, *self.operands[2:])

    def new_results(self) -> Tensors:
        grad_input, grad_scale, *rest = super().new_results()
        if grad_scale is not None:  # which may have a dtype of its own
            grad_scale = grad_scale.new_empty(grad_scale.shape, dtype=self.scale.dtype)
        return (grad_input, grad_scale, *rest)

    def of_one_dtype(self) -> Tensors:
        scale = _beside(self.scale, self.input)
        return (self.grad_output, self.input, *scale, *self.operands[3:], self.preactivation)

    def symbolic(self) -> shapes.Shapes:
        op = "experts_backward"
        out, _ = _mixture_shapes(op, self.kind, *self.operands)
        assert out is not None
        shapes.same_shape(op, "grad_output", self.grad_output.shape, out)
        return (self.sizes[0], *self.sizes[2:])


def _grouped_flops(input: Any, weight: Any, *rest: Any, **options: Any) -> int:
    count: int = 2 * input[0] * weight[1] * weight[2]
    return count


def _grouped_backward_flops(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias: Any,
    offsets: Any,
    activation: str | None = "none",
    preactivation: Any = None,
    *,
    needs: Sequence[bool] = (True,) * 3,
    **options: Any,
) -> int:
    formed_again = forms_preactivation(activation, preactivation, None)
    return _grouped_flops(input, weight) * (bool(needs[0]) + bool(needs[1]) + formed_again)


def _products(index: Any, weight_in: Any, weight_out: Any) -> tuple[int, int]:
    slots: int = 2 * index[0] * index[1]
    return slots * weight_in[1] * weight_in[2], slots * weight_out[1] * weight_out[2]


def _experts_flops(
    input: Any, index: Any, scale: Any, weight_in: Any, bias_in: Any, weight_out: Any, *rest: Any, **options: Any
) -> int:
    return sum(_products(index, weight_in, weight_out))


def _experts_backward_flops(
    grad_output: Any,
    input: Any,
    index: Any,
    scale: Any,
    weight_in: Any,
    bias_in: Any,
    weight_out: Any,
    bias_out: Any,
    kind: str = "swiglu",
    preactivation: Any = None,
    *,
    needs: Sequence[bool] = (True,) * 6,
    **options: Any,
) -> int:
    first, second = _products(index, weight_in, weight_out)
    need_input, need_scale, need_weight_in, need_bias_in, need_weight_out, _ = needs
    through = need_input or need_scale or need_weight_in or need_bias_in
    formed_again = preactivation is None and (through or need_weight_out)
    return first * (bool(need_input) + bool(need_weight_in) + formed_again) + second * (through + bool(need_weight_out))


_LAYER = "Tensor input, Tensor weight, Tensor? bias, Tensor offsets, str? activation='none'"
_MIXTURE = (
    "Tensor input, Tensor index, Tensor scale, Tensor weight_in, Tensor? bias_in, Tensor weight_out, "
    "Tensor? bias_out, str kind='swiglu'"
)

OPERATORS = (
    Operator(
        GroupedForward.op,
        f"({_LAYER}, *, {PARAMETERS}, str save='auto', {PRODUCT_OPTIONS}) -> (Tensor output, Tensor preactivation)",
        bind=GroupedForward,
        flops=_grouped_flops,
        casts=as_linear,
    ),
    Operator(
        "grouped_linear_backward",
        f"(Tensor grad_output, {_LAYER}, Tensor? preactivation=None, *, {PARAMETERS}, "
        f"bool[3] needs=[True, True, True], {PRODUCT_OPTIONS}) -> "
        "(Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
        bind=GroupedBackward,
        flops=_grouped_backward_flops,
    ),
    Operator(
        ExpertsForward.op,
        f"({_MIXTURE}, *, {PARAMETERS}, str gate='second', str save='auto', {PRODUCT_OPTIONS}) -> "
        "(Tensor output, Tensor preactivation)",
        bind=ExpertsForward,
        flops=_experts_flops,
        casts=as_experts,
    ),
    Operator(
        "experts_backward",
        f"(Tensor grad_output, {_MIXTURE}, Tensor? preactivation=None, *, {PARAMETERS}, str gate='second', "
        f"bool[6] needs=[True, True, True, True, True, True], {PRODUCT_OPTIONS}) -> (Tensor grad_input, "
        "Tensor grad_scale, Tensor grad_weight_in, Tensor grad_bias_in, Tensor grad_weight_out, Tensor grad_bias_out)",
        bind=ExpertsBackward,
        flops=_experts_backward_flops,
    ),
)
