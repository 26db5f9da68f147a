"""The operators ``torch.ops.epigrad.*``: what PyTorch sees of epigrad where it looks at operations.

The functions of `epigrad` call them while they are compiled, exported, transformed by `torch.func`, profiled, recorded
by a dispatch mode or given tensor subclasses; a plain call does not pass through here. Each operator of a function has
the function's arguments; the products and the two-layer blocks also return the preactivation, which has no elements
where `save` keeps none. ``backend=None`` is the backend of the tensors' device.

`OPERATORS` is the one table: schemas, kernels for tensors without data, gradients, rules of `torch.vmap` and of
autocast are rows and methods behind it.
"""

from __future__ import annotations

from epigrad.ops import feedforward, gated, gemm, lerp
from epigrad.ops.operator import Operator, call, register

__all__ = ["OPERATORS", "Operator", "call"]

OPERATORS: tuple[Operator, ...] = (
    *gemm.OPERATORS,
    *gated.OPERATORS,
    *lerp.OPERATORS,
    *feedforward.OPERATORS,
)

_LIBRARY = register(OPERATORS)
