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
    cls.__setattr__ = _refuse_to_set  # type: ignore[assignment]
    cls.__delattr__ = _refuse_to_delete  # type: ignore[assignment]
    return cls


def _refuse_to_set(self: object, name: str, value: object) -> NoReturn:
    raise _error(self, name, "a new value")


def _refuse_to_delete(self: object, name: str) -> NoReturn:
    raise _error(self, name, "a deletion")


def _error(self: object, name: str, got: str) -> FrozenInstanceError:
    cls = type(self).__name__
    return FrozenInstanceError(f"{cls}: {name}: got {got}, but instances of {cls} never change: make another")
