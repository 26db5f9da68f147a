"""What autocast does to arguments: the products get them as `torch.nn.functional.linear` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["any_autocast", "as_linear"]

any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


def as_linear(*arguments: Any) -> tuple[Any, ...]:
    """The arguments with each floating-point tensor but float64 in the autocast dtype of its device, where autocast is
    enabled for it; everything else as it is.
    """
    return tuple([_cast(value) if isinstance(value, Tensor) else value for value in arguments])


def _cast(tensor: Tensor) -> Tensor:
    device = tensor.device.type
    eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
    if not eligible or not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
