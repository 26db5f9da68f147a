"""A case's tensors, the call of its operation, and its results by the reference and by PyTorch.

Names, shapes and spreads of tensors are those of `python -m epigrad check`; only what they are
compared with is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import epigrad
import numpy as np
import torch
from epigrad._check.calls import Inputs
from epigrad._check.operations import Shapes, formed_shapes, product_shape, spread
from epigrad._core import tables
from torch import Tensor
from torch.nn import functional

from tests.support import compositions, references
from tests.support.cases import (
    EXPERTS_SHAPES,
    GATED_SHAPES,
    GEMM_SHAPES,
    GROUPED_SHAPES,
    LEARNABLE_SHAPES,
    LERP_SHAPES,
    LINEAR_SHAPES,
    MLP_SHAPES,
    XIELU_BETAS,
    Case,
    named,
)
from tests.support.layouts import assert_same_bits, draw, laid_out
from tests.support.oracle import Sized
from tests.support.parity import Results, Wanted

Operands = list[Tensor | None]


@dataclass(frozen=True)
class Problem:
    """What a case stands for.

    Attributes:
        case: the case.
        op: the operation.
        inputs: the tensors, and what stands beside them.
        options: the call's other arguments, by name.
    """

    case: Case
    op: str
    inputs: Inputs
    options: dict[str, Any]

    @property
    def operands(self) -> Operands:
        """The tensors that have gradients, in the order of the arguments."""
        return list(self.inputs.given.values())

    @property
    def grad_output(self) -> Tensor:
        return self.inputs.grad

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of the gradients."""
        return tuple(f"grad_{name}" for name in self.inputs.given)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the output and the gradients."""
        return "out", *self.gradients

    def with_operands(self, operands: Operands) -> dict[str, Any]:
        """The arguments of a call with these in place of the case's own."""
        given = dict(zip(self.inputs.given, operands, strict=True))
        return replace(self.inputs, given=given).operands(self.op) | self.options

    def forward(self, **options: Any) -> Any:
        """What the function without a graph gives."""
        return getattr(epigrad.forward, self.op)(**self.with_operands(self.operands), **options)

    def backward(self, **options: Any) -> tuple[Tensor | None, ...]:
        """What its gradients' function gives."""
        function = getattr(epigrad.backward, f"{self.op}_backward")
        found = function(self.grad_output, **self.with_operands(self.operands), **options)
        return found if isinstance(found, tuple) else (found,)

    def differentiated(self, asked: int | None = None, **options: Any) -> tuple[Tensor, Operands]:
        """The output, and each gradient or the one that is asked for. The second backward of a
        retained graph must give the same bits."""
        leaves = [
            None if x is None else x.detach().requires_grad_(asked in (None, place))
            for place, x in enumerate(self.operands)
        ]
        if tables.OPS[self.op].keeps:
            options = {"save": self.case.save} | options
        out = getattr(epigrad, self.op)(**self.with_operands(leaves), **options)
        asking = [x for x in leaves if x is not None and x.requires_grad]
        first = torch.autograd.grad(out, asking, self.grad_output, retain_graph=True)
        for one, other in zip(first, torch.autograd.grad(out, asking, self.grad_output), strict=True):
            assert_same_bits(one, other, "second backward under retain_graph")
        gradients = iter(first)
        return out.detach(), [next(gradients) if x is not None and x.requires_grad else None for x in leaves]

    def assert_each_alone(self, gradients: Results) -> None:
        """Fails unless each gradient has the bits that it has when all are asked for."""
        for asked, (name, whole) in enumerate(zip(self.gradients, gradients, strict=True)):
            if whole is not None:
                assert_same_bits(self.differentiated(asked)[1][asked], whole, name)

    @property
    def row(self) -> Any:
        """What the oracle knows of the kind; None where there is none."""
        if not tables.OPS[self.op].kinds:
            return None
        return self.case.gated if self.case.is_gated else self.case.row

    def composition(self, act: Any) -> Callable[..., Tensor]:
        """The operation made of PyTorch's, with this activation or product."""
        return compositions.of(self.op, act, {**self.inputs.others, **self.options})

    @property
    def _eager(self) -> Callable[..., Tensor]:
        if self.op == "gated_activation" and self.case.kind == "glu" and self.case.gate == "second":
            return functools.partial(functional.glu, dim=self.options["dim"])
        return self.composition(self.row and self.row.eager)

    def wanted(self) -> Wanted:
        """The output and the gradients."""
        out, gradients = compositions.with_gradients(self._eager, self.operands, self.grad_output)
        exact = self.composition(self.row and self.row.value)
        out64, gradients64 = compositions.in_float64(exact, self.operands, self.grad_output)
        return Wanted(self._reference(), (out, *gradients), (out64, *gradients64))

    def wanted_gradients(self) -> Wanted:
        """The gradients alone."""
        wanted = self.wanted()
        assert wanted.autograd is not None
        return Wanted(wanted.reference[1:], wanted.eager[1:], wanted.autograd[1:])

    def sized(self, tensor: Tensor | float | None) -> Sized | None:
        """A tensor as an exact input of the reference."""
        return None if tensor is None else Sized.of(tensor, self.case.dtype)

    def _reference(self, preactivation: Sized | None = None) -> tuple[Sized | None, ...]:
        sized = [self.sized(each) for each in self.operands]
        known = {
            name: self.sized(each) if isinstance(each, float) else each.cpu() if isinstance(each, Tensor) else each
            for name, each in {**self.inputs.others, **self.options}.items()
        }
        known |= {} if preactivation is None else {"preactivation": preactivation}
        return references.of(self.op, self.row, self.sized(self.grad_output), sized, known)

    def preactivation(self) -> Tensor:
        """What goes into the activation of one product, as PyTorch rounds it."""
        return self.composition(lambda x: x)(*self.operands)

    def wanted_preactivation(self) -> Wanted:
        """The preactivation."""
        eager = self.preactivation()
        return Wanted((self._sized_preactivation().reshape(eager.shape),), (eager,))

    def wanted_from(self, preactivation: Tensor) -> Wanted:
        """The gradients alone, for a preactivation that stands for itself, not for what rounding
        made of another."""
        _, (grad_pre,) = compositions.with_gradients(self.row.eager, [preactivation], self.grad_output)
        assert grad_pre is not None
        _, gradients = compositions.with_gradients(self.composition(lambda x: x), self.operands, grad_pre)
        return Wanted(self._reference(self.sized(preactivation))[1:], gradients)

    def _sized_preactivation(self) -> Sized:
        return references.product(self.op, *[self.sized(each) for each in self.operands])

    def away_from_kinks(self) -> Problem:
        """Stops the gradient where rounding decides on which side of a kink a preactivation falls:
        either is right."""
        pre = self._sized_preactivation()
        distance = np.min([np.abs(pre.value - kink) for kink in self.case.kinks], axis=0)
        near = torch.from_numpy(distance <= 4 * torch.finfo(self.case.dtype).eps * pre.size)
        grad = self.grad_output
        grad.masked_fill_(near.reshape(grad.shape).to(grad.device), 0.0)
        return self


