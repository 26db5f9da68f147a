"""Values in float64 with bounds of how far a right result may be from them.

Running error analysis: each operation passes its operands' errors on and adds its own rounding, in
the accumulator's precision. What is stored in between is rounded to the tensor's dtype.
Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), sections 3.1 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
    """

    value: Tensor
    error: Tensor
    dtype: torch.dtype
    backend: str = "cpu"

    @classmethod
    def exact(cls, tensor: Tensor, dtype: torch.dtype, backend: str = "cpu") -> Bounded:
        """An input."""
        value = tensor.detach().cpu().double()
        return cls(value, torch.zeros_like(value), dtype, backend)

    @property
    def unit(self) -> float:
        """The accumulator's rounding; for float64 also the oracle's own."""
        return 2.0**-51 if self.dtype == torch.float64 else 2.0**-24

    def _with(self, value: Tensor, error: Tensor, roundings: float = 1.0) -> Bounded:
        # In float64 the oracle itself is not right to the last denormal number.
        smallest = 2.0**-960 if self.dtype == torch.float64 else torch.finfo(torch.float32).smallest_normal
        return replace(self, value=value, error=error + roundings * self.unit * (value.abs() + smallest))

    def __add__(self, other: Bounded) -> Bounded:
        return self._with(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return self._with(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded) -> Bounded:
        crossed = self.value.abs() * other.error + self.error * (other.value.abs() + other.error)
        return self._with(self.value * other.value, crossed)

    def __matmul__(self, other: Bounded) -> Bounded:
        sizes = self.value.abs(), other.value.abs()
        crossed = sizes[0] @ other.error + self.error @ (sizes[1] + other.error)
        depth = self.value.shape[-1]
        return self._with(self.value @ other.value, crossed + depth * self.unit * (sizes[0] @ sizes[1]))

    def map(self, view: Callable[[Tensor], Tensor]) -> Bounded:
        """The same rearrangement of values and errors."""
        return replace(self, value=view(self.value), error=view(self.error))

    @property
    def turned(self) -> Bounded:
        """With its last two dimensions exchanged."""
        return self.map(lambda x: x.mT)

    def sum_to(self, shape: Sequence[int]) -> Bounded:
        """Summed over the dimensions along which a tensor of this shape was broadcast."""
        terms = self.value.numel() // max(1, torch.Size(shape).numel())
        error = self.error.sum_to_size(shape) + terms * self.unit * self.value.abs().sum_to_size(shape)
        return self._with(self.value.sum_to_size(shape), error)

    def through(self, formula: Callable[[Tensor], Tensor]) -> Bounded:
        """A function of one variable. What an error makes of it is asked at both of its ends, so
        kinks need no care. Where terms of a function cancel, its roundings count as of its
        argument."""
        value = formula(self.value)
        is_half = self.dtype.itemsize == 2
        of_argument = ARGUMENT_IN_HALF_ON_A_GPU if is_half and self.backend != "cpu" else ARGUMENT
        far = self.error + of_argument * self.unit * self.value.abs()
        ends = [(formula(self.value + step) - value).abs() for step in (far, -far)]
        most, least = torch.maximum(*ends), torch.minimum(*ends)
        # A jump, as softplus has at its threshold, is higher where it is than at the end behind it,
        # by what the function changes on the way. That is as much as on the other side, nearly.
        error = torch.where(most > 4 * least, most + 2 * least, most)
        return self._with(value, error, FUNCTION_IN_HALF if is_half else FUNCTION)

    def slope(self, formula: Callable[[Tensor], Tensor]) -> Bounded:
        """The derivative of a function of one variable."""
        return self.through(lambda x: _derivative(formula, x))

    def stored(self) -> Bounded:
        """Rounded to the tensors' dtype, beyond whose range anything may come of it."""
        size = self.value.abs() + self.error
        error = self.error + one_rounding(size, self.dtype)
        return replace(self, error=torch.where(size < torch.finfo(self.dtype).max, error, torch.inf))

    def as_product(self) -> Bounded:
        """A product, which cuBLASLt may round to the tensors' dtype before a bias or an
        activation."""
        return self.stored() if self.backend == "cuda" else self

    def plus(self, error: Tensor) -> Bounded:
        """With an error more."""
        return replace(self, error=self.error + error)


def one_rounding(size: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of rounding a value of this size to a dtype once."""
    info = torch.finfo(dtype)
    return size.clamp(min=info.smallest_normal) * (info.eps / 2)


def _derivative(formula: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = formula(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    return slope


def breach(got: Tensor, want: Bounded) -> str:
    """What is wrong with a result, or nothing. Beyond the dtype's range infinity is right, and NaN,
    which infinities make."""
    if got.shape != want.value.shape:
        return f"shape {list(got.shape)}, want {list(want.value.shape)}"
    values, size = got.detach().cpu().double(), want.value.abs()
    # An infinite error that meets a 0 is NaN.
    error = torch.where(want.error.isnan() & want.value.isfinite(), torch.inf, want.error)
    bound = error + one_rounding(size + error, got.dtype)
    right = (values - want.value).abs() <= bound
    right |= ~values.isfinite() & (size + bound >= torch.finfo(got.dtype).max)
    if bool(right.all()):
        return ""
    place = tuple((~right).nonzero()[0].tolist())
    return (
        f"{int((~right).sum())} of {right.numel()} elements: at {list(place)} got {values[place].item():.9g}, want "
        f"{want.value[place].item():.9g} within {bound[place].item():.3g}"
    )
