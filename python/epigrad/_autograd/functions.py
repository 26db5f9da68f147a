"""The two `torch.autograd.Function`s, and `Gradient`, the function that their backward is.

Backward runs the fused kernels. When the gradient will itself be differentiated
(``create_graph=True``, which is when grad mode is on inside backward) the same kernels run inside
`Gradient`, so a gradient has the same bits either way; `Gradient` is differentiated through the
operation's `Maths`, and so on to any order.

A saved preactivation is a hidden second output of the forward function: autograd's version counter
guards it, and second order flows through it back into the function's own node, where it arrives as
``grad_hidden``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from epigrad import errors
from epigrad._autograd import adapted
from epigrad._autograd.engine import asked, asked_unless_cheap
from epigrad._autograd.main_grad import Sinks, accumulated, add_lock, delivered, outputs_of, refuse_graph
from epigrad._core.adapters import scales_of, with_scales
from epigrad._core.call import Call
from epigrad._core.checks import PLAIN_OR_NONE, check_save
from epigrad._core.launcher import DISPATCHER, Launcher, Tensors
from epigrad._core.tables import ACTIVATIONS, OPS, backward_row, row_of
from epigrad._core.torch_state import transforms_active

# What forward keeps for the derivative of the activation.
NOTHING, PREACTIVATION, OUTPUT, RECOMPUTE = range(4)

_LEGACY_BATCH = torch._C._dispatch_key_parse("Batched")

Needs = tuple[bool, ...]
Reads = dict[str, str]
"""For the name of a tensor, those of the tensors whose gradients read it, or ``"*"`` for all."""


@dataclass(frozen=True)
class Maths:
    """An operation in PyTorch operations, and what its gradients read.

    Attributes:
        value: of a call and its tensors, the output, and the preactivation of one that keeps it.
        backward: of a call, `Problem.shapes`, needs and the tensors of the backward operation, the
            gradients. Of layers also of the keyword `grad_hidden`.
        composed: `value` by operations that exporters such as ONNX know; None if `value` is.
        reads: of layers: of a kind, what gradients read. It has the preactivation too, and under
            ``"recompute"`` the tensors that form it again.
        keeps: of others: of a call and needs, whether forward keeps each tensor; None keeps all.
        operands: of a problem's shapes and tensors, the tensors and shapes that kernels get; None
            if they get the same.
        second: the backward of `backward` by the core: of a problem, needs, the gradients to its
            results and the tensors of the backward operation. If it is None, or gives None, what
            `backward` does is differentiated, which takes longer for a few rows.
    """

    value: Callable[..., Any]
    backward: Callable[..., Tensors]
    composed: Callable[..., Any] | None = None
    reads: Callable[[str | None], Reads] | None = None
    keeps: Callable[[Call, Needs], Needs] | None = None
    operands: Callable[..., tuple[Tensors, tuple[Any, ...]]] | None = None
    second: Callable[..., Tensors | None] | None = None


MATHS: dict[str, Maths] = {}
"""The maths of each operation, by its name: `epigrad.ops` has the rows."""


def lies_transposed(weight: Tensor) -> bool:
    """Whether a weight is a transposed matrix, or one for each group. Its gradient lies as it does,
    so backward gets the weight, and not its shape alone.
    """
    if weight.ndim not in (2, 3) or weight.stride()[-2:] != (1, weight.shape[-2]):
        return False
    return weight.ndim == 2 or weight.stride(0) == weight.shape[1] * weight.shape[2]


@dataclass(frozen=True, slots=True)
class By:
    """How a formula of layers is computed.

    Attributes:
        core: what computes passes over elements; None is PyTorch.
        formed: whether the values of products count. Else only gradients of them do, and products
            that nothing else reads are not computed.
    """

    core: Launcher | None = None
    formed: bool = True


@dataclass(slots=True)
class Problem:
    """One backward; `call` is forward's. `run` and `formula` take the same tensors.

    `shapes` are of the tensors after the first: forward keeps none whose values are not needed.
    """

    core: Launcher
    call: Call
    shapes: tuple[Any, ...] = ()

    @property
    def left_out(self) -> tuple[Any, ...] | None:
        """The shapes of tensors that were left out. A call with adapters leaves none out: None."""
        return self.shapes if len(self.shapes) <= len(OPS[self.call.op].inputs) else None

    @property
    def gradient_shapes(self) -> tuple[Any, ...]:
        """The shapes of the gradients, None for one that cannot exist."""
        return tuple([self.shapes[place] for place in backward_row(self.call.op, len(self.shapes)).of_forward])

    def run(self, needs: Needs, *tensors: Tensor | None) -> Tensors:
        """The gradients by the fused kernels."""
        shapes, operands = self.left_out, MATHS[self.call.op].operands
        if operands is not None:
            tensors, shapes = operands(shapes, *tensors)
        return self.core.launch(self.call.backward, tensors, needs, None, shapes)

    def formula(self, needs: Needs, *tensors: Tensor | None, by: By | None = None, **options: Any) -> Tensors:
        """The gradients by differentiable operations, those of layers as `by` says."""
        if row_of(self.call.op + "_backward", len(tensors)).is_adapted:
            value, scales = MATHS[self.call.op].value, scales_of(self.core)
            return adapted.gradients(value, self.call, scales, needs, *tensors, **options)
        if by is not None and OPS[self.call.op].keeps and self.is_fused:
            options["by"] = by
        return MATHS[self.call.op].backward(self.call, self.shapes, needs, *tensors, **options)

    @property
    def is_fused(self) -> bool:
        """Whether the core has the backward of gradients."""
        return self.call.backend != "webgpu"

    def second(self, wanted: Needs, grads: Tensors, *tensors: Tensor | None) -> Tensors | None:
        """The backward of its gradients by the core, None if `formula` is to be differentiated."""
        rule = MATHS[self.call.op].second
        if not self.is_fused or all(grad is None for grad in grads):
            return None
        if f"{self.call.backward.op}_backward" in OPS:
            return differentiate(Problem(self.core, self.call.backward), wanted, *grads, *tensors)
        return None if rule is None or self.left_out is None else rule(self, wanted, grads, *tensors)


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
        dispatched = with_scales(DISPATCHER, scales_of(problem.core))
        # A batch of gradients (is_grads_batched) is no transform of torch.func's.
        if any(torch._C._dispatch_keys(t).has(_LEGACY_BATCH) for t in tensors if t is not None):
            return problem.formula(needs, *tensors)
        if problem.core == dispatched or PLAIN_OR_NONE.issuperset(map(type, tensors)):
            raise
    # A gradient may be a tensor subclass where no input was one, as a collective's result is.
    return differentiate(replace(problem, core=dispatched), needs, *tensors)


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
        problem: Problem = ctx.problem
        if (second := problem.second(wanted, grads, *ctx.saved_tensors)) is not None:
            return (None, None, *second)
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
            outputs = problem.formula(ctx.needs, *tensors, by=By(problem.core, formed=False))
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


class Elementwise(Fused):
    """A function without a product, of a core, a call and tensors; it has one output."""

    @staticmethod
    def forward(ctx: Any, core: Launcher, call: Call, *tensors: Tensor | None) -> Tensor:
        (out,) = core.launch(call, tensors, (True,))
        assert out is not None
        keeps = MATHS[call.op].keeps
        if keeps is None:
            ctx.problem = Problem(core, call)
            ctx.save_for_backward(*tensors)
        else:
            shapes = [None if tensor is None else tensor.shape for tensor in tensors]
            ctx.problem = Problem(core, call, tuple(shapes))
            which = keeps(call, ctx.needs_input_grad[2:])
            ctx.save_for_backward(*[tensor if keep else None for tensor, keep in zip(tensors, which, strict=True)])
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[2:]
        if grad_output is None:
            return (None,) * (2 + len(needs))
        needs = asked_unless_cheap(ctx, needs, grad_output)
        return (None, None, *differentiate(ctx.problem, needs, grad_output, *ctx.saved_tensors))


def kept(call: Call, save: str) -> int:
    """What forward keeps for the derivative of the activation, in a save mode."""
    check_save(call.op, save)
    keeps = OPS[call.op].keeps
    if keeps != "hidden" and call.kind == "none":
        return NOTHING
    if keeps == "output" and save == "auto" and ACTIVATIONS[call.kind or "none"].from_output:
        return OUTPUT
    return RECOMPUTE if save == "recompute" else PREACTIVATION


@functools.lru_cache(maxsize=1024)
def _read(op: str, kind: str | None, needs: Needs, keep: int) -> tuple[tuple[bool | None, ...], bool]:
    """Whether backward reads each tensor of layers, and whether it reads their preactivation. For a
    weight that it does not read, the answer is None.
    """
    names, reads = OPS[op].tensors, MATHS[op].reads
    if len(needs) > len(names):  # adapters read their layers' inputs, and everything before
        return (True,) * len(needs), keep == PREACTIVATION
    assert reads is not None
    given, needed = reads(kind), {name for name, need in zip(names, needs, strict=True) if need}

    def is_read(name: str) -> bool:
        readers = given.get(name, "").split()
        return readers == ["*"] or not needed.isdisjoint(readers)

    preactivation = is_read("preactivation")
    formed_again = given["recompute"].split() if keep == RECOMPUTE and preactivation else ()
    tensors = [
        is_read(name) or name in formed_again or (None if name == "b" or name.startswith("weight") else False)
        for name in names
    ]
    return tuple(tensors), preactivation and keep == PREACTIVATION


@functools.cache
def _first_weight(op: str) -> int:
    """The place of a layer's first weight among its tensors."""
    names = OPS[op].tensors
    return next(place for place, name in enumerate(names) if name == "b" or name.startswith("weight"))


