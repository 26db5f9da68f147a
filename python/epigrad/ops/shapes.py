"""Shapes of results for tensors without data, from the core or, for symbolic sizes, from rules.

A symbol is a size that `torch.compile` or `torch.export` leaves open. The core needs numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from epigrad import errors
from epigrad._core import loader
from epigrad._core.call import Call

Shape = Sequence[Any]
Shapes = tuple[Shape | None, ...]


def inferred(
    call: Call,
    tensors: Sequence[Tensor | None],
    of_one_dtype: Sequence[Tensor | None],
    needs: Sequence[bool],
    symbolic: Callable[[], Shapes],
) -> Shapes:
    """The shapes of the outputs that `needs` selects. The core validates the operands as those of a
    real call. If a size is a symbol, `symbolic` gives the shapes.
    """
    core, op = loader.core(), call.op
    one_device(op, tensors)
    if all(t is None or _is_concrete(t) for t in tensors):
        # A transform of torch.func would hand new tensors to the modes that are off.
        with _disable_current_modes(), torch._C._DisableFuncTorch():
            ghosts = tuple([None if t is None else _ghost(t) for t in tensors])
            return core.infer(_with_numbers(call), ghosts, tuple(needs))[0]
    dtypes = [t.dtype for t in of_one_dtype if t is not None]
    for dtype in dtypes:
        if dtype != dtypes[0]:
            raise errors.DTypeError(f"{op}: {dtype} and {dtypes[0]}, want one dtype")
    shapes = symbolic()
    return tuple([shape if need else None for shape, need in zip(shapes, needs, strict=True)])


def _with_numbers(call: Call) -> Call:
    """The call with defaults in place of symbolic parameters, on which shapes do not depend."""
    if all(isinstance(value, float) for value in call.parameters):
        return call
    return call._replace(parameters=() if call.kind else (0.5,))


def one_device(op: str, tensors: Sequence[Tensor | None]) -> None:
    """Refuse tensors of two devices, which would otherwise fail only when the graph runs."""
    devices = [t.device for t in tensors if t is not None]
    for device in devices:
        if device != devices[0]:
            raise errors.DeviceMismatchError(f"{op}: tensors on {devices[0]} and {device}, want one device")


def _is_concrete(tensor: Tensor) -> bool:
    return all(type(number) is int for number in (*tensor.shape, *tensor.stride()))


def _ghost(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all broadcast to."""
    together: Callable[..., Shape] = torch.broadcast_shapes
    return together(*[tuple(shape) for shape in shapes])


def same(op: str, what: str, one: Any, other: Any) -> None:
    """Require two sizes to be equal: now if they are numbers, else at run time."""
    if isinstance(one, int) and isinstance(other, int):
        if one != other:
            raise errors.InvalidProblemError(f"{op}: {what}: sizes {one} and {other}, want them equal")
    else:
        torch._check(one == other, lambda: f"{op}: {what}: sizes {one} and {other}, want them equal")


def same_shape(op: str, what: str, one: Shape, other: Shape) -> None:
    """`same` for all sizes of two shapes."""
    if len(one) != len(other):
        raise errors.InvalidProblemError(f"{op}: {what}: {len(one)} dimensions, want {len(other)}")
    for place, (size, wanted) in enumerate(zip(one, other, strict=True)):
        same(op, f"{what}: dimension {place}", size, wanted)


def half(op: str, what: str, size: Any) -> Any:
    """Half of a size, which has to be even."""
    if isinstance(size, int):
        if size % 2:
            raise errors.InvalidProblemError(f"{op}: {what}: size {size}, want an even one")
    else:
        torch._check(size % 2 == 0, lambda: f"{op}: {what}: size {size}, want an even one")
    return size // 2


def gemm(op: str, a: Shape, b: Shape, bias: Shape | None) -> Shape:
    """The shape of ``a @ b + bias``, where b is a weight ``[N, K]`` if op is ``"linear"``."""
    if op.startswith("linear"):
        if len(b) != 2 or not len(a):
            raise errors.InvalidProblemError(
                f"{op}: input and weight: got {len(a)} and {len(b)} dimensions, want shapes [..., K] and [N, K]"
            )
        same(op, "features", a[-1], b[1])
        columns, out = b[0], (*a[:-1], b[0])
    else:
        if not len(a) or not len(b):
            raise errors.InvalidProblemError(
                f"{op}: a and b: got a scalar, want a of shape [..., M, K] or [K] and b of shape [..., K, N] or [K]"
            )
        same(op, "k", a[-1], b[-2] if len(b) > 1 else b[0])
        batch = broadcast(a[:-2], b[:-2])
        columns = b[-1] if len(b) > 1 else None
        out = (*batch, *a[-2:-1], *(() if columns is None else (columns,)))
    if bias is not None:
        if len(bias) != (columns is not None):
            raise errors.InvalidProblemError(f"{op}: bias: {len(bias)} dimensions, want {int(columns is not None)}")
        if columns is not None:
            same(op, "bias", bias[0], columns)
    return out
