"""Small models of other libraries with random weights, of the classes that `patch` meets most.

Nothing is downloaded. Every model is in training mode with its dropout at 0 unless it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn

VOCABULARY, HIDDEN, FEATURES = 37, 24, 16
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": FEATURES,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


_LANGUAGE = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 64,
}
# Options of the models of `epigrad.cli.models`, for tests.
TINY: dict[str, dict[str, int]] = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64},
    "bert": _LANGUAGE,
    "llama": _LANGUAGE,
    "gemma": {**_LANGUAGE, "intermediate_size": 128, "num_key_value_heads": 1, "head_dim": 16},
    "qwen3-moe": {
        **_LANGUAGE,
        "num_key_value_heads": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "vit": {"patch_size": 16, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10},
}


@dataclass(frozen=True)
class Model:
    """How to make a model, and how to get what it computes.

    Attributes:
        row: the full name of its blocks' class.
        block: the name of its first block.
        make: the model in float32; its argument is the probability of dropout.
        inputs: what it is called with.
    """

    row: str
    block: str
    make: Callable[[float], nn.Module]
    inputs: Callable[[], Tensor]

    def output(self, model: nn.Module, inputs: Tensor | None = None) -> Tensor:
        """The logits, or the last hidden states."""
        like = next(model.parameters())
        inputs = (self.inputs() if inputs is None else inputs).to(like.device)
        out: Any = model(inputs.to(like.dtype) if inputs.is_floating_point() else inputs)
        if isinstance(out, Tensor):
            return out
        result: Tensor = out[0]
        return result


def tokens(batch: int = 2, length: int = 7) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(5))


def _pixels() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))


def _hub(
    family: str, kind: str, block: str, dropouts: tuple[str, ...] = (), folder: str = "", **changes: Any
) -> tuple[str, Model]:
    """A model of transformers; its config takes the sizes above and these changes."""
    name, block_class = kind.split()
    folder = folder or family.lower()

    def make(dropout: float) -> nn.Module:
        options = {**_SIZES, **changes, **dict.fromkeys(dropouts, dropout)}
        config = getattr(transformers, f"{family}{'Text' if 'Text' in name else ''}Config")(**options)
        made: nn.Module = getattr(transformers, family + name)(config)
        return made.train()

    inputs = _pixels if family == "ViT" else tokens
    return family.lower(), Model(
        f"transformers.models.{folder}.modeling_{folder}.{family}{block_class}", block, make, inputs
    )


def _stack(folder: str, block_class: str, **options: Any) -> tuple[str, Model]:
    """Two blocks of a class, of a model whose other layers are many."""
    path = f"transformers.models.{folder}.modeling_{folder}"

    def make(dropout: float) -> nn.Module:
        config = SimpleNamespace(**_SIZES, **options)
        block = getattr(importlib.import_module(path), block_class)
        arguments = (config, 0) if block_class == "Step3p7MLP" else (config,)
        return nn.Sequential(*(block(*arguments) for _ in range(2))).train()

    def inputs() -> Tensor:
        return torch.randn(2, 7, FEATURES, generator=torch.Generator().manual_seed(5))

    return block_class.lower(), Model(f"{path}.{block_class}", "0", make, inputs)


_HEADS = {"num_key_value_heads": 2, "head_dim": 8}
_GPT2_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_BERT_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_VIT = {"image_size": 8, "patch_size": 4}
_NEO = {"attention_types": [[["global"], 2]], "num_layers": 2, "num_heads": 2}


def _vision_transformer(dropout: float) -> nn.Module:
    made: nn.Module = timm.models.VisionTransformer(
        img_size=8,
        patch_size=4,
        embed_dim=FEATURES,
        depth=2,
        num_heads=2,
        mlp_ratio=1.5,
        num_classes=3,
        proj_drop_rate=dropout,
    )
    return made.train()


MODELS: dict[str, Model] = dict(
    (
        _hub("Llama", "ForCausalLM MLP", "model.layers.0.mlp", mlp_bias=True),
        _hub("Mistral", "ForCausalLM MLP", "model.layers.0.mlp", num_key_value_heads=2),
        _hub("Qwen2", "ForCausalLM MLP", "model.layers.0.mlp", num_key_value_heads=2),
        _hub("Qwen3", "ForCausalLM MLP", "model.layers.0.mlp", **_HEADS),
        _hub("Gemma", "ForCausalLM MLP", "model.layers.0.mlp", **_HEADS),
        _hub("Gemma2", "ForCausalLM MLP", "model.layers.0.mlp", **_HEADS),
        _hub("Gemma3", "TextModel MLP", "layers.0.mlp", **_HEADS),
        _hub("Olmo2", "ForCausalLM MLP", "model.layers.0.mlp"),
        _hub("Phi3", "ForCausalLM MLP", "model.layers.0.mlp", ("resid_pdrop",)),
        _hub("Glm", "ForCausalLM MLP", "model.layers.0.mlp", **_HEADS),
        _hub("Phi", "ForCausalLM MLP", "model.layers.0.mlp", ("resid_pdrop",)),
        _hub("GPT2", "LMHeadModel MLP", "transformer.h.0.mlp", _GPT2_DROPOUTS, n_inner=HIDDEN, loss_type="ForCausalLM"),
        _hub(
            "GPTNeo",
            "ForCausalLM MLP",
            "transformer.h.0.mlp",
            ("resid_dropout", "embed_dropout", "attention_dropout"),
            "gpt_neo",
            **_NEO,
        ),
        _hub("GPTNeoX", "ForCausalLM MLP", "gpt_neox.layers.0.mlp", folder="gpt_neox"),
        _hub("Bert", "ForMaskedLM Intermediate", "bert.encoder.layer.0.intermediate", _BERT_DROPOUTS),
        _hub("Roberta", "ForMaskedLM Intermediate", "roberta.encoder.layer.0.intermediate", _BERT_DROPOUTS),
        _hub("ViT", "Model MLP", "layers.0.mlp", ("hidden_dropout_prob",), **_VIT),
        # limits that the values of these small models reach
        _stack("arcee", "ArceeMLP", hidden_act="relu2", mlp_bias=True),
        _stack("clip", "CLIPMLP", hidden_act="quick_gelu"),
        _stack("deepseek_v4", "DeepseekV4MLP", hidden_act="silu", mlp_bias=False, swiglu_limit=1.3),
        _stack("glm4", "Glm4MLP", hidden_act="silu"),
        _stack("glm5_next", "Glm5NextTextMLP", hidden_act="silu", swiglu_limit=0.9),
        _stack("glm5_next", "Glm5NextVisionMLP", hidden_act="silu", swiglu_limit=1.1),
        _stack(
            "minimax_m3_vl",
            "MiniMaxM3VLDenseMLP",
            dense_intermediate_size=HIDDEN,
            swiglu_alpha=1.702,
            swiglu_limit=1.2,
        ),
        _stack("nanochat", "NanoChatMLP", hidden_act="relu2"),
        _stack("nemotron", "NemotronMLP", hidden_act="relu2", mlp_bias=False),
        _stack("siglip", "SiglipMLP", hidden_act="gelu_pytorch_tanh"),
        _stack("step3p7", "Step3p7MLP", hidden_act="silu", mlp_bias=False, swiglu_limits_shared=[0.8]),
        _stack("step3p7", "Step3p7VisionMLP", hidden_act="quick_gelu"),
        ("timm", Model("timm.layers.mlp.Mlp", "blocks.0.mlp", _vision_transformer, _pixels)),
    )
)


def make(name: str, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Module:
    """A model in training mode, the same weights each time: larger than a new model's, so that
    activations bend."""
    torch.manual_seed(0)
    model = MODELS[name].make(dropout)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                scale = parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype)
