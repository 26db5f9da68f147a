"""Activations and gated kinds as values: a name with its parameters, checked when it is made."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from epigrad import errors
from epigrad._core.tables import ACTIVATIONS, GATED_KINDS, PRESETS, ActivationRow, GatedRow, Parameter
from epigrad._core.values import immutable

__all__ = ["Activation", "Gated", "activation_of", "arguments_of", "gated_of", "nearest", "unknown_name"]

_ALIASES = {alias: row.name for row in ACTIVATIONS.values() for alias in row.aliases}


@immutable
@dataclass(frozen=True, init=False, repr=False)
class _Kind:
    """The table's name of a kind, and the values of its parameters, in the table's order.

    What is none is infinity among the values.
    """

    name: str
    values: tuple[float, ...]

    _table: ClassVar[Mapping[str, ActivationRow | GatedRow]]

    def __init__(self, name: str, /, **parameters: float | None) -> None:
        what = type(self).__name__
        row, preset = self._found(what, name)
        known = {parameter.name: parameter for parameter in row.parameters}
        for given in parameters:
            if given not in known:
                wanted = f"want {', '.join(known)}" if known else "it takes no parameters"
                raise errors.InvalidProblemError(f"{what}: {row.name} has no parameter {given!r}, {wanted}")
        chosen = preset | parameters
        values = [_value(what, known[key], chosen[key]) if key in chosen else known[key].default for key in known]
        self._set(what, row, values)

    def _set(self, what: str, row: ActivationRow | GatedRow, values: Sequence[float]) -> None:
        """Check the values, and take them with the name that they have."""
        before = 0.0
        for parameter, value in zip(row.parameters, values, strict=True):
            # while a graph is traced it may be a symbol, which the core checks when the graph runs
            if isinstance(value, float) and isinstance(before, float) and not parameter.accepts(value, before):
                raise errors.InvalidProblemError(f"{what}: {parameter.name}: got {value!r}, want {parameter.range}")
            before = value
        if isinstance(row, ActivationRow) and row.default_is and list(values) == _defaults(row):
            row, values = ACTIVATIONS[row.default_is], ()
        object.__setattr__(self, "name", row.name)
        object.__setattr__(self, "values", tuple(values))

    @classmethod
    def _found(cls, op: str, name: str) -> tuple[ActivationRow | GatedRow, dict[str, float | None]]:
        """The row that a name means, and the parameters that it means beside."""
        raise NotImplementedError

    @classmethod
    def of(cls, op: str, name: str, values: Sequence[float]) -> Self:
        """The kind of an operator's arguments: a name, and the values of all parameters or of none.

        While a graph is traced a value may be a symbol.
        """
        if not values:
            return cls(name)
        row, _ = cls._found(op, name)
        if len(values) != len(row.parameters):
            wanted = len(row.parameters)
            raise errors.InvalidProblemError(f"{op}: parameters: got {len(values)}, want {wanted} for {name}, or none")
        made = cls.__new__(cls)
        made._set(op, row, values)
        return made

    @property
    def parameters(self) -> dict[str, float | None]:
        """The parameters by name, with their defaults."""
        rows = zip(self._table[self.name].parameters, self.values, strict=True)
        return {row.name: None if row.optional and value == math.inf else value for row, value in rows}

    def _given(self) -> dict[str, float | None]:
        """The parameters that are not the defaults."""
        rows = zip(self._table[self.name].parameters, self.parameters.items(), self.values, strict=True)
        return {name: shown for row, (name, shown), value in rows if value != row.default}

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has parameters by name: a row may get more of them, or other defaults."""
        return _made, (type(self), self.name, self.parameters)

    def __fx_create_arg__(self, tracer: Any) -> Any:
        """How a graph of `torch.fx` makes it again: its name where that is all, else the call of
        its class."""
        given = self._given()
        return tracer.create_node("call_function", type(self), (self.name,), given) if given else self.name

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self._given().items())
        return f"{type(self).__name__}({self.name!r}{given})"

    def __str__(self) -> str:
        """The name, with the parameters that are not defaults: ``leaky_relu(slope=0.2)``."""
        shown = ", ".join(f"{name}={_number(value)}" for name, value in self._given().items())
        return f"{self.name}({shown})" if shown else self.name


