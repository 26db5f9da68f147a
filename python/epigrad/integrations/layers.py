"""The activations inside of blocks, and the modules that do nothing there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from epigrad import errors
from epigrad._core.projections import full_name, why_called
from epigrad._core.tables import ACTIVATIONS as ACTIVATION_ROWS
from epigrad._core.torch_state import constant_to_dynamo
from epigrad.kinds import Activation

_TRANSFORMERS = "transformers.activations"
_TIMM = "timm.layers.activations"
_TORCH = "torch.nn.modules.activation"

ACTIVATIONS = {
    f"{_TORCH}.CELU": "celu",
    f"{_TORCH}.ELU": "elu",
    f"{_TORCH}.GELU": "gelu",
    f"{_TORCH}.Hardsigmoid": "hardsigmoid",
    f"{_TORCH}.Hardswish": "hardswish",
    f"{_TORCH}.Hardtanh": "hardtanh",
    f"{_TORCH}.LeakyReLU": "leaky_relu",
    f"{_TORCH}.Mish": "mish",
    f"{_TORCH}.ReLU": "relu",
    f"{_TORCH}.ReLU6": "relu6",
    f"{_TORCH}.SELU": "selu",
    f"{_TORCH}.SiLU": "silu",
    f"{_TORCH}.Sigmoid": "sigmoid",
    f"{_TORCH}.Softplus": "softplus",
    f"{_TORCH}.Tanh": "tanh",
    f"{_TRANSFORMERS}.AccurateGELUActivation": "gelu_tanh",
    f"{_TRANSFORMERS}.GELUActivation": "gelu",
    f"{_TRANSFORMERS}.GELUTanh": "gelu_tanh",
    f"{_TRANSFORMERS}.LinearActivation": "none",
    f"{_TRANSFORMERS}.MishActivation": "mish",
    f"{_TRANSFORMERS}.NewGELUActivation": "gelu_tanh",
    f"{_TRANSFORMERS}.PytorchGELUTanh": "gelu_tanh",  # GELUTanh's name before version 5
    f"{_TRANSFORMERS}.QuickGELUActivation": "quick_gelu",
    f"{_TRANSFORMERS}.ReLUSquaredActivation": "relu2",
    f"{_TRANSFORMERS}.SiLUActivation": "silu",
    f"{_TIMM}.GELU": "gelu",
    f"{_TIMM}.GELUTanh": "gelu_tanh",
    f"{_TIMM}.HardSigmoid": "hardsigmoid",
    f"{_TIMM}.HardSwish": "hardswish",
    f"{_TIMM}.Mish": "mish",
    f"{_TIMM}.QuickGELU": "quick_gelu",
    f"{_TIMM}.Sigmoid": "sigmoid",
    f"{_TIMM}.Swish": "silu",
    f"{_TIMM}.Tanh": "tanh",
}
"""Activation modules, by the full name of their class, and what epigrad calls them.

`FastGELUActivation` is not here: its constant has ten digits.
"""

FUNCTIONS: dict[Any, str] = {
    nn.functional.gelu: "gelu",
    nn.functional.relu: "relu",
    nn.functional.silu: "silu",
    torch.sigmoid: "sigmoid",
    torch.tanh: "tanh",
}
"""Functions that some blocks have where others have a module."""

_PARAMETERS = {
    "celu": ("alpha",),
    "elu": ("alpha",),
    "hardtanh": ("min_val", "max_val"),
    "leaky_relu": ("negative_slope",),
    "softplus": ("beta", "threshold"),
}
"""What modules of PyTorch call the parameters, in the order of epigrad's."""


def activation_of(module: nn.Module) -> str | Activation | None:
    """The activation of a module, None for one that epigrad does not know: its name, if it has no
    parameters.
    """
    name = _name_of(type(module))
    if name == "gelu" and type(module) is nn.GELU and module.approximate == "tanh":
        return "gelu_tanh"
    if name in _PARAMETERS:
        return _with_values(name, *[fixed(getattr(module, attribute)) for attribute in _PARAMETERS[name]])
    return name


def fixed(value: Any) -> Any:
    """A parameter as functions marked for Dynamo take it.

    After a change Dynamo makes a symbol of a number, and guards on its value once it is text.
    """
    return float(f"{value}") if is_compiling() and type(value) in (int, float) else value


@constant_to_dynamo
def _with_values(name: str, *values: float) -> Activation | None:
    row = ACTIVATION_ROWS[name]
    try:
        return Activation(
            name, **{parameter.name: value for parameter, value in zip(row.parameters, values, strict=True)}
        )
    except errors.EpigradError:
        return None


@constant_to_dynamo
def _name_of(cls: type[Any]) -> str | None:
    return ACTIVATIONS.get(full_name(cls))


@constant_to_dynamo
def activation_of_function(function: Any) -> str | None:
    """The activation of a function, None for one that epigrad does not know."""
    return FUNCTIONS.get(function)


def passes(module: nn.Module) -> bool:
    """Whether a module gives back its input, and nothing is watching."""
    inactive = type(module) is nn.Identity or (type(module) is nn.Dropout and (module.p == 0 or not module.training))
    return inactive and not why_called(module)
