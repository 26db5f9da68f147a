"""epigrad.backward: stateless gradients from inputs, from a preactivation or from an output, into
any output layout."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
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
    LEARNABLE_SHAPES,
    LERP_SHAPES,
    LINEAR_SHAPES,
    Case,
    cases,
    parity,
)
from tests.support.gated_problem import gated_problem
from tests.support.gemm_problem import GemmProblem, gemm_problem
from tests.support.layouts import LAYOUTS, OUT_LAYOUTS, Guarded, assert_same_bits, draw, laid_out, unchanged
from tests.support.learnable_problem import KINDS, learnable_problem
from tests.support.lerp_problem import GRADIENTS, lerp_problem
from tests.support.oracle import Sized
from tests.support.parity import Results, Wanted, assert_parity, assert_result

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


def _gemm_cases(op: str, shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Case]:
    axes = {"op": [op], "kind": IN_PRODUCTS, "dtype": DTYPES, "shape": list(shapes), "layout": LAYOUTS}
    chosen = cases(
        axes, {"bias": (True, False), "source": ("inputs", "preactivation", "output"), "accumulate": (False, True)}
    )
    far = {"op": [op], "kind": IN_PRODUCTS, "dtype": DTYPES, "shape": ["primes"], "layout": ["contiguous"]}
    chosen += [replace(c, scale="far", source="preactivation") for c in cases(far)]
    return [replace(c, source="inputs") if c.source == "output" and c.kind not in FROM_OUTPUT else c for c in chosen]


GEMM_CASES = _gemm_cases("matmul_bias_activation", GEMM_SHAPES) + _gemm_cases("linear", LINEAR_SHAPES)


def _given(problem: GemmProblem) -> dict[str, Tensor]:
    """The preactivation or output that the case hands to backward: PyTorch's, so that both start
    from the same."""
    case = problem.case
    layout = OUT_LAYOUTS[len(case.shape) % len(OUT_LAYOUTS)]
    if case.source == "preactivation":
        return {"preactivation": laid_out(problem.preactivation(), case.dtype, layout, case.memory)}
    if case.source == "output":
        return {"output": laid_out(case.row.eager(problem.preactivation()), case.dtype, layout, case.memory)}
    return {}


def _held_before(problem: GemmProblem) -> list[Tensor | None]:
    """What lies in the outputs that are accumulated into."""
    generator = torch.Generator().manual_seed(7)
    _, b, bias = problem.operands
    return [None if x is None else draw(x.shape, generator).to(x.dtype).to(x.device) for x in (None, b, bias)]


def _want(case: Case) -> Wanted:
    problem = gemm_problem(case)
    wanted = problem.wanted()
    wanted = Wanted(wanted.reference[1:], wanted.eager[1:])
    if case.source == "preactivation":
        wanted = problem.wanted_from(problem.preactivation())
    if not case.accumulate:
        return wanted
    held = _held_before(problem)
    reference = [
        x if h is None or x is None else x + Sized.of(h, case.dtype)
        for x, h in zip(wanted.reference, held, strict=True)
    ]
    eager = [x if h is None or x is None else h + x for x, h in zip(wanted.eager, held, strict=True)]
    return Wanted(reference, eager)


@parity(GEMM_CASES)
def test_gemm(case: Case) -> None:
    problem = gemm_problem(case)
    given = _given(problem)
    inputs = (problem.grad_output, *problem.operands, *given.values())

    def call(**options: object) -> tuple[Tensor | None, ...]:
        function: Backward = getattr(epigrad.backward, f"{case.op}_backward")
        return function(problem.grad_output, *problem.operands, case.kind, **given, **options)

    if not case.accumulate:
        needs = (True, True, case.bias)
        everything = call(needs=needs)
        assert_parity(problem.names, everything, case, _want)
        if case.bias:
            _check_needs_and_out(call, everything, inputs, case, _want, sums=True)
        return
    held = _held_before(problem)
    outs = [None if h is None else Guarded.holding(h, OUT_LAYOUTS[i]) for i, h in enumerate(held)]
    with unchanged(*inputs):
        gradients = call(out=tuple(None if out is None else out.tensor for out in outs), accumulate=True)
    assert_parity(problem.names, gradients, case, _want)
    for gradient, out in zip(gradients, outs, strict=True):
        if out is not None:
            assert gradient is out.tensor
            out.check()


def _gated_cases(op: str) -> list[Case]:
    axes = {"op": [op], "kind": GATED_IN_PRODUCTS, "dtype": DTYPES, "shape": list(GATED_SHAPES), "layout": LAYOUTS}
    return cases(axes, {"gate": GATES})


@parity(_gated_cases("gated_activation"))
def test_gated_activation(case: Case) -> None:
    problem = gated_problem(case)

    def call(needs: Sequence[bool] = (True,), out: Sequence[Tensor | None] = (None,)) -> tuple[Tensor | None]:
        if not needs[0]:
            return (None,)
        function = epigrad.backward.gated_activation_backward
        return (function(problem.grad_output, problem.input, case.kind, problem.dim, gate=case.gate, out=out[0]),)

    def want(case: Case) -> Wanted:
        return _without_output(gated_problem(case).wanted())

    gradients = call()
    assert_parity(("grad_input",), gradients, case, want)
    _check_needs_and_out(call, gradients, (problem.grad_output, problem.input), case, want, sums=False)


@parity(_gated_cases("gated_product"))
def test_gated_product(case: Case) -> None:
    problem = gated_problem(case)

    def call(**options: object) -> tuple[Tensor | None, ...]:
        function: Backward = epigrad.backward.gated_product_backward
        return function(problem.grad_output, *problem.halves, case.kind, **options)

    def want(case: Case) -> Wanted:
        return _without_output(gated_problem(case).wanted_of_halves())

    gradients = call()
    assert_parity(("grad_value", "grad_gate"), gradients, case, want)
    _check_needs_and_out(call, gradients, (problem.grad_output, problem.input), case, want, sums=False)


@parity(cases({"op": ["lerp"], "kind": ["lerp"], "dtype": DTYPES, "shape": list(LERP_SHAPES), "layout": LAYOUTS}))
def test_lerp(case: Case) -> None:
    problem = lerp_problem(case)
    backward: Backward = epigrad.backward.lerp_backward
    gradients = backward(problem.grad_output, problem.start, problem.end, problem.weight)

    def want(case: Case) -> Wanted:
        return _without_output(lerp_problem(case).wanted())

    assert_parity(GRADIENTS, gradients, case, want)

    def call(needs: Sequence[bool], **options: object) -> tuple[Tensor | None, ...]:
        return backward(problem.grad_output, problem.start, problem.end, problem.weight, needs=tuple(needs), **options)

    sums = any(x is not None and x.shape != problem.grad_output.shape for x in problem.tensors)
    _check_needs_and_out(call, gradients, (problem.grad_output, *problem.tensors), case, want, sums)


@parity(
    cases({"op": ["lerp"], "kind": ["lerp"], "dtype": DTYPES, "shape": ["full", "float", "columns"], "layout": LAYOUTS})
)
def test_lerp_without_start_and_end(case: Case) -> None:
    """The gradients of start and end need neither; with none to give a shape they have the
    output's."""
    problem = lerp_problem(case)
    backward: Backward = epigrad.backward.lerp_backward
    needs = (True, True, False)
    want = backward(problem.grad_output, problem.start, problem.end, problem.weight, needs=needs)
    for one, other in zip(backward(problem.grad_output, None, None, problem.weight, needs=needs), want, strict=True):
        assert_same_bits(one, other)


@parity(
    cases({"op": ["learnable"], "kind": KINDS, "dtype": DTYPES, "shape": list(LEARNABLE_SHAPES), "layout": LAYOUTS})
)
def test_learnable(case: Case) -> None:
    problem = learnable_problem(case)

    def call(**options: object) -> tuple[Tensor | None, ...]:
        function: Backward = getattr(epigrad.backward, f"{problem.op}_backward")
        return function(problem.grad_output, *problem.tensors, **problem.options, **options)

    def want(case: Case) -> Wanted:
        return _without_output(learnable_problem(case).wanted())

    gradients = call()
    assert_parity(problem.gradients, gradients, case, want)
    _check_needs_and_out(call, gradients, (problem.grad_output, *problem.tensors), case, want, sums=True)


def _without_output(wanted: Wanted) -> Wanted:
    assert wanted.autograd is not None
    return Wanted(wanted.reference[1:], wanted.eager[1:], wanted.autograd[1:])
