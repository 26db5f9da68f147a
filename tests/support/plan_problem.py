"""A small problem for each class of plan, with its tensors and what the stateless functions make of
them."""

from __future__ import annotations

import math
from typing import Any

import torch
from epigrad import backward, forward, plan
from epigrad._check import plan_calls
from epigrad._check.calls import Inputs
from epigrad._check.problem import Problem
from epigrad._core import tables
from torch import Tensor

CLASSES = (
    plan.GemmEpilogue,
    plan.GemmEpilogueBackward,
    plan.GatedActivation,
    plan.GatedActivationBackward,
    plan.Lerp,
    plan.LerpBackward,
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "matmul_bias_activation": ("kind=gelu sizes=0x1x3x5x4", {"m": 3, "n": 5, "k": 4, "activation": "gelu"}),
    "gated_activation": ("kind=swiglu sizes=2x3x4x1", {"input_shape": (3, 8), "kind": "swiglu"}),
    "lerp": ("sizes=3x4x0", {"shape": (3, 4)}),
}
"""Problems of `python -m epigrad check`, and the arguments of `select` for them."""


def arguments(cls: Any) -> dict[str, Any]:
    """A small problem for a class."""
    return _PROBLEMS[tables.OPS[cls._op].forward][1]


def _problem(cls: Any, dtype: torch.dtype) -> Problem:
    op = tables.OPS[cls._op].forward
    return Problem.read(f"{op} {_PROBLEMS[op][0]} seed=7 dtype={str(dtype).removeprefix('torch.')}")


def tensors_for(
    cls: Any, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs and NaN-filled outputs for `arguments`."""
    problem, row = _problem(cls, dtype), tables.OPS[cls._op]
    drawn = Inputs.of(problem, device)
    inputs = {**({"grad_output": drawn.grad} if row.is_backward else {}), **drawn.operands(problem.op)}
    gradients = {f"grad_{name}": shape or () for name, shape in problem.shapes.items()}
    shapes = gradients if row.is_backward else {"out": problem.out_shape}
    return inputs, {name: torch.full(shape, math.nan, dtype=dtype, device=device) for name, shape in shapes.items()}


def expected(cls: Any, inputs: dict[str, Tensor]) -> tuple[Tensor | None, ...]:
    """The same by the stateless functions."""
    options = _problem(cls, torch.float32).options
    function = getattr(backward if tables.OPS[cls._op].is_backward else forward, cls._op)
    found = function(**inputs, **options)
    return found if isinstance(found, tuple) else (found,)


def workspace_of(made: Any, device: str = "cpu") -> Tensor | None:
    return aligned_workspace(made.workspace_size, torch.device(device))


def run(made: Any, **tensors: Any) -> None:
    device = next((x.device for x in tensors.values() if isinstance(x, Tensor) and not x.is_meta), torch.device("cpu"))
    made.run(**tensors, workspace=aligned_workspace(made.workspace_size, device))


aligned_workspace = plan_calls.workspace_of
"""A workspace of so many bytes that starts at a multiple of 256, or None for no bytes."""
