"""The reference: PyTorch in float64 with autograd, and mpmath in extended precision where the
results themselves are float64.

A new activation needs one row in `ACTIVATIONS`, and one more with other parameters if it has any;
gated kinds follow from the core's table. Nothing here is shared with the implementation, and no
derivative is written by hand: PyTorch's come from autograd, mpmath's from `mpmath.diff`.

The value formulas are not always PyTorch's own operator, because that one is wrong in float64 in
the tails: gelu cancels in 1 + erf and in 1 + tanh, sigmoid and tanh have derivatives s (1 - s) and
1 - t^2 that cancel. The forms below do not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, np.dtype[Any]]

mpmath.mp.dps = 34
assert np.finfo(np.longdouble).eps < 2**-60, "the float64 reference needs a long double wider than float64"


@dataclass(frozen=True)
class Row:
    """What the tests know of an activation."""

    value: Callable[[Tensor], Tensor]
    """The value in float64, right in the tails, differentiable twice by autograd."""
    exact: Callable[[Any], Any]
    """The value of an mpmath number."""
    eager: Callable[[Tensor], Tensor]
    """PyTorch's own operator, which the error is compared with."""
    kinks: tuple[float, ...] = ()
    """Where a derivative jumps, of any order: differences must not straddle them."""
    kinks_from_right: tuple[float, ...] = ()
    """Those of them at which the derivative is that of the right side; at the others it is that of
    the left."""


def _sigmoid(x: Tensor) -> Tensor:
    return functional.logsigmoid(x).exp()


def _tanh(x: Tensor) -> Tensor:
    near = x.abs() < 1
    inner, outer = torch.where(near, x, 0.0), torch.where(near, 1.0, x)
    decay = (-2 * outer.abs()).exp()
    return torch.where(near, inner.sinh() / inner.cosh(), outer.sign() * (1 - decay) / (1 + decay))


def _gelu_tanh_exponent(x: Any, pi: Any) -> Any:
    return (8 / pi) ** 0.5 * (x + (44715 * x * x * x) / 10**6)


def _exact_gelu(x: Any) -> Any:
    # mpmath's erfc cannot take arguments near the largest double; past this bound it is 0 or 2 for
    # any purpose.
    return x * mpmath.erfc(min(max(-x / mpmath.sqrt(2), mpmath.mpf(-(10**5))), mpmath.mpf(10**5))) / 2


def _relu2(x: Tensor) -> Tensor:
    return torch.relu(x).square()


def _leaky_relu(slope: float) -> Row:
    return Row(
        lambda x: torch.where(x > 0, x, slope * x),
        lambda x: x if x > 0 else slope * x,
        functools.partial(functional.leaky_relu, negative_slope=slope),
        kinks=(0.0,),
    )


class Rows(dict[str, Row]):
    """Rows by the text of an activation: its name, with the parameters that are not defaults."""

    def __missing__(self, activation: object) -> Row:
        return self[str(activation)] if not isinstance(activation, str) else dict(self)[activation]


ACTIVATIONS = Rows(
    {
        "none": Row(lambda x: x * 1.0, lambda x: x, lambda x: x),
        "relu": Row(torch.relu, lambda x: max(x, mpmath.mpf(0)), torch.relu, kinks=(0.0,)),
        "gelu": Row(
            lambda x: x * torch.special.erfc(x * -math.sqrt(0.5)) / 2,
            _exact_gelu,
            functional.gelu,
        ),
        "gelu_tanh": Row(
            lambda x: x * _sigmoid(_gelu_tanh_exponent(x, math.pi)),
            lambda x: x / (1 + mpmath.exp(-_gelu_tanh_exponent(x, mpmath.pi))),
            functools.partial(functional.gelu, approximate="tanh"),
        ),
        "silu": Row(lambda x: x * _sigmoid(x), lambda x: x / (1 + mpmath.exp(-x)), functional.silu),
        "sigmoid": Row(_sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), torch.sigmoid),
        "tanh": Row(_tanh, mpmath.tanh, torch.tanh),
        "relu2": Row(_relu2, lambda x: max(x, mpmath.mpf(0)) ** 2, _relu2, kinks=(0.0,)),
        "leaky_relu": _leaky_relu(0.01),
        "leaky_relu(slope=-0.3)": _leaky_relu(-0.3),
    }
)


