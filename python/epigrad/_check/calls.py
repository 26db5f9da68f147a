"""The ways to call an operation with a problem's tensors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import epigrad
from epigrad import backward, forward, nn
from epigrad._check import c_interface, plan_calls
from epigrad._check.layouts import Guarded, unchanged
from epigrad._check.problem import INTO, MODULES, Problem
from epigrad._core import tables
from epigrad.webgpu import Array

Results = tuple[Tensor | None, ...]
"""The output and the gradients, None for those that were not asked for."""
Named = Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """A problem's tensors.

    Attributes:
        given: the tensors that have gradients, by name in the order of the arguments.
        grad: the output's gradient.
        others: offsets, index, or a number in place of a tensor, by name.
    """

    given: dict[str, Tensor | None]
    grad: Tensor
    others: dict[str, Any]

    @classmethod
    def of(cls, problem: Problem, device: str = "cpu") -> Inputs:
        return cls(*problem.tensors(device), {**problem.integers(device), **problem.numbers})

    def operands(self, op: str) -> dict[str, Any]:
        """A call's operands by name, in the order of its arguments."""
        known: Named = {**self.given, **self.others}
        return {name: known[name] for name in tables.row_with(op, known).tensors if name in known}

    def tensors(self) -> list[Tensor]:
        return [each for each in (*self.given.values(), self.grad, *self.others.values()) if isinstance(each, Tensor)]


def with_adapters(op: str, tensors: Named, scale: float = 1.0) -> dict[str, Any]:
    """A function's arguments by name: an adapter in the place of its two tensors."""
    found, row = dict(tensors), tables.OPS[op].adapted
    for name in row.adapters if row else ():
        a, b = (found.pop(f"{name}_{part}", None) for part in "ab")
        if a is not None or b is not None:
            found[name] = epigrad.LowRank(a, b, scale)
    return found


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator and changes nothing; while it is active, functions are operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def backend_of(name: str) -> Iterator[str]:
    """PyTorch's device for a backend, which is chosen meanwhile."""
    with epigrad.use_backend(name) if name == "webgpu" else contextlib.nullcontext():
        yield "cuda" if name == "cuda" else "cpu"


def run(problem: Problem, inputs: Inputs) -> Results:
    """Output and gradients.

    Raises:
        AssertionError: it wrote where it must not.
    """
    with unchanged(*inputs.tensors()):
        if problem.entry in INTO:
            return _into(problem, inputs)
        if problem.entry == "array":
            return _on_arrays(problem, inputs)
        if problem.entry == "second":
            return _second(problem, inputs)
        watching = _Watching() if problem.entry == "dispatcher" else contextlib.nullcontext()  # type: ignore[no-untyped-call]
        with watching:
            return _autograd(problem, inputs)


def _autograd(problem: Problem, inputs: Inputs) -> Results:
    is_module, asked = problem.entry == "module", problem.asked()
    leaf = torch.nn.Parameter if is_module else Tensor.requires_grad_
    leaves = {
        name: tensor if tensor is None else leaf(tensor.detach(), ask)
        for (name, tensor), ask in zip(inputs.given.items(), asked, strict=True)
    }
    with_leaves = Inputs(leaves, inputs.grad, inputs.others).operands(problem.op)
    out = (_module if is_module else _function)(problem, with_leaves)
    wanted = [leaf for leaf in leaves.values() if leaf is not None and leaf.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, inputs.grad) if wanted else ())
    return (out.detach(), *[next(found) if ask else None for ask in asked])


def _second(problem: Problem, inputs: Inputs) -> Results:
    """Output, all gradients, and the gradients of their products with the operands."""
    grad = inputs.grad.detach().requires_grad_()
    leaves = {
        name: tensor if tensor is None else tensor.detach().requires_grad_() for name, tensor in inputs.given.items()
    }
    wanted = [leaf for leaf in leaves.values() if leaf is not None]
    out = _function(problem, leaves)
    first = torch.autograd.grad(out, wanted, grad, create_graph=True)
    second = torch.autograd.grad(first, [grad, *wanted], [leaf.detach() for leaf in wanted], materialize_grads=True)
    return (out.detach(), *[gradient.detach() for gradient in first], *second)


def _function(problem: Problem, operands: dict[str, Any]) -> Tensor:
    save = {"save": problem.save} if problem.row.keeps else {}
    arguments = with_adapters(problem.op, operands, problem.adapter_scale)
    out: Tensor = getattr(epigrad, problem.op)(**arguments, **problem.options, **save)
    return out


