"""Activations and gated kinds as values: a name with its parameters, checked when it is made."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from epigrad import errors
from epigrad._core.tables import ACTIVATIONS, GATED_KINDS, ActivationRow, GatedRow, Parameter

__all__ = ["Activation", "Gated", "activation_of", "gated_of", "nearest", "unknown_name"]


@dataclass(frozen=True, init=False, repr=False)
class _Kind:
    """A name and the values of its parameters, in the order of the table."""

    name: str
    values: tuple[float, ...]

    _table: ClassVar[Mapping[str, ActivationRow | GatedRow]]
    _argument: ClassVar[str]

    def __init__(self, name: str | None, /, **parameters: float) -> None:
        what = type(self).__name__
        row = self._row(what, name)
        known = {parameter.name: parameter for parameter in row.parameters}
        for given in parameters:
            if given not in known:
                wanted = f"want {', '.join(known)}" if known else "it takes no parameters"
                raise errors.InvalidProblemError(f"{what}: {row.name} has no parameter {given!r}, {wanted}")
        values = [_value(what, known[key], parameters.get(key, known[key].default)) for key in known]
        object.__setattr__(self, "name", row.name)
        object.__setattr__(self, "values", tuple(values))

    @classmethod
    def _row(cls, op: str, name: str | None) -> ActivationRow | GatedRow:
        row = cls._table.get(name) if isinstance(name, str) else None
        if row is None:
            raise unknown_name(op, cls._argument, name, cls._table)
        return row

    @classmethod
    def of(cls, op: str, name: str, values: Sequence[float]) -> Self:
        """The kind of an operator's arguments: a name, and the values of all parameters or of none.

        While a graph is traced a value may be a symbol. The core checks it when the graph runs.
        """
        row = cls._row(op, name)
        if values and len(values) != len(row.parameters):
            wanted = len(row.parameters)
            raise errors.InvalidProblemError(f"{op}: parameters: got {len(values)}, want {wanted} for {name}, or none")
        values = tuple(values) or tuple([parameter.default for parameter in row.parameters])
        for parameter, value in zip(row.parameters, values, strict=True):
            if isinstance(value, float):
                _value(op, parameter, value)
        made = cls.__new__(cls)
        object.__setattr__(made, "name", row.name)
        object.__setattr__(made, "values", values)
        return made

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters by name, with their defaults."""
        names = [parameter.name for parameter in self._table[self.name].parameters]
        return dict(zip(names, self.values, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has parameters by name: a row may get more of them, or other defaults."""
        return _made, (type(self), self.name, self.parameters)

    def __fx_create_arg__(self, tracer: Any) -> Any:
        """How a graph of `torch.fx` makes it again: its name where that is all, else the call of
        its class."""
        if self == type(self)(self.name):
            return self.name
        return tracer.create_node("call_function", type(self), (self.name,), self.parameters)

    def __repr__(self) -> str:
        given = "".join(f", {key}={value!r}" for key, value in self.parameters.items())
        return f"{type(self).__name__}({self.name!r}{given})"

    def __str__(self) -> str:
        """The name, with the parameters that are not defaults: ``leaky_relu(slope=0.2)``."""
        rows = zip(self._table[self.name].parameters, self.values, strict=True)
        shown = ", ".join(f"{row.name}={_number(value)}" for row, value in rows if value != row.default)
        return f"{self.name}({shown})" if shown else self.name


def _made(kind: type[_Kind], name: str, parameters: dict[str, float]) -> _Kind:
    return kind(name, **parameters)


class Activation(_Kind):
    """An activation by its name, with its parameters; hashable, picklable and equal by value.

    Wherever a function or a module of epigrad takes an activation, it takes a name, which has the
    default parameters, one of these, or None, which is ``"none"``.

    Args:
        name: one of the table below, or None.
        parameters: numbers, by keyword; what is left out has its default.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown name, a parameter that the activation
            does not have, or a value out of its range.
        DTypeError: (a ``TypeError``) a parameter that is not a number.

    Examples:
        >>> import epigrad
        >>> epigrad.Activation("gelu")
        Activation('gelu')
        >>> epigrad.Activation("gelu").parameters
        {}
    """

    _table = ACTIVATIONS
    _argument = "activation"

    def __init__(self, name: str | None, /, **parameters: float) -> None:
        super().__init__("none" if name is None else name, **parameters)


class Gated(_Kind):
    """A gated kind by its name, with its parameters; hashable, picklable and equal by value.

    Args:
        name: one of the table below.
        parameters: numbers, by keyword; what is left out has its default.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown name, a parameter that the kind does not
            have, or a value out of its range.
        DTypeError: (a ``TypeError``) a parameter that is not a number.

    Examples:
        >>> import epigrad
        >>> epigrad.Gated("swiglu").name
        'swiglu'
    """

    _table = GATED_KINDS
    _argument = "kind"

    @property
    def activation(self) -> Activation:
        """What the gate goes through."""
        return Activation(GATED_KINDS[self.name].activation)


def _value(what: str, parameter: Parameter, given: Any) -> float:
    """A parameter's value as a float."""
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise errors.DTypeError(f"{what}: {parameter.name}: got {_shown(given)}, want a number")
    try:
        value = float(given)
    except OverflowError:
        value = float("inf")
    value += 0.0  # -0 is 0, as which it counts where kinds are compared
    if not parameter.accepts(value):
        raise errors.InvalidProblemError(f"{what}: {parameter.name}: got {_shown(given)}, want {parameter.range}")
    return value


def _number(value: float) -> str:
    """All digits of a number, without a .0 at its end."""
    return repr(value).removesuffix(".0")


def _listed(rows: Mapping[str, ActivationRow | GatedRow], formula: Any) -> str:
    """A table for a docstring: each name with its parameters and its formula."""
    lines = []
    for row in rows.values():
        parameters = ", ".join(f"{parameter.name}={_number(parameter.default)}" for parameter in row.parameters)
        lines.append(f"        ``{row.name}``{f' ({parameters})' if parameters else ''}: {formula(row)}\n")
    return "".join(lines)


Activation.__doc__ = f"{Activation.__doc__}\n    Activations:\n{_listed(ACTIVATIONS, lambda row: row.formula)}"
Gated.__doc__ = (
    f"{Gated.__doc__}\n    Kinds, of value and gate:\n"
    f"{_listed(GATED_KINDS, lambda row: f'value times {row.activation} of the gate')}"
)

_BY_NAME = {name: Activation(name) for name in ACTIVATIONS} | {None: Activation(None)}
_GATED_BY_NAME = {name: Gated(name) for name in GATED_KINDS}


def activation_of(op: str, given: str | Activation | None) -> Activation:
    """The activation that a caller means."""
    if isinstance(given, Activation):
        return given
    try:
        return _BY_NAME[given]
    except (KeyError, TypeError):
        raise unknown_name(op, "activation", given, ACTIVATIONS) from None


def gated_of(op: str, given: str | Gated) -> Gated:
    """The gated kind that a caller means."""
    if isinstance(given, Gated):
        return given
    try:
        return _GATED_BY_NAME[given]
    except (KeyError, TypeError):
        raise unknown_name(op, "kind", given, GATED_KINDS) from None


# What other libraries call the same function.
_ELSEWHERE = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "identity": "none",
    "linear": "none",
}


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
