"""What the rules of `torch.vmap` share: a batch dimension becomes one more leading dimension of a single call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["InDims", "aligned", "dims_of", "slice_by_slice"]

InDims = Sequence[int | None]


def dims_of(in_dims: InDims, count: int) -> tuple[int | None, ...]:
    """The batch dimensions of the first `count` arguments: the dispatcher leaves out those that have their default."""
    return (*in_dims[:count], *(None,) * (count - len(in_dims)))


def aligned(tensors: Sequence[Any], dims: InDims) -> tuple[Any, ...]:
    """The tensors with the batch in front, and dimensions of size 1 after it, so that all broadcast as their slices do.

    A tensor that has no batch stays as it is.
    """
    pairs = list(zip(tensors, dims, strict=True))
    rank = max((t.dim() - (dim is not None) for t, dim in pairs if t is not None), default=0)

    def in_front(tensor: Tensor, dim: int) -> Tensor:
        moved = tensor.movedim(dim, 0)
        return moved.reshape(moved.shape[0], *(1,) * (rank - moved.dim() + 1), *moved.shape[1:])

    return tuple([t if t is None or dim is None else in_front(t, dim) for t, dim in pairs])


def slice_by_slice(overload: Any) -> Callable[..., Any]:
    """The rule of an operator for which a batch is no further dimension: one call for each slice."""

    def rule(info: Any, in_dims: InDims, *arguments: Any, **options: Any) -> Any:
        def piece(index: int) -> list[Any]:
            return [
                value if dim is None else value.select(dim, index)
                for value, dim in zip(arguments, in_dims, strict=True)
            ]

        # An empty batch has no slice to see the results' shapes from: one of zeros has them.
        count = info.batch_size
        if count == 0:
            arguments_of_one = [
                value
                if dim is None
                else value.new_zeros([size for place, size in enumerate(value.shape) if place != dim])
                for value, dim in zip(arguments, in_dims, strict=True)
            ]
            calls = [overload(*arguments_of_one, **options)]
        else:
            calls = [overload(*piece(index), **options) for index in range(count)]

        def stacked(results: Sequence[Tensor | None]) -> Tensor | None:
            found = [result for result in results if result is not None]
            return torch.stack(found)[:count] if found else None

        if not isinstance(calls[0], tuple):
            return stacked(calls), 0
        outputs = tuple([stacked(results) for results in zip(*calls, strict=True)])
        return outputs, tuple([None if output is None else 0 for output in outputs])

    return rule
