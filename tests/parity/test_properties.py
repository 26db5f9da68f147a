"""Parity over problems that hypothesis makes up: shapes, broadcasting, layouts, kinds, dtypes, save
modes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import epigrad
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support.cases import ACTIVATIONS, DTYPES, GATED_KINDS, GATES, SAVE_MODES, SCALES, Case
from tests.support.compositions import leaves
from tests.support.devices import on_devices
from tests.support.gated_problem import gated_problem
from tests.support.gemm_problem import gemm_problem
from tests.support.layouts import LAYOUTS, assert_same_bits, unchanged
from tests.support.learnable_problem import KINDS, learnable_problem
from tests.support.lerp_problem import GRADIENTS, lerp_problem
from tests.support.parity import assert_parity

SIZES = st.integers(0, 6)
BATCHES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def _broadcasting_part(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one: leading dimensions dropped, others of size 1."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) else size for size in kept)


def _case(draw: st.DrawFn, op: str, kind: str, shape: Any, **choices: Any) -> Case:
    return Case(
        op,
        kind,
        draw(st.sampled_from(DTYPES)),
        repr(shape),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(list(SCALES))),
        **choices,
    )


@st.composite
def matmul_cases(draw: st.DrawFn) -> Case:
    batch, (m, k, n) = draw(BATCHES), (draw(SIZES) for _ in range(3))
    a = (k,) if draw(st.integers(0, 5)) == 0 else (*_broadcasting_part(draw, batch), m, k)
    b = (k,) if draw(st.integers(0, 5)) == 0 else (*_broadcasting_part(draw, batch), k, n)
    choices = {"save": draw(st.sampled_from(SAVE_MODES)), "bias": draw(st.booleans())}
    return _case(draw, "matmul_bias_activation", draw(st.sampled_from(ACTIVATIONS)), (a, b), **choices)


@st.composite
def linear_cases(draw: st.DrawFn) -> Case:
    k, n = draw(SIZES), draw(SIZES)
    shape = ((*draw(BATCHES), k), (k, n))
    choices = {"save": draw(st.sampled_from(SAVE_MODES)), "bias": draw(st.booleans())}
    return _case(draw, "linear", draw(st.sampled_from(ACTIVATIONS)), shape, **choices)


@st.composite
def gated_cases(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    shape[dim] *= 2
    gate = draw(st.sampled_from(GATES))
    return _case(draw, "gated", draw(st.sampled_from(GATED_KINDS)), (tuple(shape), dim), gate=gate)


@st.composite
def lerp_cases(draw: st.DrawFn) -> Case:
    whole = tuple(draw(st.lists(st.integers(0, 4), max_size=8)))
    start, end = (_broadcasting_part(draw, whole) for _ in range(2))
    weights = st.one_of(st.floats(-2, 2, allow_subnormal=False), st.just(None))
    weight = draw(weights)
    return _case(draw, "lerp", "lerp", (start, end, _broadcasting_part(draw, whole) if weight is None else weight))


@st.composite
def learnable_cases(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=8)))
    channels = shape[1:2] if len(shape) > 1 and draw(st.booleans()) else (1,) * draw(st.integers(0, 1))
    return _case(draw, "learnable", draw(st.sampled_from(KINDS)), (shape, channels))


def _check_gemm(case: Case) -> None:
    problem = gemm_problem(case)
    operands = leaves(problem.operands)
    with unchanged(*problem.operands, problem.grad_output):
        out = getattr(epigrad, case.op)(*operands, case.kind, save=case.save)
        asking = [x for x in operands if x is not None]
        given = iter(torch.autograd.grad(out, asking, problem.grad_output))
    gradients = [None if x is None else next(given) for x in operands]
    assert_parity(("out", *problem.names), (out.detach(), *gradients), case, lambda case: gemm_problem(case).wanted())


@on_devices
@given(case=matmul_cases())
def test_matmul_bias_activation(case: Case, device: str) -> None:
    _check_gemm(replace(case, device=device))


@on_devices
@given(case=linear_cases())
def test_linear(case: Case, device: str) -> None:
    _check_gemm(replace(case, device=device))


@on_devices
@given(case=gated_cases())
def test_gated(case: Case, device: str) -> None:
    case = replace(case, device=device)
    problem = gated_problem(case)
    (input,) = leaves([problem.input])
    with unchanged(problem.input, problem.grad_output):
        out = epigrad.gated_activation(input, case.kind, problem.dim, gate=case.gate)
        gradients = torch.autograd.grad(out, [input], problem.grad_output)
    assert_parity(("out", "grad_input"), (out.detach(), *gradients), case, lambda case: gated_problem(case).wanted())
    assert_same_bits(epigrad.gated_product(*problem.halves, case.kind), out, "halves given apart")


@on_devices
@given(case=lerp_cases())
def test_lerp(case: Case, device: str) -> None:
    case = replace(case, device=device)
    problem = lerp_problem(case)
    tensors: list[Tensor | None] = leaves(problem.tensors)
    with unchanged(*problem.tensors, problem.grad_output):
        out = epigrad.lerp(*problem.arguments(tensors))
        given = iter(torch.autograd.grad(out, [x for x in tensors if x is not None], problem.grad_output))
    gradients = [None if x is None else next(given) for x in tensors]
    assert_parity(("out", *GRADIENTS), (out.detach(), *gradients), case, lambda case: lerp_problem(case).wanted())


@on_devices
@given(case=learnable_cases())
def test_learnable(case: Case, device: str) -> None:
    case = replace(case, device=device)
    problem = learnable_problem(case)
    tensors = leaves(problem.tensors)
    with unchanged(*problem.tensors, problem.grad_output):
        out = getattr(epigrad, problem.op)(*tensors, **problem.options)
        gradients = torch.autograd.grad(out, [x for x in tensors if x is not None], problem.grad_output)
    names = ("out", *problem.gradients)
    assert_parity(names, (out.detach(), *gradients), case, lambda case: learnable_problem(case).wanted())
