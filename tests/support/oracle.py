"""The reference: PyTorch in float64 with autograd, and mpmath in extended precision where the
results themselves are float64.

A new activation needs one row in `ACTIVATIONS`, a gated kind one in `GATED`, and one more with
other parameters if it has any. Nothing here is shared with the implementation, and no derivative is
written by hand: PyTorch's come from autograd, mpmath's from `mpmath.diff`. The values in float64
are those of `python -m epigrad check`.
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
from epigrad._check import formulas
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, np.dtype[Any]]
Pointwise = Callable[[Tensor], Tensor]

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


def _gelu_tanh_exponent(x: Any, pi: Any) -> Any:
    return (8 / pi) ** 0.5 * (x + (44715 * x * x * x) / 10**6)


def _exact_gelu(x: Any) -> Any:
    # mpmath's erfc cannot take arguments near the largest double; past this bound it is 0 or 2 for
    # any purpose.
    return x * mpmath.erfc(min(max(-x / mpmath.sqrt(2), mpmath.mpf(-(10**5))), mpmath.mpf(10**5))) / 2


def _leaky_relu(slope: float) -> Row:
    return Row(
        functools.partial(formulas.leaky_relu, slope=slope),
        lambda x: x if x > 0 else slope * x,
        functools.partial(functional.leaky_relu, negative_slope=slope),
        kinks=(0.0,),
    )


def _swish(beta: float) -> Row:
    return Row(
        functools.partial(formulas.swish, beta=beta),
        lambda x: x / (1 + mpmath.exp(-beta * x)),
        lambda x: x * torch.sigmoid(beta * x),
    )


def _elu(scale: float, factor: float, width: float, eager: Pointwise) -> Row:
    """scale x, and factor (exp(x / width) - 1) where x is not positive."""
    return Row(
        functools.partial(formulas.elu, scale=scale, factor=factor, width=width),
        lambda x: scale * x if x > 0 else factor * mpmath.expm1(x / width),
        eager,
        kinks=(0.0,),
    )


def _eager_celu(x: Tensor) -> Tensor:
    """With alpha 0.3, which functional.celu has in float32."""
    return torch.where(x <= 0, 0.3 * torch.expm1(torch.where(x <= 0, x, 0) / 0.3), x)


def _exact_log1p_exp(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x)) if x < 0 else x + mpmath.log1p(mpmath.exp(-x))


def _softplus(beta: float, threshold: float) -> Row:
    return Row(
        functools.partial(formulas.softplus, beta=beta, threshold=threshold),
        lambda x: x if beta * x > threshold else _exact_log1p_exp(beta * x) / beta,
        functools.partial(functional.softplus, beta=beta, threshold=threshold),
        kinks=(threshold / beta,),
    )


def _exact_mish(x: Any) -> Any:
    power = mpmath.exp(-abs(x))
    low, high = power * (power + 2), 1 + 2 * power
    return x * (high / (high + 2 * power * power) if x > 0 else low / (low + 2))


def _eager_hardsigmoid(x: Tensor) -> Tensor:
    """As functional.hardsigmoid, whose derivative has 1/6 in float32."""
    outside = functional.hardsigmoid(x.detach())
    return torch.where((x > -3) & (x < 3), (x + 3) / 6, outside)


def _clip(low: float, high: float, eager: Pointwise) -> Row:
    return Row(
        functools.partial(formulas.clip, low=low, high=high),
        lambda x: min(max(x, mpmath.mpf(low)), mpmath.mpf(high)),
        eager,
        kinks=(low, high),
        kinks_from_right=(high,),
    )


def _softcap(cap: float) -> Row:
    return Row(
        functools.partial(formulas.softcap, cap=cap),
        lambda x: cap * mpmath.tanh(x / cap),
        lambda x: cap * torch.tanh(x / cap),
    )


class Rows(dict[str, Any]):
    """Rows by the text of an activation or of a gated kind: its name, with the parameters that are
    not defaults."""

    def __missing__(self, activation: object) -> Any:
        return self[str(activation)] if not isinstance(activation, str) else dict(self)[activation]


ACTIVATIONS = Rows(
    {
        "none": Row(lambda x: x * 1.0, lambda x: x, lambda x: x),
        "relu": Row(torch.relu, lambda x: max(x, mpmath.mpf(0)), torch.relu, kinks=(0.0,)),
        "gelu": Row(
            formulas.gelu,
            _exact_gelu,
            functional.gelu,
        ),
        "gelu_tanh": Row(
            formulas.gelu_tanh,
            lambda x: x / (1 + mpmath.exp(-_gelu_tanh_exponent(x, mpmath.pi))),
            functools.partial(functional.gelu, approximate="tanh"),
        ),
        "silu": Row(lambda x: formulas.swish(x, 1.0), lambda x: x / (1 + mpmath.exp(-x)), functional.silu),
        "sigmoid": Row(formulas.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), torch.sigmoid),
        "tanh": Row(formulas.tanh, mpmath.tanh, torch.tanh),
        "relu2": Row(formulas.relu2, lambda x: max(x, mpmath.mpf(0)) ** 2, formulas.relu2, kinks=(0.0,)),
        "leaky_relu": _leaky_relu(0.01),
        "leaky_relu(slope=-0.3)": _leaky_relu(-0.3),
        "quick_gelu": _swish(1.702),
        "swish": _swish(1.0),
        "swish(beta=-1.3)": _swish(-1.3),
        "elu": _elu(1, 1, 1, functional.elu),
        "elu(alpha=-0.7)": _elu(1, -0.7, 1, functools.partial(functional.elu, alpha=-0.7)),
        "selu": _elu(formulas.SELU[0], formulas.SELU[0] * formulas.SELU[1], 1, functional.selu),
        "celu": _elu(1, 1, 1, functional.celu),
        "celu(alpha=0.3)": _elu(1, 0.3, 0.3, _eager_celu),
        "softplus": _softplus(1, 20),
        "softplus(beta=2.5, threshold=1.5)": _softplus(2.5, 1.5),
        "mish": Row(formulas.mish, _exact_mish, functional.mish),
        "hardswish": Row(
            formulas.hardswish,
            lambda x: x * min(max(x + 3, 0), 6) / 6,
            functional.hardswish,
            kinks=(-3.0, 3.0),
            kinks_from_right=(3.0,),
        ),
        "hardsigmoid": Row(
            formulas.hardsigmoid,
            lambda x: mpmath.mpf(min(max(x + 3, 0), 6)) / 6,
            _eager_hardsigmoid,
            kinks=(-3.0, 3.0),
            kinks_from_right=(3.0,),
        ),
        "relu6": _clip(0.0, 6.0, functional.relu6),
        "hardtanh": _clip(-1.0, 1.0, functional.hardtanh),
        "hardtanh(low=-0.4, high=2.2)": _clip(
            -0.4, 2.2, functools.partial(functional.hardtanh, min_val=-0.4, max_val=2.2)
        ),
        "softcap": _softcap(30.0),
        "softcap(cap=1.7)": _softcap(1.7),
    }
)


@dataclass(frozen=True)
class GatedRow:
    """What the tests know of a gated kind: the output is psi(value) phi(gate)."""

    psi: Row
    phi: Row

    def value(self, value: Tensor, gate: Tensor) -> Tensor:
        """The output in float64."""
        return self.psi.value(value) * self.phi.value(gate)

    def eager(self, value: Tensor, gate: Tensor) -> Tensor:
        """The output by PyTorch's own operators."""
        return self.psi.eager(value) * self.phi.eager(gate)

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.psi.kinks + self.phi.kinks


