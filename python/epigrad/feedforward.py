"""The two-layer blocks, each one `torch.autograd.Function` that never saves the hidden activation.

Kept for backward are the inputs, the weights and the preactivation of the first layer; the hidden activation is formed
again from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from epigrad import differentiable, errors, library
from epigrad.autograd import Needs, Shape, differentiate, stand_in
from epigrad.call import GATE_NAMES, Call
from epigrad.dispatched import options_of, overload
from epigrad.launch import Tensors, only

__all__ = ["BLOCK_ARGUMENTS", "Block", "DispatchedBlock", "FeedForward", "FeedForwardProblem", "Shapes"]

Shapes = tuple[Shape, Shape, Shape | None, Shape, Shape | None]


BLOCK_ARGUMENTS = {
    "mlp": ("input", "weight1", "bias1", "weight2", "bias2"),
    "gated_mlp": ("input", "weight_in", "bias_in", "weight_out", "bias_out"),
}
"""What callers know the tensors of a block as."""


@dataclass(frozen=True, slots=True)
class Block:
    """A two-layer block by its call: ``"mlp"``, or ``"gated_mlp"``, which splits the last dimension."""

    call: Call

    @property
    def gated(self) -> bool:
        """Whether the hidden layer has a gate."""
        return self.call.op == "gated_mlp"

    @property
    def linear(self) -> Call:
        """The call of a layer without an activation."""
        return Call("linear", "none", backend=self.call.backend)

    @property
    def hidden_call(self) -> Call:
        """The call of what comes between the layers."""
        return Call("gated_activation" if self.gated else "activation", *self.call[1:])

    def dispatched(self) -> Block:
        """The same with operators in place of kernels."""
        return DispatchedBlock(self.call)

    @contextmanager
    def told_as(self, layer: int) -> Iterator[None]:
        """Tell the errors of a layer's op in the names that the caller used."""
        weight, bias = BLOCK_ARGUMENTS[self.call.op][2 * layer + 1 : 2 * layer + 3]
        names = {"weight": weight, "bias": bias, "input": "hidden activation" if layer else "input"}
        try:
            yield
        except errors.EpigradError as error:
            raise errors.renamed(error, self.call.op, names) from None

    def compute(self, tensors: Tensors, keep_preactivation: bool = False) -> Tensors:
        """The block's output, and the first layer's preactivation if it is to be kept."""
        input, weight1, bias1, weight2, bias2 = tensors
        core = library.core()
        with self.told_as(0):
            if self.gated:
                preactivation, _ = core.launch(self.linear, (input, weight1, bias1), (True, False))
                assert preactivation is not None
                if preactivation.shape[-1] % 2:
                    op, rows = self.call.op, preactivation.shape[-1]
                    raise errors.InvalidProblemError(f"{op}: {BLOCK_ARGUMENTS[op][1]}: {rows} rows, want [2*H, K]")
                hidden = self.hidden(preactivation)
            else:
                first, needs = Call("linear", *self.call[1:]), (True, keep_preactivation)
                activated, preactivation = core.launch(first, (input, weight1, bias1), needs)
                assert activated is not None
                hidden = activated
        with self.told_as(1):
            out, _ = core.launch(self.linear, (hidden, weight2, bias2), (True, False))
        assert out is not None
        return out, preactivation if keep_preactivation else None

    def hidden(self, preactivation: Tensor) -> Tensor:
        """The hidden activation from the first layer's preactivation."""
        return only(library.core().launch(self.hidden_call, (preactivation,), (True,)))

    def grad_hidden_to_preactivation(
        self, grad: Tensor, preactivation: Tensor, needs: Needs, hidden: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of the hidden layer to its preactivation and, summed before rounding, to the bias in it; and
        the hidden activation, if it is asked for. `grad` may be written over.
        """
        call, inputs = self.hidden_call.backward, (grad, preactivation)
        if self.gated:
            grad_pre, grad_bias = library.core().launch(call, inputs, needs)
            return grad_pre, grad_bias, self.hidden(preactivation) if hidden else None
        wanted = (needs[0], hidden, needs[1])
        grad_pre, out, grad_bias = library.core().launch(call, inputs, wanted, (grad, None, None))
        return grad_pre, grad_bias, out

    def gradients(self, shapes: Shapes, needs: Needs, *tensors: Tensor | None) -> Tensors:
        """The gradients of input, weight1, bias1, weight2, bias2; tensors are those of `FeedForwardProblem`."""
        grad, input, weight1, bias1, weight2, preactivation = tensors
        assert grad is not None
        core = library.core()
        first_needed = any(needs[:3])
        if preactivation is None and (needs[3] or (first_needed and self.slope_needs_preactivation)):
            preactivation, _ = core.launch(self.linear, (input, weight1, bias1), (True, False))
        weight2_or_shape = stand_in(grad, shapes[3]) if weight2 is None else weight2
        no_hidden = stand_in(grad, (*grad.shape[:-1], shapes[3][1]))
        bias2 = None if shapes[4] is None else grad.new_empty(shapes[4])

        def second_layer(hidden: Tensor, wanted: Needs) -> Tensors:
            inputs = (grad, hidden, weight2_or_shape, bias2, None, None)
            return core.launch(self.linear.backward, inputs, wanted)

        if not first_needed:
            hidden = no_hidden
            if needs[3]:
                assert preactivation is not None
                hidden = self.hidden(preactivation)
            return None, None, None, *second_layer(hidden, (False, needs[3], needs[4]))[1:]
        grad_pre, _, _ = second_layer(no_hidden, (True, False, False))
        assert grad_pre is not None
        grad_bias1, hidden_or_none = None, None
        if self.slope_needs_preactivation:
            assert preactivation is not None
            pre_needs = (needs[0] or needs[1], needs[2] and shapes[2] is not None)
            grad_pre, grad_bias1, hidden_or_none = self.grad_hidden_to_preactivation(
                grad_pre, preactivation, pre_needs, needs[3]
            )
        elif needs[3]:
            hidden_or_none = preactivation
        hidden = no_hidden if hidden_or_none is None else hidden_or_none
        _, grad_weight2, grad_bias2 = second_layer(hidden, (False, needs[3], needs[4]))
        del hidden, hidden_or_none
        if grad_pre is None:
            return None, None, grad_bias1, grad_weight2, grad_bias2
        first_inputs = (
            grad_pre,
            stand_in(grad, shapes[0]) if input is None else input,
            stand_in(grad, shapes[1]) if weight1 is None else weight1,
            grad.new_empty(shapes[2]) if bias1 is None and shapes[2] is not None else bias1,
            None,
            None,
        )
        first_needs = (needs[0], needs[1], needs[2] and not self.slope_needs_preactivation)
        grad_input, grad_weight1, sums = core.launch(self.linear.backward, first_inputs, first_needs)
        return grad_input, grad_weight1, sums if grad_bias1 is None else grad_bias1, grad_weight2, grad_bias2

    def formula(
        self, input: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`compute` as differentiable operations."""
        preactivation = differentiable.preactivation(input, weight1, bias1, True)
        hidden = self.hidden_formula(preactivation).to(input.dtype)
        return differentiable.preactivation(hidden, weight2, bias2, True), preactivation

    def hidden_formula(self, preactivation: Tensor) -> Tensor:
        """`hidden` as differentiable operations, unrounded."""
        if not self.gated:
            return differentiable.unrounded(self.call.activation, preactivation)
        value, gate = differentiable.split_gate(preactivation, -1, self.call.gate)
        return differentiable.computed(value) * differentiable.unrounded(self.call.activation, gate)

    def grad_formula(self, grad: Tensor, preactivation: Tensor | None) -> Tensor:
        """The gradient to the preactivation from the gradient to the hidden activation, unrounded."""
        activation, place = self.call.activation, self.call.gate
        if not self.gated:
            return differentiable.grad_preactivation(activation, grad, preactivation, None)
        assert preactivation is not None
        value, gate = differentiable.split_gate(preactivation, -1, place)
        grad_value, grad_gate = differentiable.gated_backward(activation, grad, value, gate, (True, True))
        assert grad_value is not None and grad_gate is not None
        return differentiable.joined(grad_value, grad_gate, -1, place)

    @property
    def slope_needs_preactivation(self) -> bool:
        """Whether the gradient of the hidden layer depends on its preactivation."""
        return self.call.kind != "none"


@dataclass(frozen=True, slots=True)
class DispatchedBlock(Block):
    """A block whose calls go through the dispatcher."""

    def dispatched(self) -> Block:
        return self

    @property
    def _options(self) -> dict[str, Any]:
        gate = {"gate": GATE_NAMES[self.call.gate]} if self.gated else {}
        return options_of(self.call) | gate

    def compute(self, tensors: Tensors, keep_preactivation: bool = False) -> Tensors:
        save = "preactivation" if keep_preactivation else "recompute"
        out, preactivation = overload(self.call.op)(*tensors, self.call.kind, save=save, **self._options)
        return out, preactivation if keep_preactivation else None

    def gradients(self, sizes: Shapes, needs: Needs, *tensors: Tensor | None) -> Tensors:
        grad, input, weight1, bias1, weight2, preactivation = tensors
        assert grad is not None
        given = (input, weight1, bias1, weight2, None)
        full = [
            tensor if tensor is not None or size is None else stand_in(grad, size)
            for tensor, size in zip(given, sizes, strict=True)
        ]
        backward = overload(f"{self.call.op}_backward")
        results: Tensors = backward(grad, *full, self.call.kind, preactivation, needs=needs, **self._options)
        return results


@dataclass(slots=True)
class FeedForwardProblem:
    """Backward of a block; tensors are grad_output, input, weight1, bias1, weight2, preactivation."""

    block: Block
    shapes: Shapes

    def dispatched(self) -> FeedForwardProblem:
        return FeedForwardProblem(self.block.dispatched(), self.shapes)

    def run(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        return self.block.gradients(self.shapes, needs, *tensors)

    def formula(self, needs: Needs, *tensors: Tensor | None, grad_hidden: Tensor | None = None) -> Tensors:
        grad, input, weight1, bias1, weight2, preactivation = tensors
        block, shapes = self.block, self.shapes
        gradient = grad if grad is not None else grad_hidden
        assert gradient is not None
        dtype = gradient.dtype
        first_needed = any(needs[:3])
        if preactivation is None and (needs[3] or (first_needed and block.slope_needs_preactivation)):
            assert input is not None and weight1 is not None
            preactivation = torch.matmul(input, weight1.mT)
            if bias1 is not None:
                preactivation = preactivation + bias1
        grad_weight2 = grad_bias2 = grad_pre = None
        if grad is not None:
            hidden = block.hidden_formula(preactivation).to(dtype) if needs[3] and preactivation is not None else None
            second_shapes = ((*grad.shape[:-1], shapes[3][1]), shapes[3], shapes[4])
            grad_activated, grad_weight2, grad_bias2 = differentiable.gemm_backward(
                differentiable.computed(grad),
                hidden,
                weight2,
                dtype,
                second_shapes,
                (first_needed, needs[3], needs[4]),
                True,
            )
            if grad_activated is not None:
                grad_pre = block.grad_formula(grad_activated, preactivation)
        if grad_hidden is not None:
            extra = differentiable.computed(grad_hidden)
            grad_pre = extra if grad_pre is None else grad_pre + extra
        if grad_pre is None or not first_needed:
            return None, None, None, grad_weight2, grad_bias2
        grads = differentiable.gemm_backward(grad_pre, input, weight1, dtype, shapes[:3], needs[:3], True)
        return (*grads, grad_weight2, grad_bias2)


class FeedForward(Function):
    """A block as one function; the preactivation is its hidden second output."""

    @staticmethod
    def forward(
        ctx: Any,
        block: Block,
        recompute: bool,
        input: Tensor,
        weight1: Tensor,
        bias1: Tensor | None,
        weight2: Tensor,
        bias2: Tensor | None,
    ) -> Tensors:
        need_input, need_weight1, need_bias1, need_weight2, _ = ctx.needs_input_grad[2:]
        need_first = need_input or need_weight1 or need_bias1
        need_preactivation = need_weight2 or (need_first and block.slope_needs_preactivation)
        recompute = recompute and need_preactivation
        tensors = (input, weight1, bias1, weight2, bias2)
        out, preactivation = block.compute(tensors, need_preactivation and not recompute)
        bias1_shape, bias2_shape = (None if bias is None else bias.shape for bias in (bias1, bias2))
        shapes = (input.shape, weight1.shape, bias1_shape, weight2.shape, bias2_shape)
        ctx.problem = FeedForwardProblem(block, shapes)
        ctx.save_for_backward(
            input if need_weight1 or recompute else None,
            weight1 if need_input or recompute else None,
            bias1 if recompute else None,
            weight2 if need_first else None,
            preactivation,
        )
        ctx.set_materialize_grads(False)
        return out, preactivation

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_hidden: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[2:]
        grads: Tensors = (None,) * 5
        if grad_hidden is not None:
            grads = ctx.problem.formula(needs, grad_output, *ctx.saved_tensors, grad_hidden=grad_hidden)
        elif grad_output is not None:
            grads = differentiate(ctx.problem, needs, grad_output, *ctx.saved_tensors)
        return (None, None, *grads)
