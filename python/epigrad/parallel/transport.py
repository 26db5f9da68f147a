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
"""Parts of a row start at multiples of these bytes, as kernels read them."""
_SLOTS, _SCATTER, _COMBINE = Call("scatter_slots"), Call("scatter_rows"), Call("combine_rows")


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


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens ``[T, K]``, and the indices and scales of their slots, ``[T, J]``."""

    input: Tensor
    index: Tensor
    scale: Tensor

    def split(self, sizes: list[int]) -> list[Tokens]:
        """Pieces with these numbers of tokens."""
        parts = [torch.split(part, sizes) for part in (self.input, self.index, self.scale)]
        return [Tokens(*piece) for piece in zip(*parts, strict=True)]


@contextmanager
def named() -> Iterator[None]:
    """Name the function in what a collective raises, as where another process has died."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(
            f"epigrad.parallel.experts: process {dist.get_rank()} was exchanging rows with its group: see whether "
            "another process has raised an error, has ended, or has not called it"
        )
        raise


def room(counts: Sequence[int]) -> int:
    """The rows of a buffer for these counts, rounded up by a 16th at most. A kernel is chosen once
    for each size, so routings should give few sizes."""
    count = sum(counts)
    unit = 1 << max(count.bit_length() - 5, 0)
    return -(-count // unit) * unit


def exchange(rows: Tensor, route: Route, back: bool = False) -> Tensor:
    """Send rows to other processes, and return a buffer of the rows that they send here."""
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


def _aligned(size: int) -> int:
    """A number of bytes, rounded up to whole units."""
    return -(-size // _UNIT) * _UNIT


class Packed:
    """A buffer of rows ``[S, K]``, and beside them the slots of their tokens.

    Attributes:
        whole: all of it, contiguous.
        rows, index, scales: these parts of it, ``[S, K]`` and ``[S, J]``.
    """

    def __init__(self, whole: Tensor, columns: int, each: int) -> None:
        start = _aligned(columns * whole.element_size())
        self.whole = whole
        self.rows = whole[:, :columns]
        self.index = _part(whole, torch.int64, start, each)
        self.scales = _part(whole, wide(whole.dtype), start + each * torch.int64.itemsize, each)

    @classmethod
    def of(cls, tokens: Tokens, places: Tensor, experts: Tensor, count: int) -> Packed:
        """The rows of tokens for each process, at most `count`. An index counts from the process's
        first expert, which `experts` has. It is -1 for another process's expert."""
        input, index, scale = tokens.input, tokens.index, tokens.scale
        (columns, each), size = (input.shape[1], index.shape[1]), input.element_size()
        slots = each * (torch.int64.itemsize + wide(input.dtype).itemsize)
        packed = cls(input.new_empty(count, (_aligned(columns * size) + _aligned(slots)) // size), columns, each)
        _scatter(input, places, packed.rows)
        loader.core().launch(_SLOTS, (index, scale, experts, places), (True, True), (packed.index, packed.scales))
        return packed


def _part(whole: Tensor, dtype: torch.dtype, start: int, count: int) -> Tensor:
    """Columns of a dtype, from a byte on."""
    first = start // dtype.itemsize
    return whole.view(dtype)[:, first : first + count]


class Dispatch(Function):
    """Sends packed tokens. Returns the rows that come here, the indices of their experts, and their
    scales."""

    @staticmethod
    def forward(
        ctx: Any, route: Route, places: Tensor, packed: Packed, input: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        columns, each = input.shape[1], scale.shape[1]
        arrived = Packed(exchange(packed.whole, route), columns, each)
        if (count := sum(route.received)) < len(arrived.index):
            arrived.index[count:] = -1  # the buffer's last rows belong to no token
        ctx.route, ctx.like, ctx.scale_dtype = route, (columns, each, input.dtype), scale.dtype
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(arrived.index)
        ctx.set_materialize_grads(False)
        return arrived.rows, arrived.index, arrived.scales

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor | None, _: None, grad_scales: Tensor | None) -> tuple[Any, ...]:
        refuse_graph()
        (places,) = ctx.saved_tensors
        route, (columns, each, dtype) = ctx.route, ctx.like
        needs = asked(ctx, ctx.needs_input_grad[3:])
        grad_input = _returned(route, places, grad_rows, columns, dtype) if needs[0] else None
        grad_scale = None
        if needs[1]:
            # A slot's gradient is 0 in all processes but one.
            grad_scale = _returned(route, places, grad_scales, each, wide(dtype)).to(ctx.scale_dtype)
        return None, None, None, grad_input, grad_scale


def _returned(route: Route, places: Tensor, gradient: Tensor | None, columns: int, dtype: torch.dtype) -> Tensor:
    """The gradients for tokens, from those for the rows that came here, where None is zeros."""
    if gradient is None:
        gradient = places.new_zeros(room(route.received), columns, dtype=dtype)
    return _combine(exchange(gradient.contiguous(), route, back=True), places)


class Collect(Function):
    """Sends back the outputs of rows that came here. Returns the tokens' outputs: the parts of all
    processes, added up in the order of ranks in the accumulator's dtype."""

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
