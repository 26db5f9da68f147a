"""Activations and gated kinds as values: a name with its parameters, checked when it is made."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

from torch import Tensor, nn
from torch.serialization import add_safe_globals

from epigrad import errors
from epigrad._core.callables import activation_of_class, activation_of_function, computed_by
from epigrad._core.projections import full_name, why_called
from epigrad._core.tables import ACTIVATIONS, GATED_KINDS, PRESETS, ActivationRow, GatedRow, Parameter
from epigrad._core.torch_state import constant_to_dynamo
from epigrad._core.values import immutable

__all__ = [
    "Activation",
    "ActivationLike",
    "Gated",
    "activation_of",
    "arguments_of",
    "gated_of",
    "nearest",
    "unknown_name",
]

_Values: TypeAlias = dict[str, float | None]

_OWN = f"for one of your own see {errors.SITE}/howto/own-activation.html"

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

    def __init__(self, name: Any, **parameters: float | None) -> None:
        self._fill(type(self).__name__, name, parameters)

    def _fill(self, what: str, name: Any, parameters: _Values) -> None:
        """Take what a caller means by a name, or by what stands for one, and by parameters."""
        row, meant, preset = self._found(what, name)
        if meant and parameters:
            raise errors.InvalidProblemError(
                f"{what}: parameters: got {', '.join(parameters)} beside {shown(name)}, want them inside of it"
            )
        parameters = meant or parameters
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
    def _found(cls, op: str, given: Any) -> tuple[ActivationRow | GatedRow, _Values, _Values]:
        """The row that is meant; the parameters given in the text or the module itself, to which
        none may be added; and those of a preset, which others may replace.
        """
        raise NotImplementedError

    @classmethod
    def read(cls, op: str, given: Any) -> Self:
        """The kind that the caller of an operation means by a name, or by what stands for one."""
        made = cls.__new__(cls)
        made._fill(op, given, {})
        return made

    @classmethod
    def of(cls, op: str, name: str, values: Sequence[float]) -> Self:
        """The kind of an operator's arguments: a name, and the values of all parameters or of none.

        While a graph is traced a value may be a symbol.
        """
        if not values:
            return cls(name)
        row, meant, _ = cls._found(op, name)
        wanted = 0 if meant else len(row.parameters)
        if len(values) != wanted:
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

    Functions, modules and plans of epigrad take an activation as one of:

    - an `Activation`;
    - a name of the table below, with numbers or without, as `str` prints it: ``"gelu"`` or
      ``"leaky_relu(slope=0.2)"``;
    - a module or a function that computes one: ``torch.nn.LeakyReLU(0.2)``, `torch.tanh`, or a
      module of transformers' ``ACT2FN``. Subclasses and modules with hooks are refused;
    - None, which is ``"none"``.

    Two that are equal have the same `name`: that of the table below, whichever was given.

    Args:
        name: any of these but an `Activation`.
        parameters: numbers, by keyword, which the name does not have in it; what is left out has
            its default.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown name, a parameter that the activation
            does not have, or a value out of its range.
        DTypeError: (a ``TypeError``) a parameter that is not a number.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.Activation("gelu")
        Activation('gelu')
        >>> epigrad.Activation("softplus", beta=2).parameters
        {'beta': 2.0, 'threshold': 20.0}
        >>> epigrad.Activation("gelu_new") == epigrad.Activation("gelu_tanh")
        True
        >>> epigrad.Activation("leaky_relu(slope=0.2)")
        Activation('leaky_relu', slope=0.2)
        >>> epigrad.Activation(torch.nn.GELU(approximate="tanh"))
        Activation('gelu_tanh')
    """

    _table = ACTIVATIONS

    def __init__(self, name: str | Callable[..., Any] | None, **parameters: float | None) -> None:
        super().__init__("none" if name is None else name, **parameters)

    @classmethod
    def _found(cls, op: str, given: Any) -> tuple[ActivationRow, _Values, _Values]:
        name, values = _split(op, "activation", given) if isinstance(given, str) else (None, ())
        if callable(given):
            name, numbers = _computed_by(op, given)
            values = tuple(zip([parameter.name for parameter in ACTIVATIONS[name].parameters], numbers, strict=False))
        row = ACTIVATIONS.get(_ALIASES.get(name, name)) if name else None
        if row is None:
            raise unknown_name(op, "activation", given)
        return row, dict(values), {}


