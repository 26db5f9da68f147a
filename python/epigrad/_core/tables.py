"""What Python knows of the core without loading it: the tables that the build writes (go/tables).

Constructors and operators look names up here. So a process that only makes modules may still fork.
The core checks names and parameters again: C and Go call it too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from epigrad import errors

# What each range of go/activation accepts, of a value and that of the parameter before it, in words
# that Dynamo can trace.
_RANGES: dict[str, Callable[[float, float], bool]] = {
    "a finite number": lambda value, before: -math.inf < value < math.inf,
    "a finite number > 0": lambda value, before: 0 < value < math.inf,
    "a finite number that is not 0": lambda value, before: -math.inf < value < math.inf and value != 0,
    "a finite number >= low": lambda value, before: before <= value < math.inf,
    "a number > 0, or none": lambda value, before: value > 0,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that a kind takes.

    Attributes:
        name: its keyword.
        default: its value where none is given; infinity for none.
        range: the values that it accepts, in words.

    Raises:
        KeyError: a range that `_RANGES` does not have.
    """

    name: str
    default: float
    range: str

    def __post_init__(self) -> None:
        _RANGES[self.range]

    @property
    def optional(self) -> bool:
        """Whether it may be none, which infinity stands for."""
        return self.range.endswith("or none")

    def accepts(self, value: float, before: float) -> bool:
        """Whether a value lies in the range; `before` is that of the parameter before it."""
        return _RANGES[self.range](value, before)


@dataclass(frozen=True, slots=True)
class ActivationRow:
    """One row of the table of activations; go/activation says what each field is."""

    name: str
    formula: str
    slope: str
    source: str
    from_output: bool
    cheap: bool
    cheap_in_half: bool
    aliases: tuple[str, ...] = ()
    default_is: str = ""
    parameters: tuple[Parameter, ...] = ()
    kinks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatedRow:
    """One row of the table of gated kinds."""

    name: str
    activation: str
    formula: str
    source: str
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Preset:
    """A gated kind with parameters, under a name of its own."""

    name: str
    kind: str
    parameters: dict[str, float]
    source: str


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or an output of an operation; go/op says what each field is."""

    name: str
    shape: str
    example: str
    channels: bool
    optional: bool
    types: str
    like: str
    kept: bool

    @property
    def is_adapters(self) -> bool:
        """Whether it belongs to an adapter: ``"adapter.a"``."""
        return "." in self.name

    @property
    def comes_last(self) -> bool:
        """Whether an operator takes it behind the kind and what else is no tensor."""
        return self.kept or self.is_adapters

    @property
    def is_added_to(self) -> bool:
        """Whether it is the gradient of a weight, a bias or an adapter, which a call may add to."""
        return self.types == "wider" and (not self.like or self.is_adapters)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table of operations.

    Attributes:
        inputs: the tensors of a call, in order.
        outputs: the results, in order. Of a backward those after the gradients of the inputs are no
            results of PyTorch's operator.
        tensors, results: the names of inputs and of outputs.
        gradients: of a backward, the places of the inputs that the first outputs are gradients of.
        of_forward: the places of the same among forward's inputs.
        schema: the arguments and results of PyTorch's operator.
        keeps: what backward needs of the preactivation: nothing (``""``), the slope (``"slope"``,
            or ``"output"`` where it may follow from the output), the hidden activation
            (``"hidden"``).
        kinds: ``"activation"``, ``"gated"``, ``"either"`` or ``""``.
        default_kind: the kind that a caller may leave out, ``""`` for none.
        parameters: the numbers of a formula of its own.
        multiplies: whether it has a product of matrices.
        halves: whether it has a place of the gate.
        splits: whether it splits a dimension in halves.
        adapted: the same operation with adapters, of which PyTorch's operator is the overload
            ``adapted``; None if it takes none.
    """

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    tensors: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[int, ...]
    of_forward: tuple[int, ...]
    schema: str
    keeps: str
    kinds: str
    default_kind: str
    parameters: tuple[Parameter, ...]
    multiplies: bool
    halves: bool
    splits: bool
    adapted: Operation | None

    @property
    def adapters(self) -> tuple[str, ...]:
        """The keywords of adapters, each of which is two inputs."""
        return tuple([argument.name[:-2] for argument in self.inputs if argument.name.endswith(".a")])

    @property
    def is_adapted(self) -> bool:
        return self.inputs[-1].is_adapters

    @property
    def is_backward(self) -> bool:
        return self.name.endswith("_backward")

    @property
    def is_second(self) -> bool:
        """Whether it is the backward of a backward, which has no function."""
        return self.forward.endswith("_backward")

    @property
    def kind_argument(self) -> str:
        """What a function calls the kind."""
        return "activation" if self.kinds == "activation" else "kind"

    @property
    def takes_number(self) -> bool:
        """Whether a number may stand for its last tensor, which operators call factor."""
        return "float? factor" in self.schema

    @property
    def forward(self) -> str:
        """The operation whose gradients it is, or itself."""
        return self.name.removesuffix("_backward")


