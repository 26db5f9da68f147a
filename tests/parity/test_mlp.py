"""mlp, gated_mlp and gated_linear with autograd: values, all five gradients, save modes, and the
guards.
"""

from __future__ import annotations

import epigrad
import torch
from torch import Tensor

from tests.support.cases import (
    DTYPES,
    GATED_IN_PRODUCTS,
    GATES,
    IN_PRODUCTS,
    MLP_SHAPES,
    SAVE_MODES,
    SCALES,
    Case,
    cases,
    parity,
)
from tests.support.compositions import leaves
from tests.support.layouts import LAYOUTS, assert_same_bits, unchanged
from tests.support.mlp_problem import NAMES, MlpProblem, mlp_problem
from tests.support.parity import assert_parity

SAVES = {"save": SAVE_MODES, "bias": (True, False), "scale": list(SCALES)}


def _run(problem: MlpProblem, operands: list[Tensor | None], save: str) -> tuple[Tensor, list[Tensor | None]]:
    case = problem.case
    gate = {"gate": case.gate} if case.op == "gated_mlp" else {}
    out = getattr(epigrad, case.op)(*operands, case.kind, save=save, **gate)
    asking = [x for x in operands if x is not None and x.requires_grad]
    first = torch.autograd.grad(out, asking, problem.grad_output, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(out, asking, problem.grad_output), strict=True):
        assert_same_bits(one, other, "second backward under retain_graph")
    gradients = iter(first)
    return out.detach(), [next(gradients) if x is not None and x.requires_grad else None for x in operands]


MLP_CASES = cases(
    {"op": ["mlp"], "kind": IN_PRODUCTS, "dtype": DTYPES, "shape": list(MLP_SHAPES), "layout": LAYOUTS}, SAVES
)
GATED_MLP_CASES = cases(
    {"op": ["gated_mlp"], "kind": GATED_IN_PRODUCTS, "dtype": DTYPES, "shape": list(MLP_SHAPES), "layout": LAYOUTS},
    {**SAVES, "gate": GATES},
)
GATED_LINEAR_CASES = cases(
    {"op": ["gated_linear"], "kind": GATED_IN_PRODUCTS, "dtype": DTYPES, "shape": list(MLP_SHAPES), "layout": LAYOUTS},
    SAVES,
)


@parity([*MLP_CASES, *GATED_MLP_CASES, *GATED_LINEAR_CASES])
def test_output_and_gradients(case: Case) -> None:
    problem = mlp_problem(case)
    with unchanged(*problem.operands, problem.grad_output):
        out, gradients = _run(problem, leaves(problem.operands), case.save)
    assert out.is_contiguous(), "functional outputs are contiguous"
    assert_parity(NAMES[case.op], (out, *gradients), case, lambda case: mlp_problem(case).wanted())


@parity(MLP_CASES[::5] + GATED_MLP_CASES[::5] + GATED_LINEAR_CASES[::5])
def test_each_gradient_alone_has_the_same_bits(case: Case) -> None:
    problem = mlp_problem(case)
    _, everything = _run(problem, leaves(problem.operands), case.save)
    for asked, whole in enumerate(everything):
        if whole is not None:
            alone = [
                None if x is None else x.detach().requires_grad_(i == asked) for i, x in enumerate(problem.operands)
            ]
            assert_same_bits(_run(problem, alone, case.save)[1][asked], whole, NAMES[case.op][1 + asked])
