"""What surrounds a call: whether PyTorch has to see it as an operator.

A plain call goes straight to the core. One that is traced, transformed, recorded by a mode or profiled goes through
`torch.ops.epigrad`, which costs some microseconds more.
"""

from __future__ import annotations

import sys

import torch
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch.autograd import forward_ad, profiler
from torch.compiler import is_dynamo_compiling

from epigrad._core.checks import transforms_active

__all__ = ["dispatch_modes", "is_dynamo_compiling", "is_exported_to_onnx", "is_traced", "watched"]


def is_traced() -> bool:
    """Whether `torch.jit.trace` records this thread's operations."""
    return torch._C._get_tracing_state() is not None


def is_exported_to_onnx() -> bool:
    """Whether `torch.onnx.export` is at work."""
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and bool(onnx.is_in_onnx_export())


def watched() -> bool:
    """Whether something of PyTorch's looks at operations in this thread: a compiler, `torch.jit.trace`, a transform of
    `torch.func`, forward mode, a dispatch mode (fake tensors, selective checkpoints, FLOP counters), a profiler.
    """
    # Dynamo traces this function, and to it the first answer is a constant.
    return (
        is_dynamo_compiling()
        or is_traced()
        or dispatch_modes() > 0
        or transforms_active()
        or forward_ad._current_level >= 0
        or profiler._is_profiler_enabled
    )
