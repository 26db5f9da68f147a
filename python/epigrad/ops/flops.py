"""How many FLOPs an operator's matrix products take: two for each product of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from epigrad._core.tables import GATED_KINDS, OPS, PRESETS, Operation
from epigrad.ops import shapes


def count(row: Operation, given: Mapping[str, Any]) -> int:
    """The FLOPs of a call, of its arguments with shapes in place of tensors."""
    forward = OPS[row.forward].adapted or OPS[row.forward]
    kind = given.get(row.kind_argument, row.default_kind)
    gated = kind in GATED_KINDS or kind in PRESETS
    first, second = _products(forward, [given.get(name) for name in forward.tensors], gated)
    if not row.is_backward:
        return sum(first.values()) + sum(second.values())
    names = [row.tensors[place] for place in row.gradients]
    needs: Sequence[bool] = given.get("needs", (True,) * len(names))
    # PyTorch counts both overloads by one formula, and that without adapters needs less.
    need = dict(zip(names, needs, strict=False))
    # Gradients before the second layer's weight come from that of the hidden activation.
    before = min((names.index(name) for name in second), default=len(names))
    through = any(needs[:before])
    hidden = any(need[name] for name in second) or need.get("scale", False)
    kept = given.get("preactivation") is not None or given.get("output") is not None
    formed_again = not kept and (hidden or (through and kind not in (None, "none")))
    again = bool(needs[0]) + formed_again
    return sum(flops * (again + bool(need[name])) for name, flops in first.items()) + sum(
        flops * (through + bool(need[name])) for name, flops in second.items()
    )


def _products(row: Operation, given: Sequence[Any], gated: bool) -> tuple[dict[str, int], dict[str, int]]:
    """The FLOPs of the product with each weight: of those that the input meets, and of those that
    the hidden activation meets."""
    layers: tuple[dict[str, int], dict[str, int]] = {}, {}
    if not row.multiplies:
        return layers
    if not row.inputs[0].shape:
        a, b, bias = given
        layers[0][row.tensors[1]] = 2 * math.prod([*shapes.of_product(row.name, a, b, bias), a[-1]])
        return layers
    sizes = shapes.sizes_of(row, given, gated)
    rows = math.prod(shapes.formed(row.outputs[1], gated, sizes)[:-1])
    features = row.inputs[0].shape.strip("[]").split(", ")[-1]
    is_second = False
    for argument, shape in zip(row.inputs, given, strict=True):
        if argument.name.startswith("weight") or argument.name.endswith(".a"):
            is_second = not argument.shape.endswith(f", {features}]")
        if shape is not None and (argument.name.startswith("weight") or argument.is_adapters):
            layers[is_second][argument.name.replace(".", "_")] = 2 * rows * math.prod(shape[-2:])
    return layers
