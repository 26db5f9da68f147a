"""Values in float64 with bounds of how far a right result may be from them.

Running error analysis: each operation passes its operands' errors on and adds its own rounding, in
the accumulator's precision. What is stored in between is rounded to the tensor's dtype.
Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), sections 3.1 and 3.3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from epigrad._check.formulas import Pointwise, Product
from epigrad._check.turns import extremes
from epigrad._core.tables import is_half

FUNCTION, FUNCTION_IN_HALF, ARGUMENT, ARGUMENT_IN_HALF_ON_A_GPU = 16, 64, 4, 64
"""Roundings of the accumulator that an activation or its slope may take: of its value, of its value
where that is then rounded to 16 bits, and of its argument. A GPU's formulas for 16 bits have more
terms that cancel."""


@dataclass(frozen=True)
class Bounded:
    """Values and the bounds of their errors.

    Attributes:
        value: in float64.
        error: likewise, of the value's shape, not negative.
        dtype: of the tensors; accumulators are float32, or float64 for float64.
        backend: what computes the results that are compared.
        stops: of a slope, where it is 0 because a branch was chosen: PyTorch gives 0 there,
            whatever it is multiplied with. And where it may be so, within the argument's error.
        terms: of a product of matrices, and of what was added up, the sums of terms without signs.
    """

    value: Tensor
    error: Tensor
    dtype: torch.dtype
    backend: str = "cpu"
    stops: Callable[[], tuple[Tensor, Tensor]] | None = None
    terms: Tensor | None = None

    @classmethod
    def exact(cls, tensor: Tensor, dtype: torch.dtype, backend: str = "cpu") -> Bounded:
        value = tensor.detach().cpu().double()
        error = torch.zeros_like(value)
        if backend == "webgpu":  # which may take a denormal number for 0
            error = torch.where(value.abs() < torch.finfo(torch.float32).smallest_normal, value.abs(), error)
        return cls(value, error, dtype, backend)

    @property
    def _smallest(self) -> float:
        """The least normal number of an accumulator; in float64 the oracle itself is not right to
        the last denormal number."""
        return 2.0**-960 if self.dtype == torch.float64 else torch.finfo(torch.float32).smallest_normal

    @property
    def _largest(self) -> float:
        """The largest number of an accumulator."""
        return torch.finfo(torch.float64 if self.dtype == torch.float64 else torch.float32).max

    @property
    def unit(self) -> float:
        """The accumulator's rounding; for float64 also the oracle's own."""
        return 2.0**-51 if self.dtype == torch.float64 else 2.0**-24

    @functools.cached_property
    def size(self) -> Tensor:
        """The values without signs, 0 where they are not finite."""
        return torch.where(self.finite, self.value.abs(), 0.0)

    @functools.cached_property
    def finite(self) -> Tensor:
        return self.value.isfinite()

    @functools.cached_property
    def is_finite(self) -> bool:
        """Whether all values are; most problems have no others."""
        return bool(self.finite.all())

    @functools.cached_property
    def is_open(self) -> Tensor:
        """Where a value may be 0, or have another sign."""
        return (self.error > 0) & (self.size <= self.error)

    def _with(self, value: Tensor, error: Tensor, known: Tensor | None, roundings: float = 1.0) -> Bounded:
        """A result; `known` is where operands that are not finite make it what it is, None for
        nowhere. An infinite error says that anything is right: where an accumulator may overflow,
        infinities and what they make."""
        finite = value.isfinite()
        size = torch.where(finite, value.abs(), 0.0)
        error = error.nan_to_num(nan=torch.inf, posinf=torch.inf) + roundings * self.unit * (size + self._smallest)
        if self.backend == "webgpu":  # which may take denormal numbers for 0
            error = error + self._smallest
        anything = (size + error >= self._largest) | ~(finite if known is None else finite | known)
        return Bounded(value, torch.where(anything, torch.inf, error), self.dtype, self.backend)

    def __add__(self, other: Bounded) -> Bounded:
        return self._with(self.value + other.value, self.error + other.error, _infinite(self, other))

    def __sub__(self, other: Bounded) -> Bounded:
        return self._with(self.value - other.value, self.error + other.error, _infinite(self, other))

    def __mul__(self, other: Bounded) -> Bounded:
        error = self.size * other.error + self.error * (other.size + other.error)
        if (known := _infinite(self, other)) is not None:
            # what an infinity makes of a number that may be 0 is not known
            unknown = (self.value.isinf() & other.is_open) | (other.value.isinf() & self.is_open)
            error = torch.where(unknown, torch.inf, error)
        product = self._with(self.value * other.value, error, known)
        if other.stops is None or self.is_finite:
            return product
        stops, may_stop = (places & ~self.finite for places in other.stops())
        return replace(
            product,
            value=torch.where(stops, 0.0, product.value),
            error=torch.where(stops, 0.0, torch.where(may_stop, torch.inf, product.error)),
        )

    def __matmul__(self, other: Bounded) -> Bounded:
        sizes = self.size @ other.size
        crossed = _matrices(self.size, other.error) + _matrices(self.error, other.size + other.error)
        depth = self.value.shape[-1]
        error = crossed + depth * self.unit * (sizes + self._smallest)
        error = torch.where(sizes >= self._largest, torch.inf, error)
        known = None
        if not (self.is_finite and other.is_finite):
            one, two = ~self.finite, ~other.finite
            known = _meets(one, torch.ones_like(two)) | _meets(torch.ones_like(one), two)
            unknown = _meets(self.value.isinf(), other.is_open) | _meets(self.is_open, other.value.isinf())
            error = torch.where(unknown, torch.inf, error)
        return replace(self._with(self.value @ other.value, error, known), terms=sizes)

    def map(self, view: Callable[[Tensor], Tensor]) -> Bounded:
        """The same rearrangement of values and errors."""
        terms = None if self.terms is None else view(self.terms)
        return replace(self, value=view(self.value), error=view(self.error), stops=None, terms=terms)

    @property
    def turned(self) -> Bounded:
        """With its last two dimensions exchanged."""
        return self.map(lambda x: x.mT)

    def sum_to(self, shape: Sequence[int]) -> Bounded:
        """Summed over the dimensions along which a tensor of this shape was broadcast."""
        terms = self.value.numel() // max(1, torch.Size(shape).numel())
        sizes = (self.size if self.terms is None else self.terms).sum_to_size(shape)
        error = self.error.sum_to_size(shape) + terms * self.unit * sizes
        error = torch.where(sizes >= self._largest, torch.inf, error)
        known = None if self.is_finite else (~self.finite).double().sum_to_size(shape) > 0
        return self._with(self.value.sum_to_size(shape), error, known)

    def put(self, place: Any, part: Bounded) -> None:
        """Add a part in place. A place that tensors name may occur more than once, and its sum is
        rounded at most eight times."""
        assert self.terms is not None
        if isinstance(place, slice | int):
            self.terms[place] += part.size
            self.value[place] += part.value
            self.error[place] += part.error
            return
        place = place if isinstance(place, tuple) else (place,)
        self.terms.index_put_(place, part.size, accumulate=True)
        self.value.index_put_(place, part.value, accumulate=True)
        self.error.index_put_(place, part.error + 8 * part.unit * part.size, accumulate=True)

    def added_up(self) -> Bounded:
        """What was put here, which may have overflowed on the way: the order is not known."""
        assert self.terms is not None
        return replace(self, error=torch.where(self.terms >= self._largest, torch.inf, self.error), terms=None)

    def through(self, formula: Pointwise) -> Bounded:
        """A function of one variable, which is anywhere between its extremes over what the argument
        may be. Where terms of a function cancel, its roundings count as of its argument."""
        half = is_half(self.dtype)
        of_argument = ARGUMENT_IN_HALF_ON_A_GPU if half and self.backend != "cpu" else ARGUMENT
        value, least, most = extremes(formula, self.value, self.error + of_argument * self.unit * self.size)
        roundings = FUNCTION_IN_HALF if half else FUNCTION
        # where it may be larger than here, so are its roundings
        error = torch.maximum(most - value, value - least) * (1 + roundings * self.unit)
        error = torch.where(self.finite, error, 0.0)
        error = torch.where(self.error.isinf() | self._overflows(formula, value), torch.inf, error)
        error = error + self._vanished
        known = None if self.is_finite else ~self.finite
        return self._with(value, error, known, roundings)

    @property
    def _vanished(self) -> Tensor:
        """What a factor of a function loses on a GPU in 16 bits where it is denormal: the other is
        as large as the argument."""
        room = FUNCTION_IN_HALF if is_half(self.dtype) and self.backend != "cpu" else 0
        return room * self.unit * self._smallest * self.size

    def _overflows(self, formula: Pointwise, value: Tensor) -> Tensor:
        """Where the formula goes beyond the accumulator's range on the way to a large value, as
        celu of a negative alpha below 1 does."""
        large = value.isfinite() & (value.abs() > 2.0**100)
        if self.dtype == torch.float64 or not bool(large.any()):
            return torch.zeros_like(large)
        return large & ~formula(self.value.float()).isfinite()

    def slope(self, formula: Pointwise) -> Bounded:
        """The derivative of a function of one variable. Where it is 0 because a branch was chosen,
        a factor that is not finite stops."""
        slope = self._derived(_of(_derivative, formula))
        if isinstance(formula, Product):
            slope = slope._rounded_in(_slope_terms(formula, self.value))
        return slope

    def curvature(self, formula: Pointwise) -> Bounded:
        """The second derivative, likewise."""
        curvature = self._derived(_of(_second_derivative, formula))
        if isinstance(formula, Product):
            curvature = curvature._rounded_in(_curvature_terms(formula, self.value))
        # A denormal e^-v is the factor of gelu_tanh's x v'^2, of degree 5, up to where it is 0. A
        # function and its slope have room for such a factor (`through`).
        return curvature.plus(self._vanished * self.size.clamp(max=16).square())

    def _rounded_in(self, terms: Sequence[Tensor]) -> Bounded:
        """A sum that is rounded to 16 bits. Its terms may cancel, and each is as inexact as a
        function: a CPU's e^-t, of which they are made, is right to 2^-20, or 16 roundings."""
        if not is_half(self.dtype):
            return self
        size = torch.stack([torch.where(term.isfinite(), term.abs(), 0.0) for term in terms]).sum(0)
        return self.plus(FUNCTION_IN_HALF * self.unit * size)

    def _derived(self, derivative: Callable[..., Tensor]) -> Bounded:
        def stops() -> tuple[Tensor, Tensor]:
            known = self.error.isfinite()
            # a branch that is chosen by the function's value, as limit_after's, is by a rounded one
            far = torch.where(known, self.error + ARGUMENT * self.unit * self.size, 0.0)
            _, least, most = extremes(_of(_stopped, derivative), self.value, far)
            return (least > 0) & known, (most > 0) | ~known

        return replace(self.through(derivative), stops=stops)

    def stored(self) -> Bounded:
        """Rounded to the tensors' dtype, beyond whose range anything may come of it."""
        size = self.size + self.error
        error = self.error + one_rounding(size, self.dtype)
        error = torch.where(size < torch.finfo(self.dtype).max, error, torch.inf)
        return replace(self, error=error, stops=None, terms=None)

    def either(self, *others: Bounded) -> Bounded:
        """The same value formed in other orders too: the largest of the errors, and anything where
        one order gives a number and another NaN or infinity."""
        error = self.error
        for other in others:
            finite = self.finite & other.finite
            alike = finite | (self.value == other.value) | (self.value.isnan() & other.value.isnan())
            error = torch.where(alike, torch.maximum(error, other.error), torch.inf)
        return replace(self, error=error, terms=None)

    def as_product(self) -> Bounded:
        """A product, which cuBLASLt may round to the tensors' dtype before a bias or an
        activation."""
        return self.stored() if self.backend == "cuda" else self

    def plus(self, error: Tensor) -> Bounded:
        return replace(self, error=self.error + error)


