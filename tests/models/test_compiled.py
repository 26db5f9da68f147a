"""Patched models under torch.compile, torch.export, autocast and torch.func."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from epigrad.integrations.transformers import patch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.support import models
from tests.support.models import MODELS
from tests.support.tiers import in_turns, thorough

pytestmark = pytest.mark.usefixtures("_one_thread", "_fresh_dynamo")
# One of each kind of block.
NAMES = ("llama", "gpt2", "phi3", "bert", "timm")
FORMS = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def pair(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    """A patched block and the same block unpatched."""
    patched, own = (models.make(name, dtype).get_submodule(MODELS[name].block) for _ in range(2))
    assert patch(patched).patched
    return patched, own


def hidden(*leading: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(leading))
    return torch.randn(*leading, models.FEATURES, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def assert_same(got: nn.Module, want: nn.Module, own: nn.Module, x: Tensor) -> None:
    """Outputs and gradients of two modules with the parameters of `own`."""
    results = []
    for module, parameters in ((got, list(got.parameters())), (want, list(own.parameters()))):
        out = module(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, *parameters])))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", in_turns(NAMES, len(NAMES), thorough))
def test_blocks_compile_without_graph_breaks(name: str) -> None:
    patched, own = pair(name)
    compiled: Any = torch.compile(patched, fullgraph=True, backend="aot_eager")
    for length in (5, 6, 7):
        assert_same(compiled, own, own, hidden(2, length))
    # a static one, then a dynamic one
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize(("owner", "name"), [(nn.Linear, "forward"), (nn.functional, "linear")])
def test_compiled_blocks_do_not_pass_over_a_replaced_layer(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced before the first call; what Dynamo sees of later changes is up to it."""
    patched, unpatched = pair("llama")
    own = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments, **named: own(*arguments, **named) + 1)
    compiled: Any = torch.compile(patched, fullgraph=True, backend="aot_eager")
    x = hidden(2, 5)
    torch.testing.assert_close(compiled(x), unpatched(x))


def test_compiled_blocks_under_a_mode_call_their_layers() -> None:
    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    patched, _ = pair("llama")
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled: Any = torch.compile(patched, fullgraph=True, backend=backend)
    with Watching():
        compiled(hidden(2, 5))
    compiled(hidden(2, 5))
    assert ["epigrad" in graph.code for graph in graphs] == [False, True]


@thorough
def test_a_whole_model_compiles() -> None:
    patched, own = models.make("gpt2"), models.make("gpt2")
    patch(patched)
    compiled: Any = torch.compile(patched, fullgraph=True, backend="aot_eager")
    out, want = MODELS["gpt2"].output(compiled), MODELS["gpt2"].output(own)
    out.square().sum().backward()
    want.square().sum().backward()
    torch.testing.assert_close(out, want)
    for got, parameter in zip(patched.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(got.grad, parameter.grad)


# By default PyTorch up to 2.11 looks for no hooks that came after compiling, of its own modules
# neither.
@torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)
def test_what_comes_after_compiling_is_not_passed_over() -> None:
    """A hook, then an adapter, on a projection of a block that was compiled as one product."""
    patched, own = pair("gpt2")
    compiled: Any = torch.compile(patched, fullgraph=True, backend="aot_eager")
    x = hidden(2, 5)
    before = compiled(x)
    handles = [block.c_fc.register_forward_hook(lambda module, inputs, out: out * 2) for block in (patched, own)]
    assert not torch.allclose(compiled(x), before)
    assert_same(compiled, own, own, x)
    for handle in handles:
        handle.remove()
    for block in (patched, own):
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, init_lora_weights=False)
        adapter = peft.tuners.lora.Linear(block.c_fc, "default", config, r=2, fan_in_fan_out=True)
        block.c_fc = adapter.double()
    assert not torch.allclose(compiled(x), before)
    torch.testing.assert_close(compiled(x), own(x))


@FORMS
def test_blocks_are_exported(name: str) -> None:
    patched, own = pair(name)
    length = torch.export.Dim("length", min=2, max=64)
    arguments = (hidden(2, 5).detach(),)
    program = torch.export.export(patched, arguments, dynamic_shapes=({1: length},))
    x = hidden(2, 9).detach()
    torch.testing.assert_close(program.module()(x), own(x))


@FORMS
def test_autocast_gives_what_the_block_gives(name: str) -> None:
    """The dtypes are the same, and the error against float64 is no larger."""
    patched, own = pair(name, torch.float32)
    reference = pair(name)[1]
    x = hidden(64, dtype=torch.float32)

    def run(block: nn.Module, x: Tensor, enabled: bool) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = block(x)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), [x, *block.parameters()])]

    want = run(reference, x.detach().double().requires_grad_(), False)
    got, theirs = run(patched, x, True), run(own, x, True)
    assert [each.dtype for each in got] == [each.dtype for each in theirs]
    assert got[0].dtype == torch.bfloat16

    def error(results: list[Tensor]) -> float:
        parts = [((a.double() - b) / b.abs().max()).square().mean() for a, b in zip(results, want, strict=True)]
        return float(torch.stack(parts).mean().sqrt())

    assert error(got) <= 1.5 * error(theirs)


@FORMS
def test_functional_calls_and_per_sample_gradients(name: str) -> None:
    patched, own = pair(name)
    parameters = {key: value.detach() * 0.5 for key, value in own.named_parameters()}
    x = hidden(3, 2, 4).detach()

    def gradients(block: nn.Module) -> dict[str, Tensor]:
        def loss(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(block, weights, (sample,))
            return out.square().sum()

        found: dict[str, Tensor] = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        return found

    got, want = gradients(patched), gradients(own)
    for key, gradient in want.items():
        assert gradient.shape[0] == 3
        torch.testing.assert_close(got[key], gradient)
