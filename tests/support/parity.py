"""One comparison: results of epigrad with the reference and with PyTorch eager, by the tolerance
rule."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tests.support.cases import Case
from tests.support.oracle import Sized, assert_reference_is_autograd
from tests.support.tolerance import explain_breach, worst_relative_error

REDRAWS = 24

Results = Sequence[Tensor | None]


@dataclass(frozen=True)
class Wanted:
    """What a case's results are compared with, in the operation's order; None where there is no
    result."""

    reference: Sequence[Sized | None]
    eager: Results
    autograd: Results | None = None
    """The same by PyTorch in float64, which the reference's formulas are checked against."""


def assert_parity(names: Sequence[str], got: Results, case: Case, want: Callable[[Case], Wanted]) -> None:
    """Fails unless every result keeps the tolerance rule, and is absent where none can exist."""
    want = functools.cache(want)
    wanted = want(case)
    assert len(names) == len(got) == len(wanted.reference) == len(wanted.eager)
    for index, (name, ours) in enumerate(zip(names, got, strict=True)):
        if wanted.reference[index] is None:
            assert ours is None, f"{name}: a result where none can exist"
        else:
            assert_result(name, ours, index, case, want)


def assert_result(name: str, ours: Tensor | None, index: int, case: Case, want: Callable[[Case], Wanted]) -> None:
    """Fails unless the result that has this place in what is wanted keeps the tolerance rule.

    Few elements, or operands that repeat a slice, do not show PyTorch's worst error: it is the
    worst over the same problem with other random values as well, in the case's layout and
    contiguous: strides decide which of its BLAS's kernels PyTorch takes, and at K = 129 in float64
    their errors differ by 2.7 times. (A problem is drawn only while those before it do not settle
    it, which comes to the same: the float64 reference of a single one may take seconds.)
    """
    wanted = want(case)
    reference, eager = wanted.reference[index], wanted.eager[index]
    assert ours is not None and reference is not None and eager is not None, f"{name}: missing"
    assert ours.shape == eager.shape, f"{name}: shape {tuple(ours.shape)}, PyTorch gives {tuple(eager.shape)}"
    assert ours.dtype == eager.dtype, f"{name}: dtype {ours.dtype}, PyTorch gives {eager.dtype}"
    assert ours.device == eager.device, f"{name}: on {ours.device}, PyTorch's is on {eager.device}"
    if wanted.autograd is not None:
        assert_reference_is_autograd(reference, wanted.autograd[index], name)
    error = worst_relative_error(eager, reference)
    breach = explain_breach(ours, reference, error)
    for draw, layout in itertools.product(range(1, REDRAWS + 1), dict.fromkeys((case.layout, "contiguous"))):
        if not breach:
            break
        error = max(error, _eager_error(want(replace(case, draw=draw, layout=layout)), index))
        breach = explain_breach(ours, reference, error)
    assert not breach, f"{name}: {breach}"


def _eager_error(wanted: Wanted, index: int) -> float:
    reference, eager = wanted.reference[index], wanted.eager[index]
    assert reference is not None and eager is not None
    return worst_relative_error(eager, reference)
