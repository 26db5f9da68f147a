"""PEFT's LoRA as adapters of epigrad's functions, and why an adapter stays PEFT's to compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from epigrad._core.tables import is_half
from epigrad._core.values import LowRank

ROOM = "peft.tuners.lora.layer"


def adapter_of(layer: Any) -> LowRank | None:
    """The active adapter of one of PEFT's layers; None if no adapter is active."""
    for name in active(layer):
        return LowRank(layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])
    return None


def why_peft_computes(layer: Any) -> str:
    """Why an adapter is more than a product that is added; empty if it is that alone."""
    if layer.merged:
        return f"has the merged adapter {', '.join(layer.merged_adapters)}"
    names = active(layer)
    if len(names) > 1:
        return f"has several active adapters, {', '.join(names)}"
    for name in names:
        if layer.use_dora.get(name):
            return f"has the adapter {name} of DoRA"
        if name in layer.lora_variant:
            return f"has the adapter {name}, a {type(layer.lora_variant[name]).__name__}"
        dropout = layer.lora_dropout[name]
        if type(dropout) is not nn.Identity and (type(dropout) is not nn.Dropout or (dropout.training and dropout.p)):
            return f"has the adapter {name} with dropout while it trains"
        if layer.lora_B[name].bias is not None:
            return f"has the adapter {name} with a bias"
    return ""


def fits(layer: Any, weight: Tensor) -> bool:
    """Whether the active adapter's dtype is one that epigrad takes beside a weight's."""
    halves = is_half(weight.dtype)
    return all(
        low[name].weight.dtype == weight.dtype or (halves and low[name].weight.dtype == torch.float32)
        for low in (layer.lora_A, layer.lora_B)
        for name in active(layer)
    )


def active(layer: Any) -> list[str]:
    """The names of the adapters that take part."""
    return [] if layer.disable_adapters else [name for name in layer.active_adapters if name in layer.lora_A]
