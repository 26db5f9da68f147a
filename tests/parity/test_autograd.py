"""Every operation with autograd: output and gradients by the tolerance rule, save modes, each
gradient alone, and the guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import epigrad
import torch
from epigrad import Gated
from epigrad._core import tables

from tests.support.cases import (
    BRIEFLY,
    EXPERTS_SHAPES,
    GATED_BRIEFLY,
    GATED_IN_PRODUCTS,
    GATED_SHAPES,
    GATES,
    GEMM_SHAPES,
    GROUPED_SHAPES,
    IN_PRODUCTS,
    LEARNABLE,
    LEARNABLE_SHAPES,
    LERP_SHAPES,
    LINEAR_SHAPES,
    MLP_SHAPES,
    SAVE_MODES,
    SCALES,
    Case,
    cases_of,
    parity,
)
from tests.support.compositions import halves
from tests.support.layouts import assert_same_bits, unchanged
from tests.support.parity import assert_parity
from tests.support.problem import Problem, problem_of

SCALED = list(SCALES)
BIAS = (True, False)
FEW_SHAPES = ("vector", "middle_dim", "past_block")


def _gemm(op: str, kinds: Sequence[object], shapes: Sequence[str]) -> list[Case]:
    return cases_of(op, kinds, shapes, scale=SCALED, save=SAVE_MODES, bias=BIAS)


def _mlp(op: str, kinds: Sequence[object], **cycled: Sequence[object]) -> list[Case]:
    return cases_of(op, kinds, MLP_SHAPES, save=SAVE_MODES, bias=BIAS, scale=SCALED, **cycled)


def _grouped(op: str, kinds: Sequence[object], shapes: Sequence[str], **cycled: Sequence[object]) -> list[Case]:
    wide = ("inputs", "float32")
    return cases_of(op, kinds, shapes, save=SAVE_MODES, bias=BIAS, scale=SCALED, source=wide, **cycled)


def _elementwise(op: str, kinds: Sequence[object], few: Sequence[object], **cycled: Sequence[object]) -> list[Case]:
    whole = cases_of(op, kinds, GATED_SHAPES, scale=SCALED, **cycled)
    return whole + cases_of(op, few, FEW_SHAPES, scale=SCALED, **cycled)


GEMM = _gemm("matmul_bias_activation", IN_PRODUCTS, list(GEMM_SHAPES))
LINEAR = _gemm("linear", IN_PRODUCTS, list(LINEAR_SHAPES)) + _gemm("linear", BRIEFLY, ("tokens", "past_column_tile"))
MLP = _mlp("mlp", IN_PRODUCTS)
GATED_MLP = _mlp("gated_mlp", GATED_IN_PRODUCTS, gate=GATES)
GATED_LINEAR = _mlp("gated_linear", GATED_IN_PRODUCTS)
GROUPED_KINDS = ("none", "relu", "gelu", "silu", "tanh", "relu2", "softplus")
EXPERTS_KINDS = ("swiglu", "geglu_tanh", "reglu", "bilinear", "situ_glu", Gated("swiglu_oai"))
GROUPED = _grouped("grouped_linear", GROUPED_KINDS, list(GROUPED_SHAPES))
GATED_EXPERTS = _grouped("experts", EXPERTS_KINDS, list(EXPERTS_SHAPES), gate=GATES)
PLAIN_EXPERTS = _grouped("experts", ("relu2", "silu", "gelu", "none"), list(EXPERTS_SHAPES))
PRODUCTS = [*GEMM, *LINEAR, *MLP, *GATED_MLP, *GATED_LINEAR, *GROUPED, *GATED_EXPERTS, *PLAIN_EXPERTS]
ELEMENTWISE = [
    *_elementwise("activation", IN_PRODUCTS, BRIEFLY),
    *_elementwise("gated_activation", GATED_IN_PRODUCTS, GATED_BRIEFLY, gate=GATES),
    *_elementwise("gated_product", GATED_IN_PRODUCTS, GATED_BRIEFLY, gate=GATES),
    *cases_of("lerp", ["lerp"], LERP_SHAPES, scale=SCALED),
    *cases_of("learnable", LEARNABLE, LEARNABLE_SHAPES, scale=SCALED),
]


@parity([*PRODUCTS, *ELEMENTWISE])
def test_output_and_gradients(case: Case) -> None:
    problem = problem_of(case)
    with unchanged(*problem.operands, problem.grad_output):
        out, gradients = problem.differentiated()
    assert out.is_contiguous(), "functional outputs are contiguous"
    assert_parity(problem.names, (out, *gradients), case, lambda case: problem_of(case).wanted())
    if not tables.OPS[problem.op].multiplies and len(gradients) > 1:
        problem.assert_each_alone(gradients)


LAYERS = [*GEMM[::4], *LINEAR[::4]]
BLOCKS = [*MLP[::5], *GATED_MLP[::5], *GATED_LINEAR[::5]]


@parity([*LAYERS, *BLOCKS, *GROUPED[::4], *GATED_EXPERTS[::4], *PLAIN_EXPERTS[::4]])
def test_each_gradient_alone_has_the_same_bits(case: Case) -> None:
    problem = problem_of(case)
    problem.assert_each_alone(problem.differentiated()[1])


@parity(LAYERS)
def test_recompute_gives_the_bits_of_a_saved_preactivation(case: Case) -> None:
    problem = problem_of(case)
    both = [problem.differentiated(save=save)[1] for save in ("recompute", "preactivation")]
    for name, one, other in zip(problem.gradients, *both, strict=True):
        assert_same_bits(one, other, name)


def _of_one_expert(case: Case) -> Problem:
    """The problem with all tokens, in all of their slots, at the last expert but one."""
    problem = problem_of(case)
    index = torch.full_like(problem.inputs.others["index"], EXPERTS_SHAPES[case.shape][3] - 2)
    return replace(problem, inputs=replace(problem.inputs, others={"index": index}))


@parity([case for case in (*GATED_EXPERTS, *PLAIN_EXPERTS) if case.shape in ("many", "past_tiles", "by_boxes")][::3])
def test_all_tokens_may_choose_one_of_several_experts(case: Case) -> None:
    problem = _of_one_expert(case)
    out, gradients = problem.differentiated()
    assert_parity(problem.names, (out, *gradients), case, lambda case: _of_one_expert(case).wanted())
    others = torch.arange(EXPERTS_SHAPES[case.shape][3]) != EXPERTS_SHAPES[case.shape][3] - 2
    assert all(bool((layer[others] == 0).all()) for layer in gradients[2:] if layer is not None)


@parity([case for case in ELEMENTWISE if case.op == "activation"])
def test_functions_without_a_graph_have_the_same_bits(case: Case) -> None:
    problem = problem_of(case)
    out, (gradient,) = problem.differentiated()
    assert_same_bits(problem.forward(), out)
    assert_same_bits(problem.backward()[0], gradient)


@parity([case for case in ELEMENTWISE if case.op == "gated_product"])
def test_halves_may_be_given_apart_or_together(case: Case) -> None:
    together = problem_of(replace(case, op="gated_activation"))
    (whole,) = together.operands
    assert whole is not None
    value, gate = halves(whole, together.options["dim"], case.gate)
    apart = epigrad.gated_product(value, gate, case.kind)
    assert_same_bits(apart, together.forward(), "halves given apart and together")
