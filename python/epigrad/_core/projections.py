"""Whether epigrad may multiply by a layer's weight itself, or has to call the layer.

`epigrad.nn` and `epigrad.integrations` ask at every call, since hooks, adapters and quantised
weights may come at any time: a few dictionary lookups where nothing is in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules import module as torch_module

from epigrad._core.torch_state import constant_to_dynamo

any_global_hook: Callable[[], bool] = torch_module._has_any_global_hook
"""Whether hooks on all modules are registered: they are to see the layers inside of a block too."""

# Tensors with the values of a plain one: parameters, and their stand-ins while PyTorch traces.
_PLAIN = frozenset((nn.Parameter, Tensor, FakeTensor, FunctionalTensor))
_DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))

_CONV1D = "transformers.pytorch_utils.Conv1D"  # a Linear whose weight is [K, N]

# What the functions marked for Dynamo read is checked once, while it traces, and not at each call.


@constant_to_dynamo
def full_name(cls: type[Any]) -> str:
    """The full name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def class_name(thing: object) -> str:
    """The full name of an object's class."""
    return full_name(type(thing))


@constant_to_dynamo
def _is_plain(cls: type[Any]) -> bool:
    return cls in _PLAIN


@constant_to_dynamo
def _is_supported(dtype: torch.dtype) -> bool:
    return dtype in _DTYPES


@constant_to_dynamo
def _is_projection(cls: type[Any]) -> bool:
    return cls is nn.Linear or full_name(cls) == _CONV1D


def why_called(module: nn.Module) -> str:
    """Why a module has to be called as a module, even if epigrad knows what it computes; empty if
    nothing is in the way.
    """
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return "has hooks"
    return replaced(module)


def replaced(module: nn.Module) -> str:
    """Why the class of a module does not say what it computes; empty if it does."""
    if "forward" in module.__dict__:
        return "has a forward on the instance, as accelerate's offloading gives it"
    return ""


def held_back(module: nn.Module, name: str) -> str:
    """Why epigrad cannot multiply by the weight of a projection itself; empty if it can.

    A wrapper of another class, as PEFT's LoRA and quantised layers are, and parameters that are no
    plain floating-point tensors mean more than ``input @ weight.T + bias``.
    """
    layer: Any = module._modules[name]
    if not _is_projection(type(layer)):
        return f"{name} is a {class_name(layer)}"
    if reason := why_called(layer):
        return f"{name} {reason}"
    parameters = layer._parameters
    for part in ("weight", "bias"):
        parameter = parameters.get(part)
        if parameter is None:
            if part == "bias" and part in parameters:
                continue
            return f"{name}.{part} is no parameter"
        if not _is_plain(type(parameter)):
            return f"{name}.{part} is a {class_name(parameter)}"
        if not _is_supported(parameter.dtype):
            return f"{name}.{part} is of {parameter.dtype}"
    return ""


def weight_and_bias(module: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """The weight of a projection as ``[N, K]``, in the parameter's own memory, and its bias."""
    layer: Any = module._modules[name]
    weight: Tensor = layer.weight
    bias: Tensor | None = layer.bias
    return weight if type(layer) is nn.Linear else weight.T, bias
