"""The errors of epigrad: each is also the built-in exception that a Python user would catch.

Every message has the form ``op: argument: what was given, what is accepted``, and no output has
been written when one is raised. Any call may raise the classes below. Running out of a GPU's memory
is PyTorch's own `torch.OutOfMemoryError`: its allocator makes all results and workspaces. The core
answers with a status code; its table of codes names these classes.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable
from typing import Any

__all__ = [
    "BackendUnavailableError",
    "BufferTooSmallError",
    "DTypeError",
    "DeviceError",
    "DeviceMismatchError",
    "EpigradError",
    "InvalidProblemError",
    "MisalignedOperandError",
    "UnsupportedError",
    "WorkspaceTooSmallError",
]


SITE = "https://epigrad.github.io/epigrad"


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The name out of the known ones that was probably meant; None where none is near."""
    wanted = given.strip().lower().replace("-", "_")
    return next(iter(difflib.get_close_matches(wanted[:64], list(known), 1)), None)


def proposal(given: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name."""
    near = nearest(given, known)
    return f" (did you mean {near!r}?)" if near else ""


class EpigradError(Exception):
    """Base class of epigrad's errors. Itself, it is a defect in epigrad: please report it."""


class InvalidProblemError(EpigradError, ValueError):
    """Invalid shapes, dims, kinds, strides or aliasing."""


class DTypeError(EpigradError, TypeError):
    """An unsupported dtype, a mix of dtypes, or an argument that is not a tensor."""


class UnsupportedError(EpigradError, NotImplementedError):
    """A valid problem for which this backend has no kernel.

    Also: tensors that are not strided, such as sparse and nested ones. `epigrad.forward`,
    `epigrad.backward` and plans refuse tensor subclasses and functorch's wrappers too.
    """


class DeviceMismatchError(EpigradError, ValueError):
    """Tensors on different devices."""


class MisalignedOperandError(EpigradError, ValueError):
    """A buffer that is not aligned to its element."""


class _TooSmallError(EpigradError, ValueError):
    """Fewer bytes than needed."""

    def __init__(self, message: str, needed: int = 0, got: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.got = got

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.needed, self.got)


class WorkspaceTooSmallError(_TooSmallError):
    """A workspace of fewer bytes than the plan needs; `needed` and `got` are bytes."""


class BufferTooSmallError(_TooSmallError):
    """A buffer smaller than its shape and strides reach; `needed` and `got` are bytes."""


class BackendUnavailableError(EpigradError, RuntimeError):
    """The backend of the tensors' device, or the chosen one, cannot run here.

    The message says why and what would fix it.
    """


class DeviceError(EpigradError, RuntimeError):
    """The driver reported a failure; `code` and `name` are the driver's own."""

    def __init__(self, message: str, code: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code, self.name)


_CLASSES: dict[str, type[EpigradError]] = {name: globals()[name] for name in __all__}


def from_status(code: int, class_name: str, message: str | bytes, needed: int = 0, got: int = 0) -> EpigradError:
    """Make the exception for a status of the core; an unknown class name gives `EpigradError`."""
    if isinstance(message, bytes):
        # The core's message may be cut in the middle of a character.
        message = message.decode("utf-8", "replace")
    return _of_class(_CLASSES.get(class_name, EpigradError), message, needed, got)


def from_text(text: str) -> EpigradError:
    """Make the exception of a control-plane error, whose text is ``ClassName: message``."""
    name, separator, message = text.partition(": ")
    if separator and name in _CLASSES:
        return _of_class(_CLASSES[name], message)
    return EpigradError(text)


def _of_class(cls: type[EpigradError], message: str, needed: int = 0, got: int = 0) -> EpigradError:
    if issubclass(cls, _TooSmallError):
        return cls(message, needed, got)
    if issubclass(cls, DeviceError):
        failure = re.search(r"(\w+) \((\d+)\)", message)  # NAME (code), as the backends write it
        name, code = (failure[1], int(failure[2])) if failure else ("", 0)
        return cls(message, got or code, name)
    return cls(message)


def renamed(error: EpigradError, op: str, arguments: dict[str, str]) -> EpigradError:
    """The same error with the caller's op and its names for the op's arguments; one of a variable
    of the environment stays as it is."""
    subject, separator, detail = str(error).partition(": ")
    if not separator or subject.isupper():
        return error
    argument, separator, rest = detail.partition(": ")
    text = f"{op}: {arguments.get(argument, argument)}{separator}{rest}"
    made = copy.copy(error)
    made.args = (text,)
    return made
