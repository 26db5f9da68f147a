"""Calls by plans (epigrad.plan), on memory of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from epigrad._check.elementwise import LERP_WEIGHT
from epigrad._check.parts import FROM_OUTPUT
from epigrad._check.problem import Problem
from epigrad._core import loader, tables
from epigrad.plan import Plan

_ALIGNMENT = 256

Make = Callable[[int, tuple[int, ...]], Tensor]
"""An output of the operand at this place, 0 for the result itself."""


def workspace_of(size: int, device: torch.device, short: int = 0) -> Tensor | None:
    """Aligned memory of so many bytes, `short` less for a test of that."""
    if not size:
        return None
    buffer = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + size - short]


def call(problem: Problem, operands: dict[str, Any], grad: Tensor, make: Make) -> tuple[Tensor | None, ...]:
    """Output and gradients, written into what `make` gives; operands are by name."""
    options = problem.operation.options(problem)
    out = make(0, problem.out_shape)
    wanted = {
        name: make(place, shape) if shape is not None and asked else None
        for place, ((name, shape), asked) in enumerate(zip(problem.shapes.items(), problem.asked(), strict=True), 1)
    }
    forward = Plan.select(problem.op, **operands, out=out, **options)
    tensors = {name: None if isinstance(value, float) else value for name, value in operands.items()}
    kept: dict[str, Tensor] = {}
    if problem.save == "preactivation" and (shape := _preactivation(forward, tensors)) is not None:
        kept["preactivation"] = out.new_full(shape, torch.nan)
    _run(forward, grad.device, **tensors, out=out, **kept)
    names = tables.OPS[f"{problem.op}_backward"].tensors
    if problem.save == "auto" and "output" in names and problem.kind.partition("(")[0] in FROM_OUTPUT:
        kept["output"] = out
    if any(tensor is not None for tensor in wanted.values()):
        into = {f"grad_{name}": tensor for name, tensor in wanted.items()}
        given: dict[str, Any] = {"grad_output": grad, **kept, **into}
        backward = Plan.select(f"{problem.op}_backward", **operands, **given, **options)
        added = {"accumulate": True} if problem.grads.endswith("added") and problem.operation.products else {}
        _run(backward, grad.device, **tensors, **given, **added)
    return (out, *wanted.values())


def plans(problem: Problem, device: str) -> dict[str, Plan]:
    """What would run for a problem, forward and backward to everything, by the operations' names;
    the tensors are contiguous.

    Raises:
        EpigradError: what a run would raise.
    """
    options = problem.operation.options(problem)
    given: dict[str, Any] = {
        name: torch.empty(shape, dtype=problem.dtype_of(name), device="meta")
        for name, shape in problem.shapes.items()
        if shape is not None
    }
    if problem.operation.integers is not None:
        name, integers = problem.operation.integers(problem)
        given[name] = integers.to("meta")
    if problem.op == "lerp":
        given.setdefault("weight", LERP_WEIGHT)
    forward = Plan.select(problem.op, **given, **options, device=device)
    backward = {"grad_output": problem.out_shape, "preactivation": _preactivation(forward, given)}
    backward = {name: value for name, value in backward.items() if value is not None}
    op, dtype = f"{problem.op}_backward", problem.torch_dtype
    return {
        problem.op: forward,
        op: Plan.select(op, **given, **backward, **options, dtype=dtype, device=device),
    }


def _preactivation(forward: Plan, tensors: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape of a forward plan's preactivation; None where the operation has none."""
    row = tables.OPS[forward.sku.op]
    if "preactivation" not in row.results:
        return None
    (_, shape), _ = loader.core().infer(forward._problem.call, tuple(map(tensors.get, row.tensors)), (False, True))
    return shape


def _run(made: Plan, device: torch.device, **tensors: Any) -> None:
    made.run(workspace=workspace_of(made.workspace_size, device), **tensors)
