"""The names of activations and gated kinds, and the errors for others, without loading the core.

Constructors and operators check names here, so that a process that only makes modules may still fork. A test compares
the names with the core's tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from epigrad import errors
from epigrad.differentiable import ACTIVATIONS

__all__ = ["GATED_KINDS", "activation_name", "gated_kind", "nearest", "unknown_name"]

GATED_KINDS = {
    "glu": "sigmoid",
    "reglu": "relu",
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "bilinear": "none",
}
"""The activation of each gated kind's gate."""

# What other libraries call the same function.
_ELSEWHERE = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "identity": "none",
    "linear": "none",
}


def activation_name(op: str, activation: str | None) -> str:
    """The activation's name; None means ``"none"``."""
    if activation is None:
        return "none"
    if isinstance(activation, str) and activation in ACTIVATIONS:
        return activation
    raise unknown_name(op, "activation", activation, ACTIVATIONS)


def gated_kind(op: str, kind: str | None) -> str:
    """The gated kind's name."""
    if isinstance(kind, str) and kind in GATED_KINDS:
        return kind
    raise unknown_name(op, "kind", kind, GATED_KINDS)


def unknown_name(op: str, argument: str, given: object, valid: Iterable[str]) -> errors.InvalidProblemError:
    """The error for a name that is none of `valid`."""
    names = list(valid)
    text = f"{op}: {argument}: {_shown(given)}, want one of {', '.join(map(repr, names))}"
    if isinstance(given, str) and (near := nearest(given, names)):
        text += f" (did you mean {near!r}?)"
    return errors.InvalidProblemError(text)


def nearest(given: str, names: Iterable[str]) -> str | None:
    """The one of some names that was probably meant; None where none is near."""
    wanted = given.strip().lower().replace("-", "_")
    wanted = _ELSEWHERE.get(wanted, wanted)
    return next(iter(difflib.get_close_matches(wanted[:64], list(names), 1)), None)


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."