class Layers(Fused):
    """Layers, of a core, a call, what is kept, and tensors.

    Their second, hidden output is the preactivation.
    """

    @staticmethod
    def forward(ctx: Any, core: Launcher, call: Call, keep: int, *tensors: Tensor | None) -> Tensors:
        reads, keeps_preactivation = _read(call.op, call.kind, ctx.needs_input_grad[3:], keep)
        out, preactivation = core.launch(call, tensors, (True, keeps_preactivation))
        saved, shapes = [], []
        for tensor, is_read in zip(tensors, reads, strict=True):
            is_kept = is_read or (is_read is None and tensor is not None and lies_transposed(tensor))
            saved.append(tensor if is_kept else None)
            shapes.append(None if tensor is None else tensor.shape)
        own = len(OPS[call.op].inputs)
        saved.insert(own, preactivation)
        if OPS[call.op].keeps == "output":
            saved.insert(own + 1, out if keep == OUTPUT else None)
        ctx.problem = Problem(core, call, tuple(shapes))
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return out, preactivation

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_hidden: Tensor | None) -> tuple[Any, ...]:
        problem, needs = ctx.problem, ctx.needs_input_grad[3:]
        count = len(needs)
        places = backward_row(problem.call.op, count).of_forward
        if len(places) < count:  # a tensor of integers has no gradient
            needs = tuple([needs[place] for place in places])
        sinks: Sinks | None = getattr(ctx, "sinks", None)
        if sinks is None and grad_output is not None:
            needs = asked_unless_cheap(ctx, needs, grad_output, problem.shapes[_first_weight(problem.call.op)])
        else:
            needs = asked(ctx, needs)
        grads: Tensors = (None,) * len(needs)
        has_graph = grad_output is None or grad_hidden is not None or torch.is_grad_enabled()
        if sinks is not None:
            sinks = accumulated(sinks, needs)
            if has_graph:
                refuse_graph(problem.call.op, sinks, needs)
        if grad_hidden is not None:
            options = {"grad_hidden": grad_hidden, "by": By(problem.core)}
            grads = problem.formula(needs, grad_output, *ctx.saved_tensors, **options)
        elif sinks is not None and not has_graph:
            grads = _into_sinks(problem, sinks, needs, grad_output, *ctx.saved_tensors)
        elif grad_output is not None:
            grads = differentiate(problem, needs, grad_output, *ctx.saved_tensors)
        if len(places) == count:
            return (None, None, None, *grads)
        found = dict(zip(places, grads, strict=True))
        return (None, None, None, *[found.get(place) for place in range(count)])


def _into_sinks(problem: Problem, sinks: Sinks, needs: Needs, *tensors: Tensor | None) -> Tensors:
    call = problem.call.backward
    outputs, adds = outputs_of(call.op, sinks, needs, problem.gradient_shapes, tensors)
    launched = call._replace(accumulate=True) if adds else call
    with add_lock(adds):
        results = problem.core.launch(launched, tensors, needs, tuple(outputs), problem.left_out)
    return delivered(sinks, needs, results)
