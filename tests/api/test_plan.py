"""Plans: select, ask, run, for all classes and operations, against the functions of
`epigrad.forward` and `epigrad.backward`."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from epigrad import LowRank, backward, errors, forward, plan
from epigrad._check.calls import Inputs
from epigrad._check.problem import Problem
from epigrad._core import tables
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tests.api.checking import example_of
from tests.support import adapters
from tests.support.devices import on_devices
from tests.support.layouts import OUT_LAYOUTS, Guarded, assert_same_bits, bits, laid_out, unchanged
from tests.support.plan_problem import CLASSES, DTYPES, arguments, expected, run, tensors_for, workspace_of
from tests.support.tiers import thorough


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_run_gives_what_the_functions_give(cls: Any, dtype: torch.dtype, device: str) -> None:
    """All outputs, each alone, and none at all."""
    inputs, outputs = tensors_for(cls, dtype, device)
    made = cls.select(**arguments(cls), dtype=dtype, device=device)
    made.can_implement(**inputs)
    with unchanged(*inputs.values()):
        run(made, **inputs)
        run(made, **inputs, **dict.fromkeys(outputs))
        run(made, **inputs, **outputs)
    for (name, got), want in zip(outputs.items(), expected(cls, inputs), strict=True):
        assert_same_bits(got, want, name)
        for others in ({}, dict.fromkeys(outputs)):  # not given, or given as None
            run(made, **inputs, **others | {name: (alone := torch.full_like(got, math.nan))})
            assert_same_bits(alone, got, name)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_sku_and_precision_are_true_for_the_dtype(cls: Any, dtype: torch.dtype, device: str) -> None:
    made = cls.select(**arguments(cls), dtype=dtype, device=device)
    name = str(dtype).removeprefix("torch.")
    wide = "float64" if dtype == torch.float64 else "float32"
    fields = [field.name for field in dataclasses.fields(plan.KernelSku)]
    assert fields == ["op", "kind", "dtype", "accumulator", "backend", "arch", "kernel", "layout", "vector_width"]
    assert made.sku.dtype == name and made.sku.accumulator == wide
    assert made.sku.backend == device and made.sku.kernel and made.sku.arch
    assert isinstance(made.sku.vector_width, int) and made.sku.vector_width >= 1
    assert made.sku.kind == {"activation": "gelu", "kind": "swiglu"}.get(
        next(iter(arguments(cls).keys() & {"activation", "kind"}), ""), made.sku.kind
    )
    guarantee = made.precision_guarantee
    assert [field.name for field in dataclasses.fields(plan.PrecisionGuarantee)] == [
        "math_precision",
        "accumulator",
        "deterministic",
        "bit_stable_on_same_hardware",
        "batch_invariant",
    ]
    assert guarantee.accumulator == wide
    assert guarantee.deterministic is True and guarantee.bit_stable_on_same_hardware is True
    assert isinstance(guarantee.math_precision, str) and guarantee.math_precision


def test_sku_kernel_differs_between_kinds_and_dtypes() -> None:
    kernels = {
        plan.GatedActivationBackward.select(input_shape=(4,), kind=kind, dtype=dtype).sku
        for kind in ("glu", "swiglu")
        for dtype in (torch.float32, torch.float64)
    }
    assert len(kernels) == 4


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_select_takes_keywords_only_and_a_device(cls: Any) -> None:
    with pytest.raises(TypeError):
        cls.select(3, dtype=torch.float32)
    with pytest.raises(TypeError):
        cls.select(**arguments(cls))
    assert cls.select(**arguments(cls), dtype=torch.float32, device=torch.device("cpu")).sku.backend == "cpu"
    assert isinstance(cls.select(**arguments(cls), dtype=torch.float32).workspace_size, int)
    if not torch.cuda.is_available():
        with pytest.raises(errors.BackendUnavailableError, match="cuda"):
            cls.select(**arguments(cls), dtype=torch.float32, device="cuda")


@on_devices
@pytest.mark.parametrize("batch", [(), 2, (2,), (2, 3), 0, (2, 0)], ids=str)
@pytest.mark.parametrize("b_batched", [False, True])
def test_batches(batch: int | tuple[int, ...], b_batched: bool, device: str) -> None:
    sizes = (batch,) if isinstance(batch, int) else batch
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(*sizes, 3, 5, generator=generator).to(device)
    a = torch.randn(*sizes, 3, 4, generator=generator).to(device)
    b = torch.randn(*(sizes if b_batched else ()), 4, 5, generator=generator).to(device)
    bias = torch.randn(5, generator=generator).to(device)
    outs = {
        "grad_a": torch.full_like(a, math.nan),
        "grad_b": torch.full_like(b, math.nan),
        "grad_bias": torch.full_like(bias, math.nan),
    }
    problem: dict[str, Any] = {
        "m": 3,
        "n": 5,
        "k": 4,
        "batch": batch,
        "b_batched": b_batched,
        "activation": "silu",
        "dtype": torch.float32,
        "device": device,
    }
    run(plan.GemmEpilogueBackward.select(**problem), grad_output=grad, a=a, b=b, bias=bias, **outs)
    for got, want in zip(
        outs.values(), backward.matmul_bias_activation_backward(grad, a, b, bias, "silu"), strict=True
    ):
        assert_same_bits(got, want)
    out = torch.full((*sizes, 3, 5), math.nan, device=device)
    run(plan.GemmEpilogue.select(**problem), a=a, b=b, bias=bias, out=out)
    assert_same_bits(out, forward.matmul_bias_activation(a, b, bias, "silu"))


def with_leading(tensor: Tensor, leading: int) -> Tensor:
    """A copy whose rows are `leading` elements apart, each batch item `rows * leading` after the
    one before."""
    *batch, rows, columns = tensor.shape
    wide = tensor.new_full((*batch, rows, leading), math.nan)
    wide[..., :columns] = tensor
    return wide[..., :columns]


def assert_same(got: Tensor, want: Tensor | None, what: str = "result") -> None:
    """The bits of the same problem in another layout, which a GPU's product may only come near
    to."""
    assert want is not None
    if got.is_cpu:
        assert_same_bits(got, want, what)
    else:
        torch.testing.assert_close(got, want, msg=lambda text: f"{what}: {text}")


@on_devices
def test_leading_dimensions_are_exact(device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b, grad = (torch.randn(2, *size, generator=generator).to(device) for size in ((3, 4), (4, 5), (3, 5)))
    made = plan.GemmEpilogueBackward.select(
        m=3,
        n=5,
        k=4,
        batch=2,
        b_batched=True,
        activation="tanh",
        dtype=torch.float32,
        device=device,
        lda=9,
        ldb=7,
        ld_grad=6,
    )
    given = {"a": with_leading(a, 9), "b": with_leading(b, 7), "grad_output": with_leading(grad, 6)}
    assert given["a"].stride() == (27, 9, 1)
    outs = {"grad_a": torch.full_like(a, math.nan), "grad_b": torch.full_like(b, math.nan)}
    with unchanged(*given.values()):
        run(made, **given, **outs)
    want = backward.matmul_bias_activation_backward(grad, a, b, None, "tanh")
    for got, value in zip(outs.values(), want[:2], strict=True):
        assert_same(got, value)
    for name, other in (("a", a), ("b", b), ("grad_output", grad)):
        wrong = {**given, name: other}
        for call in (made.can_implement, lambda **tensors: run(made, **tensors)):
            with unchanged(*outs.values()), pytest.raises(errors.InvalidProblemError, match=rf"\b{name}\b"):
                call(**wrong, **outs)


@on_devices
def test_leading_dimension_of_the_forward_class(device: str) -> None:
    a, b = torch.randn(3, 4, device=device), torch.randn(4, 5, device=device)
    made = plan.GemmEpilogue.select(m=3, n=5, k=4, dtype=torch.float32, device=device, lda=8)
    out = torch.full((3, 5), math.nan, device=device)
    run(made, a=with_leading(a, 8), b=b, out=out)
    assert_same(out, forward.matmul_bias_activation(a, b))
    with pytest.raises(errors.InvalidProblemError, match="a"):
        run(made, a=a, b=b, out=out)


@on_devices
@pytest.mark.parametrize("layout", OUT_LAYOUTS)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_any_strides_without_leading_dimensions(cls: Any, layout: str, device: str) -> None:
    inputs, outputs = tensors_for(cls, device=device)
    made = cls.select(**arguments(cls), dtype=torch.float32, device=device)
    given = {name: laid_out(value.double(), torch.float32, layout, device) for name, value in inputs.items()}
    guarded = {name: Guarded.like(value, layout) for name, value in outputs.items()}
    with unchanged(*given.values()):
        run(made, **given, **{name: g.tensor for name, g in guarded.items()})
    for (name, g), want in zip(guarded.items(), expected(cls, given), strict=True):
        g.check()
        check = assert_same if cls in (plan.GemmEpilogue, plan.GemmEpilogueBackward) else assert_same_bits
        check(g.tensor.contiguous(), want, name)


@on_devices
def test_bias_and_preactivation_may_be_left_out(device: str) -> None:
    inputs, outputs = tensors_for(plan.GemmEpilogueBackward, device=device)
    made = plan.GemmEpilogueBackward.select(**arguments(plan.GemmEpilogueBackward), dtype=torch.float32, device=device)
    bias = inputs.pop("bias")
    del outputs["grad_bias"]
    run(made, **inputs, **outputs)
    want = backward.matmul_bias_activation_backward(*inputs.values(), None, "gelu")
    for got, value in zip(outputs.values(), want[:2], strict=True):
        assert_same_bits(got, value)
    _, pre = forward.matmul_bias_activation(inputs["a"], inputs["b"], bias, "gelu", return_preactivation=True)
    grad_bias = torch.full((5,), math.nan, device=device)
    run(made, **inputs, bias=bias, preactivation=pre, **outputs, grad_bias=grad_bias)
    want = backward.matmul_bias_activation_backward(*inputs.values(), bias, "gelu", preactivation=pre)
    for got, value in zip((*outputs.values(), grad_bias), want, strict=True):
        assert_same_bits(got, value)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_a_missing_input_is_refused_by_name(cls: Any) -> None:
    inputs, outputs = tensors_for(cls)
    made = cls.select(**arguments(cls), dtype=torch.float32)
    for name in inputs:
        if name == "bias":
            continue
        rest = {other: value for other, value in inputs.items() if other != name}
        for call in (made.can_implement, lambda **tensors: run(made, **tensors)):
            with unchanged(*outputs.values()), pytest.raises(errors.EpigradError, match=rf"\b{name}\b"):
                call(**rest, **outputs)
            with pytest.raises(errors.EpigradError, match=rf"\b{name}\b"):
                call(**rest, **{name: None}, **outputs)


@on_devices
def test_lerp_with_a_number(device: str) -> None:
    inputs, outputs = tensors_for(plan.LerpBackward, device=device)
    grad, start, end = inputs["grad_output"], inputs["start"], inputs["end"]
    made = plan.LerpBackward.select(shape=(3, 4), weight=0.3, dtype=torch.float32, device=device)
    run(made, grad_output=grad, grad_start=outputs["grad_start"], grad_end=outputs["grad_end"])
    want = backward.lerp_backward(grad, None, None, 0.3)
    assert_same_bits(outputs["grad_start"], want[0])
    assert_same_bits(outputs["grad_end"], want[1])
    with unchanged(*outputs.values()), pytest.raises(errors.InvalidProblemError, match="weight"):
        run(made, grad_output=grad, **outputs)
    out = torch.full((3, 4), math.nan, device=device)
    run(plan.Lerp.select(shape=(3, 4), weight=0.3, dtype=torch.float32, device=device), start=start, end=end, out=out)
    assert_same_bits(out, forward.lerp(start, end, 0.3))


def test_lerp_with_a_tensor_needs_the_ends_for_its_gradient_only() -> None:
    inputs, outputs = tensors_for(plan.LerpBackward)
    made = plan.LerpBackward.select(shape=(3, 4), dtype=torch.float32)
    grad, weight = inputs["grad_output"], inputs["weight"]
    run(made, grad_output=grad, weight=weight, grad_start=outputs["grad_start"], grad_end=outputs["grad_end"])
    want = backward.lerp_backward(grad, None, None, weight, needs=(True, True, False))
    assert_same_bits(outputs["grad_start"], want[0])
    assert_same_bits(outputs["grad_end"], want[1])


@on_devices
def test_accumulate_adds_into_b_and_bias_only(device: str) -> None:
    a, b, grad = (torch.arange(float(m * n), device=device).view(m, n) for m, n in ((3, 4), (4, 5), (3, 5)))
    bias = torch.zeros(5, device=device)
    made = plan.GemmEpilogueBackward.select(m=3, n=5, k=4, dtype=torch.float32, device=device)
    grads = [torch.full(shape, 100.0, device=device) for shape in ((3, 4), (4, 5), (5,))]
    given = dict(zip(("grad_a", "grad_b", "grad_bias"), grads, strict=True))
    run(made, grad_output=grad, a=a, b=b, bias=bias, **given, accumulate=True)
    assert torch.equal(grads[0], grad @ b.T)
    assert torch.equal(grads[1], 100 + a.T @ grad)
    assert torch.equal(grads[2], 100 + grad.sum(0))


@on_devices
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_can_implement_raises_what_run_raises(cls: Any, device: str) -> None:
    inputs, outputs = tensors_for(cls, device=device)
    made = cls.select(**arguments(cls), dtype=torch.float32, device=device)
    assert made.can_implement(**inputs, **outputs) is None
    first, last = next(iter(inputs)), next(iter(outputs))
    wrong: list[dict[str, Any]] = [
        {first: inputs[first].double()},
        {first: inputs[first][..., :-1]},
        {first: inputs[first].tolist()},
        {first: inputs[first].to("meta")},
        {last: outputs[last].half()},
        {last: torch.full((1, *outputs[last].shape), math.nan, device=device)},
        {last: torch.full((1,), math.nan, device=device).expand(outputs[last].shape)},
    ]
    for change in wrong:
        tensors = {**inputs, **outputs, **change}
        with unchanged(*outputs.values()):
            with pytest.raises(errors.EpigradError) as asked:
                made.can_implement(**tensors)
            with pytest.raises(errors.EpigradError) as ran:
                run(made, **tensors)
        assert type(asked.value) is type(ran.value) and str(asked.value) == str(ran.value)
        named = "start|end" if cls is plan.Lerp and change is wrong[1] else next(iter(change))
        assert re.search(rf"\b({named})\b", str(asked.value)), str(asked.value)


@on_devices
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_can_implement_writes_nothing_and_unknown_names_are_refused(cls: Any, device: str) -> None:
    inputs, outputs = tensors_for(cls, device=device)
    made = cls.select(**arguments(cls), dtype=torch.float32, device=device)
    with unchanged(*inputs.values(), *outputs.values()):
        made.can_implement(**inputs, **outputs)
        with pytest.raises((TypeError, ValueError), match="colour"):
            made.can_implement(**inputs, **outputs, colour=outputs)
        with pytest.raises((TypeError, ValueError), match="colour"):
            run(made, **inputs, **outputs, colour=outputs)


@on_devices
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_outputs_must_not_overlap_an_input(cls: Any, device: str) -> None:
    inputs, outputs = tensors_for(cls, device=device)
    made = cls.select(**arguments(cls), dtype=torch.float32, device=device)
    for name, out in outputs.items():
        source = inputs[next(iter(inputs))]
        buffer = torch.zeros(max(source.numel(), out.numel()) + 3, device=device)
        alias = buffer[: source.numel()].view(source.shape)
        target = buffer[2 : 2 + out.numel()].view(out.shape)
        tensors = {**inputs, next(iter(inputs)): alias, name: target}
        with unchanged(buffer), pytest.raises(errors.InvalidProblemError, match=name):
            run(made, **tensors)


def plans_with_workspace(device: str) -> list[tuple[Any, dict[str, Tensor]]]:
    found = []
    for dtype in DTYPES:
        for m, n, k in ((3, 5, 4), (64, 96, 32), (257, 129, 65)):
            for cls in (plan.GemmEpilogue, plan.GemmEpilogueBackward):
                made = cls.select(m=m, n=n, k=k, activation="gelu", dtype=dtype, device=device)
                if made.workspace_size:
                    shapes = {"grad_output": (m, n), "a": (m, k), "b": (k, n), "bias": (n,), "out": (m, n)}
                    shapes |= {"grad_a": (m, k), "grad_b": (k, n), "grad_bias": (n,)}
                    backwards = cls is plan.GemmEpilogueBackward
                    names = {"a", "b", "bias"} | (
                        {"grad_output", "grad_a", "grad_b", "grad_bias"} if backwards else {"out"}
                    )
                    found.append(
                        (made, {name: torch.ones(shapes[name], dtype=dtype, device=device) for name in sorted(names)})
                    )
    return found


def test_the_tensor_that_does_not_broadcast_is_the_one_named() -> None:
    made = plan.Lerp.select(shape=(2, 3), weight=0.5, dtype=torch.float32)
    with pytest.raises(
        errors.InvalidProblemError, match=r"start: shape \[5\], want one that broadcasts to the plan's \[2, 3\]"
    ):
        made.run(start=torch.zeros(5), end=torch.ones(2, 3), out=torch.empty(2, 3))
    with pytest.raises(errors.InvalidProblemError, match=r"end: shape \[4, 3\]"):
        made.run(start=torch.zeros(3), end=torch.ones(4, 3), out=torch.empty(2, 3))


def test_an_output_that_requires_grad_is_refused() -> None:
    made = plan.Lerp.select(shape=(2,), weight=0.5, dtype=torch.float32)
    ends = {"start": torch.zeros(2), "end": torch.ones(2)}
    out = torch.zeros(2, requires_grad=True)
    for call in (made.run, made.can_implement):
        with pytest.raises(errors.InvalidProblemError, match="out: a tensor that requires grad"):
            call(**ends, out=out)
    with torch.no_grad():
        made.run(**ends, out=out)
    assert out.tolist() == [0.5, 0.5]


@on_devices
def test_a_workspace_that_will_not_do(device: str) -> None:
    found = plans_with_workspace(device)
    assert found, "a GEMM backward forms grad_preactivation somewhere: no plan asks for workspace"
    for made, tensors in found:
        size = made.workspace_size
        buffer = torch.zeros(size + 512, dtype=torch.uint8, device=device)
        start = -buffer.data_ptr() % 256
        cases: list[tuple[Tensor | None, type[Exception]]] = [
            (None, errors.WorkspaceTooSmallError),
            (buffer[start : start + size - 1], errors.WorkspaceTooSmallError),
            (buffer[start + 1 : start + 1 + size], errors.MisalignedOperandError),
            (buffer[start : start + size].view(torch.int8), errors.DTypeError),
        ]
        outs = [
            value for name, value in tensors.items() if name == "out" or (name[:5] == "grad_" and name != "grad_output")
        ]
        for workspace, error in cases:
            with unchanged(buffer, *outs), pytest.raises(error, match="workspace") as caught:
                made.run(**tensors, workspace=workspace)
            if isinstance(caught.value, errors.WorkspaceTooSmallError):
                assert caught.value.needed == size
                assert caught.value.got == (0 if workspace is None else workspace.numel())
        made.run(**tensors, workspace=buffer[start : start + size])
        assert not torch.equal(bits(outs[0]), bits(torch.ones_like(outs[0])))


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_run_allocates_no_tensor_memory(cls: Any) -> None:
    inputs, outputs = tensors_for(cls)
    made = cls.select(**arguments(cls), dtype=torch.float32)
    workspace = workspace_of(made)
    made.run(**inputs, **outputs, workspace=workspace)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        made.run(**inputs, **outputs, workspace=workspace)
    assert sum(max(event.self_cpu_memory_usage, 0) for event in profiled.events()) == 0


@on_devices
def test_can_implement_assumes_a_workspace_that_is_not_given(device: str) -> None:
    made, tensors = plans_with_workspace(device)[0]
    made.can_implement(**tensors)
    with pytest.raises(errors.WorkspaceTooSmallError):
        made.can_implement(**tensors, workspace=torch.empty(0, dtype=torch.uint8, device=device))


def operands(op: str, dtype: str) -> tuple[Problem, dict[str, Any]]:
    """A small problem of an operation, and its tensors by name."""
    name = op.removesuffix("_backward")
    problem = Problem.read(example_of(name, dtype))
    inputs = Inputs.of(problem)
    given = {key: value for key, value in inputs.operands(name).items() if value is not None}
    return problem, given | ({"grad_output": inputs.grad} if op.endswith("_backward") else {})


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=thorough)], ids=str)
@pytest.mark.parametrize("op", [op for op, row in tables.OPS.items() if not row.is_second])
def test_every_operation_has_a_plan(op: str, dtype: torch.dtype) -> None:
    """By tensors, by meta tensors and by shapes: the same plan, with the function's bits."""
    problem, given = operands(op, str(dtype).removeprefix("torch."))
    options = problem.options
    made = plan.Plan.select(op, **given, **options)
    function = getattr(backward if op.endswith("_backward") else forward, op)
    results = function(**given, **options)
    results = results if isinstance(results, tuple) else (results,)
    names = [name for name in tables.OPS[op].results if name != "preactivation"]
    if len(results) == 1:
        names = names[:1]
    outputs = {
        name: torch.full_like(value, math.nan) for name, value in zip(names, results, strict=False) if value is not None
    }
    assert outputs
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    made.can_implement(**tensors, **outputs)
    with unchanged(*tensors.values()):
        run(made, **tensors, **outputs)
    for (name, got), want in zip(outputs.items(), (value for value in results if value is not None), strict=False):
        assert_same_bits(got, want, name)
        run(made, **tensors, **{name: got.fill_(math.nan)})
        assert_same_bits(got, want, f"{name} alone")
    meta = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in given.items()}
    shapes = {
        name: tuple(value.shape) if isinstance(value, Tensor) and value.dtype == dtype else value
        for name, value in meta.items()
    }
    for described in (meta, shapes):
        again = plan.Plan.select(op, **described, **options, dtype=dtype, device="cpu")
        assert (again.sku, again.workspace_size) == (made.sku, made.workspace_size)
        assert again.precision_guarantee == made.precision_guarantee


