"""The inputs of a GEMM case, and its results by the reference and by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tests.support import compositions, oracle
from tests.support.cases import GEMM_SHAPES, LINEAR_SHAPES, Case, named
from tests.support.oracle import Sized
from tests.support.parity import Wanted

GRADIENTS = {
    "matmul_bias_activation": ("grad_a", "grad_b", "grad_bias"),
    "linear": ("grad_input", "grad_weight", "grad_bias"),
}


@dataclass(frozen=True)
class GemmProblem:
    """Operands in the operation's own order and shapes."""

    case: Case
    operands: tuple[Tensor, Tensor, Tensor | None]
    grad_output: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        return GRADIENTS[self.case.op]

    @property
    def composition(self) -> Callable[..., Tensor]:
        """The operation made of PyTorch's, waiting for `act`."""
        composition: Callable[..., Tensor] = getattr(compositions, self.case.op)
        return composition

    def sized(self, tensor: Tensor) -> Sized:
        return Sized.of(tensor, self.case.dtype)

    @property
    def sized_operands(self) -> tuple[Sized, Sized, Sized | None]:
        """a, b and bias of the reference's formulas: a weight [N, K] turned into b [K, N]."""
        a, b, bias = self.operands
        b = b.mT if self.case.op == "linear" else b
        return self.sized(a), self.sized(b), None if bias is None else self.sized(bias)

    def gradients(self, preactivation: Sized | None = None) -> tuple[Sized | None, ...]:
        """The reference gradients; a preactivation that is given is taken as exact."""
        a, b, bias = self.sized_operands
        if preactivation is not None:
            preactivation = preactivation.reshape(oracle.preactivation(a, b, bias).value.shape)
        grad_a, grad_b, grad_bias = oracle.gemm_gradients(
            self.sized(self.grad_output), a, b, bias, self.case.row, preactivation
        )
        return grad_a, grad_b.transposed if self.case.op == "linear" else grad_b, grad_bias

    def wanted(self) -> Wanted:
        """The output and the gradients."""
        out, gradients = compositions.with_gradients(
            partial(self.composition, act=self.case.row.eager), self.operands, self.grad_output
        )
        out64, gradients64 = compositions.in_float64(
            partial(self.composition, act=self.case.row.value), self.operands, self.grad_output
        )
        reference = oracle.gemm(*self.sized_operands, self.case.row)
        return Wanted((reference, *self.gradients()), (out, *gradients), (out64, *gradients64))

    def preactivation(self) -> Tensor:
        """a @ b + bias as PyTorch rounds it."""
        return self.composition(*self.operands, act=lambda x: x)

    def wanted_from(self, preactivation: Tensor) -> Wanted:
        """The gradients alone, for a preactivation that stands for itself, not for what rounding
        made of another."""
        _, (grad_pre,) = compositions.with_gradients(self.case.row.eager, [preactivation], self.grad_output)
        assert grad_pre is not None
        _, gradients = compositions.with_gradients(partial(self.composition, act=lambda x: x), self.operands, grad_pre)
        return Wanted(self.gradients(self.sized(preactivation)), gradients)


def _away_from_kinks(problem: GemmProblem) -> GemmProblem:
    """Stops the gradient where rounding decides on which side of a kink a preactivation falls:
    either is right."""
    kinks = problem.case.row.kinks
    if kinks:
        pre = oracle.preactivation(*problem.sized_operands)
        near = (
            np.min([np.abs(pre.value - kink) for kink in kinks], axis=0)
            <= 4 * torch.finfo(problem.case.dtype).eps * pre.size
        )
        grad = problem.grad_output
        grad.masked_fill_(torch.from_numpy(near).reshape(grad.shape).to(grad.device), 0.0)
    return problem


def gemm_problem(case: Case) -> GemmProblem:
    """A case's operands: the preactivation has about the standard deviation that the case's scale
    says."""
    generator = case.generator
    a_shape, b_shape = named(LINEAR_SHAPES if case.op == "linear" else GEMM_SHAPES, case.shape)
    spread = case.scale_of_preactivation / max(a_shape[-1], 1) ** 0.5
    a = case.tensor(a_shape, generator)
    bias = case.tensor(b_shape[-1:] if len(b_shape) > 1 else (), generator, 2) if case.bias else None
    out_shape = torch.matmul(torch.empty(a_shape, device="meta"), torch.empty(b_shape, device="meta")).shape
    b = case.tensor(b_shape[::-1] if case.op == "linear" else b_shape, generator, 3, spread)
    # A gradient is masked near kinks, which needs memory of its own for every element.
    grad_layout = 5 if not case.row.kinks or "expanded" not in case.layout_after(5) else -5
    grad = case.tensor(out_shape, generator, grad_layout)
    return _away_from_kinks(GemmProblem(case, (a, b, bias), grad))
