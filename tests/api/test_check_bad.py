"""`epigrad check --mode bad`: each defect of a call is met, and one that is accepted is found."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from epigrad import backward, errors, forward
from epigrad._check import defects, search
from epigrad._check.spoilable import Call
from torch import Tensor

from tests.api.checking import found
from tests.support.tiers import thorough

pytestmark = pytest.mark.usefixtures("_one_thread")


def test_a_defect_that_is_not_refused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = forward.activation

    def lenient(input: Any, activation: Any, *, out: Tensor) -> Any:
        try:
            return own(input, activation, out=out)
        except errors.InvalidProblemError:
            return out

    monkeypatch.setattr(forward, "activation", lenient)
    assert "no error, want InvalidProblemError" in found("bad", "activation")


def test_an_error_of_another_class_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = forward.prelu

    def plain(**arguments: Any) -> Any:
        try:
            return own(**arguments)
        except errors.DTypeError as error:
            raise TypeError(str(error)) from None

    monkeypatch.setattr(forward, "prelu", plain)
    assert "TypeError, want DTypeError" in found("bad", "prelu")


@thorough
def test_each_problem_has_a_defect_and_each_defect_a_problem() -> None:
    """Of every sort there are problems, in every way that can have it, and none of them passes
    because nothing was spoiled."""
    met = set()
    for problem in itertools.islice(search.problems("bad", "cpu", 4), 4000):
        call = Call.of(problem, "cpu", "cpu")
        met.add((defects.spoiled(call).name, call.way))
    assert met == {(defect.name, way) for defect in defects.DEFECTS for way in defect.ways}


@pytest.mark.parametrize("entry", ["autograd", "stateless", "c", "plan"])
def test_a_call_that_is_not_spoiled_runs(entry: str) -> None:
    """So an error of mode bad comes of what was spoiled."""
    some = [each for each in itertools.islice(search.problems("bad", "cpu", 5), 400) if entry in each.entries]
    for problem in some[:120]:
        Call.of(dataclasses.replace(problem, entry=entry, grads="fresh"), "cpu", "cpu").run()


def test_an_output_of_a_failed_call_that_is_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = backward.linear_backward

    def writing(**arguments: Any) -> Any:
        for out in arguments["out"]:
            if out is not None:
                out.zero_()
        return own(**arguments)

    monkeypatch.setattr(backward, "linear_backward", writing)
    assert "was written to" in found("bad", "linear")
