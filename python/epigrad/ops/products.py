"""The rules of operations with matrix products: ``act(a @ b + bias)`` in its two spellings, the
gated layer with two weights, the two-layer blocks, layers with a weight for each group of rows, and
mixtures of experts.

Forward gives the output and the preactivation. It is empty if `save` keeps none, so a call that
records nothing passes ``save="recompute"``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from epigrad._autograd import grouped, layers
from epigrad._autograd.functions import Reads
from epigrad._core.launcher import overload
from epigrad._core.torch_state import as_experts, as_linear
from epigrad.ops import batching, shapes
from epigrad.ops.operator import Rules


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


def _block_rules(op: str, weight1: str, bias1: str, weight2: str) -> Rules:
    first = f"input {weight1} {bias1}"

    def reads(kind: str | None) -> Reads:
        preactivation = weight2 if kind == "none" else f"{weight2} {first}"
        read = {"input": weight1, weight1: "input", weight2: first, "preactivation": preactivation}
        return read | {"recompute": first}

    return Rules(
        layers.block,
        layers.block_backward,
        partial(layers.block, composed=True),
        reads,
        batched=batching.by_rows(op),
        casts=as_linear,
    )


def _reads(**names: str) -> Callable[[str | None], Reads]:
    """What gradients of layers read, of whatever kind."""
    reads = {"preactivation": "*"} | names
    return lambda kind: reads


RULES = {
    "matmul_bias_activation": Rules(
        partial(layers.layer, layers.MATMUL),
        partial(layers.layer_backward, layers.MATMUL),
        partial(layers.layer, layers.MATMUL, composed=True),
        _reads(a="b", b="a", recompute="a b bias"),
        second=partial(layers.layer_second, layers.MATMUL),
        batched=partial(_product_batched, "matmul_bias_activation"),
        casts=as_linear,
        shapes=shapes.product,
    ),
    "linear": Rules(
        partial(layers.layer, layers.LINEAR),
        partial(layers.layer_backward, layers.LINEAR),
        partial(layers.layer, layers.COMPOSED, composed=True),
        _reads(input="weight", weight="input", recompute="input weight bias"),
        second=partial(layers.layer_second, layers.LINEAR),
        batched=partial(_product_batched, "linear"),
        casts=as_linear,
    ),
    "gated_linear": Rules(
        layers.gated_linear,
        layers.gated_linear_backward,
        partial(layers.gated_linear, composed=True),
        _reads(
            input="weight_value weight_gate",
            weight_value="input",
            weight_gate="input",
            recompute="input weight_value weight_gate bias_value bias_gate",
        ),
        batched=batching.by_rows("gated_linear"),
        casts=as_linear,
    ),
    "mlp": _block_rules("mlp", "weight1", "bias1", "weight2"),
    "gated_mlp": _block_rules("gated_mlp", "weight_in", "bias_in", "weight_out"),
    "grouped_linear": Rules(
        grouped.grouped_linear,
        grouped.grouped_linear_backward,
        partial(grouped.grouped_linear, composed=True),
        _reads(input="weight", weight="input", offsets="*", recompute="input weight bias"),
        casts=as_linear,
        check=grouped.check_offsets,
    ),
    "experts": Rules(
        grouped.experts,
        grouped.experts_backward,
        reads=_reads(
            input="weight_in",
            index="*",
            scale="*",
            weight_in="input",
            weight_out="input scale weight_in bias_in",
            bias_out="scale",
            preactivation="input scale weight_in bias_in weight_out",
            recompute="input weight_in bias_in",
        ),
        casts=as_experts,
    ),
}
"""The rules of each operation, by its name."""
