"""The interface's error table: which class, which built-in it also is, what the message says, and
nothing written."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import epigrad
import numpy as np
import pytest
import torch
from epigrad import backward, errors, forward, plan
from epigrad._check.calls import Inputs
from epigrad._check.problem import Problem
from epigrad._core import tables
from torch import Tensor

from tests.api.checking import example_of
from tests.support.cases import NAMES
from tests.support.layouts import unchanged
from tests.support.processes import run_script
from tests.support.tiers import in_turns, thorough

BUILT_IN = {
    "InvalidProblemError": ValueError,
    "DTypeError": TypeError,
    "UnsupportedError": NotImplementedError,
    "DeviceMismatchError": ValueError,
    "MisalignedOperandError": ValueError,
    "WorkspaceTooSmallError": ValueError,
    "BufferTooSmallError": ValueError,
    "BackendUnavailableError": RuntimeError,
    "DeviceError": RuntimeError,
}
DTYPES = ("float32", "float64", "bfloat16", "float16")
KINDS = ("glu", "reglu", "swiglu", "geglu", "geglu_tanh", "bilinear")


def t(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, math.nan, dtype=dtype)


def misaligned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = math.prod(shape)
    memory = bytearray(count * dtype.itemsize + 64)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % 16 + 1
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)


@dataclass
class Case:
    """A call that must be refused, the tensors that it must not write to, and patterns that its
    message must match."""

    name: str
    call: Callable[..., Any]
    patterns: tuple[str, ...]
    outs: tuple[Tensor, ...] = ()
    tensors: dict[str, Any] = field(default_factory=dict)


def check(case: Case, error: type[Exception]) -> None:
    with unchanged(*case.outs), pytest.raises(error) as caught:
        case.call(*case.outs)
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {caught.value}"
    message = str(caught.value)
    for pattern in case.patterns:
        assert re.search(pattern, message), f"{pattern!r} is not in {message!r}"


def ids(case: Case) -> str:
    return case.name


@pytest.mark.parametrize(("name", "built_in"), BUILT_IN.items())
def test_each_error_is_an_epigrad_error_and_a_built_in(name: str, built_in: type[Exception]) -> None:
    cls = getattr(errors, name)
    assert issubclass(cls, errors.EpigradError)
    assert issubclass(cls, built_in)
    assert name in errors.__all__
    copy = pickle.loads(pickle.dumps(cls("op: argument: text")))
    assert type(copy) is cls and str(copy) == "op: argument: text"


@pytest.mark.parametrize("name", ["WorkspaceTooSmallError", "BufferTooSmallError"])
def test_sizes_travel_with_the_error(name: str) -> None:
    error = pickle.loads(pickle.dumps(getattr(errors, name)("text", 512, 16)))
    assert (error.needed, error.got) == (512, 16)


FAILURE = "cuda: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"


@pytest.mark.parametrize(
    "error",
    [
        errors.from_status(9, "DeviceError", FAILURE, 0, 700),  # a call
        errors.from_text(f"DeviceError: {FAILURE}"),  # a plan's select
        errors.renamed(errors.from_status(9, "DeviceError", FAILURE, 0, 700), "mlp", {"weight": "weight1"}),
    ],
    ids=["call", "plan", "block"],
)
def test_the_drivers_code_and_name_travel_with_the_error(error: errors.EpigradError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, errors.DeviceError) and str(copy) == str(error)
    assert (copy.code, copy.name) == (700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    assert "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in str(copy)


def routed_tensors() -> dict[str, Tensor | None]:
    """The tensors of four tokens, each seen by one of three experts with two hidden features."""
    index = torch.zeros(4, 1, dtype=torch.int64)
    weights = {"weight_in": t(3, 4, 2), "bias_in": None, "weight_out": t(3, 2, 2), "bias_out": None}
    return {"input": t(4, 2), "index": index, "scale": t(4, 1), **weights}


def routed(kind: str = "swiglu", gate: str = "second", **changes: Tensor | None) -> Any:
    return epigrad.experts(**{**routed_tensors(), **changes}, kind=kind, gate=gate)


INVALID = [
    Case(
        "a result of 2**62 elements",
        lambda: epigrad.lerp(t(1).expand(2**31, 1), t(1).expand(1, 2**31), 0.5),
        ("lerp: out: shape", "64 bits"),
    ),
    Case("product does not broadcast", lambda: epigrad.gated_product(t(2, 3), t(3)), ("value|gate", r"\[3\]")),
    Case("lerp weight shape", lambda: epigrad.lerp(t(2, 3), t(2, 3), t(5)), ("weight", r"\[5\]")),
    Case(
        "gated_linear weights of two shapes",
        lambda out: forward.gated_linear(t(2, 3), t(5, 3), t(6, 3), out=out),
        ("gated_linear", "weight_gate", r"\[6, 3\]", r"\[5, 3\]"),
        (poison(2, 5),),
    ),
    Case("gated_linear 1-D weight", lambda: epigrad.gated_linear(t(3), t(3), t(3)), ("weight_value", r"\[3\]")),
    Case(
        "gated_linear preactivation shape",
        lambda *out: backward.gated_linear_backward(
            t(2, 5), t(2, 3), t(5, 3), t(5, 3), preactivation=t(2, 5), out=(*out, None, None)
        ),
        ("gated_linear_backward", "preactivation", r"\[2, 5\]", r"\[2, 10\]"),
        (poison(2, 3), poison(5, 3), poison(5, 3)),
    ),
    Case(
        "gated_linear out for no bias",
        lambda *out: backward.gated_linear_backward(t(2, 5), t(2, 3), t(5, 3), t(5, 3), out=(*out, None)),
        ("grad_bias_value",),
        (poison(2, 3), poison(5, 3), poison(5, 3), poison(5)),
    ),
    Case(
        "gated_linear accumulate without out",
        lambda *out: backward.gated_linear_backward(
            t(2, 5), t(2, 3), t(5, 3), t(5, 3), out=(*out, None, None, None), accumulate=True
        ),
        ("grad_weight_gate", "accumulate"),
        (poison(2, 3), poison(5, 3)),
    ),
    Case(
        "gated_linear outputs share memory",
        lambda out: backward.gated_linear_backward(
            t(2, 5), t(2, 3), t(5, 3), t(5, 3), out=(None, out, out, None, None)
        ),
        ("grad_weight_value|grad_weight_gate",),
        (poison(5, 3),),
    ),
    *(
        Case(
            f"grouped_linear offsets {wrong}",
            lambda out, wrong=wrong: forward.grouped_linear(t(4, 3), t(2, 5, 3), offsets=torch.tensor(wrong), out=out),
            ("grouped_linear", "offsets"),
            (poison(4, 5),),
        )
        for wrong in ([2, 1], [-1, 2], [2, 5], [2], [[1, 2]])
    ),
    *(
        Case(f"experts {name}", lambda given=given: routed(**given), ("experts", name))
        for name, given in {
            "index": {"index": torch.zeros(4, 2, dtype=torch.int64)},
            "scale": {"scale": t(4)},
            "weight_in": {"weight_in": t(3, 5, 2)},
            "bias_in": {"bias_in": t(3, 5)},
            "gate": {"gate": "third"},
            "kind": {"kind": "gelu_thanh"},
        }.items()
    ),
    *(
        Case(
            f"experts {name} by the docstring's letters", lambda given=given: routed(**given), (f"{name}: shape", want)
        )
        for name, given, want in (
            ("input", {"input": t(4)}, r"want \[T, K\]"),
            ("index", {"index": torch.zeros(3, 1, dtype=torch.int64)}, r"want \[T, k\] with T = 4"),
            ("weight_in", {"weight_in": t(3, 4, 3)}, r"want \[E, 2H, K\] with K = 2"),
            ("weight_out", {"weight_out": t(3, 2, 3)}, r"want \[E, K, H\]"),
            ("bias_out", {"bias_out": t(2)}, r"want \[E, K\]"),
        )
    ),
    Case("experts gate of none", lambda: routed(kind="relu", weight_in=t(3, 2, 2), gate="first"), ("gate", "relu")),
    Case("gated_mlp odd rows", lambda: epigrad.gated_mlp(t(2, 3), t(5, 3), None, t(3, 2), None), ("weight_in", "5")),
    Case("mlp sizes", lambda: epigrad.mlp(t(2, 3), t(5, 3), None, t(3, 4), None), ("mlp", "weight2", "5")),
    Case(
        "backward out shape",
        lambda out: backward.linear_backward(t(3, 6), t(3, 4), t(6, 4), out=(None, out, None)),
        ("grad_weight", r"\[4, 6\]", r"\[6, 4\]"),
        (poison(4, 6),),
    ),
    Case(
        "preactivation shape",
        lambda out: backward.linear_backward(
            t(3, 6), t(3, 4), t(6, 4), None, "gelu", preactivation=t(3, 5), out=(out, None, None)
        ),
        ("preactivation", r"\[3, 5\]", r"\[3, 6\]"),
        (poison(3, 4),),
    ),
    Case(
        "output shape",
        lambda out: backward.linear_backward(
            t(3, 6), t(3, 4), t(6, 4), None, "relu", output=t(3, 5), out=(out, None, None)
        ),
        ("output", r"\[3, 5\]", r"\[3, 6\]"),
        (poison(3, 4),),
    ),
    Case(
        "accumulate without out",
        lambda out: backward.linear_backward(
            t(3, 6), t(3, 4), t(6, 4), needs=(True, True, False), out=(out, None, None), accumulate=True
        ),
        ("grad_weight", "accumulate"),
        (poison(3, 4),),
    ),
    Case(
        "out for a float weight",
        lambda *out: backward.lerp_backward(t(3), t(3), t(3), 0.5, out=out),
        ("grad_weight",),
        (poison(3), poison(3), poison()),
    ),
    Case(
        "outputs share memory",
        lambda out: backward.lerp_backward(t(3), t(3), t(3), 0.5, out=(out, out, None)),
        ("grad_start|grad_end",),
        (poison(3),),
    ),
    Case("plan negative size", lambda: plan.GemmEpilogue.select(m=-1, n=2, k=2, dtype=torch.float32), ("m", "-1")),
    Case("plan lda", lambda: plan.GemmEpilogue.select(m=2, n=2, k=4, lda=3, dtype=torch.float32), ("lda", "3", "4")),
    Case("plan split", lambda: plan.GatedActivation.select(input_shape=(2, 5), dtype=torch.float32), ("5",)),
    Case(
        "plan dim",
        lambda: plan.GatedActivation.select(input_shape=(4,), split_dim=1, dtype=torch.float32),
        ("dim", "1"),
    ),
]


@pytest.mark.parametrize("case", INVALID, ids=ids)
def test_invalid_problem(case: Case) -> None:
    check(case, errors.InvalidProblemError)


@pytest.mark.parametrize("given", ["swash", "GELU", "", 3, ["relu"]], ids=repr)
def test_unknown_activation_lists_the_valid_ones(given: Any) -> None:
    every = tuple(f"'{name}'" for name in NAMES)
    for call in (
        lambda: epigrad.activation(t(2, 3), given),
        lambda: epigrad.linear(t(2, 3), t(4, 3), None, given),
        lambda: epigrad.matmul_bias_activation(t(2, 3), t(3, 4), None, given),
        lambda: epigrad.mlp(t(2, 3), t(4, 3), None, t(3, 4), None, given),
        lambda: backward.linear_backward(t(2, 4), t(2, 3), t(4, 3), None, given),
        lambda: forward.linear(t(2, 3), t(4, 3), None, given),
        lambda: plan.GemmEpilogue.select(m=1, n=1, k=1, activation=given, dtype=torch.float32),
    ):
        check(Case("", call, ("activation", re.escape(str(given).strip("[]")), *every)), errors.InvalidProblemError)


@pytest.mark.parametrize("given", ["gelu", "SwiGLU", None, 1], ids=repr)
def test_unknown_kind_lists_the_valid_ones(given: Any) -> None:
    every = tuple(f"\\b{name}\\b" for name in KINDS)
    for call in (
        lambda: epigrad.gated_activation(t(2, 4), given),
        lambda: epigrad.gated_product(t(2, 4), t(2, 4), given),
        lambda: epigrad.gated_linear(t(2, 3), t(4, 3), t(4, 3), kind=given),
        lambda: epigrad.gated_mlp(t(2, 3), t(8, 3), None, t(3, 4), None, given),
        lambda: backward.gated_activation_backward(t(2, 2), t(2, 4), given),
        lambda: backward.gated_product_backward(t(2, 4), t(2, 4), t(2, 4), given),
        lambda: plan.GatedActivationBackward.select(input_shape=(2, 4), kind=given, dtype=torch.float32),
    ):
        check(Case("", call, ("kind", str(given), *every)), errors.InvalidProblemError)


def test_unknown_gate_and_save() -> None:
    for call in (
        lambda: epigrad.gated_activation(t(2, 4), gate="third"),
        lambda: backward.gated_activation_backward(t(2, 2), t(2, 4), gate="third"),
        lambda: plan.GatedActivation.select(input_shape=(2, 4), gate="third", dtype=torch.float32),
    ):
        check(Case("", call, ("gate", "third", "first", "second")), errors.InvalidProblemError)
    for call in (
        lambda: epigrad.linear(t(2, 3), t(4, 3), save="both"),
        lambda: epigrad.gated_linear(t(2, 3), t(4, 3), t(4, 3), save="both"),
        lambda: epigrad.mlp(t(2, 3), t(4, 3), None, t(3, 4), None, save="both"),
    ):
        check(Case("", call, ("save", "both", "auto", "preactivation", "recompute")), errors.InvalidProblemError)


def function_calls(make: Callable[..., Any], other: Callable[..., Any]) -> list[tuple[str, Callable[[], Any]]]:
    """Each tensor of the operands' dtype of each function in turn made by `make`, the others by
    `other`."""
    calls = []
    for op, row in tables.OPS.items():
        if row.is_second:
            continue
        problem = Problem.read(example_of(row.forward))
        inputs = Inputs.of(problem)
        operands = {"grad_output": inputs.grad} if row.is_backward else {}
        operands |= inputs.operands(row.forward)
        given = {name: other(*value.shape) if value.is_floating_point() else value for name, value in operands.items()}
        for function in [getattr(backward, op)] if row.is_backward else [getattr(forward, op), getattr(epigrad, op)]:
            for wrong in (each.name for each in row.inputs if each.types == "call" and each.name in operands):
                tensors = {**given, wrong: make(*operands[wrong].shape), **problem.options}
                calls.append((f"{op}({wrong})", lambda f=function, k=tensors: f(**k)))
    return calls


def each_call(make: Callable[..., Any], error: type[Exception], *patterns: str) -> None:
    for label, call in function_calls(make, t):
        if patterns and label in ("activation(input)", "gated_activation(input)"):
            continue  # one tensor alone differs from no other
        with pytest.raises(error) as caught:
            call()
        assert isinstance(caught.value, errors.EpigradError), f"{label}: a bare {type(caught.value).__name__}"
        for pattern in patterns:
            assert re.search(pattern, str(caught.value)), f"{label}: {pattern!r} is not in {str(caught.value)!r}"


def test_a_mix_of_dtypes_names_the_two() -> None:
    each_call(lambda *shape: t(*shape, dtype=torch.float64), errors.DTypeError, "float32", "float64")
    out = poison(3, 6, dtype=torch.float64)
    check(
        Case("", lambda o: forward.linear(t(3, 4), t(6, 4), out=o), ("out", "float64", "float32"), (out,)),
        errors.DTypeError,
    )


FOREIGN = [
    *(torch.int8, torch.int64, torch.uint8, torch.uint16, torch.bool, torch.complex32, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", FOREIGN, ids=str)
def test_a_foreign_dtype_names_the_four(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")

    def wrong(*shape: int) -> Tensor:
        return torch.ones(shape).to(dtype)

    each_call(wrong, errors.DTypeError)
    for call in (
        lambda: epigrad.linear(wrong(3, 4), wrong(6, 4)),
        lambda: epigrad.gated_activation(wrong(3, 4)),
        lambda: epigrad.lerp(wrong(3), wrong(3), 0.5),
    ):
        with pytest.raises(errors.DTypeError) as caught:
            call()
        for word in (f"dtype {name}, want one of", *DTYPES):
            assert word in str(caught.value), (name, str(caught.value))
    check(Case("", lambda: plan.GemmEpilogue.select(m=1, n=1, k=1, dtype=dtype), ("dtype", *DTYPES)), errors.DTypeError)


@pytest.mark.parametrize(
    "make", [lambda *s: np.ones(s, np.float32), lambda *s: [1.0], lambda *s: "tensor"], ids=["numpy", "list", "str"]
)
def test_what_is_no_tensor_is_a_dtype_error(make: Callable[..., Any]) -> None:
    for label, call in function_calls(make, t):
        with pytest.raises(errors.DTypeError) as caught:
            call()
        argument = label[label.index("(") + 1 : -1]
        assert re.search(rf"\b{argument}\b", str(caught.value)), f"{label}: {caught.value}"


def test_a_missing_required_tensor_is_a_dtype_error() -> None:
    for call, name in (
        (lambda: epigrad.linear(None, t(6, 4)), "input"),
        (lambda: epigrad.linear(t(3, 4), None), "weight"),
        (lambda: epigrad.gated_activation(None), "input"),
        (lambda: epigrad.gated_product(t(2), None), "gate"),
        (lambda: epigrad.lerp(None, t(2), 0.5), "start"),
        (lambda: epigrad.mlp(t(3, 4), t(6, 4), None, None, None), "weight2"),
        (lambda: epigrad.grouped_linear(t(3, 4), t(2, 6, 4), offsets=None), "offsets"),
        (lambda: routed(index=None), "index"),
        (lambda: backward.linear_backward(None, t(3, 4), t(6, 4)), "grad_output"),
    ):
        check(Case("", call, (name,)), errors.DTypeError)


@pytest.mark.parametrize("dim", [1.0, True])
def test_what_is_equal_to_a_dim_is_none(dim: Any) -> None:
    epigrad.gated_activation(t(2, 4), dim=1)  # which is remembered
    check(Case("", lambda: epigrad.gated_activation(t(2, 4), dim=dim), ("dim",)), errors.InvalidProblemError)


def test_devices_that_differ_name_both() -> None:
    each_call(lambda *shape: t(*shape, device="meta"), errors.DeviceMismatchError, "meta", "cpu")
    with pytest.raises(errors.DeviceMismatchError, match="out"):
        forward.linear(t(3, 4), t(6, 4), out=t(3, 6, device="meta"))


def test_misaligned_buffers_are_refused_and_the_error_says_what_to_do() -> None:
    each_call(misaligned, errors.MisalignedOperandError, r"\b4\b.*tensor\.clone\(\)")
    out = misaligned(3, 6)
    check(Case("", lambda o: forward.linear(t(3, 4), t(6, 4), out=o), ("out",), (out,)), errors.MisalignedOperandError)
    grad = misaligned(6, 4)
    good = poison(3, 4)
    call = Case(
        "",
        lambda g, w: backward.linear_backward(t(3, 6), t(3, 4), t(6, 4), out=(g, w, None)),
        ("grad_weight",),
        (good, grad),
    )
    check(call, errors.MisalignedOperandError)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_sparse_and_nested_tensors_are_refused() -> None:
    layouts = (torch.jagged, torch.strided)
    jagged, nested = (torch.nested.nested_tensor([t(2, 4), t(3, 4)], layout=layout) for layout in layouts)
    for word, make in (
        ("sparse", lambda *shape: t(*shape).to_sparse()),
        ("nested", lambda *shape: nested),
        ("nested|subclass", lambda *shape: jagged),
    ):
        for label, call in function_calls(make, t):
            start = label.replace("(", ": ").replace(")", ": ")
            with pytest.raises(errors.UnsupportedError, match=rf"^{start}.*({word}).*want a (plain )?(strided|torch)"):
                call()
    assert epigrad.linear(jagged.values(), t(6, 4)).shape == (5, 6)  # what the message says


@pytest.mark.parametrize("value", in_turns(["x", "true", "2", " 1"], 4, thorough))
def test_a_tuning_switch_that_is_neither_on_nor_off(value: str) -> None:
    body = """
