"""The models of ``bench --models``: those of transformers and of timm, built from configurations
with random weights. Nothing is downloaded.

Dropout is off, so that two ways to compute a model can be compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as torch_functional

Inputs = tuple[Tensor, Tensor]
"""What a model is called with, and what it should have answered."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a model and its batch are.

    Attributes:
        batch: sequences or images.
        length: tokens of a sequence, or pixels of an image's side.
        options: of the model's configuration.
    """

    batch: int
    length: int
    options: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.batch} x {self.length}"


@dataclass(frozen=True, slots=True)
class Language:
    """A language model of transformers.

    Attributes:
        class_name: the model's; it knows its configuration's.
        sizes: by `Settings.size` of `bench_models`.
        options: of its configuration, in every size.
        liger: Liger's function that patches such a model, if there is one.
    """

    class_name: str
    sizes: Mapping[str, Size]
    options: Mapping[str, Any]
    liger: str = ""
    library = "transformers"

    def make(self, size: Size) -> nn.Module:
        """The model in float32."""
        made = getattr(importlib.import_module("transformers"), self.class_name)
        built: nn.Module = made(made.config_class(**self.options, **size.options))
        return built

    def inputs(self, size: Size, like: nn.Module) -> Inputs:
        """Random tokens, which are to be predicted too."""
        vocabulary: Any = like.config.vocab_size  # type: ignore[union-attr]
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(vocabulary, (size.batch, size.length), generator=generator)
        tokens = tokens.to(next(like.parameters()).device)
        return tokens, tokens

    def forward(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The loss and the logits."""
        out = module(input_ids=inputs[0], labels=inputs[1])
        return out.loss, out.logits


@dataclass(frozen=True, slots=True)
class Vision:
    """timm's vision transformer. The attributes are those of `Language`."""

    sizes: Mapping[str, Size]
    liger = ""
    library = "timm"

    def make(self, size: Size) -> nn.Module:
        """The model in float32."""
        timm = importlib.import_module("timm")
        built: nn.Module = timm.models.VisionTransformer(img_size=size.length, **size.options)
        return built

    def inputs(self, size: Size, like: nn.Module) -> Inputs:
        """Random images of random classes."""
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(size.batch, 3, size.length, size.length, generator=generator)
        classes: Any = like.num_classes
        wanted = torch.randint(classes, (size.batch,), generator=generator)
        parameter = next(like.parameters())
        return images.to(parameter), wanted.to(parameter.device)

    def forward(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The loss and the logits."""
        logits: Tensor = module(inputs[0])
        return torch_functional.cross_entropy(logits, inputs[1]), logits


Model = Language | Vision


def _language(layers: int, features: int, hidden: int, heads: int, vocabulary: int, **more: int) -> dict[str, int]:
    """Options as most configurations call them."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": features,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        **more,
    }


def _mixture(experts: int, each: int, hidden: int, **more: int) -> dict[str, int]:
    """Options of a mixture of experts, `each` of which a token is sent to."""
    return {"num_experts": experts, "num_experts_per_tok": each, "moe_intermediate_size": hidden, **more}


_GPT2_FIXED = {
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    **dict.fromkeys(("bos_token_id", "eos_token_id")),  # which a small vocabulary does not have
    "use_cache": False,
    "loss_type": "ForCausalLM",
}
_BERT_FIXED = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
_CAUSAL = {"use_cache": False}

MODELS: dict[str, Model] = {
    "gpt2": Language(
        "GPT2LMHeadModel",
        {
            "cuda": Size(8, 512),  # the configuration's own: 124M parameters
            "cpu": Size(4, 128, {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 4096}),
            "quick": Size(2, 16, {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64}),
        },
        _GPT2_FIXED,
    ),
    "bert": Language(
        "BertForMaskedLM",
        {
            "cuda": Size(16, 512),  # base
            "cpu": Size(4, 128, _language(4, 256, 1024, 4, 4096)),
            "quick": Size(2, 16, _language(2, 32, 64, 2, 64)),
        },
        _BERT_FIXED,
    ),
    "llama": Language(
        "LlamaForCausalLM",
        {
            "cuda": Size(4, 1024, _language(8, 2048, 8192, 32, 32000, num_key_value_heads=8)),
            "cpu": Size(4, 128, _language(4, 256, 1024, 4, 4096, num_key_value_heads=2)),
            "quick": Size(2, 16, _language(2, 32, 64, 2, 64)),
        },
        _CAUSAL,
        liger="apply_liger_kernel_to_llama",
    ),
    "gemma": Language(
        "GemmaForCausalLM",
        {
            "cuda": Size(2, 1024, _language(8, 2048, 16384, 8, 32000, num_key_value_heads=1, head_dim=256)),
            "cpu": Size(4, 128, _language(4, 256, 2048, 4, 4096, num_key_value_heads=1, head_dim=64)),
            "quick": Size(2, 16, _language(2, 32, 128, 2, 64, num_key_value_heads=1, head_dim=16)),
        },
        _CAUSAL,
        liger="apply_liger_kernel_to_gemma",
    ),
    "qwen3-moe": Language(
        "Qwen3MoeForCausalLM",
        {
            # six layers of Qwen3-30B-A3B's size
            "cuda": Size(
                2,
                4096,
                _mixture(128, 8, 768, **_language(6, 2048, 6144, 32, 32000, num_key_value_heads=4, head_dim=128)),
            ),
            "cpu": Size(4, 128, _mixture(16, 4, 256, **_language(2, 256, 512, 4, 4096, num_key_value_heads=2))),
            "quick": Size(2, 16, _mixture(4, 2, 32, **_language(2, 32, 64, 2, 64, num_key_value_heads=1))),
        },
        _CAUSAL,
    ),
    "vit": Vision(
        {
            "cuda": Size(64, 224),  # the class's own: ViT-B/16
            "cpu": Size(8, 128, {"embed_dim": 256, "depth": 4, "num_heads": 4, "num_classes": 100}),
            "quick": Size(2, 16, {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}),
        }
    ),
}