@dataclass(frozen=True)
class _Described:
    """Shapes of a case's tensors by name, and what stands beside them."""

    shapes: Shapes
    others: Mapping[str, Any]
    options: Mapping[str, Any]


def _formed(op: str, case: Case, symbols: Mapping[str, Any], **others: Any) -> _Described:
    return _Described(formed_shapes(op, symbols, {}, case.is_gated), others, {})


def _described(op: str, case: Case, generator: torch.Generator) -> _Described:
    """What a name in a table of shapes stands for, or a literal of its form."""
    match op:
        case "matmul_bias_activation":
            a, b = named(GEMM_SHAPES, case.shape)
            own = {"a": a, "b": b, "bias": b[-1:] if len(b) > 1 else (), "out": product_shape(a, b)}
            return _Described(own, {}, {})
        case "linear":
            (*leading, features), (_, columns) = named(LINEAR_SHAPES, case.shape)
            return _formed(op, case, {"...": leading, "K": features, "N": columns})
        case "mlp" | "gated_mlp" | "gated_linear":
            (*leading, features), hidden = MLP_SHAPES[case.shape]
            return _formed(op, case, {"...": leading, "K": features, "H": hidden, "N": 3})
        case "grouped_linear":
            rows, features, columns, ends = GROUPED_SHAPES[case.shape]
            offsets = torch.tensor(ends, dtype=torch.int32 if case.source == "float32" else torch.int64)
            symbols = {"T": rows, "K": features, "N": columns, "E": len(ends)}
            return _formed(op, case, symbols, offsets=offsets.to(case.memory))
        case "experts":
            tokens, features, hidden, count, each = EXPERTS_SHAPES[case.shape]
            # Two indices are nobody's, and an expert may be chosen twice, or never.
            index = torch.randint(-1, count + 1, (tokens, each), generator=generator).to(case.memory)
            symbols = {"T": tokens, "K": features, "H": hidden, "E": count, "J": each}
            return _formed(op, case, symbols, index=index)
        case "lerp":
            start, end, weight = named(LERP_SHAPES, case.shape)
            is_number = isinstance(weight, float)
            given = {"start": start, "end": end, "weight": None if is_number else weight}
            out = torch.broadcast_shapes(*[each for each in given.values() if each is not None])
            return _Described({**given, "out": out}, {"weight": weight} if is_number else {}, {})
        case "prelu" | "xielu":
            shape, weight = named(LEARNABLE_SHAPES, case.shape)
            if op == "prelu":
                return _Described({"input": shape, "weight": weight, "out": shape}, {}, {})
            alphas = {"alpha_p": (1,) if weight else (), "alpha_n": (1,)}
            beta = {"beta": XIELU_BETAS[str(case.kind)]}
            return _Described({"input": shape, **alphas, "out": shape}, {}, beta)
        case "activation":
            # PyTorch's worst error is looked for over further draws: nothing is summed here, so
            # these may be longer.
            return _formed(op, case, {"...": (257,) if case.draw else named(GATED_SHAPES, case.shape)[0]})
        case _:
            shape, dim = named(GATED_SHAPES, case.shape)
            out = list(shape)
            out[dim] //= 2
            return _Described({"input": shape, "out": tuple(out)}, {}, {"dim": dim})