def derivative(activation: str, order: int, x: Tensor) -> Tensor:
    """The order-th derivative of an activation at float64 points, by autograd."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = ACTIVATIONS[activation].value(x)
        for _ in range(order):
            if not y.requires_grad:
                return torch.zeros_like(x)
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.detach()


@functools.lru_cache(maxsize=200_000)
def exact_derivative(activation: str, order: int, x: np.longdouble) -> np.longdouble:
    """The order-th derivative at one point, by mpmath; at a kink it is that of the side that the
    row says."""
    point = mpmath.mpf(repr(x).split("'")[1])
    value = ACTIVATIONS[activation].exact(point) if order == 0 else difference(activation, point, order)
    return np.longdouble(mpmath.nstr(value, 25) if abs(value) > mpmath.mpf("1e-4900") else 0)


def difference(activation: str, point: Any, order: int = 1) -> Any:
    """A derivative at an mpmath number, by differences."""
    row = ACTIVATIONS[activation]
    # A derivative is the difference of values near 1, of which e^-|2x| must be left, and its step
    # is small beside x.
    digits = int(40 + min(abs(point), 360)) if abs(point) < 1e30 else 1300
    with mpmath.workdps(max(mpmath.mp.dps, digits)):
        return mpmath.diff(row.exact, point, order, **_step(row, point))


def _step(row: Row, point: Any) -> dict[str, Any]:
    """How mpmath forms differences at a point: with a step that stays on one side of the nearest
    kink."""
    distances = {kink: abs(point - kink) for kink in row.kinks}
    nearest = min(distances, key=distances.__getitem__, default=None)
    if nearest is None or distances[nearest] >= 1:
        return {"relative": bool(abs(point) > 1)}
    if distances[nearest] == 0:
        return {"direction": 1 if nearest in row.kinks_from_right else -1}
    return {"h": mpmath.ldexp(distances[nearest], -64)}


def _derivative_of_array(activation: str, order: int, x: Array) -> Array:
    if x.dtype == np.float64:
        return derivative(activation, order, torch.from_numpy(np.ascontiguousarray(x))).numpy().reshape(x.shape)
    values = [exact_derivative(activation, order, point) for point in x.reshape(-1)]
    return np.array(values, dtype=np.longdouble).reshape(x.shape)


@dataclass(frozen=True)
class Sized:
    """A quantity and, element by element, the size of the terms that were summed to form it.

    An exact input has the size of its value. A product has the product of the sizes, a sum the sum
    of the sizes, and f(x) has |f(x)| + |f'(x)| size(x): its own size and what an error of the size
    of x's terms makes of it.
    """

    value: Array
    size: Array

    @classmethod
    def of(cls, tensor: Tensor | float, dtype: torch.dtype) -> Sized:
        """An exact input of a problem in this dtype; the reference is in float64, or wider for
        float64 itself."""
        wide = np.longdouble if dtype == torch.float64 else np.float64
        values = np.asarray(
            tensor.detach().cpu().to(torch.float64).numpy() if isinstance(tensor, Tensor) else tensor, dtype=wide
        )
        return cls(values, np.abs(values))

    def __add__(self, other: Sized) -> Sized:
        return Sized(self.value + other.value, self.size + other.size)

    def __sub__(self, other: Sized) -> Sized:
        return Sized(self.value - other.value, self.size + other.size)

    def __mul__(self, other: Sized) -> Sized:
        return Sized(self.value * other.value, self.size * other.size)

    def __matmul__(self, other: Sized) -> Sized:
        return Sized(self.value @ other.value, self.size @ other.size)

    def map(self, view: Callable[[Array], Array]) -> Sized:
        """The same rearrangement (a transpose, a slice, a reshape, a sum) of both."""
        return Sized(np.asarray(view(self.value)), np.asarray(view(self.size)))

    @property
    def transposed(self) -> Sized:
        return self.map(lambda x: np.swapaxes(x, -1, -2))

    def reshape(self, shape: Sequence[int]) -> Sized:
        return self.map(lambda x: x.reshape(tuple(shape)))

    def sum_to(self, shape: Sequence[int]) -> Sized:
        """Summed over the dimensions along which a tensor of this shape was broadcast, and no
        others."""

        def reduce(x: Array) -> Array:
            extra = x.ndim - len(shape)
            repeated = tuple(dim + extra for dim, size in enumerate(shape) if size == 1 and x.shape[dim + extra] != 1)
            return x.sum(axis=(*range(extra), *repeated)).reshape(tuple(shape))

        return self.map(reduce)

    def through(self, activation: str, order: int = 0) -> Sized:
        """The activation, or a derivative of it, at these points."""
        value = _derivative_of_array(activation, order, self.value)
        steepness = _derivative_of_array(activation, order + 1, self.value)
        return Sized(value, np.abs(value) + np.abs(steepness) * self.size)


def _rows(a: Sized) -> Sized:
    return a.reshape((1, *a.value.shape)) if a.value.ndim == 1 else a


def _columns(b: Sized) -> Sized:
    return b.reshape((*b.value.shape, 1)) if b.value.ndim == 1 else b


def preactivation(a: Sized, b: Sized, bias: Sized | None) -> Sized:
    """a @ b + bias with 1-D operands made matrices: [..., M, N] always."""
    product = _rows(a) @ _columns(b)
    return product if bias is None else product + bias


def gemm(a: Sized, b: Sized, bias: Sized | None, activation: str) -> Sized:
    """The output, of the shape that torch.matmul gives."""
    out = preactivation(a, b, bias).through(activation)
    dropped = tuple(axis for axis, operand in ((-2, a), (-1, b)) if operand.value.ndim == 1)
    return out.map(lambda x: np.squeeze(x, axis=dropped)) if dropped else out


def product_gradients(grad_pre: Sized, a: Sized, b: Sized, bias: Sized | None) -> tuple[Sized, Sized, Sized | None]:
    """Gradients of a @ b + bias, given that of the result as [..., M, N]."""
    rows, columns = _rows(a), _columns(b)
    grad_a = (grad_pre @ columns.transposed).sum_to(rows.value.shape).reshape(a.value.shape)
    grad_b = (rows.transposed @ grad_pre).sum_to(columns.value.shape).reshape(b.value.shape)
    grad_bias = (
        None
        if bias is None
        else grad_pre.sum_to((*(1,) * (bias.value.ndim == 0), *bias.value.shape)).reshape(bias.value.shape)
    )
    return grad_a, grad_b, grad_bias


def gemm_gradients(
    grad: Sized, a: Sized, b: Sized, bias: Sized | None, activation: str, pre: Sized | None = None
) -> tuple[Sized, Sized, Sized | None]:
    """Gradients of `gemm`; a preactivation that is given, as [..., M, N], is taken as exact."""
    pre = preactivation(a, b, bias) if pre is None else pre
    return product_gradients(grad.reshape(pre.value.shape) * pre.through(activation, 1), a, b, bias)


def gated_product(value: Sized, gate: Sized, activation: str) -> Sized:
    return value * gate.through(activation)


def gated_gradients(grad: Sized, value: Sized, gate: Sized, activation: str) -> tuple[Sized, Sized]:
    return grad * gate.through(activation), grad * value * gate.through(activation, 1)


def lerp(start: Sized, end: Sized, weight: Sized) -> Sized:
    return start + weight * (end - start)


def lerp_gradients(grad: Sized, start: Sized, end: Sized, weight: Sized) -> tuple[Sized, Sized, Sized]:
    one = Sized(np.ones_like(weight.value), np.ones_like(weight.value))
    return (
        (grad * (one - weight)).sum_to(start.value.shape),
        (grad * weight).sum_to(end.value.shape),
        (grad * (end - start)).sum_to(weight.value.shape),
    )


def linear(input: Sized, weight: Sized, bias: Sized | None) -> Sized:
    product = input @ weight.transposed
    return product if bias is None else product + bias


def linear_gradients(grad: Sized, input: Sized, weight: Sized, bias: Sized | None) -> tuple[Sized, Sized, Sized | None]:
    """Gradients of `linear`, given that of its result."""
    flat_grad, flat_input = (x.reshape((math.prod(x.value.shape[:-1]), x.value.shape[-1])) for x in (grad, input))
    grad_bias = None if bias is None else flat_grad.sum_to(bias.value.shape)
    return grad @ weight, flat_grad.transposed @ flat_input, grad_bias


def assert_reference_is_autograd(reference: Sized, autograd: Tensor | None, what: str) -> None:
    """Fails if a reference formula of this file is not what float64 autograd gives."""
    assert autograd is not None, f"{what}: no result of autograd"
    difference = np.abs(reference.value.astype(np.float64) - autograd.detach().cpu().numpy())
    slack = 1e-11 * reference.size.astype(np.float64)
    assert (difference <= slack + np.finfo(np.float64).tiny).all(), (
        f"{what}: the reference formula differs from float64 autograd"
    )
