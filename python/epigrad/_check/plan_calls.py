"""Calls by plans (epigrad.plan), on memory of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from epigrad import plan
from epigrad._check.operations import FROM_OUTPUT, LERP_WEIGHT
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


def selected(problem: Problem, given: Tensors, device: torch.device) -> tuple[Any, Any]:
    """The plans of forward and backward."""
    common: dict[str, Any] = {"dtype": problem.torch_dtype, "device": device}
    match problem.op:
        case "gated_activation":
            (shape,) = problem.shapes.values()
            options = {"input_shape": shape, "split_dim": problem.operation.options(problem)["dim"]}
            common |= {**options, "kind": problem.kind_object, "gate": problem.gate}
            return plan.GatedActivation.select(**common), plan.GatedActivationBackward.select(**common)
        case "lerp":
            common |= {"shape": problem.out_shape, "weight": LERP_WEIGHT if given["weight"] is None else None}
            return plan.Lerp.select(**common), plan.LerpBackward.select(**common)
        case _:
            a, b, _ = _matrices(problem, given)
            assert a is not None and b is not None
            *batch, m, k = a.shape
            common |= {"m": m, "k": k, "n": b.shape[-1], "batch": tuple(batch), "b_batched": b.dim() > 2}
            common |= {"activation": problem.kind_object}
            return plan.GemmEpilogue.select(**common), plan.GemmEpilogueBackward.select(**common)


def _matrices(problem: Problem, given: Tensors) -> tuple[Tensor | None, ...]:
    """Operands or their gradients as a plan takes them: a, b and bias with two dimensions or more,
    and one."""
    a, b, bias = given.values()
    if problem.op == "linear":
        b = None if b is None else b.mT
    elif b is not None and b.dim() == 1:
        b = b.unsqueeze(1)
    return (
        a.unsqueeze(0) if a is not None and a.dim() == 1 else a,
        b,
        None if bias is None else bias.reshape(-1) if bias.dim() == 0 else bias,
    )


def _result(problem: Problem, tensor: Tensor) -> Tensor:
    """A result, or its gradient, with the dimensions that a plan wants."""
    a, b, *_ = problem.shapes.values()
    assert a is not None and b is not None
    tensor = tensor.unsqueeze(-1) if problem.op != "linear" and len(b) == 1 else tensor
    return tensor.unsqueeze(-2) if len(a) == 1 else tensor


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
    added = problem.grads.endswith("added")
    if problem.op in ("gated_activation", "lerp"):
        wide = {name: t if t is None or problem.op != "lerp" else t.expand(out.shape) for name, t in given.items()}
        _run(forward, grad.device, out=out, **wide)
        grads = {f"grad_{name}": tensor for name, tensor in wanted.items()}
        _run(backward, grad.device, grad_output=grad, **wide, **grads)
        return (out, *wanted.values())
    operands = dict(zip(("a", "b", "bias"), _matrices(problem, given), strict=True))
    into = dict(zip(("grad_a", "grad_b", "grad_bias"), _matrices(problem, wanted), strict=True))
    kept: Tensors = {}
    view = _result(problem, out)
    if problem.save == "preactivation":
        kept["preactivation"] = torch.empty_like(view, memory_format=torch.contiguous_format)
    elif problem.save == "auto" and problem.kind.partition("(")[0] in FROM_OUTPUT:
        kept["output"] = view
    _run(forward, grad.device, **operands, out=view, **{n: t for n, t in kept.items() if n == "preactivation"})
    _run(backward, grad.device, grad_output=_result(problem, grad), **operands, **kept, **into, accumulate=added)
    return (out, *wanted.values())


def _run(made: Any, device: torch.device, **tensors: Any) -> None:
    if any(
        name == "out" or (name.startswith("grad_") and name != "grad_output" and t is not None)
        for name, t in tensors.items()
    ):
        made.run(workspace=workspace_of(made.workspace_size, device), **tensors)
