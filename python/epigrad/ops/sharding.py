"""The sharding rules of the operators for `torch.distributed.tensor.DTensor`.

A rule is a row of placements along one dimension of the mesh, of the results and of the tensors
among the arguments, for which the operator needs no communication. DTensor takes the row that is
cheapest to reach, redistributes operands to it and calls the operator on local shards. Importing
this module registers the rules.

    columns     a weight ``[N, K]`` sharded by N: the output is sharded by features
                (ColwiseParallel)
    rows        sharded by K, with the input: the output is a partial sum (RowwiseParallel), if
                nothing comes after it
    batch       operands sharded by a leading dimension: gradients of weights and biases are
                partial sums
    hidden      a block's first weight by its rows, its last one by its columns: the output is a
                partial sum. A mixture of experts likewise; expert parallelism instead gives each
                device its own experts as local tensors
    adapters    lie as their weight does: `b` is sharded by its rows, `a` by its columns
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import _StridedShard

from epigrad._autograd import formulas
from epigrad._core.tables import OPS, Operation
from epigrad.ops import ADAPTED, OPERATORS
from epigrad.ops.operator import Operator

Placements = list[Any]
Rule = tuple[Placements, Placements]
Given = Mapping[str, Any]
Way = tuple[Placements, Any, Any]
"""Placements of forward's tensors, of the preactivation and of the output."""


def _whole(count: int) -> Way:
    return [Replicate() for _ in range(count)], Replicate(), Replicate()


def _strided(dim: int, factor: int) -> Any:
    """A shard of each of `factor` equal parts of a dimension, as `epigrad.parallel` shards values
    and gates."""
    return _StridedShard(dim, split_factor=factor)


def _split_factors(tensor: Any, dim: int) -> set[Any]:
    """In how many parts a dimension of this tensor is sharded, where it is in more than one."""
    return {way.split_factor for way in tensor.placements if isinstance(way, _StridedShard) and way.dim == dim}


def _rows(rank: int, count: int) -> list[Way]:
    """Layers whose first tensor is sharded by a dimension before its last: so are the results."""
    return [([Shard(dim), *_whole(count - 1)[0]], Shard(dim), Shard(dim)) for dim in range(rank - 1)]


def _product(given: Given, a: Any, b: Any, columns: int) -> list[Way]:
    """``a @ b + bias``. If the product is a partial sum, so is the bias."""
    rank, contracted = a.ndim, b.ndim - 1 if columns == 0 else b.ndim - 2

    def way(of_a: Any, of_b: Any, of_bias: Any, out: Any) -> Way:
        return [of_a, of_b, of_bias], out, out

    ways = [_whole(3)]
    if b.ndim == 2:
        ways += _rows(rank, 3)
        ways.append(way(Replicate(), Shard(columns), Shard(0), Shard(rank - 1)))
        ways += [
            way(Replicate(), _strided(columns, factor), _strided(0, factor), _strided(rank - 1, factor))
            for factor in _split_factors(b, columns)
        ]
        ways.append(way(Shard(rank - 1), Shard(contracted), Partial(), Partial()))
    elif b.ndim == rank and tuple(a.shape[:-2]) == tuple(b.shape[:-2]):
        ways += [way(Shard(dim), Shard(dim), Replicate(), Shard(dim)) for dim in range(rank - 2)]
        ways.append(way(Shard(rank - 2), Replicate(), Replicate(), Shard(rank - 2)))
        ways.append(way(Replicate(), Shard(columns), Shard(0), Shard(rank - 1)))
    return ways


def _matmul(given: Given) -> list[Way]:
    return _product(given, given["a"], given["b"], given["b"].ndim - 1)


def _linear(given: Given) -> list[Way]:
    return _product(given, given["input"], given["weight"], 0)


def _gated_linear(given: Given) -> list[Way]:
    rank = given["input"].ndim
    ways = [_whole(5), *_rows(rank, 5)]
    if torch.__version__ >= "2.12":  # older versions cannot compute the cost of a shard of each half
        ways.append(([Replicate(), *[Shard(0)] * 4], _strided(rank - 1, 2), Shard(rank - 1)))
    return ways


