"""Elementwise operations: the shapes of their tensors, and what their results should be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from epigrad._check import formulas
from epigrad._check.bounds import Bounded, chosen, product
from epigrad._check.parts import (
    Expected,
    Operands,
    Shape,
    Shapes,
    activated,
    gate_gradients,
    gated,
    halves,
    joined,
    present,
    zeros,
)
from epigrad.kinds import Activation

if TYPE_CHECKING:
    from epigrad._check.problem import Problem


def activation(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x = present(given, "input")
    kind = problem.kind_object
    assert isinstance(kind, Activation)
    return activated(x, problem), grad * x.slope(formulas.activation(kind))


SPLITS: tuple[tuple[str, ...], ...] = (
    ("outer", "split", "inner"),
    ("split",),
    ("outer", "split"),
    ("split", "inner"),
    ("split", "outer", "inner"),
    ("outer", "inner", "split"),
    ("outer", "two", "split", "inner"),
    ("two", "one", "outer", "inner", "split"),
)
"""Dimensions of gated_activation's input, of which one is split."""


def split(problem: Problem) -> tuple[Shape, int]:
    """The output's shape, and the dimension that is split."""
    form, outer, half, inner = problem.sizes
    names = SPLITS[form % len(SPLITS)]
    sizes = {"outer": outer, "split": half, "inner": inner, "one": 1, "two": 2}
    return tuple([sizes[name] for name in names]), names.index("split")


def gated_shapes(problem: Problem) -> Shapes:
    shape, dim = split(problem)
    return {"input": (*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])}


def gated_dim(problem: Problem) -> int:
    """The dimension that is split, counted from either end."""
    shape, dim = split(problem)
    return dim - len(shape) * (problem.seed % 2)


def gated_activation(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    dim = split(problem)[1]
    value, gate = halves(present(given, "input"), dim, problem.gate)
    grads = gate_gradients(grad, value, gate, problem)
    return gated(value, gate, problem), joined(*grads, dim, problem.gate)


def gated_product(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    value, gate = present(given, "value"), present(given, "gate")
    return gated(value, gate, problem), *gate_gradients(grad, value, gate, problem)


def lerp_shapes(problem: Problem) -> Shapes:
    rows, columns, mask = problem.sizes
    full = rows, columns

    def shape(bits: int) -> Shape:
        return tuple(1 if bits >> dim & 1 else size for dim, size in enumerate(full))[bits >> 2 & 1 :]

    weight = None if mask >> 9 & 1 else shape(mask >> 6)
    return {"start": shape(mask), "end": shape(mask >> 3), "weight": weight}


def lerp(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    start, end, weight = present(given, "start"), present(given, "end"), given["weight"]
    by = _number(LERP_WEIGHT, grad) if weight is None else weight
    one = replace(by, value=torch.ones_like(by.value), error=torch.zeros_like(by.value))
    from_start, from_end = start + by * (end - start), end + (by - one) * (end - start)
    is_near_start = by.value.abs() < 0.5
    return (
        chosen(is_near_start, from_start, from_end),
        (grad * (one - by)).sum_to(start.value.shape),
        (grad * by).sum_to(end.value.shape),
        None if weight is None else (grad * (end - start)).sum_to(weight.value.shape),
    )


LERP_WEIGHT = 0.3


def _number(value: float, like: Bounded) -> Bounded:
    """A Python number, which kernels get in the accumulator's precision."""
    number = torch.tensor(value, dtype=torch.float64)
    return replace(like, value=number, error=number.abs() * like.unit)


def learnable_shape(problem: Problem) -> Shape:
    outer, channels, inner = problem.sizes
    return (outer, channels, inner) if inner else (outer, channels)


def prelu_shapes(problem: Problem) -> Shapes:
    return {"input": learnable_shape(problem), "weight": (problem.sizes[1],) if problem.seed % 2 else (1,)}


def prelu(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight = present(given, "input"), present(given, "weight")
    above = x.value > 0
    wide = weight.map(lambda t: t.reshape(-1, *(1,) * (x.value.dim() - 2)))
    of_weight = chosen(above, zeros(x), grad * x)
    of_weight = of_weight.sum_to(wide.value.shape).map(lambda t: t.reshape(weight.value.shape))
    return chosen(above, x, wide * x), chosen(above, grad, grad * wide), of_weight


def _bent(x: Tensor) -> Tensor:
    """expm1(x) - x, by its series where that cancels."""
    near = torch.where(x.abs() < 0.5, x, 0.0)
    series = torch.ones_like(x)
    for term in range(20, 2, -1):
        series = 1 + near * series / term
    return torch.where(x.abs() < 0.5, near * near / 2 * series, x.expm1() - x)


def xielu(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, alpha_p, alpha_n = present(given, "input"), present(given, "alpha_p"), present(given, "alpha_n")
    above = x.value > 0
    below = chosen(above, zeros(x), x)
    beta = _number(0.5, x)

    def plus(t: Tensor) -> Tensor:
        return formulas.softplus(t, 1.0, 20.0)

    a_p, a_n = alpha_p.through(plus), beta + alpha_n.through(plus)
    bend = below.through(_bent)
    return (
        chosen(above, product(a_p, x, x), a_n * bend) + beta * x,
        grad * (chosen(above, a_p * x + a_p * x, a_n * below.slope(_bent)) + beta),
        chosen(above, product(grad, x, x), zeros(x)).sum_to((1,)) * alpha_p.slope(plus),
        chosen(above, zeros(x), grad * bend).sum_to((1,)) * alpha_n.slope(plus),
    )
