"""Layers with adapters as differentiable PyTorch operations: those without, of weights that are
`Adapted`, and their gradients, which follow from the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad._autograd import formulas
from epigrad._core.adapters import Scales, scaled
from epigrad._core.call import Call
from epigrad._core.launcher import Tensors
from epigrad._core.tables import OPS, row_of


@dataclass(frozen=True, slots=True)
class Adapted:
    """A weight with a low-rank update: ``weight + b @ a``."""

    weight: Tensor
    a: Tensor
    b: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape


def with_weights(op: str, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors of a call without adapters, whose weights have them."""
    names = OPS[op].tensors
    own = list(tensors[: len(names)])
    adapters = tensors[len(names) :]
    weights = [place for place, name in enumerate(names) if name.startswith("weight")]
    for place, a, b in zip(weights, adapters[::2], adapters[1::2], strict=False):
        if a is not None:
            own[place] = Adapted(own[place], a, b)
    return tuple(own)


def gradients(
    value: Callable[..., Any],
    call: Call,
    scales: Scales,
    needs: Sequence[bool],
    grad: Tensor | None,
    *tensors: Tensor | None,
    grad_hidden: Tensor | None = None,
) -> Tensors:
    """The gradients of a layer whose output `value` computes. `tensors` are those of its backward
    operation after the first."""
    row = row_of(call.op + "_backward", len(tensors) + 1)
    forward = [t for t, argument in zip(tensors, row.inputs[1:], strict=True) if not argument.kept]
    places = [place for place, need in zip(row.of_forward, needs, strict=True) if need and forward[place] is not None]
    grads = [None if each is None else formulas.computed(each) for each in (grad, grad_hidden)]

    def of(*chosen: Tensor) -> tuple[Tensor, ...]:
        given = list(forward)
        for place, tensor in zip(places, chosen, strict=True):
            given[place] = tensor
        wide = [t if t is None or not t.is_floating_point() else formulas.computed(t) for t in given]
        results = value(call, *with_weights(call.op, scaled(call.op, scales, tuple(wide))))
        return tuple([result for result, each in zip(results, grads, strict=True) if each is not None])

    found: dict[int, Tensor] = {}
    if places:
        pull = torch.func.vjp(of, *[forward[place] for place in places])[1]
        found.update(zip(places, pull(tuple([each for each in grads if each is not None])), strict=True))
    return tuple([found.get(place) for place in row.of_forward])
