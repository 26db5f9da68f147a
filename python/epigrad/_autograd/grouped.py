"""Layers with a weight for each group of rows, and mixtures of experts, which have a block each.

All rows are multiplied with every group's weight and the result is masked, since `torch.func` hides
from Python which rows a group has. Masked rows are set to 0 before the product, so a NaN in them
cannot spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import debug_unwrap

from epigrad import errors
from epigrad._autograd import formulas
from epigrad._autograd.functions import By
from epigrad._autograd.layers import (
    FORMULAS,
    Needs,
    Pair,
    Product,
    activated,
    added,
    grad_of_hidden,
    hidden_of,
    layer_backward,
)
from epigrad._core.call import Call
from epigrad._core.checks import PLAIN
from epigrad._core.launcher import Tensors


@dataclass(frozen=True, slots=True)
class Groups(Product):
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
        return torch.stack(list(self.chosen)).any(0)

    def product(self, rows: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """``rows @ weights[group] + bias[group]``, and 0 in rows of no group."""
        total = rows.new_zeros(rows.shape[0], weights.shape[-1])
        for group, chosen in enumerate(self.chosen):
            product = torch.where(chosen, rows, 0) @ weights[group]
            total = torch.where(chosen, product if bias is None else product + bias[group], total)
        return total

    def plain(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.product(input, weight.transpose(1, 2), bias)

    def products(
        self, grad: Tensor, input: Tensor | None, weight: Tensor | None, shapes: Sequence[Any], needs: Needs
    ) -> Tensors:
        return (
            self.product(grad, weight) if needs[0] and weight is not None else None,
            self.outer(grad, input) if needs[1] and input is not None else None,
        )

    def biases(self, bias: Tensor, shape: Sequence[int] = ()) -> Tensor:
        return self.of_vectors(bias)

    def sums(self, grad: Tensor, shape: Sequence[int] = ()) -> Tensor:
        return torch.stack([torch.where(chosen, grad, 0).sum(0) for chosen in self.chosen])

    def of_vectors(self, vectors: Tensor) -> Tensor:
        """The vector of each row's group, and 0 for rows of no group."""
        total = vectors.new_zeros(self.chosen[0].shape[0], vectors.shape[-1])
        for group, chosen in enumerate(self.chosen):
            total = torch.where(chosen, vectors[group], total)
        return total

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """``left.T @ right`` of each group's rows."""
        return torch.stack([torch.where(c, left, 0).transpose(0, 1) @ torch.where(c, right, 0) for c in self.chosen])


def grouped_linear(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor, composed: bool = False
) -> Pair:
    groups = Groups.of_offsets(offsets, weight.shape[0], input.shape[0])
    preactivation = groups.value(input, weight, bias)
    if not groups.chosen:
        return preactivation, preactivation
    return torch.where(groups.selected, activated(call, preactivation, composed), 0), preactivation


def _zeros(like: Tensor, needs: Needs, shapes: Sequence[Any]) -> Tensors:
    """Zero gradients, for a call without groups."""
    wanted = [shape if need else None for need, shape in zip(needs, shapes, strict=True)]
    return tuple([None if shape is None else like.new_zeros(shape) for shape in wanted])


def grouped_linear_backward(
    call: Call,
    shapes: Sequence[Any],
    needs: Needs,
    grad: Tensor | None,
    input: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    offsets: Tensor,
    preactivation: Tensor | None,
    *,
    grad_hidden: Tensor | None = None,
    by: By = FORMULAS,
) -> Tensors:
    given = grad if grad is not None else grad_hidden
    assert given is not None
    groups = Groups.of_offsets(offsets, shapes[1][0], given.shape[0])
    if not groups.chosen:
        return _zeros(given, needs, shapes[:3])
    tensors = (grad, input, weight, bias, preactivation)
    return layer_backward(groups, call, shapes[:3], needs, *tensors, grad_hidden=grad_hidden, by=by)


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
        """Each slot's scale as a column. A slot that selects nothing has 0, whatever its scale
        is."""
        return torch.where(self.groups.selected, formulas.computed(scale).reshape(-1, 1), 0)


