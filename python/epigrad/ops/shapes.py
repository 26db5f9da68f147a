"""Shapes of results for tensors without data, from the core or, for symbolic sizes, from rules.

A symbol is a size that `torch.compile` or `torch.export` leaves open. The core needs numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from epigrad import errors
from epigrad._core import loader
from epigrad._core.call import Call
from epigrad._core.tables import OPS, Argument, Operation, is_half

Shape = Sequence[Any]
Shapes = tuple[Shape | None, ...]


def inferred(
    call: Call,
    row: Operation,
    tensors: Sequence[Tensor | None],
    needs: Sequence[bool],
    symbolic: Callable[[], Shapes],
) -> Shapes:
    """The shapes of the outputs that `needs` selects. The core validates the operands as those of a
    real call. If a size is a symbol, `symbolic` gives the shapes.
    """
    core, op = loader.core(), call.op
    one_device(op, tensors)
    given = [tensor for tensor in tensors if tensor is not None]
    if all(type(number) is int for tensor in given for number in (*tensor.shape, *tensor.stride())):
        # A transform of torch.func would hand new tensors to the modes that are off.
        with _disable_current_modes(), torch._C._DisableFuncTorch():
            make = partial(torch.empty_strided, device="meta")
            ghosts = [None if t is None else make(t.shape, t.stride(), dtype=t.dtype) for t in tensors]
            return core.infer(_with_numbers(call), tuple(ghosts), tuple(needs))[0]
    _one_dtype(row, tensors)
    shapes = symbolic()
    return tuple([shape if need else None for shape, need in zip(shapes, needs, strict=True)])


def _one_dtype(row: Operation, tensors: Sequence[Tensor | None]) -> None:
    """Refuse a second dtype, but of indices, and of what may be float32 beside half types."""
    given = [(argument, t.dtype) for argument, t in zip(row.inputs, tensors, strict=True) if t is not None]
    first = given[0][1]
    for argument, dtype in given:
        wider = argument.types == "wider" and dtype == torch.float32 and is_half(first)
        if dtype != first and not wider and argument.types in ("call", "wider"):
            raise errors.DTypeError(f"{row.name}: {dtype} and {first}, want one dtype")


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


def broadcast(*shapes: Shape) -> Shape:
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


Sizes = dict[str, Any]
"""The size of each symbol of a row; that of ``...`` is a shape."""


def shapes_of(tensors: Sequence[Tensor | None]) -> list[Shape | None]:
    return [None if tensor is None else tensor.shape for tensor in tensors]


def sizes_of(row: Operation, shapes: Sequence[Shape | None], gated: bool) -> Sizes:
    """The sizes of the symbols in a row's shapes. Each has to be the same in all of them."""
    sizes: Sizes = {}
    for argument, shape in zip(row.inputs, shapes, strict=True):
        if shape is not None and argument.shape:
            _bind(row.name, argument, shape, gated, sizes)
    return sizes


def _bind(op: str, argument: Argument, shape: Shape, gated: bool, sizes: Sizes) -> None:
    parts = _parts(argument)
    if parts[0] == "...":
        parts = parts[1:]
        if len(shape) < len(parts):
            raise errors.InvalidProblemError(
                f"{op}: {argument.name}: {len(shape)} dimensions, want at least {len(parts)}"
            )
        leading, shape = shape[: len(shape) - len(parts)], shape[len(shape) - len(parts) :]
        same_shape(op, argument.name, leading, sizes.setdefault("...", leading))
    elif len(shape) != len(parts):
        raise errors.InvalidProblemError(f"{op}: {argument.name}: {len(shape)} dimensions, want {len(parts)}")
    for part, size in zip(parts, shape, strict=True):
        symbol = part.removeprefix("2")
        if symbol not in sizes and "*" not in symbol:
            sizes[symbol] = half(op, argument.name, size) if part != symbol and gated else size
        else:
            same(op, f"{argument.name}: {part}", size, _size(part, gated, sizes))


def _parts(argument: Argument) -> list[str]:
    return argument.shape.strip("[]").split(", ")


def _size(part: str, gated: bool, sizes: Sizes) -> Any:
    of_gate = 2 if part.startswith("2") and gated else 1
    return math.prod([of_gate, *[sizes[symbol] for symbol in part.removeprefix("2").split("*")]])


def formed(argument: Argument, gated: bool, sizes: Sizes) -> Shape:
    """The shape of an argument, of the sizes of its symbols."""
    found: list[Any] = []
    for part in _parts(argument):
        found += sizes["..."] if part == "..." else [_size(part, gated, sizes)]
    return tuple(found)


def from_symbols(row: Operation, tensors: Sequence[Tensor | None], gated: bool) -> Shapes:
    """The shapes of an operation's results, of the symbols in its row."""
    sizes = sizes_of(row, shapes_of(tensors), gated)
    return tuple([formed(output, gated, sizes) if output.shape else None for output in row.outputs])


def of_inputs(row: Operation, tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """The shapes of forward's inputs, of the tensors of a backward. One that forward needs and that
    is left out has grad_output's."""
    grad_output = tensors[0]
    assert grad_output is not None
    found = []
    for argument, tensor in zip(row.inputs[1:], tensors[1:], strict=True):
        if not argument.kept:
            needed = any(argument.name == other.name and not other.optional for other in OPS[row.forward].inputs)
            found.append(tensor.shape if tensor is not None else grad_output.shape if needed else None)
    return tuple(found)


def product(call: Call, a: Tensor, b: Tensor, bias: Tensor | None) -> Shapes:
    """The shapes of ``a @ b + bias``: of the output and of the preactivation."""
    shape = of_product(call.op, a.shape, b.shape, None if bias is None else bias.shape)
    return shape, shape


def of_product(op: str, a: Shape, b: Shape, bias: Shape | None) -> Shape:
    if not len(a) or not len(b):
        raise errors.InvalidProblemError(
            f"{op}: a and b: got a scalar, want a of shape [..., M, K] or [K] and b of shape [..., K, N] or [K]"
        )
    same(op, "k", a[-1], b[-2] if len(b) > 1 else b[0])
    batch = broadcast(a[:-2], b[:-2])
    columns = b[-1:] if len(b) > 1 else ()
    if bias is not None:
        same_shape(op, "bias", bias, columns)
    return (*batch, *a[-2:-1], *columns)
