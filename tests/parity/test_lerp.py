"""lerp with autograd: every way of broadcasting, float and tensor weights, and the guards."""

from __future__ import annotations

import epigrad
import torch
from torch import Tensor

from tests.support.cases import DTYPES, LERP_SHAPES, SCALES, Case, cases, parity
from tests.support.compositions import leaves
from tests.support.layouts import LAYOUTS, assert_same_bits, unchanged
from tests.support.lerp_problem import GRADIENTS, LerpProblem, lerp_problem
from tests.support.parity import assert_parity


def _gradients(problem: LerpProblem, tensors: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """The output, and the gradients of those tensors that ask for one."""
    out = epigrad.lerp(*problem.arguments(tensors))
    asking = [x for x in tensors if x is not None and x.requires_grad]
    first = torch.autograd.grad(out, asking, problem.grad_output, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(out, asking, problem.grad_output), strict=True):
        assert_same_bits(one, other, "second backward under retain_graph")
    gradients = iter(first)
    return out.detach(), [next(gradients) if x is not None and x.requires_grad else None for x in tensors]


@parity(
    cases(
        {"op": ["lerp"], "kind": ["lerp"], "dtype": DTYPES, "shape": list(LERP_SHAPES), "layout": LAYOUTS},
        {"scale": list(SCALES)},
    )
)
def test_output_and_gradients(case: Case) -> None:
    problem = lerp_problem(case)
    with unchanged(*problem.tensors, problem.grad_output):
        out, gradients = _gradients(problem, leaves(problem.tensors))
    assert out.is_contiguous(), "functional outputs are contiguous"
    assert_parity(("out", *GRADIENTS), (out, *gradients), case, lambda case: lerp_problem(case).wanted())
    for asked, (name, everything) in enumerate(zip(GRADIENTS, gradients, strict=True)):
        if everything is not None:
            alone = [
                None if x is None else x.detach().requires_grad_(i == asked) for i, x in enumerate(problem.tensors)
            ]
            assert_same_bits(_gradients(problem, alone)[1][asked], everything, name)
