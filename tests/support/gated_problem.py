"""The inputs of a gated case, one tensor or two, and its results by the reference and by
PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn import functional

from tests.support import compositions, oracle
from tests.support.cases import GATED_SHAPES, SCALES, Case, named
from tests.support.oracle import Sized
from tests.support.parity import Wanted


@dataclass(frozen=True)
class GatedProblem:
    case: Case
    input: Tensor
    grad_output: Tensor

    @property
    def dim(self) -> int:
        dim: int = named(GATED_SHAPES, self.case.shape)[1]
        return dim

    @property
    def halves(self) -> tuple[Tensor, Tensor]:
        """Value and gate, as views of the input."""
        return compositions.halves(self.input, self.dim, self.case.gate)

    @property
    def _eager(self) -> partial[Tensor]:
        if self.case.kind == "glu" and self.case.gate == "second":
            return partial(functional.glu, dim=self.dim)
        return self._composition(self.case.gated.eager)

    def _composition(self, act: compositions.Product) -> partial[Tensor]:
        return partial(compositions.gated_activation, dim=self.dim, gate=self.case.gate, act=act)

    def wanted(self) -> Wanted:
        """The output and the input's gradient, for an input that holds both halves."""
        out, gradients = compositions.with_gradients(self._eager, [self.input], self.grad_output)
        out64, gradients64 = compositions.in_float64(
            self._composition(self.case.gated.value), [self.input], self.grad_output
        )
        product, *grads = self._reference()
        joined = oracle.joined(*grads, self.dim, self.case.gate)
        return Wanted((product, joined), (out, *gradients), (out64, *gradients64))

    def wanted_of_halves(self) -> Wanted:
        """The output, the value's gradient and the gate's, for two tensors."""
        out, gradients = compositions.with_gradients(self.case.gated.eager, self.halves, self.grad_output)
        out64, gradients64 = compositions.in_float64(self.case.gated.value, self.halves, self.grad_output)
        return Wanted(self._reference(), (out, *gradients), (out64, *gradients64))

    def _reference(self) -> tuple[Sized, Sized, Sized]:
        value, gate, grad = (Sized.of(x, self.case.dtype) for x in (*self.halves, self.grad_output))
        kind = self.case.gated
        return (oracle.gated_product(value, gate, kind), *oracle.gated_gradients(grad, value, gate, kind))


def gated_problem(case: Case) -> GatedProblem:
    generator = case.generator
    shape, dim = named(GATED_SHAPES, case.shape)
    input = case.tensor(shape, generator, 0, SCALES[case.scale])
    out_shape = list(shape)
    out_shape[dim] //= 2
    return GatedProblem(case, input, case.tensor(out_shape, generator, 3))
