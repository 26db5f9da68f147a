"""Calls whose arguments may be changed before they run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import epigrad
from epigrad._check import c_interface, plan_calls
from epigrad._check.calls import Inputs, by_function, with_adapters
from epigrad._check.problem import Problem
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
        tensors = {**({"grad_output": inputs.grad} if is_backward else {}), **inputs.operands(problem.op)}
        outputs = {"out": torch.full(problem.out_shape, torch.nan, dtype=problem.torch_dtype, device=device)}
        if is_backward:
            outputs = {
                f"grad_{name}": torch.full(shape, torch.nan, dtype=problem.dtype_of_gradient(name), device=device)
                for name, shape in problem.shapes.items()
                if shape is not None
            }
        outputs = outputs if way != "autograd" else {}
        described = {**tensors, **outputs}
        return cls(problem, way, is_backward, backend, tensors, described, problem.options, outputs, rng)

    @property
    def op(self) -> str:
        return f"{self.problem.op}_backward" if self.is_backward else self.problem.op

    @property
    def floats(self) -> list[str]:
        """The names of operands with numbers."""
        return [n for n, t in self.tensors.items() if isinstance(t, Tensor) and t.is_floating_point()]

    def run(self) -> None:
        match self.way:
            case "autograd":
                getattr(epigrad, self.op)(**with_adapters(self.op, self.tensors), **self.options)
            case "c":
                self.prepared().run(self.short)
            case "plan":
                device = torch.device("cuda" if self.backend == "cuda" else "cpu")
                plan_calls.run(self.plan(), device, {**self.tensors, **self.outputs}, short=self.short)
            case _:
                by_function(self.op, self.tensors, self.outputs, self.options)

    def prepared(self) -> c_interface.Prepared:
        prepared = c_interface.Prepared(self.op, self.tensors, self.outputs, self.options)
        for name, value in self.fields.items():
            prepared.change(name, value)
        return prepared

    def plan(self) -> Plan:
        return Plan.select(self.op, **self.described, **self.options)
