"""Tensors laid out in every way that PyTorch allows, inside buffers of NaN, and the guards that
watch them.

Each tensor lies in a longer buffer whose other elements are NaN: a kernel that reads a wrong
element gets NaN into its result, and one that writes a wrong element changes a NaN that
`Guarded.check` looks at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

LAYOUTS = ("contiguous", "transposed", "offset", "step", "expanded_first", "expanded_last", "permuted", "odd_ones")
"""Ways to lay out an input. "odd_ones" gives dimensions of size 1 a stride that no contiguous
tensor has."""

UNALIGNED = "unaligned"
"""One way more: contiguous, from one element behind an aligned place."""

OUT_LAYOUTS = tuple(name for name in LAYOUTS if not name.startswith("expanded"))
"""Those of them in which no two elements share memory: an output must not overlap itself."""

Device = str | torch.device

_GUARD = 16
_ODD_STRIDE = 977


def _strides_in_order(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Strides of a dense tensor of these sizes whose dimensions lie in memory in this order,
    slowest first."""
    strides = [0] * len(sizes)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return strides


def strides_for(shape: Sequence[int], layout: str) -> list[int]:
    """Strides in elements that put a tensor of this shape into this layout."""
    rank = len(shape)
    order = list(range(rank))
    if layout == "transposed" and rank > 1:
        order[-2:] = reversed(order[-2:])
    elif layout == "permuted":
        order = [0, *order[2:], 1] if rank > 2 else order[::-1]
    padded = [size + 2 for size in shape] if layout == "offset" else list(shape)
    strides = _strides_in_order(padded, order)
    if layout == "step":
        return [3 * stride for stride in strides]
    if layout == "odd_ones":
        return [_ODD_STRIDE + dim if size == 1 else strides[dim] for dim, size in enumerate(shape)]
    if layout.startswith("expanded") and rank:
        strides[0 if layout == "expanded_first" else -1] = 0
    return strides


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _nan_buffer(shape: Sequence[int], dtype: torch.dtype, layout: str, device: Device) -> tuple[Tensor, Tensor]:
    strides = strides_for(shape, layout)
    buffer = torch.full((2 * _GUARD + 1 + _reach(shape, strides),), math.nan, dtype=dtype, device=device)
    return buffer, buffer.as_strided(tuple(shape), tuple(strides), _GUARD + (layout == UNALIGNED))


def laid_out(values: Tensor, dtype: torch.dtype, layout: str, device: Device = "cpu") -> Tensor:
    """`values` converted to a dtype and copied into a layout; an expanded dimension repeats its
    first slice."""
    _, view = _nan_buffer(values.shape, dtype, layout, device)
    # Converted where they are, so that every device gets the same values.
    target, values = view, values.to(dtype)
    for dim, stride in enumerate(view.stride()):
        if stride == 0 and view.shape[dim] > 1:
            target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    target.copy_(values)
    return view


@dataclass(frozen=True)
class Guarded:
    """An output filled with NaN, in a buffer filled with NaN."""

    tensor: Tensor
    buffer: Tensor

    @classmethod
    def empty(
        cls, shape: Sequence[int], dtype: torch.dtype, layout: str = "contiguous", device: Device = "cpu"
    ) -> Guarded:
        buffer, view = _nan_buffer(shape, dtype, layout, device)
        return cls(view, buffer)

    @classmethod
    def like(cls, tensor: Tensor, layout: str = "contiguous") -> Guarded:
        """Of a tensor's shape and dtype, on its device."""
        return cls.empty(tensor.shape, tensor.dtype, layout, tensor.device)

    @classmethod
    def holding(cls, values: Tensor, layout: str = "contiguous") -> Guarded:
        guarded = cls.like(values, layout)
        guarded.tensor.copy_(values)
        return guarded

    def check(self) -> None:
        """Fails if anything outside the tensor was written."""
        outside = torch.ones_like(self.buffer, dtype=torch.bool)
        outside.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()).fill_(False)
        assert self.buffer[outside].isnan().all(), "elements outside the output were written"


def bytes_of_storage(tensor: Tensor) -> Tensor:
    """The memory behind a tensor, gaps and guards included."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()


@contextmanager
def unchanged(*tensors: Tensor | None) -> Iterator[None]:
    """Fails if the memory behind any of the tensors, gaps and guards included, has changed by a bit
    at the end."""
    before = [(tensor, bytes_of_storage(tensor)) for tensor in tensors if tensor is not None]
    yield
    for tensor, held in before:
        assert torch.equal(bytes_of_storage(tensor), held), "an input was written to"


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bytes in row-major order, so that equality means the same bits (NaN
    included)."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return flat.copy_(tensor.detach().reshape(-1)).view(torch.uint8)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether both have the same shape, dtype and bits, but for the sign and the payload of NaN: of
    two NaN a processor keeps the first, and which comes first is not promised."""
    if one.is_floating_point() and other.is_floating_point():
        one, other = (tensor.masked_fill(tensor.isnan(), torch.nan) for tensor in (one, other))
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))
