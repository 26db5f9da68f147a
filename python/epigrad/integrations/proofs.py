"""Tests whether a row of `epigrad.integrations.blocks` computes the same as the forward of a class.

The proof makes a small block of the class without its constructor. The block has projections in
float64 on the CPU with random weights, the activation of the user's block, and simple stand-ins for
all other modules. The class's forward and the row's have to give the same output and gradients. The
proof runs on a thread of its own, where no mode of PyTorch is on, and uses no global random
generator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from epigrad._core.projections import any_global_hook
from epigrad.integrations.blocks import Block, Gate, Gated, PackedGated, Plain, Within
from epigrad.integrations.bodies import read
from epigrad.integrations.expressions import Dropped, used
from epigrad.integrations.recognition import is_projection

_FEATURES, _ROWS = 6, 5
_TOLERANCE = 1e-12
"""The allowed error relative to the largest element: some hundred roundings of float64."""

_LIMIT, _NUMBER = 0.7, 1.3
"""The limits of a small block, which some of its values reach, and its other numbers."""

_proved: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, str]] = weakref.WeakKeyDictionary()


def doubt(module: nn.Module, cls: type[Any], block: Block) -> str:
    """The reason why the proof of a row fails; empty if it succeeds.

    Args:
        module: the user's block. It is not called, and its parameters are not read.
        cls: its class.
        block: the row, which has no obstacle.
    """
    known = _proved.setdefault(cls.forward, {})
    key = (cls, block, block.told(module), *(type(module._modules.get(name)) for name in block.read))
    if key not in known:
        if any_global_hook():
            return "hooks on all modules are registered, which its proof would call: remove them, and patch again"
        try:
            # where no mode, autocast, transform or default device is on
            with ThreadPoolExecutor(1, "epigrad-proof") as thread:
                known[key] = thread.submit(_difference, module, cls, block).result()
        except Exception as error:  # a forward may raise anything
            return f"its proof failed: {type(error).__name__}: {error}"
    return known[key]


def _difference(module: nn.Module, cls: type[Any], block: Block) -> str:
    dropped = [node.p for node in used(read(module, cls).output).values() if isinstance(node, Dropped)]
    for working, training in ((False, False), (True, False), *([(True, True)] if dropped else [])):
        small = _small(module, cls, block, working)
        if training:  # a probability of 1 draws no numbers
            small.__dict__.update(dict.fromkeys(dropped, 1.0), training=True)
        if reason := block.obstacle(small):
            return f"its proof failed: {reason}"
        want, got = _results(small, cls.forward), _results(small, block.forward)
        for name, ours in got.items():
            error, scale = float((ours - want[name]).abs().max()), float(want[name].abs().max())
            if not error <= _TOLERANCE * max(scale, 1):
                return f"epigrad computes something else: {name} differs by {error:.1e}"
    return ""


def _results(small: nn.Module, forward: Callable[[nn.Module, Tensor], Tensor]) -> dict[str, Tensor]:
    """The output and the gradients of a forward, by their names in a report."""
    generator = torch.Generator("cpu").manual_seed(1)
    leaves = {"its input's gradient": _random(generator, 2, _ROWS, _FEATURES).requires_grad_()}
    out = forward(small, leaves["its input's gradient"])
    leaves |= {f"{name}'s gradient": parameter for name, parameter in small.named_parameters()}
    grads = torch.autograd.grad(out, list(leaves.values()), _random(generator, *out.shape), materialize_grads=True)
    return {"its output": out.detach(), **dict(zip(leaves, grads, strict=True))}


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _small(module: nn.Module, cls: type[Any], block: Block, working: bool) -> nn.Module:
    """A small block of a class, with the attributes of the user's block.

    Modules that are steps become identities or, if `working`, different elementwise functions.
    """
    small: nn.Module = object.__new__(cls)
    small.__dict__.update({**module.__dict__, **nn.Module().__dict__, "training": False})
    generator = torch.Generator("cpu").manual_seed(2)
    row, given = (block.block, block.given) if isinstance(block, Within) else (block, ())
    assert isinstance(row, Gated | PackedGated | Plain)
    kind = Gate(row.activation) if isinstance(row, Plain) else row.kind
    for number, (name, layer) in enumerate(module._modules.items()):
        if layer is None:
            small._modules[name] = None
        elif name == kind.activation:
            small._modules[name] = _alone(layer)
        elif name in block.read or is_projection(module, name):
            packed = isinstance(row, PackedGated) and name == row.up
            small._modules[name] = _projection(layer, generator, 2 if packed else 1)
        else:
            small._modules[name] = _Working(1 + number / 8) if working else nn.Identity()
    paths = {each.path for each in given}
    for name, value in kind.parameters:
        if isinstance(value, str) and value in small.__dict__ and value not in paths:
            small.__dict__[value] = _LIMIT if name.startswith("limit") else _NUMBER
    return small


def _alone(activation: nn.Module) -> nn.Module:
    alone: nn.Module = object.__new__(type(activation))
    alone.__dict__.update({**activation.__dict__, **nn.Module().__dict__})
    return alone


def _projection(layer: nn.Module, generator: torch.Generator, pieces: int) -> nn.Module:
    """A small projection in place of a layer. Its constructor is not called, since that would draw
    random numbers."""
    conv1d = type(layer).__name__ == "Conv1D"
    made: nn.Module = object.__new__(type(layer) if conv1d else nn.Linear)
    nn.Module.__init__(made)
    out = pieces * _FEATURES
    weight = _random(generator, out, _FEATURES) * _FEATURES**-0.5
    made.weight = nn.Parameter(weight.T.contiguous() if conv1d else weight)
    made.bias = nn.Parameter(_random(generator, out) * 0.3)
    made.__dict__.update({"nf": out, "nx": _FEATURES} if conv1d else {"in_features": _FEATURES, "out_features": out})
    return made


class _Working(nn.Module):
    """An elementwise function in place of a module between the projections."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, input: Tensor) -> Tensor:
        return torch.cos(self.frequency * input)
