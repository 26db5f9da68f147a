"""Models of transformers and timm, with random weights: nothing is downloaded. And what
a training step of one takes, plain and patched: forward, loss and backward without dropout."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from epigrad.cli.contest import Candidate, contest
from epigrad.cli.report import Row
from epigrad.integrations.patching import patch

Inputs = tuple[Tensor, Tensor]
"""What a model is called with, and what it should have answered."""


@dataclass(frozen=True, slots=True)
class Model:
    """A language model of transformers, or timm's vision transformer.

    Attributes:
        class_name: of the library; transformers' knows its configuration's.
        batch: on a GPU: sequences and their tokens, or images and the pixels of a side.
        large: options of the configuration on a GPU.
        small: options on a CPU, whose batch is 4 by 128.
        options: in every size.
        library: the package.
    """

    class_name: str
    batch: tuple[int, int]
    large: Mapping[str, int]
    small: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    library: str = "transformers"

    def make(self, on_cuda: bool) -> tuple[nn.Module, Inputs]:
        """The model in float32, and random tokens, which are to be predicted too, or random images
        of random classes."""
        batch, length = self.batch if on_cuda else (4, 128)
        options, library = {**self.options, **(self.large if on_cuda else self.small)}, import_module(self.library)
        generator = torch.Generator("cpu").manual_seed(1)
        if self.library == "timm":
            vision = library.models.VisionTransformer(img_size=length, **options)
            images = torch.randn(batch, 3, length, length, generator=generator, device="cpu")
            return vision, (images, torch.randint(vision.num_classes, (batch,), generator=generator, device="cpu"))
        library.logging.set_verbosity_error()
        model_class = getattr(library, self.class_name)
        made = model_class(model_class.config_class(**options))
        return made, (torch.randint(made.config.vocab_size, (batch, length), generator=generator, device="cpu"),) * 2

    def forward(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        if self.library == "timm":
            logits: Tensor = module(inputs[0])
            return cross_entropy(logits, inputs[1]), logits
        out = module(input_ids=inputs[0], labels=inputs[1])
        return out.loss, out.logits


_GPT2: dict[str, Any] = {
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    **dict.fromkeys(("bos_token_id", "eos_token_id")),  # which a small vocabulary does not have
    "use_cache": False,
    "loss_type": "ForCausalLM",
}
_BERT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
_CAUSAL = {"use_cache": False}
_LARGE = {"num_hidden_layers": 8, "hidden_size": 2048, "num_attention_heads": 32, "vocab_size": 32000}
_SMALL = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 4096}
_LLAMA = {**_LARGE, "intermediate_size": 8192, "num_key_value_heads": 8}
_GEMMA = {**_LARGE, "intermediate_size": 16384, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}
_QWEN3 = {**_LARGE, "num_hidden_layers": 6, "intermediate_size": 6144, "num_key_value_heads": 4, "head_dim": 128}
_QWEN3 |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_SMALL_BERT = {**_SMALL, "intermediate_size": 1024}
_SMALL_GEMMA = {**_SMALL, "intermediate_size": 2048, "num_key_value_heads": 1, "head_dim": 64}
_SMALL_QWEN3 = {**_SMALL, "num_hidden_layers": 2, "intermediate_size": 512, "num_key_value_heads": 2}
_SMALL_QWEN3 |= {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
_SMALL_VIT = {"embed_dim": 256, "depth": 4, "num_heads": 4, "num_classes": 100}

# Without options it is the library's own size: GPT-2 of 124M parameters, BERT base, ViT-B/16.
# Qwen3 has six layers of Qwen3-30B-A3B's.
MODELS = {
    "gpt2": Model("GPT2LMHeadModel", (8, 512), {}, _SMALL, _GPT2),
    "bert": Model("BertForMaskedLM", (16, 512), {}, _SMALL_BERT, _BERT),
    "llama": Model("LlamaForCausalLM", (4, 1024), _LLAMA, {**_SMALL_BERT, "num_key_value_heads": 2}, _CAUSAL),
    "gemma": Model("GemmaForCausalLM", (2, 1024), _GEMMA, _SMALL_GEMMA, _CAUSAL),
    "qwen3-moe": Model("Qwen3MoeForCausalLM", (2, 4096), _QWEN3, _SMALL_QWEN3, _CAUSAL),
    "vit": Model("VisionTransformer", (64, 224), {}, _SMALL_VIT, library="timm"),
}


def measure(model: Model, device: torch.device, compiled: bool, seconds: float) -> Row:
    """A step of the model as it is, and as `patch` makes it; and of both compiled."""
    on_cuda = device.type == "cuda"
    torch.manual_seed(0)
    with device:
        plain, inputs = model.make(on_cuda)
    dtype = torch.bfloat16 if on_cuda else torch.float32
    plain = plain.to(dtype).train()
    given, wanted = (x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in inputs)
    patched = copy.deepcopy(plain)
    report = patch(patched)
    if not report.patched or report.left:
        raise RuntimeError(str(report).replace("\n", ";"))
    modules: dict[str, Any] = {"epigrad": patched, "eager": plain}
    if compiled:
        torch._dynamo.reset()
        both = (("compile", plain), ("epigrad compile", patched))
        modules |= {name: torch.compile(module, dynamic=False) for name, module in both}
    candidates = {
        name: Candidate(lambda module=module: model.forward(module, (given, wanted))[0], list(module.parameters()))
        for name, module in modules.items()
    }
    size = f"{given.shape[0]} x {given.shape[-1]}"
    return {"size": size, **contest(candidates, device, seconds, host=True)}
