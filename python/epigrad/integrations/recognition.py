"""Which row of `epigrad.integrations.blocks` a block is, by what its forward computes.

A forward is an expression (`bodies.py`). What is around a product of a gate and a value, or around
an activation of a projection, are steps: modules that are called as they are, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from epigrad import errors
from epigrad._core.projections import class_name
from epigrad.integrations.blocks import Block, Gate, Gated, PackedGated, Plain, Within, activation_in, kind_of_gate
from epigrad.integrations.bodies import read
from epigrad.integrations.expressions import (
    Applied,
    Call,
    Clamped,
    Dropped,
    Half,
    Input,
    Node,
    Number,
    Product,
    Recast,
    Rounded,
    Scaled,
    Shifted,
    Widened,
)
from epigrad.integrations.layers import Dropout, Given, Step
from epigrad.integrations.sources import Unknown


def row_of(module: nn.Module, cls: type[Any]) -> Block:
    """The row of a block, by the forward of a class of it.

    Raises:
        Unknown: the forward computes something else.
    """
    body = read(module, cls)
    start, nodes = _chain(body.output)
    if isinstance(start, Input):
        return _plain(module, nodes, body.given)
    if isinstance(start, Product):
        return _gated(module, start, nodes, body.given)
    raise Unknown(f"its forward {_DEEDS[type(start)]} outside of a gate")


_DEEDS: dict[type[Any], str] = {
    Half: "takes a half",
    Clamped: "clamps",
    Scaled: "multiplies by a number",
    Shifted: "adds a number",
}


def is_projection(module: nn.Module, name: str) -> bool:
    """Whether an attribute is a layer with a matrix, or stands for one: an adapter around it, or a
    quantised one."""
    layer: Any = module._modules.get(name)
    layer = getattr(layer, "base_layer", layer)
    return isinstance(layer, nn.Linear) or "Linear" in type(layer).__name__ or type(layer).__name__ == "Conv1D"


def _is_activation(module: nn.Module, node: Node) -> bool:
    return isinstance(node, Applied) or (isinstance(node, Call) and activation_in(module, node.name) is not None)


def _chain(node: Node) -> tuple[Node, list[Any]]:
    """Where a value comes from, and what happens to it, one after the other."""
    steps: list[Any] = []
    while isinstance(node, Call | Applied | Dropped | Recast):
        steps.append(node)
        node = node.of
    return node, steps[::-1]


def _steps(nodes: list[Any]) -> tuple[Step, ...]:
    return tuple(map(_step, nodes))


def _step(node: Any) -> Step:
    match node:
        case Call(name, _):
            return name
        case Dropped(p, _):
            return Dropout(p)
        case Recast(cast, _):
            return cast
    raise Unknown(f"its forward applies {node.activation} to a value that is not the output of a projection")


def _before(node: Node) -> tuple[Step, ...]:
    """What happens to the input before a node."""
    start, nodes = _chain(node)
    if not isinstance(start, Input):
        raise Unknown("its forward has more than one gate")
    return _steps(nodes)


# --- activations of a projection ------------------------------------------------------------------


def _plain(module: nn.Module, nodes: list[Any], given: tuple[Given, ...]) -> Block:
    place = _activation(module, nodes)
    up, activation, rest = nodes[place - 1], nodes[place], nodes[place + 1 :]
    between, down, after = _split(module, rest)
    block = Plain(
        up=up.name,
        activation=activation.name if isinstance(activation, Call) else "",
        function="" if isinstance(activation, Call) else activation.activation,
        down=down,
        between=between,
        after=after,
    )
    return _within(block, _steps(nodes[: place - 1]), (), given)


def _split(module: nn.Module, nodes: list[Any]) -> tuple[tuple[Step, ...], str | None, tuple[Step, ...]]:
    """What is before the first projection of some nodes, the projection, and what is after it."""
    for place, node in enumerate(nodes):
        if isinstance(node, Call) and is_projection(module, node.name):
            return _steps(nodes[:place]), node.name, _steps(nodes[place + 1 :])
    return _steps(nodes), None, ()


def _within(
    block: Gated | PackedGated | Plain, before: tuple[Step, ...], after: tuple[Step, ...], given: tuple[Given, ...]
) -> Block:
    return Within(block, before, after, given) if before or after or given else block


def _activation(module: nn.Module, nodes: list[Any]) -> int:
    """The place of the first activation of a projection."""
    projections = [i for i, node in enumerate(nodes) if isinstance(node, Call) and is_projection(module, node.name)]
    for i in projections:
        if i + 1 < len(nodes) and _is_activation(module, nodes[i + 1]):
            return i + 1
    if not projections:
        for name in [node.name for node in nodes if isinstance(node, Call)]:
            layer = module._modules.get(name)
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                raise Unknown(f"{name} is a {class_name(layer)}, no projection")
        raise Unknown("its forward calls no projection")
    first, *following = nodes[projections[0] :]
    if following and isinstance(following[0], Call):
        name = following[0].name
        found = getattr(module, name)
        what = class_name(found) if isinstance(found, nn.Module) else repr(found)
        if not _may_be_activation(found):
            raise Unknown(f"{first.name} is followed by {name}, {what}: epigrad fuses a layer with an activation")
        raise Unknown(
            f"{first.name} is followed by {name}, {what}, which is no activation of epigrad's: "
            f"{errors.SITE}/howto/own-activation.html"
        )
    raise Unknown(f"its forward applies no activation to the output of {first.name}")


def _may_be_activation(found: Any) -> bool:
    """Whether the class of a module, or of a function, lets it be an activation."""
    room = type(found).__module__
    return room == nn.GELU.__module__ if room.startswith("torch.nn.modules.") else not getattr(found, "_modules", None)


# --- gates ----------------------------------------------------------------------------------------


def _gated(module: nn.Module, product: Product, nodes: list[Any], given: tuple[Given, ...]) -> Block:
    for sources in _sources(product):
        match sources:
            case Call(gate, x), Call(value, y), kind if (
                x is y and gate != value and is_projection(module, gate) and is_projection(module, value)
            ):
                after = _steps(nodes)
                down = after[0] if after and isinstance(after[0], str) else None
                after = after if down is None else after[1:]
                return _within(Gated(value, gate, kind, down), _before(x), after, given)
            case Half(of=Call(up, x)) as half, other, kind if is_projection(module, up) and (
                place := _place(half, other)
            ):
                between, down, after = _split(module, nodes)
                return _within(PackedGated(up, kind, place, down, between), _before(x), after, given)
    raise Unknown("its forward multiplies values that are not gate and value of projections")


def gate_of(output: Node) -> tuple[Gate, str] | None:
    """The gated kind of the input's halves, and where the gates are; None for something else.

    Products in float32 that are rounded to the input's dtype are what kernels compute, too.
    """
    rounded = isinstance(output, Rounded)
    product = output.of if isinstance(output, Rounded) else output
    for gate, value, kind in _sources(product) if isinstance(product, Product) else ():
        if isinstance(gate, Widened) is rounded and isinstance(value, Widened) is rounded:
            half, other = (each.of if isinstance(each, Widened) else each for each in (gate, value))
            if isinstance(half, Half) and isinstance(half.of, Input) and (place := _place(half, other)):
                return kind, place
    return None


def _place(gate: Half, value: Node) -> str:
    """Where gates are, that are a half of what the values are the other half of; empty if not."""
    match value:
        case Half(other, interleaved, of) if of is gate.of and other != gate.index and interleaved == gate.interleaved:
            return (("first", "second"), ("even", "odd"))[interleaved][gate.index]
    return ""


_Sources = tuple[Node, Node, Gate]


def _sources(product: Product) -> Iterator[_Sources]:
    """What gate and value of a product may be computed from, and the kind that computes it."""
    for sides in ((product.left, product.right), (product.right, product.left)):
        for form in (_with_activation, _with_offset):
            if (found := form(*sides)) is not None:
                yield found


def _with_activation(gate: Node, value: Node) -> _Sources | None:
    """``act(gate) * value``, with limits on both, or after the activation."""
    limit_after, gate = _upper(gate)
    if isinstance(gate, Call):
        named = {"activation": gate.name}
    elif isinstance(gate, Applied):
        kind = kind_of_gate(gate.activation)
        if kind is None:
            raise Unknown(f"no gated kind of epigrad has {gate.activation} for its gate")
        named = {"kind": kind}
    else:
        return None
    limit, source = _upper(gate.of)
    limit_value, value = _both(value)
    if (limit is not None and limit_after is not None) or (limit or limit_after) != limit_value:
        return None
    parameters = () if limit_value is None else (("limit" if limit else "limit_after", limit_value.value),)
    return source, value, Gate(parameters=parameters, **named)


def _with_offset(gate: Node, value: Node) -> _Sources | None:
    """``(value + offset) * (gate * sigmoid(alpha * gate))``, with limits on both."""
    match gate, value:
        case (
            Product(Applied("sigmoid", Scaled(alpha, a)), b) | Product(b, Applied("sigmoid", Scaled(alpha, a))),
            Shifted(offset, raised),
        ) if a is b:
            pass
        case _:
            return None
    limit, source = _upper(a)
    limit_value, value = _both(raised)
    if limit != limit_value or alpha.negative or offset.negative:
        return None
    parameters = (("offset", offset.value), ("alpha", alpha.value))
    return (
        source,
        value,
        Gate(kind="swiglu", parameters=parameters if limit is None else (("limit", limit.value), *parameters)),
    )


def _upper(node: Node) -> tuple[Number | None, Node]:
    """An upper limit, and what it is one of; the node itself if it has none."""
    match node:
        case Clamped(None, Number(negative=False) as high, of):
            return high, of
    return None, node


def _both(node: Node) -> tuple[Number | None, Node]:
    """A limit to both sides, and what it is one of; the node itself if it has none."""
    match node:
        case Clamped(Number(a, True), Number(b, False) as high, of) if a == b:
            return high, of
    return None, node
