"""The expressions that `epigrad.integrations.bodies` reads out of a forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from epigrad.integrations.layers import Cast

__all__ = [
    "NODES",
    "Applied",
    "Call",
    "Clamped",
    "Dropped",
    "Half",
    "Input",
    "Joint",
    "Node",
    "Number",
    "Product",
    "Recast",
    "Rounded",
    "Scaled",
    "Shifted",
    "Widened",
    "used",
]

# Nodes are compared by identity: an expression that is written twice is computed twice.


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """The input of the block."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of an attribute of the block: a module or a function."""

    name: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """An activation function of PyTorch, by epigrad's name."""

    activation: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Dropped:
    """``nn.functional.dropout`` in training mode; `p` is the attribute with the probability."""

    p: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Recast:
    """A cast to the dtype of a layer: see `Cast`."""

    cast: Cast
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Half:
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
class Clamped:
    """A clamp; None is no limit."""

    low: Number | None
    high: Number | None
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A product with a number."""

    by: Number
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Shifted:
    """A sum with a number."""

    by: Number
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """The elementwise product of two values."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """A call of an attribute of the block with two values."""

    name: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Widened:
    """A value in float32."""

    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """A value in the dtype of the input."""

    of: Node


Node: TypeAlias = (
    Input | Call | Applied | Dropped | Recast | Half | Clamped | Scaled | Shifted | Product | Joint | Widened | Rounded
)
NODES = (Input, Call, Applied, Dropped, Recast, Half, Clamped, Scaled, Shifted, Product, Joint, Widened, Rounded)


def used(output: Node) -> dict[int, Node]:
    """All nodes that a value is computed from, by identity."""
    found: dict[int, Node] = {}
    rest = [output]
    while rest:
        node = rest.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        if isinstance(node, Product | Joint):
            rest += [node.left, node.right]
        elif not isinstance(node, Input):
            rest.append(node.of)
    return found