def _limited(phi: Row, limit: float, after: float) -> Row:
    """An activation of a gate that is at most `limit`, itself at most `after`."""

    def exact(x: Any) -> Any:
        return min(phi.exact(min(x, mpmath.mpf(limit))), mpmath.mpf(after))

    ends = [] if limit == math.inf else [limit]
    if phi.exact(mpmath.mpf(min(limit, 100))) > after:  # of activations that rise where they are positive
        ends = [float(mpmath.findroot(lambda x: phi.exact(x) - after, (0, min(limit, 100)), solver="anderson"))]
    return Row(
        formulas.limited(phi.value, limit, after),
        exact,
        formulas.limited(phi.eager, limit, after),
        (*phi.kinks, *ends),
        (*phi.kinks_from_right, *ends),
    )


def _value(bound: float, offset: float) -> Row:
    """A value between -bound and bound, and what is added to it."""

    def value(x: Tensor) -> Tensor:
        near = formulas.between(x, bound)
        return near + offset if offset else near * 1.0

    ends = () if bound == math.inf else (-bound, bound)
    return Row(value, lambda x: min(max(x, -bound), bound) + mpmath.mpf(offset), value, ends, ends[1:])


def _gated(phi: Row, limit: float = math.inf, after: float = math.inf, offset: float = 0.0) -> GatedRow:
    return GatedRow(_value(min(limit, after), offset), _limited(phi, limit, after))


