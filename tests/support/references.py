"""The reference of each operation: its output and gradients, from `oracle`'s formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.support import oracle
from tests.support.oracle import Sized

Results = tuple[Sized | None, ...]


def of(op: str, row: Any, grad: Sized | None, operands: Sequence[Sized | None], known: Mapping[str, Any]) -> Results:
    """The output and the gradients of an operation.

    Args:
        op: the operation.
        row: the oracle's of the kind.
        grad: the output's gradient.
        operands: the tensors that have gradients.
        known: offsets or an index, a number in place of a tensor, and options, by name.
    """
    function, names = _REFERENCES[op]
    return function(row, grad, *operands, **{name: known[name] for name in names if name in known})


def _of_weight(op: str, b: Sized) -> Sized:
    """A weight [N, K] turned into b [K, N]."""
    return b.transposed if op == "linear" else b


def product(op: str, a: Any, b: Any, bias: Sized | None) -> Sized:
    """The preactivation of one product."""
    return oracle.preactivation(a, _of_weight(op, b), bias)


def _matmul(row: Any, grad: Sized, a: Sized, b: Sized, bias: Sized | None, preactivation: Any = None) -> Results:
    if preactivation is not None:  # which is taken as exact
        preactivation = preactivation.reshape(oracle.preactivation(a, b, bias).value.shape)
    return oracle.gemm(a, b, bias, row), *oracle.gemm_gradients(grad, a, b, bias, row, preactivation)


def _linear(row: Any, grad: Sized, x: Sized, weight: Sized, bias: Sized | None, preactivation: Any = None) -> Results:
    out, grad_x, grad_b, grad_bias = _matmul(row, grad, x, weight.transposed, bias, preactivation)
    assert grad_b is not None
    return out, grad_x, grad_b.transposed, grad_bias


def _gated_linear(row: Any, grad: Sized, x: Sized, wv: Sized, wg: Sized, bv: Any, bg: Any) -> Results:
    value, gate = oracle.linear(x, wv, bv), oracle.linear(x, wg, bg)
    grad_value, grad_gate = oracle.gated_gradients(grad, value, gate, row)
    from_value, grad_wv, grad_bv = oracle.linear_gradients(grad_value, x, wv, bv)
    from_gate, grad_wg, grad_bg = oracle.linear_gradients(grad_gate, x, wg, bg)
    return oracle.gated_product(value, gate, row), from_value + from_gate, grad_wv, grad_wg, grad_bv, grad_bg


def _hidden(row: Any, pre: Sized, gate: str) -> tuple[Sized, Callable[[Sized], Sized]]:
    """The hidden activation, and what makes its gradient that of the preactivation."""
    if not isinstance(row, oracle.GatedRow):
        return pre.through(row), lambda grad: grad * pre.through(row, 1)
    halves = oracle.halves(pre, gate)
    return oracle.gated_product(*halves, row), lambda grad: oracle.joined(
        *oracle.gated_gradients(grad, *halves, row), -1, gate
    )


def _block(row: Any, grad: Sized, x: Sized, w1: Sized, b1: Any, w2: Sized, b2: Any, gate: str = "second") -> Results:
    hidden, back = _hidden(row, oracle.linear(x, w1, b1), gate)
    grad_hidden, *second = oracle.linear_gradients(grad, hidden, w2, b2)
    return oracle.linear(hidden, w2, b2), *oracle.linear_gradients(back(grad_hidden), x, w1, b1), *second


def _zeros(like: Sized | None) -> Sized | None:
    return None if like is None else like.map(np.zeros_like)


def _at(of: Any, place: Any) -> Any:
    return None if of is None else of.map(lambda values: values[place])


def _add(totals: Sequence[Sized | None], places: Sequence[Any], parts: Results) -> None:
    """Adds in place; a place may occur more than once."""
    for total, place, part in zip(totals, places, parts, strict=True):
        if total is not None and part is not None:
            np.add.at(total.value, place, part.value)
            np.add.at(total.size, place, part.size)


def _grouped_linear(row: Any, grad: Sized, x: Sized, weight: Sized, bias: Any, offsets: Any) -> Results:
    totals, first = [_zeros(each) for each in (grad, x, weight, bias)], 0
    for group, end in enumerate(offsets.tolist()):
        rows, first = np.arange(first, end), end
        layer = _at(weight, group), _at(bias, group)
        pre = oracle.linear(_at(x, rows), *layer)
        grad_pre = _at(grad, rows) * pre.through(row, 1)
        found = pre.through(row), *oracle.linear_gradients(grad_pre, _at(x, rows), *layer)
        _add(totals, (rows, rows, group, group), found)
    return tuple(totals)


def _experts(
    row: Any,
    grad: Sized,
    x: Sized,
    scale: Sized,
    w_in: Sized,
    b_in: Any,
    w_out: Sized,
    b_out: Any,
    index: Any,
    gate: str = "second",
) -> Results:
    totals = [_zeros(each) for each in (grad, x, scale, w_in, b_in, w_out, b_out)]
    for expert in range(len(w_in.value)):
        tokens, places = np.nonzero(index.numpy() == expert)
        rows, grads = _at(x, tokens), _at(grad, tokens)
        scales = _at(scale, (tokens, places)).map(lambda s: s[:, None])
        first, second = (_at(w_in, expert), _at(b_in, expert)), (_at(w_out, expert), _at(b_out, expert))
        hidden, back = _hidden(row, oracle.linear(rows, *first), gate)
        out = oracle.linear(hidden, *second)
        through, *of_second = oracle.linear_gradients(scales * grads, hidden, *second)
        grad_x, *of_first = oracle.linear_gradients(back(through), rows, *first)
        grad_scale = (grads * out).map(lambda products: products.sum(-1))
        where = (tokens, tokens, (tokens, places), *(expert,) * 4)
        _add(totals, where, (scales * out, grad_x, grad_scale, *of_first, *of_second))
    return tuple(totals)


def _activation(row: Any, grad: Sized, x: Sized) -> Results:
    return x.through(row), grad * x.through(row, 1)


def _gated_activation(row: Any, grad: Sized, x: Sized, dim: int, gate: str) -> Results:
    turned = x.map(lambda values: np.moveaxis(values, dim, -1))
    value, gates = (half.map(lambda values: np.moveaxis(values, -1, dim)) for half in oracle.halves(turned, gate))
    grads = oracle.gated_gradients(grad, value, gates, row)
    return oracle.gated_product(value, gates, row), oracle.joined(*grads, dim, gate)


def _gated_product(row: Any, grad: Sized, value: Sized, gate: Sized) -> Results:
    return oracle.gated_product(value, gate, row), *oracle.gated_gradients(grad, value, gate, row)


def _lerp(row: Any, grad: Sized, start: Sized, end: Sized, by: Sized | None, weight: Sized | None = None) -> Results:
    given = by or weight
    assert given is not None
    grad_start, grad_end, grad_weight = oracle.lerp_gradients(grad, start, end, given)
    return oracle.lerp(start, end, given), grad_start, grad_end, None if by is None else grad_weight


def _learnable(value: Callable[..., Sized], gradients: Callable[..., tuple[Sized, ...]]) -> Callable[..., Results]:
    """Of formulas whose parameters are spread over channels, and whose gradients are summed."""

    def results(row: Any, grad: Sized, x: Sized, *parameters: Sized, **numbers: Sized) -> Results:
        rank = x.value.ndim
        wide = [parameter.reshape((-1, *(1,) * (rank - 2)) if rank > 1 else ()) for parameter in parameters]
        first, *unsummed = gradients(grad, x, *wide, *numbers.values())
        summed = [
            gradient.sum_to(under.value.shape).reshape(parameter.value.shape)
            for gradient, under, parameter in zip(unsummed, wide, parameters, strict=True)
        ]
        return value(x, *wide, *numbers.values()), first, *summed

    return results


_REFERENCES: dict[str, tuple[Callable[..., Results], tuple[str, ...]]] = {
    "matmul_bias_activation": (_matmul, ("preactivation",)),
    "linear": (_linear, ("preactivation",)),
    "gated_linear": (_gated_linear, ()),
    "mlp": (_block, ()),
    "gated_mlp": (_block, ("gate",)),
    "grouped_linear": (_grouped_linear, ("offsets",)),
    "experts": (_experts, ("index", "gate")),
    "activation": (_activation, ()),
    "gated_activation": (_gated_activation, ("dim", "gate")),
    "gated_product": (_gated_product, ()),
    "lerp": (_lerp, ("weight",)),
    "prelu": (_learnable(oracle.prelu, oracle.prelu_gradients), ()),
    "xielu": (_learnable(oracle.xielu, oracle.xielu_gradients), ("beta",)),
}
"""Functions, and the names of what they need beside the operands."""
