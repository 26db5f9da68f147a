"""One `torch.autograd.Function` per op, and `Gradient`, the function that its backward is.

Backward runs the fused kernels. When the gradient will itself be differentiated
(``create_graph=True``, which is when grad mode is on inside backward) the same kernels run inside
`Gradient`, so a gradient has the same bits either way; `Gradient` is differentiated through the
expressions of `epigrad._autograd.formulas`, and so on to any order.

A saved preactivation is a hidden second output of the forward function: autograd's version counter
guards it, and second order flows through it back into the function's own node, where it arrives as
``grad_hidden``.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from epigrad import errors
from epigrad._autograd import formulas
from epigrad._autograd.engine import asked
from epigrad._autograd.main_grad import Sinks, accumulated, add_lock, delivered, outputs_of, refuse_graph
from epigrad._core.call import Call
from epigrad._core.checks import PLAIN_OR_NONE, check_save
from epigrad._core.launcher import DISPATCHER, Launcher, Tensors, factor_of
from epigrad._core.tables import ACTIVATIONS, OPS
from epigrad._core.torch_state import transforms_active

# What forward keeps for the derivative of the activation.
NOTHING, PREACTIVATION, OUTPUT, RECOMPUTE = range(4)

_LEGACY_BATCH = torch._C._dispatch_key_parse("Batched")

Needs = tuple[bool, ...]


def lies_transposed(weight: Tensor) -> bool:
    """Whether a weight is a transposed matrix, or one for each group. Its gradient lies as it does,
    so backward gets the weight, and not its shape alone.
    """
    if weight.ndim not in (2, 3) or weight.stride()[-2:] != (1, weight.shape[-2]):
        return False
    return weight.ndim == 2 or weight.stride(0) == weight.shape[1] * weight.shape[2]


def forms_preactivation(activation: str | None, preactivation: object, output: object) -> bool:
    """Whether backward has to recompute the preactivation for the slope."""
    return activation not in (None, "none") and preactivation is None and output is None


@dataclass(slots=True)
class Problem(ABC):
    """One backward; `call` is forward's. `run` and `formula` take the same tensors.

    `shapes` are of the tensors after the first: forward keeps none whose values are not needed.
    """

    core: Launcher
    call: Call
    shapes: tuple[Any, ...] = ()

    @property
    def gradient_shapes(self) -> tuple[Any, ...]:
        """The shapes of the gradients, None for one that cannot exist."""
        # the first tensor is grad_output, which has no shape here
        return tuple([self.shapes[place - 1] for place in OPS[self.call.op + "_backward"].gradients])

    def run(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        """The gradients by the fused kernels."""
        return self.core.launch(self.call.backward, tensors, needs, None, self.shapes)

    @abstractmethod
    def formula(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        """The gradients by differentiable operations."""


def differentiate(problem: Problem, needs: Needs, *tensors: Tensor | None) -> Tensors:
    """The gradients of a problem, differentiable themselves if grad mode is on."""
    if transforms_active():
        return problem.formula(needs, *tensors)
    try:
        if not torch.is_grad_enabled():
            return problem.run(needs, *tensors)
        gradients: Tensors = Gradient.apply(problem, needs, *tensors)
        return gradients
    except errors.UnsupportedError:
        # A batch of gradients (is_grads_batched) is no transform of torch.func's.
        if any(torch._C._dispatch_keys(t).has(_LEGACY_BATCH) for t in tensors if t is not None):
            return problem.formula(needs, *tensors)
        if problem.core is DISPATCHER or PLAIN_OR_NONE.issuperset(map(type, tensors)):
            raise
    # A gradient may be a tensor subclass where no input was one, as a collective's result is.
    return differentiate(replace(problem, core=DISPATCHER), needs, *tensors)


class Gradient(Function):
    """Gradients by the fused kernels that can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, needs: Needs, *tensors: Tensor | None) -> Tensors:
        ctx.problem = problem
        ctx.needs = needs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return problem.run(needs, *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        wanted = asked(ctx, ctx.needs_input_grad[2:])
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Aliases: two arguments may be one tensor, and each gets its own part of the gradient.
            if create_graph:
                tensors = [t.view_as(t) if want else t for t, want in zip(ctx.saved_tensors, wanted, strict=True)]
            else:
                tensors = [
                    t if t is None else t.detach().requires_grad_(want)
                    for t, want in zip(ctx.saved_tensors, wanted, strict=True)
                ]
            outputs = ctx.problem.formula(ctx.needs, *tensors)
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, grads, strict=True)
            if output is not None and grad is not None and output.requires_grad
        ]
        results: list[Tensor | None] = [None] * len(tensors)
        places = [place for place, want in enumerate(wanted) if want]
        if pairs and places:
            found = torch.autograd.grad(
                [output for output, _ in pairs],
                [tensors[place] for place in places],
                [grad for _, grad in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
            for place, gradient in zip(places, found, strict=True):
                results[place] = gradient
        return (None, None, *results)


class Fused(Function):
    """A function that the core computes; `apply` takes a core, a call and more."""

    record: Callable[..., Any]
    """`apply` outside of `torch.func`: of tensors that are no wrappers of its transforms."""

    def __init_subclass__(cls) -> None:
        cls.record = super(Function, cls).apply  # type: ignore[misc]


class OneOutput(Fused):
    """The backward of functions of a core, a call and tensors that have one output."""

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Any, ...]:
        needs = asked(ctx, ctx.needs_input_grad[2:])
        grads: Tensors = (None,) * len(needs)
        if grad_output is not None:
            grads = differentiate(ctx.problem, needs, grad_output, *ctx.saved_tensors)
        return (None, None, *grads)


class WithPreactivation(Fused):
    """The backward of functions of a core, a call, what is kept, and tensors.

    Their second, hidden output is the preactivation.
    """

    @staticmethod
    def kept(call: Call, save: str) -> int:
        """What forward keeps for the derivative of the activation, in a save mode."""
        check_save(call.op, save)
        keeps = OPS[call.op].keeps
        if keeps != "hidden" and call.kind == "none":
            return NOTHING
        if keeps == "output" and save == "auto" and ACTIVATIONS[call.kind or "none"].from_output:
            return OUTPUT
        return RECOMPUTE if save == "recompute" else PREACTIVATION

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_hidden: Tensor | None) -> tuple[Any, ...]:
        needs, places = ctx.needs_input_grad[3:], OPS[ctx.problem.call.op + "_backward"].gradients
        if len(places) == len(needs):
            return (None, None, None, *WithPreactivation.gradients(ctx, needs, grad_output, grad_hidden))
        # A tensor of integers has no gradient.
        real = tuple([needs[place - 1] for place in places])
        found = dict(zip(places, WithPreactivation.gradients(ctx, real, grad_output, grad_hidden), strict=True))
        return (None, None, None, *[found.get(place + 1) for place in range(len(needs))])

    @staticmethod
    def gradients(ctx: Any, needs: Needs, grad_output: Tensor | None, grad_hidden: Tensor | None) -> Tensors:
        """The gradients of the tensors that have some, with these needs."""
        needs = asked(ctx, needs)
        grads: Tensors = (None,) * len(needs)
        sinks: Sinks | None = getattr(ctx, "sinks", None)
        if sinks is not None:
            sinks = accumulated(sinks, needs)
        if sinks is not None and grad_output is not None and grad_hidden is None and not torch.is_grad_enabled():
            return _into_sinks(ctx.problem, sinks, needs, grad_output, *ctx.saved_tensors)
        if sinks is not None:
            refuse_graph(ctx.problem.call.op, sinks, needs)
        if grad_hidden is not None:
            grads = ctx.problem.formula(needs, grad_output, *ctx.saved_tensors, grad_hidden=grad_hidden)
        elif grad_output is not None:
            grads = differentiate(ctx.problem, needs, grad_output, *ctx.saved_tensors)
        return grads


