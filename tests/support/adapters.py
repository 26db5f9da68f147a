"""A call with adapters of each operation that takes them, its reference and the same in PyTorch,
which forms the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import epigrad
import torch
from epigrad import LowRank
from epigrad._core import tables
from torch import Tensor

from tests.support import compositions, oracle, references
from tests.support.oracle import Sized

Shapes = tuple[tuple[int, ...], ...]

TOKENS, RANK, SCALE = 6, 2, 0.75
CALLS: dict[str, tuple[str, Shapes]] = {
    "linear": ("silu", ((TOKENS, 5), (7, 5), (7,))),
    "gated_linear": ("swiglu", ((TOKENS, 5), (7, 5), (7, 5), (7,), (7,))),
    "mlp": ("gelu", ((TOKENS, 5), (8, 5), (8,), (3, 8), (3,))),
    "gated_mlp": ("swiglu", ((TOKENS, 5), (8, 5), (8,), (3, 4), (3,))),
    "grouped_linear": ("silu", ((TOKENS, 5), (3, 7, 5), (3, 7))),
    "experts": ("swiglu", ((TOKENS, 5), (TOKENS, 2), (3, 8, 5), (3, 8), (3, 5, 4), (3, 5))),
}
"""The kind of each, and the shapes of the tensors that have gradients."""
ADAPTED = {op: f"{op} + LowRank" for op in CALLS}
"""How docs/features.md calls them."""

OFFSETS = torch.tensor([2, 2, 5])
"""Ends of groups, one of which has no rows; a row is nobody's."""
INDEX = torch.tensor([[0, 2], [2, 0], [0, 2], [0, 0], [-1, 2], [2, 0]])
"""Experts of each token, one of which has none; a slot is nobody's."""


def row(op: str) -> tables.Operation:
    """The operation with adapters."""
    found = tables.OPS[op].adapted
    assert found is not None
    return found


def names(op: str) -> list[str]:
    """The names of the tensors that have gradients, but for the adapters'."""
    return [name.removeprefix("grad_") for name in tables.OPS[f"{op}_backward"].results]


def weights(op: str) -> list[int]:
    """The places of the weights among them."""
    return [place for place, name in enumerate(names(op)) if name.startswith("weight")]


def drawn(op: str, dtype: torch.dtype, adapters: torch.dtype, rank: int = RANK, seed: int = 0) -> list[Tensor]:
    """Tensors of a call, and `a` and `b` of each adapter, in another dtype."""
    generator = torch.Generator().manual_seed(seed)

    def draw(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    own = [draw(dtype, *shape) for shape in CALLS[op][1]]
    pairs = []
    for place in weights(op):
        *groups, n, k = own[place].shape
        pairs += [draw(adapters, *groups, rank, k), draw(adapters, *groups, n, rank)]
    return own + pairs


def leaves(tensors: Sequence[Tensor], frozen: Sequence[int] = ()) -> list[Tensor]:
    return [t.detach().requires_grad_(place not in frozen) for place, t in enumerate(tensors)]


def call(op: str, *tensors: Any, scale: float = SCALE, room: Any = epigrad, **options: Any) -> Any:
    """The operation of its own tensors and those of its adapters. `room` is where it is, with
    grad_output in front in epigrad.backward. OFFSETS and INDEX may be given by other options."""
    own = len(CALLS[op][1]) + (room is epigrad.backward)
    given: list[Any] = [*tensors[:own]]
    pairs = zip(tensors[own::2], tensors[own + 1 :: 2], strict=True)
    adapters = [None if a is None else LowRank(a, b, scale) for a, b in pairs]
    options |= dict(zip(row(op).adapters, adapters, strict=True))
    if op == "grouped_linear":
        options.setdefault("offsets", OFFSETS.to(given[0].device))
    if op == "experts":
        given.insert(own - 5, options.pop("index", INDEX.to(given[0].device)))
    function = getattr(room, f"{op}_backward" if room is epigrad.backward else op)
    return function(*given, CALLS[op][0], **options)


def eager(op: str, *tensors: Tensor, scale: float = SCALE) -> Tensor:
    """The same by PyTorch's own operations, with weights in which the adapters are."""
    count = len(CALLS[op][1])
    own = list(tensors[:count])
    for place, a, b in zip(weights(op), tensors[count::2], tensors[count + 1 :: 2], strict=True):
        own[place] = (own[place] + scale * (b @ a)).to(own[place].dtype)
    return _composed(op)(*own)


def _row(op: str) -> Any:
    kind = CALLS[op][0]
    return (oracle.ACTIVATIONS if kind in tables.ACTIVATIONS else oracle.GATED)[kind]


def _composed(op: str) -> Callable[..., Tensor]:
    return compositions.of(op, _row(op).eager, {"offsets": OFFSETS, "index": INDEX, "gate": "second"})


def reference(op: str, grad: Tensor, tensors: Sequence[Tensor], scale: float = SCALE) -> list[Sized | None]:
    """The output and the gradients of all tensors."""
    dtype, count = tensors[0].dtype, len(CALLS[op][1])
    sized = [Sized.of(tensor, dtype) for tensor in tensors]
    own, pairs = sized[:count], list(zip(sized[count::2], sized[count + 1 :: 2], strict=True))
    factor = Sized.of(scale, dtype)
    for place, (a, b) in zip(weights(op), pairs, strict=True):
        own[place] = own[place] + factor * (b @ a)
    known = {"offsets": OFFSETS, "index": INDEX, "gate": "second"}
    found = list(references.of(op, _row(op), Sized.of(grad, dtype), own, known))
    for place, (a, b) in zip(weights(op), pairs, strict=True):
        of_weight = found[1 + place]
        assert of_weight is not None
        found += [factor * (b.transposed @ of_weight), factor * (of_weight @ a.transposed)]
    return found
