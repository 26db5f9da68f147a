"""Classes whose instances never change."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any, NoReturn, TypeVar

_Class = TypeVar("_Class", bound=type[Any])


def immutable(cls: _Class) -> _Class:
    """Let a class and its subclasses refuse to set or delete any attribute, known or not.

    A frozen dataclass alone accepts new attributes in a subclass. One with slots raises a TypeError
    of `super` for attributes that it does not have.
    """
    cls.__setattr__ = cls.__delattr__ = _refuse  # type: ignore[assignment]
    return cls


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    cls, got = type(self).__name__, "a new value" if value else "a deletion"
    raise FrozenInstanceError(f"{cls}: {name}: got {got}, but instances of {cls} never change: make another")