def _made(kind: type[_Kind], name: str, parameters: dict[str, float | None]) -> _Kind:
    return kind(name, **parameters)


def _defaults(row: ActivationRow | GatedRow) -> list[float]:
    return [parameter.default for parameter in row.parameters]


class Activation(_Kind):
    """An activation by its name, with its parameters; hashable, picklable and equal by value.

    Wherever a function or a module of epigrad takes an activation, it takes a name, which has the
    default parameters, one of these, or None, which is ``"none"``. Two that are equal have the same
    `name`: that of the table below, whichever was given.

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
        >>> epigrad.Activation("softplus", beta=2).parameters
        {'beta': 2.0, 'threshold': 20.0}
        >>> epigrad.Activation("gelu_new") == epigrad.Activation("gelu_tanh")
        True
    """

    _table = ACTIVATIONS

    def __init__(self, name: str | None, /, **parameters: float | None) -> None:
        super().__init__("none" if name is None else name, **parameters)

    @classmethod
    def _found(cls, op: str, name: str) -> tuple[ActivationRow, dict[str, float | None]]:
        row = ACTIVATIONS.get(_ALIASES.get(name, name)) if isinstance(name, str) else None
        if row is None:
            raise unknown_name(op, "activation", name)
        return row, {}


class Gated(_Kind):
    """A gated kind by its name, with its parameters; hashable, picklable and equal by value.

    It computes ``(psi(value) + offset) * phi(gate)``. ``phi`` is the kind's own function of the
    gate. ``psi`` is the identity in all kinds but ``situ_glu``, which has no limits and no offset.
    Limits are applied before ``phi`` and after it::

        g, v = min(gate, limit), clip(value, -limit, limit)
        a, b = min(phi(g), limit_after), clip(psi(v), -limit_after, limit_after)
        out  = (b + offset) a

    Where something is clamped the slope is 0, at the bound too.

    Args:
        name: one of the table below.
        parameters: numbers, by keyword; what is left out has its default. A limit may be None,
            which is its default.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown name, a parameter that the kind does not
            have, or a value out of its range.
        DTypeError: (a ``TypeError``) a parameter that is not a number.

    Examples:
        >>> import epigrad
        >>> epigrad.Gated("swiglu").name
        'swiglu'
        >>> epigrad.Gated("swiglu_oai") == epigrad.Gated("swiglu", alpha=1.702, limit=7, offset=1)
        True
        >>> str(epigrad.Gated("swiglu_oai", limit=None))
        'swiglu(offset=1, alpha=1.702)'
    """

    _table = GATED_KINDS

    @classmethod
    def _found(cls, op: str, name: str) -> tuple[GatedRow, dict[str, float | None]]:
        preset = PRESETS.get(name) if isinstance(name, str) else None
        row = GATED_KINDS.get(preset.kind if preset else name) if isinstance(name, str) else None
        if row is None:
            raise unknown_name(op, "kind", name)
        return row, dict(preset.parameters) if preset else {}

    @property
    def activation(self) -> Activation | None:
        """What the gate goes through between the limits; None where the kind has its own way."""
        row = GATED_KINDS[self.name]
        alpha = [value for one, value in zip(row.parameters, self.values, strict=True) if one.name == "alpha"]
        if alpha:
            return Activation.of("Gated", "swish", alpha)
        return Activation(row.activation) if row.activation else None


def _value(what: str, parameter: Parameter, given: Any) -> float:
    """A parameter's value as a float."""
    if given is None and parameter.optional:
        return math.inf
    wanted = "a number or None" if parameter.optional else "a number"
    # -0 is 0, as which it counts where kinds are compared
    return number(f"{what}: {parameter.name}", given, wanted) + 0.0


def number(what: str, given: object, wanted: str = "a number") -> float:
    """A number as a float, which is infinite for one beyond float64's range."""
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise errors.DTypeError(f"{what}: got {_shown(given)}, want {wanted}")
    try:
        return float(given)
    except OverflowError:
        return math.inf if given > 0 else -math.inf  # type: ignore[operator]


def _number(value: float | None) -> str:
    """All digits of a number, without a .0 at its end."""
    return repr(value).removesuffix(".0")