def _situ(gate_cap: float, value_cap: float) -> GatedRow:
    cap, sigmoid = _softcap(gate_cap), ACTIVATIONS["sigmoid"]
    phi = Row(
        lambda x: cap.value(x) * formulas.sigmoid(x),
        lambda x: cap.exact(x) * sigmoid.exact(x),
        lambda x: cap.eager(x) * torch.sigmoid(x),
    )
    return GatedRow(_softcap(value_cap), phi)


GATED = Rows(
    {
        "glu": _gated(ACTIVATIONS["sigmoid"]),
        "glu(limit=2.3, limit_after=0.7, offset=-0.5)": _gated(ACTIVATIONS["sigmoid"], 2.3, 0.7, -0.5),
        "reglu": _gated(ACTIVATIONS["relu"]),
        "reglu(limit=1.7)": _gated(ACTIVATIONS["relu"], 1.7),
        "swiglu": _gated(ACTIVATIONS["silu"]),
        "swiglu(limit=7, offset=1, alpha=1.702)": _gated(_swish(1.702), 7.0, offset=1.0),
        "swiglu(limit=2.5)": _gated(ACTIVATIONS["silu"], 2.5),
        "swiglu(limit_after=1.3)": _gated(ACTIVATIONS["silu"], after=1.3),
        "geglu": _gated(ACTIVATIONS["gelu"]),
        "geglu(limit_after=0.9)": _gated(ACTIVATIONS["gelu"], after=0.9),
        "geglu_tanh": _gated(ACTIVATIONS["gelu_tanh"]),
        "geglu_tanh(limit=1.1, offset=2)": _gated(ACTIVATIONS["gelu_tanh"], 1.1, offset=2.0),
        "bilinear": _gated(ACTIVATIONS["none"]),
        "bilinear(limit=3.1, limit_after=1.9)": _gated(ACTIVATIONS["none"], 3.1, 1.9),
        "sreglu": _gated(ACTIVATIONS["relu2"]),
        "sreglu(limit_after=2.1)": _gated(ACTIVATIONS["relu2"], after=2.1),
        "quick_geglu": _gated(ACTIVATIONS["quick_gelu"]),
        "quick_geglu(offset=1)": _gated(ACTIVATIONS["quick_gelu"], offset=1.0),
        "situ_glu": _situ(4.0, 25.0),
        "situ_glu(gate_cap=1.5, value_cap=2)": _situ(1.5, 2.0),
    }
)


def _row(activation: Any) -> Row:
    row: Row = activation if isinstance(activation, Row) else ACTIVATIONS[activation]
    return row


