"""epigrad.forward: into any output layout, the bits of the differentiable functions, and nothing
outside the output.

The bits of a product may depend on the output's layout where another library multiplies; the
tolerance rule may not.
"""

from __future__ import annotations

import functools

import epigrad
import numpy as np
import pytest
import torch
from epigrad._core import tables

from tests.support.cases import (
    ACTIVATIONS,
    DTYPES,
    GATED_IN_PRODUCTS,
    GATED_SHAPES,
    GATES,
    GEMM_SHAPES,
    IN_PRODUCTS,
    LEARNABLE,
    LEARNABLE_SHAPES,
    LERP_SHAPES,
    LINEAR_SHAPES,
    Case,
    cases_of,
    parity,
)
from tests.support.layouts import OUT_LAYOUTS, Guarded, assert_same_bits, unchanged
from tests.support.oracle import Sized
from tests.support.parity import Wanted, assert_parity, assert_result
from tests.support.problem import problem_of
from tests.support.tolerance import as_array, one_rounding

GEMM = cases_of("matmul_bias_activation", IN_PRODUCTS, GEMM_SHAPES, bias=(True, False))
LINEAR = cases_of("linear", IN_PRODUCTS, LINEAR_SHAPES, bias=(True, False))
ELEMENTWISE = [
    *cases_of("activation", ("gelu", "relu"), ("rows", "middle_dim", "no_rows")),
    *cases_of("gated_activation", GATED_IN_PRODUCTS, GATED_SHAPES, gate=GATES),
    *cases_of("gated_product", GATED_IN_PRODUCTS, GATED_SHAPES, gate=GATES),
    *cases_of("lerp", ["lerp"], LERP_SHAPES),
    *cases_of("learnable", LEARNABLE, LEARNABLE_SHAPES),
]


@parity([*GEMM, *LINEAR, *ELEMENTWISE])
def test_into_guarded_outputs(case: Case) -> None:
    """A call without `out` has the bits of the differentiable function, and so has one into an
    output of every layout. Of a product elsewhere than on a CPU the latter keeps the tolerance
    rule."""
    problem = problem_of(case)
    want = getattr(epigrad, problem.op)(**problem.with_operands(problem.operands))

    @functools.cache
    def wanted(case: Case) -> Wanted:
        return problem_of(case).wanted()

    with unchanged(*problem.operands):
        fresh = problem.forward()
        assert fresh.is_contiguous() and not fresh.requires_grad
        assert_same_bits(fresh, want, "without out")
        for layout in OUT_LAYOUTS:
            out = Guarded.like(want, layout)
            assert problem.forward(out=out.tensor) is out.tensor
            if case.device != "cpu" and tables.OPS[problem.op].multiplies:
                assert_result(f"into {layout}", out.tensor, 0, case, wanted)
            else:
                assert_same_bits(out.tensor, want, f"into {layout}")
            out.check()


@parity(GEMM[::2] + LINEAR[::2])
def test_returned_preactivation(case: Case) -> None:
    problem = problem_of(case)
    out, pre = problem.forward(return_preactivation=True)
    assert_same_bits(out, problem.forward(), "out")
    assert_parity(("preactivation",), (pre,), case, lambda case: problem_of(case).wanted_preactivation())


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize == 2], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_half_types_round_the_output_once(activation: str, dtype: torch.dtype) -> None:
    """On CPU, the activation gets the accumulator, not a preactivation that was rounded to storage
    on the way."""
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(500, 1, generator=generator).to(dtype)
    a = torch.cat([head, head * torch.rand(500, 1, generator=generator) * torch.finfo(dtype).eps], dim=1).to(dtype)
    out = epigrad.forward.matmul_bias_activation(a, torch.ones(2, 1, dtype=dtype), None, activation)
    exact = Sized.of(a.to(torch.float64).sum(1, keepdim=True), dtype).through(activation).value
    allowed = one_rounding(np.abs(exact), dtype) * (1 + 1e-3)
    assert (np.abs(as_array(out, exact) - exact) <= allowed).all()
