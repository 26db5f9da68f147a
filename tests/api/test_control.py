"""The control plane that gopy binds, and the fast path's checks: a Python exception, never a dead
process."""

from __future__ import annotations

import gc
import json
import math
import random
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import epigrad
import pytest
import torch
from epigrad import errors, plan
from epigrad._core import loader
from epigrad._core.call import Call

from tests.support.processes import start
from tests.support.tiers import thorough

CORE = loader.core()
CONTROL = CORE.control
GEMM = {
    "class": "GemmEpilogueBackward",
    "dtype": "float32",
    "device": "cpu",
    "m": 2,
    "n": 3,
    "k": 4,
    "activation": "gelu",
}
GATED = {
    "class": "GatedActivation",
    "dtype": "float32",
    "device": "cpu",
    "input_shape": [3, 4],
    "split_dim": -1,
    "kind": "glu",
    "gate": "second",
}
LERP = {"class": "LerpBackward", "dtype": "float32", "device": "cpu", "shape": [3, 4], "parameters": ["0.5"]}


def handles() -> int:
    """How many Go objects Python holds."""
    count: int = sys.modules["epigrad._native"]._control.NumHandles()
    return count


def select(spec: dict[str, Any]) -> loader.ControlPlan:
    return loader.control_call(CONTROL.SelectPlan, json.dumps(spec))


@pytest.mark.parametrize("spec", [GEMM, GATED, LERP], ids=lambda s: s["class"])
def test_a_plan_describes_itself(spec: dict[str, Any]) -> None:
    made = select(spec)
    facts = json.loads(made.Describe())
    assert set(facts) == {"sku", "precision_guarantee", "workspace_size", "inputs", "outputs"}
    assert facts["sku"]["dtype"] == "float32" and made.Handle() > 0
    made.Close()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", errors.InvalidProblemError),
        ("{", errors.InvalidProblemError),
        ("[]", errors.InvalidProblemError),
        ("null", errors.EpigradError),
        ("{}", errors.EpigradError),
        (json.dumps({**GEMM, "colour": 1}), errors.InvalidProblemError),
        (json.dumps({**GEMM, "class": "Softmax"}), errors.InvalidProblemError),
        (json.dumps({**GEMM, "m": "two"}), errors.InvalidProblemError),
        (json.dumps({**GEMM, "m": 2**80}), errors.InvalidProblemError),
        (json.dumps({**GEMM, "m": 1.5}), errors.InvalidProblemError),
        (json.dumps({**GEMM, "m": -1}), errors.InvalidProblemError),
        (json.dumps({**GEMM, "activation": "swash"}), errors.InvalidProblemError),
        (json.dumps({**GEMM, "dtype": "int8"}), errors.DTypeError),
        (json.dumps({**GEMM, "batch": [2**40, 2**40]}), errors.InvalidProblemError),
        (json.dumps({**GATED, "kind": "maxout"}), errors.InvalidProblemError),
        (json.dumps({**GATED, "gate": "third"}), errors.InvalidProblemError),
        (json.dumps({**GATED, "split_dim": 2**40}), errors.InvalidProblemError),
        (json.dumps({**GATED, "split_dim": -(2**63)}), errors.InvalidProblemError),
        (json.dumps({**GATED, "input_shape": [2] * 1000}), errors.EpigradError),
        (json.dumps({**LERP, "shape": [-1]}), errors.InvalidProblemError),
        ("[" * 100_000, errors.InvalidProblemError),
        (json.dumps({**LERP, "device": "moon"}), errors.EpigradError),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else "",
)
def test_errors_have_their_class(text: str, error: type[Exception]) -> None:
    before = handles()
    with pytest.raises(error) as caught:
        loader.control_call(CONTROL.SelectPlan, text)
    assert str(caught.value) and type(caught.value) is not errors.EpigradError, str(caught.value)
    assert handles() == before


