"""The errors of epigrad: each is also the built-in exception that a Python user would catch.

Every message has the form ``op: argument: what was given, what is accepted``, and no output has
been written when one is raised. Any call may raise the classes below. Running out of a GPU's memory
is PyTorch's own `torch.OutOfMemoryError`: its allocator makes all results and workspaces. The core
answers with a status code; its table of codes names these classes.
"""

from __future__ import annotations

import copy
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


def nearest(given: str, known: Iterable[str], slips: int | None = None) -> str | None:
    """The name out of the known ones that was probably meant; None where that is not certain.

    Capitals, hyphens, spaces and the order of words do not count. One letter may be wrong, or two
    of ten or more, but not the first: it tells relu from celu. Two names as near as each other are
    no answer. The core's messages follow the same rule (go/check). `slips` is another number of
    letters, for words that are far apart.
    """
    if len(given) > 64:  # the time grows with the length
        return None
    words, wanted = sorted(_words(given)), letters(given)
    fewest = slips or (2 if len(given.strip()) >= 10 else 1)
    near: dict[str, str] = {}
    for name in known:
        other = letters(name)
        if other == wanted or sorted(_words(name)) == words:
            return name
        edits = _distance(wanted, other)
        if edits < fewest:
            near.clear()
        if edits <= fewest:
            fewest = edits
            near.setdefault(other, name)
    if len(near) != 1:
        return None
    [(spelled, name)] = near.items()
    return name if min(len(wanted), len(spelled)) > 3 and spelled[0] == wanted[0] else None


def letters(name: str) -> str:
    """A name without capitals, hyphens and spaces."""
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    return re.findall(r"[^-_\s]+", name.lower())


def _distance(a: str, b: str) -> int:
    """The letters to insert, delete or replace, and the neighbours to swap, to turn a into b."""
    above: list[int] = []
    row = list(range(len(b) + 1))  # from the first i letters of a to the first j of b
    for i, letter in enumerate(a):
        two_above, above, row = above, row, [i + 1]
        for j, other in enumerate(b):
            edits = min(above[j] + (letter != other), above[j + 1] + 1, row[j] + 1)
            if i and j and letter == b[j - 1] and a[i - 1] == other:
                edits = min(edits, two_above[j - 1] + 1)
            row.append(edits)
    return row[-1]


def proposal(given: str, known: Iterable[str], slips: int | None = None) -> str:
    """The end of an error about an unknown name."""
    near = nearest(given, known, slips)
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
    if cls is MisalignedOperandError:
        message += ", as tensor.clone() does"
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
