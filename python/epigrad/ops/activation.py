"""The operators of ``act(x)``, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from epigrad._autograd import formulas
from epigrad._autograd.functions import ActivationProblem, Elementwise
from epigrad._core.launcher import DISPATCHER, Launcher, only
from epigrad.ops import batching, shapes
from epigrad.ops.operator import PARAMETERS, Bound, Gradients, Operator, activation_call


@dataclass
class Forward(Bound):
    """A call of the activation."""

    input: Tensor
    activation: str | None
    _: KW_ONLY
    parameters: Sequence[float] = ()
    backend: str | None = None

    def __post_init__(self) -> None:
        self.call = activation_call("activation", self.activation, self.parameters, self.backend)
        self.tensors = (self.input,)

    def recorded(self) -> Tensor:
        out: Tensor = Elementwise.apply(DISPATCHER, self.call, self.input)
        return out

    def formula(self) -> Tensor:
        return formulas.activated(self.call.activation, self.input)

    def composed(self) -> Tensor:
        return formulas.composed(self.call.activation, self.input)

    def symbolic(self) -> shapes.Shapes:
        return (self.input.shape,)


@dataclass
class Backward(Gradients):
    """A call of its gradient."""

    grad_output: Tensor
    input: Tensor
    activation: str | None
    _: KW_ONLY
    parameters: Sequence[float] = ()
    backend: str | None = None

    needs = (True,)
    returned = staticmethod(only)

    def __post_init__(self) -> None:
        self.call = activation_call("activation", self.activation, self.parameters, self.backend)
        self.tensors = (self.grad_output, self.input)

    def problem(self, core: Launcher) -> ActivationProblem:
        return ActivationProblem(core, self.call)

    def symbolic(self) -> shapes.Shapes:
        shapes.same_shape("activation_backward", "grad_output", self.grad_output.shape, self.input.shape)
        return (self.input.shape,)


_ARGUMENTS = f"Tensor input, str? activation, *, {PARAMETERS}, str? backend=None"

OPERATORS = (
    Operator("activation", f"({_ARGUMENTS}) -> Tensor", Forward, batched=batching.of_one_shape("activation", 1)),
    Operator(
        "activation_backward",
        f"(Tensor grad_output, {_ARGUMENTS}) -> Tensor",
        Backward,
        batched=batching.of_one_shape("activation_backward", 2),
    ),
)