def _read() -> dict[str, Any]:
    path = Path(__file__).with_name("tables.json")
    try:
        tables: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise errors.BackendUnavailableError(
            "epigrad is not built here (tables.json is missing): run 'make build', or 'pip install .' in the repository"
        ) from None
    return tables


def _parameter(name: str, default: float | None, range: str) -> Parameter:
    return Parameter(name, math.inf if default is None else float(default), range)


def _row(fields: dict[str, Any]) -> dict[str, Any]:
    """A row's fields with tuples in place of lists."""
    row = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return row | {"parameters": tuple([_parameter(**parameter) for parameter in fields.get("parameters", ())])}


def _operation(fields: dict[str, Any]) -> Operation:
    inputs, outputs = (
        tuple([Argument(**row | {"like": row["like"].replace(".", "_")}) for row in fields[key]])
        for key in ("inputs", "outputs")
    )
    tensors, results = (tuple([row.name.replace(".", "_") for row in rows]) for rows in (inputs, outputs))
    gradients = tuple([place for place, name in enumerate(tensors) if f"grad_{name}" in results])
    of_forward = [place for place, row in enumerate(inputs) if place and not row.kept]
    parameters = tuple([_parameter(**row) for row in fields["parameters"] or ()])
    named = {
        "tensors": tensors,
        "results": results,
        "gradients": gradients,
        "of_forward": tuple([of_forward.index(place) for place in gradients if place]),
        "parameters": parameters,
        "adapted": _operation(fields | fields["adapted"] | {"adapted": None}) if fields["adapted"] else None,
    }
    return Operation(**fields | {"inputs": inputs, "outputs": outputs} | named)


_TABLES = _read()
ACTIVATIONS = {row["name"]: ActivationRow(**_row(row)) for row in _TABLES["activations"]}
GATED_KINDS = {row["name"]: GatedRow(**_row(row)) for row in _TABLES["gated_kinds"]}
PRESETS = {row["name"]: Preset(**row) for row in _TABLES["presets"]}
QUOTIENTS: dict[str, list[dict[str, Any]]] = _TABLES["quotients"]
DTYPES: dict[str, torch.dtype] = {row["name"]: getattr(torch, row["name"]) for row in _TABLES["dtypes"]}
_HALF_TYPES = tuple([DTYPES[row["name"]] for row in _TABLES["dtypes"] if row["half"]])
OPS = {row["name"]: _operation(row) for row in _TABLES["ops"]}
VERSION: str = _TABLES["version"]


def row_of(op: str, count: int) -> Operation:
    """The row of a call with `count` tensors, of which adapters are the last."""
    row = OPS[op]
    return row if count <= len(row.inputs) or row.adapted is None else row.adapted


def row_with(op: str, names: Container[str]) -> Operation:
    """The row of a call with tensors of these names: that with adapters, if some are theirs."""
    row = OPS[op]
    adapted = row.adapted
    return adapted if adapted and any(name in names for name in adapted.tensors[len(row.tensors) :]) else row


def backward_row(op: str, count: int) -> Operation:
    """The row of the gradients of a call with `count` tensors."""
    row = OPS[f"{op}_backward"]
    return row if count <= len(OPS[op].inputs) or row.adapted is None else row.adapted


def is_half(dtype: torch.dtype) -> bool:
    """Whether a dtype is a half type, whose formulas and sums are in float32."""
    return dtype in _HALF_TYPES
