"""The parts of operations: activations, gates and their gradients, with bounds of errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epigrad._check import formulas
from epigrad._check.bounds import Bounded, product
from epigrad.kinds import Activation, Gated

if TYPE_CHECKING:
    from epigrad._check.problem import Problem

Shape = tuple[int, ...]
Shapes = dict[str, Shape | None]
Operands = Mapping[str, Bounded | None]
Expected = tuple[Bounded | None, ...]
FROM_OUTPUT = ("relu", "sigmoid", "tanh")
"""Activations whose slope may be computed from the output."""


def activated(pre: Bounded, problem: Problem) -> Bounded:
    kind = problem.kind_object
    assert isinstance(kind, Activation)
    return pre.through(formulas.activation(kind))


def slope_of(pre: Bounded, problem: Problem) -> Bounded:
    """The slope at what is kept: the preactivation, or for some kinds the output."""
    kind = problem.kind_object
    assert isinstance(kind, Activation)
    formula = formulas.activation(kind)
    slope = pre.slope(formula)
    if kind.name in FROM_OUTPUT[1:] and problem.save == "auto":
        slope = slope.plus(2 * pre.through(formula).stored().error)
    return slope


def gated(value: Bounded, gate: Bounded, problem: Problem) -> Bounded:
    kind = problem.kind_object
    assert isinstance(kind, Gated)
    psi, phi = formulas.gated(kind)
    return value.through(psi) * gate.through(phi)


def gate_gradients(grad: Bounded, value: Bounded, gate: Bounded, problem: Problem) -> tuple[Bounded, Bounded]:
    kind = problem.kind_object
    assert isinstance(kind, Gated)
    psi, phi = formulas.gated(kind)
    return product(grad, gate.through(phi), value.slope(psi)), product(grad, value.through(psi), gate.slope(phi))


def halves(both: Bounded, dim: int, gate: str) -> tuple[Bounded, Bounded]:
    """The values and the gates."""
    half = both.value.shape[dim] // 2
    if gate in ("odd", "even"):
        turned = both.map(lambda x: x.movedim(dim, -1))
        first, second = turned.map(lambda x: x[..., ::2]), turned.map(lambda x: x[..., 1::2])
        first, second = (half.map(lambda x: x.movedim(-1, dim)) for half in (first, second))
    else:
        first, second = both.map(lambda x: x.narrow(dim, 0, half)), both.map(lambda x: x.narrow(dim, half, half))
    return (first, second) if gate in ("second", "odd") else (second, first)


def joined(value: Bounded, gate: Bounded, dim: int, place: str) -> Bounded:
    first, second = (value, gate) if place in ("second", "odd") else (gate, value)

    def join(one: Tensor, other: Tensor) -> Tensor:
        if place in ("second", "first"):
            return torch.cat([one, other], dim)
        return torch.stack([one.movedim(dim, -1), other.movedim(dim, -1)], -1).flatten(-2).movedim(-1, dim)

    return replace(value, value=join(first.value, second.value), error=join(first.error, second.error))


def present(given: Operands, name: str) -> Bounded:
    operand = given[name]
    assert operand is not None
    return operand


def zeros(like: Bounded) -> Bounded:
    """What parts are put into: their values, their errors, and without signs their terms."""
    return replace(like.map(torch.zeros_like), terms=torch.zeros_like(like.value))
