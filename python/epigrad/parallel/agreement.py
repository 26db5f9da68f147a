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
from torch import Tensor

from epigrad import errors
from epigrad._core import loader
from epigrad._core.call import GATE_NAMES, Call
from epigrad._core.tables import ACTIVATIONS, DTYPES, GATED_KINDS
from epigrad.parallel.transport import Packed, Route, Tokens, named, room

PARTS = 16
"""The parts of the tokens in which rows are counted. A chunk is one part or more, so there are at
most 16 chunks."""
TOKENS_OF_A_CHUNK = 16384
"""The fewest tokens of a chunk, if the caller does not give the number of chunks."""


_COUNT = Call("count_rows")
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


@dataclass(slots=True)
class Chunk:
    """Some tokens, from `start` to `stop`, and where their rows go.

    Attributes:
        places: ``[t, ranks]``: a token's row among those that are sent, by rank and then by token,
            or -1 for a rank that has none of its experts.
        experts: the first expert of each rank, and how many there are.
        packed: the rows, where they are packed already.
    """

    start: int
    stop: int
    route: Route
    places: Tensor
    experts: Tensor
    packed: Packed | None

    def pack(self, tokens: Tokens) -> Packed:
        """The rows of its tokens. It keeps none, so that they are gone when they are sent."""
        packed, self.packed = self.packed, None
        return packed or Packed.of(tokens, self.places, self.experts, room(self.route.sent))


def agree(
    tokens: Tokens, local: int, facts: Sequence[Fact], chunks: int | None, most: int, group: dist.ProcessGroup
) -> tuple[Chunk, ...]:
    """The chunks of the tokens, and their routes to the processes, each of which has `local`
    experts. If `chunks` is None, there are `most` at most, which is the same in all processes.

    Raises:
        InvalidProblemError: in all processes, where a fact of two is not the same.
    """
    index, ranks, device = tokens.index, dist.get_world_size(group), tokens.index.device
    facts = (Fact("chunks", chunks or 0), *facts)
    codes = tuple([fact.code for fact in facts])
    told = index.new_empty(2, ranks, 2 * PARTS + 1 + len(facts))
    own, others = told.unbind()
    count = chunks or _chosen(len(index), most)
    tables = _tables(local, ranks, count, codes, device)
    places = _counted(index, tables, own)
    packed = None
    with named():
        work = dist.all_to_all_single(others, own, group=group, async_op=True)
        assert work is not None
        if count == 1:  # while counts travel; a token's row goes to no more processes than this
            packed = Packed.of(tokens, places, tables[0], len(index) * min(ranks, index.shape[1]))
        work.wait()
    sent, received = told.tolist()  # the host waits
    _compare(facts, [row[2 * PARTS + 1 :] for row in received], dist.get_rank(group))
    longest = max(row[2 * PARTS] for row in received)
    if (agreed := chunks or _chosen(longest, most)) != count:  # another process has more tokens
        tables = _tables(local, ranks, agreed, codes, device)
        places, packed = _counted(index, tables, own), None
    each = max(1, -(-len(index) // PARTS))
    made = []
    for first, end in itertools.pairwise(_bounds(agreed)):
        route = Route(
            group,
            [sum(row[first:end]) for row in sent],
            [sum(row[first:end]) for row in received],
            room([sum(row[PARTS + first : PARTS + end]) for row in received]),
        )
        start, stop = min(first * each, len(index)), min(end * each, len(index))
        made.append(Chunk(start, stop, route, places[start:stop], tables[0], packed))
    return tuple(made)


def _bounds(count: int) -> list[int]:
    """The first part of each of `count` chunks, and at the end the number of parts."""
    return [chunk * PARTS // count for chunk in range(count + 1)]


@functools.lru_cache(maxsize=64)
def _tables(
    local: int, ranks: int, count: int, codes: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of a mixture that a device needs: the first experts of ranks, the bounds of
    chunks, and the codes of facts. They are the same in each step, and go to the device once."""
    tables = [[rank * local for rank in range(ranks + 1)], _bounds(count), codes]
    whole = torch.tensor(list(itertools.chain(*tables)), device=device)
    experts, bounds, told = torch.split(whole, [len(table) for table in tables])
    return experts, bounds, told


def _counted(index: Tensor, tables: tuple[Tensor, Tensor, Tensor], own: Tensor) -> Tensor:
    """The places of the tokens' rows. `own` gets the numbers that go to each rank."""
    places = index.new_empty(len(index), len(own), dtype=torch.int32)
    loader.core().launch(_COUNT, (index, *tables), (True, True), (own, places))
    return places


def _chosen(tokens: int, most: int) -> int:
    """The number of chunks by default, if no process has more tokens."""
    return min(max(tokens // TOKENS_OF_A_CHUNK, 1), most)


def _compare(facts: Sequence[Fact], received: Sequence[Sequence[int]], rank: int) -> None:
    """Refuse facts that differ between processes."""
    own = [fact.code for fact in facts]
    differ = [
        f"{fact.name}: {fact.spoken(fact.code)} on rank {rank}, {fact.spoken(codes[place])} on rank {other}"
        for other, codes in enumerate(received)
        if codes != own
        for place, fact in enumerate(facts)
        if codes[place] != fact.code
    ]
    if differ:
        raise errors.InvalidProblemError(
            f"parallel.experts: {'; '.join(differ)}; want the same in all processes of the group"
        )
