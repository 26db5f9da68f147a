"""Casts of parameters under autocast, kept for as long as PyTorch keeps its own.

PyTorch's cache cannot be read from Python, but it can own an object of ours. It holds the cast of
a sentinel; the cast holds its node of the graph, and the node's metadata holds `_Casts`. PyTorch
frees them all when the outermost autocast ends, or at `torch.clear_autocast_cache`.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor


class _Casts(dict[tuple[int, torch.dtype, bool, bool], tuple[ReferenceType[Tensor], int, Tensor]]):
    """By a tensor's identity, the dtype, and whether grad and inference mode were on: a cast made
    without a graph is not for a call with one."""


_alive: dict[str, ReferenceType[_Casts]] = {}


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in autocast's dtype: of a parameter one tensor for all its uses, to whose graph
    gradients add up, as PyTorch's own layers have it."""
    if tensor.dtype == dtype or not _is_kept(tensor):
        return tensor.to(dtype)
    casts = _casts(tensor.device)
    key = (id(tensor), dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    entry = casts.get(key)
    if entry is not None and entry[0]() is tensor and entry[1] == tensor._version:
        return entry[2]
    made = tensor.to(dtype)
    casts[key] = ref(tensor), tensor._version, made
    return made


def _is_kept(tensor: Tensor) -> bool:
    """PyTorch's condition; inference tensors have no version by which to tell a change."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and not tensor.is_inference()
        and torch.is_autocast_cache_enabled()
    )


def _casts(device: torch.device) -> _Casts:
    alive = _alive.get(device.type)
    casts: _Casts | None = None if alive is None else alive()
    if casts is None:
        sentinel, one = _tensors(device.type)
        with torch.inference_mode(False), torch.enable_grad(), torch._C.DisableTorchFunction():
            # A sum with a product that has no gradient saves nothing.
            node: Any = torch.addmm(sentinel, one, one).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        kept: _Casts = node.metadata.setdefault(__name__, _Casts())
        _alive[device.type] = ref(kept)
        return kept
    return casts


@cache
def _tensors(device: str) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        one = torch.zeros(1, 1, dtype=torch.float32, device=device)
        return one.clone().requires_grad_(), one