def derivative(activation: str | Row, order: int, x: Tensor) -> Tensor:
    """The order-th derivative of an activation at float64 points, by autograd."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = _row(activation).value(x)
        for _ in range(order):
            if not y.requires_grad:
                return torch.zeros_like(x)
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.detach()


@functools.lru_cache(maxsize=200_000)
def exact_derivative(activation: str | Row, order: int, x: np.longdouble) -> np.longdouble:
    """The order-th derivative at one point, by mpmath; at a kink it is that of the side that the
    row says."""
    near = float(x)
    point = mpmath.mpf(near) + (mpmath.mpf(float(x - np.longdouble(near))) if math.isfinite(near) else 0)
    value = _row(activation).exact(point) if order == 0 else difference(activation, point, order)
    return _rounded(value)


_DOUBLES = mpmath.mpf("1e-270"), mpmath.mpf("1e300")
_TINY = mpmath.mpf("1e-4900")


def _rounded(value: Any) -> np.longdouble:
    """An mpmath number as a long double: the sum of two doubles, or by its digits where doubles do
    not reach."""
    if _DOUBLES[0] < abs(value) < _DOUBLES[1]:
        near = float(value)
        return np.longdouble(near) + np.longdouble(float(value - near))
    return np.longdouble(mpmath.nstr(value, 25) if abs(value) > _TINY else 0)


def difference(activation: str | Row, point: Any, order: int = 1) -> Any:
    """A derivative at an mpmath number, by differences."""
    row = _row(activation)
    # A derivative is the difference of values near 1, of which e^-|3.4x| must be left, and its step
    # is small beside x.
    digits = int(40 + min(1.5 * abs(point), 540)) if abs(point) < 1e30 else 1300
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


def _derivative_of_array(activation: str | Row, order: int, x: Array) -> Array:
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

    def through(self, activation: str | Row, order: int = 0) -> Sized:
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


def gated_product(value: Sized, gate: Sized, kind: GatedRow) -> Sized:
    return value.through(kind.psi) * gate.through(kind.phi)


def gated_gradients(grad: Sized, value: Sized, gate: Sized, kind: GatedRow) -> tuple[Sized, Sized]:
    return (
        grad * gate.through(kind.phi) * value.through(kind.psi, 1),
        grad * value.through(kind.psi) * gate.through(kind.phi, 1),
    )


def halves(both: Sized, gate: str) -> tuple[Sized, Sized]:
    """The values and the gates along the last dimension."""
    half = both.value.shape[-1] // 2
    if gate in ("odd", "even"):
        first, second = both.map(lambda x: x[..., ::2]), both.map(lambda x: x[..., 1::2])
    else:
        first, second = both.map(lambda x: x[..., :half]), both.map(lambda x: x[..., half:])
    return (first, second) if gate in ("second", "odd") else (second, first)


def joined(value: Sized, gate: Sized, dim: int, place: str) -> Sized:
    """Values and gates in one array."""
    parts = (value, gate) if place in ("second", "odd") else (gate, value)

    def join(*arrays: Array) -> Array:
        if place in ("second", "first"):
            return np.concatenate(arrays, axis=dim)
        axis = dim % arrays[0].ndim
        shape = [size * (1 + (i == axis)) for i, size in enumerate(arrays[0].shape)]
        return np.stack(arrays, axis + 1).reshape(shape)

    return Sized(join(*(part.value for part in parts)), join(*(part.size for part in parts)))


def lerp(start: Sized, end: Sized, weight: Sized) -> Sized:
    return start + weight * (end - start)


def lerp_gradients(grad: Sized, start: Sized, end: Sized, weight: Sized) -> tuple[Sized, Sized, Sized]:
    one = Sized(np.ones_like(weight.value), np.ones_like(weight.value))
    return (
        (grad * (one - weight)).sum_to(start.value.shape),
        (grad * weight).sum_to(end.value.shape),
        (grad * (end - start)).sum_to(weight.value.shape),
    )


def _sides(x: Sized) -> tuple[Sized, Sized]:
    """What is above 0, and what is below, with zeros elsewhere."""
    above = x.value > 0
    return x.map(lambda values: np.where(above, values, 0)), x.map(lambda values: np.where(above, 0, values))


def prelu(x: Sized, weight: Sized) -> Sized:
    above, below = _sides(x)
    return above + weight * below


def prelu_gradients(grad: Sized, x: Sized, weight: Sized) -> tuple[Sized, Sized]:
    """Before the weight's is summed."""
    _, below = _sides(x)
    steps = np.where(x.value > 0, 1.0, 0.0).astype(x.value.dtype)
    return grad * (Sized(steps, steps) + weight * Sized(1 - steps, 1 - steps)), grad * below


_REST = Row(lambda x: x.expm1() - x, lambda x: mpmath.expm1(x) - x, lambda x: x.expm1() - x)
"""What xIELU bends by."""


def xielu(x: Sized, alpha_p: Sized, alpha_n: Sized, beta: Sized) -> Sized:
    above, below = _sides(x)
    a_p, a_n = alpha_p.through("softplus"), beta + alpha_n.through("softplus")
    return a_p * above * above + a_n * below.through(_REST) + beta * x


def xielu_gradients(grad: Sized, x: Sized, alpha_p: Sized, alpha_n: Sized, beta: Sized) -> tuple[Sized, Sized, Sized]:
    """Before the alphas' are summed."""
    above, below = _sides(x)
    a_p, a_n = alpha_p.through("softplus"), beta + alpha_n.through("softplus")
    return (
        grad * (a_p * above + a_p * above + a_n * below.through(_REST, 1) + beta),
        grad * above * above * alpha_p.through("softplus", 1),
        grad * below.through(_REST) * alpha_n.through("softplus", 1),
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
