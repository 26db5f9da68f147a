"""The control plane that gopy binds, and the fast path's checks: a Python exception, never a dead
process."""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import math
import pickle
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
LIBRARY = ctypes.CDLL(sys.modules["epigrad._native"].__file__)
GEMM = {"m": 2, "n": 3, "k": 4, "activation": "gelu"}
GATED = {"input_shape": [3, 4], "split_dim": -1, "kind": "glu", "gate": "second"}
LERP = {"shape": [3, 4], "weight": 0.5}
CLASSES = {plan.GemmEpilogueBackward: GEMM, plan.GatedActivation: GATED, plan.LerpBackward: LERP}


def select(cls: Any, **changes: Any) -> Any:
    return cls.select(**{**CLASSES[cls], "dtype": torch.float32, **changes})


def handle_of(made: Any) -> int:
    """The number by which the core knows a plan."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    handle: int = pointer(made._plan, b"epg_plan")
    return handle


def is_open(handle: int) -> bool:
    code: int = LIBRARY.epg_plan_workspace(ctypes.c_int64(handle), ctypes.byref(ctypes.c_uint64()))
    return code == 0


@pytest.mark.parametrize(
    ("cls", "changes", "error"),
    [
        (plan.GemmEpilogueBackward, {"m": "two"}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"m": 2**80}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"m": 1.5}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"m": -1}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"m": 2**63 - 1}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"activation": "swash"}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"dtype": torch.int8}, errors.DTypeError),
        (plan.GemmEpilogueBackward, {"dtype": "float32"}, errors.DTypeError),
        (plan.GemmEpilogueBackward, {"batch": [2**40, 2**40]}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"batch": [2**32, 2**32], "lda": 5}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"lda": 3}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"lda": 2**63 - 1}, errors.InvalidProblemError),
        (plan.GemmEpilogueBackward, {"ld_grad": 2}, errors.InvalidProblemError),
        (plan.GatedActivation, {"kind": "maxout"}, errors.InvalidProblemError),
        (plan.GatedActivation, {"gate": "third"}, errors.InvalidProblemError),
        (plan.GatedActivation, {"split_dim": 2}, errors.InvalidProblemError),
        (plan.GatedActivation, {"split_dim": 2**40}, errors.InvalidProblemError),
        (plan.GatedActivation, {"split_dim": -(2**63)}, errors.InvalidProblemError),
        (plan.GatedActivation, {"input_shape": [3]}, errors.InvalidProblemError),
        (plan.GatedActivation, {"input_shape": [2] * 1000}, errors.InvalidProblemError),
        (plan.LerpBackward, {"shape": [-1]}, errors.InvalidProblemError),
        (plan.LerpBackward, {"weight": "x"}, errors.DTypeError),
        (plan.LerpBackward, {"weight": torch.ones(())}, errors.DTypeError),
        *((plan.LerpBackward, {"device": name}, errors.InvalidProblemError) for name in ("moon", "cuda:x", "cuda:-1")),
        (plan.LerpBackward, {"device": "cuda:99999999999999999999"}, errors.InvalidProblemError),
    ],
    ids=str,
)
def test_errors_have_their_class(cls: Any, changes: dict[str, Any], error: type[Exception]) -> None:
    before = handle_of(select(plan.LerpBackward))
    with pytest.raises(error) as caught:
        select(cls, **changes)
    # sizes beyond 64 bits are those of a tensor
    blamed = (*changes, "grad_output", "a", "b")
    assert str(caught.value).startswith(tuple(f"{cls.__name__}: {name}: " for name in blamed))
    assert handle_of(select(plan.LerpBackward)) == before + 1, "a plan was made that nobody holds"


@pytest.mark.parametrize("accepted", [
    (plan.GemmEpilogueBackward, {"batch": [2, 3], "b_batched": True}),
    (plan.GemmEpilogueBackward, {"lda": 5, "ldb": 9, "ld_grad": 6}),
    (plan.GemmEpilogueBackward, {"batch": [7], "lda": 8}),
    (plan.GemmEpilogueBackward, {"m": 0}),
    (plan.GemmEpilogueBackward, {"k": 0, "lda": 1}),
    (plan.GatedActivation, {"gate": "first", "split_dim": 0, "input_shape": [4, 3]}),
    (plan.LerpBackward, {"shape": [], "weight": None}),
    (plan.LerpBackward, {"dtype": torch.bfloat16}),
], ids=str)  # fmt: skip
def test_problems_at_the_edges_are_planned(accepted: tuple[Any, dict[str, Any]]) -> None:
    cls, changes = accepted
    assert is_open(handle_of(select(cls, **changes)))


@pytest.mark.parametrize("argument", [3, None, b"{}", ["{}"], "\0", "\ud800"], ids=repr)
def test_arguments_of_another_type_are_python_errors(argument: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        CONTROL.BeginTuning(argument)
    with pytest.raises(TypeError):
        CONTROL.BeginTuning()  # type: ignore[call-arg]


@pytest.mark.parametrize("other", [12345, None, "plan", torch.Tensor.__dlpack_c_exchange_api__], ids=type)
def test_what_is_no_plan_is_refused(other: Any) -> None:
    for call in (
        lambda: CORE.plan_run(other, (), (), None, 0, 1, False),
        lambda: CORE.plan_check(other, (), (), None, False),
        lambda: CORE.plan_facts(other),
    ):
        with pytest.raises(ValueError, match="PyCapsule"):
            call()


def test_a_destroyed_plan_is_refused() -> None:
    made = select(plan.LerpBackward)
    handle = handle_of(made)
    tensors = {"grad_output": torch.ones(3, 4), "grad_start": torch.ones(3, 4)}
    made.run(**tensors)
    assert LIBRARY.epg_plan_destroy(ctypes.c_int64(handle)) == 0
    for call in (made.run, made.can_implement):
        with pytest.raises(errors.InvalidProblemError, match=f"handle {handle} is not an open plan"):
            call(**tensors)
    with pytest.raises(errors.InvalidProblemError, match="not an open plan"):
        CORE.plan_facts(made._plan)
    assert handle_of(select(plan.LerpBackward)) != handle, "a handle was used twice"


def test_plans_are_given_back_with_their_python_objects() -> None:
    made = [plan.Lerp.select(shape=(n,), weight=0.5, dtype=torch.float32) for n in range(1, 101)]
    handles = [handle_of(one) for one in made]
    assert all(map(is_open, handles)) and len(set(handles)) == 100
    watched = weakref.ref(made[0])
    made.clear()
    gc.collect()
    assert watched() is None and not any(map(is_open, handles))


def test_a_plan_is_pickled_by_its_problem() -> None:
    for cls in CLASSES:
        made = select(cls)
        again = pickle.loads(pickle.dumps(made))
        assert type(again) is cls and again.sku == made.sku and handle_of(again) != handle_of(made)


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


def test_random_problems_are_refused_or_planned() -> None:
    rng = random.Random(5)
    values: list[Any] = [
        None, True, 0, 1, -1, 3, 2**31, 2**62, 2**63, -(2**63), 1e300, 0.5, "", "cpu", torch.float64, "relu", "first",
        [], [0], [1, 2], [2**62, 4], [-1], [None], {"a": 1}, "GatedActivation", (3, 4),
    ]  # fmt: skip
    planned, defects = 0, []
    for _ in range(3000):
        cls = rng.choice(list(CLASSES))
        names = list(inspect.signature(cls.select).parameters)
        changes = {rng.choice(names): rng.choice(values) for _ in range(rng.randint(1, 3))}
        try:
            select(cls, **changes)
            planned += 1
        except errors.EpigradError as refused:
            if type(refused) is errors.EpigradError:
                defects.append((cls, changes, refused))
    assert not defects
    assert planned > 50


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=thorough)])
def test_random_arguments_of_the_fast_path_never_end_the_process(seed: str) -> None:
    done = start(str(Path(__file__).with_name("random_calls.py")), seed)
    assert done.returncode == 0 and done.stdout.strip() == "alive", f"exit code {done.returncode}\n{done.stderr}"


def test_the_fast_path_counts_its_arguments() -> None:
    plans = (CORE.plan_create, CORE.plan_run, CORE.plan_check)
    for function in (CORE.infer, CORE.launch, CORE.recorded, CORE.plan_facts, *plans):
        with pytest.raises(TypeError):
            function()
    for function in (CORE.infer, CORE.launch, *plans):
        with pytest.raises(TypeError):
            function(1)


def test_a_weight_that_is_not_finite_is_passed_through() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = epigrad.lerp(torch.zeros(1), torch.ones(1), math.inf)
    assert out.item() == math.inf
