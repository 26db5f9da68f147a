"""Values beside normal numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

VALUES = ("normal", "tiny", "huge", "infinite", "mixed")
"""Normal numbers alone; numbers of every size down to the smallest denormal; some up to the
largest; some infinities, NaN and zeros of both signs; a few of all these."""


def with_special(values: Tensor, which: str, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Some of these values, in float64, replaced by those of a name in `VALUES`. Half of all
    tensors keep theirs, so that the others' meet normal numbers."""
    chance, place, kind, size = (torch.rand(values.shape, generator=generator, dtype=torch.float64) for _ in range(4))
    if torch.rand((), generator=generator) < 0.5 or which == "normal":
        return values
    info = torch.finfo(dtype)
    lowest, highest = math.log2(info.smallest_normal * info.eps), math.log2(info.max)
    tiny = values.sign() * torch.exp2(lowest * place)
    huge = values.sign() * torch.exp2(highest * place).clamp(max=info.max)
    huge = torch.where(size < 0.1, values.sign() * info.max, huge)
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0], dtype=torch.float64)
    infinite = special[(kind * len(special)).long()]
    # of a row of a product one element is enough
    rare = 1 / max(8, values.shape[-1] if values.dim() else 1)
    match which:
        case "tiny":
            return torch.where(chance < 0.7, tiny, values)
        case "huge":
            return torch.where(chance < rare, huge, values)
        case "infinite":
            return torch.where(chance < rare / 2, infinite, values)
        case _:
            mixed = torch.where(size < 0.4, tiny, torch.where(size < 0.7, huge, infinite))
            return torch.where(chance < rare, mixed, values)
