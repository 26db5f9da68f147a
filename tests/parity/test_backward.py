"""epigrad.backward: stateless gradients from inputs, from a preactivation or from an output, into
any output layout."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import epigrad
import torch
from torch import Tensor

from tests.support.cases import (
    DTYPES,
    FROM_OUTPUT,
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
    cases,
    cases_of,
    parity,
)
from tests.support.layouts import OUT_LAYOUTS, Guarded, assert_same_bits, draw, laid_out, unchanged
from tests.support.oracle import Sized
from tests.support.parity import Results, Wanted, assert_parity, assert_result
from tests.support.problem import Problem, problem_of

Backward = Callable[..., tuple[Tensor | None, ...]]


def _check_needs_and_out(
    call: Backward, everything: Results, inputs: Results, case: Case, want: Callable[[Case], Wanted], sums: bool
) -> None:
    """Every mask of needs gives the bits of `everything` and None elsewhere, fresh and into guarded
    outputs.

    A sum may be made in another order where another layout is written on a GPU: there the tolerance
    rule holds.
    """
    step = OUT_LAYOUTS.index(case.layout) if case.layout in OUT_LAYOUTS else 0
    want = functools.cache(want)
    for turn, needs in enumerate(itertools.product((True, False), repeat=len(everything))):
        chosen = [x if need else None for x, need in zip(everything, needs, strict=True)]
        outs = [
            None if x is None else Guarded.like(x, OUT_LAYOUTS[(step + turn + i) % len(OUT_LAYOUTS)])
            for i, x in enumerate(chosen)
        ]
        with unchanged(*inputs):
            fresh = call(needs=needs)
            written = call(needs=needs, out=tuple(None if out is None else out.tensor for out in outs))
        for index, (same, alone, into, out) in enumerate(zip(chosen, fresh, written, outs, strict=True)):
            assert_same_bits(alone, same, f"needs={needs}")
            if out is None:
                assert into is None, f"needs={needs}"
                continue
            assert into is out.tensor
            out.check()
            if sums and case.device != "cpu":
                assert_result(f"needs={needs}, into out", into, index, case, want)
            else:
                assert_same_bits(into, same, f"needs={needs}, into out")


def _gemm_cases(op: str, shapes: Iterable[str]) -> list[Case]:
    sources = ("inputs", "preactivation", "output")
    chosen = cases_of(op, IN_PRODUCTS, shapes, bias=(True, False), source=sources, accumulate=(False, True))
    far = {"op": [op], "kind": IN_PRODUCTS, "dtype": DTYPES, "shape": ["primes"], "layout": ["contiguous"]}
    chosen += [replace(c, scale="far", source="preactivation") for c in cases(far)]
    return [replace(c, source="inputs") if c.source == "output" and c.kind not in FROM_OUTPUT else c for c in chosen]


def _given(problem: Problem) -> dict[str, Tensor]:
    """The preactivation or output that the case hands to backward: PyTorch's, so that both start
    from the same."""
    case = problem.case
    if case.source == "inputs":
        return {}
    pre = problem.preactivation()
    kept = pre if case.source == "preactivation" else case.row.eager(pre)
    layout = OUT_LAYOUTS[len(case.shape) % len(OUT_LAYOUTS)]
    return {case.source: laid_out(kept, case.dtype, layout, case.memory)}


def _held_before(problem: Problem) -> list[Tensor | None]:
    """What lies in the outputs that are accumulated into."""
    generator = torch.Generator().manual_seed(7)
    _, b, bias = problem.operands
    return [None if x is None else draw(x.shape, generator).to(x.dtype).to(x.device) for x in (None, b, bias)]


def _want(case: Case) -> Wanted:
    problem = problem_of(case)
    if case.source == "preactivation":
        wanted = problem.wanted_from(problem.preactivation())
    else:
        wanted = problem.wanted_gradients()
    if not case.accumulate:
        return wanted
    held = _held_before(problem)
    reference = [
        x if h is None or x is None else x + Sized.of(h, case.dtype)
        for x, h in zip(wanted.reference, held, strict=True)
    ]
    eager = [x if h is None or x is None else h + x for x, h in zip(wanted.eager, held, strict=True)]
    return Wanted(reference, eager)


@parity(_gemm_cases("matmul_bias_activation", GEMM_SHAPES) + _gemm_cases("linear", LINEAR_SHAPES))
def test_gemm(case: Case) -> None:
    problem = problem_of(case)
    given = _given(problem)
    call = functools.partial(problem.backward, **given)
    inputs = (problem.grad_output, *problem.operands, *given.values())
    if not case.accumulate:
        everything = call(needs=(True, True, case.bias))
        assert_parity(problem.gradients, everything, case, _want)
        if case.bias:
            _check_needs_and_out(call, everything, inputs, case, _want, sums=True)
        return
    held = _held_before(problem)
    outs = [None if h is None else Guarded.holding(h, OUT_LAYOUTS[i]) for i, h in enumerate(held)]
    with unchanged(*inputs):
        gradients = call(out=tuple(None if out is None else out.tensor for out in outs), accumulate=True)
    assert_parity(problem.gradients, gradients, case, _want)
    for gradient, out in zip(gradients, outs, strict=True):
        if out is not None:
            assert gradient is out.tensor
            out.check()


@parity(
    [
        *cases_of("activation", ("gelu", "relu"), ("rows", "middle_dim", "no_rows")),
        *cases_of("gated_activation", GATED_IN_PRODUCTS, GATED_SHAPES, gate=GATES),
        *cases_of("gated_product", GATED_IN_PRODUCTS, GATED_SHAPES, gate=GATES),
        *cases_of("lerp", ["lerp"], LERP_SHAPES),
        *cases_of("learnable", LEARNABLE, LEARNABLE_SHAPES),
    ]
)
def test_elementwise(case: Case) -> None:
    problem = problem_of(case)

    def call(needs: tuple[bool, ...], out: Results = (None,)) -> tuple[Tensor | None, ...]:
        if len(needs) > 1:
            return problem.backward(needs=needs, **({} if out == (None,) else {"out": out}))
        return problem.backward(out=out[0]) if needs[0] else (None,)

    def want(case: Case) -> Wanted:
        return problem_of(case).wanted_gradients()

    gradients = problem.backward()
    assert_parity(problem.gradients, gradients, case, want)
    sums = any(x is not None and x.shape != problem.grad_output.shape for x in problem.operands)
    sums = sums and problem.op != "gated_activation"
    _check_needs_and_out(call, gradients, (problem.grad_output, *problem.operands), case, want, sums)


@parity(cases_of("lerp", ["lerp"], ["full", "float", "columns"]))
def test_lerp_without_start_and_end(case: Case) -> None:
    """The gradients of start and end need neither; with none to give a shape they have the
    output's."""
    problem = problem_of(case)
    needs = (True, True, False)
    without = problem.with_operands([None, None, problem.operands[2]])
    alone = epigrad.backward.lerp_backward(problem.grad_output, **without, needs=needs)
    for one, other in zip(alone, problem.backward(needs=needs), strict=True):
        assert_same_bits(one, other)