ActivationLike: TypeAlias = str | Callable[..., Any] | Activation | None
"""Whatever stands for an activation, as `Activation` lists it."""


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
        name: one of the table below, with numbers or without, as `str` prints it:
            ``"swiglu(limit=7)"``. Functions, modules and plans take the same text.
        parameters: numbers, by keyword, which the name does not have in it; what is left out has
            its default. A limit may be None, which is its default.

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
    def _found(cls, op: str, given: Any) -> tuple[GatedRow, _Values, _Values]:
        name, values = _split(op, "kind", given) if isinstance(given, str) else (None, ())
        preset = PRESETS.get(name) if name else None
        row = GATED_KINDS.get(preset.kind if preset else name) if name else None
        if row is None:
            raise unknown_name(op, "kind", given)
        return row, dict(values), dict(preset.parameters) if preset else {}

    @property
    def activation(self) -> Activation | None:
        """What the gate goes through between the limits; None where the kind has its own way."""
        row = GATED_KINDS[self.name]
        alpha = [value for one, value in zip(row.parameters, self.values, strict=True) if one.name == "alpha"]
        if alpha:
            return Activation.of("Gated", "swish", alpha)
        return Activation(row.activation) if row.activation else None


_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_PARAMETER = rf"[a-z_]+={_NUMBER}"
_WITH_PARAMETERS = re.compile(rf"([a-z_0-9]+)\(({_PARAMETER}(?:, {_PARAMETER})*)\)", re.ASCII)


@constant_to_dynamo
def _split(op: str, argument: str, text: str) -> tuple[str, tuple[tuple[str, float], ...]]:
    """The name and the parameters of a text such as ``leaky_relu(slope=0.2)``."""
    if "(" not in text:
        return text, ()
    found = _WITH_PARAMETERS.fullmatch(text)
    if found is None:
        raise errors.InvalidProblemError(
            f"{op}: {argument}: {shown(text)}, want a name, or one with numbers, as in "
            f"{'leaky_relu(slope=0.2)' if argument == 'activation' else 'swiglu(limit=7, offset=1)'!r}"
        )
    pairs = [each.split("=") for each in found[2].split(", ")]
    if len({name for name, _ in pairs}) < len(pairs):
        raise errors.InvalidProblemError(f"{op}: {argument}: {shown(text)}, want each parameter once")
    return found[1], tuple([(name, float(number)) for name, number in pairs])


def _computed_by(op: str, given: Any) -> tuple[str, tuple[float, ...]]:
    """The name and the values of the activation that a module or a function computes."""
    if isinstance(given, nn.Module):
        found = computed_by(given)
        if found is not None and (reason := why_called(given)):
            raise errors.InvalidProblemError(
                f"{op}: activation: the {type(given).__name__} {reason}, which epigrad ignores: want an "
                f"unchanged module, or {found[0]!r}"
            )
    else:
        name = activation_of_function(given)
        found = (name, ()) if name else None
    if found is None:
        raise unknown_name(op, "activation", given)
    return found


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
        learned = f"; parameters of kinds have no gradient, {_OWN}" if isinstance(given, Tensor) else ""
        raise errors.DTypeError(f"{what}: got {shown(given)}, want {wanted}{learned}")
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
LEARNED = {"prelu": "PReLU", "xielu": "XIELU"}
"""Activations with weights, by their functions, and the classes of epigrad.nn."""
_ACCEPTED = {"activation": (*ACTIVATIONS, *_ALIASES), "kind": tuple(_GATED_BY_NAME)}


# `torch.load` reads checkpoints that hold kinds
add_safe_globals([_made, Activation, Gated])


def arguments_of(kind: Activation | Gated) -> tuple[float, ...]:
    """The values as the core takes them: none where all are the defaults."""
    row = GATED_KINDS[kind.name] if isinstance(kind, Gated) else ACTIVATIONS[kind.name]
    return () if list(kind.values) == _defaults(row) else kind.values


