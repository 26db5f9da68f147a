"""The operators of ``value * act(gate)``: on halves of one tensor, and on two tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from epigrad._autograd import formulas
from epigrad._autograd.functions import Elementwise, GatedActivationProblem, GatedProduct, GatedProductProblem
from epigrad._core.launcher import DISPATCHER, Launcher, only
from epigrad.ops import batching, shapes
from epigrad.ops.operator import PARAMETERS, Bound, Gradients, Operator, gated_call


@dataclass
class Activation(Bound):
    """A call of ``value * act(gate)`` with both halves in one tensor."""

    input: Tensor
    kind: str = "swiglu"
    dim: int = -1
    _: KW_ONLY
    parameters: Sequence[float] = ()
    gate: str = "second"
    backend: str | None = None

    op = "gated_activation"

    def __post_init__(self) -> None:
        self.call = gated_call(self.op, self.kind, self.parameters, self.backend, self.dim, self.gate)
        self.tensors = (self.input,)

    def recorded(self) -> Tensor:
        out: Tensor = Elementwise.apply(DISPATCHER, self.call, self.input)
        return out

    def formula(self) -> Tensor:
        halves = formulas.split_gate(self.input, self.dim, self.call.gate)
        return formulas.gated(self.call.gated, *halves)

    def composed(self) -> Tensor:
        value, gate = formulas.split_gate(self.input, self.dim, self.call.gate)
        return formulas.gated_composed(self.call.gated, value, gate)

    def symbolic(self) -> tuple[shapes.Shape]:
        place, sizes = range(self.input.dim())[self.dim], self.input.shape
        return ((*sizes[:place], shapes.half(self.op, "input", sizes[place]), *sizes[place + 1 :]),)


@dataclass
class ActivationBackward(Gradients):
    """A call of its gradient."""

    grad_output: Tensor
    input: Tensor
    kind: str = "swiglu"
    dim: int = -1
    _: KW_ONLY
    parameters: Sequence[float] = ()
    gate: str = "second"
    backend: str | None = None

    needs = (True,)
    returned = staticmethod(only)

    def __post_init__(self) -> None:
        self.call = gated_call("gated_activation", self.kind, self.parameters, self.backend, self.dim, self.gate)
        self.tensors = (self.grad_output, self.input)

    def problem(self, core: Launcher) -> GatedActivationProblem:
        return GatedActivationProblem(core, self.call)

    def symbolic(self) -> shapes.Shapes:
        (halved,) = Activation(self.input, self.kind, self.dim).symbolic()
        shapes.same_shape("gated_activation_backward", "grad_output", self.grad_output.shape, halved)
        return (self.input.shape,)


@dataclass
class Product(Bound):
    """A call of ``value * act(gate)`` with two tensors."""

    value: Tensor
    gate: Tensor
    kind: str = "swiglu"
    _: KW_ONLY
    parameters: Sequence[float] = ()
    backend: str | None = None

    op = "gated_product"

    def __post_init__(self) -> None:
        self.call = gated_call(self.op, self.kind, self.parameters, self.backend)
        self.tensors = (self.value, self.gate)

    def recorded(self) -> Tensor:
        out: Tensor = GatedProduct.apply(DISPATCHER, self.call, *self.tensors)
        return out

    def formula(self) -> Tensor:
        return formulas.gated(self.call.gated, self.value, self.gate)

    def composed(self) -> Tensor:
        return formulas.gated_composed(self.call.gated, self.value, self.gate)

    def symbolic(self) -> shapes.Shapes:
        shapes.same_shape(self.op, "gate", self.gate.shape, self.value.shape)
        return (self.value.shape,)


@dataclass
class ProductBackward(Gradients):
    """A call of its gradients."""

    grad_output: Tensor
    value: Tensor
    gate: Tensor
    kind: str = "swiglu"
    _: KW_ONLY
    parameters: Sequence[float] = ()
    needs: Sequence[bool] = (True, True)
    backend: str | None = None

    op = "gated_product_backward"

    def __post_init__(self) -> None:
        self.call = gated_call("gated_product", self.kind, self.parameters, self.backend)
        self.tensors = (self.grad_output, self.value, self.gate)

    def problem(self, core: Launcher) -> GatedProductProblem:
        return GatedProductProblem(core, self.call)

    def symbolic(self) -> shapes.Shapes:
        shapes.same_shape(self.op, "gate", self.gate.shape, self.value.shape)
        shapes.same_shape(self.op, "grad_output", self.grad_output.shape, self.value.shape)
        return self.value.shape, self.gate.shape


_ACTIVATION = f"Tensor input, str kind='swiglu', int dim=-1, *, {PARAMETERS}, str gate='second', str? backend=None"
_PRODUCT = f"Tensor value, Tensor gate, str kind='swiglu', *, {PARAMETERS}, "

OPERATORS = tuple(
    [
        Operator(name, schema, bind, batched=batching.of_one_shape(name, tensors))
        for name, schema, bind, tensors in (
            ("gated_activation", f"({_ACTIVATION}) -> Tensor", Activation, 1),
            ("gated_activation_backward", f"(Tensor grad_output, {_ACTIVATION}) -> Tensor", ActivationBackward, 2),
            ("gated_product", f"({_PRODUCT}str? backend=None) -> Tensor", Product, 2),
            (
                "gated_product_backward",
                f"(Tensor grad_output, {_PRODUCT}bool[2] needs=[True, True], str? backend=None) -> "
                "(Tensor grad_value, Tensor grad_gate)",
                ProductBackward,
                3,
            ),
        )
    ]
)
