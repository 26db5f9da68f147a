"""The gated linear layer. Backward keeps the inputs, the weights and the preactivation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad._autograd import formulas
from epigrad._autograd.functions import RECOMPUTE, Needs, Problem, WithPreactivation, lies_transposed
from epigrad._core.call import Call
from epigrad._core.launcher import Launcher, Tensors


def gated_linear_formula(
    call: Call,
    input: Tensor,
    weight_value: Tensor,
    weight_gate: Tensor,
    bias_value: Tensor | None,
    bias_gate: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The layer's output and its preactivation as differentiable operations."""
    value = formulas.preactivation(input, weight_value, bias_value, True)
    gate = formulas.preactivation(input, weight_gate, bias_gate, True)
    return formulas.gated(call.gated, value, gate), torch.cat([value, gate], -1)


@dataclass(slots=True)
class GatedLinearProblem(Problem):
    """Backward of the layer, of grad_output, the layer's five tensors, and preactivation."""

    def formula(self, needs: Needs, *tensors: Tensor | None, grad_hidden: Tensor | None = None) -> Tensors:
        grad, input, weight_value, weight_gate, bias_value, bias_gate, preactivation = tensors
        gradient = grad if grad is not None else grad_hidden
        assert gradient is not None
        grads: list[Tensor | None] = [None, None]
        if grad is not None:
            if preactivation is None:
                assert input is not None and weight_value is not None and weight_gate is not None
                layers = (weight_value, weight_gate, bias_value, bias_gate)
                _, preactivation = gated_linear_formula(self.call, input, *layers)
            halves = formulas.split_gate(preactivation, -1, 0)
            grads[:] = formulas.gated_backward(self.call.gated, grad, *halves, (True, True))
        if grad_hidden is not None:
            extras = formulas.split_gate(formulas.computed(grad_hidden), -1, 0)
            grads = [extra if one is None else one + extra for one, extra in zip(grads, extras, strict=True)]
        grad_input: Tensor | None = None
        of_weights: list[Tensor | None] = []
        of_biases: list[Tensor | None] = []
        for place, (one, weight) in enumerate(zip(grads, (weight_value, weight_gate), strict=True)):
            assert one is not None
            places = (0, 1 + place, 3 + place)
            shapes, wanted = [self.shapes[i] for i in places], [needs[i] for i in places]
            product, of_weight, of_bias = formulas.gemm_backward(
                one, input, weight, gradient.dtype, shapes, wanted, True
            )
            grad_input = product if grad_input is None or product is None else grad_input + product
            of_weights.append(of_weight)
            of_biases.append(of_bias)
        return (grad_input, *of_weights, *of_biases)


class GatedLinear(WithPreactivation):
    """The layer as one function; the preactivation is its hidden second output."""

    @staticmethod
    def forward(
        ctx: Any,
        core: Launcher,
        call: Call,
        keep: int,
        input: Tensor,
        weight_value: Tensor,
        weight_gate: Tensor,
        bias_value: Tensor | None,
        bias_gate: Tensor | None,
    ) -> Tensors:
        need_input, need_value, need_gate, *_ = ctx.needs_input_grad[3:]
        recompute = keep == RECOMPUTE
        tensors = (input, weight_value, weight_gate, bias_value, bias_gate)
        out, preactivation = core.launch(call, tensors, (True, not recompute))
        shapes = tuple([None if tensor is None else tensor.shape for tensor in tensors])
        ctx.problem = GatedLinearProblem(core, call, shapes)
        ctx.save_for_backward(
            input if need_value or need_gate or recompute else None,
            weight_value if need_input or recompute or lies_transposed(weight_value) else None,
            weight_gate if need_input or recompute or lies_transposed(weight_gate) else None,
            bias_value if recompute else None,
            bias_gate if recompute else None,
            preactivation,
        )
        ctx.set_materialize_grads(False)
        return out, preactivation
