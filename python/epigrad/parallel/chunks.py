"""Chunks of tokens one after the other. On a GPU the rows of one travel while others are
multiplied.

Overlap saves less than the shorter of the two, wire and products. Each further chunk reads all
weights once more, adds up their gradients once more, and multiplies fewer rows at a time. So by
default there is one chunk, unless rows travel longer than they are multiplied. `most_chunks`
estimates that from bytes and FLOPs: it seldom is so with the GPUs of one host, and often over a
network.

Autograd runs a node's backward on the stream of its forward, and lets streams wait for each other
where gradients pass between them. So backward overlaps as forward does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from epigrad._core.tables import is_half
from epigrad.parallel.agreement import Chunk
from epigrad.parallel.transport import Collect, Dispatch, Tokens

Multiply = Callable[[Chunk, Tensor, Tensor, Tensor], Tensor]
"""Computes the outputs of a chunk's rows that came here, from rows, indices and scales."""


MOST_CHUNKS = 4
HOST = 8
"""The GPUs of a host."""
NVLINK, NETWORK, PRODUCTS = 450e9, 50e9, 550e12
"""Bytes a second that a GPU sends in its host and beyond it, and FLOPs a second of its products: an
H200's, with 400 Gb/s of network."""


def most_chunks(ranks: int, each: int, columns: int, dtype: torch.dtype, device: torch.device) -> int:
    """The most chunks by default, for tokens of `each` slots and experts whose weights together
    have this many `columns`.

    With even routing a token reaches another rank with the probability ``1 - (1 - 1/ranks)**each``.
    Forward and backward send its row of K numbers four times, and do ``6 K columns`` FLOPs for each
    of its slots. So K and the number of tokens cancel.
    """
    if device.type != "cuda" or not is_half(dtype):
        return 1
    near = min(ranks, HOST) - 1
    reached = 1 - (1 - 1 / ranks) ** each
    travel = reached * dtype.itemsize * max(near / NVLINK, (ranks - 1 - near) / NETWORK)
    return MOST_CHUNKS if 4 * travel > 6 * each * columns / PRODUCTS else 1


def in_chunks(chunks: Sequence[Chunk], tokens: Tokens, multiply: Multiply) -> Tensor:
    """The outputs for tokens, whose rows go to other processes' experts and come back."""
    many, device = len(chunks) > 1, tokens.input.device
    pieces = tokens.split([chunk.stop - chunk.start for chunk in chunks]) if many else [tokens]
    side = _Side(device, many and device.type == "cuda")
    side.follow(tokens.input, tokens.index, tokens.scale, *[chunk.places for chunk in chunks])
    arrived = []
    for chunk, piece in zip(chunks, pieces, strict=True):
        with side.work():
            rows = Dispatch.apply(chunk.route, chunk.places, chunk.pack(piece), piece.input, piece.scale)
        arrived.append((rows, side.mark()))
    outputs = []
    for chunk, (rows, mark) in zip(chunks, arrived, strict=True):
        side.join(mark, *rows)
        product = multiply(chunk, *rows)
        side.follow(product)
        with side.work():
            outputs.append(Collect.apply(chunk.route, chunk.places, product))
    side.join(side.mark(), *outputs)
    return torch.cat(outputs) if many else outputs[0]


class _Side:
    """A stream beside the current one, the main stream; or no stream, and all work in order.

    Memory belongs to the stream that it was allocated on. Another stream that uses it is recorded:
    else it might be given out again too early.
    """

    def __init__(self, device: torch.device, there: bool) -> None:
        self.stream = _stream_of(device) if there else None
        self.main = torch.cuda.current_stream(device) if there else None

    def work(self) -> AbstractContextManager[object]:
        """Where the side stream gets work."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def follow(self, *tensors: Tensor) -> None:
        """Have the side stream wait for all that the main one has to do, and use these tensors."""
        if self.stream is not None and self.main is not None:
            self.stream.wait_stream(self.main)
            for tensor in tensors:
                tensor.record_stream(self.stream)

    def mark(self) -> torch.cuda.Event | None:
        """An event behind all work that the side stream has."""
        return None if self.stream is None else self.stream.record_event()

    def join(self, mark: torch.cuda.Event | None, *tensors: Tensor) -> None:
        """Have the main stream wait for the event, and use these tensors."""
        if mark is not None and self.main is not None:
            self.main.wait_event(mark)
            for tensor in tensors:
                tensor.record_stream(self.main)


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    make: Callable[..., torch.cuda.Stream] = torch.cuda.Stream
    return make(device)
