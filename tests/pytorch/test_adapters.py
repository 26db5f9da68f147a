"""Adapters in the rest of PyTorch: operators, compilers, transforms, autocast, main_grad."""

from __future__ import annotations

import functools
import pickle
import re
from typing import Any

import epigrad
import pytest
import torch
from epigrad import LowRank, backward, errors, forward, ops
from epigrad._core.checks import shares_memory
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tests.support import adapters
from tests.support.adapters import ADAPTED, CALLS, leaves
from tests.support.devices import on_devices
from tests.support.features import feature
from tests.support.layouts import assert_same_bits
from tests.support.tiers import in_turns, thorough

each_call = pytest.mark.parametrize("op", CALLS)
WIDE = (torch.bfloat16, torch.float32)


def gradients(op: str, inputs: list[Tensor], call: Any = adapters.call, **options: Any) -> list[Tensor]:
    out = call(op, *inputs, **options)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return [out.detach(), *torch.autograd.grad(out.double().sin().sum(), wanted)]


@feature("eager", rows=ADAPTED)
@each_call
def test_gradients_of_any_order(op: str) -> None:
    inputs = leaves(adapters.drawn(op, torch.float64, torch.float64))

    def run(*tensors: Tensor) -> Any:
        return adapters.call(op, *tensors)

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@each_call
def test_opcheck(op: str) -> None:
    """Of what a forward and its backward call, with float32 adapters beside bfloat16."""
    operators = {operator.name: operator for operator in ops.ADAPTED}
    own = len(CALLS[op][1])
    tensors = adapters.drawn(op, *WIDE)
    given = tensors[:own]
    if op == "grouped_linear":
        given.append(adapters.OFFSETS)
    if op == "experts":
        given.insert(1, adapters.INDEX)
    kind = CALLS[op][0]
    out, pre = operators[f"{op}.adapted"].overload(*given, kind, *tensors[own:])
    kept = [pre if pre.numel() else None, *[None] * (op == "linear")]
    calls = {op: (*given, kind, *tensors[own:]), f"{op}_backward": (out, *given, kind, *kept, *tensors[own:])}
    for name, arguments in calls.items():
        operator = operators[f"{name}.adapted"]
        torch.library.opcheck(operator.bare, arguments, test_utils=("test_schema", "test_faketensor"))
        torch.library.opcheck(operator.overload, arguments, test_utils=("test_schema", "test_autograd_registration"))


@feature("compile", rows=ADAPTED)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=thorough)])
@each_call
@on_devices
def test_compiled(op: str, dynamic: bool, device: str) -> None:
    torch._dynamo.reset()
    inputs = leaves([tensor.to(device) for tensor in adapters.drawn(op, *WIDE)])
    compiled = torch.compile(adapters.call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for one, other in zip(gradients(op, inputs, compiled), gradients(op, inputs), strict=True):
        assert_same_bits(one, other)


def test_one_adapter_of_two_compiled_for_any_size() -> None:
    """Backward does without the rank of the other."""
    torch._dynamo.reset()
    own = leaves(adapters.drawn("mlp", torch.float32, torch.float32))

    def run(*tensors: Tensor) -> Any:
        return adapters.call("mlp", *tensors[:-2], None, None, *tensors[-2:])

    inputs = [*own[:5], *own[7:]]
    out, want = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)(*inputs), run(*inputs)
    for results in zip(*[torch.autograd.grad(each.sin().sum(), inputs) for each in (out, want)], strict=True):
        assert_same_bits(*results)


