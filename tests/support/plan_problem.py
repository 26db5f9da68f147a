"""A small problem for each class of plan, with its tensors and what the stateless functions make of
them."""

from __future__ import annotations

import math
from typing import Any

import torch
from epigrad import backward, forward, plan
from torch import Tensor

_ALIGNMENT = 256  # bytes: what a plan asks of its workspace

CLASSES = (
    plan.GemmEpilogue,
    plan.GemmEpilogueBackward,
    plan.GatedActivation,
    plan.GatedActivationBackward,
    plan.Lerp,
    plan.LerpBackward,
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def arguments(cls: Any) -> dict[str, Any]:
    """A small problem for a class."""
    if cls in (plan.GemmEpilogue, plan.GemmEpilogueBackward):
        return {"m": 3, "n": 5, "k": 4, "activation": "gelu"}
    if cls in (plan.GatedActivation, plan.GatedActivationBackward):
        return {"input_shape": (3, 8), "kind": "swiglu"}
    return {"shape": (3, 4)}


def tensors_for(
    cls: Any, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs and NaN-filled outputs for `arguments`."""
    generator = torch.Generator().manual_seed(7)

    def given(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(device)

    def empty(*shape: int) -> Tensor:
        return torch.full(shape, math.nan, dtype=dtype, device=device)

    if cls is plan.GemmEpilogue:
        return {"a": given(3, 4), "b": given(4, 5), "bias": given(5)}, {"out": empty(3, 5)}
    if cls is plan.GemmEpilogueBackward:
        inputs = {"grad_output": given(3, 5), "a": given(3, 4), "b": given(4, 5), "bias": given(5)}
        return inputs, {"grad_a": empty(3, 4), "grad_b": empty(4, 5), "grad_bias": empty(5)}
    if cls is plan.GatedActivation:
        return {"input": given(3, 8)}, {"out": empty(3, 4)}
    if cls is plan.GatedActivationBackward:
        return {"grad_output": given(3, 4), "input": given(3, 8)}, {"grad_input": empty(3, 8)}
    ends = {"start": given(3, 4), "end": given(3, 4), "weight": given(3, 4)}
    if cls is plan.Lerp:
        return ends, {"out": empty(3, 4)}
    outputs = {"grad_start": empty(3, 4), "grad_end": empty(3, 4), "grad_weight": empty(3, 4)}
    return {"grad_output": given(3, 4), **ends}, outputs


def expected(cls: Any, inputs: dict[str, Tensor]) -> tuple[Tensor | None, ...]:
    """The same by the stateless functions."""
    given = list(inputs.values())
    if cls is plan.GemmEpilogue:
        return (forward.matmul_bias_activation(*given, activation="gelu"),)
    if cls is plan.GemmEpilogueBackward:
        return backward.matmul_bias_activation_backward(*given, activation="gelu")
    if cls is plan.GatedActivation:
        return (forward.gated_activation(*given),)
    if cls is plan.GatedActivationBackward:
        return (backward.gated_activation_backward(*given),)
    if cls is plan.Lerp:
        return (forward.lerp(*given),)
    return backward.lerp_backward(*given)


def workspace_of(made: Any, device: str = "cpu") -> Tensor | None:
    return aligned_workspace(made.workspace_size, torch.device(device))


def run(made: Any, **tensors: Any) -> None:
    device = next((str(x.device) for x in tensors.values() if isinstance(x, Tensor) and not x.is_meta), "cpu")
    made.run(**tensors, workspace=workspace_of(made, device))


def aligned_workspace(size: int, device: torch.device) -> Tensor | None:
    """A workspace of `size` bytes that starts at a multiple of 256, or None for no bytes."""
    if size == 0:
        return None
    buffer = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + size]
