"""Whether gradients of a call may be float32 beside operands of 16 bits.

`epigrad._autograd.main_grad` has what such calls do. Others do not enter it.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ReferenceType

import torch
from torch import Tensor

from epigrad._core.tables import is_half

SWITCHED: dict[int, tuple[ReferenceType[Tensor], int]] = {}
"""The parameters that `epigrad.accumulate_main_grad` has switched on, by identity, and how often
each is."""

DECLARES = hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype")
"""Whether a function can declare the dtype of its outputs' gradients (PyTorch 2.15)."""


def any_switched() -> bool:
    return len(SWITCHED) > 0  # Dynamo of PyTorch 2.11 traces no bool() of a dict


def may_be_wide(tensors: Iterable[Tensor | None]) -> bool:
    """Whether a parameter is switched on, or a tensor or what it is a view of has ``grad_dtype``
    float32.
    """
    if SWITCHED:
        return True
    for tensor in tensors:
        if tensor is None or not is_half(tensor.dtype) or not tensor.requires_grad:
            continue
        for owner in (tensor, tensor._base):
            if owner is not None and asks_for_float32(owner):
                return True
    return False


def asks_for_float32(tensor: Tensor) -> bool:
    """Whether a tensor of 16 bits has ``grad_dtype`` float32. While backward runs FSDP2 sets None
    (PyTorch 2.15), for any dtype: reentrant checkpoints call functions then.
    """
    if not is_half(tensor.dtype) or not (tensor.is_leaf or DECLARES):
        return False
    dtype = getattr(tensor, "grad_dtype", tensor.dtype)
    return dtype is torch.float32 or (dtype is None and torch._C._current_graph_task_id() != -1)
