"""PyTorch's state around a call: whether PyTorch has to see an operator, and what autocast casts.

A plain call goes straight to the core. One that is traced, transformed, recorded by a mode or
profiled goes through `torch.ops.epigrad`, which costs some microseconds more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler
from torch.compiler import is_dynamo_compiling

from epigrad._core import autocast_cache, loader

_Function = TypeVar("_Function", bound=Callable[..., Any])

any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
tracing_state: Callable[[], Any] = torch._C._get_tracing_state
unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual


def constant_to_dynamo(function: _Function) -> _Function:
    """Mark a function of constants: Dynamo runs it once, and checks nothing that it has read again.

    `torch.compiler.assume_constant_result` does the same, but imports all of Dynamo for it.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_traced() -> bool:
    """Whether `torch.jit.trace` records this thread's operations."""
    return tracing_state() is not None


def is_exported_to_onnx() -> bool:
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and bool(onnx.is_in_onnx_export())


def recorded(may_be_none: int, *tensors: Any) -> bool | None:
    """Whether autograd records a call on these tensors; those whose bits are set may be None.

    None where PyTorch has to see an operator: for what is no plain tensor, or if something looks at
    the operations of this thread. That may be a compiler, `torch.jit.trace`, a transform of
    `torch.func`, forward mode, a dispatch mode (fake tensors, selective checkpoints, FLOP
    counters) or a profiler.
    """
    if watched() or profiler._is_profiler_enabled:
        return None
    return loader.core().recorded(may_be_none, *tensors)


def watched() -> bool:
    """Whether something but a profiler looks at the operations of this thread."""
    # Dynamo traces this function, and to it the first answer is a constant.
    return (
        is_dynamo_compiling()
        or tracing_state() is not None
        or dispatch_modes() > 0
        or transforms_active()
        or forward_ad._current_level >= 0
    )


def as_linear(*arguments: Any) -> tuple[Any, ...]:
    """The arguments as autocast gives them to `torch.nn.functional.linear`: each floating-point
    tensor but float64 in the autocast dtype of its device, where autocast is enabled for it;
    everything else as it is.
    """
    return tuple([_cast(value) if isinstance(value, Tensor) else value for value in arguments])


def as_experts(input: Any, index: Any, scale: Any, *rest: Any) -> tuple[Any, ...]:
    """The arguments of a mixture of experts as autocast gives them to layers. A scale in float32
    stays as it is, since it may have that dtype beside any other.
    """
    cast_input, *cast = as_linear(input, *rest)
    return (cast_input, index, *_unless_float32(scale), *cast)


def with_adapters(casts: Callable[..., tuple[Any, ...]], own: int, *arguments: Any) -> tuple[Any, ...]:
    """The arguments of a call with adapters under autocast, which casts so many of them. An adapter
    in float32 stays as it is, as a scale does.
    """
    return (*casts(*arguments[:own]), *_unless_float32(*arguments[own:]))


def _unless_float32(*arguments: Any) -> tuple[Any, ...]:
    return tuple(
        [
            as_linear(value)[0] if isinstance(value, Tensor) and value.dtype != torch.float32 else value
            for value in arguments
        ]
    )


def as_input(input: Any, *rest: Any) -> tuple[Any, ...]:
    """The arguments of an activation whose parameters are tensors, under autocast: these get the
    input's dtype, which a product under autocast may have lowered. float64 stays as it is.
    """
    if not isinstance(input, Tensor) or not _casts(input):
        return (input, *rest)
    return (input, *[value.to(input.dtype) if isinstance(value, Tensor) and _casts(value) else value for value in rest])


def _cast(tensor: Tensor) -> Tensor:
    if not _casts(tensor):
        return tensor
    dtype = torch.get_autocast_dtype(tensor.device.type)
    # Dynamo traces this function too, and operators see what modes and transforms make of tensors.
    if is_dynamo_compiling() or dispatch_modes() > 0 or transforms_active():
        return tensor.to(dtype)
    return autocast_cache.cast(tensor, dtype)


def _casts(tensor: Tensor) -> bool:
    """Whether autocast may give a tensor another dtype."""
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and autocasts(tensor.device.type)


def cast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which autocast gives a tensor to layers."""
    return torch.get_autocast_dtype(tensor.device.type) if _casts(tensor) else tensor.dtype


def autocasts(device: str) -> bool:
    return _may_autocast(device) and torch.is_autocast_enabled(device)


# Dynamo of PyTorch 2.10 and 2.11 cannot trace it.
@constant_to_dynamo
def _may_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)