def _into_sinks(problem: Problem, sinks: Sinks, needs: Needs, *tensors: Tensor | None) -> Tensors:
    """The gradients by the fused kernels, written into their sinks where they have one."""
    call = problem.call.backward
    outputs, adds = outputs_of(call.op, sinks, needs, problem.gradient_shapes, tensors[0])
    launched = call._replace(accumulate=True) if adds else call
    with add_lock(adds):
        results = problem.core.launch(launched, tensors, needs, tuple(outputs), problem.shapes)
    return delivered(sinks, needs, results)


@dataclass(slots=True)
class GemmProblem(Problem):
    """Backward of ``act(a @ b + bias)``, of grad_output, a, b, bias, preactivation, output."""

    def formula(self, needs: Needs, *tensors: Tensor | None, grad_hidden: Tensor | None = None) -> Tensors:
        grad, a, b, bias, preactivation, output = tensors
        linear = self.call.op == "linear"
        if forms_preactivation(self.call.kind, preactivation, output):
            assert a is not None and b is not None
            preactivation = formulas.preactivation(a, b, bias, linear)
        gradient = grad if grad is not None else grad_hidden
        assert gradient is not None
        grad_pre = formulas.computed(gradient)
        if grad is not None:
            grad_pre = formulas.grad_preactivation(self.call.activation, grad, preactivation, output)
            if grad_hidden is not None:
                grad_pre = grad_pre + formulas.computed(grad_hidden)
        return formulas.gemm_backward(grad_pre, a, b, gradient.dtype, self.shapes, needs, linear)