def _hidden(given: Given, rows: int, hidden: int) -> list[Callable[[int], Any]]:
    """How devices may have parts of a block's hidden features: the placement of its first weight's
    rows, by their dimension. Halves need PyTorch 2.12, as those of a gated layer.
    """
    if rows == hidden or given.get("gate", "second") in ("odd", "even"):
        return [Shard]
    return [partial(_strided, factor=2)] if torch.__version__ >= "2.12" else []


def _block(first: str, last: str, given: Given) -> list[Way]:
    rank = given["input"].ndim
    return [
        _whole(5),
        *_rows(rank, 5),
        *[
            ([Replicate(), part(0), part(0), Shard(1), Partial()], part(rank - 1), Partial())
            for part in _hidden(given, given[first].shape[0], given[last].shape[1])
        ],
    ]


def _grouped_linear(given: Given) -> list[Way]:
    """Every device needs all rows, since the groups' ends depend on each."""
    return [_whole(4), ([Replicate(), Shard(1), Shard(1), Replicate()], Shard(1), Shard(1))]


def _experts(given: Given) -> list[Way]:
    """Every device needs all rows, too: of each expert it has all, or a part."""
    whole = [Replicate() for _ in range(3)]
    return [
        _whole(7),
        *[
            ([*whole, part(1), part(1), Shard(2), Partial()], part(1), Partial())
            for part in _hidden(given, given["weight_in"].shape[1], given["weight_out"].shape[2])
        ],
    ]


def _everywhere(given: Given, *names: str) -> list[Way]:
    """Tensors of the output's shape: all are sharded by the same dimension."""
    return [([way] * len(names), None, way) for way in (Replicate(), *map(Shard, range(given[names[0]].ndim)))]


def _gated_activation(given: Given, *names: str) -> list[Way]:
    """By every dimension but the one that is split in halves."""
    split = given.get("dim", -1) % given["input"].ndim
    return [way for way in _everywhere(given, *names) if way[2] != Shard(split)]


def _lerp(given: Given) -> list[Way]:
    # Without start or end, which backward may leave out, its gradient has grad_output's shape.
    whole = given.get("grad_output")
    tensors = [given["start"], given["end"], given.get("weight")]
    tensors = [whole if tensor is None and place < 2 else tensor for place, tensor in enumerate(tensors)]
    rank = max(tensor.ndim for tensor in tensors if tensor is not None)
    ways = [_whole(3)]
    for dim in range(rank):
        places = [None if tensor is None else _place_in(tensor, dim, rank) for tensor in tensors]
        if whole is not None or any(isinstance(place, Shard) for place in places):
            ways.append((places, None, Shard(dim)))
    return ways


def _place_in(tensor: Any, dim: int, rank: int) -> Any:
    """The placement of an operand that broadcasts to `rank` dimensions, for a result sharded by
    `dim`."""
    own = dim - (rank - tensor.ndim)
    return Replicate() if own < 0 or tensor.shape[own] == 1 else Shard(own)


def _learnable(names: Sequence[str], given: Given) -> list[Way]:
    """An input, and parameters, which may have an element for each channel."""
    ways: list[Way] = []
    for way in (Replicate(), *map(Shard, range(given["input"].ndim))):
        of_channels = [way == Shard(1) and math.prod(given[name].shape) > 1 for name in names]
        ways.append(([way, *[Shard(0) if each else Replicate() for each in of_channels]], None, way))
    return ways


_WAYS: dict[str, Callable[[Given], list[Way]]] = {
    "matmul_bias_activation": _matmul,
    "linear": _linear,
    "activation": lambda given: _everywhere(given, "input"),
    "activation_backward": lambda given: _everywhere(given, "grad_output", "input"),
    "gated_activation_backward": lambda given: _gated_activation(given, "grad_output", "input"),
    "gated_product_backward": lambda given: _everywhere(given, "grad_output", "value", "gate"),
    "gated_activation": lambda given: _gated_activation(given, "input"),
    "gated_product": lambda given: _everywhere(given, "value", "gate"),
    "lerp": _lerp,
    **{name: partial(_learnable, OPS[name].tensors[1:]) for name in formulas.LEARNABLE},
    "gated_linear": _gated_linear,
    "mlp": partial(_block, "weight1", "weight2"),
    "gated_mlp": partial(_block, "weight_in", "weight_out"),
    "grouped_linear": _grouped_linear,
    "experts": _experts,
}


