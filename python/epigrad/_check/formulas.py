"""The value of every kind in float64, differentiable by autograd.

Nothing here is shared with the kernels. The forms are not always PyTorch's own operators: in the
tails of float64 those cancel in 1 + erf, in 1 + tanh, and in the derivatives s (1 - s) and 1 - t^2.
A kind's formula is the same object each time, so that what is known of it can be kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad.kinds import Activation, Gated

Pointwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Product:
    """A product of two functions, whose slope and curvature are sums."""

    one: Pointwise
    other: Pointwise

    def __call__(self, x: Tensor) -> Tensor:
        return self.one(x) * self.other(x)


SELU = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
"""lambda and alpha."""


def sigmoid(x: Tensor) -> Tensor:
    power = torch.where(x > 0, -x, x).exp()
    near = x.abs() < 1  # where the second derivative of the quotient by autograd cancels
    half = torch.where(near, x, 0.0) / 2
    return torch.where(near, 0.5 + half.sinh() / half.cosh() / 2, torch.where(x > 0, 1.0, power) / (1 + power))


def tanh(x: Tensor) -> Tensor:
    near = x.abs() < 1
    inner, outer = torch.where(near, x, 0.0), torch.where(near, 1.0, x)
    decay = (-2 * outer.abs()).exp()
    far = outer.sign() * (1 - decay) / (1 + decay)
    return torch.where(near, inner.sinh() / inner.cosh(), far)


def gelu(x: Tensor) -> Tensor:
    twice: Tensor = x * torch.special.erfc(x * -math.sqrt(0.5))
    return twice / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return x * sigmoid((8 / math.pi) ** 0.5 * (x + (44715 * x * x * x) / 10**6))


def relu2(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def leaky_relu(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def swish(x: Tensor, beta: float) -> Tensor:
    return x * sigmoid(beta * x)


def elu(x: Tensor, scale: float, factor: float, width: float) -> Tensor:
    """scale x, and factor (exp(x / width) - 1) where x is not positive."""
    below = torch.where(x <= 0, x, 0.0) / width
    # expm1's derivative by autograd is expm1 + 1, which cancels
    far = below < -1
    bent = torch.where(far, torch.where(far, below, 0.0).exp() - 1, torch.where(far, 0.0, below).expm1())
    return torch.where(x <= 0, factor * bent, scale * x)


def softplus(x: Tensor, beta: float, threshold: float) -> Tensor:
    straight = beta * x > threshold
    z = beta * torch.where(straight, 0.0, x)
    # the second derivative of logsigmoid by autograd cancels, to 0 far below
    below, above = torch.where(z > 0, 0.0, z).exp(), (-torch.where(z > 0, z, 0.0)).exp()
    return torch.where(straight, x, torch.where(z > 0, z + above.log1p(), below.log1p()) / beta)


def mish(x: Tensor) -> Tensor:
    # tanh(log(1 + e^x)) is w / (w + 2) of w = e^x (e^x + 2); for x > 0, 1 less the rest, over e^2x
    below, above = torch.where(x > 0, 0.0, x).exp(), (-torch.where(x > 0, x, 0.0)).exp()
    low, rest = below * (below + 2), 2 * above * above
    return x * torch.where(x > 0, 1 - rest / (1 + 2 * above + rest), low / (low + 2))


def hardswish(x: Tensor) -> Tensor:
    """At -infinity NaN with slope 0, at NaN slope 1, as PyTorch's own."""
    near = torch.where((x > -3) & (x < 3), x, 0.0)
    return torch.where(x <= -3, 0.0 * x.detach(), torch.where(x < 3, near * (near + 3) / 6, x))


def hardsigmoid(x: Tensor) -> Tensor:
    """At NaN slope 0, as PyTorch's own."""
    near = torch.where((x > -3) & (x < 3), x, 0.0)
    ends = torch.where(x.isnan(), x.detach(), (x.detach() > 0).double())
    return torch.where((x > -3) & (x < 3), (near + 3) / 6, ends)


def clip(x: Tensor, low: float, high: float) -> Tensor:
    return torch.where(x <= low, low, torch.where(x >= high, high, x))


def softcap(x: Tensor, cap: float) -> Tensor:
    return cap * tanh(x / cap)


_FORMULAS: dict[str, Callable[..., Tensor]] = {
    "none": lambda x: x * 1.0,
    "relu": torch.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: swish(x, 1.0),
    "sigmoid": sigmoid,
    "tanh": tanh,
    "relu2": relu2,
    "leaky_relu": leaky_relu,
    "quick_gelu": lambda x: swish(x, 1.702),
    "swish": swish,
    "elu": lambda x, alpha: elu(x, 1, alpha, 1),
    "selu": lambda x: elu(x, SELU[0], SELU[0] * SELU[1], 1),
    "celu": lambda x, alpha: elu(x, 1, alpha, alpha),
    "softplus": softplus,
    "mish": mish,
    "hardswish": hardswish,
    "hardsigmoid": hardsigmoid,
    "relu6": lambda x: clip(x, 0.0, 6.0),
    "hardtanh": clip,
    "softcap": softcap,
}
"""By name; the parameters by keyword."""


@functools.cache
def _with(name: str, **parameters: float) -> Pointwise:
    return functools.partial(_FORMULAS[name], **parameters)


def activation(kind: Activation) -> Pointwise:
    return _with(kind.name, **kind.parameters)


def jumps(formula: Pointwise) -> tuple[float, ...]:
    """The places where a value jumps: softplus does at its threshold, and no other."""
    if isinstance(formula, functools.partial) and formula.func is softplus:
        return (formula.keywords["threshold"] / formula.keywords["beta"],)
    return ()


def from_above(x: Tensor, bound: float) -> Tensor:
    """At most `bound`, where the slope is 0."""
    return x if bound == math.inf else torch.where(x >= bound, bound, x)


def between(x: Tensor, bound: float) -> Tensor:
    """From -bound to bound, where the slope is 0."""
    return x if bound == math.inf else torch.where(x >= bound, bound, torch.where(x <= -bound, -bound, x))


@functools.cache
def limited(phi: Pointwise, limit: float, after: float) -> Pointwise:
    """An activation of a gate that is at most `limit`, itself at most `after`."""

    def value(x: Tensor) -> Tensor:
        near = from_above(x, limit)
        if after == math.inf:
            return phi(near)
        over = phi(near.detach()) >= after  # where a slope that is not finite is not asked for
        return torch.where(over, after, phi(torch.where(over, 0, near)))

    return value


_PHI = {
    "glu": "sigmoid",
    "reglu": "relu",
    "swiglu": "swish",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "bilinear": "none",
    "sreglu": "relu2",
    "quick_geglu": "quick_gelu",
}


@functools.cache
def _with_offset(bound: float, offset: float) -> Pointwise:
    return lambda x: between(x, bound) + offset


def gated(kind: Gated) -> tuple[Pointwise, Pointwise]:
    """psi and phi of ``psi(value) * phi(gate)``."""
    given: dict[str, Any] = dict(kind.parameters)
    if kind.name == "situ_glu":
        gate_cap, value_cap = given["gate_cap"], given["value_cap"]
        return _with("softcap", cap=value_cap), Product(_with("softcap", cap=gate_cap), sigmoid)
    limit, after = (math.inf if given[name] is None else given[name] for name in ("limit", "limit_after"))
    phi = _with(_PHI[kind.name], **({"beta": given["alpha"]} if kind.name == "swiglu" else {}))
    return _with_offset(min(limit, after), given["offset"]), limited(phi, limit, after)
