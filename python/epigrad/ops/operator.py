"""The operators of ``torch.ops.epigrad``, each made of two rows, and their registration.

The row of the operation (go/op, by way of `epigrad._core.tables`) has the schema, the shapes and
what is kept. `Rules` has what an operation needs of PyTorch besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from epigrad import errors
from epigrad._autograd.adapted import with_weights
from epigrad._autograd.functions import (
    PREACTIVATION,
    Elementwise,
    Gradient,
    Layers,
    Maths,
    Problem,
    kept,
    lies_transposed,
)
from epigrad._core import loader
from epigrad._core.call import Call, make_call
from epigrad._core.checks import PLAIN
from epigrad._core.launcher import COMPOSED, DISPATCHER, Launcher, Tensors, only, overload
from epigrad._core.tables import Operation
from epigrad._core.torch_state import transforms_active, unpack_dual, with_adapters
from epigrad.kinds import Activation, Gated, either_of
from epigrad.ops import batching, flops, shapes


@dataclass(frozen=True)
class Rules(Maths):
    """What an operation is to PyTorch besides its row.

    Attributes:
        batched: the rule of `torch.vmap`, of ``info, in_dims, *arguments``; None calls each slice.
        gradients_batched: that of the gradients.
        casts: casts the arguments under autocast; None leaves them.
        shapes: the shapes of the output and the preactivation, of a call and its tensors; None if
            the row has them in symbols.
        check: refuses tensors that the maths would take and the kernels would not.
    """

    batched: Callable[..., Any] | None = None
    gradients_batched: Callable[..., Any] | None = None
    casts: Callable[..., tuple[Any, ...]] | None = None
    shapes: Callable[..., shapes.Shapes] | None = None
    check: Callable[[str, Mapping[str, Any]], None] | None = None


class Bound:
    """One call of an operator, its arguments bound.

    Attributes:
        row, rules: those of the operator.
        given: the arguments by name.
        tensors: the operands, in the core's order; results are like the first.
        call: the core's call of the function itself.
        needs: which results are wanted.
    """

    def __init__(self, operator: Operator, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        self.row, self.rules = operator.row, operator.rules
        self.given = dict(zip(operator.names, arguments, strict=False)) | options
        self.tensors: Tensors = tuple([self.given.get(name) for name in self.row.tensors])
        self.call = _call(self.row, self.given)
        if self.given.get("batch_invariant"):
            self.call = self.call.as_batch_invariant
        self.needs: Sequence[bool] = (True,)

    def formula(self) -> Any:
        """Compute by differentiable PyTorch operations, for `torch.func` and forward mode."""
        if self.rules.check is not None:
            self.rules.check(self.row.name, self.given)
        return self._computed(self.rules.value)

    def composed(self) -> Any:
        """Compute by PyTorch operations that exporters such as ONNX know."""
        return self._computed(self.rules.composed or self.rules.value)

    def _computed(self, formula: Callable[..., Any]) -> Any:
        return self.returned((formula(self.call, *self.operands),))

    @property
    def operands(self) -> tuple[Any, ...]:
        """The tensors as formulas take them: weights with their adapters."""
        return with_weights(self.call.op, self.tensors) if self.row.is_adapted else self.tensors

    def recorded(self) -> Any:
        return Elementwise.apply(DISPATCHER, self.call, *self.tensors)

    def returned(self, results: Tensors) -> Any:
        """The results as the schema has them: a single result is not in a tuple."""
        return only(results)

    def kernel(self) -> Any:
        return self.returned(loader.core().launch(self.call, plain(*self.tensors), tuple(self.needs)))

    def fake(self) -> Any:
        return self.returned(self.new_results())

    def symbolic(self) -> shapes.Shapes:
        """The shapes of all results, computed from symbolic sizes."""
        if self.rules.shapes is not None:
            return self.rules.shapes(self.call, *self.tensors)
        return shapes.from_symbols(self.row, self.tensors, self.call.is_gated)

    def inferred(self) -> shapes.Shapes:
        """The results' shapes, None for a result that is not needed. Validates the operands."""
        call = self.call.backward if self.row.is_backward else self.call
        return shapes.inferred(call, self.row, self.tensors, self.needs, self.symbolic)

    def new_results(self) -> Tensors:
        """Uninitialised results, None for a result that is not needed."""
        first = self.tensors[0]
        assert first is not None
        return tuple(
            [
                None if shape is None else first.new_empty(shape, dtype=self.given.get(output.like, first).dtype)
                for shape, output in zip(self.inferred(), self.row.outputs, strict=False)
            ]
        )


