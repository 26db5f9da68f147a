"""Which activation a module or a function of PyTorch, transformers or timm computes.

Nothing is imported for it: modules are known by the full names of their classes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from epigrad._core.projections import full_name, own_functions
from epigrad._core.tables import ACTIVATIONS
from epigrad._core.torch_state import constant_to_dynamo

_TRANSFORMERS = "transformers.activations"
_TIMM = "timm.layers.activations"
_TORCH = "torch.nn.modules.activation"

MODULES = {
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

OWN = own_functions(*(name for name in ACTIVATIONS if name in nn.functional.__dict__))
"""PyTorch's functions, by the names of their activations."""

FUNCTIONS: dict[Any, str] = {
    **{function: name for name, function in OWN.items() if function is not None},
    torch.celu: "celu",
    torch.relu: "relu",
    torch.selu: "selu",
    torch.sigmoid: "sigmoid",
    torch.tanh: "tanh",
}
"""Functions of an input alone, and what epigrad calls them: their defaults are epigrad's."""

_PARAMETERS = {
    "celu": ("alpha",),
    "elu": ("alpha",),
    "hardtanh": ("min_val", "max_val"),
    "leaky_relu": ("negative_slope",),
    "softplus": ("beta", "threshold"),
}
"""What modules of PyTorch call the parameters, in the order of epigrad's."""


def computed_by(module: nn.Module) -> tuple[str, tuple[float, ...]] | None:
    """The name of the activation that a module computes, and the values of its parameters; None for
    a module that is not known. The caller has to look for hooks.
    """
    name = activation_of_class(type(module))
    if name is None:
        return None
    if name == "gelu" and type(module) is nn.GELU and module.approximate == "tanh":
        return "gelu_tanh", ()
    return name, tuple([fixed(getattr(module, attribute)) for attribute in _PARAMETERS.get(name, ())])


def fixed(value: Any) -> Any:
    """A parameter as functions marked for Dynamo take it.

    After a change Dynamo makes a symbol of a number, and guards on its value once it is text.
    """
    return float(f"{value}") if is_compiling() and type(value) in (int, float) else value


@constant_to_dynamo
def activation_of_class(cls: type[Any]) -> str | None:
    return MODULES.get(full_name(cls))


@constant_to_dynamo
def activation_of_function(function: Any) -> str | None:
    return FUNCTIONS.get(function) if isinstance(function, Hashable) else None
