"""The expressions that `epigrad.integrations.bodies` reads out of a forward."""

from __future__ import annotations

from dataclasses import dataclass, fields

from epigrad.integrations.layers import Cast


class Node:
    """A value. Nodes are compared by identity: an expression that is written twice is computed
    twice.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Input(Node):
    """The input of the block."""


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """A call of an attribute of the block: a module or a function."""

    name: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Applied(Node):
    """An activation function of PyTorch, by epigrad's name."""

    activation: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Dropped(Node):
    """``nn.functional.dropout`` in training mode; `p` is the attribute with the probability."""

    p: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Recast(Node):
    """A cast to the dtype of a layer: see `Cast`."""

    cast: Cast
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Half(Node):
    """Half of the last dimension: the first (0) or second (1) piece, or the even or odd places."""

    index: int
    interleaved: bool
    of: Node


@dataclass(frozen=True, slots=True)
class Number:
    """A number, or the path of the block's attribute that holds it."""

    value: str | float
    negative: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Clamped(Node):
    """A clamp; None is no limit."""

    low: Number | None
    high: Number | None
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Scaled(Node):
    """A product with a number."""

    by: Number
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Shifted(Node):
    """A sum with a number."""

    by: Number
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Product(Node):
    """The elementwise product of two values."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Joint(Node):
    """A call of an attribute of the block with two values."""

    name: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Widened(Node):
    """A value in float32."""

    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Rounded(Node):
    """A value in the dtype of the input."""

    of: Node


def used(output: Node) -> dict[int, Node]:
    """All nodes that a value is computed from, by identity."""
    found: dict[int, Node] = {}
    rest = [output]
    while rest:
        node = rest.pop()
        if id(node) not in found:
            found[id(node)] = node
            parts = [getattr(node, field.name) for field in fields(node)]  # type: ignore[arg-type]
            rest += [part for part in parts if isinstance(part, Node)]
    return found
