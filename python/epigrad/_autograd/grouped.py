"""Layers with a weight for each group of rows, and mixtures of experts, which have a block each.

Backward keeps the inputs, the weights and the preactivation. A row that several experts share is
saved once.

The formulas multiply all rows with every group's weight and mask the result, since `torch.func`
hides from Python which rows a group has. Masked rows are set to 0 before the product, so a NaN in
them cannot spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import debug_unwrap

from epigrad import errors
from epigrad._autograd import formulas
from epigrad._autograd.feedforward import grad_of_hidden, hidden_of, slope_needs_preactivation
from epigrad._autograd.functions import (
    PREACTIVATION,
    RECOMPUTE,
    Needs,
    Problem,
    WithPreactivation,
    lies_transposed,
)
from epigrad._core.call import Call
from epigrad._core.checks import PLAIN
from epigrad._core.launcher import Launcher, Tensors


@dataclass(frozen=True, slots=True)
class Groups:
    """Which rows belong to which group: a column of bools for each."""

    chosen: Sequence[Tensor]

    @classmethod
    def of_offsets(cls, offsets: Tensor, count: int, rows: int) -> Groups:
        """The groups of `epigrad.grouped_linear`; wrong offsets are clamped, as on a GPU."""
        row = torch.arange(rows, device=offsets.device)
        chosen = []
        start = offsets.new_zeros(())
        for group in range(count):
            end = torch.maximum(start, offsets[group].clamp(max=rows))
            chosen.append(((row >= start) & (row < end)).unsqueeze(-1))
            start = end
        return cls(chosen)

    @classmethod
    def of_index(cls, index: Tensor, count: int) -> Groups:
        """The groups of the slots of `epigrad.experts`, one behind the other."""
        slots = index.reshape(-1, 1)
        return cls([slots == group for group in range(count)])

    @property
    def selected(self) -> Tensor:
        """The rows that belong to a group."""
        return torch.stack(list(self.chosen)).any(0)

    def product(self, rows: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """``rows @ weights[group] + bias[group]``, and 0 in rows of no group."""
        total = rows.new_zeros(rows.shape[0], weights.shape[-1])
        for group, chosen in enumerate(self.chosen):
            product = torch.where(chosen, rows, 0) @ weights[group]
            total = torch.where(chosen, product if bias is None else product + bias[group], total)
        return total

    def of_vectors(self, vectors: Tensor) -> Tensor:
        """The vector of each row's group, and 0 for rows of no group."""
        total = vectors.new_zeros(self.chosen[0].shape[0], vectors.shape[-1])
        for group, chosen in enumerate(self.chosen):
            total = torch.where(chosen, vectors[group], total)
        return total

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """``left.T @ right`` of each group's rows."""
        return torch.stack([torch.where(c, left, 0).transpose(0, 1) @ torch.where(c, right, 0) for c in self.chosen])

    def sums(self, rows: Tensor) -> Tensor:
        """The sum of each group's rows."""
        return torch.stack([torch.where(chosen, rows, 0).sum(0) for chosen in self.chosen])


def grouped_linear_formula(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor, composed: bool = False
) -> tuple[Tensor, Tensor]:
    """The layer's output and its preactivation as differentiable operations."""
    groups = Groups.of_offsets(offsets, weight.shape[0], input.shape[0])
    preactivation = groups.product(input, weight.transpose(1, 2), bias)
    if not groups.chosen:
        return preactivation, preactivation
    act = formulas.composed if composed else formulas.activated
    return torch.where(groups.selected, act(call.activation, preactivation), 0), preactivation


def _zeros(like: Tensor, needs: Needs, shapes: Sequence[Any]) -> Tensors:
    """Zero gradients, for a call without groups."""
    wanted = [shape if need else None for need, shape in zip(needs, shapes, strict=True)]
    return tuple([None if shape is None else like.new_zeros(shape) for shape in wanted])


@dataclass(slots=True)
class GroupedLinearProblem(Problem):
    """Backward of the layer, of grad_output, the layer's four tensors, and preactivation."""

    def formula(self, needs: Needs, *tensors: Tensor | None, grad_hidden: Tensor | None = None) -> Tensors:
        grad, input, weight, bias, offsets, preactivation = tensors
        gradient = grad if grad is not None else grad_hidden
        assert gradient is not None and offsets is not None
        dtype, (count, _, _) = gradient.dtype, self.shapes[1]
        groups = Groups.of_offsets(offsets, count, gradient.shape[0])
        if not groups.chosen:
            return _zeros(gradient, needs, self.gradient_shapes)
        total: Tensor | None = None
        if grad is not None:
            if preactivation is None and slope_needs_preactivation(self.call):
                assert input is not None and weight is not None
                preactivation = groups.product(input, weight.transpose(1, 2), bias)
            total = formulas.grad_preactivation(self.call.activation, grad, preactivation, None)
        if grad_hidden is not None:
            extra = formulas.computed(grad_hidden)
            total = extra if total is None else total + extra
        assert total is not None
        rounded = total.to(dtype)
        return (
            groups.product(rounded, weight) if needs[0] and weight is not None else None,
            groups.outer(rounded, input) if needs[1] and input is not None else None,
            groups.sums(total).to(dtype) if needs[2] and self.shapes[2] is not None else None,
        )


