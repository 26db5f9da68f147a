"""The operators of ``act(x)``, forward and backward."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from epigrad import differentiable, library
from epigrad.autograd import Activation, ActivationProblem
from epigrad.dispatched import DISPATCHED
from epigrad.launch import Launcher
from epigrad.ops import batching, shapes
from epigrad.ops.operator import Gradients, Operator, new_results, only, plain

__all__ = ["OPERATORS"]


@dataclass
class Forward:
    """A call of the activation."""

    input: Tensor
    activation: str | None
    _: KW_ONLY
    backend: str | None = None

    op = "activation"

    def __post_init__(self) -> None:
        self.name = library.core().activation(self.op, self.activation).name

    def kernel(self) -> Tensor:
        return only(library.core().launch(self.op, self.name, plain(self.input), (True,), self.backend))

    def recorded(self) -> Tensor:
        out: Tensor = Activation.apply(DISPATCHED, self.name, self.backend, self.input)
        return out

    def formula(self) -> Tensor:
        return differentiable.activated(self.name, self.input)

    def composed(self) -> Tensor:
        return differentiable.composed(self.name, self.input)

    def fake(self) -> Tensor:
        found = shapes.inferred(self.op, self.name, (self.input,), (True,), lambda: (self.input.shape,))
        return only(new_results(self.input, found))


@dataclass
class Backward(Gradients):
    """A call of its gradient."""

    grad_output: Tensor
    input: Tensor
    activation: str | None
    _: KW_ONLY
    backend: str | None = None

    op = "activation_backward"
    needs = (True, False, False)

    def __post_init__(self) -> None:
        self.kind = library.core().activation(self.op, self.activation).name
        self.tensors = (self.grad_output, self.input)

    def problem(self, core: Launcher) -> ActivationProblem:
        assert self.kind is not None
        return ActivationProblem(core, self.kind, self.backend)

    def returned(self, results: tuple[Tensor | None, ...]) -> Tensor:
        return only(results[:1])

    def symbolic(self) -> shapes.Shapes:
        shapes.same_shape(self.op, "grad_output", self.grad_output.shape, self.input.shape)
        return self.input.shape, None, None


_ARGUMENTS = "Tensor input, str? activation, *, str? backend=None"

OPERATORS = (
    Operator("activation", f"({_ARGUMENTS}) -> Tensor", Forward, batched=batching.of_one_shape("activation", 1)),
    Operator(
        "activation_backward",
        f"(Tensor grad_output, {_ARGUMENTS}) -> Tensor",
        Backward,
        batched=batching.of_one_shape("activation_backward", 2),
    ),
)
