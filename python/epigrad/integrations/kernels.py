"""Layers for Hugging Face's ``kernels``: what its ``kernelize`` puts in the place of a forward.

A layer of a model has a name there, and a mapping says which class has the forward for it on a
device. `mapping` gives epigrad's classes under the names that are in use; all have gradients, and
all work under ``torch.compile``. Nothing comes from a hub.

Importing this does not import ``kernels``.

Examples:
    >>> import torch
    >>> from epigrad.integrations.kernels import mapping
    >>> from kernels import Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping
    >>> @use_kernel_forward_from_hub("SiluAndMul")
    ... class Gate(torch.nn.Module):
    ...     def forward(self, x):
    ...         gate, value = x.chunk(2, -1)
    ...         return torch.nn.functional.silu(gate) * value
    >>> layer, x = Gate(), torch.randn(3, 8)
    >>> before = layer(x)
    >>> with use_kernel_mapping(mapping()):
    ...     layer = kernelize(layer, mode=Mode.TRAINING, device="cpu")
    >>> torch.allclose(layer(x), before)
    True
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from epigrad import errors, functional
from epigrad._core.projections import is_watched, replaced, why_called
from epigrad._core.tables import GATED_KINDS
from epigrad.integrations.blocks import Gate, Gated, activation_in, kind_of_gate

__all__ = ["mapping", "register"]


# What `kernels` asks of a class: a forward with the arguments of the one that it replaces, no
# constructor, and no members beside these two. `self` is the layer that is there already.


class _Layer(nn.Module):
    has_backward = True
    can_torch_compile = True


def _elementwise(name: str, activation: str) -> type[nn.Module]:
    def forward(self: nn.Module, input: Tensor) -> Tensor:
        return functional.activation(input, activation)

    return type(name, (_Layer,), {"forward": forward})


def _halves(name: str, kind: str) -> type[nn.Module]:
    def forward(self: nn.Module, input: Tensor) -> Tensor:
        return functional.gated_activation(input, kind, gate="first")

    return type(name, (_Layer,), {"forward": forward})


_BLOCKS = {
    kind: Gated(value="up_proj", gate="gate_proj", down="down_proj", kind=Gate(kind=kind)) for kind in GATED_KINDS
}


def _mlp(name: str, named: str) -> type[nn.Module]:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        kind = _kind_by_act_fn(self) if hasattr(self, "act_fn") else named
        # Hooks on all modules, and modes, are to see the projections too.
        if kind is None or is_watched(x):
            output: Tensor = type(self).forward(self, x)
            return output
        return _BLOCKS[kind].forward(self, x)

    return type(name, (_Layer,), {"forward": forward})


def _kind_by_act_fn(module: nn.Module) -> str | None:
    """What an MLP computes, None where its own forward has to run."""
    layer = module._modules.get("act_fn")
    # `kernelize` has given the activation a forward too, if it has a name there.
    if layer is not None and (reason := why_called(layer)) and not (_is_ours(layer) and reason == replaced(layer)):
        return None
    return kind_of_gate(activation_in(module, "act_fn"))


def _is_ours(layer: nn.Module) -> bool:
    return getattr(layer.forward, "__func__", None) in _FORWARDS


LAYERS = {
    "SiLU": _elementwise("SiLU", "silu"),
    "GeLU": _elementwise("GeLU", "gelu"),
    "GeluTanh": _elementwise("GeluTanh", "gelu_tanh"),
    "NewGELU": _elementwise("NewGELU", "gelu_tanh"),
    "QuickGELU": _elementwise("QuickGELU", "quick_gelu"),
    "SiluAndMul": _halves("SiluAndMul", "swiglu"),
    "GeluAndMul": _halves("GeluAndMul", "geglu"),
    "GeluTanhAndMul": _halves("GeluTanhAndMul", "geglu_tanh"),
    "SwiGLUMLP": _mlp("SwiGLUMLP", "swiglu"),
    "GeGLUMLP": _mlp("GeGLUMLP", "geglu_tanh"),
}
"""The classes, by the names that transformers and the ``activation`` kernels of the hub use.

``FastGELU`` is not here: transformers' class of that name rounds a constant to ten digits.
"""

_FORWARDS = frozenset(layer.forward for layer in LAYERS.values())


@dataclass(frozen=True, slots=True)
class _Package:
    """A class in the place where `kernels` has a repository."""

    layer: type[nn.Module]

    def load(self) -> type[nn.Module]:
        return self.layer

    def __str__(self) -> str:
        return f"epigrad, layer {self.layer.__name__}"


def mapping(names: Iterable[str] | None = None, devices: Iterable[str] = ("cpu", "cuda")) -> dict[str, Any]:
    """epigrad's layers, as ``kernels.use_kernel_mapping`` and ``kernels.register_kernel_mapping``
    take them.

    The layers are for ``Mode.TRAINING | Mode.TORCH_COMPILE``. `kernels` takes such layers for every
    other mode too, unless the mapping has one of that mode.

    An MLP (``SwiGLUMLP``, ``GeGLUMLP``) has ``gate_proj``, ``up_proj`` and ``down_proj``. If it has
    an ``act_fn``, that says what is computed; else ``GeGLUMLP`` has the tanh form of GELU, as
    Liger's. Where epigrad cannot compute it, the layer's own forward runs.

    Args:
        names: which layers; all if None.
        devices: the types of the devices.

    Returns:
        For each name a dictionary with the devices, and for each device one with the mode.

    Raises:
        UnsupportedError: (a ``NotImplementedError``) there is no package ``kernels``.
        InvalidProblemError: (a ``ValueError``) a name or a device that epigrad has no layer for.

    Examples:
        >>> from epigrad.integrations.kernels import mapping
        >>> list(mapping(["SiluAndMul"], devices=["cpu"])["SiluAndMul"])
        ['cpu']
    """
    mode = _kernels().Mode
    return {
        name: {
            device: {mode.TRAINING | mode.TORCH_COMPILE: _Package(LAYERS[name])}
            for device in _known("devices", devices, ("cpu", "cuda"))
        }
        for name in _known("names", LAYERS if names is None else names, LAYERS)
    }


def register(names: Iterable[str] | None = None, devices: Iterable[str] = ("cpu", "cuda")) -> None:
    """Register `mapping` for the whole process.

    What was registered before for the same name and device is gone, and what is registered later
    counts: transformers registers its own mapping in ``model.set_use_kernels(True)``.

    Args:
        names: which layers; all if None.
        devices: the types of the devices.

    Raises:
        UnsupportedError: (a ``NotImplementedError``) there is no package ``kernels``.
        InvalidProblemError: (a ``ValueError``) a name or a device that epigrad has no layer for.

    Examples:
        >>> from epigrad.integrations.kernels import register
        >>> register(["SiluAndMul"])
    """
    _kernels().register_kernel_mapping(mapping(names, devices))


def _kernels() -> Any:
    found: Any = None
    with contextlib.suppress(ImportError):
        found = importlib.import_module("kernels")
    if not hasattr(found, "Mode"):  # a folder of that name is a package without anything
        raise errors.UnsupportedError("mapping: the package kernels is missing: pip install kernels")
    return found


def _known(argument: str, given: Iterable[str], known: Iterable[str]) -> list[str]:
    wanted = [given] if isinstance(given, str) else list(given)
    for one in wanted:
        if one not in known:
            raise errors.InvalidProblemError(f"mapping: {argument}: got {one!r}, want some of {', '.join(known)}")
    return wanted
