"""What an operation's output and gradients should be, with bounds of their errors.

Accumulators are float32 (float64 for float64). A preactivation, a hidden layer, an expert's output
and the gradient of a preactivation may be rounded to the tensors' dtype once, and so may the first
part of a gradient that is a sum of two products. Nothing else is, but on CUDA a product before its
bias, and with it before its activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from epigrad._check import formulas
from epigrad._check.bounds import Bounded, chosen, product
from epigrad._check.operations import NUMBER
from epigrad._check.problem import Problem
from epigrad._core import tables
from epigrad.kinds import Activation

Expected = tuple[Bounded | None, ...]


@dataclass(frozen=True)
class Adapted:
    """A weight with an adapter, ``weight + b @ a``; or the gradients of the three."""

    weight: Bounded
    a: Bounded
    b: Bounded

    @property
    def value(self) -> Tensor:
        """The weight's own."""
        return self.weight.value

    @property
    def turned(self) -> Adapted:
        return Adapted(self.weight.turned, self.b.turned, self.a.turned)

    def map(self, view: Callable[[Tensor], Tensor]) -> Adapted:
        return Adapted(self.weight.map(view), self.a.map(view), self.b.map(view))

    def put(self, place: Any, part: Adapted) -> None:
        for total, one in ((self.weight, part.weight), (self.a, part.a), (self.b, part.b)):
            total.put(place, one)

    def added_up(self) -> Adapted:
        return Adapted(self.weight.added_up(), self.a.added_up(), self.b.added_up())


Weight = Bounded | Adapted
Found = tuple[Weight | None, ...]
"""Results of which the gradients of adapters are not yet apart."""


def _activated(pre: Bounded, problem: Problem) -> Bounded:
    return pre.through(formulas.activation(problem.activation))


def _slope_of(pre: Bounded, problem: Problem) -> Bounded:
    """The slope at what is kept: the preactivation, or for some kinds the output."""
    formula, row = formulas.activation(problem.activation), tables.ACTIVATIONS[problem.activation.name]
    slope = pre.slope(formula)
    if row.from_output and not row.kinks and problem.save == "auto":
        slope = slope.plus(2 * pre.through(formula).stored().error)
    return slope


def _gated(value: Bounded, gate: Bounded, problem: Problem) -> Bounded:
    psi, phi = formulas.gated(problem.gated)
    return value.through(psi) * gate.through(phi)


def _gate_gradients(grad: Bounded, value: Bounded, gate: Bounded, problem: Problem) -> tuple[Bounded, Bounded]:
    psi, phi = formulas.gated(problem.gated)
    return product(grad, gate.through(phi), value.slope(psi)), product(grad, value.through(psi), gate.slope(phi))


def _halves(both: Bounded, dim: int, gate: str) -> tuple[Bounded, Bounded]:
    """The values and the gates."""
    half = both.value.shape[dim] // 2
    if gate in ("odd", "even"):
        turned = both.map(lambda x: x.movedim(dim, -1))
        first, second = turned.map(lambda x: x[..., ::2]), turned.map(lambda x: x[..., 1::2])
        first, second = (half.map(lambda x: x.movedim(-1, dim)) for half in (first, second))
    else:
        first, second = both.map(lambda x: x.narrow(dim, 0, half)), both.map(lambda x: x.narrow(dim, half, half))
    return (first, second) if gate in ("second", "odd") else (second, first)


def _joined(value: Bounded, gate: Bounded, dim: int, place: str) -> Bounded:
    first, second = (value, gate) if place in ("second", "odd") else (gate, value)

    def join(one: Tensor, other: Tensor) -> Tensor:
        if place in ("second", "first"):
            return torch.cat([one, other], dim)
        return torch.stack([one.movedim(dim, -1), other.movedim(dim, -1)], -1).flatten(-2).movedim(-1, dim)

    return replace(value, value=join(first.value, second.value), error=join(first.error, second.error))


def zeros(like: Bounded) -> Bounded:
    """What parts are put into: their values, their errors, and without signs their terms."""
    return replace(like.map(torch.zeros_like), terms=torch.zeros_like(like.value))


def _number(value: float, like: Bounded) -> Bounded:
    """A Python number, which kernels get in the accumulator's precision."""
    number = torch.tensor(value, dtype=torch.float64)
    return replace(like, value=number, error=number.abs() * like.unit)


def _times(left: Bounded, weight: Weight, bias: Bounded | None = None) -> Bounded:
    """``left @ weight + bias``. With an adapter it is one sum of all terms, with ``left @ b``
    rounded once, or the adapter's terms are added to what the others give."""
    if isinstance(weight, Bounded):
        return _biased(left @ weight, bias)
    narrow = (left @ weight.b).stored()
    apart = _biased(left @ weight.weight, bias).as_product() + narrow @ weight.a
    together = _beside(left, narrow, -1) @ _beside(weight.weight, weight.a, -2)
    return _biased(together, bias).either(apart)


