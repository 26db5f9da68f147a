"""Parity over problems that hypothesis makes up: shapes, broadcasting, layouts, kinds, dtypes, save
modes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import epigrad
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import ACTIVATIONS, DTYPES, GATED_KINDS, GATES, LEARNABLE, SAVE_MODES, SCALES, Case
from tests.support.compositions import halves
from tests.support.devices import on_devices
from tests.support.layouts import LAYOUTS, assert_same_bits, unchanged
from tests.support.parity import assert_parity
from tests.support.problem import Problem, problem_of

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
    return _case(draw, "gated_activation", draw(st.sampled_from(GATED_KINDS)), (tuple(shape), dim), gate=gate)


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
    return _case(draw, "learnable", draw(st.sampled_from(LEARNABLE)), (shape, channels))


def _check(case: Case) -> Problem:
    problem = problem_of(case)
    with unchanged(*problem.operands, problem.grad_output):
        out, gradients = problem.differentiated()
    assert_parity(problem.names, (out, *gradients), case, lambda case: problem_of(case).wanted())
    return problem


@on_devices
@given(case=matmul_cases())
def test_matmul_bias_activation(case: Case, device: str) -> None:
    _check(replace(case, device=device))


@on_devices
@given(case=linear_cases())
def test_linear(case: Case, device: str) -> None:
    _check(replace(case, device=device))


@on_devices
@given(case=gated_cases())
def test_gated(case: Case, device: str) -> None:
    problem = _check(replace(case, device=device))
    (whole,) = problem.operands
    assert whole is not None
    apart = epigrad.gated_product(*halves(whole, problem.options["dim"], case.gate), case.kind)
    assert_same_bits(apart, problem.forward(), "halves given apart")


@on_devices
@given(case=lerp_cases())
def test_lerp(case: Case, device: str) -> None:
    _check(replace(case, device=device))


@on_devices
@given(case=learnable_cases())
def test_learnable(case: Case, device: str) -> None:
    _check(replace(case, device=device))
