"""Random tensors, and tensors laid out in every way that PyTorch allows, inside buffers of NaN; the
guards that watch them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from epigrad._check.layouts import LAYOUTS, OUT_LAYOUTS, Guarded, bits, laid_out, same_bits, strides_for, unchanged
from torch import Tensor

__all__ = [
    "LAYOUTS",
    "OUT_LAYOUTS",
    "Guarded",
    "assert_same_bits",
    "bits",
    "draw",
    "laid_out",
    "strides_for",
    "unchanged",
]

_POOL = 512


def draw(shape: Sequence[int], generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """Normally distributed float64 values.

    A long tensor repeats a few hundred values, so that the mpmath oracle need not evaluate a
    function for every element.
    """
    count = math.prod(shape)
    if count <= _POOL:
        return scale * torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    pool = scale * torch.randn(_POOL, generator=generator, dtype=torch.float64)
    return pool[torch.randint(_POOL, tuple(shape), generator=generator)]


def assert_same_bits(got: Tensor | None, want: Tensor | None, what: str = "result") -> None:
    """Fails unless both are None, or both have the same shape, dtype and bits."""
    if got is None or want is None:
        assert got is None and want is None, f"{what}: one of the two is None"
        return
    assert got.shape == want.shape and got.dtype == want.dtype, (
        f"{what}: {got.shape} {got.dtype}, {want.shape} {want.dtype}"
    )
    assert same_bits(got, want), f"{what}: not bitwise the same"
