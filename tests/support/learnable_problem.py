"""The inputs of a case of prelu or xielu, and its results by the reference and by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from tests.support import compositions, oracle
from tests.support.cases import LEARNABLE_SHAPES, SCALES, Case, named
from tests.support.oracle import Sized
from tests.support.parity import Wanted

BETAS = {"xielu": 0.5, "xielu(beta=-0.25)": -0.25}
KINDS = ("prelu", *BETAS)
GRADIENTS = {"prelu": ("grad_input", "grad_weight"), "xielu": ("grad_input", "grad_alpha_p", "grad_alpha_n")}


@dataclass(frozen=True)
class LearnableProblem:
    case: Case
    input: Tensor
    parameters: list[Tensor]
    grad_output: Tensor

    @property
    def op(self) -> str:
        """The operation's name."""
        return str(self.case.kind).partition("(")[0]

    @property
    def options(self) -> dict[str, Any]:
        """beta, where there is one."""
        return {"beta": BETAS[str(self.case.kind)]} if self.op == "xielu" else {}

    @property
    def tensors(self) -> list[Tensor]:
        """The input and the parameters."""
        return [self.input, *self.parameters]

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of the gradients."""
        return GRADIENTS[self.op]

    def wanted(self) -> Wanted:
        """The output and the gradients."""
        eager = functional.prelu if self.op == "prelu" else partial(compositions.xielu, **self.options)
        out, gradients = compositions.with_gradients(eager, self.tensors, self.grad_output)
        out64, gradients64 = compositions.in_float64(eager, self.tensors, self.grad_output)
        return Wanted(self._reference(), (out, *gradients), (out64, *gradients64))

    def _reference(self) -> tuple[Sized, ...]:
        dtype = self.case.dtype
        x, grad = Sized.of(self.input, dtype), Sized.of(self.grad_output, dtype)
        rank = self.input.dim()
        by_channels = (-1, *(1,) * (rank - 2)) if rank > 1 else ()
        under = [Sized.of(parameter, dtype).reshape(by_channels) for parameter in self.parameters]
        numbers = [Sized.of(value, dtype) for value in self.options.values()]
        out = getattr(oracle, self.op)(x, *under, *numbers)
        first, *unsummed = getattr(oracle, f"{self.op}_gradients")(grad, x, *under, *numbers)
        summed = [
            gradient.sum_to(wide.value.shape).reshape(given.shape)
            for gradient, wide, given in zip(unsummed, under, self.parameters, strict=True)
        ]
        return (out, first, *summed)


def learnable_problem(case: Case) -> LearnableProblem:
    generator = case.generator
    shape, parameter_shape = named(LEARNABLE_SHAPES, case.shape)
    input = case.tensor(shape, generator, 0, SCALES[case.scale])
    small: tuple[int, ...] = (1,) if parameter_shape else ()
    shapes = [parameter_shape] if case.kind == "prelu" else [small, (1,)]
    parameters = [case.tensor(shape, generator, 1 + step) for step, shape in enumerate(shapes)]
    return LearnableProblem(case, input, parameters, case.tensor(shape, generator, 4))
