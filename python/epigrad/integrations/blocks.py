"""The kinds of blocks that epigrad computes. A row names the layers of a block.

`epigrad.integrations.recognition` makes the rows. Every call checks again whether layers can be
fused, since hooks, adapters and quantised layers may be added after `patch`. A layer that cannot be
fused is called as a module, or the block's own forward runs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from epigrad import errors, functional, kinds
from epigrad._core.callables import activation_of_function, fixed
from epigrad._core.projections import class_name, held_back, projection, why_called
from epigrad._core.tables import GATED_KINDS
from epigrad._core.torch_state import constant_to_dynamo
from epigrad.integrations.layers import (
    Given,
    Step,
    activation_of,
    attribute,
    passes,
    replaced_function,
    steps,
)

_KIND_OF_GATE = {row.activation: kind for kind, row in GATED_KINDS.items() if row.activation}


@dataclass(frozen=True, slots=True)
class Gate:
    """The gated kind of a block.

    Attributes:
        activation: the block's activation module, applied to the gate; "" if `kind` names the kind.
        kind: the kind of a block without such a module.
        parameters: the kind's, by name: numbers, or the block's attributes that have them, as in
            ``act.limit``.
    """

    activation: str = ""
    kind: str = ""
    parameters: tuple[tuple[str, str | float], ...] = ()

    def of(self, module: nn.Module) -> str | kinds.Gated | None:
        """The kind, by its name if it has no parameters; None if epigrad does not know it."""
        name = kind_of_gate(activation_in(module, self.activation)) if self.activation else self.kind
        if name is None or not self.parameters:
            return name
        return _with_parameters(name, self._names(), *self._values(module))

    def _names(self) -> tuple[str, ...]:
        return tuple([name for name, _ in self.parameters])

    def _values(self, module: nn.Module) -> list[float]:
        return [fixed(attribute(module, value)) if isinstance(value, str) else value for _, value in self.parameters]

    def obstacle(self, module: nn.Module) -> str:
        """The reason why epigrad cannot compute the kind; empty if it can."""
        if self.activation and (reason := activation_obstacle(module, self.activation, gated=True)):
            return reason
        if self.of(module) is None:
            return ", ".join(
                f"{name} is {value!r}" for name, value in zip(self._names(), self._values(module), strict=True)
            )
        return replaced_function(GATED_KINDS[self.kind].activation) if self.kind else ""


@constant_to_dynamo
def kind_of_gate(activation: str | kinds.Activation | None) -> str | None:
    """The gated kind that applies an activation to its gate."""
    return _KIND_OF_GATE.get(activation) if isinstance(activation, str) else None


@constant_to_dynamo
def _with_parameters(name: str, names: tuple[str, ...], *values: float) -> kinds.Gated | None:
    """A gated kind; None if it does not take the parameters."""
    if all(type(value) is float or type(value) is int for value in values):
        return _made(name, names, *values)
    return _made.__wrapped__(name, names, *values)


@functools.lru_cache(maxsize=256, typed=True)  # making one takes longer than all else of a call
def _made(name: str, names: tuple[str, ...], *values: float) -> kinds.Gated | None:
    try:
        return kinds.Gated(name, **dict(zip(names, values, strict=True)))
    except errors.EpigradError:
        return None


def _layer(module: nn.Module, name: str) -> nn.Module:
    # As nn.Module.__getattr__, which takes longer.
    layer = module._modules[name]
    assert layer is not None
    return layer


def activation_in(module: nn.Module, name: str) -> str | kinds.Activation | None:
    """The attribute of a block that is its activation: a module or a function."""
    layer = module._modules.get(name)
    return activation_of_function(getattr(module, name, None)) if layer is None else activation_of(layer)


def activation_obstacle(module: nn.Module, name: str, gated: bool) -> str:
    """The reason why epigrad cannot compute an activation of a block; empty if it can."""
    activation = activation_in(module, name)
    if activation is None:
        return f"{name} is {_what(module, name)}, which epigrad does not have"
    if gated and kind_of_gate(activation) is None:
        return f"{name} is {_what(module, name)}, which no gated kind of epigrad has for its gate"
    layer = module._modules.get(name)
    if layer is not None and (reason := why_called(layer)):
        return f"{name} {reason}"
    return replaced_function(activation)


def _what(module: nn.Module, name: str) -> str:
    found = getattr(module, name, None)
    return f"a {class_name(found)}" if isinstance(found, nn.Module) else f"{found!r}"


def _faster_as_modules(input: Tensor) -> bool:
    """Whether PyTorch's matrix products are faster than epigrad's.

    On a CPU they are in bfloat16, also under autocast, and for a single row.
    """
    if input.device.type != "cpu":
        return False
    one_row = not is_compiling() and input.numel() == input.shape[-1]
    return one_row or input.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")


# Pickles of patched models hold rows, so their names and fields stay.
#
# Methods that a compiled call reaches are not inherited: Dynamo would check at each call that the
# classes on the way have none of that name.


class Block(Protocol):
    """The interface of a row; `module` is the block."""

    @property
    def read(self) -> tuple[str, ...]:
        """The projections whose parameters are read, instead of calling them, where possible."""

    def obstacle(self, module: nn.Module) -> str:
        """The reason why the block's own forward has to run; empty if epigrad's can."""

    def told(self, module: nn.Module) -> str:
        """The functions that compute the block, as text for a report."""

    def forward(self, module: nn.Module, input: Tensor) -> Tensor:
        """Compute the block's output. Call it only if `obstacle` is empty."""


