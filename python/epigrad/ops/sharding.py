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
    whole       a mixture of experts is replicated; expert parallelism gives each device its own
                experts as local tensors
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import _StridedShard

from epigrad._autograd.functions import forms_preactivation
from epigrad.ops import OPERATORS

Placements = list[Any]
Rule = tuple[Placements, Placements]


def _given(placements: Placements, tensors: Sequence[Any]) -> Placements:
    """The placements of the tensors that are there."""
    return [None if tensor is None else placement for placement, tensor in zip(placements, tensors, strict=True)]


def _needed(placements: Placements, needs: Sequence[bool], tensors: Sequence[Any]) -> Placements:
    """The placements of the gradients that exist."""
    return [
        placement if need and tensor is not None else None
        for placement, need, tensor in zip(placements, needs, tensors, strict=True)
    ]


def _replicated(count: int) -> Placements:
    return [Replicate() for _ in range(count)]


def _strided(dim: int, factor: int) -> Any:
    """A shard of each of `factor` equal parts of a dimension, as `epigrad.parallel` shards values
    and gates."""
    return _StridedShard(dim, split_factor=factor)


def _split_factors(tensor: Any, dim: int) -> set[Any]:
    """In how many parts a dimension of this tensor is sharded, where it is in more than one."""
    return {way.split_factor for way in tensor.placements if isinstance(way, _StridedShard) and way.dim == dim}


def _gemm_ways(a: Any, b: Any, linear: bool) -> list[tuple[Any, Any, Any, Any]]:
    """Placements of a, b, bias and of the product. If the product is a partial sum, so is the
    bias."""
    rank, columns, rows = a.ndim, (0 if linear else b.ndim - 1), (1 if linear else b.ndim - 2)
    ways: list[tuple[Any, Any, Any, Any]] = [tuple(_replicated(4))]
    if b.ndim == 2:
        ways += [(Shard(dim), Replicate(), Replicate(), Shard(dim)) for dim in range(rank - 1)]
        ways.append((Replicate(), Shard(columns), Shard(0), Shard(rank - 1)))
        ways += [
            (Replicate(), _strided(columns, factor), _strided(0, factor), _strided(rank - 1, factor))
            for factor in _split_factors(b, columns)
        ]
        ways.append((Shard(rank - 1), Shard(rows), Partial(), Partial()))
    elif b.ndim == rank and tuple(a.shape[:-2]) == tuple(b.shape[:-2]):
        ways += [(Shard(dim), Shard(dim), Replicate(), Shard(dim)) for dim in range(rank - 2)]
        ways.append((Shard(rank - 2), Replicate(), Replicate(), Shard(rank - 2)))
        ways.append((Replicate(), Shard(columns), Shard(0), Shard(rank - 1)))
    return ways


def _gemm(linear: bool) -> Callable[..., list[Rule]]:
    def rules(
        a: Any, b: Any, bias: Any = None, activation: str | None = "none", *, save: str = "auto", **options: Any
    ) -> list[Rule]:
        plain = activation in (None, "none")
        # A preactivation has the placement of the output; if it is not kept, it has no elements.
        keeps = not plain and save != "recompute"
        return [
            ([out, out if keeps else Replicate()], [*_given([way_a, way_b, way_bias], (a, b, bias)), None])
            for way_a, way_b, way_bias, out in _gemm_ways(a, b, linear)
            if plain or not isinstance(out, Partial)
        ]

    return rules


def _gemm_backward(linear: bool) -> Callable[..., list[Rule]]:
    def rules(
        grad_output: Any,
        a: Any,
        b: Any,
        bias: Any = None,
        activation: str | None = "none",
        preactivation: Any = None,
        output: Any = None,
        *,
        needs: Sequence[bool] = (True, True, True),
        **options: Any,
    ) -> list[Rule]:
        found: list[Rule] = []
        formed_again = forms_preactivation(activation, preactivation, output)
        tensors = (grad_output, a, b, bias)
        for way_a, way_b, way_bias, out in _gemm_ways(a, b, linear):
            if isinstance(out, Partial):
                if formed_again:
                    continue
                # Each part of a partial sum gets the whole gradient, and so does the bias.
                out = way_bias = Replicate()
                grads = [way_a, way_b, Replicate()]
            else:
                # What is replicated while the gradient is sharded gets its part of a sum.
                grads = [_part_of(way, out) for way in (way_a, way_b, way_bias)]
            given = _given([out, way_a, way_b, way_bias], tensors)
            given += [None, *_given([out, out], (preactivation, output))]
            found.append((_needed(grads, needs, (a, b, bias)), given))
        return found

    return rules


