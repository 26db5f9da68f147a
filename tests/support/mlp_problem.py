"""The inputs of a case of layers, and its results by the reference and by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.support import compositions, oracle
from tests.support.cases import MLP_SHAPES, Case
from tests.support.layouts import draw
from tests.support.oracle import Sized
from tests.support.parity import Wanted

_BLOCK = ("out", "grad_input", "grad_weight1", "grad_bias1", "grad_weight2", "grad_bias2")
NAMES = {
    "mlp": _BLOCK,
    "gated_mlp": _BLOCK,
    "gated_linear": (
        "out",
        "grad_input",
        "grad_weight_value",
        "grad_weight_gate",
        "grad_bias_value",
        "grad_bias_gate",
    ),
}

Operands = tuple[Tensor | None, ...]
"""In the order of the operation's arguments."""


@dataclass(frozen=True)
class MlpProblem:
    case: Case
    operands: Operands
    grad_output: Tensor

    def _composition(self, act: Any) -> partial[Tensor]:
        if self.case.op == "gated_mlp":
            return partial(compositions.gated_mlp, gate=self.case.gate, act=act)
        return partial(getattr(compositions, self.case.op), act=act)

    def wanted(self) -> Wanted:
        row = self.case.row if self.case.op == "mlp" else self.case.gated
        out, gradients = compositions.with_gradients(self._composition(row.eager), self.operands, self.grad_output)
        out64, gradients64 = compositions.in_float64(self._composition(row.value), self.operands, self.grad_output)
        return Wanted(self._reference(), (out, *gradients), (out64, *gradients64))

    def _reference(self) -> tuple[Sized | None, ...]:
        sized = [None if t is None else Sized.of(t, self.case.dtype) for t in (*self.operands, self.grad_output)]
        if self.case.op == "gated_linear":
            return self._gated_linear(*sized)
        x, w1, b1, w2, b2, grad = sized
        assert x is not None and w1 is not None and w2 is not None and grad is not None
        pre = oracle.linear(x, w1, b1)
        if self.case.op == "mlp":
            activation = self.case.row
            hidden = pre.through(activation)
            grad_hidden, grad_w2, grad_b2 = oracle.linear_gradients(grad, hidden, w2, b2)
            grad_pre = grad_hidden * pre.through(activation, 1)
        else:
            value, gate = oracle.halves(pre, self.case.gate)
            hidden = oracle.gated_product(value, gate, self.case.gated)
            grad_hidden, grad_w2, grad_b2 = oracle.linear_gradients(grad, hidden, w2, b2)
            grads = oracle.gated_gradients(grad_hidden, value, gate, self.case.gated)
            grad_pre = oracle.joined(*grads, -1, self.case.gate)
        return (oracle.linear(hidden, w2, b2), *oracle.linear_gradients(grad_pre, x, w1, b1), grad_w2, grad_b2)

    def _gated_linear(
        self,
        x: Sized | None,
        wv: Sized | None,
        wg: Sized | None,
        bv: Sized | None,
        bg: Sized | None,
        grad: Sized | None,
    ) -> tuple[Sized | None, ...]:
        assert x is not None and wv is not None and wg is not None and grad is not None
        value, gate = oracle.linear(x, wv, bv), oracle.linear(x, wg, bg)
        grad_value, grad_gate = oracle.gated_gradients(grad, value, gate, self.case.gated)
        from_value, grad_wv, grad_bv = oracle.linear_gradients(grad_value, x, wv, bv)
        from_gate, grad_wg, grad_bg = oracle.linear_gradients(grad_gate, x, wg, bg)
        out = oracle.gated_product(value, gate, self.case.gated)
        return out, from_value + from_gate, grad_wv, grad_wg, grad_bv, grad_bg


def mlp_problem(case: Case) -> MlpProblem:
    """A case's operands.

    Where the activation has a kink, input and first weight are signs and the first bias is even:
    with an odd number of features the preactivation is then an odd number, and rounding never
    decides on which side of the kink it falls.

    The two layers of a gated linear layer are drawn as the first one is.
    """
    generator = case.generator
    shape, hidden = MLP_SHAPES[case.shape]
    features, out_features = shape[-1], 3
    rows = hidden if case.op == "mlp" else 2 * hidden
    spread = case.scale_of_preactivation / features**0.5
    first = [draw(shape, generator), draw((rows, features), generator, spread), draw((rows,), generator)]
    if case.kinks:
        assert features % 2, "an odd number of features keeps the preactivation from zero"
        first = [torch.where(first[0] < 0, -1.0, 1.0), torch.where(first[1] < 0, -1.0, 1.0), 2 * first[2].round()]
    if case.op == "gated_linear":
        first = [first[0], *first[1].chunk(2), *first[2].chunk(2)]
        operands = tuple(case.holding(values, step) for step, values in enumerate(first))
        grad = case.tensor((*shape[:-1], hidden), generator, 5)
        return MlpProblem(case, operands if case.bias else (*operands[:3], None, None), grad)
    x, w1, b1 = (case.holding(values, step) for step, values in enumerate(first))
    w2 = case.tensor((out_features, hidden), generator, 3)
    b2 = case.tensor((out_features,), generator, 4)
    grad = case.tensor((*shape[:-1], out_features), generator, 5)
    return MlpProblem(case, (x, w1, b1 if case.bias else None, w2, b2 if case.bias else None), grad)