def _biased(product: Bounded, bias: Bounded | None) -> Bounded:
    return product if bias is None else product.as_product() + bias


def _beside(one: Bounded, other: Bounded, dim: int) -> Bounded:
    value, error = torch.cat([one.value, other.value], dim), torch.cat([one.error, other.error], dim)
    return replace(one, value=value, error=error, stops=None, terms=None)


def _of_weight(grad: Bounded, x: Bounded, weight: Weight) -> Weight:
    """The gradient of a weight and of its adapter, of rows."""
    if isinstance(weight, Bounded):
        return grad.turned @ x
    of_a = (grad @ weight.b).stored().turned @ x
    return Adapted(grad.turned @ x, of_a, grad.turned @ (x @ weight.a.turned).stored())


def _dense(x: Bounded, weight: Weight, bias: Bounded | None) -> Bounded:
    return _times(x, weight.turned, bias)


def _dense_gradients(
    grad_pre: Bounded, x: Bounded, weight: Weight, bias: Bounded | None
) -> tuple[Bounded, Weight, Bounded | None]:
    """Of input, weight and bias."""
    rounded = grad_pre.stored()
    flat, inputs = (of.map(lambda t: t.reshape(t.shape[:-1].numel(), t.shape[-1])) for of in (rounded, x))
    summed = None if bias is None else grad_pre.sum_to(bias.value.shape)
    return _times(rounded, weight), _of_weight(flat, inputs, weight), summed


def _hidden(problem: Problem, pre: Bounded) -> Bounded:
    if problem.is_gated:
        return _gated(*_halves(pre, -1, problem.gate), problem)
    return _activated(pre, problem)


def _hidden_gradient(problem: Problem, grad: Bounded, pre: Bounded) -> Bounded:
    if problem.is_gated:
        return _joined(*_gate_gradients(grad, *_halves(pre, -1, problem.gate), problem), -1, problem.gate)
    return grad * _slope_of(pre, problem)


def _matmul(problem: Problem, grad: Bounded, a: Bounded, b: Bounded, bias: Bounded | None) -> Expected:
    rows = a.map(lambda t: t.unsqueeze(0) if t.dim() == 1 else t)
    columns = b.map(lambda t: t.unsqueeze(1) if t.dim() == 1 else t)
    pre = _biased(rows @ columns, bias)
    out = _activated(pre.as_product(), problem).map(lambda t: t.reshape(grad.value.shape))
    shape = pre.value.shape
    grad_pre = grad.map(lambda t: t.reshape(shape)) * _slope_of(pre.stored(), problem)
    rounded = grad_pre.stored()
    of_a = (rounded @ columns.turned).sum_to(rows.value.shape).map(lambda t: t.reshape(a.value.shape))
    of_b = (rows.turned @ rounded).sum_to(columns.value.shape).map(lambda t: t.reshape(b.value.shape))
    return out, of_a, of_b, None if bias is None else grad_pre.sum_to(bias.value.shape)


def _linear(problem: Problem, grad: Bounded, x: Bounded, weight: Weight, bias: Bounded | None) -> Found:
    pre = _dense(x, weight, bias)
    grad_pre = grad * _slope_of(pre.stored(), problem)
    return _activated(pre.as_product(), problem), *_dense_gradients(grad_pre, x, weight, bias)


def _gated_linear(
    problem: Problem, grad: Bounded, x: Bounded, w_value: Weight, w_gate: Weight, *biases: Bounded | None
) -> Found:
    layers = tuple(zip((w_value, w_gate), biases, strict=True))
    value, gate = (_dense(x, *layer).stored() for layer in layers)
    grads = _gate_gradients(grad, value, gate, problem)
    of_value, of_gate = (_dense_gradients(one, x, *layer) for one, layer in zip(grads, layers, strict=True))
    of_x = of_value[0].stored() + of_gate[0]
    return _gated(value, gate, problem), of_x, of_value[1], of_gate[1], of_value[2], of_gate[2]


def _block(
    problem: Problem, grad: Bounded, x: Bounded, w1: Weight, b1: Bounded | None, w2: Weight, b2: Bounded | None
) -> Found:
    pre = _dense(x, w1, b1).stored()
    hidden = _hidden(problem, pre).stored()
    grad_hidden, *second = _dense_gradients(grad, hidden, w2, b2)
    grad_pre = _hidden_gradient(problem, grad_hidden.stored(), pre)
    return _dense(hidden, w2, b2), *_dense_gradients(grad_pre, x, w1, b1), *second