def experts(
    call: Call,
    input: Tensor,
    index: Tensor,
    scale: Tensor,
    weight_in: Tensor,
    bias_in: Tensor | None,
    weight_out: Tensor,
    bias_out: Tensor | None,
) -> Pair:
    """The mixture's output and its kept preactivation."""
    mixture = _Mixture.of(index, weight_in.shape[0])
    groups = mixture.groups
    preactivation = groups.value(mixture.of_tokens(input), weight_in, bias_in)
    if not groups.chosen:
        return torch.zeros_like(input), preactivation
    out = groups.value(activated(call, preactivation), weight_out, bias_out)
    scaled = mixture.of_scale(scale) * formulas.computed(out)
    return mixture.to_tokens(scaled).to(input.dtype), preactivation[mixture.order]


def experts_backward(
    call: Call,
    shapes: Sequence[Any],
    needs: Needs,
    grad: Tensor | None,
    input: Tensor | None,
    index: Tensor,
    *rest: Tensor | None,
    grad_hidden: Tensor | None = None,
    by: By = FORMULAS,
) -> Tensors:
    """The gradients of `experts` to all but the index."""
    scale, weight_in, bias_in, weight_out, bias_out, preactivation = rest
    given = grad if grad is not None else grad_hidden
    assert given is not None
    dtype, mixture = given.dtype, _Mixture.of(index, shapes[3][0])
    groups = mixture.groups
    if not groups.chosen or not index.numel():
        of_input, of_scale, *others = _zeros(given, needs, (shapes[0], *shapes[2:]))
        if of_scale is not None and scale is not None:
            of_scale = of_scale.to(scale.dtype)
        return (of_input, of_scale, *others)
    need_input, need_scale, need_weight_in, need_bias_in, need_weight_out, need_bias_out = needs
    first = (need_input, need_weight_in, need_bias_in)
    if preactivation is not None:
        # Kept rows of no expert are undefined.
        slots = torch.where(groups.selected, preactivation[mixture.places], 0)
    elif any(first) or need_scale or need_weight_out:
        assert input is not None and weight_in is not None
        slots = groups.value(mixture.of_tokens(input), weight_in, bias_in)
    of_scale = of_weight_out = of_bias_out = grad_pre = None
    if grad is not None:
        assert scale is not None
        rows, scales = mixture.of_tokens(formulas.computed(grad)), mixture.of_scale(scale)
        if any(first) or need_scale:
            assert weight_out is not None
            through = groups.product(rows, formulas.computed(weight_out))
            if need_scale:
                of_slots = (hidden_of(call, slots, by) * through).sum(-1, keepdim=True)
                if bias_out is not None:
                    biases = groups.of_vectors(formulas.computed(bias_out))
                    of_slots = of_slots + (biases * torch.where(groups.selected, rows, 0)).sum(-1, keepdim=True)
                of_scale = torch.where(groups.selected, of_slots, 0).reshape(index.shape).to(scale.dtype)
            if any(first):
                grad_pre = grad_of_hidden(call, scales * through, slots, by=by)
        if need_weight_out:
            of_weight_out = groups.outer(rows, scales * hidden_of(call, slots, by)).to(dtype)
        if need_bias_out and shapes[6] is not None:
            of_bias_out = groups.sums(scales * torch.where(groups.selected, rows, 0)).to(dtype)
    if grad_hidden is not None:
        kept = formulas.computed(grad_hidden)[mixture.places]
        grad_pre = added(grad_pre, torch.where(groups.selected, kept, 0))
    of_first: Tensors = (None, None, None)
    if grad_pre is not None:
        tokens = None if input is None else mixture.of_tokens(input)
        of_first = groups.gradients(grad_pre, tokens, weight_in, dtype, (None, *shapes[3:5]), first)
    of_input, *of_layer = of_first
    if of_input is not None:
        of_input = mixture.to_tokens(formulas.computed(of_input)).to(dtype)
    return (of_input, of_scale, *of_layer, of_weight_out, of_bias_out)


def check_offsets(op: str, given: Mapping[str, Any]) -> None:
    """Refuse offsets on a CPU that decrease or exceed the rows, as the kernels do.

    The formulas do not check them. Offsets inside of `torch.vmap` are not checked here either.
    """
    data, rows = debug_unwrap(given["offsets"], recurse=True), given["input"].shape[0]
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
