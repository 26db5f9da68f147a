"""One call of each function of epigrad, for the tests of how it lives with the rest of PyTorch.

Names, and how many there are, come from `torch.ops.epigrad`'s own table: an operator without a call
fails its tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import epigrad
import pytest
import torch
from epigrad import ops
from torch import Tensor
from torch.nn import functional

from tests.support import compositions
from tests.support.tiers import in_turns, thorough


@dataclass(frozen=True)
class Call:
    """A function of tensors, the shapes that it is called with, and the same in PyTorch's own
    operations."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    eager: Callable[..., Tensor]

    def tensors(self, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
        """Leaves that ask for gradients."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes]
        return [tensor.to(device=device, dtype=dtype).requires_grad_() for tensor in drawn]

    @property
    def rows(self) -> int:
        """The first size of the first tensor, which may change from call to call."""
        return self.shapes[0][0]


def _swiglu(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * functional.silu(gate)


def _offsets(x: Tensor) -> Tensor:
    """Where three groups of rows end: one has none, and a row is nobody's."""
    ends = 2 + torch.arange(3, device=x.device) // 2 * 3
    return ends.clamp(max=x.shape[0])


def _index(x: Tensor) -> Tensor:
    """Two of three experts for each row, or one and none."""
    return torch.arange(2 * x.shape[0], device=x.device).reshape(-1, 2) * 3 % 4


FUNCTIONS: dict[str, Call] = {
    "matmul_bias_activation": Call(
        partial(epigrad.matmul_bias_activation, activation="silu"),
        ((6, 4), (4, 5), (5,)),
        lambda a, b, bias: functional.silu(a @ b + bias),
    ),
    "linear": Call(
        partial(epigrad.linear, activation="gelu"),
        ((6, 4), (5, 4), (5,)),
        lambda x, w, b: functional.gelu(functional.linear(x, w, b)),
    ),
    "activation": Call(partial(epigrad.activation, activation="gelu"), ((6, 4),), functional.gelu),
    "gated_activation": Call(epigrad.gated_activation, ((6, 8),), _swiglu),
    "gated_product": Call(epigrad.gated_product, ((6, 4), (6, 4)), lambda v, g: v * functional.silu(g)),
    "lerp": Call(epigrad.lerp, ((6, 4), (6, 4), (4,)), torch.lerp),
    "prelu": Call(epigrad.prelu, ((6, 4), (4,)), functional.prelu),
    "xielu": Call(epigrad.xielu, ((6, 4), (1,), (1,)), compositions.xielu),
    "gated_linear": Call(
        epigrad.gated_linear,
        ((6, 4), (5, 4), (5, 4), (5,), (5,)),
        lambda x, wv, wg, bv, bg: functional.linear(x, wv, bv) * functional.silu(functional.linear(x, wg, bg)),
    ),
    "mlp": Call(
        epigrad.mlp,
        ((6, 4), (8, 4), (8,), (4, 8), (4,)),
        lambda x, w1, b1, w2, b2: functional.linear(
            functional.gelu(functional.linear(x, w1, b1), approximate="tanh"), w2, b2
        ),
    ),
    "gated_mlp": Call(
        epigrad.gated_mlp,
        ((6, 4), (8, 4), (8,), (4, 4), (4,)),
        lambda x, w1, b1, w2, b2: functional.linear(_swiglu(functional.linear(x, w1, b1)), w2, b2),
    ),
    "grouped_linear": Call(
        lambda x, w, b: epigrad.grouped_linear(x, w, b, "gelu", offsets=_offsets(x)),
        ((6, 4), (3, 5, 4), (3, 5)),
        lambda x, w, b: compositions.grouped_linear(x, w, b, _offsets(x), functional.gelu),
    ),
    "experts": Call(
        lambda x, s, w1, b1, w2, b2: epigrad.experts(x, _index(x), s, w1, b1, w2, b2),
        ((6, 4), (6, 2), (3, 8, 4), (3, 8), (3, 4, 4), (3, 4)),
        lambda x, s, w1, b1, w2, b2: compositions.experts(x, _index(x), s, w1, b1, w2, b2, _swiglu),
    ),
}

NAMES = tuple(operator.name for operator in ops.OPERATORS if not operator.name.endswith("_backward"))

each_function = pytest.mark.parametrize("op", NAMES)
"""Runs a test for each function of the table."""
each_in_turns = pytest.mark.parametrize("op", in_turns(NAMES, 4, thorough))
"""The same; `make test` takes a quarter of them, another one with each commit."""