def _totals(*of: Weight | None) -> list[Any]:
    """Zeros of the shapes of these."""

    def total(one: Weight) -> Weight:
        return Adapted(zeros(one.weight), zeros(one.a), zeros(one.b)) if isinstance(one, Adapted) else zeros(one)

    return [None if one is None else total(one) for one in of]


def _put(totals: list[Any], places: tuple[Any, ...], parts: Found) -> None:
    """Add parts to totals, each at its place."""
    for total, place, part in zip(totals, places, parts, strict=True):
        if total is not None and part is not None:
            total.put(place, part)


def _at(of: Bounded, place: Any) -> Bounded:
    return of.map(lambda t: t[place])


def _layer(weight: Weight, bias: Bounded | None, group: int) -> tuple[Weight, Bounded | None]:
    return weight.map(lambda t: t[group]), None if bias is None else _at(bias, group)


def _grouped(problem: Problem, grad: Bounded, x: Bounded, weight: Weight, bias: Bounded | None) -> Found:
    totals = _totals(grad, x, weight, bias)
    first = 0
    for group, end in enumerate(problem.integers()["offsets"].tolist()):
        rows, first = slice(first, end), end
        layer = _layer(weight, bias, group)
        pre = _dense(_at(x, rows), *layer)
        grad_pre = _at(grad, rows) * _slope_of(pre.stored(), problem)
        found = (_activated(pre.as_product(), problem), *_dense_gradients(grad_pre, _at(x, rows), *layer))
        _put(totals, (rows, rows, group, group), found)
    return tuple(totals)


def _experts(
    problem: Problem,
    grad: Bounded,
    x: Bounded,
    scale: Bounded,
    w_in: Weight,
    b_in: Bounded | None,
    w_out: Weight,
    b_out: Bounded | None,
) -> Found:
    totals = _totals(grad, x, scale, w_in, b_in, w_out, b_out)
    index = problem.integers()["index"]
    for expert in range(len(w_in.value)):
        tokens, places = torch.where(index == expert)
        first, second = _layer(w_in, b_in, expert), _layer(w_out, b_out, expert)
        rows, grads = _at(x, tokens), _at(grad, tokens)
        scales = _at(scale, (tokens, places)).map(lambda t: t.unsqueeze(1))
        pre = _dense(rows, *first).stored()
        hidden = _hidden(problem, pre).stored()
        out = _dense(hidden, *second).stored()
        grad_hidden, _, of_bias = _dense_gradients((grads * scales).stored(), hidden, *second)
        unscaled = _times(grads, second[0]).stored()
        grad_hidden = grad_hidden.stored().either((unscaled * scales).stored())
        of_second = _of_weight(grads, (hidden * scales).stored(), second[0]), of_bias
        grad_pre = _hidden_gradient(problem, grad_hidden, pre)
        grad_x, *of_first = _dense_gradients(grad_pre, rows, *first)
        grad_scale = (grads * out).sum_to((len(tokens), 1)).either(_by_hidden(grads, unscaled, hidden, second[1]))
        grad_scale = grad_scale.map(lambda t: t.squeeze(1))
        where = (tokens, tokens, (tokens, places), *(expert,) * 4)
        _put(totals, where, (scales * out, grad_x.stored(), grad_scale, *of_first, *of_second))
    return tuple([None if total is None else total.added_up() for total in totals])


def _by_hidden(grads: Bounded, unscaled: Bounded, hidden: Bounded, bias: Bounded | None) -> Bounded:
    """The gradients of scales as sums over hidden features."""
    shape = len(grads.value), 1
    by_hidden = (unscaled * hidden).sum_to(shape)
    return by_hidden if bias is None else by_hidden + (grads * bias).sum_to(shape)


def _activation(problem: Problem, grad: Bounded, x: Bounded) -> Expected:
    return _activated(x, problem), grad * x.slope(formulas.activation(problem.activation))


def _gated_activation(problem: Problem, grad: Bounded, x: Bounded) -> Expected:
    dim = problem.options["dim"]
    value, gate = _halves(x, dim, problem.gate)
    grads = _gate_gradients(grad, value, gate, problem)
    return _gated(value, gate, problem), _joined(*grads, dim, problem.gate)


def _gated_product(problem: Problem, grad: Bounded, value: Bounded, gate: Bounded) -> Expected:
    return _gated(value, gate, problem), *_gate_gradients(grad, value, gate, problem)


def _lerp(problem: Problem, grad: Bounded, start: Bounded, end: Bounded, weight: Bounded | None) -> Expected:
    by = _number(NUMBER, grad) if weight is None else weight
    one = replace(by, value=torch.ones_like(by.value), error=torch.zeros_like(by.value))
    from_start, from_end = start + by * (end - start), end + (by - one) * (end - start)
    is_near_start = by.value.abs() < 0.5
    return (
        chosen(is_near_start, from_start, from_end),
        (grad * (one - by)).sum_to(start.value.shape),
        (grad * by).sum_to(end.value.shape),
        None if weight is None else (grad * (end - start)).sum_to(weight.value.shape),
    )


