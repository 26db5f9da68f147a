"""The two-layer blocks, each one `torch.autograd.Function` that never saves the hidden activation.

Kept for backward are the inputs, the weights and the preactivation of the first layer; the core
forms the hidden activation again from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from epigrad._autograd import formulas
from epigrad._autograd.functions import RECOMPUTE, Needs, Problem, WithPreactivation, lies_transposed
from epigrad._core.call import Call
from epigrad._core.launcher import Launcher, Tensors


def slope_needs_preactivation(call: Call) -> bool:
    """Whether the gradient of the hidden layer depends on its preactivation."""
    return call.kind != "none"


def hidden_of(call: Call, preactivation: Tensor) -> Tensor:
    """The hidden activation as differentiable operations, unrounded."""
    if not call.is_gated:
        return formulas.unrounded(call.activation, preactivation)
    value, gate = formulas.split_gate(preactivation, -1, call.gate)
    return formulas.gated_unrounded(call.gated, value, gate)


def grad_of_hidden(call: Call, grad: Tensor, preactivation: Tensor | None) -> Tensor:
    """The gradient to the preactivation from that to the hidden activation, unrounded."""
    if not call.is_gated:
        return formulas.grad_preactivation(call.activation, grad, preactivation, None)
    assert preactivation is not None
    value, gate = formulas.split_gate(preactivation, -1, call.gate)
    grad_value, grad_gate = formulas.gated_backward(call.gated, grad, value, gate, (True, True))
    assert grad_value is not None and grad_gate is not None
    return formulas.joined(grad_value, grad_gate, -1, call.gate)


def block_formula(
    call: Call, input: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The block's output and its first layer's preactivation as differentiable operations."""
    preactivation = formulas.preactivation(input, weight1, bias1, True)
    hidden = hidden_of(call, preactivation).to(input.dtype)
    return formulas.preactivation(hidden, weight2, bias2, True), preactivation


@dataclass(slots=True)
class FeedForwardProblem(Problem):
    """Backward of a block, of grad_output, the block's five tensors, and preactivation."""

    def formula(self, needs: Needs, *tensors: Tensor | None, grad_hidden: Tensor | None = None) -> Tensors:
        grad, input, weight1, bias1, weight2, _, preactivation = tensors
        call, shapes = self.call, self.shapes
        gradient = grad if grad is not None else grad_hidden
        assert gradient is not None
        dtype = gradient.dtype
        first_needed = any(needs[:3])
        if preactivation is None and (needs[3] or (first_needed and slope_needs_preactivation(call))):
            assert input is not None and weight1 is not None
            preactivation = formulas.preactivation(input, weight1, bias1, True)
        grad_weight2 = grad_bias2 = grad_pre = None
        if grad is not None:
            hidden = hidden_of(call, preactivation).to(dtype) if needs[3] and preactivation is not None else None
            second_shapes = ((*grad.shape[:-1], shapes[3][1]), shapes[3], shapes[4])
            grad_activated, grad_weight2, grad_bias2 = formulas.gemm_backward(
                formulas.computed(grad),
                hidden,
                weight2,
                dtype,
                second_shapes,
                (first_needed, needs[3], needs[4]),
                True,
            )
            if grad_activated is not None:
                grad_pre = grad_of_hidden(call, grad_activated, preactivation)
        if grad_hidden is not None:
            extra = formulas.computed(grad_hidden)
            grad_pre = extra if grad_pre is None else grad_pre + extra
        if grad_pre is None or not first_needed:
            return None, None, None, grad_weight2, grad_bias2
        grads = formulas.gemm_backward(grad_pre, input, weight1, dtype, shapes[:3], needs[:3], True)
        return (*grads, grad_weight2, grad_bias2)


class FeedForward(WithPreactivation):
    """A block as one function; the preactivation is its hidden second output."""

    @staticmethod
    def forward(
        ctx: Any,
        core: Launcher,
        call: Call,
        keep: int,
        input: Tensor,
        weight1: Tensor,
        bias1: Tensor | None,
        weight2: Tensor,
        bias2: Tensor | None,
    ) -> Tensors:
        need_input, need_weight1, need_bias1, need_weight2, _ = ctx.needs_input_grad[3:]
        need_first = need_input or need_weight1 or need_bias1
        need_preactivation = need_weight2 or (need_first and slope_needs_preactivation(call))
        recompute = keep == RECOMPUTE and need_preactivation
        tensors = (input, weight1, bias1, weight2, bias2)
        out, preactivation = core.launch(call, tensors, (True, need_preactivation and not recompute))
        shapes = tuple([None if tensor is None else tensor.shape for tensor in tensors])
        ctx.problem = FeedForwardProblem(core, call, shapes)
        ctx.save_for_backward(
            input if need_weight1 or recompute else None,
            weight1 if need_input or recompute or lies_transposed(weight1) else None,
            bias1 if recompute else None,
            weight2 if need_first or lies_transposed(weight2) else None,
            None,
            preactivation,
        )
        ctx.set_materialize_grads(False)
        return out, preactivation
