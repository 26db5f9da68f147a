"""What goes where, and whether all processes mean the same mixture.

Every process tells every other how many rows it sends it, and what its mixture is, in one exchange
of a few numbers. Then the host waits for them, once.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from epigrad import errors
from epigrad._core.call import GATE_NAMES
from epigrad._core.tables import ACTIVATIONS, DTYPES, GATED_KINDS
from epigrad.parallel.transport import Route, named, room

PARTS = 16
"""Rows are counted in so many parts of the tokens, of which chunks are made: the most chunks."""
TOKENS_OF_A_CHUNK, MOST_CHUNKS = 16384, 4
"""The sizes that chunks are chosen by on a GPU."""


DEVICES = ("cpu", "cuda")
_WORDS: dict[str, tuple[object, ...]] = {"device": DEVICES, "kind": (*GATED_KINDS, *ACTIVATIONS), "gate": GATE_NAMES}


class Fact(NamedTuple):
    """Something that has to be the same in all processes.

    Attributes:
        name: what messages call it.
        code: its value as an integer of 64 bits.
        words: what codes stand for, if that is no number.
        is_float: whether the code has the bits of a float.
    """

    name: str
    code: int
    words: tuple[object, ...] = ()
    is_float: bool = False

    @classmethod
    def of(cls, name: str, value: object) -> Fact:
        if isinstance(value, float):
            (code,) = struct.unpack("q", struct.pack("d", value))
            return cls(name, code, is_float=True)
        if type(value) is int:
            return cls(name, value)
        words = (False, True) if isinstance(value, bool) else _WORDS.get(name, tuple(DTYPES.values()))
        return cls(name, words.index(value), words)

    def spoken(self, code: int) -> str:
        """A value of it as text."""
        if self.is_float:
            return f"{struct.unpack('d', struct.pack('q', code))[0]:g}"
        return str(self.words[code]) if 0 <= code < len(self.words) else str(code)


@functools.lru_cache(maxsize=256)
def facts_of(values: tuple[tuple[str, object], ...]) -> tuple[Fact, ...]:
    """The facts of names and values."""
    return tuple([Fact.of(name, value) for name, value in values])


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some tokens, from `start` to `stop`, and where their rows go.

    Attributes:
        places: ``[t, ranks]``: a token's row among those that are sent, by rank and then by token,
            or -1 for a rank that has none of its experts.
    """

    start: int
    stop: int
    route: Route
    places: Tensor


def agree(
    index: Tensor, local: int, facts: Sequence[Fact], chunks: int | None, group: dist.ProcessGroup
) -> tuple[Chunk, ...]:
    """The chunks of the tokens with these experts, so many of which each process has.

    Raises:
        InvalidProblemError: in all processes, where a fact of two is not the same.
    """
    ranks, tokens = dist.get_world_size(group), len(index)
    slots = _slots_of_ranks(index, local, ranks)
    rows = slots > 0
    each = max(1, -(-tokens // PARTS))
    facts = (Fact("chunks", chunks or 0), *facts)
    told = torch.tensor([tokens, *(fact.code for fact in facts)]).to(index.device, non_blocking=True)
    own = torch.cat([_in_parts(torch.stack([rows, slots]), each), told.expand(ranks, -1)], 1)
    others = torch.empty_like(own)
    with named():
        dist.all_to_all_single(others, own, group=group)
    numbers = rows.cumsum(0, dtype=torch.int32)
    sent, received = torch.stack([own, others]).tolist()  # the host waits
    _compare(facts, [row[2 * PARTS + 1 :] for row in received], dist.get_rank(group))
    most = max(row[2 * PARTS] for row in received)
    count = chunks or _chosen(most, index.device)
    spans = list(itertools.pairwise(part * PARTS // count for part in range(count + 1)))
    routes = [
        Route(
            group,
            [sum(row[first:end]) for row in sent],
            [sum(row[first:end]) for row in received],
            room([sum(row[PARTS + first : PARTS + end]) for row in received]),
        )
        for first, end in spans
    ]
    # A token's row is the number of tokens with a row for the rank so far, counted from the chunk's
    # first one, behind the rows of ranks before.
    shifts = [
        [sum(route.sent[:rank]) - sum(sent[rank][:first]) - 1 for rank in range(ranks)]
        for route, (first, _) in zip(routes, spans, strict=True)
    ]
    shift = torch.tensor(shifts, dtype=torch.int32).to(index.device, non_blocking=True)
    made = []
    for chunk, (route, (first, end)) in enumerate(zip(routes, spans, strict=True)):
        start, stop = min(first * each, tokens), min(end * each, tokens)
        places = torch.where(rows[start:stop], numbers[start:stop] + shift[chunk], -1)
        made.append(Chunk(start, stop, route, places))
    return tuple(made)


def _slots_of_ranks(index: Tensor, local: int, ranks: int) -> Tensor:
    """How many slots of each token select an expert of each rank, ``[T, ranks]``."""
    owner = index.div(max(local, 1), rounding_mode="floor")  # no rank, of an index that is no expert's
    every = torch.arange(ranks, device=index.device)
    return (owner.unsqueeze(-1) == every).sum(1, dtype=torch.int32)


def _in_parts(counts: Tensor, each: int) -> Tensor:
    """The sums of two counts ``[2, T, ranks]`` over parts of so many tokens, a row for each rank:
    ``[ranks, 2 * PARTS]``, int64."""
    kinds, tokens, ranks = counts.shape
    missing = PARTS * each - tokens
    padded = nn.functional.pad(counts, (0, 0, 0, missing)) if missing else counts
    sums = padded.view(kinds, PARTS, each, ranks).sum(2, dtype=torch.int64)
    return sums.view(kinds * PARTS, ranks).t()


def _chosen(tokens: int, device: torch.device) -> int:
    """How many chunks there are by default, of the process that has most tokens."""
    if device.type != "cuda":
        return 1
    return min(max(tokens // TOKENS_OF_A_CHUNK, 1), MOST_CHUNKS)


def _compare(facts: Sequence[Fact], received: Sequence[Sequence[int]], rank: int) -> None:
    """Refuse processes of which one means another mixture."""
    differ = [
        f"{fact.name}: {fact.spoken(fact.code)} on rank {rank}, {fact.spoken(codes[place])} on rank {other}"
        for other, codes in enumerate(received)
        for place, fact in enumerate(facts)
        if codes[place] != fact.code
    ]
    if differ:
        raise errors.InvalidProblemError(
            f"parallel.experts: {'; '.join(differ)}; want the same in all processes of the group"
        )
