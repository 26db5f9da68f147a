"""Draws random problems."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from epigrad._check.operations import COUNTS, FORMS, OPERATIONS
from epigrad._check.problem import GRADS, INTO, SCALES, WAYS, Problem
from epigrad._check.values import VALUES
from epigrad._core import tables
from epigrad._core.call import GATE_NAMES
from epigrad._core.checks import SAVES


def drawn(rng: random.Random, ops: Sequence[str], dtypes: Sequence[str], large: bool = False) -> Problem:
    """A random problem of these operations and dtypes; some are large if they may be."""
    op, dtype = rng.choice(ops), rng.choice(dtypes)
    row = tables.OPS[op]
    # products of two wide halves overflow in float16, as they should
    scales = [scale for scale in SCALES if dtype != "float16" or scale < 10]
    problem = Problem(
        op,
        _drawn_kind(rng, row.kinds),
        dtype,
        _drawn_sizes(rng, OPERATIONS[op]),
        tuple([rng.choice(WAYS) if rng.random() < 0.6 else "contiguous" for _ in range(rng.randint(1, 4))]),
        rng.choice(scales) if rng.random() < 0.5 else 1.0,
        rng.random() < 0.7,
        rng.choice(GATE_NAMES),
        rng.choice(SAVES),
        "autograd",
        tuple([rng.random() < 0.7 for _ in range(rng.randint(1, 3))]),
        rng.randrange(2**31),
        rng.choice(VALUES) if rng.random() < 0.3 else "normal",
    )
    if large and rng.random() < 1 / LARGE_EACH:
        problem = _enlarged(rng, problem)
    entry = rng.choice(problem.entries)
    is_half = tables.is_half(problem.torch_dtype)
    grads = GRADS if is_half else GRADS[:2]
    if entry in INTO and row.multiplies and rng.random() < 0.4:
        problem = dataclasses.replace(problem, grads=rng.choice(grads))
    if row.adapted and entry != "module" and rng.random() < 0.4:
        ranks = [rng.choice(RANKS) for _ in range(rng.randint(1, len(row.adapted.adapters)))]
        problem = dataclasses.replace(problem, ranks=tuple(ranks))
    may_be_wide = is_half and ("scale" in row.tensors or problem.ranks)
    return dataclasses.replace(problem, entry=entry, wide=bool(may_be_wide) and rng.random() < 0.3)


_VALUES = {
    "a finite number": (-1.3, 0.0, 0.25, 0.5, 1.702, 3.0),
    "a finite number > 0": (0.25, 0.9, 2.5, 7.0),
    "a finite number that is not 0": (-0.6, 0.3, 2.0),
    "a finite number >= low": (0.5, 2.2, 6.0),
    "a number > 0, or none": (None, 0.4, 1.5, 7.0),
}


def _drawn_kind(rng: random.Random, takes: str) -> str:
    if takes == "either":
        takes = "gated" if rng.random() < 0.7 else "activation"
    if not takes:
        return ""
    rows: dict[str, Any] = tables.ACTIVATIONS if takes == "activation" else dict(tables.GATED_KINDS)
    name = rng.choice(list(rows))
    given = []
    for parameter in rows[name].parameters:
        if rng.random() < 0.5:
            values = _VALUES[parameter.range] if parameter.name != "low" else (-1.3, 0.0, 0.25)
            given.append(f"{parameter.name}={rng.choice(values)}")
    return f"{name}({','.join(given)})" if given else name


def _drawn_sizes(rng: random.Random, names: Sequence[str]) -> tuple[int, ...]:
    """Mostly small, now and then near the edges of tiles, rarely empty. A problem stays below about
    200 thousand elements or multiply-adds, so that a hundred are checked in a second."""
    sizes = []
    for name in names:
        if name in FORMS:
            sizes.append(rng.randrange(FORMS[name]))
        else:
            sizes.append(rng.choice((1, 2, 3, 5)) if name in COUNTS else _drawn_size(rng))
    while math.prod(max(1, size) for size in sizes if size > 7) > 200_000:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest] //= 4
    return tuple(sizes)


RANKS = (0, 1, 2, 3, 8, 16, 17)
"""Of adapters."""
LARGE, LARGE_EACH = 1_000_000, 400
"""The most elements of an expanded or strided tensor, and one of how many problems has such."""


def _enlarged(rng: random.Random, problem: Problem) -> Problem:
    """The same with one large size. All inputs repeat one slice, or are strided."""
    names = OPERATIONS[problem.op]
    extents = [place for place, name in enumerate(names) if name not in (*FORMS, *COUNTS)]
    sizes = [size if place not in extents else min(max(size, 1), 3) for place, size in enumerate(problem.sizes)]
    place = rng.choice(extents)
    sizes[place] = rng.randint(LARGE // 4, LARGE) // math.prod(sizes[other] for other in extents if other != place)
    layouts = ("expanded_first", "expanded_last", "step", "offset", "transposed")
    return dataclasses.replace(problem, sizes=tuple(sizes), layouts=tuple([rng.choice(layouts) for _ in range(3)]))


def _drawn_size(rng: random.Random) -> int:
    match rng.randrange(20):
        case 0:
            return 0
        case 1 | 2:
            return 1
        case 3 | 4:
            return rng.choice((8, 16, 32, 64, 128)) + rng.choice((-1, 0, 1))
        case 5:
            return rng.choice((255, 256, 257, 300, 1031))
        case _:
            return rng.randint(2, 20)