class GroupedLinear(WithPreactivation):
    """The layer as one function; the preactivation is its hidden second output."""

    @staticmethod
    def forward(
        ctx: Any,
        core: Launcher,
        call: Call,
        keep: int,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        offsets: Tensor,
    ) -> Tensors:
        need_input, need_weight, *_ = ctx.needs_input_grad[3:]
        recompute = keep == RECOMPUTE
        tensors = (input, weight, bias, offsets)
        out, preactivation = core.launch(call, tensors, (True, keep == PREACTIVATION))
        ctx.problem = GroupedLinearProblem(core, call, _shapes(*tensors))
        ctx.save_for_backward(
            input if need_weight or recompute else None,
            weight if need_input or recompute or lies_transposed(weight) else None,
            bias if recompute else None,
            offsets,
            preactivation,
        )
        ctx.set_materialize_grads(False)
        return out, preactivation


def _shapes(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple([None if tensor is None else tensor.shape for tensor in tensors])


@dataclass(frozen=True, slots=True)
class _Mixture:
    """Where the rows of a mixture of experts are: those of slots, and those that are kept.

    Kept rows are sorted by expert, then by slot; slots that select nothing come last.
    """

    groups: Groups
    index: Tensor

    @classmethod
    def of(cls, index: Tensor, count: int) -> _Mixture:
        return cls(Groups.of_index(index, count), index)

    @property
    def order(self) -> Tensor:
        """The slot of each kept row."""
        slots = self.index.reshape(-1)
        count = len(self.groups.chosen)
        return torch.sort(torch.where((slots >= 0) & (slots < count), slots, count), stable=True).indices

    @property
    def places(self) -> Tensor:
        """The kept row of each slot."""
        return torch.argsort(self.order)

    def of_tokens(self, rows: Tensor) -> Tensor:
        """A token's row in each of its slots."""
        tokens, each = self.index.shape
        return rows.unsqueeze(1).expand(tokens, each, rows.shape[-1]).reshape(tokens * each, rows.shape[-1])

    def to_tokens(self, rows: Tensor) -> Tensor:
        """The sum of the rows of each token's slots."""
        return rows.reshape(*self.index.shape, rows.shape[-1]).sum(1)

    def of_scale(self, scale: Tensor) -> Tensor:
        """Each slot's scale as a column, 0 where it selects nothing: there it is not read."""
        return torch.where(self.groups.selected, formulas.computed(scale).reshape(-1, 1), 0)


def experts_formula(
    call: Call,
    input: Tensor,
    index: Tensor,
    scale: Tensor,
    weight_in: Tensor,
    bias_in: Tensor | None,
    weight_out: Tensor,
    bias_out: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The mixture's output and its kept preactivation as differentiable operations."""
    mixture = _Mixture.of(index, weight_in.shape[0])
    rows = mixture.of_tokens(input)
    preactivation = mixture.groups.product(rows, weight_in.transpose(1, 2), bias_in)
    if not mixture.groups.chosen:
        return torch.zeros_like(input), preactivation
    hidden = hidden_of(call, preactivation).to(input.dtype)
    out = mixture.groups.product(hidden, weight_out.transpose(1, 2), bias_out)
    scaled = mixture.of_scale(scale) * formulas.computed(out)
    return mixture.to_tokens(scaled).to(input.dtype), preactivation[mixture.order]


@dataclass(slots=True)
class ExpertsProblem(Problem):
    """Backward of the mixture, of grad_output, its seven tensors, and preactivation."""

    def formula(self, needs: Needs, *tensors: Tensor | None, grad_hidden: Tensor | None = None) -> Tensors:
        grad, input, index, scale, weight_in, bias_in, weight_out, bias_out, preactivation = tensors
        gradient = grad if grad is not None else grad_hidden
        assert gradient is not None and index is not None
        dtype, (count, _, _) = gradient.dtype, self.shapes[3]
        mixture = _Mixture.of(index, count)
        groups = mixture.groups
        if not groups.chosen or not index.numel():
            of_input, of_scale, *rest = _zeros(gradient, needs, self.gradient_shapes)
            if of_scale is not None and scale is not None:
                of_scale = of_scale.to(scale.dtype)
            return (of_input, of_scale, *rest)
        need_input, need_scale, need_weight_in, need_bias_in, need_weight_out, need_bias_out = needs
        first = need_input or need_weight_in or need_bias_in
        if preactivation is not None:
            # Kept rows of no expert are undefined.
            slots = torch.where(groups.selected, preactivation[mixture.places], 0)
        elif first or need_scale or need_weight_out:
            assert input is not None and weight_in is not None
            slots = groups.product(mixture.of_tokens(input), weight_in.transpose(1, 2), bias_in)
        grads: list[Tensor | None] = [None] * 6
        grad_pre: Tensor | None = None
        if grad is not None:
            assert scale is not None
            rows, scales = mixture.of_tokens(formulas.computed(grad)), mixture.of_scale(scale)
            if first or need_scale:
                assert weight_out is not None
                through = groups.product(rows, formulas.computed(weight_out))
                if need_scale:
                    of_scale = (hidden_of(self.call, slots) * through).sum(-1, keepdim=True)
                    if bias_out is not None:
                        biases = groups.of_vectors(formulas.computed(bias_out))
                        of_scale = of_scale + (biases * torch.where(groups.selected, rows, 0)).sum(-1, keepdim=True)
                    of_scale = torch.where(groups.selected, of_scale, 0)
                    grads[1] = of_scale.reshape(index.shape).to(scale.dtype)
                if first:
                    grad_pre = grad_of_hidden(self.call, scales * through, slots)
            if need_weight_out:
                grads[4] = groups.outer(rows, scales * hidden_of(self.call, slots)).to(dtype)
            if need_bias_out and self.shapes[6] is not None:
                grads[5] = groups.sums(scales * torch.where(groups.selected, rows, 0)).to(dtype)
        if grad_hidden is not None:
            extra = torch.where(groups.selected, formulas.computed(grad_hidden)[mixture.places], 0)
            grad_pre = extra if grad_pre is None else grad_pre + extra
        if grad_pre is not None:
            rounded = grad_pre.to(dtype)
            if need_input and weight_in is not None:
                grads[0] = mixture.to_tokens(formulas.computed(groups.product(rounded, weight_in))).to(dtype)
            if need_weight_in and input is not None:
                grads[2] = groups.outer(rounded, mixture.of_tokens(input))
            if need_bias_in and self.shapes[4] is not None:
                grads[3] = groups.sums(grad_pre).to(dtype)
        return tuple(grads)


class Experts(WithPreactivation):
    """The mixture as one function; the preactivation is its hidden second output."""

    @staticmethod
    def forward(
        ctx: Any,
        core: Launcher,
        call: Call,
        keep: int,
        input: Tensor,
        index: Tensor,
        scale: Tensor,
        weight_in: Tensor,
        bias_in: Tensor | None,
        weight_out: Tensor,
        bias_out: Tensor | None,
    ) -> Tensors:
        need_input, _, need_scale, need_weight_in, need_bias_in, need_weight_out, _ = ctx.needs_input_grad[3:]
        need_through = need_input or need_scale or need_weight_in or need_bias_in
        need_preactivation = need_through or need_weight_out
        recompute = keep == RECOMPUTE and need_preactivation
        tensors = (input, index, scale, weight_in, bias_in, weight_out, bias_out)
        out, preactivation = core.launch(call, tensors, (True, need_preactivation and not recompute))
        ctx.problem = ExpertsProblem(core, call, _shapes(*tensors))
        ctx.save_for_backward(
            input if need_weight_in or recompute else None,
            index,
            scale,
            weight_in if need_input or recompute or lies_transposed(weight_in) else None,
            bias_in if recompute else None,
            weight_out if need_through or lies_transposed(weight_out) else None,
            bias_out if need_scale else None,
            preactivation,
        )
        ctx.set_materialize_grads(False)
        return out, preactivation


def check_offsets(op: str, offsets: Tensor, rows: int) -> None:
    """Refuse offsets on a CPU that decrease or exceed the rows, as the kernels do.

    The formulas do not check them. Offsets inside of `torch.vmap` are not checked here either.
    """
    data = debug_unwrap(offsets, recurse=True)
    if type(data) not in PLAIN or data.device.type != "cpu" or data.dim() != 1:
        return
    before = 0
    for group, end in enumerate(data.tolist()):
        if not before <= end <= rows:
            raise errors.InvalidProblemError(
                f"{op}: offsets: offsets[{group}] is {end}, want a value in [{before}, {rows}]: offsets are cumulative "
                "row ends, which may not decrease"
            )
        before = end


def check_index(op: str, name: str, index: Any, *dtypes: torch.dtype) -> None:
    """Refuse an index of rows or experts that is not a tensor of integers."""
    if not isinstance(index, Tensor):
        raise errors.DTypeError(f"{op}: {name}: {type(index).__name__}, want a torch.Tensor")
    if index.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise errors.DTypeError(f"{op}: {name}: {index.dtype}, want {wanted}")