@pytest.mark.parametrize("op", adapters.CALLS)
def test_a_plan_takes_adapters(op: str) -> None:
    """Forward and backward, by tensors and by shapes, with the functions' bits."""
    tensors = adapters.drawn(op, torch.float32, torch.float32)
    grad = torch.randn_like(adapters.call(op, *tensors))
    own = len(adapters.CALLS[op][1])
    keywords = adapters.row(op).adapters
    given: dict[str, Any] = dict(zip(adapters.names(op), tensors, strict=False))
    given |= {"offsets": adapters.OFFSETS} if op == "grouped_linear" else {}
    given |= {"index": adapters.INDEX} if op == "experts" else {}
    kind = {tables.OPS[op].kind_argument: adapters.CALLS[op][0]}
    pairs = list(zip(tensors[own::2], tensors[own + 1 :: 2], strict=True))
    of_tensors = {name: LowRank(*pair) for name, pair in zip(keywords, pairs, strict=True)}
    of_shapes = {name: LowRank(*[t.shape for t in pair]) for name, pair in zip(keywords, pairs, strict=True)}
    names = [f"grad_{name}" for name in adapters.names(op)]
    names += [f"grad_{name}_{part}" for name in keywords for part in "ab"]
    for name, with_grad, wanted, want in (
        (op, {}, ["out"], [adapters.call(op, *tensors, scale=1, room=forward)]),
        (f"{op}_backward", {"grad_output": grad}, names, adapters.call(op, grad, *tensors, scale=1, room=backward)),
    ):
        made = plan.Plan.select(name, **given, **with_grad, **of_tensors, **kind)
        again = plan.Plan.select(name, **given, **with_grad, **of_shapes, **kind)
        assert (made.sku, made.workspace_size) == (again.sku, again.workspace_size)
        outputs = {key: torch.full_like(result, math.nan) for key, result in zip(wanted, want, strict=True)}
        made.can_implement(**given, **with_grad, **of_tensors, **outputs)
        run(made, **given, **with_grad, **of_tensors, **outputs)
        for key, result in zip(wanted, want, strict=True):
            assert_same_bits(outputs[key], result, key)
    with pytest.raises(errors.InvalidProblemError, match=rf"grad_{keywords[0]}\.a: got a tensor, want none"):
        made.can_implement(**given, **with_grad, **outputs)


