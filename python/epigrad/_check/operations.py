"""Each operation: the names of its sizes, and the shapes of its tensors.

Most shapes are those of the operation's row (`epigrad._core.tables`), whose symbols stand for
sizes. Tensors that broadcast or are split have shapes of their own here.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping

import torch

from epigrad._core import tables
from epigrad.ops.shapes import Shape as Form
from epigrad.ops.shapes import formed

Shape = tuple[int, ...]
Shapes = dict[str, Shape | None]
Sizes = Mapping[str, int]

NUMBER = 0.3
"""What stands for lerp's weight where it has no tensor."""

PAIRS: tuple[Callable[[int, int, int, int], tuple[Shape, Shape]], ...] = (
    lambda b, m, n, k: ((m, k), (k, n)),
    lambda b, m, n, k: ((k,), (k, n)),
    lambda b, m, n, k: ((m, k), (k,)),
    lambda b, m, n, k: ((k,), (k,)),
    lambda b, m, n, k: ((b, m, k), (b, k, n)),
    lambda b, m, n, k: ((b, m, k), (k, n)),
    lambda b, m, n, k: ((m, k), (b, k, n)),
    lambda b, m, n, k: ((b, 1, m, k), (2, k, n)),
)
"""Shapes of a and b, by batch, rows, columns and depth."""

SPLITS: tuple[tuple[str, ...], ...] = (
    ("outer", "half", "inner"),
    ("half",),
    ("outer", "half"),
    ("half", "inner"),
    ("half", "outer", "inner"),
    ("outer", "inner", "half"),
    ("outer", "two", "half", "inner"),
    ("two", "one", "outer", "inner", "half"),
)
"""Dimensions of gated_activation's input, of which "half" is split."""


def product_shape(a: Shape, b: Shape) -> Shape:
    """The shape of ``a @ b``."""
    return tuple(torch.matmul(torch.empty(a, device="meta"), torch.empty(b, device="meta")).shape)


def _product(sizes: Sizes, turn: int) -> Shapes:
    form, *rest = sizes.values()
    a, b = PAIRS[form % len(PAIRS)](*rest)
    out = product_shape(a, b)
    return {"a": a, "b": b, "bias": b[-1:] if len(b) > 1 else (), "out": out, "preactivation": out}


def split_of(form: int) -> tuple[str, ...]:
    """The dimensions of a form of gated_activation's input."""
    return SPLITS[form % len(SPLITS)]


def _split(sizes: Sizes, turn: int) -> Shapes:
    known = {**sizes, "one": 1, "two": 2}
    out = [known[name] for name in split_of(sizes["split"])]
    doubled = {**known, "half": 2 * known["half"]}
    return {"input": tuple([doubled[name] for name in split_of(sizes["split"])]), "out": tuple(out)}


def _broadcast(sizes: Sizes, turn: int) -> Shapes:
    rows, columns, mask = sizes.values()

    def shape(bits: int) -> Shape:
        full = enumerate((rows, columns))
        return tuple([1 if bits >> dim & 1 else size for dim, size in full])[bits >> 2 & 1 :]

    given = {"start": shape(mask), "end": shape(mask >> 3), "weight": None if mask >> 9 & 1 else shape(mask >> 6)}
    together: Callable[..., Shape] = torch.broadcast_shapes
    return {**given, "out": tuple(together(*[each for each in given.values() if each is not None]))}


_ELEMENTS = ("outer", "channels", "inner")
_OWN: dict[str, tuple[tuple[str, ...], Callable[[Sizes, int], Shapes]]] = {
    "matmul_bias_activation": (("form", "batch", "rows", "columns", "depth"), _product),
    "gated_activation": (("split", "outer", "half", "inner"), _split),
    "lerp": (("rows", "columns", "mask"), _broadcast),
}
"""Sizes and shapes that a row does not say; `turn` is 0 or 1."""

FORMS = {"form": len(PAIRS), "split": len(SPLITS), "lead": 4, "mask": 1 << 10}
"""Sizes that choose a form, and how many forms there are."""
COUNTS = ("batch", "each", "groups")
"""Sizes that are few."""

_SYMBOLS = {"K": "features", "N": "columns", "H": "hidden", "T": "rows", "E": "groups", "J": "each"}
_RANKS = ("R", "S")


def _sizes(row: tables.Operation) -> tuple[str, ...]:
    if row.name in _OWN:
        return _OWN[row.name][0]
    if not row.multiplies:
        return _ELEMENTS
    parts = [part.removeprefix("2") for argument in row.inputs for part in argument.shape.strip("[]").split(", ")]
    names = [("lead", "rows") if part == "..." else (_SYMBOLS[part],) for part in dict.fromkeys(parts)]
    return tuple([name for both in names for name in both])


OPERATIONS = {name: _sizes(row) for name, row in tables.OPS.items() if not row.is_backward}
"""The names of each operation's sizes."""


def shapes(op: str, given: Shape, turn: int, gated: bool, ranks: Shape = ()) -> Shapes:
    """The shapes of an operation's tensors and results, by name; None for a number.

    Args:
        op: the operation.
        given: its sizes.
        turn: 0 or 1, where a shape has two forms.
        gated: whether the kind is a gated one.
        ranks: of the adapters that are given, the first ones.
    """
    sizes = dict(zip(OPERATIONS[op], given, strict=True))
    if op in _OWN:
        own = _OWN[op][1](sizes, turn)
    else:
        own = {each.name: (sizes["channels"],) for each in tables.OPS[op].inputs if each.channels and turn}
    symbols: dict[str, int | Form] = {symbol: sizes[name] for symbol, name in _SYMBOLS.items() if name in sizes}
    symbols |= zip(_RANKS, ranks, strict=False)
    if "lead" in sizes:
        rows = sizes["rows"]
        symbols["..."] = ((), (rows,), (2, rows), (rows, 1))[sizes["lead"] % 4]
    elif "inner" in sizes:
        symbols["..."] = given[-3:] if sizes["inner"] else given[-3:-1]
    return formed_shapes(op, symbols, own, gated)


def formed_shapes(op: str, symbols: Mapping[str, int | Form], own: Shapes, gated: bool) -> Shapes:
    """The shapes of an operation's tensors and results, of its row's symbols, but for its own; and
    of the adapters whose ranks are among the symbols."""
    row = tables.OPS[op]
    adapters = row.adapted.inputs[len(row.inputs) :] if row.adapted else ()
    given = [each for each in adapters if any(rank in symbols and rank in each.shape for rank in _RANKS)]
    return own | {
        each.name.replace(".", "_"): tuple(formed(each, gated, dict(symbols))) if each.shape else _example(each.example)
        for each in (*row.inputs, *row.outputs, *given)
        if each.name not in own
    }


def spread(op: str, name: str, shape: Shape, scale: float) -> float:
    """The standard deviation of a tensor's values, where that of what goes into the activation is
    `scale`."""
    if not tables.OPS[op].multiplies:
        return scale if name in ("input", "value", "gate", "start", "end") else 1.0
    if name == "b" or name.startswith(("weight", "adapter")):
        depth = shape[-1] if name != "b" or len(shape) == 1 else shape[-2]
        is_plain = name.endswith(("2", "_out", "2_a", "_out_a", "_b"))
        return (1.0 if is_plain else scale) / math.sqrt(max(depth, 1))
    return 1.0


@functools.cache
def _example(text: str) -> Shape:
    return tuple(ast.literal_eval(text))