def one_rounding(size: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of rounding a value of this size to a dtype once."""
    info = torch.finfo(dtype)
    return size.clamp(min=info.smallest_normal) * (info.eps / 2)


def product(one: Bounded, two: Bounded, three: Bounded) -> Bounded:
    """A product of three in any order: on the way it may go beyond the range, or vanish."""
    return (one * two * three).either(one * three * two, one * (two * three))


def chosen(where: Tensor, one: Bounded, other: Bounded) -> Bounded:
    """`torch.where` of two bounded values. The result carries neither `stops` nor `terms`."""
    value, error = torch.where(where, one.value, other.value), torch.where(where, one.error, other.error)
    return replace(one, value=value, error=error, stops=None, terms=None)


def _infinite(one: Bounded, other: Bounded) -> Tensor | None:
    """Where either is not finite, or None for nowhere."""
    return None if one.is_finite and other.is_finite else ~(one.finite & other.finite)


def _meets(one: Tensor, other: Tensor) -> Tensor:
    """Which sums of a product of matrices have a term in which both are so."""
    return (one.double() @ other.double()) > 0


def _matrices(size: Tensor, error: Tensor) -> Tensor:
    """A product of matrices in which an infinite error counts, whatever it meets."""
    return (size @ error).nan_to_num(nan=torch.inf, posinf=torch.inf)


def _derivative(formula: Pointwise, x: Tensor, upstream: float = 1.0) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = formula(x)
        (slope,) = torch.autograd.grad(y, x, torch.full_like(y, upstream))
    return slope


def _second_derivative(formula: Pointwise, x: Tensor, upstream: float = 1.0) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(formula(x).sum(), x, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros_like(x)
        (curvature,) = torch.autograd.grad(slope, x, torch.full_like(x, upstream), materialize_grads=True)
    return curvature


def _stopped(derivative: Callable[..., Tensor], x: Tensor) -> Tensor:
    """1 where a branch stops what the derivative is multiplied with, else 0."""
    return (derivative(x, torch.inf) == 0).double()


_of = functools.cache(functools.partial)
"""A function of a formula: the same object each time, as `extremes` wants it."""


def _slope_terms(product: Product, x: Tensor) -> tuple[Tensor, Tensor]:
    one, other = product.one, product.other
    return _derivative(one, x) * other(x), one(x) * _derivative(other, x)


def _curvature_terms(product: Product, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    one, other = product.one, product.other
    first, second = _derivative, _second_derivative
    return second(one, x) * other(x), 2 * first(one, x) * first(other, x), one(x) * second(other, x)


def breach(got: Tensor, want: Bounded) -> str:
    """What is wrong with a result, or nothing. Beyond the dtype's range infinity is right, and NaN,
    which infinities make."""
    if got.shape != want.value.shape:
        return f"shape {list(got.shape)}, want {list(want.value.shape)}"
    values, finite = got.detach().cpu().double(), want.finite
    bound = want.error + one_rounding(want.size + want.error, got.dtype)
    same = (values == want.value) | (values.isnan() & want.value.isnan())
    right = torch.where(finite, (values - want.value).abs() <= bound, same)
    right |= bound.isinf() | bound.isnan()
    right |= ~values.isfinite() & finite & (want.size + bound >= torch.finfo(got.dtype).max)
    if bool(right.all()):
        return ""
    place = tuple((~right).nonzero()[0].tolist())
    return (
        f"{int((~right).sum())} of {right.numel()} elements: at {list(place)} got {values[place].item():.9g}, want "
        f"{want.value[place].item():.9g} within {bound[place].item():.3g}"
    )
