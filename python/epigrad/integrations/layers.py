"""The activations inside of blocks, and the modules that do nothing there."""

from __future__ import annotations

from typing import Any

from torch import nn

from epigrad._core.projections import full_name, why_called
from epigrad._core.torch_state import constant_to_dynamo

_TRANSFORMERS = "transformers.activations"
_TIMM = "timm.layers.activations"
_TORCH = "torch.nn.modules.activation"

ACTIVATIONS = {
    f"{_TORCH}.GELU": "gelu",
    f"{_TORCH}.ReLU": "relu",
    f"{_TORCH}.SiLU": "silu",
    f"{_TORCH}.Sigmoid": "sigmoid",
    f"{_TORCH}.Tanh": "tanh",
    f"{_TRANSFORMERS}.AccurateGELUActivation": "gelu_tanh",
    f"{_TRANSFORMERS}.GELUActivation": "gelu",
    f"{_TRANSFORMERS}.GELUTanh": "gelu_tanh",
    f"{_TRANSFORMERS}.LinearActivation": "none",
    f"{_TRANSFORMERS}.NewGELUActivation": "gelu_tanh",
    f"{_TRANSFORMERS}.PytorchGELUTanh": "gelu_tanh",  # GELUTanh's name before version 5
    f"{_TRANSFORMERS}.SiLUActivation": "silu",
    f"{_TIMM}.GELU": "gelu",
    f"{_TIMM}.GELUTanh": "gelu_tanh",
    f"{_TIMM}.Sigmoid": "sigmoid",
    f"{_TIMM}.Swish": "silu",
    f"{_TIMM}.Tanh": "tanh",
}
"""Activation modules, by the full name of their class, and what epigrad calls them.

`FastGELUActivation` is not here: its constant has ten digits.
"""


def activation_name(module: nn.Module) -> str | None:
    """What epigrad calls an activation module, None for one that it does not know."""
    name = _name_of(type(module))
    if name == "gelu" and type(module) is nn.GELU and module.approximate == "tanh":
        return "gelu_tanh"
    return name


@constant_to_dynamo
def _name_of(cls: type[Any]) -> str | None:
    return ACTIVATIONS.get(full_name(cls))


def passes(module: nn.Module) -> bool:
    """Whether a module gives back its input, and nothing is watching."""
    inactive = type(module) is nn.Identity or (type(module) is nn.Dropout and (module.p == 0 or not module.training))
    return inactive and not why_called(module)
