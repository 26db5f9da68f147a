"""epigrad's layers in Hugging Face's `kernels`: `kernelize` in training mode, on a CPU.

Which classes of transformers have a name for `kernels` depends on the releases of both, so the
tests give them their names themselves.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import kernels
import peft
import pytest
import torch
from epigrad import errors, functional
from epigrad.integrations.kernels import LAYERS, mapping, register
from kernels import Mode
from torch import Tensor, nn
from transformers import activations
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaMLP

from tests.support import models
from tests.support.models import MODELS
from tests.support.tiers import thorough

TRAINING, COMPILED = Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE


def name(monkeypatch: pytest.MonkeyPatch, cls: type[nn.Module], layer: str) -> None:
    """What `use_kernel_forward_from_hub` does to a class, until the test ends."""
    for attribute in ("kernel_layer_name", "kernel_condition"):
        monkeypatch.setattr(cls, attribute, None, raising=False)
    kernels.replace_kernel_forward_from_hub(cls, layer)


def kernelized(model: nn.Module, mode: Mode = TRAINING) -> Any:
    """A copy of a model with all layers that epigrad has, and no others."""
    with kernels.use_kernel_mapping(mapping(), inherit_mapping=False):
        return kernels.kernelize(copy.deepcopy(model), mode=mode, device="cpu", use_fallback=False)


def calls(monkeypatch: pytest.MonkeyPatch, function: str) -> list[None]:
    """As many entries as there were calls of a function of epigrad's."""
    counted: list[None] = []
    own = getattr(functional, function)
    monkeypatch.setattr(functional, function, lambda *a, **k: (counted.append(None), own(*a, **k))[1])
    return counted


def assert_trains_as(model: nn.Module, own: nn.Module, name: str) -> None:
    out, want = MODELS[name].output(model), MODELS[name].output(own)
    torch.testing.assert_close(out, want)
    out.square().sum().backward()
    want.square().sum().backward()
    for got, parameter in zip(model.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(got.grad, parameter.grad)


@pytest.mark.parametrize("activations_too", [False, True])
@pytest.mark.parametrize(
    ("model", "block", "layer"), [("llama", LlamaMLP, "SwiGLUMLP"), ("gemma", GemmaMLP, "GeGLUMLP")]
)
def test_a_model_trains_as_its_own(
    model: str, block: type[nn.Module], layer: str, activations_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name(monkeypatch, block, layer)
    if activations_too:
        name(monkeypatch, activations.SiLUActivation, "SiLU")
        name(monkeypatch, activations.GELUTanh, "GeluTanh")
    own = models.make(model)
    counted = calls(monkeypatch, "gated_linear")
    assert_trains_as(kernelized(own), own, model)
    assert len(counted) == 2  # one for each layer


@thorough
def test_compiled_without_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    name(monkeypatch, LlamaMLP, "SwiGLUMLP")
    name(monkeypatch, activations.SiLUActivation, "SiLU")
    own = models.make("llama")
    model = kernelized(own, COMPILED)
    counted = calls(monkeypatch, "gated_linear")
    assert_trains_as(torch.compile(model, fullgraph=True, backend="aot_eager"), own, "llama")
    # While Dynamo traced, which in PyTorch 2.10 keeps to a block's own forward.
    assert len(counted) == (2 if torch.__version__ >= "2.11" else 0)


def test_the_name_says_less_than_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of another activation than its name's is computed by that, or by itself."""
    own = models.make("llama")
    for act_fn, count in (("gelu", 2), ("gelu_fast", 0)):
        for layer in own.model.layers:  # type: ignore[union-attr]
            layer.mlp.act_fn = activations.ACT2FN[act_fn]
        name(monkeypatch, LlamaMLP, "SwiGLUMLP")
        counted = calls(monkeypatch, "gated_linear")
        own.zero_grad()
        assert_trains_as(kernelized(own), own, "llama")
        assert len(counted) == count
        monkeypatch.undo()


# peft 0.21 asks transformers 5.23 by an old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_and_hooks_keep_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a module is watched by a hook on all modules."""
    name(monkeypatch, LlamaMLP, "SwiGLUMLP")
    lora = peft.LoraConfig(target_modules=["up_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(models.make("llama"), lora)
    model = kernelized(adapted)
    products, seen = calls(monkeypatch, "gated_linear"), []
    torch.testing.assert_close(MODELS["llama"].output(model), MODELS["llama"].output(adapted))
    assert len(products) == 2
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        MODELS["llama"].output(kernelized(models.make("llama")))
    finally:
        handle.remove()
    assert seen.count(activations.SiLUActivation) == 2


class Packed(nn.Module):
    """A gate before its values, as `SiluAndMul` and its like have it."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.act = {
            "SiluAndMul": nn.functional.silu,
            "GeluAndMul": nn.functional.gelu,
            "GeluTanhAndMul": lambda gate: nn.functional.gelu(gate, approximate="tanh"),
        }[layer]

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, -1)
        out: Tensor = self.act(gate) * value
        return out


class Unnamed(nn.Module):
    """A SwiGLU block that says nowhere what its activation is."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


MODULES: dict[str, Any] = {
    "SiLU": activations.SiLUActivation,
    "GeLU": activations.GELUActivation,
    "GeluTanh": activations.GELUTanh,
    "NewGELU": activations.NewGELUActivation,
    "QuickGELU": activations.QuickGELUActivation,
    **{layer: lambda layer=layer: Packed(layer) for layer in LAYERS if layer.endswith("AndMul")},
    "SwiGLUMLP": Unnamed,
}


@pytest.mark.parametrize("layer", MODULES)
def test_every_layer_is_the_function_of_its_name(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = MODULES[layer]()
    name(monkeypatch, type(own), layer)
    x = torch.randn(5, 6, dtype=torch.float64)
    got = kernelized(own.double())
    assert got.forward.__func__ is LAYERS[layer].forward
    torch.testing.assert_close(got(x), own(x))
    assert torch.autograd.gradcheck(got, x.requires_grad_())


def test_every_name_has_a_test() -> None:
    assert LAYERS.keys() - MODULES.keys() == {"GeGLUMLP"}  # Gemma's, above


def test_register_is_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    name(monkeypatch, activations.SiLUActivation, "SiLU")
    with kernels.use_kernel_mapping({}, inherit_mapping=False):  # ends what is registered inside
        register(["SiLU"], devices="cpu")
        layer = kernels.kernelize(activations.SiLUActivation(), mode=TRAINING, device="cpu", use_fallback=False)
    assert layer.forward.__func__ is LAYERS["SiLU"].forward


def test_wrong_names_are_told() -> None:
    with pytest.raises(errors.InvalidProblemError, match="names: got 'FastGELU', want some of SiLU, "):
        mapping("FastGELU")
    with pytest.raises(errors.InvalidProblemError, match="devices: got 'mps', want some of cpu, cuda"):
        mapping(devices=["mps"])


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels", None)
    with pytest.raises(errors.UnsupportedError, match="pip install kernels"):
        register()