@feature("export", rows=ADAPTED)
@pytest.mark.parametrize("op", in_turns(CALLS, 3, thorough))
def test_exported(op: str) -> None:
    class Layer(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return adapters.call(op, *tensors)

    tensors = tuple(adapters.drawn(op, torch.float32, torch.float32))
    program = torch.export.export(Layer(), tensors)
    assert_same_bits(program.module()(*tensors), adapters.call(op, *tensors))
    torch.testing.assert_close(program.run_decompositions().module()(*tensors), adapters.call(op, *tensors))


@feature("vmap", "func.grad", "jvp", rows=ADAPTED)
@each_call
def test_transforms(op: str) -> None:
    tensors = adapters.drawn(op, torch.float64, torch.float64)
    own = len(CALLS[op][1])

    def loss(*adapted: Tensor) -> Tensor:
        total: Tensor = adapters.call(op, *tensors[:own], *adapted).sin().sum()
        return total

    places = tuple(range(len(tensors) - own))
    want = gradients(op, leaves(tensors, frozen=range(own)))[1:]
    for got, wanted in zip(grad(loss, places)(*tensors[own:]), want, strict=True):
        torch.testing.assert_close(got, wanted)
    _, tangent = jvp(loss, tuple(tensors[own:]), tuple(tensors[own:]))
    torch.testing.assert_close(tangent, sum((g * t).sum() for g, t in zip(want, tensors[own:], strict=True)))
    batch = [torch.stack([t, 2 * t]) for t in tensors[own:]]
    for got, wanted in zip(vmap(grad(loss, places))(*batch), want, strict=True):
        torch.testing.assert_close(got[0], wanted)
    many = vmap(lambda x: adapters.call(op, x, *tensors[1:]))(torch.stack([tensors[0], 2 * tensors[0]]))
    torch.testing.assert_close(many[0], adapters.call(op, *tensors))


@feature("checkpoint", rows=ADAPTED)
@each_call
@on_devices
def test_checkpoint(op: str, device: str) -> None:
    inputs = leaves([tensor.to(device) for tensor in adapters.drawn(op, *WIDE)])
    again = functools.partial(checkpoint, adapters.call, use_reentrant=False)
    for one, other in zip(gradients(op, inputs, again), gradients(op, inputs), strict=True):
        assert_same_bits(one, other)


@feature("autocast", rows=ADAPTED)
@each_call
def test_autocast_leaves_float32_adapters(op: str) -> None:
    tensors, own = adapters.drawn(op, torch.float32, torch.float32), len(CALLS[op][1])
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(op, leaves(tensors))
    for place in range(own):
        if not (op == "experts" and place == 1):  # a scale stays too
            tensors[place] = tensors[place].bfloat16()
    for one, other in zip(got[1 + own :], gradients(op, leaves(tensors))[1 + own :], strict=True):
        assert one.dtype == torch.float32
        assert_same_bits(one, other)


@each_call
def test_main_grad_of_adapters(op: str) -> None:
    own = len(CALLS[op][1])
    for dtypes in (WIDE, (torch.bfloat16, torch.bfloat16)):
        tensors = adapters.drawn(op, *dtypes)
        inputs = leaves(tensors, frozen=range(own))
        parameters = [torch.nn.Parameter(tensor) for tensor in tensors[own:]]
        for parameter in parameters:
            parameter.main_grad = torch.ones(parameter.shape)
        handle = epigrad.accumulate_main_grad(parameters)
        adapters.call(op, *inputs[:own], *parameters).double().sin().sum().backward()
        handle.remove()
        want = gradients(op, leaves(adapters.drawn(op, *dtypes), frozen=range(own)))[1:]
        for parameter, wanted in zip(parameters, want, strict=True):
            assert parameter.grad is None
            close = {"rtol": 1e-5, "atol": 1e-4} if dtypes == WIDE else {"rtol": 0.01, "atol": 0.01}
            torch.testing.assert_close(parameter.main_grad - 1, wanted.float(), **close)


@each_call
def test_only_what_is_wanted_is_computed_and_kept(op: str) -> None:
    """Recompute keeps inputs alone, and a gradient has the same bits whatever else is wanted."""
    own = len(CALLS[op][1])
    inputs = leaves(adapters.drawn(op, *WIDE), frozen=range(own))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = adapters.call(op, *inputs, save="recompute")
    memory = {t.untyped_storage().data_ptr() for t in (*inputs, adapters.INDEX, adapters.OFFSETS)}
    assert {t.untyped_storage().data_ptr() for t in kept if t.numel()} <= memory
    whole = torch.autograd.grad(out, inputs[own:], torch.ones_like(out), retain_graph=True)
    for place, wanted in enumerate(whole):
        (alone,) = torch.autograd.grad(out, inputs[own + place], torch.ones_like(out), retain_graph=True)
        assert_same_bits(alone, wanted)


@pytest.mark.parametrize("rank", [0, 1])
@each_call
def test_views_of_one_matrix_and_rank_0(op: str, rank: int) -> None:
    """PEFT keeps the adapters of experts in one matrix of two dimensions."""
    own = len(CALLS[op][1])
    tensors = adapters.drawn(op, torch.float32, torch.float32, rank=rank)
    views = [
        t.mT.contiguous().mT if t.dim() == 2 else t.transpose(0, 2).contiguous().transpose(0, 2) for t in tensors[own:]
    ]
    want = gradients(op, leaves(tensors))
    for one, other in zip(gradients(op, leaves([*tensors[:own], *views])), want, strict=True):
        torch.testing.assert_close(one, other)
    if rank:
        expanded = [t[..., :1, :1].expand_as(t) for t in tensors[own:]]
        want = gradients(op, leaves([*tensors[:own], *[t.contiguous() for t in expanded]]))
        for one, other in zip(gradients(op, leaves([*tensors[:own], *expanded])), want, strict=True):
            torch.testing.assert_close(one, other)


def test_one_adapter_of_two() -> None:
    op, own = "mlp", len(CALLS["mlp"][1])
    tensors = adapters.drawn(op, torch.float32, torch.float32)
    x, w1, b1, w2, b2, _, _, a, b = tensors
    adapter = LowRank(a, b, 2.0)
    got = backward.mlp_backward(torch.ones(6, 3), x, w1, b1, w2, b2, "gelu", adapter2=adapter)
    assert len(got) == own + 2
    zeros = [torch.zeros_like(t) for t in tensors[own : own + 2]]
    want = adapters.call(op, torch.ones(6, 3), *tensors[:own], *zeros, a, b, scale=2.0, room=backward)
    for one, other in zip(got, (*want[:own], *want[own + 2 :]), strict=True):
        torch.testing.assert_close(one, other)
    needs = (False,) * own + (False, True)
    out = torch.ones(3, 2)
    *_, nothing, grad_b = backward.mlp_backward(
        torch.ones(6, 3),
        x,
        w1,
        b1,
        w2,
        b2,
        "gelu",
        needs=needs,
        out=(*(None,) * own, None, out),
        accumulate=True,
        adapter2=adapter,
    )
    assert nothing is None and grad_b is out
    torch.testing.assert_close(out, want[-1] + 1)


def test_accumulated_gradients_of_scaled_adapters() -> None:
    op, own = "linear", 3
    x, w, bias, a, b = adapters.drawn(op, *WIDE)
    g = torch.randn(6, 7).bfloat16()
    want = adapters.call(op, g, x, w, bias, a, b, room=backward)
    into = [torch.ones_like(a), torch.ones_like(b)]
    needs, out = (False,) * own + (True, True), (*(None,) * own, *into)
    for accumulate in (False, True):
        got = adapters.call(op, g, x, w, bias, a, b, room=backward, needs=needs, out=out, accumulate=accumulate)
        assert got[3] is into[0] and got[4] is into[1]
    for one, other in zip(into, want[own:], strict=True):
        torch.testing.assert_close(one, 2 * other)


@pytest.mark.parametrize("accumulate", [False, True])
def test_an_output_may_not_be_in_an_adapters_memory(accumulate: bool) -> None:
    """Also where the core sees a copy, since an adapter is scaled or rounded before."""
    memory = torch.zeros(64)
    before = memory.clone()
    x, weight = torch.randn(6, 5), torch.randn(7, 5)
    a, b = memory[:10].view(2, 5), torch.randn(7, 2)
    shared = r"linear.*: {}: shares memory with {}, want an output of its own"
    for dtype, scale in ((torch.float32, 0.5), (torch.bfloat16, 1.0)):
        adapter = LowRank(a, b, scale)
        out = memory[8:].view(dtype)[:42].view(6, 7)
        with pytest.raises(errors.InvalidProblemError, match=shared.format("out", "adapter.a")):
            forward.linear(x.to(dtype), weight.to(dtype), adapter=adapter, out=out)
    grads = [torch.zeros_like(each) for each in (x, weight, a, b)]
    grads[2] = memory[9:19].view(2, 5)
    adapter = LowRank(a, b, 0.5)
    needs, g = (True, True, False, True, True), torch.ones(6, 7)

    def call(grad_a: Tensor, grad_b: Tensor) -> object:
        out = (*grads[:2], None, grad_a, grad_b)
        return backward.linear_backward(g, x, weight, needs=needs, out=out, accumulate=accumulate, adapter=adapter)

    with pytest.raises(errors.InvalidProblemError, match=shared.format("grad_adapter.a", "adapter.a")):
        call(grads[2], grads[3])
    with pytest.raises(errors.InvalidProblemError, match=shared.format("grad_adapter.b", "grad_adapter.a")):
        call(memory[20:30].view(2, 5), memory[29:43].view(7, 2))
    with pytest.raises(errors.InvalidProblemError, match=r"grad_adapter\.a: .* overlaps itself"):
        call(memory[20:21].expand(2, 5), grads[3])
    assert torch.equal(memory, before), "nothing is written"
    halves = memory[20:40].view(2, 10)
    call(halves[:, ::2], grads[3])  # views that take turns share nothing
    forward.linear(x, weight, adapter=LowRank(halves[:, 1::2], b, 0.5), out=torch.empty(6, 7))


def test_out_alone_is_as_long_as_needs() -> None:
    x, w, bias, a, b = adapters.drawn("linear", torch.float32, torch.float32)
    into = [torch.empty_like(each) for each in (x, w, bias, a, b)]
    got = adapters.call("linear", torch.ones(6, 7), x, w, bias, a, b, room=backward, out=tuple(into))
    assert all(one is other for one, other in zip(got, into, strict=True))


def test_batch_invariance() -> None:
    with epigrad.batch_invariant():
        for op in ("linear", "mlp"):
            x, *rest = adapters.drawn(op, torch.float32, torch.float32)
            assert_same_bits(adapters.call(op, x[:1], *rest), adapters.call(op, x, *rest)[:1])


def test_flops() -> None:
    inputs = leaves(adapters.drawn("linear", torch.float32, torch.float32), frozen=(1, 2))
    with FlopCounterMode(display=False) as counter:
        adapters.call("linear", *inputs).sum()
    assert counter.get_total_flops() == 2 * 6 * (5 * 7 + 2 * (5 + 7))


def test_a_low_rank_update_is_a_value() -> None:
    a, b = torch.ones(2, 3), torch.ones(4, 2)
    adapter = LowRank(a, b)
    assert tuple(adapter) == (a, b, 1.0) and pickle.loads(pickle.dumps(LowRank(a, b, 2.0))).scale == 2
    with pytest.raises(AttributeError):
        adapter.scale = 2.0  # type: ignore[misc]


X, W = torch.randn(3, 4), torch.randn(5, 4)
A, B = torch.randn(2, 4), torch.randn(5, 2)
WRONG: list[tuple[Any, type[Exception], str]] = [
    ((A, B), errors.DTypeError, "linear: adapter: tuple, want an epigrad.LowRank"),
    (LowRank(A, None), errors.DTypeError, "linear: adapter.b: NoneType, want a torch.Tensor"),
    (LowRank(A, B, torch.ones(())), errors.DTypeError, "linear: adapter.scale: "),  # type: ignore[arg-type]
    (LowRank(torch.randn(2, 3), B), errors.InvalidProblemError, "linear: adapter.a: shape [2, 3], want [r, k]"),
    (LowRank(A, torch.randn(5, 3)), errors.InvalidProblemError, "linear: adapter.b: shape [5, 3], want [n, r]"),
    (LowRank(A.double(), B), errors.DTypeError, "linear: adapter.a: dtype float64, want float32"),
    (LowRank(A.bfloat16(), B), errors.DTypeError, "linear: adapter.a: dtype bfloat16, want float32"),
    (LowRank(A, B.to("meta")), errors.DeviceMismatchError, "linear: adapter.b: on "),
]


@pytest.mark.parametrize(("adapter", "error", "text"), WRONG, ids=[text for *_, text in WRONG])
def test_errors_name_the_adapter(adapter: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        epigrad.linear(X, W, adapter=adapter)
    out = torch.full((3, 5), torch.nan)
    with pytest.raises(error, match=re.escape(text)):
        forward.linear(X, W, adapter=adapter, out=out)
    assert out.isnan().all(), "nothing is written"


@pytest.mark.parametrize(("start", "shared"), [(2048, False), (2047, True)])
def test_parts_of_one_buffer(start: int, shared: bool) -> None:
    whole = torch.zeros(2048, 4096)
    other = whole[:, start:].view(torch.bfloat16)
    for one in (whole[:, :2048], whole[:1, :2048].expand(2048, 2048)):
        assert shares_memory(one, other) == shared == shares_memory(other, one)
