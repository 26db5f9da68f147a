"""Calls by plans (epigrad.plan), on memory of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from epigrad import plan
from epigrad._check.elementwise import LERP_WEIGHT
from epigrad._check.parts import FROM_OUTPUT
from epigrad._check.problem import Problem

_ALIGNMENT = 256

Make = Callable[[int, tuple[int, ...]], Tensor]
"""An output of the operand at this place, 0 for the result itself."""

Tensors = dict[str, Tensor | None]


def workspace_of(size: int, device: torch.device, short: int = 0) -> Tensor | None:
    """Aligned memory of so many bytes, `short` less for a test of that."""
    if not size:
        return None
    buffer = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + size - short]


def selected(
    problem: Problem, given: Tensors, device: torch.device, options: dict[str, Any] | None = None
) -> tuple[Any, Any]:
    """The plans of forward and backward, with the problem's options or others."""
    options = problem.operation.options(problem) if options is None else options
    common: dict[str, Any] = {"dtype": problem.torch_dtype, "device": device}
    match problem.op:
        case "gated_activation":
            (shape,) = problem.shapes.values()
            common |= {"input_shape": shape, "split_dim": options["dim"]}
            common |= {"kind": options["kind"], "gate": options["gate"]}
            return plan.GatedActivation.select(**common), plan.GatedActivationBackward.select(**common)
        case "lerp":
            common |= {"shape": problem.out_shape, "weight": LERP_WEIGHT if given["weight"] is None else None}
            return plan.Lerp.select(**common), plan.LerpBackward.select(**common)
        case _:
            a, b, _ = named(problem, dict(given)).values()
            assert a is not None and b is not None
            *batch, m, k = a.shape
            common |= {"m": m, "k": k, "n": b.shape[-1], "batch": tuple(batch), "b_batched": b.dim() > 2}
            common |= {"activation": options["activation"]}
            return plan.GemmEpilogue.select(**common), plan.GemmEpilogueBackward.select(**common)


def _operand(problem: Problem, name: str, tensor: Tensor | None) -> Tensor | None:
    """An operand or its gradient as a plan takes it: a and b with two dimensions or more, bias with
    one."""
    if tensor is None:
        return None
    match name:
        case "a":
            return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor
        case "b" if problem.op == "linear":
            return tensor.mT
        case "b":
            return tensor.unsqueeze(1) if tensor.dim() == 1 else tensor
        case _:
            return tensor.reshape(-1) if tensor.dim() == 0 else tensor


def _result(problem: Problem, tensor: Tensor) -> Tensor:
    """A result, or its gradient, with the dimensions that a plan wants."""
    a, b, *_ = problem.shapes.values()
    assert a is not None and b is not None
    tensor = tensor.unsqueeze(-1) if problem.op != "linear" and len(b) == 1 else tensor
    return tensor.unsqueeze(-2) if len(a) == 1 else tensor


def named(problem: Problem, tensors: dict[str, Any]) -> dict[str, Any]:
    """Operands, results and gradients by the names of a plan, with the dimensions that it wants."""
    match problem.op:
        case "gated_activation":
            return tensors
        case "lerp":
            return {n: t.expand(problem.out_shape) if isinstance(t, Tensor) else None for n, t in tensors.items()}
    names: dict[str, str] = dict(zip(problem.shapes, ("a", "b", "bias"), strict=True))
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if name in ("out", "grad_output"):
            found[name] = _result(problem, tensor)
            continue
        prefix = "grad_" * name.startswith("grad_")
        operand = name.removeprefix(prefix)
        found[prefix + names[operand]] = _operand(problem, names[operand], tensor)
    return found


def call(problem: Problem, given: Tensors, grad: Tensor, make: Make) -> tuple[Tensor | None, ...]:
    """Output and gradients, written into what `make` gives."""
    forward, backward = selected(problem, given, grad.device)
    out = make(0, problem.out_shape)
    wanted: Tensors = {}
    for place, (name, tensor) in enumerate(given.items(), 1):
        # a plan sums over no dimension along which lerp's operands broadcast
        whole = problem.op != "lerp" or (tensor is not None and tensor.shape == out.shape)
        ask = tensor is not None and problem.asked()[place - 1] and whole
        wanted[name] = make(place, tuple(tensor.shape)) if tensor is not None and ask else None
    operands = named(problem, dict(given))
    into = named(problem, {f"grad_{name}": tensor for name, tensor in wanted.items()})
    results = named(problem, {"out": out, "grad_output": grad})
    kept: Tensors = {}
    if problem.operation.products and problem.save == "preactivation":
        kept["preactivation"] = torch.empty_like(results["out"], memory_format=torch.contiguous_format)
    _run(forward, grad.device, **operands, out=results["out"], **kept)
    if problem.operation.products and problem.save == "auto" and problem.kind.partition("(")[0] in FROM_OUTPUT:
        kept["output"] = results["out"]
    if any(tensor is not None for tensor in into.values()):
        added = {"accumulate": True} if problem.grads.endswith("added") and problem.operation.products else {}
        _run(backward, grad.device, grad_output=results["grad_output"], **operands, **kept, **into, **added)
    return (out, *wanted.values())


def _run(made: Any, device: torch.device, **tensors: Any) -> None:
    made.run(workspace=workspace_of(made.workspace_size, device), **tensors)
