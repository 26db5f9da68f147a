"""Patched models in what trains and runs them: generate, Trainer, gradient checkpointing, PEFT,
accelerate."""

from __future__ import annotations

import pathlib
from typing import Any

import accelerate.hooks
import peft
import pytest
import torch
import transformers
from epigrad.integrations.patching import Patched
from epigrad.integrations.transformers import patch, unpatch
from torch import Tensor, nn

from tests.support import models
from tests.support.models import MODELS
from tests.support.tiers import thorough

pytestmark = [
    pytest.mark.usefixtures("_one_thread"),
    # peft 0.21 asks transformers 5.23 by an old name.
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing` is deprecated:FutureWarning"),
]
# What transformers called gradient checkpointing before.
_RENAMED = hasattr(transformers.PreTrainedModel, "activation_checkpointing_enable")
CHECKPOINTING = "activation_checkpointing" if _RENAMED else "gradient_checkpointing"


def gradients(model: nn.Module, out: Tensor) -> dict[str, Tensor]:
    """Gradients to what is trained, by name."""
    model.zero_grad()
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64))
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("name", ["llama", "gemma", "gpt2"])
def test_generate_gives_the_same_tokens(name: str) -> None:
    """Greedily and by drawing, with the cache that makes later steps one token long."""
    model: Any = models.make(name).eval()
    prompt = models.tokens(2, 4)
    length = {"max_new_tokens": 6, "min_new_tokens": 6, "attention_mask": torch.ones_like(prompt)}
    settings: list[dict[str, Any]] = [{"do_sample": False}, {"do_sample": True}, {"num_beams": 2, "do_sample": False}]

    def generated() -> list[Tensor]:
        torch.manual_seed(1)
        return [model.generate(prompt, **length, **each) for each in settings]

    want = generated()
    assert patch(model).patched
    for got, tokens in zip(generated(), want, strict=True):
        assert got.shape[1] == 10 and torch.equal(got, tokens)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(name: str, reentrant: bool) -> None:
    model: Any = models.make(name)
    patch(model)
    want = gradients(model, MODELS[name].output(model))
    getattr(model, f"{CHECKPOINTING}_enable")({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    assert getattr(model, f"is_{CHECKPOINTING}")
    got = gradients(model, MODELS[name].output(model))
    assert got.keys() == want.keys()
    for key, gradient in want.items():
        assert torch.equal(got[key], gradient), key


@pytest.mark.parametrize("name", ["mistral", "gpt2"])
@thorough
def test_trainer_trains_the_same(name: str, tmp_path: pathlib.Path) -> None:
    """Some steps of AdamW with accumulation, clipping and checkpointing, and what was saved loads
    where nothing is patched.
    """
    rows = [row.clone() for row in models.tokens(8, 7)]
    data = [{"input_ids": row, "labels": row} for row in rows]

    def trained(model: Any, folder: str) -> list[float]:
        options: dict[str, Any] = {
            "max_steps": 3,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            CHECKPOINTING: True,
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
        }
        arguments = transformers.TrainingArguments(output_dir=str(tmp_path / folder), **options)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)  # type: ignore[arg-type]
        trainer.train()
        trainer.save_model()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    want_model, got_model = models.make(name), models.make(name)
    patch(got_model)
    want, got = trained(want_model, "own"), trained(got_model, "patched")
    assert len(got) == 3 and got == pytest.approx(want, rel=1e-6)
    for x, y in zip(got_model.parameters(), want_model.parameters(), strict=True):
        torch.testing.assert_close(x, y)
    assert isinstance(got_model.get_submodule(MODELS[name].block), Patched)
    loaded = type(want_model).from_pretrained(tmp_path / "patched", dtype=torch.float64)
    for x, y in zip(loaded.parameters(), want_model.parameters(), strict=True):
        torch.testing.assert_close(x, y)


ADAPTERS = {
    "llama": ["gate_proj", "up_proj", "down_proj"],
    "gemma": ["up_proj"],
    "phi3": ["gate_up_proj"],
    "gpt2": ["c_fc"],
    "gptneo": ["c_proj"],
    "phi": ["fc1", "fc2"],
    "bert": ["dense"],
    "timm": ["fc1"],
}


def adapted(model: nn.Module, name: str) -> nn.Module:
    """The model with LoRA adapters that are not 0, the same each time."""
    conv1d = name == "gpt2"
    config = peft.LoraConfig(target_modules=ADAPTERS[name], r=2, lora_alpha=4, fan_in_fan_out=conv1d)
    wrapped = peft.get_peft_model(model, config)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(4)
    for key, parameter in wrapped.named_parameters():
        if "lora_" in key:
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
    return wrapped


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_keep_their_part(name: str, when: str) -> None:
    """LoRA on the patched projections, before the patch or after it: outputs and the adapters'
    gradients are right, and merged adapters leave plain projections, which epigrad computes again.
    """
    plain = models.make(name)
    want_model = adapted(models.make(name), name)
    got_model = models.make(name)
    if when == "after":
        patch(got_model)
    got_model = adapted(got_model, name)
    if when == "before":
        patch(got_model)
    out, want_out = MODELS[name].output(got_model), MODELS[name].output(want_model)
    assert not torch.allclose(out, MODELS[name].output(plain), rtol=1e-2), "the adapters change nothing"
    torch.testing.assert_close(out, want_out)
    got, want = gradients(got_model, out), gradients(want_model, want_out)
    assert got.keys() == want.keys() and all("lora_" in key for key in got)
    for key, gradient in want.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(got[key], gradient)
    with got_model.disable_adapter(), want_model.disable_adapter():  # type: ignore[operator]
        torch.testing.assert_close(MODELS[name].output(got_model), MODELS[name].output(want_model))
    merged = got_model.merge_and_unload()  # type: ignore[operator]
    report = patch(merged)
    assert not report.left
    torch.testing.assert_close(MODELS[name].output(merged), want_out)
    assert unpatch(merged) == tuple(report.patched) and len(report.patched) >= 2


def test_trainer_trains_adapters(tmp_path: pathlib.Path) -> None:
    model = models.make("gpt2")
    patch(model)
    wrapped: Any = adapted(model, "gpt2")
    before = {key: value.clone() for key, value in wrapped.state_dict().items()}
    data = [{"input_ids": row, "labels": row} for row in models.tokens(4, 7)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, learning_rate=1e-2, use_cpu=True, report_to=[], disable_tqdm=True
    )
    transformers.Trainer(model=wrapped, args=arguments, train_dataset=data).train()  # type: ignore[arg-type]
    changed = {key for key, value in wrapped.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {key for key in before if "lora_" in key}


def test_offloaded_layers_are_called() -> None:
    """accelerate's hooks bring weights where they are needed when a layer is called, and only
    then."""
    model = models.make("phi")
    want = MODELS["phi"].output(model)
    patch(model)
    layer: Any = model.get_submodule("model.layers.0.mlp.fc1")
    weights = {f"{name}": parameter.detach().clone() for name, parameter in layer.named_parameters()}
    hook = accelerate.hooks.AlignDevicesHook(execution_device="cpu", offload=True, weights_map=weights)
    accelerate.hooks.add_hook_to_module(layer, hook)
    assert layer.weight.is_meta
    torch.testing.assert_close(MODELS["phi"].output(model), want)
    accelerate.hooks.remove_hook_from_module(layer)
