"""One call of an operation: everything but its tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.compiler import is_dynamo_compiling

from epigrad import errors
from epigrad._core import invariance, selection
from epigrad._core.tables import GATED_KINDS, OPS
from epigrad._core.values import immutable
from epigrad.kinds import Activation, ActivationLike, Gated, activation_of, arguments_of, either_of, gated_of

GATE_NAMES = ("second", "first", "odd", "even")
"""Where the gates are: the second half, the first, or every other one; in epigrad.h's order."""

_PLACES = {name: place for place, name in enumerate(GATE_NAMES)}


class _Fields(NamedTuple):
    """A class of its own, since a named tuple has no room for what `Call` computes once."""

    op: str
    kind: str | None = None
    parameters: tuple[float, ...] = ()
    dim: int = 0
    gate: int = 0
    accumulate: bool = False
    backend: str | None = None
    batch_invariant: bool = False


@immutable
class Call(_Fields):
    """One call of the core: the fields of `epg_call` (cbridge/include/epigrad.h) in order.

    Attributes:
        op: the operation.
        kind: the activation or the gated kind; None for lerp, prelu and xielu.
        parameters: the kind's, all or none for the defaults; or lerp's weight, if it is a number;
            or xielu's beta.
        dim: the dimension that a gated activation splits.
        gate: where the gates are, an index of `GATE_NAMES`.
        accumulate: whether to add into the weight and bias gradients.
        backend: the backend for CPU tensors; None is the CPU's.
        batch_invariant: whether bits of a row may not depend on other rows, of an operation with a
            product.
    """

    @functools.cached_property
    def backward(self) -> Call:
        return self._replace(op=self.op + "_backward")

    @functools.cached_property
    def as_batch_invariant(self) -> Call:
        """The same call, with bits of rows that do not depend on other rows."""
        return self._replace(batch_invariant=True) if OPS[self.op].multiplies else self

    @property
    def is_gated(self) -> bool:
        return self.kind in GATED_KINDS

    @property
    def activation(self) -> Activation:
        assert self.kind is not None
        return Activation.of(self.op, self.kind, self.parameters)

    @property
    def gated(self) -> Gated:
        assert self.kind is not None
        return Gated.of(self.op, self.kind, self.parameters)


_LOOKUPS: dict[str, Callable[[str, Any], Activation | Gated]] = {
    "activation": activation_of,
    "gated": gated_of,
    "either": either_of,
}


def kind_of(op: str, kind: ActivationLike | Gated) -> Activation | Gated:
    return _LOOKUPS[OPS[op].kinds](op, kind)


def make_call(op: str, kind: ActivationLike | Gated, dim: int, gate: str, backend: str | None) -> Call:
    """The call of an operation with the kind that a caller means."""
    found = kind_of(op, kind)
    parameters = arguments_of(found)
    return Call(op, found.name, parameters, dim_index(op, dim), gate_place(op, gate), backend=backend)


# a dim of 1.0 or True is equal to 1, and refused
_quick = functools.lru_cache(maxsize=1024, typed=True)(make_call)


def call_of(op: str, kind: ActivationLike | Gated, dim: int = 0, gate: str = "second") -> Call:
    """`make_call` on the backend and in the mode that this thread is in. Equal arguments give one
    call."""
    arguments = (op, kind, dim, gate, selection.current())
    if is_dynamo_compiling() or callable(kind):  # a module, which may change between calls
        call = make_call(*arguments)
    else:
        try:
            call = _quick(*arguments)
        except TypeError:  # what cannot be hashed is no name: the error says so
            call = make_call(*arguments)
    return call.as_batch_invariant if invariance.is_on() else call


def gate_place(op: str, gate: str) -> int:
    """Where the gates are, as an index of `GATE_NAMES`."""
    place = _PLACES.get(gate) if isinstance(gate, str) else None
    if place is None:
        raise errors.InvalidProblemError(f"{op}: gate: {gate!r}, want one of {', '.join(map(repr, GATE_NAMES))}")
    return place


def dim_index(op: str, dim: int) -> int:
    """The dim as a Python int; its range is the core's to check."""
    try:
        index = operator.index(dim)
    except TypeError:
        raise errors.InvalidProblemError(f"{op}: dim: {type(dim).__name__}, want an int") from None
    if isinstance(dim, bool):
        raise errors.InvalidProblemError(f"{op}: dim: {dim}, want an int")
    return index
