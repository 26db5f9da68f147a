"""The tests' own instruments: the two references agree, and the tolerance rule catches errors that
it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from epigrad._core import tables

from tests.support import oracle
from tests.support.cases import (
    ACTIVATIONS,
    DTYPES,
    GATED_KINDS,
    GATED_NAMES,
    GATED_OTHERS,
    GATED_SHAPES,
    LAYOUTS,
    OTHERS,
    Case,
    cases,
    pairs,
)
from tests.support.layouts import Guarded, laid_out, strides_for, unchanged
from tests.support.parity import assert_parity
from tests.support.problem import problem_of
from tests.support.tolerance import explain_breach, worst_relative_error

HALVES = {f"{name} {part}": getattr(row, part) for name, row in oracle.GATED.items() for part in ("psi", "phi")}


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("name", [*oracle.ACTIVATIONS, *HALVES])
def test_float64_formulas_agree_with_mpmath(name: str, order: int) -> None:
    """In the tails as well, where the derivative that PyTorch's own operator has would be wrong. A
    curvature tells how far a slope may be off, so it has to be right beside the slope."""
    activation = HALVES.get(name, name)
    points = torch.linspace(-30, 30, 61, dtype=torch.float64) + 0.01
    got = oracle.derivative(activation, order, points).numpy()
    exact = np.array([oracle.exact_derivative(activation, order, np.longdouble(x)) for x in points.numpy()])
    beside = (1, 2, 1)[order]
    slope = np.array([oracle.exact_derivative(activation, beside, np.longdouble(x)) for x in points.numpy()])
    size = np.abs(exact) + np.abs(slope * points.numpy())
    assert (np.abs(got - exact) <= 1e-13 * size + np.finfo(np.float64).tiny).all()


def test_exact_derivatives_keep_to_one_side_of_a_kink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of functions that no table has: one is flat at both ends, the slope of the other is as small
    as its argument."""
    nothing = oracle.ACTIVATIONS["none"]
    clip = replace(nothing, exact=lambda x: min(max(x, 0), 6), kinks=(0.0, 6.0), kinks_from_right=(6.0,))
    square = replace(nothing, exact=lambda x: max(x, 0) ** 2, kinks=(0.0,))
    monkeypatch.setitem(oracle.ACTIVATIONS, "clip", clip)
    monkeypatch.setitem(oracle.ACTIVATIONS, "square", square)
    below, above = np.nextafter(6.0, 0.0), np.nextafter(6.0, 7.0)
    for x, slope in ((-5e-324, 0), (0.0, 0), (5e-324, 1), (3.0, 1), (below, 1), (6.0, 0), (above, 0), (1e300, 0)):
        assert abs(oracle.exact_derivative("clip", 1, np.longdouble(x)) - slope) < 1e-18, x
    for x in (-1e300, -5e-324, 0.0, 5e-324, 1e-40, 0.5, 40.0, 1e300):
        slope = oracle.exact_derivative("square", 1, np.longdouble(x))
        assert abs(slope - 2 * max(np.longdouble(x), 0)) <= 1e-18 * slope, x
        assert abs(oracle.exact_derivative("square", 2, np.longdouble(x)) - 2 * (x > 0)) < 1e-18, x


def test_every_activation_and_kind_has_a_row() -> None:
    defaults = {name for name, row in tables.ACTIVATIONS.items() if row.default_is}
    assert {*map(str, ACTIVATIONS), *defaults} == set(oracle.ACTIVATIONS)
    assert set(map(str, GATED_KINDS)) == set(oracle.GATED)
    for table, others in ((tables.ACTIVATIONS, OTHERS), (tables.GATED_KINDS, GATED_OTHERS)):
        parameterised = {name for name, row in table.items() if row.parameters}
        assert {kind.name for kind in others} == parameterised, "other parameters than the defaults"


def test_pairs_cover_every_pair() -> None:
    axes = {"x": [1, 2, 3], "y": "abcd", "z": [True, False], "w": range(5)}
    rows = pairs(axes)
    for first, second in (("x", "y"), ("x", "z"), ("x", "w"), ("y", "z"), ("y", "w"), ("z", "w")):
        assert {(row[first], row[second]) for row in rows} == {(p, q) for p in axes[first] for q in axes[second]}
    assert len(rows) < 40


AXES = {"kind": GATED_NAMES, "dtype": DTYPES, "shape": ["rows"], "layout": ["contiguous"]}
CASES = [replace(case, draw=1) for case in cases({"op": ["gated_activation"], **AXES})]
"""Of values at which PyTorch's own error is small, so that 16 ULP are beyond the tolerance."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_catches_one_element_off_by_a_few_ulp(case: Case) -> None:
    """PyTorch's own result passes; with its largest element moved by 16 ULP, or any one sign
    turned, it does not."""
    wanted = problem_of(case).wanted()
    for reference, eager in zip(wanted.reference, wanted.eager, strict=True):
        assert reference is not None
        assert eager is not None
        error = worst_relative_error(eager, reference)
        assert not explain_breach(eager, reference, error)
        for change in (1 + 16 * torch.finfo(case.dtype).eps, -1.0):
            moved = eager.clone()
            moved.view(-1)[np.argmax(np.abs(reference.value))] *= change
            assert explain_breach(moved, reference, error)


@pytest.mark.parametrize("mistake", ["summed_over_batch", "one_term_missing", "bias_of_first_batch"])
def test_parity_catches_a_wrong_gradient(mistake: str) -> None:
    case = Case("matmul_bias_activation", "gelu", torch.float32, "batched", "contiguous")
    _, grad_a, grad_b, grad_bias = (x.clone() for x in problem_of(case).wanted().eager)
    if mistake == "summed_over_batch":
        grad_b[:] = grad_b.sum(0)
    elif mistake == "one_term_missing":
        b = problem_of(case).inputs.given["b"]
        assert b is not None
        grad_a[0, 0, 0] -= b[0, 0, 0] * 0.01
    else:
        grad_bias /= 3
    with pytest.raises(AssertionError, match="break the rule"):
        assert_parity(
            ("out", "grad_a", "grad_b", "grad_bias"),
            (problem_of(case).wanted().eager[0], grad_a, grad_b, grad_bias),
            case,
            lambda case: problem_of(case).wanted(),
        )


def test_guards_see_what_was_written() -> None:
    out = Guarded.empty((3, 4), torch.float32, "offset")
    out.tensor.zero_()
    out.check()
    out.buffer[0] = 0.0
    with pytest.raises(AssertionError, match="outside"):
        out.check()
    held = laid_out(torch.ones(3, 4), torch.float32, "step")
    with pytest.raises(AssertionError, match="written to"), unchanged(held):
        held[2, 3] = 0.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_hold_the_values(layout: str) -> None:
    """What a layout holds is what was put in (its first slice, where it repeats one), and around it
    lies NaN."""
    for shape, _ in GATED_SHAPES.values():
        values = torch.randn(shape, dtype=torch.float64)
        tensor = laid_out(values, torch.float64, layout)
        assert list(tensor.stride()) == strides_for(shape, layout)
        if "expanded" not in layout:
            assert torch.equal(tensor, values)
        assert not tensor.isnan().any()