def _module(problem: Problem, operands: dict[str, Any]) -> Tensor:
    """Of a module that has weights and biases among the leaves as its parameters."""
    options = problem.options
    arguments: list[Any] = [options.pop("activation")] if problem.op == "activation" else []
    if problem.row.multiplies:
        options |= {"bias": problem.bias, "save": problem.save}
        arguments = [1, 1, 1] if "index" in operands else [1, 1]
    module = getattr(nn, MODULES[problem.op])(*arguments, **options, device="meta")
    inputs = [operands.pop(name) for name in [*operands] if name in ("input", "index", "scale") or problem.op == "lerp"]
    places = [(module, name) for name in operands]
    if hasattr(module, "up"):
        places = [(layer, name) for layer in (module.up, module.down) for name in ("weight", "bias")]
    for (layer, name), leaf in zip(places, operands.values(), strict=True):
        if leaf is not None:
            setattr(layer, name, leaf)
    result: Tensor = module(*inputs)
    return result


def by_function(op: str, tensors: Named, outputs: Named, options: Named, scale: float = 1.0) -> None:
    """By a function without a graph, whose adapters have this scale."""
    arguments = with_adapters(op, tensors, scale)
    if (row := tables.row_with(op, tensors)).is_backward:
        names = [row.tensors[place] for place in row.gradients]
        own = tables.OPS[op].tensors
        out = tuple([outputs.get(f"grad_{name}") for name in names if name in own or name in tensors])
        getattr(backward, op)(**arguments, **options, out=out if len(out) > 1 else out[0])
    elif "preactivation" in outputs:
        _, kept = getattr(forward, op)(**arguments, **options, out=outputs["out"], return_preactivation=True)
        outputs["preactivation"].copy_(kept)
    else:
        getattr(forward, op)(**arguments, **options, out=outputs["out"])


WAYS: dict[str, Callable[[str, Named, Named, Named], None]] = {
    "stateless": by_function,
    "c": c_interface.call,
    "plan": plan_calls.call,
}
"""Calls that write into outputs, given the operation, tensors and numbers by name, the outputs by
name, and the options."""


def _into(problem: Problem, inputs: Inputs) -> Results:
    way, row, options = WAYS[problem.entry], problem.row, problem.options
    if problem.entry == "stateless":
        way = functools.partial(by_function, scale=problem.adapter_scale)
    guards, asked = _Guards(problem, inputs.grad.device), problem.asked()
    operands, out = inputs.operands(problem.op), guards.make("")
    kept: dict[str, Tensor] = {}
    if row.keeps and problem.save == "preactivation":
        kept["preactivation"] = out.new_full(problem.every_shape["preactivation"] or (), torch.nan)
    way(problem.op, operands, {"out": out, **kept}, options)
    if row.keeps == "output" and problem.save == "auto" and tables.ACTIVATIONS[problem.activation.name].from_output:
        kept["output"] = out
    grads = [guards.make(name) if ask else None for name, ask in zip(inputs.given, asked, strict=True)]
    if any(asked):
        if row.multiplies:
            options["accumulate"] = problem.grads.endswith("added")
        if problem.entry == "stateless" and len(grads) > 1:
            options["needs"] = asked
        wanted = {f"grad_{name}": grad for name, grad in zip(inputs.given, grads, strict=True)}
        way(f"{problem.op}_backward", {"grad_output": inputs.grad, **operands, **kept}, wanted, options)
    guards.check()
    return (out, *grads)


def _on_arrays(problem: Problem, inputs: Inputs) -> Results:
    """By functions without a graph on arrays of an adapter, which are contiguous."""
    arrays: Named = {
        name: Array.from_torch(each) if isinstance(each, Tensor) else each
        for name, each in inputs.operands(problem.op).items()
    }
    arrays = with_adapters(problem.op, arrays)
    out = getattr(forward, problem.op)(**arrays, **problem.options)
    needs = {"needs": problem.asked()} if len(inputs.given) > 1 else {}
    function = getattr(backward, f"{problem.op}_backward")
    found = function(Array.from_torch(inputs.grad), **arrays, **problem.options, **needs)
    grads = found if needs else [found]
    return (out.to_torch(), *[None if grad is None else grad.to_torch() for grad in grads])


class _Guards:
    """Outputs in buffers of NaN, of layouts in which no two elements share memory."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._problem = problem
        self._device = device
        self._made: list[Guarded] = []

    def make(self, name: str) -> Tensor:
        """The gradient to an operand, or the output, which has no name."""
        problem = self._problem
        layout = problem.layout([*problem.shapes].index(name) + 1 if name else 0)
        layout = "contiguous" if layout.startswith("expanded") else layout
        shape = problem.shapes[name] if name else problem.out_shape
        dtype = problem.dtype_of_gradient(name) if name else problem.torch_dtype
        self._made.append(Guarded.empty(shape or (), dtype, layout, str(self._device)))
        made = self._made[-1].tensor
        if name and problem.is_added(name):
            made.copy_(problem.held(name))
        return made

    def check(self) -> None:
        for guarded in self._made:
            guarded.check()