import torch, epigrad
for _ in range(2):
    try:
        epigrad.lerp(torch.zeros(1), torch.ones(1), 0.5)
    except epigrad.errors.InvalidProblemError as error:
        print(error)
"""
    want = f"EPIGRAD_TUNE: {value!r}, want 1 (on), or 0 or empty (off)"
    assert run_script(body, EPIGRAD_TUNE=value).split("\n") == [want, want]


@pytest.mark.parametrize("value", ["", "0"])
@thorough
def test_a_tuning_switch_that_is_off(value: str, tmp_path: Path) -> None:
    cache = tmp_path / "epigrad" / "tuning.json"
    cache.parent.mkdir()
    cache.write_text("no JSON")  # which a block would refuse
    body = "import torch, epigrad; print(epigrad.lerp(torch.zeros(1), torch.ones(1), 0.5).item())"
    assert run_script(body, EPIGRAD_TUNE=value, XDG_CACHE_HOME=str(tmp_path)) == "0.5"
    with pytest.raises(AssertionError, match=r"tuning\.json"):
        run_script(body, EPIGRAD_TUNE="1", XDG_CACHE_HOME=str(tmp_path))


def test_a_wrong_shape_is_told_with_an_operand_of_the_op() -> None:
    calls = function_calls(lambda *shape: t(*shape[:-1], shape[-1] + 1), t)
    operands = {label for label, _ in calls}
    for label, call in calls:
        if label in ("activation(input)", "prelu(input)", "xielu(input)"):
            continue  # whose input may have any shape
        with pytest.raises(errors.InvalidProblemError) as caught:
            call()
        told = re.match(r"(\w+): (\w+): shape \[[\d, ]+\].* (want|broadcast with) ", str(caught.value))
        assert told and label.startswith(f"{told[1]}(") and f"{told[1]}({told[2]})" in operands, str(caught.value)


BACKWARD, GATED, LERP = plan.GemmEpilogueBackward.select, plan.GatedActivation.select, plan.Lerp.select
F32 = torch.float32
PLAN_ARGUMENTS = [
    Case("size beyond 64 bits", lambda: BACKWARD(m=2**70, n=1, k=1, dtype=F32), (r"\bm: 71 bits",)),
    Case("shape beyond 64 bits", lambda: LERP(shape=(2**70,), dtype=F32), ("shape: 71 bits",)),
    Case("size is a bool", lambda: BACKWARD(m=True, n=1, k=1, dtype=F32), (r"\bm: True",)),
    Case("batch is a bool", lambda: BACKWARD(m=1, n=1, k=1, batch=True, dtype=F32), ("batch: True",)),
    Case("batch is None", lambda: BACKWARD(m=1, n=1, k=1, batch=None, dtype=F32), ("batch: NoneType",)),
    Case("batch has a float", lambda: BACKWARD(m=1, n=1, k=1, batch=(2.0,), dtype=F32), ("batch: float",)),
    Case("input_shape is an int", lambda: GATED(input_shape=4, dtype=F32), ("input_shape: int",)),
    Case("lerp beyond float64", lambda: epigrad.lerp(t(1), t(1), 10**400), ("lerp: weight: int", "float64")),
    Case("plan of lerp beyond float64", lambda: LERP(shape=(1,), weight=10**400, dtype=F32), ("weight", "float64")),
]


@pytest.mark.parametrize("case", PLAN_ARGUMENTS, ids=ids)
def test_numbers_that_are_no_sizes_or_weights(case: Case) -> None:
    check(case, errors.InvalidProblemError)


@pytest.mark.parametrize("weight", ["0.5", torch.ones(1), 1j], ids=repr)
def test_a_plans_weight_is_a_number(weight: Any) -> None:
    check(Case("", lambda: LERP(shape=(1,), weight=weight, dtype=F32), ("Lerp: weight",)), errors.DTypeError)


def test_a_tuple_for_one_out_is_named_once() -> None:
    for call in (
        lambda: forward.linear(t(3, 4), t(6, 4), out=(poison(3, 6),)),
        lambda: backward.gated_activation_backward(t(3, 2), t(3, 4), out=(poison(3, 4),)),
    ):
        check(Case("", call, (r"^\w+: out: tuple, want",)), errors.DTypeError)