def activation_of(op: str, given: ActivationLike) -> Activation:
    """The activation that a caller means."""
    if isinstance(given, Activation):
        return given
    try:
        return _BY_NAME[given]
    except (KeyError, TypeError):
        return Activation.read(op, given)


def gated_of(op: str, given: str | Gated) -> Gated:
    """The gated kind that a caller means."""
    if isinstance(given, Gated):
        return given
    try:
        return _GATED_BY_NAME[given]
    except (KeyError, TypeError):
        return Gated.read(op, given)


def either_of(op: str, given: ActivationLike | Gated) -> Activation | Gated:
    """The gated kind or the activation that a caller means, where both make sense; None is the
    activation "none"."""
    if given is None:
        return activation_of(op, None)
    if isinstance(given, Activation | Gated):
        return given
    if isinstance(given, str):
        name = given.partition("(")[0]
        if name in _GATED_BY_NAME:
            return gated_of(op, given)
        if name in _BY_NAME:
            return activation_of(op, given)
    if callable(given):
        try:
            return activation_of(op, given)
        except errors.InvalidProblemError as error:
            raise errors.renamed(error, op, {"activation": "kind"}) from None
    names = ", ".join(map(repr, (*_NAMES["kind"], *_NAMES["activation"])))
    raise errors.InvalidProblemError(f"{op}: kind: {shown(given)}, want one of {names}; {_OWN}")


def unknown_name(op: str, argument: str, given: object) -> errors.InvalidProblemError:
    """The error for what is no name of an activation or of a kind."""
    text = f"{op}: {argument}: {shown(given)}, want one of {', '.join(map(repr, _NAMES[argument]))}"
    hint = _hint(argument, given) if isinstance(given, str) else _hint_at_callable(given)
    if hint:
        text += f" ({hint})"
    return errors.InvalidProblemError(f"{text}; {_OWN}" if argument == "activation" else text)


@constant_to_dynamo  # which PyTorch 2.11 cannot trace
def _hint(argument: str, given: str) -> str | None:
    """What a name is that is no name of an activation or of a kind, or which one is near."""
    if learned := _spelled(given, LEARNED):
        return f"{learned!r} has weights: epigrad.{learned} or epigrad.nn.{LEARNED[learned]}"
    if not _spelled(given, _ACCEPTED[argument]):
        other, what = ("kind", "a gated kind") if argument == "activation" else ("activation", "an activation")
        if name := _spelled(given, _ACCEPTED[other]):
            return f"{name!r} is {what}"
        words = given.lower().replace("-", "_").split("_")
        if hasattr(nn.functional, given.lower()) or any(word in _ACCEPTED[other] for word in words):
            return None  # a name without a slip, such as rrelu or silu_glu
    near = nearest(argument, given)
    return f"did you mean {near!r}?" if near else None


def _spelled(given: str, known: Iterable[str]) -> str | None:
    """The known name that differs in no letter."""
    letters = errors.letters(given)
    return next((name for name in known if errors.letters(name) == letters), None)


def _hint_at_callable(given: object) -> str | None:
    """What to write in the place of a module, a class or a function that is not known."""
    cls = given if isinstance(given, type) else type(given)
    if isinstance(given, type) and (name := activation_of_class(given)):
        return f"it is a class: give an instance, or {name!r}"
    for base in cls.__mro__[1:]:
        if name := activation_of_class(base):
            return f"a subclass of {base.__name__} may compute something else: if it does not, give {name!r}"
    if not callable(given):
        return None
    name = getattr(given, "__name__", cls.__name__).lower()
    return _hint("activation", next((each for each in LEARNED if name.startswith(each)), name))


def nearest(argument: str, given: str) -> str | None:
    """The activation or the kind that was probably meant; None where none is near."""
    return errors.nearest(given, _ACCEPTED[argument])


def shown(given: object) -> str:
    """What was given, in one line that is not long."""
    if isinstance(given, Tensor):
        return f"a {type(given).__name__} of shape {list(given.shape)}"
    if isinstance(given, nn.Module):
        return f"a module {full_name(type(given))}"
    if isinstance(given, type):
        return f"the class {full_name(given)}"
    if callable(given) and hasattr(given, "__name__"):
        return f"the function {given.__name__}"
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."
