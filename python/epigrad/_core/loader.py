"""Loads the core on first use and gives the rest of the package its functions.

`import epigrad` loads no Go: a Go runtime does not survive ``fork``, and a process that only
imports must stay free to fork. A child that was forked before the first use loads the core itself;
a child that inherited a loaded one gets `BackendUnavailableError`, never a hang.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import torch

from epigrad import errors

_Result = TypeVar("_Result")

_FORKED = (
    "epigrad was used in this process's parent before the fork, and its runtime does not survive one: start workers "
    "with the 'spawn' or 'forkserver' method, or use epigrad for the first time after the fork"
)


class Control(Protocol):
    """The cold side of the core, as gopy binds it; facts are strings of JSON."""

    def Backends(self) -> str: ...  # noqa: N802
    def DoctorFacts(self) -> str: ...  # noqa: N802
    def PlanCacheSize(self) -> int: ...  # noqa: N802
    def ClearPlanCache(self) -> None: ...  # noqa: N802
    def BeginTuning(self, path: str, /) -> None: ...  # noqa: N802
    def EndTuning(self) -> None: ...  # noqa: N802
    def ConfigureWebGPU(self, library: str, adapter: str, memory: str, /) -> None: ...  # noqa: N802


class Core(Protocol):
    """The loaded core: the functions of cbridge/pyext, and the control plane beside them."""

    infer: Callable[..., tuple[tuple[tuple[int, ...] | None, ...], int]]
    launch: Callable[..., tuple[torch.Tensor | None, ...]]
    recorded: Callable[..., bool | None]
    plan_create: Callable[..., Any]
    plan_facts: Callable[[Any], tuple[int, tuple[Any, ...], tuple[Any, ...]]]
    plan_check: Callable[..., None]
    plan_run: Callable[..., None]
    control: Control
    # arrays on the adapter, and copies to and from the host; all memory is given by address
    webgpu_alloc: Callable[[int], int]
    webgpu_free: Callable[[int], None]
    webgpu_write: Callable[[int, int, int], None]
    webgpu_read: Callable[[int, int, int], None]


_lock = threading.Lock()
_core: Core | None = None
_started = False
_inherited = False
_array_class: type | None = None


def set_array_class(array_class: type) -> None:
    """Say which class the arrays on an adapter have, before the core is loaded."""
    global _array_class
    _array_class = array_class


def core() -> Core:
    """The core, loaded by the first call in this process."""
    return _core if _core is not None else _load()


def is_loaded() -> bool:
    return _core is not None


def control_call(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function of the control plane, whose errors become those of `epigrad.errors`."""
    try:
        return function(*arguments)
    except RuntimeError as error:
        if isinstance(error, errors.EpigradError):
            raise
        raise errors.from_text(str(error)) from None


def _load() -> Core:
    global _core, _started
    if _inherited:
        raise errors.BackendUnavailableError(_FORKED)
    with _lock:
        if _core is not None:
            return _core
        tunes = is_switched_on("EPIGRAD_TUNE")
        if not _started:
            _started = True
            os.register_at_fork(after_in_child=_after_fork_in_child)
        try:
            native: Any = importlib.import_module("epigrad._native")
        except ImportError as error:
            raise errors.BackendUnavailableError(
                f"epigrad's compiled core cannot be loaded ({error}): build it with 'pip install .' in the repository"
            ) from error
        # What the code of torch.compile allocates with; without them new_empty does.
        guards = getattr(torch._C._dynamo, "guards", None)
        native.configure(
            torch.Tensor,
            torch.nn.Parameter,
            errors.from_status,
            torch._C._get_fp32_precision_getter,
            _array_class,
            torch.get_num_threads,
            getattr(guards, "_empty_strided_cpu", None),
            getattr(guards, "_empty_strided_cuda", None),
            getattr(torch._C, "_cuda_getDevice", None),
            torch.is_grad_enabled,
        )
        _give_torch_kernels(native)
        control = cast(Control, importlib.import_module("epigrad.control.control"))
        if tunes:
            control_call(control.BeginTuning, tuning_cache())
        configure_webgpu(control)
        native.control = control
        _core = cast(Core, native)
        return _core


def _give_torch_kernels(native: Any) -> None:
    """Let compiled code call operators without Python, whose own kernels serve until then.

    libepigrad.so in this process may have given them kernels already.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key("epigrad::_linear", "CPU"):
        return
    try:
        native.give_torch_kernels()
    except errors.BackendUnavailableError:
        return  # a PyTorch without the functions that they need


def is_switched_on(variable: str) -> bool:
    """Whether a variable of the environment is 1; one that makes no sense is an error."""
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise errors.InvalidProblemError(f"{variable}: {value!r}, want 1 (on), or 0 or empty (off)")
    return value == "1"


def tuning_cache() -> str:
    """Where the choices of `epigrad.tuning` are kept unless a path is given."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "epigrad", "tuning.json")


def configure_webgpu(control: Control) -> None:
    """Tell the core what the environment says of WebGPU: Go does not see what Python sets."""
    path = os.environ.get("EPIGRAD_WGPU_NATIVE", "")
    if not path and (spec := importlib.util.find_spec("wgpu")) is not None and spec.origin:
        resources = os.path.join(os.path.dirname(spec.origin), "resources")
        names = ("libwgpu_native-release.so", "libwgpu_native-release.dylib")
        found = (os.path.join(resources, name) for name in names)
        path = next((name for name in found if os.path.exists(name)), "")
    adapter = os.environ.get("EPIGRAD_WEBGPU_ADAPTER", "")
    control_call(control.ConfigureWebGPU, path, adapter, os.environ.get("EPIGRAD_WEBGPU_MEMORY", ""))


def allows_tf32() -> bool:
    """Whether PyTorch lets float32 products on CUDA be computed in TF32.

    This getter answers to its old settings and to its new ones.
    """
    return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")


def _after_fork_in_child() -> None:
    global _core, _lock, _inherited
    # Another thread may have held the lock at the fork; no thread of the child will release it.
    _lock = threading.Lock()
    _core = None
    _inherited = True
