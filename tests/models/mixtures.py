"""Tiny models of transformers with random weights, one for each class of experts that takes an
experts implementation. Nothing is downloaded.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY, FEATURES = 37, 16
EXPERTS = 4

_SPARSE = ["sparse", "sparse"]
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": FEATURES,
    "intermediate_size": 24,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 12,
    "shared_intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "moe_num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 0,
    "num_dense_layers": 0,
    "moe_layer_start_index": 0,
    "mlp_layer_types": _SPARSE,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "index_topk": 4,
    "sliding_window": 4,
    "moe_latent_size": 8,
    "moe_hidden_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    # limits that the values of these small models reach
    "swiglu_limit": 0.5,
    "mlp_gate_softcap": 1.5,
    "mlp_up_softcap": 1.5,
}
"""What configurations are made with, as far as they have these attributes."""


@dataclass(frozen=True)
class Mixture:
    """How the tiny model of a class of experts differs from what is usual.

    Attributes:
        model: the model's class; by default the first ``ForCausalLM``, text model or model of the
            module that defines the experts.
        changes: to its configuration; None leaves an attribute out.
        float32: modules that stay in float32, by a pattern for their classes.
        exact: whether `eager` computes in the dtype of its parameters; else it rounds to float32.
    """

    model: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    float32: str = ""
    exact: bool = True


_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MIMO = dict.fromkeys(("full_attention", "sliding_attention"), _ROPE | {"partial_rotary_factor": 0.5})
SPECIAL: dict[str, Mixture] = {
    "BeamExperts": Mixture(exact=False),  # the gate
    "DeepseekV4Experts": Mixture(changes={"mlp_layer_types": ["moe", "moe"]}),
    "Ernie4_5_VLMoeMoeExperts": Mixture(
        changes={"moe_intermediate_size": [12, 8], "rope_parameters": _ROPE | {"mrope_section": [1, 1, 2]}}
    ),
    "FlintExperts": Mixture(changes={"mlp_only_layers": []}),
    "Gemma4TextExperts": Mixture(
        "Gemma4TextModel",
        changes={"enable_moe_block": True, "hidden_size_per_layer_input": 0, "global_head_dim": 8},
    ),
    "Glm4vMoeTextExperts": Mixture(changes={"rope_parameters": _ROPE | {"mrope_section": [1, 1, 0]}}),
    "Glm5NextTextExperts": Mixture(
        changes={
            "index_kpool": 2,
            "qk_rope_head_dim": 0,
            "head_dim": 0,
            "linear_head_dim": 8,
            "linear_num_heads": 2,
        }
    ),
    "GraniteMoeHybridExperts": Mixture(changes={"mamba_n_heads": 4, "mamba_d_state": 8} | _HYBRID),
    "HYV4VLExperts": Mixture(
        changes={"qk_rope_head_dim": 8, "rope_parameters": _ROPE | {"mrope_section": [2, 1, 1]}},
    ),
    "Inkling2Experts": Mixture(float32="Router$", exact=False),  # the gate, and the sum over experts
    "Inkling2LoopExperts": Mixture(float32="Router$", exact=False),
    "KimiLinearExperts": Mixture(changes={"linear_head_dim": 8, "linear_num_heads": 2}),
    "Lfm2MoeExperts": Mixture(changes={"layer_types": ["conv", "full_attention"]}),
    "MiMoV2FlashExperts": Mixture(changes={"rope_parameters": _MIMO, "num_key_value_heads": 1}),
    "MuseSparkExperts": Mixture(exact=False),  # the norm after each expert
    "NemotronHExperts": Mixture(
        changes={
            "layers_block_type": ["linear_attention", "moe"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "n_groups": 1,
            "ssm_state_size": 8,
        },
        exact=False,  # the sum over experts
    ),
    "OpenAIPrivacyFilterExperts": Mixture(exact=False),  # all of it
    "Qwen3OmniMoeTalkerTextExperts": Mixture("Qwen3OmniMoeTalkerModel", {"shared_expert_intermediate_size": 12}),
    "ZayaExperts": Mixture(changes={"num_experts_per_tok": 1, "router_hidden_size": 8}),
}


def _modules() -> Iterator[tuple[str, str]]:
    """The modules of transformers that define such classes, and their sources."""
    root = Path(transformers.__file__).parent
    for path in sorted(root.glob("models/*/modeling_*.py")):
        source = path.read_text()
        if "@use_experts_implementation" in source:
            yield f"transformers.models.{path.parent.name}.{path.stem}", source


@functools.cache
def classes() -> dict[str, str]:
    """All classes of experts that take an implementation, and the modules that define them."""
    found = {}
    for module, source in _modules():
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.ClassDef):
                decorators = map(ast.unparse, statement.decorator_list)
                if any(text.startswith("use_experts_implementation") for text in decorators):
                    found[statement.name] = module
    return found


def _model_class(experts: str, special: Mixture) -> Any:
    module = importlib.import_module(classes()[experts])
    if special.model:
        return getattr(module, special.model)
    models = [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls)
        and issubclass(cls, transformers.PreTrainedModel)
        and cls.__module__ == module.__name__
        and cls.config_class is not None
        and "PreTrained" not in cls.__name__
    ]
    for end in ("ForCausalLM", "TextModel", "Model"):
        for cls in models:
            if cls.__name__.endswith(end):
                return cls
    raise LookupError(experts)


def _config(cls: Any, changes: dict[str, Any]) -> Any:
    names = set(inspect.signature(cls.__init__).parameters) | set(getattr(cls, "attribute_map", {}))
    for base in cls.__mro__:
        names |= set(getattr(base, "__annotations__", {}))
    options = {name: value for name, value in _SIZES.items() if name in names} | changes
    options = {name: value for name, value in options.items() if value is not None}
    return cls(**options, attn_implementation="eager", experts_implementation="eager")


def make(experts: str, dtype: torch.dtype = torch.float64) -> Any:
    """A model in training mode with its experts by `eager`, the same weights each time."""
    special = SPECIAL.get(experts, Mixture())
    cls = _model_class(experts, special)
    torch.manual_seed(0)
    model = cls(_config(cls.config_class, special.changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * noise)
    model = model.to(dtype).train()
    for module in model.modules():
        if special.float32 and re.search(special.float32, type(module).__name__):
            module.float()
    return model


def experts_of(model: nn.Module, name: str) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == name]


def inputs(seed: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """Embeddings, as of two sequences of seven tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 7, FEATURES, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def output(model: nn.Module, embeddings: Tensor) -> Tensor:
    """The logits, or the last hidden states."""
    found: Tensor = model(inputs_embeds=embeddings, use_cache=False)[0]
    return found


def results(model: nn.Module, embeddings: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of the embeddings and of all parameters that have one."""
    out = output(model, embeddings)
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    wanted = {"embeddings": embeddings} | {n: p for n, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(out, list(wanted.values()), grad, allow_unused=True)
    return {"output": out.detach()} | {n: g for n, g in zip(wanted, grads, strict=True) if g is not None}


def error(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """The largest error, relative to the largest element of its tensor."""
    assert list(got) == list(want)
    errors = [
        (got[name].double() - reference.double()).abs().max() / reference.double().abs().max().clamp(min=1e-6)
        for name, reference in want.items()
    ]
    return float(torch.stack(errors).max())  # NaN if there is any


def root_mean_square_error(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    """Over tensors, of each relative to its largest element; one that is 0 throughout has no scale
    and is left out.
    """
    squares = [
        ((got[name].double() - value) / value.abs().max()).square().mean()
        for name, value in want.items()
        if value.abs().max() > 0
    ]
    return float(torch.stack(squares).mean().sqrt())
