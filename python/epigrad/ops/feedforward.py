"""The operators of the two-layer blocks, forward and backward.

Forward gives the output and the first layer's preactivation. It is empty if `save` keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from epigrad._autograd import formulas
from epigrad._autograd.feedforward import BLOCK_ARGUMENTS, FeedForward, FeedForwardProblem, block_formula
from epigrad._autograd.functions import PREACTIVATION
from epigrad._core.call import Call
from epigrad._core.launcher import DISPATCHER, Launcher
from epigrad._core.torch_state import as_linear
from epigrad.ops import batching, gemm, shapes
from epigrad.ops.operator import (
    PARAMETERS,
    PRODUCT_OPTIONS,
    Gradients,
    Layers,
    Operator,
    activation_call,
    gated_call,
)

Pair = tuple[Tensor, Tensor]

# The dispatcher leaves out arguments that have their default.
_DEFAULT = ""
_DEFAULT_KINDS = {"mlp": "gelu_tanh", "gated_mlp": "swiglu"}


def _call(op: str, kind: str | None, parameters: Sequence[float], gate: str | None, backend: str | None) -> Call:
    kind = _DEFAULT_KINDS[op] if kind == _DEFAULT else kind
    if op == "mlp":
        return activation_call(op, kind, parameters, backend)
    assert kind is not None
    return gated_call(op, kind, parameters, backend, gate=gate or "second")


@dataclass
class Forward(Layers):
    """A call of a block. `kind` is the activation of the hidden layer, or the gated kind."""

    op: str
    input: Tensor
    weight1: Tensor
    bias1: Tensor | None
    weight2: Tensor
    bias2: Tensor | None
    kind: str | None = _DEFAULT
    _: KW_ONLY
    parameters: Sequence[float] = ()
    gate: str | None = None
    save: str = "auto"
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = _call(self.op, self.kind, self.parameters, self.gate, self.backend)
        self.keep = FeedForward.kept(self.call, self.save)
        self.needs = (True, self.keep == PREACTIVATION)
        self.tensors = (self.input, self.weight1, self.bias1, self.weight2, self.bias2)

    def recorded(self) -> Pair:
        return self.returned(FeedForward.apply(DISPATCHER, self.call, self.keep, *self.tensors))

    def formula(self) -> Pair:
        layers = (self.weight1, self.bias1, self.weight2, self.bias2)
        out, preactivation = block_formula(self.call, self.input, *layers)
        return self.returned((out, preactivation if self.needs[1] else None))

    def composed(self) -> Pair:
        preactivation = functional.linear(self.input, self.weight1, self.bias1)
        if self.op == "mlp":
            hidden = formulas.composed(self.call.activation, preactivation)
        else:
            halves = formulas.split_gate(preactivation, -1, self.call.gate)
            hidden = formulas.gated_composed(self.call.gated, *halves)
        out = functional.linear(hidden, self.weight2, self.bias2)
        return self.returned((out, preactivation if self.needs[1] else None))

    def symbolic(self) -> shapes.Shapes:
        preactivation = _layer(self.input.shape, self.weight1, self.bias1)
        features = preactivation[-1]
        if self.op == "gated_mlp":
            features = shapes.half(self.op, BLOCK_ARGUMENTS[self.op][1], features)
        return _layer((*preactivation[:-1], features), self.weight2, self.bias2), preactivation


def _layer(input: shapes.Shape, weight: Tensor, bias: Tensor | None) -> shapes.Shape:
    return shapes.gemm("linear", input, weight.shape, None if bias is None else bias.shape)


@dataclass
class Backward(Gradients):
    """A call of a block's gradients. Of tensors that are not needed, only the shape is read."""

    forward_op: str
    grad_output: Tensor
    input: Tensor
    weight1: Tensor
    bias1: Tensor | None
    weight2: Tensor
    bias2: Tensor | None
    kind: str | None = _DEFAULT
    preactivation: Tensor | None = None
    _: KW_ONLY
    parameters: Sequence[float] = ()
    gate: str | None = None
    needs: Sequence[bool] = (True,) * 5
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = _call(self.forward_op, self.kind, self.parameters, self.gate, self.backend)
        inputs = (self.input, self.weight1, self.bias1, self.weight2, self.bias2)
        self.tensors = (self.grad_output, *inputs, self.preactivation)
        self.sizes: Any = tuple([None if tensor is None else tensor.shape for tensor in inputs])

    def problem(self, core: Launcher) -> FeedForwardProblem:
        return FeedForwardProblem(core, self.call, self.sizes)

    def symbolic(self) -> shapes.Shapes:
        out = (*self.input.shape[:-1], self.weight2.shape[0])
        shapes.same_shape(f"{self.forward_op}_backward", "grad_output", self.grad_output.shape, out)
        return tuple(self.sizes)


def _products(input: Any, weight1: Any, weight2: Any) -> tuple[int, int]:
    return gemm.flops("linear", input, weight1), gemm.flops("linear", (*input[:-1], weight2[1]), weight2)


def _flops(input: Any, weight1: Any, bias1: Any, weight2: Any, *rest: Any, **options: Any) -> int:
    return sum(_products(input, weight1, weight2))


def _backward_flops(
    grad_output: Any,
    input: Any,
    weight1: Any,
    bias1: Any,
    weight2: Any,
    bias2: Any = None,
    kind: Any = _DEFAULT,
    preactivation: Any = None,
    *,
    needs: Sequence[bool] = (True,) * 5,
    **options: Any,
) -> int:
    first, second = _products(input, weight1, weight2)
    first_needed = any(needs[:3])
    slope_is_constant = kind in (None, "none")
    formed_again = preactivation is None and (needs[3] or (first_needed and not slope_is_constant))
    return first * (bool(needs[0]) + bool(needs[1]) + formed_again) + second * (first_needed + bool(needs[3]))


def _operators(op: str, names: str, kind: str, gate: str) -> tuple[Operator, Operator]:
    weight1, bias1, weight2, bias2 = names.split()
    inputs = f"Tensor input, Tensor {weight1}, Tensor? {bias1}, Tensor {weight2}, Tensor? {bias2}, {kind}"
    grads = ", ".join(f"Tensor grad_{name}" for name in ("input", *names.split()))
    return (
        Operator(
            op,
            f"({inputs}, *, {PARAMETERS}, {gate}str save='auto', {PRODUCT_OPTIONS}) -> "
            "(Tensor output, Tensor preactivation)",
            bind=partial(Forward, op),
            batched=batching.by_rows(op),
            flops=_flops,
            casts=as_linear,
        ),
        Operator(
            f"{op}_backward",
            f"(Tensor grad_output, {inputs}, Tensor? preactivation=None, *, {PARAMETERS}, {gate}"
            f"bool[5] needs=[True, True, True, True, True], {PRODUCT_OPTIONS}) -> ({grads})",
            bind=partial(Backward, op),
            flops=_backward_flops,
        ),
    )


OPERATORS = (
    *_operators("mlp", "weight1 bias1 weight2 bias2", "str? activation='gelu_tanh'", ""),
    *_operators("gated_mlp", "weight_in bias_in weight_out bias_out", "str kind='swiglu'", "str gate='second', "),
)