def _part_of(operand: Any, out: Any) -> Any:
    return Partial() if isinstance(operand, Replicate) and isinstance(out, Shard | _StridedShard) else operand


def _activation(input: Any, activation: Any, **options: Any) -> list[Rule]:
    return _everywhere(1, input.ndim)


def _activation_backward(grad_output: Any, input: Any, activation: Any, **options: Any) -> list[Rule]:
    return _everywhere(2, input.ndim)


def _everywhere(tensors: int, rank: int) -> list[Rule]:
    """One result of tensors of its shape: all are sharded by the same dimension."""
    return [([way], [way] * tensors + [None]) for way in (Replicate(), *map(Shard, range(rank)))]


def _gated_activation(input: Any, kind: str = "swiglu", dim: int = -1, **options: Any) -> list[Rule]:
    return _beside(1, input.ndim, dim)


def _gated_activation_backward(
    grad_output: Any, input: Any, kind: str = "swiglu", dim: int = -1, **options: Any
) -> list[Rule]:
    return _beside(2, input.ndim, dim)


def _beside(tensors: int, rank: int, dim: int) -> list[Rule]:
    """One result: all are sharded by the same dimension, but not the one split in halves."""
    ways = [Replicate(), *[Shard(place) for place in range(rank) if place != dim % rank]]
    return [([way], [way] * tensors + [None, None]) for way in ways]


def _gated_product(value: Any, gate: Any, kind: str = "swiglu", **options: Any) -> list[Rule]:
    return _everywhere(2, value.ndim)


def _gated_product_backward(
    grad_output: Any,
    value: Any,
    gate: Any,
    kind: str = "swiglu",
    *,
    needs: Sequence[bool] = (True, True),
    **options: Any,
) -> list[Rule]:
    ways = (Replicate(), *map(Shard, range(value.ndim)))
    return [(_needed([way, way], needs, (value, gate)), [way, way, way, None]) for way in ways]


def _place_in(tensor: Any, dim: int, rank: int) -> Any:
    """The placement of an operand that broadcasts to `rank` dimensions, for a result sharded by
    `dim`."""
    own = dim - (rank - tensor.ndim)
    return Replicate() if own < 0 or tensor.shape[own] == 1 else Shard(own)


def _lerp(start: Any, end: Any, weight: Any = None, **options: Any) -> list[Rule]:
    tensors = (start, end, weight)
    there = [tensor for tensor in tensors if tensor is not None]
    rank = max(tensor.ndim for tensor in there)
    rules: list[Rule] = [([Replicate()], _given(_replicated(3), tensors))]
    for dim in range(rank):
        places = [None if tensor is None else _place_in(tensor, dim, rank) for tensor in tensors]
        if any(isinstance(place, Shard) for place in places):
            rules.append(([Shard(dim)], places))
    return rules


def _lerp_backward(
    grad_output: Any,
    start: Any,
    end: Any,
    weight: Any = None,
    *,
    needs: Sequence[bool] = (True, True, True),
    **options: Any,
) -> list[Rule]:
    tensors = (start, end, weight)
    # Without start or end, its gradient has the shape of grad_output.
    targets = (grad_output if start is None else start, grad_output if end is None else end, weight)
    rules: list[Rule] = [
        (_needed(_replicated(3), needs, targets), [Replicate(), *_given(_replicated(3), tensors)]),
    ]
    for dim in range(grad_output.ndim):
        whole = Shard(dim)
        places = [None if tensor is None else _place_in(tensor, dim, grad_output.ndim) for tensor in targets]
        grads = _needed([_part_of(place, whole) for place in places], needs, targets)
        rules.append((grads, [whole, *_given(places, tensors)]))
    return rules


