"""The classes of an operator of `torch.ops.epigrad`, and its registration.

One `Operator` is one row: its schema and its rules for each part of PyTorch. `register` registers
the rows; nothing is registered anywhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from epigrad._autograd.functions import Gradient, Problem, lies_transposed
from epigrad._core import call as calls
from epigrad._core import loader
from epigrad._core.call import Call
from epigrad._core.checks import PLAIN
from epigrad._core.launcher import COMPOSED, DISPATCHER, Launcher, Tensors, only, overload
from epigrad._core.torch_state import transforms_active, unpack_dual
from epigrad.kinds import Activation, Gated, either_of
from epigrad.ops import batching, shapes


class Bound(ABC):
    """One call of an operator, its arguments bound.

    Attributes:
        call: the core's call of the function itself.
        needs: which results are wanted.
        tensors: the operands, in the core's order; results are like the first.
    """

    call: Call
    needs: Sequence[bool] = (True,)
    tensors: Tensors

    @abstractmethod
    def recorded(self) -> Any:
        """Compute on tensors that require gradients, and record the call for autograd."""

    @abstractmethod
    def formula(self) -> Any:
        """Compute by differentiable PyTorch operations, for `torch.func` and forward mode."""

    @abstractmethod
    def composed(self) -> Any:
        """Compute by PyTorch operations that exporters such as ONNX know."""

    @abstractmethod
    def symbolic(self) -> shapes.Shapes:
        """The shapes of all results, computed from symbolic sizes."""

    def returned(self, results: Tensors) -> Any:
        """The results as the schema has them: a single result is not in a tuple."""
        return only(results)

    def kernel(self) -> Any:
        """Compute, on plain tensors."""
        needs = tuple(self.needs)
        return self.returned(loader.core().launch(self.call, plain(*self.tensors), needs))

    def fake(self) -> Any:
        """Uninitialised results of the right shapes; sizes may be symbols."""
        return self.returned(self.new_results())

    def of_one_dtype(self) -> Tensors:
        """The operands that have the dtype of the call."""
        return self.tensors

    def inferred(self) -> shapes.Shapes:
        """The results' shapes, None for a result that is not needed. Validates the operands."""
        return shapes.inferred(self.call, self.tensors, self.of_one_dtype(), self.needs, self.symbolic)

    def new_results(self) -> Tensors:
        """Uninitialised results, None for a result that is not needed."""
        like = self.tensors[0]
        assert like is not None
        return tuple([None if shape is None else like.new_empty(shape) for shape in self.inferred()])


class Layers(Bound):
    """A call that returns its output and its preactivation, which is empty if not needed."""

    def returned(self, results: Tensors) -> tuple[Tensor, Tensor]:
        out, preactivation = results
        assert out is not None
        return out, out.new_empty(0) if preactivation is None else preactivation


class Gradients(Bound):
    """A call of a backward operator. Its `Problem` computes; this class adds shape inference."""

    @abstractmethod
    def problem(self, core: Launcher) -> Problem:
        """The problem, to be computed by this core."""

    def returned(self, results: Tensors) -> Any:
        return results

    def kernel(self) -> Any:
        return self.returned(self.problem(loader.core()).run(tuple(self.needs), *plain(*self.tensors)))

    def recorded(self) -> Any:
        return self.returned(Gradient.apply(self.problem(DISPATCHER), tuple(self.needs), *self.tensors))

    def formula(self) -> Any:
        return self.returned(self.problem(DISPATCHER).formula(tuple(self.needs), *self.tensors))

    def composed(self) -> Any:
        return self.formula()

    def inferred(self) -> shapes.Shapes:
        return shapes.inferred(self.call.backward, self.tensors, self.of_one_dtype(), self.needs, self.symbolic)

    def differentiated(self) -> Tensors:
        """The operands whose gradients the results are, in order."""
        return self.tensors[1:]

    def fake(self) -> Any:
        results = self.new_results()
        if self.call.op in _WITH_WEIGHTS:
            operands = (*self.differentiated(), *(None,) * len(results))
            pairs = zip(results, operands, range(len(results)), strict=False)
            results = tuple([_as_weight(result, tensor, place) for result, tensor, place in pairs])
        return self.returned(results)


_WITH_WEIGHTS = ("linear", "matmul_bias_activation", "gated_linear", "mlp", "gated_mlp", "grouped_linear", "experts")


