"""What looks at operations from outside: checkpoints, profiler, FLOP counter, fake tensors,
subclasses, CUDA graphs."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import epigrad
import pytest
import torch
from epigrad._core import loader
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import captured
from tests.support.devices import needs, on_devices
from tests.support.features import feature
from tests.support.layouts import assert_same_bits
from tests.support.operators import FUNCTIONS, NAMES, each_function


@feature("eager")
@on_devices
@each_function
def test_a_plain_call(op: str, device: str) -> None:
    call, tensors = FUNCTIONS[op], FUNCTIONS[op].tensors(device, torch.float64)
    out, want = call.function(*tensors), call.eager(*tensors)
    torch.testing.assert_close(out, want)
    grads, wanted = (torch.autograd.grad(result.sin().sum(), tensors) for result in (out, want))
    torch.testing.assert_close(grads, wanted)


@feature("checkpoint")
@on_devices
@each_function
@pytest.mark.parametrize("save", [True, False], ids=["saved", "recomputed"])
def test_selective_checkpoints_choose_by_name(op: str, save: bool, device: str) -> None:
    function, tensors = FUNCTIONS[op].function, FUNCTIONS[op].tensors(device)
    overload = getattr(torch.ops.epigrad, op).default
    calls: list[bool] = []

    def policy(context: Any, called: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if called is not overload:
            return CheckpointPolicy.PREFER_RECOMPUTE
        calls.append(context.is_recompute)
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    with FlopCounterMode(display=False) as flops:
        out = checkpoint(lambda *t: function(*t).sin(), *tensors, use_reentrant=False, context_fn=contexts)
        grads = torch.autograd.grad(out.sum(), tensors)
    assert calls[:1] == [False]
    with FlopCounterMode(display=False) as plain:
        want = torch.autograd.grad(function(*tensors).sin().sum(), tensors)
    for one, other in zip(grads, want, strict=True):
        assert_same_bits(one, other)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        function(*tensors)
    again = 0 if save else forward.get_total_flops()
    assert flops.get_total_flops() == plain.get_total_flops() + again


@each_function
def test_flops_are_those_of_the_products(op: str) -> None:
    call, tensors = FUNCTIONS[op], FUNCTIONS[op].tensors()
    counts = []
    for function in (call.function, call.eager):
        with FlopCounterMode(display=False) as counter:
            function(*tensors).sum().backward()
        counts.append(counter.get_total_flops())
    # Operators count every row or slot: who has none of the groups is known on the device alone.
    share = {"grouped_linear": 5 / 6, "experts": 3 / 4}.get(op, 1)
    assert counts[0] * share == counts[1]


def test_flops_of_an_input_without_gradient() -> None:
    x, weight, _ = FUNCTIONS["linear"].tensors()
    with FlopCounterMode(display=False) as counter:
        epigrad.linear(x.detach(), weight).sum().backward()
    assert counter.get_total_flops() == 2 * (2 * 6 * 4 * 5)


def test_flops_of_what_is_formed_again() -> None:
    tensors = FUNCTIONS["linear"].tensors()
    counts = {}
    for save in ("preactivation", "recompute"):
        with FlopCounterMode(display=False) as counter:
            epigrad.linear(*tensors, "gelu", save=save).sum().backward()
        counts[save] = counter.get_total_flops()
    product = 2 * 6 * 4 * 5
    assert counts == {"preactivation": 3 * product, "recompute": 4 * product}


@on_devices
@each_function
def test_a_profiler_names_the_operators(op: str, device: str) -> None:
    tensors = FUNCTIONS[op].tensors(device)
    with torch.profiler.profile(record_shapes=True, acc_events=True) as profile:
        FUNCTIONS[op].function(*tensors).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {f"epigrad::{op}", f"epigrad::{op}_backward"} <= names


@each_function
def test_fake_tensors_have_the_real_shapes_and_strides(op: str) -> None:
    real = FUNCTIONS[op].function(*FUNCTIONS[op].tensors())
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in FUNCTIONS[op].tensors()]
        out = FUNCTIONS[op].function(*fakes)
        grads = torch.autograd.grad(out.sum(), fakes)
    assert (out.shape, out.stride(), out.dtype) == (real.shape, real.stride(), real.dtype)
    assert [g.shape for g in grads] == [t.shape for t in fakes]


class Named(Tensor):
    """A subclass that only watches."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


