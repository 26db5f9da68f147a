"""The operators of activations whose parameters are tensors, forward and backward.

prelu's weight has one element, or one for each index of the input's second dimension. xielu's
alphas have one element each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from torch import Tensor

from epigrad._autograd import formulas
from epigrad._autograd.functions import Elementwise, LearnableProblem
from epigrad._core.call import Call
from epigrad._core.launcher import DISPATCHER, Launcher, overload
from epigrad._core.torch_state import as_input
from epigrad.ops import batching, shapes
from epigrad.ops.operator import Bound, Gradients, Operator, call


class Forward(Bound):
    """A call of one of them."""

    def recorded(self) -> Tensor:
        out: Tensor = Elementwise.apply(DISPATCHER, self.call, *self.tensors)
        return out

    def formula(self) -> Tensor:
        return formulas.learnable(self.call.op, self.call.parameters, *_given(self))

    def composed(self) -> Tensor:
        return formulas.LEARNABLE[self.call.op].composed(*_given(self), *self.call.parameters)

    def symbolic(self) -> shapes.Shapes:
        input, *parameters = [tensor.shape for tensor in _given(self)]
        _check(self.call.op, input, parameters)
        return (input,)


class Backward(Gradients):
    """A call of the gradients of one of them."""

    def problem(self, core: Launcher) -> LearnableProblem:
        return LearnableProblem(core, self.call)

    def symbolic(self) -> shapes.Shapes:
        grad, input, *parameters = [tensor.shape for tensor in _given(self)]
        op = f"{self.call.op}_backward"
        shapes.same_shape(op, "grad_output", grad, input)
        _check(op, input, parameters)
        return (input, *parameters)


def _given(bound: Bound) -> list[Tensor]:
    """The operands, none of which is optional."""
    return [tensor for tensor in bound.tensors if tensor is not None]


def _check(op: str, input: shapes.Shape, parameters: Sequence[shapes.Shape]) -> None:
    """Require parameters of one element; prelu's may have one for each channel."""
    for shape in parameters:
        if len(shape) and not (isinstance(shape[0], int) and shape[0] == 1):
            channels = input[1] if op.startswith("prelu") and len(input) > 1 else 1
            shapes.same(op, "elements of a parameter", shape[0], channels)


@dataclass
class PReLU(Forward):
    """A call of ``input if input > 0 else weight * input``."""

    input: Tensor
    weight: Tensor
    _: KW_ONLY
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = Call("prelu", backend=self.backend)
        self.tensors = (self.input, self.weight)


@dataclass
class PReLUBackward(Backward):
    """A call of its gradients."""

    grad_output: Tensor
    input: Tensor
    weight: Tensor
    _: KW_ONLY
    needs: Sequence[bool] = (True, True)
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = Call("prelu", backend=self.backend)
        self.tensors = (self.grad_output, self.input, self.weight)


@dataclass
class XIELU(Forward):
    """A call of xielu."""

    input: Tensor
    alpha_p: Tensor
    alpha_n: Tensor
    beta: float = 0.5
    _: KW_ONLY
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = Call("xielu", None, (self.beta,), backend=self.backend)
        self.tensors = (self.input, self.alpha_p, self.alpha_n)


@dataclass
class XIELUBackward(Backward):
    """A call of its gradients."""

    grad_output: Tensor
    input: Tensor
    alpha_p: Tensor
    alpha_n: Tensor
    beta: float = 0.5
    _: KW_ONLY
    needs: Sequence[bool] = (True, True, True)
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = Call("xielu", None, (self.beta,), backend=self.backend)
        self.tensors = (self.grad_output, self.input, self.alpha_p, self.alpha_n)


def _batch_last(name: str) -> Callable[..., Any]:
    """The rule of `torch.vmap`. A batch of inputs becomes the last dimension, since prelu's weight
    belongs to the second one. If parameters are batched, each slice is a call.
    """

    def rule(info: Any, in_dims: batching.InDims, input: Tensor, *rest: Any, **options: Any) -> Any:
        dim, *others = in_dims
        # After a sample of one dimension, the batch would be the second dimension.
        becomes_channels = name == "prelu" and input.dim() < 3
        if dim is None or becomes_channels or any(other is not None for other in others):
            return batching.slice_by_slice(overload(name))(info, in_dims, input, *rest, **options)
        out = call(name, input.movedim(dim, -1), *rest, **options)
        return out, out.dim() - 1

    return rule


_PRELU = "Tensor input, Tensor weight"
_XIELU = "Tensor input, Tensor alpha_p, Tensor alpha_n, float beta=0.5"

OPERATORS = (
    Operator(
        "prelu", f"({_PRELU}, *, str? backend=None) -> Tensor", PReLU, batched=_batch_last("prelu"), casts=as_input
    ),
    Operator(
        "prelu_backward",
        f"(Tensor grad_output, {_PRELU}, *, bool[2] needs=[True, True], str? backend=None) -> "
        "(Tensor grad_input, Tensor grad_weight)",
        PReLUBackward,
    ),
    Operator(
        "xielu", f"({_XIELU}, *, str? backend=None) -> Tensor", XIELU, batched=_batch_last("xielu"), casts=as_input
    ),
    Operator(
        "xielu_backward",
        f"(Tensor grad_output, {_XIELU}, *, bool[3] needs=[True, True, True], str? backend=None) -> "
        "(Tensor grad_input, Tensor grad_alpha_p, Tensor grad_alpha_n)",
        XIELUBackward,
    ),
)
