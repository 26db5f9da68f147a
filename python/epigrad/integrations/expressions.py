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
    "Node",
    "Number",
    "Product",
    "Recast",
    "Scaled",
    "Shifted",
    "used",
]

# Two nodes are the same value only if they are one object: what is written twice is computed twice.


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """What the block gets."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An attribute of the block, called: a module, or a function."""

    name: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A function of PyTorch, by epigrad's name for the activation."""

    activation: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Dropped:
    """``nn.functional.dropout`` with a probability of the block, while it trains."""

    p: str
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Recast:
    """Another dtype, if a layer has another: see `Cast`."""

    cast: Cast
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """A half of the last dimension: 0 or 1 of two pieces, or of even and odd numbers."""

    index: int
    interleaved: bool
    of: Node


@dataclass(frozen=True, slots=True)
class Number:
    """A number, or the attribute of the block that has it, by its path."""

    value: str | float
    negative: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Clamped:
    """Limits, None for no limit."""

    low: Number | None
    high: Number | None
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """Times a number."""

    by: Number
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Shifted:
    """Plus a number."""

    by: Number
    of: Node


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """Two values, multiplied element by element."""

    left: Node
    right: Node


Node: TypeAlias = Input | Call | Applied | Dropped | Recast | Half | Clamped | Scaled | Shifted | Product
NODES = (Input, Call, Applied, Dropped, Recast, Half, Clamped, Scaled, Shifted, Product)


def used(output: Node) -> dict[int, Node]:
    """All nodes that a value is computed from, by identity."""
    found: dict[int, Node] = {}
    rest = [output]
    while rest:
        node = rest.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        if isinstance(node, Product):
            rest += [node.left, node.right]
        elif not isinstance(node, Input):
            rest.append(node.of)
    return found
