"""The choices of a thread's open ``with`` blocks, and those of the environment for all threads."""

from __future__ import annotations

import os
import threading
from typing import Any, Generic, TypeVar

_Choice = TypeVar("_Choice")


class Blocks(threading.local, Generic[_Choice]):
    """The choice of this thread's innermost block, None outside of blocks.

    A thread's own names can be read and guarded by Dynamo in every version of PyTorch, a context
    variable cannot.
    """

    def __init__(self) -> None:
        self.choice: _Choice | None = None
        self.outer: list[_Choice | None] = []

    def begin(self, choice: _Choice) -> None:
        self.outer.append(self.choice)
        self.choice = choice

    def end(self) -> None:
        self.choice = self.outer.pop()


_environment: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]


def is_set(variable: bytes) -> bool:
    """Whether the environment has a variable, of which ``os.environ.encodekey`` gives the key.

    Every call asks it, and ``os.environ.get`` of an absent name would take half a microsecond.
    """
    return variable in _environment
