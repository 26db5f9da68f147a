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
from epigrad import backward, forward
from epigrad._check import c_interface
from epigrad._check.layouts import Guarded, unchanged
from epigrad._check.operations import FROM_OUTPUT, LERP_WEIGHT
from epigrad._check.problem import Problem

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
            case "dispatcher":
                with _Watching():  # type: ignore[no-untyped-call]
                    return _autograd(problem, inputs)
            case _:
                return _autograd(problem, inputs)


def _autograd(problem: Problem, inputs: Inputs) -> Results:
    asked = problem.asked()
    leaves = [
        tensor if tensor is None else tensor.detach().requires_grad_(ask)
        for tensor, ask in zip(inputs.given.values(), asked, strict=True)
    ]
    positional, options = inputs.arguments(problem, leaves)
    if problem.op in _WITH_PREACTIVATION:
        options["save"] = problem.save
    out = getattr(epigrad, problem.op)(*positional, **options)
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, inputs.grad) if wanted else ())
    return (out.detach(), *[next(found) if ask else None for ask in asked])


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
        function(inputs.grad, *positional, **options, **kept, needs=asked, out=tuple(grads))
    guards.check()
    return (out, *grads)


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
        c_interface.call(problem, f"{problem.op}_backward", [inputs.grad, *tensors], grads, number)
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
        layout = self._problem.layout(place)
        layout = "contiguous" if layout.startswith("expanded") else layout
        self._made.append(Guarded.empty(shape, self._problem.torch_dtype, layout, str(self._device)))
        return self._made[-1].tensor

    def check(self) -> None:
        for guarded in self._made:
            guarded.check()
