"""The operators of ``start + weight * (end - start)``, forward and backward.

The weight is a tensor, or the number `factor` where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad import errors
from epigrad._autograd import formulas
from epigrad._autograd.functions import Lerp, LerpProblem
from epigrad._core.call import Call
from epigrad._core.launcher import DISPATCHER, Launcher
from epigrad.ops import batching, shapes
from epigrad.ops.operator import Bound, Gradients, Operator, call


def _call(op: str, weight: Tensor | None, factor: float | None, backend: str | None) -> Call:
    if (weight is None) == (factor is None):
        given = "neither" if weight is None else "both"
        raise errors.InvalidProblemError(f"{op}: weight and factor: {given}, want one of them")
    return Call("lerp", None, () if factor is None else (factor,), backend=backend)


@dataclass
class Forward(Bound):
    """A call of the interpolation."""

    start: Tensor
    end: Tensor
    weight: Tensor | None = None
    _: KW_ONLY
    factor: float | None = None
    backend: str | None = None

    op = "lerp"

    def __post_init__(self) -> None:
        self.call = _call(self.op, self.weight, self.factor, self.backend)
        self.tensors = (self.start, self.end, self.weight)

    def recorded(self) -> Tensor:
        out: Tensor = Lerp.apply(DISPATCHER, self.call, *self.tensors)
        return out

    def formula(self) -> Tensor:
        weight = self.factor if self.weight is None else self.weight
        assert weight is not None
        return formulas.lerp(self.start, self.end, weight)

    def composed(self) -> Tensor:
        weight = self.factor if self.weight is None else self.weight
        assert weight is not None
        return torch.lerp(self.start, self.end, weight)

    def symbolic(self) -> shapes.Shapes:
        return (shapes.broadcast(*[tensor.shape for tensor in self.tensors if tensor is not None]),)


@dataclass
class Backward(Gradients):
    """A call of its gradients; only the weight's gradient needs `start` and `end`."""

    grad_output: Tensor
    start: Tensor | None
    end: Tensor | None
    weight: Tensor | None = None
    _: KW_ONLY
    factor: float | None = None
    needs: Sequence[bool] = (True, True, True)
    backend: str | None = None

    op = "lerp_backward"

    def __post_init__(self) -> None:
        self.call = _call(self.op, self.weight, self.factor, self.backend)
        self.tensors = (self.grad_output, self.start, self.end, self.weight)

    def problem(self, core: Launcher) -> LerpProblem:
        start, end, weight = self.symbolic()
        assert start is not None and end is not None
        return LerpProblem(core, self.call, (start, end, weight))

    def symbolic(self) -> shapes.Shapes:
        whole = self.grad_output.shape
        start, end = (whole if tensor is None else tensor.shape for tensor in (self.start, self.end))
        return start, end, None if self.weight is None else self.weight.shape


def _batched(info: Any, in_dims: batching.InDims, *tensors: Any, **options: Any) -> Any:
    """The rule of `torch.vmap`. Slices broadcast, so each is padded to the longest rank."""
    return call("lerp", *batching.aligned(tensors, batching.dims_of(in_dims, len(tensors))), **options), 0


_OPTIONS = "float? factor=None, "

OPERATORS = (
    Operator(
        "lerp",
        f"(Tensor start, Tensor end, Tensor? weight=None, *, {_OPTIONS}str? backend=None) -> Tensor",
        bind=Forward,
        batched=_batched,
    ),
    Operator(
        "lerp_backward",
        f"(Tensor grad_output, Tensor? start, Tensor? end, Tensor? weight=None, *, {_OPTIONS}"
        "bool[3] needs=[True, True, True], str? backend=None) -> "
        "(Tensor grad_start, Tensor grad_end, Tensor grad_weight)",
        bind=Backward,
    ),
)