def _learnable_ways(input: Any, parameters: Sequence[Any]) -> list[tuple[Any, Placements]]:
    """Placements of an input and of its activation's parameters; prelu's weight may have an element
    for each channel."""
    ways: list[tuple[Any, Placements]] = []
    for way in (Replicate(), *map(Shard, range(input.ndim))):
        by_channels = way == Shard(1)
        ways.append((way, [Shard(0) if by_channels and math.prod(p.shape) > 1 else Replicate() for p in parameters]))
    return ways


def _learnable(input: Any, *rest: Any, **options: Any) -> list[Rule]:
    parameters = [argument for argument in rest if not isinstance(argument, float)]
    return [([way], [way, *places, None]) for way, places in _learnable_ways(input, parameters)]


def _learnable_backward(
    grad_output: Any, input: Any, *rest: Any, needs: Sequence[bool] = (True,) * 3, **options: Any
) -> list[Rule]:
    parameters = [argument for argument in rest if not isinstance(argument, float)]
    tensors = (input, *parameters)
    return [
        (
            _needed([_part_of(place, way) for place in (way, *places)], needs[: len(tensors)], tensors),
            [way, way, *places, None],
        )
        for way, places in _learnable_ways(input, parameters)
    ]


def _block_ways(rank: int, plain: bool) -> list[tuple[Any, ...]]:
    """Placements of input, weight1, bias1, weight2, bias2, preactivation and output."""
    ways: list[tuple[Any, ...]] = [tuple(_replicated(7))]
    ways += [(Shard(dim), *_replicated(4), Shard(dim), Shard(dim)) for dim in range(rank - 1)]
    if plain:  # the halves of a gated layer would be on different devices
        ways.append((Replicate(), Shard(0), Shard(0), Shard(1), Partial(), Shard(rank - 1), Partial()))
    return ways


def _block(plain: bool) -> Callable[..., list[Rule]]:
    def rules(
        input: Any,
        weight1: Any,
        bias1: Any,
        weight2: Any,
        bias2: Any,
        kind: Any = "",
        *,
        save: str = "auto",
        **rest: Any,
    ) -> list[Rule]:
        tensors = (input, weight1, bias1, weight2, bias2)
        return [
            ([way[6], way[5] if save != "recompute" else Replicate()], [*_given([*way[:5]], tensors), None])
            for way in _block_ways(input.ndim, plain)
        ]

    return rules


def _block_backward(plain: bool) -> Callable[..., list[Rule]]:
    def rules(
        grad_output: Any,
        input: Any,
        weight1: Any,
        bias1: Any,
        weight2: Any,
        bias2: Any,
        kind: Any = "",
        preactivation: Any = None,
        *,
        needs: Sequence[bool] = (True,) * 5,
        **options: Any,
    ) -> list[Rule]:
        tensors = (input, weight1, bias1, weight2, bias2)
        found: list[Rule] = []
        for *operands, hidden, out in _block_ways(input.ndim, plain):
            if isinstance(out, Partial):
                # As of a product by rows: every part has the gradient of the whole; the input is
                # used by every shard.
                out, operands[4] = Replicate(), Replicate()
                grads = [Partial(), *operands[1:4], Replicate()]
            else:
                grads = [_part_of(way, out) for way in operands]
            given = [out, *_given(operands, tensors), None, *_given([hidden], (preactivation,))]
            found.append((_needed(grads, needs, tensors), given))
        return found

    return rules


def _gated_linear_ways(rank: int) -> list[tuple[Any, ...]]:
    """Placements of input, the weights and biases of value and gate, preactivation and output."""
    last = rank - 1
    ways = [tuple(_replicated(7)), *[(Shard(dim), *_replicated(4), Shard(dim), Shard(dim)) for dim in range(last)]]
    if torch.__version__ >= "2.12":  # older versions cannot compute the cost of a shard of each half
        ways.append((Replicate(), *[Shard(0)] * 4, _strided(last, 2), Shard(last)))
    return ways


def _gated_linear(
    input: Any,
    weight_value: Any,
    weight_gate: Any,
    bias_value: Any = None,
    bias_gate: Any = None,
    kind: str = "swiglu",
    *,
    save: str = "auto",
    **options: Any,
) -> list[Rule]:
    tensors = (input, weight_value, weight_gate, bias_value, bias_gate)
    return [
        ([out, hidden if save != "recompute" else Replicate()], [*_given(operands, tensors), None])
        for *operands, hidden, out in _gated_linear_ways(input.ndim)
    ]


