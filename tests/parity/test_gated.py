"""gated_activation and gated_product with autograd: values, gradients, and the guards."""

from __future__ import annotations

from collections.abc import Sequence

import epigrad
import torch

from tests.support.cases import (
    DTYPES,
    GATED_BRIEFLY,
    GATED_IN_PRODUCTS,
    GATED_SHAPES,
    GATES,
    SCALES,
    Case,
    cases,
    parity,
)
from tests.support.compositions import leaves
from tests.support.gated_problem import gated_problem
from tests.support.layouts import LAYOUTS, assert_same_bits, unchanged
from tests.support.parity import assert_parity


def _cases(op: str) -> list[Case]:
    def of(kinds: Sequence[object], shapes: Sequence[str]) -> list[Case]:
        axes = {"op": [op], "kind": kinds, "dtype": DTYPES, "shape": shapes, "layout": LAYOUTS}
        return cases(axes, {"scale": list(SCALES), "gate": GATES})

    return of(GATED_IN_PRODUCTS, list(GATED_SHAPES)) + of(GATED_BRIEFLY, ("vector", "middle_dim", "past_block"))


@parity(_cases("gated_activation"))
def test_one_tensor(case: Case) -> None:
    problem = gated_problem(case)
    (input,) = leaves([problem.input])
    with unchanged(problem.input, problem.grad_output):
        out = epigrad.gated_activation(input, case.kind, problem.dim, gate=case.gate)
        (gradient,) = torch.autograd.grad(out, [input], problem.grad_output, retain_graph=True)
        (again,) = torch.autograd.grad(out, [input], problem.grad_output)
    assert out.is_contiguous(), "functional outputs are contiguous"
    assert_same_bits(gradient, again, "second backward under retain_graph")
    assert_parity(("out", "grad_input"), (out.detach(), gradient), case, lambda case: gated_problem(case).wanted())


@parity(_cases("gated_product"))
def test_two_tensors(case: Case) -> None:
    problem = gated_problem(case)
    value, gate = leaves(problem.halves)
    with unchanged(problem.input, problem.grad_output):
        out = epigrad.gated_product(value, gate, case.kind)
        gradients = torch.autograd.grad(out, [value, gate], problem.grad_output)
    names = ("out", "grad_value", "grad_gate")
    assert_parity(names, (out.detach(), *gradients), case, lambda case: gated_problem(case).wanted_of_halves())
    one = epigrad.gated_activation(problem.input, case.kind, problem.dim, gate=case.gate)
    assert_same_bits(out, one, "halves given apart and together")
    for asked, (name, everything) in enumerate(zip(names[1:], gradients, strict=True)):
        halves = [x.detach().requires_grad_(i == asked) for i, x in enumerate(problem.halves)]
        (alone,) = torch.autograd.grad(epigrad.gated_product(*halves, case.kind), [halves[asked]], problem.grad_output)
        assert_same_bits(alone, everything, name)
