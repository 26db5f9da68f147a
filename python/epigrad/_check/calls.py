"""The ways to call an operation with a problem's tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import epigrad
from epigrad import backward, forward, nn
from epigrad._check import c_interface, plan_calls
from epigrad._check.elementwise import LERP_WEIGHT
from epigrad._check.layouts import Guarded, unchanged
from epigrad._check.parts import FROM_OUTPUT
from epigrad._check.problem import Problem
from epigrad.webgpu import Array

Results = tuple[Tensor | None, ...]
"""The output and the gradients, None for those that were not asked for."""

ONE_GRADIENT = ("activation", "gated_activation")
"""Operations whose stateless backward has one gradient and one `out`."""
_WITH_PREACTIVATION = (
    *("matmul_bias_activation", "linear", "gated_linear", "mlp", "gated_mlp", "grouped_linear", "experts"),
)


@dataclass(frozen=True)
class Inputs:
    """A problem's tensors.

    Attributes:
        given: the tensors that have gradients, by name in the order of the arguments.
        grad: the output's gradient.
        integers: offsets or index, by name.
    """

    given: dict[str, Tensor | None]
    grad: Tensor
    integers: dict[str, Tensor]

    @classmethod
    def of(cls, problem: Problem, device: str = "cpu") -> Inputs:
        given, grad = problem.tensors(device)
        made = problem.operation.integers
        name, integers = made(problem) if made is not None else ("", None)
        return cls(given, grad, {} if integers is None else {name: integers.to(device)})

    def arguments(self, problem: Problem, given: Sequence[Tensor | None]) -> tuple[list[Any], dict[str, Any]]:
        """Those of a call, where these are the tensors that have gradients."""
        positional: list[Any] = list(given)
        options = problem.operation.options(problem)
        if problem.op == "lerp" and positional[2] is None:
            positional[2] = LERP_WEIGHT
        if "index" in self.integers:
            positional.insert(1, self.integers["index"])
        if "offsets" in self.integers:
            options["offsets"] = self.integers["offsets"]
        return positional, options

    def named(self, problem: Problem) -> dict[str, Any]:
        """The operands by name."""
        number = {"weight": LERP_WEIGHT} if problem.op == "lerp" and self.given["weight"] is None else {}
        return {**self.given, **self.integers, **number}

    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [tensor for tensor in (*self.given.values(), self.grad, *self.integers.values()) if tensor is not None]


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
        match problem.entry:
            case "stateless":
                return _stateless(problem, inputs)
            case "c":
                return _by_c(problem, inputs)
            case "array":
                return _on_arrays(problem, inputs)
            case "plan":
                guards = _Guards(problem, inputs.grad.device)
                results = plan_calls.call(problem, inputs.named(problem), inputs.grad, guards.make)
                guards.check()
                return results
            case "dispatcher":
                with _Watching():  # type: ignore[no-untyped-call]
                    return _autograd(problem, inputs)
            case _:
                return _autograd(problem, inputs)


def _autograd(problem: Problem, inputs: Inputs) -> Results:
    asked = problem.asked()
    leaf = torch.nn.Parameter if problem.entry == "module" else _leaf
    leaves: list[Tensor | None] = [
        tensor if tensor is None else leaf(tensor.detach(), ask)
        for tensor, ask in zip(inputs.given.values(), asked, strict=True)
    ]
    out = _module(problem, inputs, leaves) if problem.entry == "module" else _function(problem, inputs, leaves)
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, inputs.grad) if wanted else ())
    return (out.detach(), *[next(found) if ask else None for ask in asked])


def _leaf(tensor: Tensor, ask: bool) -> Tensor:
    return tensor.requires_grad_(ask)


def _function(problem: Problem, inputs: Inputs, leaves: Sequence[Tensor | None]) -> Tensor:
    positional, options = inputs.arguments(problem, leaves)
    if problem.op in _WITH_PREACTIVATION:
        options["save"] = problem.save
    out: Tensor = getattr(epigrad, problem.op)(*positional, **options)
    return out


_MODULES = {"linear": "Linear", "mlp": "MLP", "gated_mlp": "GatedMLP", "experts": "Experts", "activation": "Activation"}
_MODULES |= {"gated_activation": "GatedActivation", "prelu": "PReLU", "xielu": "XIELU", "lerp": "Lerp"}
_LAYERS = {"1": "up", "2": "down", "_in": "up", "_out": "down"}


def _module(problem: Problem, inputs: Inputs, leaves: Sequence[Tensor | None]) -> Tensor:
    """Of a module that has the leaves as its parameters, where it has parameters."""
    made = getattr(nn, _MODULES[problem.op])
    arguments: list[Any] = [1] * {"linear": 2, "mlp": 2, "gated_mlp": 2, "experts": 3}.get(problem.op, 0)
    options = problem.operation.options(problem)
    arguments += [options.pop("activation")] if problem.op == "activation" else []
    if problem.operation.products:
        options |= {"bias": problem.bias, "save": problem.save}
    module = made(*arguments, **options, device="meta")
    given = dict(zip(inputs.given, leaves, strict=True))
    if problem.op == "lerp":
        out: Tensor = module(given["start"], given["end"], LERP_WEIGHT if given["weight"] is None else given["weight"])
        return out
    called = [given.pop("input"), *inputs.integers.values(), *([given.pop("scale")] if problem.op == "experts" else [])]
    for name, leaf in given.items():
        layer, parameter = module, name
        if problem.op in ("mlp", "gated_mlp"):
            parameter = name[: name.find("s") + 1] if name.startswith("bias") else "weight"
            layer = getattr(module, _LAYERS[name.removeprefix(parameter)])
        if leaf is not None:
            setattr(layer, parameter, leaf)
    result: Tensor = module(*called)
    return result


def _stateless(problem: Problem, inputs: Inputs) -> Results:
    asked = problem.asked()
    positional, options = inputs.arguments(problem, tuple(inputs.given.values()))
    guards = _Guards(problem, inputs.grad.device)
    out = guards.make(0, problem.out_shape)
    kept: dict[str, Tensor] = {}
    if problem.op in _WITH_PREACTIVATION and problem.save == "preactivation":
        _, pre = getattr(forward, problem.op)(*positional, **options, out=out, return_preactivation=True)
        kept["preactivation"] = pre
    else:
        getattr(forward, problem.op)(*positional, **options, out=out)
        if problem.op in ("linear", "matmul_bias_activation") and problem.save == "auto":
            kind = problem.kind_object
            kept = {"output": out} if kind is not None and kind.name in FROM_OUTPUT else {}
    function = getattr(backward, f"{problem.op}_backward")
    if problem.op in ONE_GRADIENT:
        grads: list[Tensor | None] = [
            guards.make(1, problem.out_shape if problem.op == "activation" else _shape(inputs))
        ]
        function(inputs.grad, *positional, **options, out=grads[0])
    else:
        grads = [
            guards.make(place, tuple(tensor.shape)) if ask and tensor is not None else None
            for place, (tensor, ask) in enumerate(zip(inputs.given.values(), asked, strict=True), 1)
        ]
        if problem.grads.endswith("added") and problem.operation.products:
            options["accumulate"] = True
        function(inputs.grad, *positional, **options, **kept, needs=asked, out=tuple(grads))
    guards.check()
    return (out, *grads)


def _on_arrays(problem: Problem, inputs: Inputs) -> Results:
    """By functions without a graph on arrays of an adapter, which are contiguous."""
    given: Any = [None if tensor is None else Array.from_torch(tensor) for tensor in inputs.given.values()]
    positional, options = inputs.arguments(problem, given)
    out = getattr(forward, problem.op)(*positional, **options)
    if problem.op not in ONE_GRADIENT:
        options["needs"] = problem.asked()
    found = getattr(backward, f"{problem.op}_backward")(Array.from_torch(inputs.grad), *positional, **options)
    grads = [found] if problem.op in ONE_GRADIENT else found
    return (out.to_torch(), *[None if grad is None else grad.to_torch() for grad in grads])


def _by_c(problem: Problem, inputs: Inputs) -> Results:
    asked = problem.asked()
    tensors: list[Tensor | None] = list(inputs.given.values())
    number = LERP_WEIGHT if problem.op == "lerp" and tensors[2] is None else None
    if "index" in inputs.integers:
        tensors.insert(1, inputs.integers["index"])
    if "offsets" in inputs.integers:
        tensors.append(inputs.integers["offsets"])
    guards = _Guards(problem, inputs.grad.device)
    out = guards.make(0, problem.out_shape)
    c_interface.call(problem, problem.op, tensors, [out], number)
    grads = [
        guards.make(place, tuple(tensor.shape)) if ask and tensor is not None else None
        for place, (tensor, ask) in enumerate(zip(inputs.given.values(), asked, strict=True), 1)
    ]
    if any(asked):
        flags = c_interface.ACCUMULATE if problem.grads.endswith("added") and problem.operation.products else 0
        c_interface.call(problem, f"{problem.op}_backward", [inputs.grad, *tensors], grads, number, flags)
    guards.check()
    return (out, *grads)


def _shape(inputs: Inputs) -> tuple[int, ...]:
    (tensor,) = inputs.given.values()
    assert tensor is not None
    return tuple(tensor.shape)


class _Guards:
    """Outputs in buffers of NaN, of layouts in which no two elements share memory."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._problem = problem
        self._device = device
        self._made: list[Guarded] = []

    def make(self, place: int, shape: tuple[int, ...]) -> Tensor:
        """The output, or the gradient to the operand at this place, counted from 1."""
        problem, layout = self._problem, self._problem.layout(place)
        layout = "contiguous" if layout.startswith("expanded") else layout
        name = list(problem.shapes)[place - 1] if place else ""
        dtype = problem.dtype_of_gradient(name) if place else problem.torch_dtype
        self._made.append(Guarded.empty(shape, dtype, layout, str(self._device)))
        made = self._made[-1].tensor
        if place and problem.is_added(name):
            made.copy_(problem.held(name))
        return made

    def check(self) -> None:
        for guarded in self._made:
            guarded.check()
