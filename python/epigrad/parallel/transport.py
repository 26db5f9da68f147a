"""Rows on their way to the processes that have their experts, and back.

`Dispatch` sends a token's row once to each process that has an expert of it, and with it the scales
and the indices of the token's slots. `Collect` takes back what these make of it, and adds that up.
Each is a linear function whose backward sends rows the other way, in as many pieces: nothing is
counted again, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from epigrad import errors
from epigrad._autograd.engine import asked
from epigrad._core import loader
from epigrad._core.call import Call

_UNIT = 16
"""The bytes that parts of a row start at a multiple of, as kernels read them."""
_SCATTER, _COMBINE = Call("scatter_rows"), Call("combine_rows")


@dataclass(frozen=True, slots=True)
class Route:
    """Where the rows of some tokens go.

    Attributes:
        group: the processes.
        sent: how many rows each rank gets.
        received: how many come from each.
        slots: how many slots of the rows that come select an expert of this rank, or a few more.
    """

    group: dist.ProcessGroup
    sent: Sequence[int]
    received: Sequence[int]
    slots: int


@contextmanager
def named() -> Iterator[None]:
    """Name the function in what a collective raises, as where another process has died."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(f"epigrad.parallel.experts: process {dist.get_rank()} was exchanging rows with its group")
        raise


