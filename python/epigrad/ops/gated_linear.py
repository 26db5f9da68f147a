"""The operators of the gated linear layer, forward and backward.

Forward gives the output and the preactivation. It is empty if `save` keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from epigrad._autograd import formulas
from epigrad._autograd.functions import PREACTIVATION
from epigrad._autograd.gated_linear import GatedLinear, GatedLinearProblem, gated_linear_formula
from epigrad._core.launcher import DISPATCHER, Launcher
from epigrad._core.torch_state import as_linear
from epigrad.ops import batching, gemm, shapes
from epigrad.ops.operator import PARAMETERS, PRODUCT_OPTIONS, Gradients, Layers, Operator, gated_call

Pair = tuple[Tensor, Tensor]


@dataclass
class Forward(Layers):
    """A call of the layer."""

    input: Tensor
    weight_value: Tensor
    weight_gate: Tensor
    bias_value: Tensor | None = None
    bias_gate: Tensor | None = None
    kind: str = "swiglu"
    _: KW_ONLY
    parameters: Sequence[float] = ()
    save: str = "auto"
    backend: str | None = None

    op = "gated_linear"

    def __post_init__(self) -> None:
        self.call = gated_call(self.op, self.kind, self.parameters, self.backend)
        self.keep = GatedLinear.kept(self.call, self.save)
        self.needs = (True, self.keep == PREACTIVATION)
        self.layers = (self.weight_value, self.weight_gate, self.bias_value, self.bias_gate)
        self.tensors = (self.input, *self.layers)

    def recorded(self) -> Pair:
        return self.returned(GatedLinear.apply(DISPATCHER, self.call, self.keep, *self.tensors))

    def formula(self) -> Pair:
        out, preactivation = gated_linear_formula(self.call, self.input, *self.layers)
        return self.returned((out, preactivation if self.needs[1] else None))

    def composed(self) -> Pair:
        value = functional.linear(self.input, self.weight_value, self.bias_value)
        gate = functional.linear(self.input, self.weight_gate, self.bias_gate)
        out = formulas.gated_composed(self.call.gated, value, gate)
        return self.returned((out, torch.cat([value, gate], -1) if self.needs[1] else None))

    def symbolic(self) -> shapes.Shapes:
        shapes.same_shape(self.op, "weight_gate", self.weight_gate.shape, self.weight_value.shape)
        for weight, bias in ((self.weight_value, self.bias_value), (self.weight_gate, self.bias_gate)):
            out = shapes.gemm("linear", self.input.shape, weight.shape, None if bias is None else bias.shape)
        return out, (*out[:-1], 2 * out[-1])


@dataclass
class Backward(Gradients):
    """A call of the layer's gradients. Of tensors that are not needed, only the shape is read."""

    grad_output: Tensor
    input: Tensor
    weight_value: Tensor
    weight_gate: Tensor
    bias_value: Tensor | None = None
    bias_gate: Tensor | None = None
    kind: str = "swiglu"
    preactivation: Tensor | None = None
    _: KW_ONLY
    parameters: Sequence[float] = ()
    needs: Sequence[bool] = (True,) * 5
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = gated_call(Forward.op, self.kind, self.parameters, self.backend)
        inputs = (self.input, self.weight_value, self.weight_gate, self.bias_value, self.bias_gate)
        self.tensors = (self.grad_output, *inputs, self.preactivation)
        self.sizes: Any = tuple([None if tensor is None else tensor.shape for tensor in inputs])

    def problem(self, core: Launcher) -> GatedLinearProblem:
        return GatedLinearProblem(core, self.call, self.sizes)

    def symbolic(self) -> shapes.Shapes:
        out = (*self.input.shape[:-1], self.weight_value.shape[0])
        shapes.same_shape("gated_linear_backward", "grad_output", self.grad_output.shape, out)
        return tuple(self.sizes)


def _flops(input: Any, weight_value: Any, weight_gate: Any, *rest: Any, **options: Any) -> int:
    return gemm.flops("linear", input, weight_value) + gemm.flops("linear", input, weight_gate)


def _backward_flops(
    grad_output: Any,
    input: Any,
    weight_value: Any,
    weight_gate: Any,
    bias_value: Any = None,
    bias_gate: Any = None,
    kind: str = "swiglu",
    preactivation: Any = None,
    *,
    needs: Sequence[bool] = (True,) * 5,
    **options: Any,
) -> int:
    both = _flops(input, weight_value, weight_gate)
    formed_again = preactivation is None and any(needs)
    return both * (bool(needs[0]) + formed_again) + both // 2 * (bool(needs[1]) + bool(needs[2]))


_INPUTS = (
    "Tensor input, Tensor weight_value, Tensor weight_gate, Tensor? bias_value=None, Tensor? bias_gate=None, "
    "str kind='swiglu'"
)
_GRADIENTS = (
    "(Tensor grad_input, Tensor grad_weight_value, Tensor grad_weight_gate, Tensor grad_bias_value, "
    "Tensor grad_bias_gate)"
)

OPERATORS = (
    Operator(
        Forward.op,
        f"({_INPUTS}, *, {PARAMETERS}, str save='auto', {PRODUCT_OPTIONS}) -> (Tensor output, Tensor preactivation)",
        bind=Forward,
        batched=batching.by_rows(Forward.op),
        flops=_flops,
        casts=as_linear,
    ),
    Operator(
        "gated_linear_backward",
        f"(Tensor grad_output, {_INPUTS}, Tensor? preactivation=None, *, {PARAMETERS}, "
        f"bool[5] needs=[True, True, True, True, True], {PRODUCT_OPTIONS}) -> {_GRADIENTS}",
        bind=Backward,
        flops=_backward_flops,
    ),
)
