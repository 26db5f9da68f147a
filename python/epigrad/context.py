"""What surrounds a call: whether PyTorch has to see it as an operator.

A plain call goes straight to the core. One that is traced, transformed, recorded by a mode or profiled goes through
`torch.ops.epigrad`, which costs some microseconds more.
"""

from __future__ import annotations

from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch.autograd import forward_ad, profiler
from torch.compiler import is_dynamo_compiling

from epigrad.arguments import transforms_active

__all__ = ["dispatch_modes", "is_dynamo_compiling", "watched"]


def watched() -> bool:
    """Whether something of PyTorch's looks at operations in this thread: a compiler, a transform of `torch.func`,
    forward mode, a dispatch mode (fake tensors, selective checkpoints, FLOP counters), a profiler.
    """
    # Dynamo traces this function, and to it the first answer is a constant.
    return (
        is_dynamo_compiling()
        or dispatch_modes() > 0
        or transforms_active()
        or forward_ad._current_level >= 0
        or profiler._is_profiler_enabled
    )
