"""The inputs of a case of layers with groups, and of mixtures of experts, and their results by the
reference and by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support import compositions, oracle
from tests.support.cases import EXPERTS_SHAPES, GROUPED_SHAPES, Case
from tests.support.layouts import draw
from tests.support.oracle import Sized
from tests.support.parity import Wanted

NAMES = {
    "grouped_linear": ("out", "grad_input", "grad_weight", "grad_bias"),
    "experts": (
        "out",
        "grad_input",
        "grad_scale",
        "grad_weight_in",
        "grad_bias_in",
        "grad_weight_out",
        "grad_bias_out",
    ),
}


@dataclass(frozen=True)
class GroupedProblem:
    """A case's tensors.

    Attributes:
        operands: those that have gradients, in the order of the operation's arguments.
        integers: the offsets or the index.
    """

    case: Case
    operands: tuple[Tensor | None, ...]
    integers: Tensor
    grad_output: Tensor

    def wanted(self) -> Wanted:
        case = self.case
        row: Any = case.gated if case.is_gated else case.row
        out, gradients = compositions.with_gradients(self._composition(row.eager), self.operands, self.grad_output)
        out64, gradients64 = compositions.in_float64(self._composition(row.value), self.operands, self.grad_output)
        return Wanted(self._reference(), (out, *gradients), (out64, *gradients64))

    def _composition(self, act: Any) -> Callable[..., Tensor]:
        integers = self.integers
        if self.case.op == "grouped_linear":
            return lambda x, w, b: compositions.grouped_linear(x, w, b, integers.to(x.device), act)
        whole = (lambda z: act(*compositions.halves(z, -1, self.case.gate))) if self.case.is_gated else act
        return lambda x, s, *layers: compositions.experts(x, integers.to(x.device), s, *layers, whole)

    def _reference(self) -> tuple[Sized | None, ...]:
        sized = [None if t is None else Sized.of(t, self.case.dtype) for t in (*self.operands, self.grad_output)]
        return self._grouped_linear(*sized) if self.case.op == "grouped_linear" else self._experts(*sized)

    def _grouped_linear(
        self, x: Sized | None, weight: Sized | None, bias: Sized | None, grad: Sized | None
    ) -> tuple[Sized | None, ...]:
        assert x is not None and weight is not None and grad is not None
        out, grads = _zeros(grad), [_zeros(x), _zeros(weight), None if bias is None else _zeros(bias)]
        first = 0
        for group, end in enumerate(self.integers.tolist()):
            rows, first = np.arange(first, end), end
            one = _of_group(bias, group)
            pre = oracle.linear(_at(x, rows), _at(weight, group), one)
            _add(out, rows, pre.through(self.case.row))
            grad_pre = _at(grad, rows) * pre.through(self.case.row, 1)
            found = oracle.linear_gradients(grad_pre, _at(x, rows), _at(weight, group), one)
            for place, (total, part) in enumerate(zip(grads, found, strict=True)):
                if total is not None and part is not None:
                    _add(total, rows if place == 0 else group, part)
        return (out, *grads)

    def _experts(
        self,
        x: Sized | None,
        scale: Sized | None,
        w_in: Sized | None,
        b_in: Sized | None,
        w_out: Sized | None,
        b_out: Sized | None,
        grad: Sized | None,
    ) -> tuple[Sized | None, ...]:
        assert x is not None and scale is not None and w_in is not None and w_out is not None and grad is not None
        totals = [None if one is None else _zeros(one) for one in (grad, x, scale, w_in, b_in, w_out, b_out)]
        gated = self.case.is_gated
        index = self.integers.cpu().numpy()
        for expert in range(len(w_in.value)):
            tokens, places = np.nonzero(index == expert)
            rows, grads = _at(x, tokens), _at(grad, tokens)
            scales = _at(scale, (tokens, places)).map(lambda s: s[:, None])
            first, second = (_at(w_in, expert), _of_group(b_in, expert)), (_at(w_out, expert), _of_group(b_out, expert))
            pre = oracle.linear(rows, *first)
            if gated:
                value, gate = oracle.halves(pre, self.case.gate)
                hidden = oracle.gated_product(value, gate, self.case.gated)
            else:
                hidden = pre.through(self.case.row)
            out = oracle.linear(hidden, *second)
            through, grad_w_out, grad_b_out = oracle.linear_gradients(scales * grads, hidden, *second)
            if gated:
                parts = oracle.gated_gradients(through, value, gate, self.case.gated)
                grad_pre = oracle.joined(*parts, -1, self.case.gate)
            else:
                grad_pre = through * pre.through(self.case.row, 1)
            grad_x, grad_w_in, grad_b_in = oracle.linear_gradients(grad_pre, rows, *first)
            grad_scale = (grads * out).map(lambda products: products.sum(-1))
            found = (scales * out, grad_x, grad_scale, grad_w_in, grad_b_in, grad_w_out, grad_b_out)
            where = (tokens, tokens, (tokens, places), *(expert,) * 4)
            for total, at, part in zip(totals, where, found, strict=True):
                if total is not None and part is not None:
                    _add(total, at, part)
        return tuple(totals)


def _zeros(like: Sized) -> Sized:
    return like.map(np.zeros_like)


def _at(of: Sized, place: Any) -> Sized:
    return of.map(lambda values: values[place])


def _of_group(bias: Sized | None, group: int) -> Sized | None:
    return None if bias is None else _at(bias, group)


def _add(total: Sized, place: Any, part: Sized) -> None:
    """Adds in place; a place may occur more than once."""
    np.add.at(total.value, place, part.value)
    np.add.at(total.size, place, part.size)


def grouped_problem(case: Case) -> GroupedProblem:
    """A case's operands. Where the kind has kinks, preactivations are odd numbers, as in
    `mlp_problem`."""
    generator = case.generator
    if case.op == "grouped_linear":
        rows, features, columns, ends = GROUPED_SHAPES[case.shape]
        first = _first_layer(case, (rows, features), len(ends), columns, generator)
        x, weight, bias = (case.holding(values, step) for step, values in enumerate(first))
        grad = case.tensor((rows, columns), generator, 5)
        integers = torch.tensor(ends, dtype=torch.int32 if case.source == "float32" else torch.int64)
        return GroupedProblem(case, (x, weight, bias if case.bias else None), integers.to(case.memory), grad)
    tokens, features, hidden, count, each = EXPERTS_SHAPES[case.shape]
    columns = 2 * hidden if case.is_gated else hidden
    first = _first_layer(case, (tokens, features), count, columns, generator)
    x, w_in, b_in = (case.holding(values, step) for step, values in enumerate(first))
    w_out, b_out = case.tensor((count, features, hidden), generator, 3), case.tensor((count, features), generator, 4)
    grad = case.tensor((tokens, features), generator, 5)
    scale = case.tensor((tokens, each), generator, 6)
    if case.source == "float32" and case.dtype.itemsize == 2:
        scale = draw((tokens, each), generator).to(case.memory, torch.float32)
    # Two indices are nobody's, and an expert may be chosen twice, or never.
    index = torch.randint(-1, count + 1, (tokens, each), generator=generator).to(case.memory)
    layers = (w_in, b_in if case.bias else None, w_out, b_out if case.bias else None)
    return GroupedProblem(case, (x, scale, *layers), index, grad)


def _first_layer(
    case: Case, shape: Sequence[int], groups: int, columns: int, generator: torch.Generator
) -> Sequence[Tensor]:
    spread = case.scale_of_preactivation / max(shape[-1], 1) ** 0.5
    x, weight, bias = (
        draw(shape, generator),
        draw((groups, columns, shape[-1]), generator, spread),
        draw((groups, columns), generator),
    )
    if case.kinks:
        x = torch.where(x < 0, -1.0, 1.0)
        if shape[-1] % 2 == 0:
            x[:, -1:] = 0.0  # an odd number of signs is never zero
        return [x, torch.where(weight < 0, -1.0, 1.0), 2 * bias.round()]
    return [x, weight, bias]
