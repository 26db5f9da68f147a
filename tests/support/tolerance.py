"""The rule that says how far a result may be from the reference (docs: the public interface,
section 2).

    |got - reference| <= 1.5 * E * size + rounding

`size` is the size of the terms summed, element by element (`oracle.Sized`); E is the worst `|eager
- reference| / size` over the tensor that PyTorch's own operations in the same dtype come to;
`rounding` is one rounding of the output dtype: half an epsilon of the value, or half of the
smallest subnormal. There is no other slack, in any dtype.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.support.oracle import Array, Sized

FACTOR = 1.5


def as_array(tensor: Tensor, like: Array) -> Array:
    """The tensor's values, exactly, in the (wider) floating-point type of the reference."""
    return tensor.detach().cpu().to(torch.float64).contiguous().numpy().astype(like.dtype)


def one_rounding(magnitude: Array, dtype: torch.dtype) -> Array:
    """The largest error of rounding a value of this magnitude to a dtype once."""
    info = torch.finfo(dtype)
    unit = info.eps / 2
    return np.maximum(magnitude * unit, info.smallest_normal * unit)


def worst_relative_error(tensor: Tensor, reference: Sized) -> float:
    """The worst error over a tensor, relative to the size of the terms summed; overflow to infinity
    aside."""
    values = as_array(tensor, reference.value)
    counted = np.isfinite(values) & (reference.size > 0)
    if not counted.any():
        return 0.0
    return float((np.abs(values - reference.value)[counted] / reference.size[counted]).max())


def allowed_error(reference: Sized, eager_error: float, dtype: torch.dtype) -> Array:
    """How far each element may be from the reference, where PyTorch's worst relative error is
    this."""
    bound = FACTOR * eager_error * reference.size
    return bound + one_rounding(np.abs(reference.value) + bound, dtype)


def explain_breach(got: Tensor, reference: Sized, eager_error: float) -> str:
    """Which element breaks the rule and by how much, or nothing; beyond the dtype's range infinity
    is right."""
    values = as_array(got, reference.value)
    with np.errstate(invalid="ignore"):
        bound = allowed_error(reference, eager_error, got.dtype)
        error = np.abs(values - reference.value)
        overflow = np.isinf(values) & (np.sign(values) == np.sign(reference.value))
        overflow &= np.abs(reference.value) + bound >= torch.finfo(got.dtype).max
        wrong = ~((error <= bound) | overflow)
    if not wrong.any():
        return ""
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {values.size} elements break the rule; at {place} got {values[place]!r}, reference "
        f"{reference.value[place]!r}, error {error[place]:.3g}, allowed {bound[place]:.3g} (size of the terms "
        f"{reference.size[place]:.3g}, PyTorch's worst relative error {eager_error:.3g})"
    )