def _as_weight(gradient: Tensor | None, weight: Tensor | None, place: int) -> Tensor | None:
    """The gradient, in the weight's layout if that is a dense transposed matrix. PyTorch keeps the
    gradient of a parameter in that layout. cbridge/launch.c has the same rule.
    """
    if gradient is None or weight is None or place == 0 or not lies_transposed(weight) or min(weight.shape[-2:]) < 2:
        return gradient
    *groups, rows, columns = weight.shape
    return gradient.new_empty((*groups, columns, rows)).mT


@dataclass(frozen=True)
class Operator:
    """A row.

    Attributes:
        name: after ``torch.ops.epigrad.``.
        schema: arguments and results, in PyTorch's notation.
        bind: takes the operator's arguments.
        batched: the rule of `torch.vmap`, of ``info, in_dims, *arguments``; None calls each slice.
        flops: the count for `torch.utils.flop_counter`; takes shapes in place of tensors.
        casts: casts the arguments under autocast; None leaves them.
    """

    name: str
    schema: str
    bind: Callable[..., Bound]
    batched: Callable[..., Any] | None = None
    flops: Callable[..., int] | None = None
    casts: Callable[..., tuple[Any, ...]] | None = None

    @property
    def overload(self) -> Any:
        """The operator's one overload."""
        return overload(self.name)

    @property
    def bare(self) -> Any:
        """The operator without rules for autograd, autocast and vmap. The code of `torch.compile`
        calls it. Its kernels for the CPU and CUDA are in C (cbridge/torch).
        """
        return getattr(torch.ops.epigrad, f"_{self.name}").default

    def decomposed(self, *arguments: Any, **options: Any) -> Any:
        """The operator as PyTorch's own operations."""
        return self.bound(*arguments, **options).composed()

    def bound(self, *arguments: Any, batch_invariant: bool = False, **options: Any) -> Bound:
        """Bind the arguments of a call."""
        bound = self.bind(*arguments, **options)
        if batch_invariant:
            bound.call = bound.call.as_batch_invariant
        return bound


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """Call an operator of this package by its name."""
    return overload(name)(*arguments, **options)


PRODUCT_OPTIONS = "str? backend=None, bool batch_invariant=False"
"""The last arguments of operators with a product."""

PARAMETERS = "float[] parameters=[]"
"""The parameters of a kind in a schema: all of them, or none for the defaults."""


def activation_call(op: str, activation: str | None, parameters: Sequence[float], backend: str | None) -> Call:
    """The core's call of an operator with an activation."""
    return calls.activation_call(op, Activation.of(op, activation or "none", tuple(parameters)), backend)


def gated_call(
    op: str, kind: str, parameters: Sequence[float], backend: str | None, dim: int = 0, gate: str = "second"
) -> Call:
    """The core's call of an operator with a gated kind."""
    return calls.gated_call(op, Gated.of(op, kind, tuple(parameters)), dim, gate, backend)


def experts_call(op: str, kind: str, parameters: Sequence[float], backend: str | None, gate: str) -> Call:
    """The core's call of an operator with a gated kind or an activation."""
    named = Gated if isinstance(either_of(op, kind), Gated) else Activation
    return calls.experts_call(op, named.of(op, kind, tuple(parameters)), gate, backend)


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
                defined.define(spelling + operator.schema, tags=tags)
            defined.impl(spelling, _calls(operator, "kernel"), "CompositeExplicitAutograd")
            torch.library.register_fake(f"epigrad::{spelling}", _calls(operator, "fake"), lib=defined)
        defined.impl(name, _above_autograd(operator), "Autograd")
        defined.impl(f"_{name}", torch.library.fallthrough_kernel, "Autograd")
        rule = operator.batched or batching.slice_by_slice(operator.overload)
        torch.library.register_vmap(f"epigrad::{name}", rule, lib=defined)
        if operator.casts is not None:
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
        if transforms_active() or _has_tangent(tensors):
            bound = operator.bound(*arguments, **options)
            bound.inferred()  # PyTorch's operations would broadcast what the kernels refuse
            return bound.formula()
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return operator.bound(*arguments, **options).recorded()
        with torch._C._AutoDispatchBelowAutograd():
            return operator.overload(*arguments, **options)

    return above_autograd


def _has_tangent(tensors: Iterable[Tensor]) -> bool:
    if forward_ad._current_level < 0:
        return False
    return any(unpack_dual(tensor).tangent is not None for tensor in tensors)


def _under_autocast(casts: Callable[..., tuple[Any, ...]], overload: Any, key: str) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def under_autocast(*arguments: Any, **options: Any) -> Any:
        cast = casts(*arguments)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return overload(*cast, **options)

    return under_autocast
