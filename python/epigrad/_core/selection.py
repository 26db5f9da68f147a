"""The choice of a backend: the list of backends, `use_backend` and `tuning`.

CPU tensors run on ``cpu`` and CUDA tensors on ``cuda``. Nothing falls back to another silently.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from epigrad import errors
from epigrad._core import loader
from epigrad._core.blocks import Blocks, is_set
from epigrad._core.torch_state import constant_to_dynamo
from epigrad._core.values import immutable


@immutable
@dataclass(frozen=True, slots=True)
class BackendInfo:
    """The facts that `backends` lists for one backend.

    Attributes:
        name: the word that `use_backend` takes.
        available: whether it can run here.
        device: the device that it would run on.
        detail: facts about it, such as the kernels in use.
        reason: why it is not available and what would fix it; empty if it is.
    """

    name: str
    available: bool
    device: str
    detail: str
    reason: str


_blocks: Blocks[str] = Blocks()


def backends() -> list[BackendInfo]:
    """List the backends that epigrad knows, those that cannot run here included.

    Returns:
        One `BackendInfo` for each.

    Raises:
        BackendUnavailableError: the core cannot be loaded, or it was loaded before a fork.

    Examples:
        >>> import epigrad
        >>> [b.available for b in epigrad.backends() if b.name == "cpu"]
        [True]
    """
    control = loader.core().control
    loader.configure_webgpu(control)
    rows = json.loads(loader.control_call(control.Backends))
    return [
        BackendInfo(row["name"], row["available"], row.get("device", ""), row.get("detail", ""), row.get("reason", ""))
        for row in rows
    ]


class use_backend:  # noqa: N801 (a context manager, named as a function)
    """Run CPU tensors through a backend of your choice, in this thread and ``with`` block.

    Forward remembers its backend, so backward may run outside the block. ``EPIGRAD_BACKEND`` makes
    the same choice for a whole process; a block wins over it. Blocks nest.

    Args:
        name: a name that `backends` lists.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown name; the message lists the valid ones.
        BackendUnavailableError: the backend cannot run here; the message says why.

    Examples:
        >>> import epigrad, torch
        >>> with epigrad.use_backend("cpu"):
        ...     epigrad.lerp(torch.zeros(2), torch.ones(2), 0.5)
        tensor([0.5000, 0.5000])
    """

    def __init__(self, name: str) -> None:
        _require("use_backend: name", name)
        self._name = name

    def __enter__(self) -> None:
        _blocks.begin(self._name)

    def __exit__(self, *_: object) -> None:
        _blocks.end()


_usable: set[str] = set()  # what EPIGRAD_BACKEND named and was found to be there
_VARIABLE: Any = os.environ.encodekey("EPIGRAD_BACKEND")


def current() -> str | None:
    """The backend chosen for CPU tensors in this thread, or None where nothing was chosen."""
    name = _blocks.choice
    return _of_environment() if name is None else name


@constant_to_dynamo  # which would check the whole environment again at each call
def _of_environment() -> str | None:
    if not is_set(_VARIABLE):
        return None
    name = os.environ["EPIGRAD_BACKEND"]
    if not name:
        return None
    if name != "cpu" and name not in _usable:
        _require("EPIGRAD_BACKEND", name)
        _usable.add(name)
    return name


def unavailable(name: str) -> errors.BackendUnavailableError:
    """The error for a backend that cannot run here, with its own reason."""
    for info in backends():
        if info.name == name:
            reason = info.reason or "this backend cannot run these tensors"
            return errors.BackendUnavailableError(f"{name}: {reason}")
    known = ", ".join(info.name for info in backends())
    return errors.BackendUnavailableError(f"{name}: epigrad has no backend for this device, want one of {known}")


def _require(argument: str, name: str) -> None:
    if _is_available(name):
        return
    infos = backends()
    if name in [info.name for info in infos]:
        raise unavailable(name)
    valid = ", ".join(repr(info.name) for info in infos)
    raise errors.InvalidProblemError(f"{argument}: {name!r}, want one of {valid}")


@constant_to_dynamo  # which cannot trace how a backend is found
def _is_available(name: str) -> bool:
    return any(info.name == name and info.available for info in backends())


class tuning:  # noqa: N801 (a context manager, named as a function)
    """Time the candidate kernels of every new problem inside, and keep the choices in a file.

    A choice is made where a backend has more than one kernel for a problem: cuBLASLt's algorithms
    for a product on CUDA. A problem's first call inside takes longer and needs device memory for a
    copy of its matrices. The CPU backend has exactly one kernel for each problem: there the block
    changes no result and touches no file. It is process-wide (every thread tunes while any block is
    open) and re-entrant; where blocks of several threads overlap, choices go to the file of the
    block that was opened last and is open. ``EPIGRAD_TUNE=1`` opens it for a whole process.

    Args:
        path: the cache file, made if there is none; None means ``epigrad/tuning.json`` in the
            user's cache directory (``$XDG_CACHE_HOME``, or ``~/.cache``).

    Raises:
        InvalidProblemError: (a ``ValueError``) a file that is not such a cache; from the call
            inside that has a choice to keep, a file that cannot be written.

    Examples:
        >>> import epigrad, torch
        >>> with epigrad.tuning():
        ...     epigrad.lerp(torch.zeros(2), torch.ones(2), 0.5)
        tensor([0.5000, 0.5000])
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else os.fspath(path)

    def __enter__(self) -> None:
        path = loader.tuning_cache() if self.path is None else self.path
        loader.control_call(loader.core().control.BeginTuning, os.path.abspath(path))

    def __exit__(self, *_: object) -> None:
        loader.core().control.EndTuning()
