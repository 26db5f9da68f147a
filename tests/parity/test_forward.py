"""epigrad.forward: into any output layout, the bits of the differentiable functions, and nothing
outside the output.

The bits of a product may depend on the output's layout where another library multiplies; the
tolerance rule may not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import epigrad
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.cases import (
    ACTIVATIONS,
    DTYPES,
    GATED_IN_PRODUCTS,
    GATED_SHAPES,
    GATES,
    GEMM_SHAPES,
    IN_PRODUCTS,
    LEARNABLE_SHAPES,
    LERP_SHAPES,
    LINEAR_SHAPES,
    Case,
    cases,
    parity,
)
from tests.support.gated_problem import gated_problem
from tests.support.gemm_problem import gemm_problem
from tests.support.layouts import LAYOUTS, OUT_LAYOUTS, Guarded, assert_same_bits, unchanged
from tests.support.learnable_problem import KINDS, learnable_problem
from tests.support.lerp_problem import lerp_problem
from tests.support.oracle import Sized, preactivation
from tests.support.parity import Wanted, assert_parity, assert_result
from tests.support.tolerance import as_array, one_rounding

Check = Callable[[Tensor, str], None]


def _into_guarded_outputs(
    call: Callable[..., Tensor], want: Tensor, *inputs: Tensor | None, check: Check | None = None
) -> None:
    """Runs a call without `out`, which must have the bits of `want`, and into an output of every
    layout.

    So must those, or what a `check` says.
    """
    check = check or (lambda out, what: assert_same_bits(out, want, what))
    with unchanged(*inputs):
        fresh = call()
        assert fresh.is_contiguous() and not fresh.requires_grad
        assert_same_bits(fresh, want, "without out")
        for layout in OUT_LAYOUTS:
            out = Guarded.like(want, layout)
            assert call(out=out.tensor) is out.tensor
            check(out.tensor, f"into {layout}")
            out.check()


def _gemm_cases(op: str, shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Case]:
    axes = {"op": [op], "kind": IN_PRODUCTS, "dtype": DTYPES, "shape": list(shapes), "layout": LAYOUTS}
    return cases(axes, {"bias": (True, False)})


@parity(_gemm_cases("matmul_bias_activation", GEMM_SHAPES) + _gemm_cases("linear", LINEAR_SHAPES))
def test_gemm(case: Case) -> None:
    problem = gemm_problem(case)
    differentiable = getattr(epigrad, case.op)(*problem.operands, case.kind)

    def call(**out: Tensor) -> Tensor:
        result: Tensor = getattr(epigrad.forward, case.op)(*problem.operands, case.kind, **out)
        return result

    @functools.cache
    def wanted(case: Case) -> Wanted:
        return gemm_problem(case).wanted()

    def by_rule(out: Tensor, what: str) -> None:
        assert_result(what, out, 0, case, wanted)

    check = None if case.device == "cpu" else by_rule
    _into_guarded_outputs(call, differentiable, *problem.operands, check=check)


@parity(_gemm_cases("matmul_bias_activation", GEMM_SHAPES)[::2] + _gemm_cases("linear", LINEAR_SHAPES)[::2])
def test_returned_preactivation(case: Case) -> None:
    problem = gemm_problem(case)
    out, pre = getattr(epigrad.forward, case.op)(*problem.operands, case.kind, return_preactivation=True)
    assert_same_bits(out, getattr(epigrad.forward, case.op)(*problem.operands, case.kind), "out")

    def want(case: Case) -> Wanted:
        problem = gemm_problem(case)
        eager = problem.preactivation()
        return Wanted((preactivation(*problem.sized_operands).reshape(eager.shape),), (eager,))

    assert_parity(("preactivation",), (pre,), case, want)


@parity(
    cases(
        {"op": ["gated"], "kind": GATED_IN_PRODUCTS, "dtype": DTYPES, "shape": list(GATED_SHAPES), "layout": LAYOUTS},
        {"gate": GATES},
    )
)
def test_gated(case: Case) -> None:
    problem = gated_problem(case)
    want = epigrad.gated_activation(problem.input, case.kind, problem.dim, gate=case.gate)

    def one(**out: Tensor) -> Tensor:
        return epigrad.forward.gated_activation(problem.input, case.kind, problem.dim, gate=case.gate, **out)

    def two(**out: Tensor) -> Tensor:
        return epigrad.forward.gated_product(*problem.halves, case.kind, **out)

    _into_guarded_outputs(one, want, problem.input)
    _into_guarded_outputs(two, want, problem.input)


@parity(cases({"op": ["lerp"], "kind": ["lerp"], "dtype": DTYPES, "shape": list(LERP_SHAPES), "layout": LAYOUTS}))
def test_lerp(case: Case) -> None:
    problem = lerp_problem(case)
    want = epigrad.lerp(problem.start, problem.end, problem.weight)

    def call(**out: Tensor) -> Tensor:
        return epigrad.forward.lerp(problem.start, problem.end, problem.weight, **out)

    _into_guarded_outputs(call, want, *problem.tensors)


@parity(
    cases({"op": ["learnable"], "kind": KINDS, "dtype": DTYPES, "shape": list(LEARNABLE_SHAPES), "layout": LAYOUTS})
)
def test_learnable(case: Case) -> None:
    problem = learnable_problem(case)
    want = getattr(epigrad, problem.op)(*problem.tensors, **problem.options)

    def call(**out: Tensor) -> Tensor:
        result: Tensor = getattr(epigrad.forward, problem.op)(*problem.tensors, **problem.options, **out)
        return result

    _into_guarded_outputs(call, want, *problem.tensors)


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
