"""One call of an operation: everything but its tensors."""

from __future__ import annotations

from typing import NamedTuple

from epigrad import errors
from epigrad.kinds import Activation, Gated

__all__ = ["GATE_NAMES", "Call", "gate_place"]

GATE_NAMES = ("second", "first")
"""Where the gate is: the names of its places, in the order of epigrad.h."""

_PLACES = {name: place for place, name in enumerate(GATE_NAMES)}


class Call(NamedTuple):
    """What the core is asked for. The fields are those of `epg_call` (cbridge/include/epigrad.h), in its order.

    Attributes:
        op: the operation.
        kind: the activation or the gated kind; None for lerp.
        parameters: the kind's, all of them or none for the defaults; or lerp's weight, where it is a number.
        dim: the dimension that a gated activation splits.
        gate: which half the gate is, an index of `GATE_NAMES`.
        accumulate: whether to add into the weight and bias gradients.
        backend: the backend for CPU tensors; None is the CPU's.
    """

    op: str
    kind: str | None = None
    parameters: tuple[float, ...] = ()
    dim: int = 0
    gate: int = 0
    accumulate: bool = False
    backend: str | None = None

    @property
    def backward(self) -> Call:
        """The call of the gradients."""
        return Call(self.op + "_backward", *self[1:])

    @property
    def activation(self) -> Activation:
        """The activation that the call applies, to its gate where it has one."""
        assert self.kind is not None
        if self.op.startswith("gated"):
            return Gated.of(self.op, self.kind, self.parameters).activation
        return Activation.of(self.op, self.kind, self.parameters)


def gate_place(op: str, gate: str) -> int:
    """Which half the gate is."""
    place = _PLACES.get(gate) if isinstance(gate, str) else None
    if place is None:
        raise errors.InvalidProblemError(f"{op}: gate: {gate!r}, want {' or '.join(map(repr, GATE_NAMES))}")
    return place
