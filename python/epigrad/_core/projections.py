"""Whether epigrad may multiply by a layer's weight itself, or has to call the layer.

`epigrad.nn` and `epigrad.integrations` ask at every call, since hooks, adapters and quantised
weights may come at any time, and so may a program that replaces a forward or a function of PyTorch
for the whole process: a few dictionary lookups where nothing is in the way.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules import module as torch_module
from torch.overrides import (  # type: ignore[attr-defined]
    _get_current_function_mode_stack,
    _len_torch_function_stack,
    has_torch_function_unary,
)

from epigrad._core import lora, tables
from epigrad._core.torch_state import constant_to_dynamo
from epigrad._core.values import LowRank

any_global_hook: Callable[[], bool] = torch_module._has_any_global_hook
"""Whether hooks on all modules are registered."""

# Tensors with the values of a plain one: parameters, and their stand-ins while PyTorch traces.
_PLAIN = frozenset((nn.Parameter, Tensor, FakeTensor, FunctionalTensor))
_PLAIN_FUNCTION: Any = Tensor.__torch_function__.__func__  # type: ignore[attr-defined]

_LINEAR = "torch.nn.modules.linear"
_CONV1D = "transformers.pytorch_utils.Conv1D"  # a Linear whose weight is [K, N]


# What the functions marked for Dynamo read is checked once, while it traces, and not at each call.


@constant_to_dynamo
def full_name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def class_name(thing: object) -> str:
    return full_name(type(thing))


@constant_to_dynamo
def _is_plain(cls: type[Any]) -> bool:
    return cls in _PLAIN


@constant_to_dynamo
def _is_supported(dtype: torch.dtype) -> bool:
    return dtype in tables.DTYPES.values()


@constant_to_dynamo
def _is_lora(cls: type[Any]) -> bool:
    return full_name(cls) == f"{lora.ROOM}.Linear"


@constant_to_dynamo
def _is_projection(cls: type[Any]) -> bool:
    # A program may have put a class of its own in the place of nn.Linear.
    return (cls is nn.Linear and cls.__module__ == _LINEAR) or full_name(cls) == _CONV1D


def is_watched(input: Tensor) -> bool:
    """Whether something is to see, or may change, what the layers inside of a block compute: hooks
    on all modules, a `TorchFunctionMode`, or an input whose class has a `__torch_function__`.

    PyTorch's own modes, as of a default device or of `torch.export`, change no layer, and neither
    does that of `batch_invariant`.
    """
    if any_global_hook():
        return True
    if has_torch_function_unary(input) and isinstance(input, Tensor) and _overrides_functions(type(input)):
        return True
    # Dynamo's answer to the question above does not count modes.
    return _len_torch_function_stack() > 0 and any(
        not _changes_nothing(type(mode))
        for mode in _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    )


@constant_to_dynamo
def _overrides_functions(cls: type[Any]) -> bool:
    function = cls.__torch_function__
    if function is torch._C._disabled_torch_function_impl:
        return False
    return getattr(function, "__func__", None) is not _PLAIN_FUNCTION


@constant_to_dynamo
def _changes_nothing(cls: type[Any]) -> bool:
    return cls.__module__.partition(".")[0] in ("torch", "epigrad")


def why_called(module: nn.Module) -> str:
    """Why a module has to be called as a module, even if epigrad knows what its class computes;
    empty if nothing is in the way.
    """
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return "has hooks"
    if not _has_own_forward(type(module)):
        return f"is a {class_name(module)}, whose forward a program has replaced"
    return replaced(module)


_own_forwards: dict[type[Any], Any] = {}


@constant_to_dynamo
def _has_own_forward(cls: type[Any]) -> bool:
    """Whether a class of a library has the forward of its file, and not one that a program has put
    there for the whole process."""
    forward = cls.forward
    if _own_forwards.get(cls) is forward:
        return True
    if getattr(forward, "__globals__", {}).get("__name__") != cls.__module__:
        return False
    _own_forwards[cls] = forward
    return True


def replaced(module: nn.Module) -> str:
    """Why the class of a module does not say what it computes; empty if it does."""
    if "forward" in module.__dict__:
        return "has a forward on the instance, as accelerate's offloading gives it"
    return ""


def own_functions(*names: str) -> dict[str, Any]:
    """Functions of `torch.nn.functional` by their names; None for one that a program had replaced
    before epigrad was imported."""
    room = nn.functional.__dict__

    def is_own(function: Any) -> bool:
        return type(function) is BuiltinFunctionType or getattr(function, "__globals__", None) is room

    return {name: room[name] if is_own(room[name]) else None for name in names}


_linear = own_functions("linear")["linear"]


class Projection(NamedTuple):
    """What a layer multiplies by: a weight ``[N, K]`` in the parameter's own memory."""

    weight: Tensor
    bias: Tensor | None
    adapter: LowRank | None


def held_back(module: nn.Module, name: str) -> str:
    """Why epigrad cannot multiply by the weight of a projection itself; empty if it can.

    A wrapper of another class, as quantised layers are, and parameters that are no plain
    floating-point tensors mean more than ``input @ weight.T + bias``. PEFT's LoRA is an adapter.
    """
    layer: Any = module._modules[name]
    if nn.functional.linear is not _linear:
        return "a program has replaced torch.nn.functional.linear"
    if not _is_lora(type(layer)):
        return _why_not_read(layer, name)
    if reason := why_called(layer) or lora.why_peft_computes(layer):
        return f"{name} {reason}"
    if reason := _why_not_read(layer.base_layer, name):
        return reason
    for key in lora.active(layer):
        for part, low in (("a", layer.lora_A[key]), ("b", layer.lora_B[key])):
            if reason := _why_not_read(low, f"{name}'s adapter {key}, {part}"):
                return reason
    return "" if lora.fits(layer, layer.base_layer.weight) else f"{name} has an adapter of another dtype"


def _why_not_read(layer: Any, name: str) -> str:
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


def projection(module: nn.Module, name: str) -> Projection:
    """The operands of a layer that is not held back."""
    layer: Any = module._modules[name]
    adapter = None
    if _is_lora(type(layer)):
        layer, adapter = layer.base_layer, lora.adapter_of(layer)
    weight: Tensor = layer.weight
    return Projection(weight if type(layer) is nn.Linear else weight.T, layer.bias, adapter)
