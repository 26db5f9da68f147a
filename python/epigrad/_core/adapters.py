"""What low-rank updates of weights, and their scales, do to a call.

The core multiplies with ``b @ a``. A scale is multiplied with `a` before a call, in the
accumulator's dtype, and with a's gradient after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad import errors
from epigrad._core.call import Call
from epigrad._core.checks import finite, overridden, shares_memory
from epigrad._core.launcher import Launcher, Tensors
from epigrad._core.tables import OPS, is_half, row_of
from epigrad._core.values import LowRank
from epigrad.webgpu import Array

Scales = tuple[float, ...]
"""A scale for each adapter that an operation takes; none if all are 1."""


def operands_of(op: str, adapters: Sequence[LowRank | None]) -> tuple[tuple[Any, ...], Scales]:
    """The tensors of an operation's adapters, and their scales. No tensors if none is given."""
    row = OPS[op].adapted
    if row is None or all(adapter is None for adapter in adapters):
        return (), ()
    operands: list[Any] = []
    scales = []
    for name, adapter in zip(row.adapters, adapters, strict=True):
        if adapter is None:
            operands += [None, None]
            scales.append(1.0)
            continue
        if not isinstance(adapter, LowRank):
            raise errors.DTypeError(f"{op}: {name}: {type(adapter).__name__}, want an epigrad.LowRank or None")
        for part, tensor in (("a", adapter.a), ("b", adapter.b)):
            if not isinstance(tensor, Tensor | Array) and not overridden(tensor):
                raise errors.DTypeError(f"{op}: {name}.{part}: {type(tensor).__name__}, want a torch.Tensor")
        operands += [adapter.a, adapter.b]
        scales.append(finite(op, f"{name}.scale", adapter.scale))
    return tuple(operands), tuple(scales) if any(scale != 1 for scale in scales) else ()


def scaled(op: str, scales: Scales, tensors: Tensors) -> Tensors:
    """A call's tensors with each `a` multiplied with its scale."""
    given = list(tensors)
    for place, scale in zip(range(len(OPS[op].inputs), len(tensors), 2), scales, strict=len(scales) > 0):
        a = given[place]
        if a is None or scale == 1:
            continue
        if isinstance(a, Array):
            raise errors.UnsupportedError(
                f"{op}: {_names(op)[place]}: an epigrad.webgpu.Array with a scale, want scale 1"
            )
        given[place] = (a.to(torch.float32) if is_half(a.dtype) else a) * scale
    return tuple(given)


def refuse_shared(call: Call, operands: Sequence[Any], outputs: Sequence[Any], scales: Scales) -> None:
    """Refuse an output that shares memory with an operand, where the core would not notice since it
    gets a copy: of an adapter with a scale, of one that is float32 beside 16 bits, and of a
    gradient that is scaled and added.
    """
    row = row_of(call.op, len(operands))
    first, own = len(OPS[call.op].inputs), len(OPS[call.op].gradients)
    copied, added = set(), set()
    for place in range(first, len(operands)):
        scale = scales[(place - first) // 2] if scales and (place - first) % 2 == 0 else 1.0
        tensor = operands[place]
        if isinstance(tensor, Tensor) and (scale != 1 or tensor.dtype != operands[0].dtype):
            copied.add(place)
        if scale != 1 and call.accumulate:
            added.add(own + place - first)
    given = {i: output for i, output in enumerate(outputs) if isinstance(output, Tensor)}
    for i, output in given.items():
        name = row.outputs[i].name
        strides = output.stride()
        if i in added and 0 in [stride for size, stride in zip(output.shape, strides, strict=True) if size > 1]:
            raise errors.InvalidProblemError(
                f"{call.op}: {name}: shape {list(output.shape)} with strides {list(strides)} overlaps itself, want an "
                "output that reaches each element once"
            )
        others = [(row.inputs[place].name, operands[place], place in copied) for place in range(len(operands))]
        others += [(row.outputs[j].name, other, j in added) for j, other in given.items() if j < i]
        for other_name, other, is_copy in others:
            if (is_copy or i in added) and isinstance(other, Tensor) and shares_memory(output, other):
                raise errors.InvalidProblemError(
                    f"{call.op}: {name}: shares memory with {other_name}, want an output of its own"
                )


def _names(op: str) -> list[str]:
    row = OPS[op].adapted
    assert row is not None
    return [argument.name for argument in row.inputs]


@dataclass(frozen=True, slots=True)
class Scaled:
    """A launcher of calls whose adapters have scales."""

    core: Launcher
    scales: Scales

    def launch(
        self,
        call: Call,
        inputs: Tensors,
        needs: tuple[bool, ...],
        outputs: Tensors | None = None,
        shapes: Any = None,
    ) -> Tensors:
        row = OPS[call.op]
        operands = scaled(call.op, self.scales, inputs)
        if not row.is_backward:
            return self.core.launch(call, operands, needs, outputs, shapes)
        into: list[Any] = [None] * len(needs) if outputs is None else list(outputs)
        given = list(into)
        own, first = len(row.gradients), len(row.inputs)
        of_a: list[tuple[int, int, float]] = []  # places of gradients and of their tensors
        for i, scale in enumerate(self.scales):
            place, tensor = own + 2 * i, first + 2 * i
            if scale != 1 and needs[place] and inputs[tensor] is not None:
                of_a.append((place, tensor, scale))
                if call.accumulate:
                    _check_added(call.op, row.adapted.results[place], given[place], inputs[tensor])  # type: ignore[union-attr]
                    into[place] = torch.zeros_like(operands[tensor])  # type: ignore[arg-type]
        results: list[Any] = list(
            self.core.launch(call, operands, needs, None if outputs is None else tuple(into), shapes)
        )
        for place, tensor, scale in of_a:
            output = given[place]
            if call.accumulate:
                results[place] = output.add_(results[place], alpha=scale)
            elif output is not None:
                output.mul_(scale)
            else:
                results[place] = (results[place] * scale).to(inputs[tensor].dtype)  # type: ignore[union-attr]
        return tuple(results)


def _check_added(op: str, name: str, output: Any, a: Any) -> None:
    """Refuse a wrong tensor to add to. The core does not see it, since the sum is scaled first."""
    if output.shape != a.shape:
        raise errors.InvalidProblemError(f"{op}: {name}: shape {list(output.shape)}, want the result's {list(a.shape)}")
    if output.dtype != a.dtype and not (is_half(a.dtype) and output.dtype == torch.float32):
        raise errors.DTypeError(f"{op}: {name}: dtype {output.dtype}, want {a.dtype}")
    if output.device != a.device:
        raise errors.DeviceMismatchError(f"{op}: {name}: on {output.device}, want {a.device}")


def with_scales(core: Launcher, scales: Scales) -> Launcher:
    """A launcher that multiplies adapters with their scales."""
    return Scaled(core, scales) if scales else core


def scales_of(core: Launcher) -> Scales:
    """The scales that a launcher multiplies with."""
    return core.scales if isinstance(core, Scaled) else ()