def _prelu(problem: Problem, grad: Bounded, x: Bounded, weight: Bounded) -> Expected:
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


_SOFTPLUS = formulas.activation(Activation("softplus"))


def _xielu(problem: Problem, grad: Bounded, x: Bounded, alpha_p: Bounded, alpha_n: Bounded) -> Expected:
    above = x.value > 0
    below = chosen(above, zeros(x), x)
    beta = _number(0.5, x)
    a_p, a_n = alpha_p.through(_SOFTPLUS), beta + alpha_n.through(_SOFTPLUS)
    bend = below.through(_bent)
    return (
        chosen(above, product(a_p, x, x), a_n * bend) + beta * x,
        grad * (chosen(above, a_p * x + a_p * x, a_n * below.slope(_bent)) + beta),
        chosen(above, product(grad, x, x), zeros(x)).sum_to((1,)) * alpha_p.slope(_SOFTPLUS),
        chosen(above, zeros(x), grad * bend).sum_to((1,)) * alpha_n.slope(_SOFTPLUS),
    )


EXPECTED: dict[str, Callable[..., Found]] = {
    "matmul_bias_activation": _matmul,
    "linear": _linear,
    "gated_linear": _gated_linear,
    "mlp": _block,
    "gated_mlp": _block,
    "grouped_linear": _grouped,
    "experts": _experts,
    "activation": _activation,
    "gated_activation": _gated_activation,
    "gated_product": _gated_product,
    "lerp": _lerp,
    "prelu": _prelu,
    "xielu": _xielu,
}
"""By operation, given a problem, the output's gradient and the tensors that have gradients, with
adapters in their weights."""


def _second_of_one(problem: Problem, grad: Bounded, x: Bounded) -> Expected:
    formula = formulas.activation(problem.activation)
    return x * x.slope(formula), product(x, grad, x.curvature(formula))


def _second_of_gate(problem: Problem, grad: Bounded, value: Bounded, gate: Bounded) -> tuple[Bounded, Bounded, Bounded]:
    """Value and gate are also what the two gradients are multiplied by."""
    psi, phi = formulas.gated(problem.gated)
    by_value, by_gate, slopes = value * grad, gate * grad, (value.slope(psi), gate.slope(phi))
    return (
        product(value, gate.through(phi), slopes[0]) + product(gate, value.through(psi), slopes[1]),
        product(by_value, gate.through(phi), value.curvature(psi)) + product(by_gate, *slopes),
        product(by_value, *slopes) + product(by_gate, value.through(psi), gate.curvature(phi)),
    )


def _second_of_halves(problem: Problem, grad: Bounded, x: Bounded) -> Expected:
    dim = problem.options["dim"]
    of_grad, of_value, of_gate = _second_of_gate(problem, grad, *_halves(x, dim, problem.gate))
    return of_grad, _joined(of_value, of_gate, dim, problem.gate)


def _second(problem: Problem, grad: Bounded, first: Any, *gate: Any) -> Expected:
    """The gradients of the gradients' products with the operands themselves."""
    if gate:
        return _second_of_gate(problem, grad, first, *gate)
    return (_second_of_halves if problem.is_gated else _second_of_one)(problem, grad, first)


def expected_of(problem: Problem, grad: Bounded, given: Mapping[str, Bounded | None]) -> Expected:
    """The output and the gradients of the tensors that have them, by name."""
    scale = _number(problem.adapter_scale, grad)
    own: list[Weight | None] = [each for name, each in given.items() if not name.startswith("adapter")]
    weights = [place for place, name in enumerate(given) if name.startswith("weight")]
    for place, name in zip(weights, problem.adapters, strict=False):
        weight, a, b = own[place], given[f"{name}_a"], given[f"{name}_b"]
        assert isinstance(weight, Bounded) and a is not None and b is not None
        if problem.adapter_scale != 1 or problem.is_wide(name):  # then rounded before the call
            a, b = (a * scale).stored(), b.stored()
        own[place] = Adapted(weight, a, b)
    found, of_adapters = list(EXPECTED[problem.op](problem, grad, *own)), []
    for place, each in enumerate(found):
        if isinstance(each, Adapted):
            found[place] = each.weight
            of_adapters += [each.a.stored() * scale, each.b]
    second = _second(problem, grad, *own) if problem.entry == "second" else ()
    return (*found, *of_adapters, *second)  # type: ignore[arg-type]  # no weight has an adapter now
