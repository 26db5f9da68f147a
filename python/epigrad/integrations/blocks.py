"""The kinds of blocks that epigrad computes, each a row that names a block's layers.

`epigrad.integrations.recognition` makes the rows. Every call checks again whether layers can be
fused: hooks, adapters and quantised layers may come after `patch`. A layer that cannot be fused is
called as a module, or the block's own forward runs.
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
from epigrad._core.projections import class_name, held_back, weight_and_bias, why_called
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
    """Which gated kind a block computes.

    Attributes:
        activation: the block's module that the gate goes through; "" where `kind` says it all.
        kind: the kind of a block without such a module.
        parameters: the kind's, by name: numbers, or the block's attributes that have them, as in
            ``act.limit``.
    """

    activation: str = ""
    kind: str = ""
    parameters: tuple[tuple[str, str | float], ...] = ()

    def of(self, module: nn.Module) -> str | kinds.Gated | None:
        """The kind, None for one that epigrad does not know: its name, if it has no parameters."""
        name = kind_of_gate(activation_in(module, self.activation)) if self.activation else self.kind
        if name is None or not self.parameters:
            return name
        return _with_parameters(name, self._names(), *self._values(module))

    def _names(self) -> tuple[str, ...]:
        return tuple([name for name, _ in self.parameters])

    def _values(self, module: nn.Module) -> list[float]:
        return [fixed(attribute(module, value)) if isinstance(value, str) else value for _, value in self.parameters]

    def obstacle(self, module: nn.Module) -> str:
        """Why the kind is not epigrad's; empty if it is."""
        if self.activation and (reason := activation_obstacle(module, self.activation, gated=True)):
            return reason
        if self.of(module) is None:
            return ", ".join(
                f"{name} is {value!r}" for name, value in zip(self._names(), self._values(module), strict=True)
            )
        return replaced_function(GATED_KINDS[self.kind].activation) if self.kind else ""


@constant_to_dynamo
def kind_of_gate(activation: str | kinds.Activation | None) -> str | None:
    """The gated kind whose gate goes through an activation."""
    return _KIND_OF_GATE.get(activation) if isinstance(activation, str) else None


@constant_to_dynamo
def _with_parameters(name: str, names: tuple[str, ...], *values: float) -> kinds.Gated | None:
    """A gated kind; None for parameters that it does not take."""
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
    """The activation that a block has by a name: a module, or a function."""
    layer = module._modules.get(name)
    return activation_of_function(getattr(module, name, None)) if layer is None else activation_of(layer)


def activation_obstacle(module: nn.Module, name: str, gated: bool) -> str:
    """Why epigrad does not compute an activation of a block; empty if it does."""
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
    """Whether PyTorch's products are faster than epigrad's: on a CPU those in bfloat16, which
    autocast may mean, and those of one row, for which epigrad packs a whole weight.
    """
    if input.device.type != "cpu":
        return False
    one_row = not is_compiling() and input.numel() == input.shape[-1]
    return one_row or input.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")


# Methods that a compiled call reaches are not inherited: Dynamo would check at each call that the
# classes on the way have none of that name.


class Block(Protocol):
    """What a row can do with a block; `module` is the block."""

    @property
    def read(self) -> tuple[str, ...]:
        """The projections whose parameters are read, and not called, where that can be."""

    def obstacle(self, module: nn.Module) -> str:
        """Why the block's own forward has to run; empty if epigrad's can."""

    def told(self, module: nn.Module) -> str:
        """What computes the block, for people."""

    def forward(self, module: nn.Module, input: Tensor) -> Tensor:
        """The block's output; there is no obstacle."""


@dataclass(frozen=True, slots=True)
class Gated:
    """``down(value(x) * act(gate(x)))`` with a layer each for value and gate.

    `epigrad.gated_linear` does all before ``down``. Where it cannot read their weights, because of
    adapters, quantised layers or hooks, they are called as modules, and `epigrad.gated_product`
    follows. So it is where PyTorch's products are faster.

    Attributes:
        value: the projection of the values.
        gate: that of the gates.
        kind: what is between these and `down`.
        down: the module that gets the product, None where something else does.
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
            weight_value, bias_value = weight_and_bias(module, self.value)
            weight_gate, bias_gate = weight_and_bias(module, self.gate)
            hidden = functional.gated_linear(input, weight_value, weight_gate, bias_value, bias_gate, kind)
        if self.down is None:
            return hidden
        output: Tensor = _layer(module, self.down)(hidden)
        return output

    def _apart(self, module: nn.Module) -> str:
        return held_back(module, self.value) or held_back(module, self.gate)


@dataclass(frozen=True, slots=True)
class PackedGated:
    """``down(value * act(gate))`` with both halves from one layer: `epigrad.gated_mlp`, or
    `epigrad.gated_activation` between the two layers where one of them has to be called.

    Attributes:
        up: the projection of gates and values.
        kind: what is between the projections.
        gate: where the gates are, as `epigrad.gated_mlp` calls it.
        down: the second projection, None where another module has it.
        between: what happens before `down`; the layers are joined where each gives back its input.
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
        up, down = weight_and_bias(module, self.up), weight_and_bias(module, self.down)
        return functional.gated_mlp(input, *up, *down, kind, gate=self.gate)

    def _apart(self, module: nn.Module, down: str) -> str:
        if self.between and (reason := _at_work(module, self.between)):
            return reason
        return held_back(module, self.up) or held_back(module, down)


@dataclass(frozen=True, slots=True)
class Plain:
    """``down(act(up(x)))``: `epigrad.mlp`, which never keeps the hidden activation; or
    `epigrad.linear` for ``act(up(x))`` where there is no `down`, or something else to do before it.

    Attributes:
        up: the first projection, which has to be plain.
        activation: the block's module or function that follows it; "" for a function that its
            forward names.
        function: epigrad's name for that function.
        down: the second projection, None where another module has it.
        between: what happens before `down`; the layers are joined where each gives back its input.
        after: what happens after all.
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
        up = weight_and_bias(module, self.up)
        if self.down is not None and not self._apart(module, self.down):
            output = functional.mlp(input, *up, *weight_and_bias(module, self.down), name)
        else:
            output = functional.linear(input, *up, name)
            output = steps(module, self.between if self.down is None else (*self.between, self.down), output)
        return steps(module, self.after, output) if self.after else output

    def _apart(self, module: nn.Module, down: str) -> str:
        if self.between and (reason := _at_work(module, self.between)):
            return reason
        return held_back(module, down)


def _layers_among(module: nn.Module, names: tuple[Step, ...]) -> str:
    """The steps of a Sequential that are called as they are, for people; empty if none is a
    layer."""
    if not isinstance(module, nn.Sequential):
        return ""
    called = [each for each in names if isinstance(each, str)]
    if not any(isinstance(module._modules.get(each), nn.Linear) for each in called):
        return ""
    return f", but for {', '.join(called)}"


def _at_work(module: nn.Module, between: tuple[Step, ...]) -> str:
    """Which step does not give back its input; empty if there is none."""
    for each in between:
        if not passes(module, each):
            return f"{each} is at work"
    return ""


@dataclass(frozen=True, slots=True)
class Within:
    """A block in whose forward more happens than its row has a place for.

    Attributes:
        block: the row.
        before: what happens to the input first.
        after: what happens to the output last.
        given: what the forward was read with.
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
