"""The rules of operations with matrix products: ``act(a @ b + bias)`` in its two spellings, the
gated layer with two weights, the two-layer blocks, layers with a weight for each group of rows, and
mixtures of experts.

Forward gives the output and the preactivation. It is empty if `save` keeps none, so a call that
records nothing passes ``save="recompute"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from epigrad._autograd import formulas
from epigrad._autograd.feedforward import FeedForward, FeedForwardProblem, block_formula
from epigrad._autograd.functions import Gemm, GemmProblem
from epigrad._autograd.gated_linear import GatedLinear, GatedLinearProblem, gated_linear_formula
from epigrad._autograd.grouped import (
    Experts,
    ExpertsProblem,
    GroupedLinear,
    GroupedLinearProblem,
    check_offsets,
    experts_formula,
    grouped_linear_formula,
)
from epigrad._core.call import Call
from epigrad._core.launcher import overload
from epigrad._core.torch_state import as_experts, as_linear
from epigrad.ops import batching, shapes
from epigrad.ops.operator import Rules

Pair = tuple[Tensor, Tensor]


def _product(call: Call, a: Tensor, b: Tensor, bias: Tensor | None, transposed: bool) -> Pair:
    preactivation = formulas.preactivation(a, b, bias, transposed)
    return formulas.activated(call.activation, preactivation), preactivation


def _product_composed(call: Call, a: Tensor, b: Tensor, bias: Tensor | None) -> Pair:
    preactivation = formulas.preactivation(a, b, bias, False)
    return formulas.composed(call.activation, preactivation), preactivation


def _linear_composed(call: Call, input: Tensor, weight: Tensor, bias: Tensor | None) -> Pair:
    preactivation = functional.linear(input, weight, bias)
    return formulas.composed(call.activation, preactivation), preactivation


def _gated_linear_composed(
    call: Call,
    input: Tensor,
    weight_value: Tensor,
    weight_gate: Tensor,
    bias_value: Tensor | None,
    bias_gate: Tensor | None,
) -> Pair:
    value = functional.linear(input, weight_value, bias_value)
    gate = functional.linear(input, weight_gate, bias_gate)
    return formulas.gated_composed(call.gated, value, gate), torch.cat([value, gate], -1)


def _block_composed(
    call: Call, input: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None
) -> Pair:
    preactivation = functional.linear(input, weight1, bias1)
    if call.is_gated:
        hidden = formulas.gated_composed(call.gated, *formulas.split_gate(preactivation, -1, call.gate))
    else:
        hidden = formulas.composed(call.activation, preactivation)
    return functional.linear(hidden, weight2, bias2), preactivation


def _check_offsets(op: str, given: Mapping[str, Any]) -> None:
    check_offsets(op, given["offsets"], given["input"].shape[0])


def _product_batched(
    op: str,
    info: Any,
    in_dims: batching.InDims,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *rest: Any,
    **options: Any,
) -> Any:
    a_dim, b_dim, bias_dim = batching.dims_of(in_dims, 3)
    if bias_dim is not None:  # a bias is a vector
        return batching.slice_by_slice(overload(op))(info, in_dims, a, b, bias, *rest, **options)
    a_rank, b_rank = a.dim() - (a_dim is not None), b.dim() - (b_dim is not None)
    if a_dim is not None and b_dim is None and b_rank <= 2:
        # One more leading dimension of a.
        return _with_dims(*overload(op)(a.movedim(a_dim, 0), b, bias, *rest, **options))
    # One product of matrices: vectors get a dimension of size 1, and the batch comes first.
    a = a if a_dim is None else a.movedim(a_dim, 0)
    b = b if b_dim is None else b.movedim(b_dim, 0)
    b = b.mT if op == "linear" else b
    a = a.unsqueeze(-2) if a_rank == 1 else a
    b = b.unsqueeze(-1) if b_rank == 1 else b
    a, b = batching.aligned((a, b), (None if a_dim is None else 0, None if b_dim is None else 0))
    bias = bias.reshape(1) if bias is not None and b_rank == 1 else bias
    out, preactivation = overload("matmul_bias_activation")(a, b, bias, *rest, **options)

    def as_before(result: Tensor) -> Tensor:
        result = result.squeeze(-1) if b_rank == 1 else result
        return result.squeeze(-1 if b_rank == 1 else -2) if a_rank == 1 else result

    if preactivation.shape == out.shape:
        preactivation = as_before(preactivation)
    return _with_dims(as_before(out), preactivation)


def _with_dims(out: Tensor, preactivation: Tensor) -> Any:
    """The results and their batch dimensions. A preactivation that is not kept has no batch."""
    return (out, preactivation), (0, 0 if preactivation.shape == out.shape else None)


def _product_rules(op: str, transposed: bool) -> Rules:
    return Rules(
        Gemm,
        GemmProblem,
        partial(_product, transposed=transposed),
        _linear_composed if transposed else _product_composed,
        batched=partial(_product_batched, op),
        casts=as_linear,
        shapes=None if transposed else shapes.product,
    )


def _block_rules(op: str) -> Rules:
    return Rules(
        FeedForward,
        FeedForwardProblem,
        block_formula,
        _block_composed,
        batched=batching.by_rows(op),
        casts=as_linear,
    )


RULES = {
    "matmul_bias_activation": _product_rules("matmul_bias_activation", False),
    "linear": _product_rules("linear", True),
    "gated_linear": Rules(
        GatedLinear,
        GatedLinearProblem,
        gated_linear_formula,
        _gated_linear_composed,
        batched=batching.by_rows("gated_linear"),
        casts=as_linear,
    ),
    "mlp": _block_rules("mlp"),
    "gated_mlp": _block_rules("gated_mlp"),
    "grouped_linear": Rules(
        GroupedLinear,
        GroupedLinearProblem,
        grouped_linear_formula,
        partial(grouped_linear_formula, composed=True),
        casts=as_linear,
        check=_check_offsets,
    ),
    "experts": Rules(Experts, ExpertsProblem, experts_formula, casts=as_experts),
}
"""The rules of each operation, by its name."""