def _rules(operator: Operator) -> Callable[..., list[Rule]]:
    """The rules of an operator. What is no tensor has no placement."""
    row, rule = operator.row, _gradient_rule if operator.row.is_backward else _forward_rule

    def rules(*arguments: Any, **options: Any) -> list[Rule]:
        given = dict(zip(operator.names, arguments, strict=False)) | options
        ways = [_adapted(row, given, way) for way in _WAYS[row.forward](given)]
        found = [rule(operator, given, way) for way in ways]
        return [each for each in found if each is not None]

    return rules


def _adapted(row: Operation, given: Given, way: Way) -> Way:
    """A way with adapters, if the operation has some."""
    operands, hidden, out = way
    if not row.is_adapted:
        return way
    adapters: Placements = []
    for name in row.adapters:
        weight = name.replace("adapter", "weight")
        placement = operands[OPS[row.forward].tensors.index(weight)]
        in_columns = placement.is_shard(given[weight].ndim - 1)
        adapters += [placement, Replicate()] if in_columns else [Replicate(), placement]
    return [*operands, *adapters], hidden, out


def _is_plain(operator: Operator, given: Given) -> bool:
    """Whether nothing comes after the product."""
    return given.get(operator.row.kind_argument, operator.row.default_kind) in (None, "none")


def _forward_rule(operator: Operator, given: Given, way: Way) -> Rule | None:
    operands, hidden, out = way
    row = operator.row
    plain = row.keeps in ("slope", "output") and _is_plain(operator, given)
    if isinstance(out, Partial) and row.keeps == "output" and not plain:
        return None
    results = [out]
    if row.keeps:
        # A preactivation that is not kept has no elements.
        results.append(Replicate() if plain or given.get("save", "auto") == "recompute" else hidden)
    return results, _arguments(operator, given, dict(zip(row.tensors, operands, strict=True)))


def _gradient_rule(operator: Operator, given: Given, way: Way) -> Rule | None:
    operands, hidden, out = way
    forward = OPS[operator.row.forward]
    if operator.row.is_adapted and forward.adapted is not None:
        forward = forward.adapted
    kind = given.get(forward.kind_argument, forward.default_kind)
    kept = given.get("preactivation") is not None or given.get("output") is not None
    again = not kept and kind not in (None, "none")
    if isinstance(out, Partial):
        if forward.keeps == "output" and again:
            return None
        # Each part of a partial sum gets the whole gradient, and so does the bias that it has. A
        # tensor that every shard uses gets its part of a sum: a scale, whose gradient needs the
        # bias, too.
        out = Replicate()
        grads = [Replicate() if isinstance(o, Partial) else Partial() if o.is_replicate() else o for o in operands]
    else:
        grads = [_part_of(operand, out) for operand in operands]
    placements = dict(zip(forward.tensors, operands, strict=True))
    placements |= {name: out for name in operator.row.tensors if name.startswith("grad_")}
    placements |= {"preactivation": hidden, "output": out}
    of_inputs = dict(zip(forward.tensors, grads, strict=True))
    names = [operator.row.tensors[place] for place in operator.row.gradients]
    needs: Sequence[bool] = given.get("needs", (True,) * len(names))
    required = {argument.name for argument in forward.inputs if not argument.optional}
    results = [
        of_inputs[name] if need and (name in required or given.get(name) is not None) else None
        for name, need in zip(names, needs, strict=True)
    ]
    return results, _arguments(operator, given, placements)


def _part_of(operand: Any, out: Any) -> Any:
    """What is replicated while the output is sharded gets its part of a sum as its gradient."""
    return Partial() if isinstance(operand, Replicate) and isinstance(out, Shard | _StridedShard) else operand


def _arguments(operator: Operator, given: Given, placements: Given) -> Placements:
    return [placements.get(name) if given.get(name) is not None else None for name in operator.names]


for _operator in (*OPERATORS, *ADAPTED):
    _tell: Callable[[Any], Any] = register_sharding(_operator.overload)
    _tell(_rules(_operator))
