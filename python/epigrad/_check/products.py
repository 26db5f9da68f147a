"""Products of matrices, blocks of layers and groups of rows: the shapes of their tensors, and what
their results should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from epigrad._check.bounds import Bounded
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
    slope_of,
    zeros,
)

if TYPE_CHECKING:
    from epigrad._check.problem import Problem


def _dense(x: Bounded, weight: Bounded, bias: Bounded | None) -> Bounded:
    product = (x @ weight.turned).as_product()
    return product if bias is None else product + bias


def _dense_gradients(
    grad_pre: Bounded, x: Bounded, weight: Bounded, bias: Bounded | None
) -> tuple[Bounded, Bounded, Bounded | None]:
    """Of input, weight and bias."""
    rounded = grad_pre.stored()
    flat, inputs = (of.map(lambda t: t.reshape(t.shape[:-1].numel(), t.shape[-1])) for of in (rounded, x))
    summed = None if bias is None else grad_pre.sum_to(bias.value.shape)
    return rounded @ weight, flat.turned @ inputs, summed


FORMS: tuple[Callable[[int, int, int, int], tuple[Shape, Shape]], ...] = (
    lambda b, m, n, k: ((m, k), (k, n)),
    lambda b, m, n, k: ((k,), (k, n)),
    lambda b, m, n, k: ((m, k), (k,)),
    lambda b, m, n, k: ((k,), (k,)),
    lambda b, m, n, k: ((b, m, k), (b, k, n)),
    lambda b, m, n, k: ((b, m, k), (k, n)),
    lambda b, m, n, k: ((m, k), (b, k, n)),
    lambda b, m, n, k: ((b, 1, m, k), (2, k, n)),
)
"""Shapes of a and b, by batch, rows, columns and depth."""
BATCH_OF_B = (6, 7)
"""Those in which b has a batch that a has not."""


def matmul_shapes(problem: Problem) -> Shapes:
    form, *sizes = problem.sizes
    a, b = FORMS[form % len(FORMS)](*sizes)
    bias = b[-1:] if len(b) > 1 else ()
    return {"a": a, "b": b, "bias": bias if problem.bias else None}


def matmul(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    a, b, bias = present(given, "a"), present(given, "b"), given["bias"]
    rows = a.map(lambda t: t.unsqueeze(0) if t.dim() == 1 else t)
    columns = b.map(lambda t: t.unsqueeze(1) if t.dim() == 1 else t)
    product = (rows @ columns).as_product()
    pre = product if bias is None else product + bias
    out = activated(pre.as_product(), problem).map(lambda t: t.reshape(grad.value.shape))
    shape = pre.value.shape
    grad_pre = grad.map(lambda t: t.reshape(shape)) * slope_of(pre.stored(), problem)
    rounded = grad_pre.stored()
    of_a = (rounded @ columns.turned).sum_to(rows.value.shape).map(lambda t: t.reshape(a.value.shape))
    of_b = (rows.turned @ rounded).sum_to(columns.value.shape).map(lambda t: t.reshape(b.value.shape))
    return out, of_a, of_b, None if bias is None else grad_pre.sum_to(bias.value.shape)


def _leading(problem: Problem) -> Shape:
    """The dimensions before the features: none, rows, or two."""
    lead, rows = problem.sizes[:2]
    return ((), (rows,), (2, rows), (rows, 1))[lead % 4]


def linear_shapes(problem: Problem) -> Shapes:
    features, columns = problem.sizes[2:]
    return {
        "input": (*_leading(problem), features),
        "weight": (columns, features),
        "bias": (columns,) if problem.bias else None,
    }


def linear(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight, bias = present(given, "input"), present(given, "weight"), given["bias"]
    pre = _dense(x, weight, bias)
    return activated(pre.as_product(), problem), *_dense_gradients(
        grad * slope_of(pre.stored(), problem), x, weight, bias
    )


def gated_linear_shapes(problem: Problem) -> Shapes:
    features, hidden = problem.sizes[2:]
    weight, bias = (hidden, features), (hidden,) if problem.bias else None
    return {
        "input": (*_leading(problem), features),
        "weight_value": weight,
        "weight_gate": weight,
        "bias_value": bias,
        "bias_gate": bias,
    }


def gated_linear(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x = present(given, "input")
    layers = [(present(given, f"weight_{which}"), given[f"bias_{which}"]) for which in ("value", "gate")]
    value, gate = (_dense(x, *layer).stored() for layer in layers)
    grads = gate_gradients(grad, value, gate, problem)
    of_value, of_gate = (_dense_gradients(one, x, *layer) for one, layer in zip(grads, layers, strict=True))
    return (
        gated(value, gate, problem),
        of_value[0].stored() + of_gate[0],
        *(of_value[1], of_gate[1]),
        *(of_value[2], of_gate[2]),
    )


def block_shapes(problem: Problem, names: tuple[str, ...]) -> Shapes:
    features, hidden, columns = problem.sizes[2:]
    inner = hidden * (1 + (problem.op == "gated_mlp"))
    shapes = ((inner, features), (inner,), (columns, hidden), (columns,))
    layers = {
        name: shape if problem.bias or "weight" in name else None for name, shape in zip(names, shapes, strict=True)
    }
    return {"input": (*_leading(problem), features), **layers}


def _hidden(problem: Problem, pre: Bounded) -> Bounded:
    if problem.is_gated:
        return gated(*halves(pre, -1, problem.gate), problem)
    return activated(pre, problem)


def _hidden_gradient(problem: Problem, grad: Bounded, pre: Bounded) -> Bounded:
    if problem.is_gated:
        return joined(*gate_gradients(grad, *halves(pre, -1, problem.gate), problem), -1, problem.gate)
    return grad * slope_of(pre, problem)


def block(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight1, bias1, weight2, bias2 = given.values()
    assert x is not None and weight1 is not None and weight2 is not None
    pre = _dense(x, weight1, bias1).stored()
    hidden = _hidden(problem, pre).stored()
    grad_hidden, *second = _dense_gradients(grad, hidden, weight2, bias2)
    grad_pre = _hidden_gradient(problem, grad_hidden.stored(), pre)
    return _dense(hidden, weight2, bias2), *_dense_gradients(grad_pre, x, weight1, bias1), *second


def grouped_shapes(problem: Problem) -> Shapes:
    rows, features, columns, groups = problem.sizes
    return {
        "input": (rows, features),
        "weight": (groups, columns, features),
        "bias": (groups, columns) if problem.bias else None,
    }


def offsets(problem: Problem) -> tuple[str, Tensor]:
    rows, _, _, groups = problem.sizes
    ends = torch.randint(0, rows + 1, (groups,), generator=problem.generator("offsets")).sort().values
    return "offsets", ends if problem.seed % 2 else ends.int()


def grouped(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight, bias = present(given, "input"), present(given, "weight"), given["bias"]
    totals = [zeros(grad), zeros(x), zeros(weight), None if bias is None else zeros(bias)]
    first = 0
    for group, end in enumerate(offsets(problem)[1].tolist()):
        rows, first = slice(first, end), end
        layer = _at(weight, group), None if bias is None else _at(bias, group)
        pre = _dense(_at(x, rows), *layer)
        grad_pre = _at(grad, rows) * slope_of(pre.stored(), problem)
        found = (activated(pre.as_product(), problem), *_dense_gradients(grad_pre, _at(x, rows), *layer))
        for total, place, part in zip(totals, (rows, rows, group, group), found, strict=True):
            if total is not None and part is not None:
                total.put(place, part)
    return tuple(totals)


def experts_shapes(problem: Problem) -> Shapes:
    tokens, features, hidden, experts, each = problem.sizes
    inner = hidden * (1 + problem.is_gated)
    return {
        "input": (tokens, features),
        "scale": (tokens, each),
        "weight_in": (experts, inner, features),
        "bias_in": (experts, inner) if problem.bias else None,
        "weight_out": (experts, features, hidden),
        "bias_out": (experts, features) if problem.bias else None,
    }


def index(problem: Problem) -> tuple[str, Tensor]:
    tokens, _, _, experts, each = problem.sizes
    return "index", torch.randint(-1, experts + 1, (tokens, each), generator=problem.generator("index"))


def experts(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, scale, weight_in, bias_in, weight_out, bias_out = given.values()
    assert x is not None and scale is not None and weight_in is not None and weight_out is not None
    totals = [None if one is None else zeros(one) for one in (grad, *given.values())]
    chosen = index(problem)[1]
    for expert in range(len(weight_in.value)):
        tokens, places = torch.where(chosen == expert)
        first = _at(weight_in, expert), None if bias_in is None else _at(bias_in, expert)
        second = _at(weight_out, expert), None if bias_out is None else _at(bias_out, expert)
        rows, grads = _at(x, tokens), _at(grad, tokens)
        scales = _at(scale, (tokens, places)).map(lambda t: t.unsqueeze(1))
        pre = _dense(rows, *first).stored()
        hidden = _hidden(problem, pre).stored()
        out = _dense(hidden, *second).stored()
        grad_hidden, _, of_bias = _dense_gradients((grads * scales).stored(), hidden, *second)
        unscaled = (grads @ second[0]).stored()
        grad_hidden = grad_hidden.stored().either((unscaled * scales).stored())
        of_second = grads.turned @ (hidden * scales).stored(), of_bias
        grad_pre = _hidden_gradient(problem, grad_hidden, pre)
        grad_x, *of_first = _dense_gradients(grad_pre, rows, *first)
        grad_scale = (grads * out).sum_to((len(tokens), 1)).either(_by_hidden(grads, unscaled, hidden, second[1]))
        grad_scale = grad_scale.map(lambda t: t.squeeze(1))
        found = (scales * out, grad_x.stored(), grad_scale, *of_first, *of_second)
        where = (tokens, tokens, (tokens, places), *(expert,) * 4)
        for total, place, part in zip(totals, where, found, strict=True):
            if total is not None and part is not None:
                total.put(place, part)
    return tuple(None if total is None else total.added_up() for total in totals)


def _by_hidden(grads: Bounded, unscaled: Bounded, hidden: Bounded, bias: Bounded | None) -> Bounded:
    """The gradients of scales as sums over hidden features."""
    shape = len(grads.value), 1
    by_hidden = (unscaled * hidden).sum_to(shape)
    return by_hidden if bias is None else by_hidden + (grads * bias).sum_to(shape)


def _at(of: Bounded, place: Any) -> Bounded:
    return of.map(lambda t: t[place])
