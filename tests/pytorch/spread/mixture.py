"""A mixture whose experts are spread over processes, and the same in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import epigrad
import torch
import torch.distributed as dist
from epigrad.parallel import experts
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Errors relative to the largest number of a tensor: of sums in another order, and in half types of
the parts of ranks, which are rounded."""
LOCAL, FEATURES, HIDDEN = 3, 24, 8


@dataclass
class Mixture:
    """All tokens and all experts, the same in every process, and the parts that are this one's."""

    tokens: Sequence[int]
    kind: str | epigrad.Gated = "swiglu"
    gate: str = "second"
    dtype: torch.dtype = torch.float64
    each: int = 2
    bias: bool = True
    scale_dtype: torch.dtype | None = None
    owner: int | None = None
    device: str = "cpu"
    group: list[Tensor | None] = field(init=False)
    index: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        count = LOCAL * len(self.tokens)
        rows = HIDDEN * (1 if self.kind in ("relu2", "none") else 2)

        def normal(*sizes: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(self.device, dtype).mul_(0.5)

        total = sum(self.tokens)
        bias_in, bias_out = (normal(count, rows), normal(count, FEATURES)) if self.bias else (None, None)
        scale = normal(total, self.each, dtype=self.scale_dtype or self.dtype)
        self.group = [normal(total, FEATURES), scale]
        self.group += [normal(count, rows, FEATURES), bias_in, normal(count, FEATURES, HIDDEN), bias_out]
        low, high = (-2, count + 2) if self.owner is None else (self.owner * LOCAL, (self.owner + 1) * LOCAL)
        self.index = torch.randint(low, high, (total, self.each), generator=generator).to(self.device)
        if self.owner is None and total:
            self.index[0, 0] = 1 << 40
        self.grad = normal(total, FEATURES)

    @property
    def mine(self) -> slice:
        first = sum(self.tokens[: dist.get_rank()])
        return slice(first, first + self.tokens[dist.get_rank()])

    def part(self, place: int, tensor: Tensor | None) -> Tensor | None:
        """This process's part of an operand or of its gradient."""
        first = LOCAL * dist.get_rank()
        return tensor if tensor is None else tensor[self.mine if place < 2 else slice(first, first + LOCAL)]

    def leaves(self, tensors: Sequence[Tensor | None]) -> list[Any]:
        return [None if t is None else t.clone().requires_grad_() for t in tensors]

    def own(self) -> list[Any]:
        """This process's operands, which require gradients."""
        return self.leaves([self.part(place, tensor) for place, tensor in enumerate(self.group)])

    def call(self, operands: Sequence[Any], **options: Any) -> Tensor:
        x, scale, *weights = operands
        return experts(x, self.index[self.mine], scale, *weights, self.kind, gate=self.gate, **options)

    def run(self, operands: Sequence[Any] | None = None, **options: Any) -> list[Tensor]:
        """The output and the gradients of this process."""
        operands = self.own() if operands is None else operands
        out = self.call(operands, **options)
        given = [t for t in operands if t is not None]
        return [out, *torch.autograd.grad(out, given, self.grad[self.mine])]

    def alone(self) -> list[Tensor]:
        """The same parts of what one process computes."""
        x, scale, *weights = operands = self.leaves(self.group)
        out = epigrad.experts(x, self.index, scale, *weights, self.kind, gate=self.gate)
        given = [t for t in operands if t is not None]
        grads = iter(torch.autograd.grad(out, given, self.grad))
        parts = [self.part(place, None if t is None else next(grads)) for place, t in enumerate(operands)]
        return [out[self.mine], *[part for part in parts if part is not None]]


def assert_near(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for place, (one, other) in enumerate(zip(got, want, strict=True)):
        assert one.shape == other.shape and one.dtype == other.dtype, place
        largest = float(other.double().abs().max()) if other.numel() else 0.0
        tolerance = TOLERANCES[one.dtype] * max(largest, 1e-3)
        difference = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
        assert difference <= tolerance, f"{place}: {difference}, want at most {tolerance}"


def assert_equal(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for place, (one, other) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(one, other), place


def uneven(world: int) -> list[int]:
    return [23, 7, 40, 11][:world]
