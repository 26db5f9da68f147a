"""Which formula of the kernels computes a kind, and what its numbers are, as go/activation has them
(kernel.go)."""

from __future__ import annotations

from collections.abc import Callable

from epigrad import Activation, Gated

Formula = tuple[str, tuple[float, ...]]
GatedFormula = tuple[str, tuple[float | None, ...]]
"""A formula's name, and its numbers. A limit that is none is None."""

SELU = 1.0507009873554804934

# The formulas that compute activations of other names.
_SHARED: dict[str, Callable[..., Formula]] = {
    "quick_gelu": lambda: ("swish", (1.702,)),
    "elu": lambda alpha: ("elu", (1.0, alpha, 1.0)),
    "selu": lambda: ("elu", (SELU, SELU * 1.6732632423543772848, 1.0)),
    "celu": lambda alpha: ("elu", (1.0, alpha, alpha)),
    "relu6": lambda: ("hardtanh", (0.0, 6.0)),
}


def of_activation(activation: Activation) -> Formula:
    """What computes an activation."""
    name, values = activation.name, activation.values
    return _SHARED[name](*values) if name in _SHARED else (name, values)


def of_gated(kind: Gated) -> GatedFormula:
    """What computes a gated kind: the formula of its gate, behind the limits and the offset."""
    if kind.activation is None:
        return "situ", kind.values
    name, numbers = of_activation(kind.activation)
    limits = kind.parameters
    return name, (limits["limit"], limits["limit_after"], limits["offset"], *numbers)
