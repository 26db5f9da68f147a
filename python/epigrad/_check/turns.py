"""Where a function turns from rising to falling, or back.

Between two such places it is monotone: over an interval it is largest and smallest at an end of the
interval, or at such a place inside. Where it jumps against its direction, both sides of the jump
are such places.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from epigrad._check.formulas import Pointwise, jumps

_POWERS = 2.0 ** torch.linspace(-24, 24, 48 * 32 + 1, dtype=torch.float64)
_POINTS = torch.cat([-_POWERS.flip(0), torch.zeros(1, dtype=torch.float64), _POWERS])
"""A bend that is narrower than their distance, which is 1/46 of a point, or beyond 2^24, is not
found; and a jump of a slope that is smaller than what the slope changes on this distance."""
_NOISE = 2.0**-40
"""Smaller steps, relative to the values, are roundings of the formula."""
_PARTS, _ROUNDS = 2**10, 6
"""A place is searched for in parts of parts of the points' distance, to its 2^-54."""


@functools.cache
def turns(function: Pointwise) -> tuple[tuple[float, float], ...]:
    """The places, and the function's values there."""
    beside = [place + side * 2.0**-50 * max(abs(place), 1.0) for place in jumps(function) for side in (-1, 1)]
    points = torch.cat([_POINTS, torch.tensor(beside, dtype=torch.float64)]).sort().values
    values = function(points)
    steps, size = values.diff(), values.abs()
    (moves,) = (steps.abs() > _NOISE * torch.minimum(size[1:], size[:-1])).nonzero(as_tuple=True)
    signs = steps[moves].sign()
    (before,) = (signs[1:] != signs[:-1]).nonzero(as_tuple=True)
    if not len(before):
        return ()
    sign = signs[before].unsqueeze(1)
    low, high = (points[at].unsqueeze(1) for at in (moves[before], moves[before + 1] + 1))
    for _ in range(_ROUNDS):
        places = low + (high - low) * torch.linspace(0, 1, _PARTS + 1, dtype=torch.float64)
        values = function(places)
        best = (sign * values).argmax(1, keepdim=True)
        low, high = (places.gather(1, (best + step).clamp(0, _PARTS)) for step in (-1, 1))
    return tuple(zip(*[every.gather(1, best).squeeze(1).tolist() for every in (places, values)], strict=True))


def extremes(function: Pointwise, x: Tensor, far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A function's value at x, and its least and its largest from ``x - far`` to ``x + far``."""
    some = torch.stack([function(x), function(x + far), function(x - far)])
    least, most = some.amin(0), some.amax(0)
    for place, value in turns(function):
        inside = (x - place).abs() < far
        least = torch.where(inside, least.clamp(max=value), least)
        most = torch.where(inside, most.clamp(min=value), most)
    return some[0], least, most
