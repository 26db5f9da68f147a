"""What epigrad can take over of the layers inside a block, and why not where it cannot."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = [
    "ACTIVATIONS",
    "activation_name",
    "class_name",
    "held_back",
    "passes",
    "replaced",
    "watched",
    "weight_and_bias",
]

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

# What multiplies by a weight that epigrad reads itself, and whether that weight is [K, N].
_PROJECTIONS = {"torch.nn.modules.linear.Linear": False, "transformers.pytorch_utils.Conv1D": True}


def class_name(thing: object) -> str:
    """The full name of an object's class."""
    cls = type(thing)
    return f"{cls.__module__}.{cls.__qualname__}"


def activation_name(module: nn.Module) -> str | None:
    """What epigrad calls an activation module, None for one that it does not know."""
    if type(module) is nn.GELU and module.approximate == "tanh":
        return "gelu_tanh"
    return ACTIVATIONS.get(class_name(module))


def watched(module: nn.Module) -> str:
    """Why a module has to be called as a module, even if epigrad knows what it computes; empty if nothing is in the
    way.
    """
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return "has hooks"
    return replaced(module)


def replaced(module: nn.Module) -> str:
    """Why the class of a module does not say what it computes; empty if it does."""
    if "forward" in module.__dict__:
        return "has a forward on the instance, as accelerate's offloading gives it"
    return ""


def passes(module: nn.Module) -> bool:
    """Whether a module gives back its input, and nothing is watching."""
    inactive = type(module) is nn.Identity or (type(module) is nn.Dropout and (module.p == 0 or not module.training))
    return inactive and not watched(module)


def held_back(module: nn.Module, name: str) -> str:
    """Why epigrad cannot multiply by the weight of a projection itself; empty if it can.

    A wrapper of another class, as PEFT's LoRA and quantised layers are, and parameters that are no plain floating-point
    tensors mean more than ``input @ weight.T + bias``.
    """
    layer = module._modules[name]
    assert layer is not None
    if class_name(layer) not in _PROJECTIONS:
        return f"{name} is a {class_name(layer)}"
    if reason := watched(layer):
        return f"{name} {reason}"
    for part in ("weight", "bias"):
        parameter = getattr(layer, part)
        if parameter is None:
            continue
        if type(parameter) is not nn.Parameter and type(parameter) is not Tensor:
            return f"{name}.{part} is a {class_name(parameter)}"
        if not parameter.dtype.is_floating_point or parameter.dtype.itemsize < 2:
            return f"{name}.{part} is of {parameter.dtype}"
    return ""


def weight_and_bias(module: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """The weight of a projection as ``[N, K]``, in the parameter's own memory, and its bias."""
    layer: Any = module._modules[name]
    weight: Tensor = layer.weight
    bias: Tensor | None = layer.bias
    return weight.T if _PROJECTIONS[class_name(layer)] else weight, bias
