"""Helpers of the rules of `torch.vmap`: a batch becomes a leading dimension of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from epigrad._core.launcher import overload

InDims = Sequence[int | None]


def dims_of(in_dims: InDims, count: int) -> tuple[int | None, ...]:
    """The batch dimensions of `count` arguments. The dispatcher omits those with a default."""
    return (*in_dims[:count], *(None,) * (count - len(in_dims)))


def aligned(tensors: Sequence[Any], dims: InDims) -> tuple[Any, ...]:
    """The tensors with the batch in front, padded with 1s so that all broadcast as their slices do.

    A tensor that has no batch stays as it is.
    """
    pairs = list(zip(tensors, dims, strict=True))
    rank = max((t.dim() - (dim is not None) for t, dim in pairs if t is not None), default=0)

    def in_front(tensor: Tensor, dim: int) -> Tensor:
        moved = tensor.movedim(dim, 0)
        return moved.reshape(moved.shape[0], *(1,) * (rank - moved.dim() + 1), *moved.shape[1:])

    return tuple([t if t is None or dim is None else in_front(t, dim) for t, dim in pairs])


def of_one_shape(name: str, count: int) -> Callable[..., Any]:
    """The rule of an elementwise operator. Its first `count` arguments are tensors of one shape, or
    of half of it; a kind and possibly a dim follow.
    """

    def rule(info: Any, in_dims: InDims, *arguments: Any, **options: Any) -> Any:
        dims = dims_of(in_dims, count)
        tensors = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(arguments[:count], dims, strict=True)
        ]
        kind, *dim_of_halves = arguments[count:] or ("swiglu",)
        inner = [dim + 1 if dim >= 0 else dim for dim in dim_of_halves]
        results = overload(name)(*tensors, kind, *inner, **options)
        if not isinstance(results, tuple):
            return results, 0
        return results, tuple([None if result is None else 0 for result in results])

    return rule


def by_rows(name: str, adapted: bool = False) -> Callable[..., Any]:
    """The rule of layers, without adapters or with them: a batch of the first argument's rows is
    one more dimension.

    The results are output and preactivation. A preactivation that is not kept has no batch.
    """

    def rule(info: Any, in_dims: InDims, *arguments: Any, **options: Any) -> Any:
        if any(dim is not None for dim in in_dims[1:]):
            return slice_by_slice(overload(name, adapted))(info, in_dims, *arguments, **options)
        (dim, *_) = in_dims
        assert dim is not None
        out, preactivation = overload(name, adapted)(arguments[0].movedim(dim, 0), *arguments[1:], **options)
        return (out, preactivation), (0, 0 if preactivation.dim() == out.dim() else None)

    return rule


def slice_by_slice(operator: Any) -> Callable[..., Any]:
    """The rule of an operator that takes no batch dimension: one call for each slice."""

    def rule(info: Any, in_dims: InDims, *arguments: Any, **options: Any) -> Any:
        def piece(index: int) -> list[Any]:
            return [
                value if dim is None else value.select(dim, index)
                for value, dim in zip(arguments, in_dims, strict=True)
            ]

        # An empty batch has no slice, so a slice of zeros gives the results' shapes.
        count = info.batch_size
        if count == 0:
            arguments_of_one = [
                value
                if dim is None
                else value.new_zeros([size for place, size in enumerate(value.shape) if place != dim])
                for value, dim in zip(arguments, in_dims, strict=True)
            ]
            calls = [operator(*arguments_of_one, **options)]
        else:
            calls = [operator(*piece(index), **options) for index in range(count)]

        def stacked(results: Sequence[Tensor | None]) -> Tensor | None:
            found = [result for result in results if result is not None]
            return torch.stack(found)[:count] if found else None

        if not isinstance(calls[0], tuple):
            return stacked(calls), 0
        outputs = tuple([stacked(results) for results in zip(*calls, strict=True)])
        return outputs, tuple([None if output is None else 0 for output in outputs])

    return rule