class BoundLayers(Bound):
    """A call that returns its output and its preactivation, which is empty if not needed."""

    def __init__(self, operator: Operator, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        super().__init__(operator, arguments, options)
        self.keep = kept(self.call, self.given.get("save", "auto"))
        self.needs = (True, self.keep == PREACTIVATION)

    def recorded(self) -> Any:
        return self.returned(Layers.apply(DISPATCHER, self.call, self.keep, *self.tensors))

    def _computed(self, formula: Callable[..., Any]) -> Any:
        out, preactivation = formula(self.call, *self.operands)
        return self.returned((out, preactivation if self.needs[1] else None))

    def returned(self, results: Tensors) -> tuple[Tensor, Tensor]:
        out, preactivation = results
        assert out is not None
        return out, out.new_empty(0) if preactivation is None else preactivation


class BoundGradients(Bound):
    """A call of a backward operator, which its `Problem` computes. Of a tensor that is not needed
    it reads only the shape."""

    def __init__(self, operator: Operator, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        super().__init__(operator, arguments, options)
        self.needs = self.given.get("needs", (True,) * len(self.row.gradients))

    def problem(self, core: Launcher) -> Problem:
        return Problem(core, self.call, shapes.of_inputs(self.row, self.tensors))

    def returned(self, results: Tensors) -> Any:
        return results if len(self.row.gradients) > 1 else only(results)

    def kernel(self) -> Any:
        return self.returned(self.problem(loader.core()).run(tuple(self.needs), *plain(*self.tensors)))

    def recorded(self) -> Any:
        return self.returned(Gradient.apply(self.problem(DISPATCHER), tuple(self.needs), *self.tensors))

    def _computed(self, formula: Callable[..., Any]) -> Any:
        return self.returned(self.problem(DISPATCHER).formula(tuple(self.needs), *self.tensors))

    def symbolic(self) -> shapes.Shapes:
        given = shapes.of_inputs(self.row, self.tensors)
        if self.rules.shapes is None:
            # of an adapter that is left out nothing says the rank
            shapes.sizes_of(self.row, shapes.shapes_of(self.tensors), self.call.is_gated)
        elif all(tensor is not None for tensor in self.tensors[1:]):
            out = self.rules.shapes(self.call, *self.tensors[1:])[0]
            shapes.same_shape(self.row.name, "grad_output", self.tensors[0].shape, out)  # type: ignore[union-attr, arg-type]
        return tuple([given[place] for place in self.row.of_forward])

    def fake(self) -> Any:
        results = self.new_results()
        if self.row.multiplies:
            pairs = zip(results, self.row.gradients, strict=True)
            results = tuple([_as_weight(result, self.tensors[place], place) for result, place in pairs])
        return self.returned(results)


def _as_weight(gradient: Tensor | None, weight: Tensor | None, place: int) -> Tensor | None:
    """The gradient, in the weight's layout if that is a dense transposed matrix. PyTorch keeps the
    gradient of a parameter in that layout. cbridge/launch.c has the same rule.
    """
    if gradient is None or weight is None or place == 1 or not lies_transposed(weight) or min(weight.shape[-2:]) < 2:
        return gradient
    *groups, rows, columns = weight.shape
    return gradient.new_empty((*groups, columns, rows)).mT


def _call(row: Operation, given: Mapping[str, Any]) -> Call:
    """The core's call of an operator's function."""
    op, backend = row.forward, given.get("backend")
    if row.takes_number:
        weight, factor = given.get("weight"), given.get("factor")
        if (weight is None) == (factor is None):
            both = "neither" if weight is None else "both"
            raise errors.InvalidProblemError(f"{row.name}: weight and factor: {both}, want one of them")
        return Call(op, parameters=() if factor is None else (factor,), backend=backend)
    if not row.kinds:
        numbers = tuple([given.get(parameter.name, parameter.default) for parameter in row.parameters])
        return Call(op, parameters=numbers, backend=backend)
    kind = given.get(row.kind_argument, row.default_kind) or "none"
    of_gates = row.kinds == "gated" or (row.kinds == "either" and isinstance(either_of(op, kind), Gated))
    found = (Gated if of_gates else Activation).of(op, kind, tuple(given.get("parameters", ())))
    gate = given.get("gate", "second") if row.halves else "second"  # a tensor may be called gate
    return make_call(op, found, given.get("dim", -1 if row.splits else 0), gate, backend)


class Operator:
    """One operator.

    Attributes:
        row, rules: what it is made of.
        name: after ``torch.ops.epigrad.``; with adapters it is an overload, ``linear.adapted``.
        names: its arguments that may be given by position.
    """

    def __init__(self, row: Operation, rules: Rules) -> None:
        self.row, self.rules = row, rules
        self.name = f"{row.name}.adapted" if row.is_adapted else row.name
        last = [name for name, argument in zip(row.tensors, row.inputs, strict=True) if argument.comes_last]
        between = [row.kind_argument] * bool(row.kinds) + ["dim"] * row.splits + [p.name for p in row.parameters]
        self.names = (*[name for name in row.tensors if name not in last], *between, *last)

    @property
    def overload(self) -> Any:
        return overload(self.row.name, self.row.is_adapted)

    @property
    def bare(self) -> Any:
        """The operator without rules for autograd, autocast and vmap. The code of `torch.compile`
        calls it. Its kernels for the CPU and CUDA are in C (cbridge/torch).
        """
        packet = getattr(torch.ops.epigrad, f"_{self.row.name}")
        return packet.adapted if self.row.is_adapted else packet.default

    def decomposed(self, *arguments: Any, **options: Any) -> Any:
        return self.bound(*arguments, **options).composed()

    def bound(self, *arguments: Any, **options: Any) -> Bound:
        bound = BoundGradients if self.row.is_backward else BoundLayers if self.row.keeps else Bound
        return bound(self, arguments, options)

    def flops(self, *arguments: Any, **options: Any) -> int:
        """The count for `torch.utils.flop_counter`, which gives shapes in place of tensors."""
        return flops.count(self.row, dict(zip(self.names, arguments, strict=False)) | options)

    @property
    def casts(self) -> Callable[..., tuple[Any, ...]] | None:
        """Casts the arguments under autocast; None leaves them."""
        if self.rules.casts is None or not self.row.is_adapted:
            return self.rules.casts
        return partial(with_adapters, self.rules.casts, len(self.names) - 2 * len(self.row.adapters))

    @property
    def batched(self) -> Callable[..., Any]:
        rule = self.rules.gradients_batched if self.row.is_backward else self.rules.batched
        if rule is not None and self.row.is_adapted:
            rule = batching.by_rows(self.row.name, adapted=True)
        return rule or batching.slice_by_slice(self.overload)


def call(name: str, *arguments: Any, adapted: bool = False, **options: Any) -> Any:
    return overload(name, adapted)(*arguments, **options)


def plain(*tensors: Tensor | None) -> Tensors:
    """The tensors without subclasses, which here only carry `__torch_function__`."""
    return tuple([t if t is None or type(t) in PLAIN else t.as_subclass(Tensor) for t in tensors])


def register(operators: Iterable[Operator]) -> Any:
    """Define the operators. They exist for as long as the library that is returned.

    Raises:
        ImportError: the package's modules were dropped from `sys.modules` and imported again. The
            operators could be defined again, but torch.compile, DTensor and the FLOP counter keep
            references to the old ones.
    """
    make: Callable[..., Any] = torch.library.Library
    try:
        defined = make("epigrad", "DEF")
    except RuntimeError as error:
        raise ImportError(
            "epigrad: imported a second time in one process, want it left in sys.modules: PyTorch, torch.compile and "
            "the core keep what the first import gave them"
        ) from error
    # Kernels take any strides, so Inductor need not copy operands into a layout.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
    for operator in operators:
        name = operator.name
        COMPOSED[name] = operator.decomposed
        for spelling in (name, f"_{name}"):
            if not torch._C._dispatch_has_kernel(f"epigrad::{spelling}"):  # libepigrad.so defines them too
                defined.define(spelling + operator.row.schema, tags=tags)
            defined.impl(spelling, _calls(operator, "kernel"), "CompositeExplicitAutograd")
            torch.library.register_fake(f"epigrad::{spelling}", _calls(operator, "fake"), lib=defined)
        defined.impl(name, _above_autograd(operator), "Autograd")
        defined.impl(f"_{name}", torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_vmap(f"epigrad::{name}", operator.batched, lib=defined)
        if operator.casts is not None and not operator.row.is_backward:
            for key in ("AutocastCPU", "AutocastCUDA"):
                defined.impl(name, _under_autocast(operator.casts, operator.overload, key), key)
    return defined


def _calls(operator: Operator, method: str) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        return getattr(operator.bound(*arguments, **options), method)()

    return run


def _above_autograd(operator: Operator) -> Callable[..., Any]:
    # torch.library.register_autograd's fail under torch.func.grad and lose tangents (PyTorch 2.15).
    def above_autograd(*arguments: Any, **options: Any) -> Any:
        tensors = [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]
        has_tangent = forward_ad._current_level >= 0 and any(unpack_dual(t).tangent is not None for t in tensors)
        if transforms_active() or has_tangent:
            bound = operator.bound(*arguments, **options)
            bound.inferred()  # PyTorch's operations would broadcast what the kernels refuse
            return bound.formula()
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return operator.bound(*arguments, **options).recorded()
        with torch._C._AutoDispatchBelowAutograd():
            return operator.overload(*arguments, **options)

    return above_autograd


def _under_autocast(casts: Callable[..., tuple[Any, ...]], overload: Any, key: str) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def under_autocast(*arguments: Any, **options: Any) -> Any:
        cast = casts(*arguments)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return overload(*cast, **options)

    return under_autocast