def _listed(rows: Mapping[str, ActivationRow | GatedRow]) -> str:
    """A table for a docstring: each name with its parameters and its formula."""
    lines = []
    for row in rows.values():
        parameters = ", ".join(
            f"{parameter.name}={_number(None if parameter.default == math.inf else parameter.default)}"
            for parameter in row.parameters
        )
        lines.append(f"        ``{row.name}``{f' ({parameters})' if parameters else ''}: {row.formula}\n")
    return "".join(lines)


_SPELLINGS = "".join(
    f"        {', '.join(f'``{alias}``' for alias in row.aliases)}: ``{row.name}``\n"
    for row in ACTIVATIONS.values()
    if row.aliases
)
_PRESETS = "".join(f"        ``{name}``: ``{Gated(name)}``\n" for name in PRESETS)
Activation.__doc__ = f"{Activation.__doc__}\n    Activations:\n{_listed(ACTIVATIONS)}\n    Aliases:\n{_SPELLINGS}"
Gated.__doc__ = f"{Gated.__doc__}\n    Kinds:\n{_listed(GATED_KINDS)}\n    Presets:\n{_PRESETS}"

_BY_NAME = {name: Activation(name) for name in (*ACTIVATIONS, *_ALIASES)} | {None: Activation(None)}
_GATED_BY_NAME = {name: Gated(name) for name in (*GATED_KINDS, *PRESETS)}
_NAMES = {"activation": tuple(ACTIVATIONS), "kind": tuple(_GATED_BY_NAME)}
_FUNCTIONS = ("prelu", "xielu")
_ACCEPTED = {"activation": (*ACTIVATIONS, *_ALIASES), "kind": tuple(_GATED_BY_NAME)}


def arguments_of(kind: Activation | Gated) -> tuple[float, ...]:
    """The values as the core takes them: none where all are the defaults."""
    row = GATED_KINDS[kind.name] if isinstance(kind, Gated) else ACTIVATIONS[kind.name]
    return () if list(kind.values) == _defaults(row) else kind.values


def activation_of(op: str, given: str | Activation | None) -> Activation:
    """The activation that a caller means."""
    if isinstance(given, Activation):
        return given
    try:
        return _BY_NAME[given]
    except (KeyError, TypeError):
        raise unknown_name(op, "activation", given) from None


def gated_of(op: str, given: str | Gated) -> Gated:
    """The gated kind that a caller means."""
    if isinstance(given, Gated):
        return given
    try:
        return _GATED_BY_NAME[given]
    except (KeyError, TypeError):
        raise unknown_name(op, "kind", given) from None


def either_of(op: str, given: str | Activation | Gated | None) -> Activation | Gated:
    """The gated kind or the activation that a caller means, where both make sense; None is the
    activation "none"."""
    if given is None:
        return activation_of(op, None)
    if isinstance(given, Activation | Gated):
        return given
    found = None
    if isinstance(given, str):
        found = _GATED_BY_NAME.get(given) or _BY_NAME.get(given)
    if found is None:
        names = ", ".join(map(repr, (*_NAMES["kind"], *_NAMES["activation"])))
        raise errors.InvalidProblemError(f"{op}: kind: {_shown(given)}, want one of {names}")
    return found


def unknown_name(op: str, argument: str, given: object) -> errors.InvalidProblemError:
    """The error for what is no name of an activation or of a kind."""
    text = f"{op}: {argument}: {_shown(given)}, want one of {', '.join(map(repr, _NAMES[argument]))}"
    if isinstance(given, str) and (hint := _hint(argument, given)):
        text += f" ({hint})"
    return errors.InvalidProblemError(text)


def _hint(argument: str, given: str) -> str | None:
    """What a name is that is no name of an activation or of a kind, or which one is near."""
    if given in _FUNCTIONS:
        return f"{given!r} has weights and is a function of its own: epigrad.{given}"
    for other, what in (("activation", "an activation"), ("kind", "a gated kind")):
        if other != argument and given in _ACCEPTED[other]:
            return f"{given!r} is {what}"
    near = nearest(argument, given)
    return f"did you mean {near!r}?" if near else None


def nearest(argument: str, given: str) -> str | None:
    """The activation or the kind that was probably meant; None where none is near."""
    wanted = given.strip().lower().replace("-", "_")
    return next(iter(difflib.get_close_matches(wanted[:64], _ACCEPTED[argument], 1)), None)


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."