@pytest.mark.parametrize("argument", [3, None, b"{}", ["{}"], "\0", "\ud800"], ids=repr)
def test_arguments_of_another_type_are_python_errors(argument: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        CONTROL.SelectPlan(argument)
    with pytest.raises(TypeError):
        CONTROL.SelectPlan()  # type: ignore[call-arg]


@pytest.mark.parametrize("handle", [12345, 0x7FFFFFFF, -1, 2**62])
def test_bad_handles_are_harmless(handle: int) -> None:
    stale = CONTROL.Plan(handle=handle)  # type: ignore[attr-defined]
    assert not stale.Close() and stale.Handle() == 0 and stale.Describe() == ""
    for call in (
        lambda: CORE.plan_run(handle, (), (), None, 0, 1, False),
        lambda: CORE.plan_check(handle, (), (), None, False),
    ):
        with pytest.raises(errors.InvalidProblemError, match=str(handle)):
            call()


def test_a_closed_plan_is_refused_and_may_be_closed_again() -> None:
    made = select(LERP)
    handle = made.Handle()
    tensors = ((torch.ones(3, 4), None, None, None), (torch.ones(3, 4), None, None))
    CORE.plan_run(handle, *tensors, None, 0, 1, False)
    made.Close()
    made.Close()
    assert made.Handle() == 0
    with pytest.raises(errors.InvalidProblemError, match="not an open plan"):
        CORE.plan_run(handle, *tensors, None, 0, 1, False)
    assert select(LERP).Handle() != handle, "a handle was used twice"


def test_plans_are_given_back_with_their_python_objects() -> None:
    gc.collect()
    before = handles()
    made = [plan.Lerp.select(shape=(n,), weight=0.5, dtype=torch.float32) for n in range(1, 101)]
    raw = [one._handle for one in made]
    assert handles() >= before + 100
    watched = weakref.ref(made[0])
    made.clear()
    gc.collect()
    assert watched() is None and handles() == before
    for handle in raw:
        with pytest.raises(errors.InvalidProblemError, match="not an open plan"):
            CORE.plan_check(handle, (), (), None, False)


def test_ten_thousand_plans_leave_nothing_behind() -> None:
    gc.collect()
    before = handles()
    for _ in range(10_000):
        plan.Lerp.select(shape=(3, 4), weight=0.5, dtype=torch.float32)
    gc.collect()
    assert handles() == before


def test_the_plan_cache_can_be_asked_and_cleared() -> None:
    CONTROL.ClearPlanCache()
    assert CONTROL.PlanCacheSize() == 0
    epigrad.lerp(torch.zeros(3), torch.ones(3), 0.5)
    size = CONTROL.PlanCacheSize()
    for _ in range(10):
        epigrad.lerp(torch.zeros(3), torch.ones(3), 0.5)
    assert CONTROL.PlanCacheSize() == size
    assert json.loads(CONTROL.DoctorFacts())["plan_cache"]["size"] == size


def test_the_plan_cache_is_bounded() -> None:
    ends, outs = torch.zeros(2, 20_000), torch.empty(2, 20_000)
    CONTROL.ClearPlanCache()
    for size in range(1, 5_001):
        start = ends[:, :size]
        CORE.launch(Call("lerp", None, (0.5,)), (start, start), (True,), (outs[:, :size],))
    assert 0 < CONTROL.PlanCacheSize() < 5_000
    CONTROL.ClearPlanCache()


def test_facts_are_json() -> None:
    for text in (CONTROL.Backends(), CONTROL.DoctorFacts()):
        assert json.loads(text)


def test_random_specs_are_refused_or_planned() -> None:
    rng = random.Random(5)
    values: list[Any] = [
        None, True, 0, 1, -1, 3, 2**31, 2**62, 2**63, -(2**63), 1e300, 0.5, "", "cpu", "float64", "relu", "first",
        [], [0], [1, 2], [2**62, 4], [-1], [None], {"a": 1}, "GatedActivation", "GemmEpilogue", "Lerp",
    ]  # fmt: skip
    planned, defects = 0, []
    for _ in range(3000):
        spec = dict(rng.choice([GEMM, GATED, LERP]))
        for _ in range(rng.randint(1, 3)):
            name = rng.choice([*spec, "batch", "b_batched", "lda", "ldb", "ld_grad"])
            spec[name] = rng.choice(values)
        try:
            select(spec).Close()
            planned += 1
        except errors.EpigradError as refused:
            if type(refused) is errors.EpigradError:
                defects.append((spec, refused))
    assert not defects
    assert planned > 50


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=thorough)])
def test_random_arguments_of_the_fast_path_never_end_the_process(seed: str) -> None:
    done = start(str(Path(__file__).with_name("random_calls.py")), seed)
    assert done.returncode == 0 and done.stdout.strip() == "alive", f"exit code {done.returncode}\n{done.stderr}"


def test_the_fast_path_counts_its_arguments() -> None:
    for function in (CORE.infer, CORE.launch, CORE.recorded, CORE.plan_run, CORE.plan_check):
        with pytest.raises(TypeError):
            function()
    for function in (CORE.infer, CORE.launch, CORE.plan_run, CORE.plan_check):
        with pytest.raises(TypeError):
            function(1)


def test_a_weight_that_is_not_finite_is_passed_through() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = epigrad.lerp(torch.zeros(1), torch.ones(1), math.inf)
    assert out.item() == math.inf
    made = plan.Lerp.select(shape=(1,), weight=0.25, dtype=torch.float32)
    assert made._handle == made._control_plan.Handle()
