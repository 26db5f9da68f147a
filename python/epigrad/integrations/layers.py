"""The activations inside of blocks, and what else is between their projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from epigrad import errors
from epigrad._core.callables import OWN, computed_by
from epigrad._core.projections import why_called
from epigrad._core.tables import ACTIVATIONS as ACTIVATION_ROWS
from epigrad._core.torch_state import constant_to_dynamo
from epigrad.kinds import Activation


def activation_of(module: nn.Module) -> str | Activation | None:
    """The activation of a module, None for one that epigrad does not know: its name, if it has no
    parameters.
    """
    found = computed_by(module)
    if found is None:
        return None
    name, values = found
    return _with_values(name, *values) if values else name


@constant_to_dynamo
def _with_values(name: str, *values: float) -> Activation | None:
    row = ACTIVATION_ROWS[name]
    try:
        return Activation(
            name, **{parameter.name: value for parameter, value in zip(row.parameters, values, strict=True)}
        )
    except errors.EpigradError:
        return None


_CALLED = {"gelu_tanh": "gelu", "relu2": "relu"}
"""What modules call for activations that PyTorch has no function of that name for."""


@constant_to_dynamo
def replaced_function(activation: str | Activation) -> str:
    """Why an activation's function is not what epigrad computes; empty if it is."""
    name = activation if isinstance(activation, str) else activation.name
    name = _CALLED.get(name, name)
    if name in OWN and nn.functional.__dict__[name] is not OWN[name]:
        return f"a program has replaced torch.nn.functional.{name}"
    return ""


# --- what is between the projections --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dropout:
    """``nn.functional.dropout``; the block has its probability as attribute `p`."""

    p: str

    def passes(self, module: nn.Module) -> bool:
        return not module.training or attribute(module, self.p) == 0

    def __call__(self, module: nn.Module, hidden: Tensor) -> Tensor:
        return nn.functional.dropout(hidden, p=attribute(module, self.p), training=module.training)

    def __str__(self) -> str:
        return f"dropout by {self.p}"


@dataclass(frozen=True, slots=True)
class Cast:
    """What T5 and its kin do before a layer that may stay in float32: its dtype, if it is not one
    of `kept`."""

    layer: str
    kept: tuple[torch.dtype, ...]

    def passes(self, module: nn.Module) -> bool:
        """Whether all projections have the dtype of this one: so has what it gets."""
        dtype = attribute(module, self.layer).weight.dtype
        return all(each.weight.dtype == dtype for each in module._modules.values() if isinstance(each, nn.Linear))

    def __call__(self, module: nn.Module, hidden: Tensor) -> Tensor:
        weight = attribute(module, self.layer).weight
        if isinstance(weight, Tensor) and hidden.dtype != weight.dtype and weight.dtype not in self.kept:
            return hidden.to(weight.dtype)
        return hidden

    def __str__(self) -> str:
        return f"a cast to the dtype of {self.layer}"


Step: TypeAlias = str | Dropout | Cast
"""A module by its name, or what a forward does itself."""


def steps(module: nn.Module, names: tuple[Step, ...], hidden: Tensor) -> Tensor:
    for each in names:
        if isinstance(each, str):
            layer = module._modules.get(each)
            hidden = getattr(module, each)(hidden) if layer is None else layer(hidden)
        else:
            hidden = each(module, hidden)
    return hidden


def passes(module: nn.Module, each: Step) -> bool:
    """Whether a step gives back its input, and nothing is watching."""
    if not isinstance(each, str):
        return each.passes(module)
    layer = module._modules.get(each)
    if layer is None:
        return False
    inactive = type(layer) is nn.Identity or (type(layer) is nn.Dropout and (layer.p == 0 or not layer.training))
    return inactive and not why_called(layer)


# --- what a block depends on ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """What an attribute of a block was when its forward was read.

    Attributes:
        path: the attribute.
        what: its ``"value"``; whether it is ``"none"``; or its ``"names"``, of a dictionary.
        value: what that was.
    """

    path: str
    what: str
    value: Any

    def holds(self, module: nn.Module) -> bool:
        found = attribute(module, self.path)
        if self.what == "value":
            return type(found) is type(self.value) and bool(found == self.value)
        return bool((found is None if self.what == "none" else tuple(found)) == self.value)


def attribute(module: nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found