def _gated_linear_backward(
    grad_output: Any,
    input: Any,
    weight_value: Any,
    weight_gate: Any,
    bias_value: Any = None,
    bias_gate: Any = None,
    kind: str = "swiglu",
    preactivation: Any = None,
    *,
    needs: Sequence[bool] = (True,) * 5,
    **options: Any,
) -> list[Rule]:
    tensors = (input, weight_value, weight_gate, bias_value, bias_gate)
    return [
        (
            _needed([_part_of(way, out) for way in operands], needs, tensors),
            [out, *_given(operands, tensors), None, *_given([hidden], (preactivation,))],
        )
        for *operands, hidden, out in _gated_linear_ways(input.ndim)
    ]


# Every device needs all rows of a grouped tensor, since the groups' ends depend on each row.


def _grouped_ways() -> list[tuple[Any, ...]]:
    """Placements of input, weight, bias, offsets, and of preactivation and output."""
    return [tuple(_replicated(5)), (Replicate(), Shard(1), Shard(1), Replicate(), Shard(1))]


def _grouped_linear(
    input: Any,
    weight: Any,
    bias: Any,
    offsets: Any,
    activation: str | None = "none",
    *,
    save: str = "auto",
    **options: Any,
) -> list[Rule]:
    keeps = activation not in (None, "none") and save != "recompute"
    return [
        ([out, out if keeps else Replicate()], [*_given(operands, (input, weight, bias, offsets)), None])
        for *operands, out in _grouped_ways()
    ]


def _grouped_linear_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias: Any,
    offsets: Any,
    activation: str | None = "none",
    preactivation: Any = None,
    *,
    needs: Sequence[bool] = (True, True, True),
    **options: Any,
) -> list[Rule]:
    tensors = (input, weight, bias)
    return [
        (
            _needed([Replicate() if out.is_replicate() else Partial(), *operands[1:3]], needs, tensors),
            [out, *_given(operands, (*tensors, offsets)), None, *_given([out], (preactivation,))],
        )
        for *operands, out in _grouped_ways()
    ]


def _experts(*arguments: Any, **options: Any) -> list[Rule]:
    tensors = arguments[:7]
    return [(_replicated(2), [*_given(_replicated(7), tensors), None])]


def _experts_backward(
    grad_output: Any,
    input: Any,
    index: Any,
    scale: Any,
    weight_in: Any,
    bias_in: Any,
    weight_out: Any,
    bias_out: Any,
    kind: str = "swiglu",
    preactivation: Any = None,
    *,
    needs: Sequence[bool] = (True,) * 6,
    **options: Any,
) -> list[Rule]:
    layers = (weight_in, bias_in, weight_out, bias_out)
    operands = _given(_replicated(8), (grad_output, input, index, scale, *layers))
    grads = _needed(_replicated(6), needs, (input, scale, *layers))
    return [(grads, [*operands, None, *_given([Replicate()], (preactivation,))])]


_RULES: dict[str, Callable[..., list[Rule]]] = {
    "matmul_bias_activation": _gemm(False),
    "matmul_bias_activation_backward": _gemm_backward(False),
    "linear": _gemm(True),
    "linear_backward": _gemm_backward(True),
    "activation": _activation,
    "activation_backward": _activation_backward,
    "gated_activation": _gated_activation,
    "gated_activation_backward": _gated_activation_backward,
    "gated_product": _gated_product,
    "gated_product_backward": _gated_product_backward,
    "lerp": _lerp,
    "lerp_backward": _lerp_backward,
    "prelu": _learnable,
    "prelu_backward": _learnable_backward,
    "xielu": _learnable,
    "xielu_backward": _learnable_backward,
    "gated_linear": _gated_linear,
    "gated_linear_backward": _gated_linear_backward,
    "mlp": _block(True),
    "mlp_backward": _block_backward(True),
    "gated_mlp": _block(False),
    "gated_mlp_backward": _block_backward(False),
    "grouped_linear": _grouped_linear,
    "grouped_linear_backward": _grouped_linear_backward,
    "experts": _experts,
    "experts_backward": _experts_backward,
}

for _operator in OPERATORS:
    _tell: Callable[[Any], Any] = register_sharding(_operator.overload)
    _tell(_RULES[_operator.name])