def test_adapters_that_a_plan_lacks_or_gets_twice() -> None:
    x, weight, adapter = torch.ones(3, 4), torch.ones(5, 4), LowRank(torch.ones(2, 4), torch.ones(5, 2))
    without = plan.Plan.select("linear", input=x, weight=weight)
    with pytest.raises(TypeError, match="adapter: selected without it: give it to select as well"):
        without.run(input=x, weight=weight, adapter=adapter, out=torch.empty(3, 5))
    made = plan.Plan.select("linear", input=x, weight=weight, adapter=adapter)
    with pytest.raises(errors.InvalidProblemError, match="adapter_a: given beside adapter, want one of both"):
        made.run(input=x, weight=weight, adapter=adapter, adapter_a=adapter.a, out=torch.empty(3, 5))


def test_options_have_the_functions_defaults() -> None:
    shapes = {"input": (3, 4), "weight1": (5, 4), "weight2": (4, 5)}
    assert plan.Plan.select("mlp", **shapes, dtype=torch.float32).sku.kind == "gelu_tanh"
    made = plan.Plan.select("activation", input=torch.ones(3), activation=torch.nn.LeakyReLU(0.25))
    assert made.sku.kind == "leaky_relu(slope=0.25)" and made.sku.dtype == "float32"
    with pytest.raises(TypeError, match="activation is missing"):
        plan.Plan.select("activation", input=torch.ones(3))


