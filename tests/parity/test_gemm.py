"""matmul_bias_activation and linear with autograd: values, gradients, save modes, and the
guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import epigrad
import torch
from torch import Tensor

from tests.support.cases import (
    BRIEFLY,
    DTYPES,
    GEMM_SHAPES,
    IN_PRODUCTS,
    LINEAR_SHAPES,
    SAVE_MODES,
    SCALES,
    Case,
    cases,
    parity,
)
from tests.support.compositions import leaves
from tests.support.gemm_problem import gemm_problem
from tests.support.layouts import LAYOUTS, assert_same_bits, unchanged
from tests.support.parity import assert_parity


def _cases(op: str, shapes: Iterable[str], kinds: Sequence[object] = IN_PRODUCTS) -> list[Case]:
    axes = {"op": [op], "kind": kinds, "dtype": DTYPES, "shape": list(shapes), "layout": LAYOUTS}
    return cases(axes, {"scale": list(SCALES), "save": SAVE_MODES, "bias": (True, False)})


GEMM_CASES = _cases("matmul_bias_activation", GEMM_SHAPES)
LINEAR_CASES = _cases("linear", LINEAR_SHAPES) + _cases("linear", ("tokens", "past_column_tile"), BRIEFLY)


def _forward_and_gradients(
    case: Case, save: str, operands: list[Tensor | None], grad: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """Output and gradients; the second backward of a retained graph must give the same bits."""
    out = getattr(epigrad, case.op)(*operands, case.kind, save=save)
    given = [x for x in operands if x is not None]
    first = torch.autograd.grad(out, given, grad, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(out, given, grad), strict=True):
        assert_same_bits(one, other, "second backward under retain_graph")
    gradients = iter(first)
    return out.detach(), [None if x is None else next(gradients) for x in operands]


@parity([*GEMM_CASES, *LINEAR_CASES])
def test_output_and_gradients(case: Case) -> None:
    problem = gemm_problem(case)
    with unchanged(*problem.operands, problem.grad_output):
        out, gradients = _forward_and_gradients(case, case.save, leaves(problem.operands), problem.grad_output)
    assert out.is_contiguous(), "functional outputs are contiguous"
    assert_parity(("out", *problem.names), (out, *gradients), case, lambda case: gemm_problem(case).wanted())


@parity(GEMM_CASES[::4] + LINEAR_CASES[::4])
def test_recompute_gives_the_bits_of_a_saved_preactivation(case: Case) -> None:
    problem = gemm_problem(case)
    run = partial(_forward_and_gradients, case)
    _, recomputed = run("recompute", leaves(problem.operands), problem.grad_output)
    _, saved = run("preactivation", leaves(problem.operands), problem.grad_output)
    for name, one, other in zip(problem.names, recomputed, saved, strict=True):
        assert_same_bits(one, other, name)


@parity(GEMM_CASES[::4] + LINEAR_CASES[::4])
def test_only_the_gradients_asked_for(case: Case) -> None:
    """Whichever inputs ask for gradients, each gradient has the bits that it has when all are asked
    for."""
    problem = gemm_problem(case)
    _, everything = _forward_and_gradients(case, case.save, leaves(problem.operands), problem.grad_output)
    for asked in range(3):
        if problem.operands[asked] is None:
            continue
        operands = [
            None if x is None else x.detach().requires_grad_(i == asked) for i, x in enumerate(problem.operands)
        ]
        out = getattr(epigrad, case.op)(*operands, case.kind, save=case.save)
        (gradient,) = torch.autograd.grad(out, [operands[asked]], problem.grad_output)
        assert_same_bits(gradient, everything[asked], problem.names[asked])