@dataclass(frozen=True, slots=True)
class Gated:
    """``down(value(x) * act(gate(x)))`` with a layer each for value and gate.

    `epigrad.gated_linear` computes all before ``down``. If it cannot read the layers' weights,
    because of adapters, quantised layers or hooks, the layers are called as modules, and
    `epigrad.gated_product` follows. The same happens where PyTorch's products are faster.

    Attributes:
        value: the projection of the values.
        gate: the projection of the gates.
        kind: the gated kind between these and `down`.
        down: the module that takes the product, None if something else does.
    """

    value: str
    gate: str
    kind: Gate
    down: str | None = None

    @property
    def read(self) -> tuple[str, ...]:
        return self.value, self.gate

    def obstacle(self, module: nn.Module) -> str:
        return self.kind.obstacle(module)

    def told(self, module: nn.Module) -> str:
        kind = self.kind.of(module)
        reason = self._apart(module)
        return f"gated_product {kind}, since {reason}" if reason else f"gated_linear {kind}"

    def forward(self, module: nn.Module, input: Tensor) -> Tensor:
        kind = self.kind.of(module)
        assert kind is not None
        if _faster_as_modules(input) or self._apart(module):
            gate = _layer(module, self.gate)(input)
            hidden = functional.gated_product(_layer(module, self.value)(input), gate, kind)
        else:
            value, gated = projection(module, self.value), projection(module, self.gate)
            hidden = functional.gated_linear(
                input,
                value.weight,
                gated.weight,
                value.bias,
                gated.bias,
                kind,
                adapter_value=value.adapter,
                adapter_gate=gated.adapter,
            )
        if self.down is None:
            return hidden
        output: Tensor = _layer(module, self.down)(hidden)
        return output

    def _apart(self, module: nn.Module) -> str:
        return held_back(module, self.value) or held_back(module, self.gate)