def room(counts: Sequence[int]) -> int:
    """The rows of a buffer for so many, which are at most a 16th more: kernels are chosen for each
    size once, and routings give many."""
    count = sum(counts)
    unit = 1 << max(count.bit_length() - 5, 0)
    return -(-count // unit) * unit


def exchange(rows: Tensor, route: Route, back: bool = False) -> Tensor:
    """A buffer of rows that other processes send here, for those that go to them."""
    sent, received = (route.received, route.sent) if back else (route.sent, route.received)
    arrived = rows.new_empty(room(received), rows.shape[1])
    to, given = (buffer[: sum(counts)].view(torch.uint8) for buffer, counts in ((arrived, received), (rows, sent)))
    with named():  # as bytes, which every backend has
        dist.all_to_all_single(to, given, list(received), list(sent), group=route.group)
    return arrived


def _scatter(rows: Tensor, places: Tensor, to: Tensor) -> None:
    loader.core().launch(_SCATTER, (rows, places), (True,), (to,))


def _combine(rows: Tensor, places: Tensor) -> Tensor:
    (out,) = loader.core().launch(_COMBINE, (rows, places), (True,))
    assert out is not None
    return out


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scales and their gradients travel: an accumulator's."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _aligned(count: int, size: int) -> int:
    """As many elements of a size or more, which are whole units."""
    return -(-count * size // _UNIT) * _UNIT // size


class _Packed:
    """A buffer of rows ``[S, K]`` with numbers ``[S, M]`` beside them, of 32 bits.

    Attributes:
        whole: all of it, contiguous.
        rows, beside: these parts of it.
    """

    def __init__(self, whole: Tensor, columns: int, numbers: int) -> None:
        start = _aligned(columns, whole.element_size()) * whole.element_size() // 4
        self.whole = whole
        self.rows = whole[:, :columns]
        self.beside = whole.view(torch.float32)[:, start : start + numbers]

    @classmethod
    def empty(cls, like: Tensor, count: int, columns: int, numbers: int) -> _Packed:
        size = like.element_size()
        width = _aligned(columns, size) + _aligned(numbers, 4) * 4 // size
        return cls(like.new_empty(count, width), columns, numbers)


class Slots:
    """The slots of tokens as numbers beside their rows: scales first, then the indices of experts.

    Attributes:
        numbers: ``[T, M]``.
        scales, index: these parts of it, ``[T, J]``.
    """

    def __init__(self, numbers: Tensor, each: int, dtype: torch.dtype) -> None:
        self.numbers = numbers
        words = each * wide(dtype).itemsize // 4
        self.scales = numbers[:, :words].view(wide(dtype))
        self.index = numbers[:, words : words + each].view(torch.int32)

    @classmethod
    def of(cls, index: Tensor, scale: Tensor, dtype: torch.dtype) -> Slots:
        """Those of tokens of a dtype; an index has 31 bits."""
        count = _words(index.shape[1], dtype)
        slots = cls(index.new_empty(len(index), count, dtype=torch.float32), index.shape[1], dtype)
        slots.scales.copy_(scale)
        slots.index.copy_(index)
        return slots


def _words(each: int, dtype: torch.dtype) -> int:
    """How many numbers the slots of a token are, so that each row of them is aligned."""
    return _aligned(each * (wide(dtype).itemsize // 4 + 1), 4)


class Dispatch(Function):
    """Of tokens and their scales, the rows that come here, the indices of their experts and their
    scales. Indices of other processes' experts are no index here."""

    @staticmethod
    def forward(
        ctx: Any, route: Route, places: Tensor, numbers: Tensor, first: int, input: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        columns, each = input.shape[1], scale.shape[1]
        sent = _Packed.empty(input, room(route.sent), columns, numbers.shape[1])
        _scatter(input, places, sent.rows)
        _scatter(numbers, places, sent.beside)
        arrived = _Packed(exchange(sent.whole, route), columns, numbers.shape[1])
        slots = Slots(arrived.beside, each, input.dtype)
        index = slots.index.to(torch.int64).sub_(first)
        index[sum(route.received) :] = -1  # nothing reads rows that are no token's
        ctx.route, ctx.like, ctx.scale_dtype = route, (columns, each, input.dtype), scale.dtype
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        return arrived.rows, index, slots.scales

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor | None, _: None, grad_scales: Tensor | None) -> tuple[Any, ...]:
        refuse_graph()
        (places,) = ctx.saved_tensors
        columns, each, dtype = ctx.like
        needs = asked(ctx, ctx.needs_input_grad[4:])
        words = each * wide(dtype).itemsize // 4 if needs[1] else 0
        columns = columns if needs[0] else 0
        sent = _Packed.empty(places.new_empty(0, dtype=dtype), room(ctx.route.received), columns, words)
        if needs[0]:
            _copy(sent.rows, grad_rows)
        if needs[1]:
            _copy(sent.beside.view(wide(dtype)), grad_scales)
        arrived = _Packed(exchange(sent.whole, ctx.route, back=True), columns, words)
        grad_input = _combine(arrived.rows, places) if needs[0] else None
        grad_scale = None
        if needs[1]:
            # Of a slot one process alone gives another number than 0.
            grad_scale = _combine(arrived.beside.view(wide(dtype)), places).to(ctx.scale_dtype)
        return None, None, None, None, grad_input, grad_scale


def _copy(to: Tensor, gradient: Tensor | None) -> None:
    """Fill a part of a buffer with a gradient, which is 0 where it is None."""
    if gradient is None:
        to.zero_()
    else:
        to.copy_(gradient)


class Collect(Function):
    """Of the outputs for rows that came here, those for tokens: what the processes give for a
    token, added up in the order of ranks in the accumulator's dtype."""

    @staticmethod
    def forward(ctx: Any, route: Route, places: Tensor, rows: Tensor) -> Tensor:
        ctx.route = route
        ctx.save_for_backward(places)
        return _combine(exchange(rows, route, back=True), places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        refuse_graph()
        (places,) = ctx.saved_tensors
        sent = grad.new_empty(room(ctx.route.sent), grad.shape[1])
        _scatter(grad, places, sent)
        return None, None, exchange(sent, ctx.route)


def refuse_graph() -> None:
    """Refuse a backward whose gradients will be differentiated, before anything is sent."""
    if torch.is_grad_enabled():
        raise errors.UnsupportedError(
            "parallel.experts: backward with create_graph=True, want gradients of first order: a second derivative "
            "takes epigrad.experts, with all experts in one process"
        )
