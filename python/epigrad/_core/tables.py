"""What Python knows of the core without loading it: the tables that the build writes (go/tables).

Constructors and operators look names up here. So a process that only makes modules may still fork.
The core checks names and parameters again: C and Go call it too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epigrad import errors

# What each range of go/activation accepts, in words that Dynamo can trace.
_RANGES: dict[str, Callable[[float], bool]] = {"a finite number": lambda value: -math.inf < value < math.inf}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that a kind takes.

    Attributes:
        name: its keyword.
        default: its value where none is given.
        range: the values that it accepts, in words.

    Raises:
        KeyError: a range that `_RANGES` does not have.
    """

    name: str
    default: float
    range: str

    def __post_init__(self) -> None:
        _RANGES[self.range]

    def accepts(self, value: float) -> bool:
        """Whether a value lies in the range."""
        return _RANGES[self.range](value)


@dataclass(frozen=True, slots=True)
class ActivationRow:
    """One row of the table of activations; go/activation says what each field is."""

    name: str
    formula: str
    source: str
    from_output: bool
    cheap: bool
    cheap_in_half: bool
    parameters: tuple[Parameter, ...] = ()
    kinks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatedRow:
    """One row of the table of gated kinds."""

    name: str
    activation: str
    source: str
    parameters: tuple[Parameter, ...] = ()


def _read() -> dict[str, Any]:
    path = Path(__file__).with_name("tables.json")
    try:
        tables: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise errors.BackendUnavailableError(
            "epigrad is not built here (tables.json is missing): run 'make build', or 'pip install .' in the repository"
        ) from None
    return tables


def _parameters(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its parameters and kinks as tuples."""
    parameters = tuple(Parameter(**parameter) for parameter in row.get("parameters", ()))
    return row | {"parameters": parameters} | ({"kinks": tuple(row["kinks"])} if "kinks" in row else {})


_TABLES = _read()
ACTIVATIONS = {row["name"]: ActivationRow(**_parameters(row)) for row in _TABLES["activations"]}
GATED_KINDS = {row["name"]: GatedRow(**_parameters(row)) for row in _TABLES["gated_kinds"]}
DTYPES: list[dict[str, Any]] = _TABLES["dtypes"]
OPS: dict[str, dict[str, Any]] = {row["name"]: row for row in _TABLES["ops"]}
VERSION: str = _TABLES["version"]