@dataclass(frozen=True, slots=True)
class PackedGated:
    """``down(value * act(gate))`` with both halves from one layer.

    `epigrad.gated_mlp` computes it, or `epigrad.gated_activation` between the two layers if one of
    them has to be called.

    Attributes:
        up: the projection of gates and values.
        kind: the gated kind between the projections.
        gate: where the gates are, as `epigrad.gated_mlp` calls it.
        down: the second projection, None if it is in another module.
        between: the steps before `down`; the layers are fused only if each step is an identity.
    """

    up: str
    kind: Gate
    gate: str
    down: str | None = None
    between: tuple[Step, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        return (self.up,) if self.down is None else (self.up, self.down)

    def obstacle(self, module: nn.Module) -> str:
        return self.kind.obstacle(module)

    def told(self, module: nn.Module) -> str:
        kind = self.kind.of(module)
        if self.down is None:
            return f"gated_activation {kind}"
        reason = self._apart(module, self.down)
        return f"gated_activation {kind}, since {reason}" if reason else f"gated_mlp {kind}"

    def forward(self, module: nn.Module, input: Tensor) -> Tensor:
        kind = self.kind.of(module)
        assert kind is not None
        if self.down is None or self._apart(module, self.down):
            hidden = functional.gated_activation(_layer(module, self.up)(input), kind, gate=self.gate)
            return steps(module, self.between if self.down is None else (*self.between, self.down), hidden)
        up, down = projection(module, self.up), projection(module, self.down)
        return functional.gated_mlp(
            input, *up[:2], *down[:2], kind, gate=self.gate, adapter_in=up.adapter, adapter_out=down.adapter
        )

    def _apart(self, module: nn.Module, down: str) -> str:
        if self.between and (reason := _at_work(module, self.between)):
            return reason
        return held_back(module, self.up) or held_back(module, down)


@dataclass(frozen=True, slots=True)
class Plain:
    """``down(act(up(x)))``.

    `epigrad.mlp` computes it and never keeps the hidden activation. `epigrad.linear` computes
    ``act(up(x))`` if there is no `down`, or if other steps come before it.

    Attributes:
        up: the first projection, which has to be plain.
        activation: the block's module or function that follows it; "" for a function that its
            forward names.
        function: epigrad's name for that function.
        down: the second projection, None if it is in another module.
        between: the steps before `down`; the layers are fused only if each step is an identity.
        after: the steps after everything else.
    """

    up: str
    activation: str = ""
    function: str = ""
    down: str | None = None
    between: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        return (self.up,) if self.down is None else (self.up, self.down)

    def obstacle(self, module: nn.Module) -> str:
        if self.activation and (reason := activation_obstacle(module, self.activation, gated=False)):
            return reason
        if self.function and (reason := replaced_function(self.function)):
            return reason
        return held_back(module, self.up)

    def told(self, module: nn.Module) -> str:
        name = activation_in(module, self.activation) if self.activation else self.function
        rest = _layers_among(module, self.after)
        if self.down is None:
            return f"linear {name}{rest}"
        reason = self._apart(module, self.down)
        return f"linear {name}, since {reason}{rest}" if reason else f"mlp {name}{rest}"

    def forward(self, module: nn.Module, input: Tensor) -> Tensor:
        name = activation_in(module, self.activation) if self.activation else self.function
        up = projection(module, self.up)
        if self.down is not None and not self._apart(module, self.down):
            down = projection(module, self.down)
            output = functional.mlp(input, *up[:2], *down[:2], name, adapter1=up.adapter, adapter2=down.adapter)
        else:
            output = functional.linear(input, up.weight, up.bias, name, adapter=up.adapter)
            output = steps(module, self.between if self.down is None else (*self.between, self.down), output)
        return steps(module, self.after, output) if self.after else output

    def _apart(self, module: nn.Module, down: str) -> str:
        if self.between and (reason := _at_work(module, self.between)):
            return reason
        return held_back(module, down)


def _layers_among(module: nn.Module, names: tuple[Step, ...]) -> str:
    """The steps of a Sequential that are called as modules, as text for a report; empty if none is
    a layer."""
    if not isinstance(module, nn.Sequential):
        return ""
    called = [each for each in names if isinstance(each, str)]
    if not any(isinstance(module._modules.get(each), nn.Linear) for each in called):
        return ""
    return f", but for {', '.join(called)}"


def _at_work(module: nn.Module, between: tuple[Step, ...]) -> str:
    """The step that is no identity, as text for a report; empty if there is none."""
    for each in between:
        if not passes(module, each):
            return f"{each} is at work"
    return ""


@dataclass(frozen=True, slots=True)
class Within:
    """A block whose forward has steps before or after those of its row.

    Attributes:
        block: the row.
        before: the steps on the input.
        after: the steps on the output.
        given: the attributes that the forward was read with.
    """

    block: Gated | PackedGated | Plain
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    given: tuple[Given, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        return self.block.read

    def obstacle(self, module: nn.Module) -> str:
        for each in self.given:
            if not each.holds(module):
                return f"{each.path} is no longer what it was"
        return self.block.obstacle(module)

    def told(self, module: nn.Module) -> str:
        return f"{self.block.told(module)}{_layers_among(module, (*self.before, *self.after))}"

    def forward(self, module: nn.Module, input: Tensor) -> Tensor:
        return steps(module, self.after, self.block.forward(module, steps(module, self.before, input)))