class Gemm(WithPreactivation):
    """``act(a @ b + bias)``; with op ``"linear"``, b is a weight ``[N, K]``."""

    @staticmethod
    def forward(ctx: Any, core: Launcher, call: Call, keep: int, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensors:
        need_a, need_b, _ = ctx.needs_input_grad[3:]
        recompute = keep == RECOMPUTE
        out, preactivation = core.launch(call, (a, b, bias), (True, keep == PREACTIVATION))
        ctx.problem = GemmProblem(core, call, (a.shape, b.shape, None if bias is None else bias.shape))
        ctx.save_for_backward(
            a if need_b or recompute else None,
            b if need_a or recompute or lies_transposed(b) else None,
            bias if recompute else None,
            preactivation,
            out if keep == OUTPUT else None,
        )
        ctx.set_materialize_grads(False)
        return out, preactivation


@dataclass(slots=True)
class ActivationProblem(Problem):
    """Backward of ``act(x)``, of grad_output, input. The core's operation has two more results."""

    def run(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        return self.core.launch(self.call.backward, tensors, (True, False, False))[:1]

    def formula(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        grad, input = tensors
        assert grad is not None and input is not None
        return (formulas.grad_preactivation(self.call.activation, grad, input, None).to(grad.dtype),)


@dataclass(slots=True)
class GatedActivationProblem(Problem):
    """Backward of ``value * act(gate)``, of grad_output and the input with both halves."""

    def formula(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        grad, input = tensors
        assert grad is not None and input is not None
        dim, place = self.call.dim, self.call.gate
        value, gate = formulas.split_gate(input, dim, place)
        grad_value, grad_gate = formulas.gated_backward(self.call.gated, grad, value, gate, (True, True))
        assert grad_value is not None and grad_gate is not None
        return (formulas.joined(grad_value, grad_gate, dim, place).to(grad.dtype),)


@dataclass(slots=True)
class LearnableProblem(Problem):
    """Backward of an activation whose parameters are tensors, of grad_output, input, parameters."""

    def formula(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        given = [tensor for tensor in tensors if tensor is not None]
        return formulas.learnable_backward(self.call.op, self.call.parameters, needs, *given)


_PROBLEMS: dict[str, type[Problem]] = {
    "activation": ActivationProblem,
    "gated_activation": GatedActivationProblem,
    "prelu": LearnableProblem,
    "xielu": LearnableProblem,
}


class Elementwise(OneOutput):
    """A function whose backward reads all of its tensors: ``act(x)``, ``value * act(gate)`` of the
    two halves of one, or an activation whose parameters are tensors.
    """

    @staticmethod
    def forward(ctx: Any, core: Launcher, call: Call, *tensors: Tensor) -> Tensor:
        (out,) = core.launch(call, tensors, (True,))
        assert out is not None
        ctx.problem = _PROBLEMS[call.op](core, call)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return out


@dataclass(slots=True)
class GatedProductProblem(Problem):
    """Backward of ``value * act(gate)``, of grad_output, value, gate."""

    def run(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        grad, value, gate = tensors
        # What was not saved is not read; grad_output has its shape and stands in for it.
        inputs = (grad, grad if value is None else value, grad if gate is None else gate)
        return self.core.launch(self.call.backward, inputs, needs)

    def formula(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        grad, value, gate = tensors
        assert grad is not None
        grads = formulas.gated_backward(self.call.gated, grad, value, gate, needs)
        return tuple([None if gradient is None else gradient.to(grad.dtype) for gradient in grads])


class GatedProduct(OneOutput):
    """``value * act(gate)`` of two tensors."""

    @staticmethod
    def forward(ctx: Any, core: Launcher, call: Call, value: Tensor, gate: Tensor) -> Tensor:
        (out,) = core.launch(call, (value, gate), (True,))
        assert out is not None
        need_value, need_gate = ctx.needs_input_grad[2:]
        ctx.problem = GatedProductProblem(core, call)
        keeps_value = need_gate or formulas.keeps_value(call.gated)
        keeps_gate = need_value or formulas.keeps_gate(call.gated)
        ctx.save_for_backward(value if keeps_value else None, gate if keeps_gate else None)
        ctx.set_materialize_grads(False)
        return out


def _known_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are equal, without a guard on a size that is a symbol."""
    if len(one) != len(other):
        return False
    return all(a == b if type(a) is type(b) is int else _is_known_true(a == b) for a, b in zip(one, other, strict=True))


def _is_known_true(comparison: Any) -> bool:
    if not isinstance(comparison, torch.SymBool):  # in a trace by torch.jit sizes are tensors
        return bool(comparison)
    # The module imports sympy, so only a process with symbols imports it.
    symbolic_shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    return bool(symbolic_shapes.statically_known_true(comparison))


@dataclass(slots=True)
class LerpProblem(Problem):
    """Backward of ``start + weight * (end - start)``, of grad_output, start, end, weight."""

    def run(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        start, end, weight = self.shapes
        grad = tensors[0]
        assert grad is not None
        # An operand without a shape has grad_output's.
        shapes = [None if _known_equal(shape, grad.shape) else shape for shape in (start, end)]
        return self.core.launch(self.call.backward, tensors, needs, None, (*shapes, weight))

    def formula(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        grad, start, end, weight = tensors
        assert grad is not None
        factor = factor_of(self.call) if weight is None else weight
        return formulas.lerp_backward(grad, start, end, factor, self.shapes, needs)


class Lerp(OneOutput):
    """``start + weight * (end - start)``; without a weight tensor, the call has a number."""

    @staticmethod
    def forward(ctx: Any, core: Launcher, call: Call, start: Tensor, end: Tensor, weight: Tensor | None) -> Tensor:
        (out,) = core.launch(call, (start, end, weight), (True,))
        assert out is not None
        need_start, need_end, need_weight = ctx.needs_input_grad[2:]
        ctx.problem = LerpProblem(core, call, (start.shape, end.shape, None if weight is None else weight.shape))
        ctx.save_for_backward(
            start if need_weight else None,
            end if need_weight else None,
            weight if need_start or need_end else None,
        )
        ctx.set_materialize_grads(False)
        return out
