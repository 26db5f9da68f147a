"""The operators of ``act(a @ b + bias)`` in its two spellings, forward and backward.

Forward gives the output and the preactivation. It is empty if `save` keeps none, so a call that
records nothing passes ``save="recompute"``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from epigrad._autograd import formulas
from epigrad._autograd.functions import PREACTIVATION, Gemm, GemmProblem, forms_preactivation
from epigrad._core.launcher import DISPATCHER, Launcher, overload
from epigrad._core.torch_state import as_linear
from epigrad.ops import batching, shapes
from epigrad.ops.operator import PARAMETERS, PRODUCT_OPTIONS, Gradients, Layers, Operator, activation_call, call

Pair = tuple[Tensor, Tensor]


@dataclass
class Forward(Layers):
    """A call of ``act(a @ b + bias)``; with op ``"linear"`` b is a weight ``[N, K]``."""

    op: str
    a: Tensor
    b: Tensor
    bias: Tensor | None = None
    activation: str | None = "none"
    _: KW_ONLY
    parameters: Sequence[float] = ()
    save: str = "auto"
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = activation_call(self.op, self.activation, self.parameters, self.backend)
        self.keep = Gemm.kept(self.call, self.save)
        self.needs = (True, self.keep == PREACTIVATION)
        self.tensors = (self.a, self.b, self.bias)

    def recorded(self) -> Pair:
        return self.returned(Gemm.apply(DISPATCHER, self.call, self.keep, *self.tensors))

    def formula(self) -> Pair:
        preactivation = formulas.preactivation(self.a, self.b, self.bias, self.op == "linear")
        out = formulas.activated(self.call.activation, preactivation)
        return self.returned((out, preactivation if self.needs[1] else None))

    def composed(self) -> Pair:
        if self.op == "linear":
            preactivation = functional.linear(self.a, self.b, self.bias)
        else:
            preactivation = formulas.preactivation(self.a, self.b, self.bias, False)
        out = formulas.composed(self.call.activation, preactivation)
        return self.returned((out, preactivation if self.needs[1] else None))

    def symbolic(self) -> shapes.Shapes:
        bias = None if self.bias is None else self.bias.shape
        shape = shapes.gemm(self.op, self.a.shape, self.b.shape, bias)
        return shape, shape


@dataclass
class Backward(Gradients):
    """A call of its gradients. Of tensors that are not needed, only the shape is read."""

    forward_op: str
    grad_output: Tensor
    a: Tensor
    b: Tensor
    bias: Tensor | None = None
    activation: str | None = "none"
    preactivation: Tensor | None = None
    output: Tensor | None = None
    _: KW_ONLY
    parameters: Sequence[float] = ()
    needs: Sequence[bool] = (True, True, True)
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = activation_call(self.forward_op, self.activation, self.parameters, self.backend)
        self.tensors = (self.grad_output, self.a, self.b, self.bias, self.preactivation, self.output)
        self.shapes = (self.a.shape, self.b.shape, None if self.bias is None else self.bias.shape)

    def problem(self, core: Launcher) -> GemmProblem:
        return GemmProblem(core, self.call, self.shapes)

    def symbolic(self) -> shapes.Shapes:
        output = shapes.gemm(self.forward_op, *self.shapes)
        shapes.same_shape(f"{self.forward_op}_backward", "grad_output", self.grad_output.shape, output)
        return self.shapes


def _batched(
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
        return _with_dims(*call(op, a.movedim(a_dim, 0), b, bias, *rest, **options))
    # One product of matrices: vectors get a dimension of size 1, and the batch comes first.
    a = a if a_dim is None else a.movedim(a_dim, 0)
    b = b if b_dim is None else b.movedim(b_dim, 0)
    b = b.mT if op == "linear" else b
    a = a.unsqueeze(-2) if a_rank == 1 else a
    b = b.unsqueeze(-1) if b_rank == 1 else b
    a, b = batching.aligned((a, b), (None if a_dim is None else 0, None if b_dim is None else 0))
    bias = bias.reshape(1) if bias is not None and b_rank == 1 else bias
    out, preactivation = call("matmul_bias_activation", a, b, bias, *rest, **options)

    def as_before(result: Tensor) -> Tensor:
        result = result.squeeze(-1) if b_rank == 1 else result
        return result.squeeze(-1 if b_rank == 1 else -2) if a_rank == 1 else result

    if preactivation.shape == out.shape:
        preactivation = as_before(preactivation)
    return _with_dims(as_before(out), preactivation)


def _with_dims(out: Tensor, preactivation: Tensor) -> Any:
    """The results and their batch dimensions. A preactivation that is not kept has no batch."""
    return (out, preactivation), (0, 0 if preactivation.shape == out.shape else None)


def flops(op: str, a: Any, b: Any, *rest: Any, **options: Any) -> int:
    """The FLOPs of a product of these shapes."""
    count: int = 2 * math.prod([*shapes.gemm(op, a, b, None), a[-1]])
    return count


def _backward_flops(
    op: str,
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
) -> int:
    formed_again = forms_preactivation(activation, preactivation, output)
    return flops(op, a, b) * (bool(needs[0]) + bool(needs[1]) + formed_again)


def _operators(op: str, a: str, b: str) -> tuple[Operator, Operator]:
    inputs = f"Tensor {a}, Tensor {b}, Tensor? bias=None, str? activation='none'"
    results = f"(Tensor grad_{a}, Tensor grad_{b}, Tensor grad_bias)"
    return (
        Operator(
            op,
            f"({inputs}, *, {PARAMETERS}, str save='auto', {PRODUCT_OPTIONS}) -> (Tensor output, Tensor preactivation)",
            bind=partial(Forward, op),
            batched=partial(_batched, op),
            flops=partial(flops, op),
            casts=as_linear,
        ),
        Operator(
            f"{op}_backward",
            f"(Tensor grad_output, {inputs}, Tensor? preactivation=None, Tensor? output=None, *, {PARAMETERS}, "
            f"bool[3] needs=[True, True, True], {PRODUCT_OPTIONS}) -> {results}",
            bind=partial(Backward, op),
            flops=partial(_backward_flops, op),
        ),
    )


OPERATORS = (*_operators("matmul_bias_activation", "a", "b"), *_operators("linear", "input", "weight"))
