"""The inputs of a lerp case, and its results by the reference and by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support import compositions, oracle
from tests.support.cases import LERP_SHAPES, SCALES, Case, named
from tests.support.oracle import Sized
from tests.support.parity import Wanted

GRADIENTS = ("grad_start", "grad_end", "grad_weight")


@dataclass(frozen=True)
class LerpProblem:
    case: Case
    start: Tensor
    end: Tensor
    weight: Tensor | float
    grad_output: Tensor

    @property
    def tensors(self) -> list[Tensor | None]:
        """start, end and weight; a float weight is no tensor."""
        return [self.start, self.end, self.weight if isinstance(self.weight, Tensor) else None]

    def arguments(self, tensors: Sequence[Tensor | None]) -> list[Tensor | float | None]:
        """The arguments of a call whose tensors are these."""
        start, end, weight = tensors
        return [start, end, self.weight if weight is None else weight]

    def _lerp(self, *tensors: Tensor | None) -> Tensor:
        return torch.lerp(*self.arguments(tensors))

    def wanted(self) -> Wanted:
        """The output and the three gradients; None for that of a float weight."""
        out, gradients = compositions.with_gradients(self._lerp, self.tensors, self.grad_output)
        out64, gradients64 = compositions.in_float64(self._lerp, self.tensors, self.grad_output)
        start, end, weight, grad = (
            Sized.of(x, self.case.dtype) for x in (self.start, self.end, self.weight, self.grad_output)
        )
        grad_start, grad_end, grad_weight = oracle.lerp_gradients(grad, start, end, weight)
        given = grad_weight if isinstance(self.weight, Tensor) else None
        return Wanted(
            (oracle.lerp(start, end, weight), grad_start, grad_end, given), (out, *gradients), (out64, *gradients64)
        )


def lerp_problem(case: Case) -> LerpProblem:
    generator = case.generator
    start_shape, end_shape, weight_shape = named(LERP_SHAPES, case.shape)
    start, end = (
        case.tensor(shape, generator, step, SCALES[case.scale]) for step, shape in enumerate((start_shape, end_shape))
    )
    weight = weight_shape if isinstance(weight_shape, float) else case.tensor(weight_shape, generator, 2)
    grad = case.tensor(torch.lerp(start, end, weight).shape, generator, 4)
    return LerpProblem(case, start, end, weight, grad)