@each_function
def test_subclasses_are_kept_and_see_the_operator(op: str) -> None:
    tensors = FUNCTIONS[op].tensors()
    Named.seen.clear()
    out = FUNCTIONS[op].function(*[t.detach().as_subclass(Named) for t in tensors])
    assert type(out) is Named and f"epigrad.{op}.default" in Named.seen
    assert_same_bits(out.as_subclass(Tensor), FUNCTIONS[op].function(*tensors).detach())


MODULES: dict[str, Any] = {
    "MLP": lambda: epigrad.nn.MLP(4, 8),
    "GatedMLP": lambda: epigrad.nn.GatedMLP(4, 8, "geglu", gate="first"),
}


@pytest.mark.parametrize("name", MODULES)
def test_hooks_of_layers_inside_of_blocks_run(name: str) -> None:
    module, x = MODULES[name](), torch.randn(3, 4)
    want = module(x)
    seen: list[tuple[int, ...]] = []
    handle = module.up.register_forward_hook(lambda layer, inputs, output: seen.append(tuple(output.shape)))
    torch.testing.assert_close(module(x), want)
    handle.remove()
    assert seen == [(3, module.up.out_features)]
    module.down.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 0,))
    bias = torch.zeros(4) if module.down.bias is None else module.down.bias
    torch.testing.assert_close(module(x), bias.expand(3, 4))


@feature("CUDA graph")
@needs("cuda")
@pytest.mark.parametrize("device", ["cuda"])
@each_function
def test_a_cuda_graph_replays_forward_and_backward(op: str, device: str) -> None:
    function, tensors = FUNCTIONS[op].function, FUNCTIONS[op].tensors(device)

    def step() -> tuple[Tensor, ...]:
        # Detached: a graph that outlives its step ties the leaves to the stream that it was
        # recorded on.
        out = function(*tensors)
        return out.detach(), *torch.autograd.grad(out, tensors, torch.ones_like(out))

    graph, results = captured(step)
    with torch.no_grad():
        for tensor in tensors:
            tensor.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(results, step(), strict=True):
        assert_same_bits(one, other)


def test_every_function_is_here() -> None:
    assert set(NAMES) == set(FUNCTIONS)


class Changing(TorchFunctionMode):
    """A mode under which linear layers give something else."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out + 1 if func is nn.functional.linear else out


@pytest.mark.parametrize("how", ["the forward of Linear", "linear", "a mode"])
@pytest.mark.parametrize("name", ["MLP", "GatedMLP"])
def test_what_changes_all_linear_layers_changes_those_of_blocks(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, x = MODULES[name](), torch.randn(3, 4)
    plain = block(x)
    with contextlib.ExitStack() as changed:
        if how == "a mode":
            changed.enter_context(Changing())
        else:
            owner: Any = nn.functional if how == "linear" else nn.Linear
            attribute = "linear" if how == "linear" else "forward"
            own = getattr(owner, attribute)
            monkeypatch.setattr(owner, attribute, lambda *arguments: own(*arguments) + 1)
        hidden = block.up(x)
        if name == "MLP":
            hidden = epigrad.activation(hidden, block.activation)
        else:
            hidden = epigrad.gated_activation(hidden, block.kind, gate=block.gate)
        assert_same_bits(block(x).detach(), block.down(hidden).detach())
    monkeypatch.undo()
    assert_same_bits(block(x).detach(), plain.detach())


@pytest.mark.filterwarnings("ignore:.*TF32:UserWarning")
def test_tf32_follows_each_of_pytorchs_switches() -> None:
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.fp32_precision
    try:
        for name, allowed in (("high", True), ("highest", False), ("medium", True)):
            torch.set_float32_matmul_precision(name)
            assert loader.allows_tf32() == allowed, name
        for name, allowed in (("ieee", False), ("tf32", True)):
            matmul.fp32_precision = name
            assert loader.allows_tf32() == allowed, name
        for allowed in (False, True):
            matmul.allow_tf32 = allowed
            assert loader.allows_tf32() == allowed
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.fp32_precision = before[1]
