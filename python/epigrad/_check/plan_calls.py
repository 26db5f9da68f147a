"""Calls by plans (epigrad.plan), on memory of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from epigrad._check.problem import Problem
from epigrad.plan import Plan

_ALIGNMENT = 256


def workspace_of(size: int, device: torch.device, short: int = 0) -> Tensor | None:
    """Aligned memory of `size` bytes, less `short` to test a workspace that is too small."""
    if not size:
        return None
    buffer = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + size - short]


def run(made: Plan, device: torch.device, tensors: Mapping[str, Any], accumulate: bool = False, short: int = 0) -> None:
    """Run a plan on tensors by name, with a workspace that has some bytes too few."""
    given = {name: None if isinstance(each, float) else each for name, each in tensors.items()}
    made.run(workspace=workspace_of(made.workspace_size, device, short), accumulate=accumulate, **given)


def call(op: str, tensors: Mapping[str, Any], outputs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    selected = {name: value for name, value in options.items() if name != "accumulate"}
    made = Plan.select(op, **tensors, **outputs, **selected)
    device = next(tensor.device for tensor in tensors.values() if isinstance(tensor, Tensor))
    run(made, device, {**tensors, **outputs}, options.get("accumulate", False))


def plans(problem: Problem, device: str) -> dict[str, Plan]:
    """What would run for a problem, forward and backward to everything, by the operations' names;
    the tensors are contiguous.

    Raises:
        EpigradError: what a run would raise.
    """
    row, every = problem.row, problem.every_shape
    given: dict[str, Any] = {
        name: torch.empty(shape, dtype=problem.dtype_of(name), device="meta")
        for name, shape in problem.shapes.items()
        if shape is not None
    }
    given |= {name: integers.to("meta") for name, integers in problem.integers().items()} | problem.numbers
    of_backward = {"grad_output": problem.out_shape} | {name: every[name] for name in row.results[1:]}
    options, backward = problem.options, f"{problem.op}_backward"
    return {
        problem.op: Plan.select(problem.op, **given, **options, device=device),
        backward: Plan.select(backward, **given, **of_backward, **options, dtype=problem.torch_dtype, device=device),
    }