def test_gradients_of_weights_may_be_wider() -> None:
    grad, x, weight = (torch.ones(2, 2, dtype=torch.bfloat16) for _ in range(3))
    into = torch.empty(2, 2)
    made = plan.Plan.select("linear_backward", grad_output=grad, input=x, weight=weight, grad_weight=into)
    run(made, grad_output=grad, input=x, weight=weight, grad_weight=into)
    assert torch.equal(into, torch.full((2, 2), 2.0))
    with pytest.raises(errors.DTypeError, match="grad_weight: dtype bfloat16, want the plan's float32"):
        made.can_implement(grad_output=grad, input=x, weight=weight, grad_weight=weight.clone())


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"op": "liner"}, errors.InvalidProblemError, r"Plan: op: 'liner', want one of .*did you mean 'linear'"),
        ({"op": ["linear"]}, errors.InvalidProblemError, r"Plan: op: \['linear'\], want one of"),
        ({"colour": 1}, TypeError, "linear: unknown argument colour, want names among input, weight, bias, activation"),
        ({"weight": None}, errors.InvalidProblemError, "linear: weight: missing"),
        ({"weight": (5, 3)}, errors.InvalidProblemError, "linear: weight: "),
        ({"weight": (5, -4)}, errors.InvalidProblemError, "linear: weight: got -4"),
        ({"bias": 3.0}, errors.InvalidProblemError, "linear: bias: float, want a sequence of ints"),
        ({"dtype": None}, errors.DTypeError, "linear: dtype: got None"),
        ({"dtype": torch.int8}, errors.DTypeError, "linear: dtype: got torch.int8"),
        ({"activation": "swash"}, errors.InvalidProblemError, "linear: activation: 'swash'"),
        ({"weight": torch.ones(5, 4, dtype=torch.float64)}, errors.DTypeError, "linear: weight: dtype float64"),
        ({"weight": torch.eye(4).to_sparse()}, errors.UnsupportedError, "linear: weight: a tensor of layout"),
        ({"device": "moon"}, errors.InvalidProblemError, "linear: device: got 'moon'"),
        ({"adapter": ((2, 4), (5, 2))}, errors.DTypeError, "linear: adapter: tuple, want an epigrad.LowRank or None"),
        ({"adapter": LowRank((2, 4), (5, 2), 0.5)}, errors.InvalidProblemError, "linear: adapter.scale: 0.5, want 1"),
        ({"adapter": LowRank((2, 3), (5, 2))}, errors.InvalidProblemError, r"linear: adapter.a: shape \[2, 3\]"),
        ({"adapter_in": None}, TypeError, "linear: unknown argument adapter_in, want names among .*, adapter, out"),
        ({"input": (2**40, 2**40)}, errors.InvalidProblemError, "linear: input: "),
    ],
    ids=str,
)
def test_what_a_plan_of_any_operation_refuses(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    given: dict[str, Any] = {"op": "linear", "input": (3, 4), "weight": (5, 4), "dtype": torch.float32} | arguments
    with pytest.raises(error, match=text):
        plan.Plan.select(given.pop("op"), **given)
