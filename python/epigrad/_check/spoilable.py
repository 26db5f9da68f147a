"""Calls whose arguments may be changed before they run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import epigrad
from epigrad import backward, forward
from epigrad._check import c_interface, plan_calls
from epigrad._check.calls import ONE_GRADIENT, Inputs
from epigrad._check.elementwise import LERP_WEIGHT
from epigrad._check.problem import Problem
from epigrad._core import tables
from epigrad.plan import Plan


@dataclass
class Call:
    """A call whose arguments may be changed before it runs.

    Attributes:
        problem: what is called.
        way: a function with autograd, one of epigrad.forward or epigrad.backward, the C interface,
            or a plan.
        is_backward: whether the gradients are computed.
        backend: what computes.
        tensors: the operands by name, and beside them offsets, index and lerp's number.
        described: the same and the outputs, as a plan is selected for them.
        options: the other arguments.
        outputs: what is written, by name.
        fields: of the C interface's struct.
        short: bytes that the workspace has too few.
        rng: chooses.
    """

    problem: Problem
    way: str
    is_backward: bool
    backend: str
    tensors: dict[str, Any]
    described: dict[str, Any]
    options: dict[str, Any]
    outputs: dict[str, Tensor]
    rng: random.Random
    fields: dict[str, Any] = field(default_factory=dict)
    short: int = 0

    @classmethod
    def of(cls, problem: Problem, backend: str, device: str) -> Call:
        """A call that nothing is wrong with, as the problem's entry says; backward or forward by
        its seed."""
        rng = random.Random(problem.seed)
        inputs = Inputs.of(problem, device)
        is_backward = problem.entry in ("stateless", "c", "plan") and rng.random() < 0.5
        stateless = "backward" if is_backward else "forward"
        way = {"stateless": stateless, "c": "c", "plan": "plan"}.get(problem.entry, "autograd")
        tensors: dict[str, Any] = {"grad_output": inputs.grad} if is_backward else {}
        for name, tensor in inputs.given.items():
            tensors[name] = LERP_WEIGHT if problem.op == "lerp" and tensor is None else tensor
            if name == "input" and "index" in inputs.integers:
                tensors["index"] = inputs.integers["index"]
        if "offsets" in inputs.integers:
            tensors["offsets"] = inputs.integers["offsets"]
        outputs = {"out": torch.full(problem.out_shape, torch.nan, dtype=problem.torch_dtype, device=device)}
        if is_backward:
            outputs = {
                f"grad_{name}": torch.full(shape, torch.nan, dtype=problem.dtype_of_gradient(name), device=device)
                for name, shape in problem.shapes.items()
                if shape is not None
            }
        options = problem.operation.options(problem)
        outputs = outputs if way != "autograd" else {}
        return cls(problem, way, is_backward, backend, tensors, {**tensors, **outputs}, options, outputs, rng)

    @property
    def floats(self) -> list[str]:
        """The names of operands with numbers."""
        return [n for n, t in self.tensors.items() if isinstance(t, Tensor) and t.is_floating_point()]

    def run(self) -> None:
        """Compute, or fail."""
        op, outputs = self.problem.op, self.outputs
        match self.way:
            case "autograd":
                getattr(epigrad, op)(**self.tensors, **self.options)
            case "forward":
                getattr(forward, op)(**self.tensors, **self.options, out=outputs["out"])
            case "backward":
                into = tuple([outputs.get(f"grad_{name}") for name in self.problem.shapes])
                out = into[0] if op in ONE_GRADIENT else into
                getattr(backward, f"{op}_backward")(**self.tensors, **self.options, out=out)
            case "c":
                self.prepared().run(self.short)
            case _:
                self._plan()

    def prepared(self) -> c_interface.Prepared:
        """A call of the C interface."""
        op = f"{self.problem.op}_backward" if self.is_backward else self.problem.op
        row = tables.OPS[op]
        number = next((each for each in self.tensors.values() if isinstance(each, float)), None)
        given = [None if isinstance(each, float) else each for each in map(self.tensors.get, row.tensors)]
        wanted = list(map(self.outputs.get, row.results))
        prepared = c_interface.Prepared(self.problem, op, given, wanted, number)
        for name, value in {**self.options, **self.fields}.items():
            prepared.change(name, value)
        return prepared

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda" if self.backend == "cuda" else "cpu")

    def plan(self) -> Any:
        """The plan of this call."""
        op = f"{self.problem.op}_backward" if self.is_backward else self.problem.op
        return Plan.select(op, **self.described, **self.options)

    def _plan(self) -> None:
        made = self.plan()
        tensors = {**self.tensors, **self.outputs}
        tensors = {name: None if isinstance(t, float) else t for name, t in tensors.items()}
        workspace = plan_calls.workspace_of(made.workspace_size, self._device, self.short)
        made.run(workspace=workspace, **tensors)