_STEPS = {
    "matmul_bias_activation": {"a": 0, "bias": 2, "b": 3},
    "linear": {"input": 0, "bias": 2, "weight": 3},
}
"""How many layouts after the case's own an operand has, in the order of drawing."""
_GRAD_STEPS = {"activation": 1, "gated_activation": 3, "gated_product": 3, "lerp": 4, "prelu": 4, "xielu": 4}
"""The same of the output's gradient; 5 where there is a product."""
MASKED = ("matmul_bias_activation", "linear")
"""Operations whose gradient is stopped near kinks. Others that multiply have signs for operands, so
that preactivations are odd numbers: rounding never decides on which side of a kink they fall."""


def problem_of(case: Case) -> Problem:
    """A case's problem. The preactivation has about the standard deviation that its scale says."""
    op, generator = str(case.kind).partition("(")[0] if case.op == "learnable" else case.op, case.generator
    row = tables.OPS[op]
    described = _described(op, case, generator)
    shapes = {each.name: described.shapes.get(each.name) for each in row.inputs if each.types in ("call", "wider")}
    if op == "gated_product":
        shapes = {"input": described.shapes["input"]}
    masked = bool(case.kinks) and op in MASKED if row.kinds else False
    given: dict[str, Tensor | None] = {}
    steps = _STEPS.get(op) or {name: step for step, name in enumerate(shapes)}
    for name, step in steps.items():
        shape = shapes[name]
        if shape is None or (name.startswith("bias") and not case.bias):
            given[name] = None
            continue
        values = draw(shape, generator, spread(op, name, shape, case.scale_of_preactivation))
        if row.multiplies and case.kinks and not masked:
            values = _odd(name, values)
        wide = name == "scale" and case.source == "float32" and case.dtype.itemsize == 2
        given[name] = laid_out(values, torch.float32 if wide else case.dtype, case.layout_after(step), case.memory)
    # A gradient is masked near kinks, which needs memory of its own for every element.
    step = -5 if masked and "expanded" in case.layout_after(5) else _GRAD_STEPS.get(op, 5)
    grad = case.tensor(described.shapes["out"] or (), generator, step)
    given = {name: given[name] for name in shapes}
    options = dict(described.options)
    if row.kinds:
        options[row.kind_argument] = case.kind
    if row.halves and case.is_gated:
        options["gate"] = case.gate
    if op == "gated_product":  # of views of one tensor
        whole = given["input"]
        assert whole is not None
        given = dict(zip(("value", "gate"), compositions.halves(whole, options.pop("dim"), case.gate), strict=True))
    problem = Problem(case, op, Inputs(given, grad, dict(described.others)), options)
    return problem.away_from_kinks() if masked else problem


def _odd(name: str, values: Tensor) -> Tensor:
    """An operand of a first layer as signs, or as an even number for a bias. An odd number of signs
    is never 0."""
    if name == "input":
        signs = torch.where(values < 0, -1.0, 1.0)
        if signs.shape[-1] % 2 == 0:
            signs[..., -1:] = 0.0
        return signs
    if name in ("scale", "weight2", "bias2", "weight_out", "bias_out"):
        return values
    return 2 * values.round() if name.startswith("bias") else torch.where(values < 0, -1.0, 1.0)
