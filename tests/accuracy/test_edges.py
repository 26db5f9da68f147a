"""Special values, far tails, kinks, awkward sizes and offsets."""

from __future__ import annotations

import itertools
import math

import epigrad
import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support import oracle
from tests.support.cases import ACTIVATIONS, DTYPES, FROM_OUTPUT, GATED_KINDS
from tests.support.devices import on_devices
from tests.support.layouts import assert_same_bits
from tests.support.ulp import rounded_to_infinity

ULP_ALLOWED = {torch.float32: 2.0, torch.float64: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}
"""How far values and slopes may be from mpmath anywhere, in units of the last place."""


def _special_values(activation: str, dtype: torch.dtype, device: str) -> Tensor:
    """Zeros, subnormals, both sides of kinks, the bends, the tails, the largest values, infinities
    and NaN."""
    info = torch.finfo(dtype)
    tiny = info.smallest_normal * info.eps
    sizes = [0.0, tiny, 3 * tiny, info.smallest_normal, info.eps, 0.1, 0.7517, 1.0, 1.2785, 2.0, 4.0, 5.5, 9.0, 14.0]
    sizes += [17.5, 30.0, 38.0, 89.0, 104.0, 300.0, 709.0, 745.0, 1e4, math.sqrt(info.max), info.max, math.inf]
    kinks = [kink * (1 + side * info.eps) for kink in oracle.ACTIVATIONS[activation].kinks for side in (-1, 0, 1)]
    values = torch.tensor([sign * size for size in sizes for sign in (1, -1)] + kinks + [math.nan], dtype=torch.float64)
    return values.to(dtype).to(device)


def _value(activation: str, x: Tensor) -> Tensor:
    """act(x), with x as the preactivation of a product of one term."""
    return epigrad.forward.matmul_bias_activation(x[:, None], x.new_ones(1, 1), None, activation)[:, 0]


def _slope(activation: str, x: Tensor, grad: Tensor | None = None) -> Tensor:
    """act'(x) * grad, with x given as the preactivation."""
    one = x.new_ones(1, 1)
    grad = torch.ones_like(x) if grad is None else grad
    gradients = epigrad.backward.matmul_bias_activation_backward(
        grad[:, None],
        torch.ones_like(x)[:, None],
        one,
        None,
        activation,
        preactivation=x[:, None],
        needs=(True, False, False),
    )
    assert gradients[0] is not None
    return gradients[0][:, 0]


def _kind_of(value: float) -> str:
    return "nan" if math.isnan(value) else "finite" if math.isfinite(value) else "inf" if value > 0 else "-inf"


def _eager(activation: str, x: Tensor, order: int) -> Tensor:
    act = oracle.ACTIVATIONS[activation].eager
    if order == 0:
        return act(x)
    x = x.detach().requires_grad_()
    return torch.autograd.grad(act(x), x, torch.ones_like(x))[0]


def _accepted_kinds(activation: str, x: Tensor, order: int) -> list[set[str]]:
    """What PyTorch's scalar and vector kernels make of each value; where they differ, the limit is
    right too."""
    scalar = [_kind_of(_eager(activation, one, order).item()) for one in x.split(1)]
    vector = [_kind_of(_eager(activation, one.repeat(64), order)[0].item()) for one in x.split(1)]
    limit = oracle.derivative(activation, order, x.cpu().to(torch.float64).clamp(-1e300, 1e300)).to(x.dtype)
    rows = zip(scalar, vector, limit.tolist(), strict=True)
    return [{one, other} if one == other else {one, other, _kind_of(end)} for one, other, end in rows]


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("order", [0, 1], ids=["value", "slope"])
def test_infinities_and_nan_are_where_pytorchs_are(
    device: str, activation: str, order: int, dtype: torch.dtype
) -> None:
    x = _special_values(activation, dtype, device)
    got = (_value if order == 0 else _slope)(activation, x)
    # Where x is finite PyTorch may overflow on the way; ours must be the finite result, which the
    # next test measures.
    for point, ours, accepted in zip(x.tolist(), got.tolist(), _accepted_kinds(activation, x, order), strict=True):
        if not math.isfinite(point):
            assert _kind_of(ours) in accepted, f"{activation} at {point}: {ours}, PyTorch has {accepted}"


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("order", [0, 1], ids=["value", "slope"])
def test_tails_bends_and_subnormals_are_right_to_the_last_places(
    device: str, activation: str, order: int, dtype: torch.dtype
) -> None:
    """Relative to the result itself, however small; near a zero of the slope, to its largest term.

    Infinity is right exactly where the dtype rounds to it.
    """
    x = _special_values(activation, dtype, device)
    x = x[x.isfinite()]
    got = (_value if order == 0 else _slope)(activation, x)
    info = torch.finfo(dtype)
    for point, ours in zip(x.tolist(), got.tolist(), strict=True):
        exact = oracle.exact_derivative(activation, order, np.longdouble(point))
        infinity = rounded_to_infinity(mpmath.mpf(str(exact)), dtype)
        if math.isinf(ours) or infinity:
            assert ours == infinity, f"{activation} at {point}: {ours}, exact {exact}"
            continue
        size = abs(exact)
        if order == 1 and abs(point) < 4:
            size += abs(point * oracle.exact_derivative(activation, 2, np.longdouble(point)))
        unit = np.ldexp(np.longdouble(info.eps), max(np.frexp(size)[1] - 1, round(math.log2(info.smallest_normal))))
        error = abs(np.longdouble(ours) - exact) / unit
        assert error <= ULP_ALLOWED[dtype], f"{activation} at {point}: {ours}, exact {exact}: {error:.2f} ULP"


@pytest.mark.parametrize(
    ("activation", "first", "last"),
    [("gelu", -14.4, -13.0), ("gelu_tanh", -10.7, -9.8), ("silu", -103.0, -87.0)],
)
def test_a_large_gradient_times_a_tiny_slope_is_something(activation: str, first: float, last: float) -> None:
    """A slope below bfloat16's smallest number counts for what it is: on the CPU, whose formulas
    keep to that."""
    x = torch.linspace(first, last, 300).to(torch.bfloat16)
    large = torch.tensor(1e30).to(torch.bfloat16)
    got = _slope(activation, x, large.expand(x.shape)).to(torch.float64)
    want = oracle.derivative(activation, 1, x.to(torch.float64)) * large.to(torch.float64)
    error = (got - torch.as_tensor(want, dtype=torch.float64)).abs()
    assert (error <= 2.0**-8 * got.abs()).all(), (error / got.abs()).max()


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_relu_at_its_kink_and_at_nan(device: str, dtype: torch.dtype) -> None:
    """relu'(0) = 0 stops even an infinite gradient; at a NaN preactivation the gradient passes
    on."""
    x = torch.tensor([0.0, -0.0, math.nan, 0.0, -1.0, 1.0], dtype=dtype, device=device)
    grad = torch.tensor([2.0, 2.0, 2.0, math.inf, math.inf, math.inf], dtype=dtype, device=device)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(torch.relu(leaf), leaf, grad)
    assert_same_bits(_slope("relu", x, grad), want)
    assert _value("relu", x)[2].isnan()


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", FROM_OUTPUT)
def test_nan_in_a_saved_output_reaches_the_gradient(device: str, activation: str, dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 3.0], dtype=dtype, device=device)
    leaf = x[:, None].clone().requires_grad_()
    out = epigrad.matmul_bias_activation(leaf, x.new_ones(1, 1), None, activation)
    (got,) = torch.autograd.grad(out, leaf, torch.full_like(out, 3.0))
    eager = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(oracle.ACTIVATIONS[activation].eager(eager), eager, torch.full_like(eager, 3.0))
    assert [_kind_of(v) for v in got[:, 0].tolist()] == [_kind_of(v) for v in want.tolist()]


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["a", "b", "bias", "grad"])
def test_products_pass_on_special_values(device: str, where: str, special: float, dtype: torch.dtype) -> None:
    """One special element among zeros and ones: zero times infinity is NaN, and no zero is
    skipped."""
    operands = {
        "a": torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]], dtype=dtype),
        "b": torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=dtype),
        "bias": torch.tensor([0.0, -1.0], dtype=dtype),
        "grad": torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=dtype),
    }
    operands[where].view(-1)[1] = special
    a, b, bias, grad = (x.to(torch.float64).numpy() for x in operands.values())
    with np.errstate(invalid="ignore"):
        wanted = [a @ b + bias, grad @ b.T, a.T @ grad, grad.sum(0)]
    ab, bb, biasb, gradb = (x.to(device) for x in operands.values())
    out = epigrad.forward.matmul_bias_activation(ab, bb, biasb)
    gradients = epigrad.backward.matmul_bias_activation_backward(gradb, ab, bb, biasb)
    for got, want in zip((out, *gradients), wanted, strict=True):
        assert got is not None
        finite = got.cpu().nan_to_num(-7.0, 8.0, 9.0).double()
        assert torch.equal(finite, torch.from_numpy(want).nan_to_num(-7.0, 8.0, 9.0))


def _times_slope(row: oracle.Row, grad: Tensor, x: Tensor) -> Tensor:
    """A gradient times PyTorch's slope; one that chooses a branch may stop what is not finite."""
    leaf = x.clone().requires_grad_()
    out = row.eager(leaf)
    if row.kinks:
        return torch.autograd.grad(out, leaf, grad)[0]
    return grad * torch.autograd.grad(out, leaf, torch.ones_like(out))[0]


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", GATED_KINDS, ids=str)
def test_gated_special_values(device: str, kind: str | epigrad.Gated, dtype: torch.dtype) -> None:
    """Every pair of a special value and a special gate gives what PyTorch's composition gives: a
    clamp stops what is not finite, and passes a NaN on."""
    specials = [0.0, 1.0, -2.0, math.inf, -math.inf, math.nan]
    pairs = torch.tensor(list(itertools.product(specials, repeat=2)), dtype=dtype, device=device)
    value, gate = pairs.unbind(1)
    got = epigrad.forward.gated_product(value, gate, kind)
    grads = epigrad.backward.gated_product_backward(torch.ones_like(value), value, gate, kind)
    row, (v, g) = oracle.GATED[kind], (x.double() for x in (value, gate))
    psi, phi = row.psi.eager(v), row.phi.eager(g)
    wanted = (psi * phi, _times_slope(row.psi, phi, v), _times_slope(row.phi, psi, g))
    for ours, want in zip((got, *grads), wanted, strict=True):
        assert ours is not None
        assert [_kind_of(x) for x in ours.tolist()] == [_kind_of(x) for x in want.tolist()]


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lerp_special_values(device: str, dtype: torch.dtype) -> None:
    """Special starts, ends and weights: NaN and infinity where PyTorch has them, for values, and
    for gradients."""
    specials = [0.0, 1.0, -2.0, 0.25, math.inf, -math.inf, math.nan]
    triples = torch.tensor(list(itertools.product(specials, repeat=3)), dtype=dtype, device=device)
    start, end, weight = triples.unbind(1)
    leaves = [x.clone().requires_grad_() for x in (start, end, weight)]
    out = torch.lerp(*leaves)
    wanted = (out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out)))
    gradients = epigrad.backward.lerp_backward(torch.ones_like(start), start, end, weight)
    got = (epigrad.forward.lerp(start, end, weight), *gradients)
    for ours, want in zip(got, wanted, strict=True):
        assert ours is not None
        assert [_kind_of(x) for x in ours.tolist()] == [_kind_of(x) for x in want.tolist()]


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lerp_with_a_number_near_one_keeps_what_the_dtype_leaves_out(device: str, dtype: torch.dtype) -> None:
    """1 - weight is formed before the weight is rounded, as PyTorch does it."""
    grad = torch.linspace(-2, 2, 41, dtype=dtype, device=device)
    for weight in (1.0578189070472463, 1 - 2**-30, 1 + 3e-9, math.inf, -math.inf, math.nan):
        grad_start, grad_end, _ = epigrad.backward.lerp_backward(grad, None, None, weight)
        assert grad_start is not None and grad_end is not None
        exact = (1 - weight) * grad.double()
        rounding = 2 * torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).smallest_normal
        close = (grad_start.double() - exact).abs() <= rounding
        assert (close | (grad_start.double() == exact) | (exact.isnan() & grad_start.isnan())).all(), weight


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lerp_at_the_ends_is_exact(device: str, dtype: torch.dtype) -> None:
    """Weight 0 gives start and weight 1 gives end, even where end - start rounds or overflows on
    the way."""
    generator = torch.Generator().manual_seed(0)
    start, end = ((1000 * torch.randn(300, generator=generator)).exp().clamp(max=1e3) for _ in range(2))
    start, end = start.to(dtype).to(device), end.to(dtype).to(device)
    for weight in (0.0, 1.0):
        want = end if weight else start
        assert_same_bits(epigrad.lerp(start, end, weight), want)
        assert_same_bits(epigrad.lerp(start, end, torch.tensor(weight, dtype=dtype, device=device)), want)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_subnormals_are_not_flushed(device: str, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    value = torch.tensor([tiny, -tiny, 3 * tiny], dtype=dtype, device=device)
    assert_same_bits(epigrad.gated_product(value, torch.ones_like(value), "bilinear"), value)
    assert_same_bits(epigrad.matmul_bias_activation(value[:, None], value.new_ones(1, 1))[:, 0], value)
    assert_same_bits(epigrad.lerp(value, value, 0.5), value)


@on_devices
def test_float16_overflows_to_infinity_as_pytorch(device: str) -> None:
    a = torch.full((1, 2), 60000.0, dtype=torch.float16, device=device)
    out = epigrad.matmul_bias_activation(a, a.new_ones(2, 1))
    assert out.item() == math.inf
    assert epigrad.gated_product(a, -a, "bilinear").tolist() == [[-math.inf, -math.inf]]


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_size_gives_what_its_elements_give_alone(device: str, dtype: torch.dtype) -> None:
    """Sizes around every block edge; the result of an element does not depend on where it lies."""
    generator = torch.Generator().manual_seed(5)
    value, gate = ((3 * torch.randn(2100, generator=generator)).to(dtype).to(device) for _ in range(2))
    whole = {kind: epigrad.forward.gated_product(value, gate, kind) for kind in GATED_KINDS}
    mixed = epigrad.forward.lerp(value, gate, 0.3)
    for size in (*range(36), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1024, 1025, 2047, 2048, 2049):
        first = (7 * size) % 31
        part = slice(first, first + size)
        for kind, want in whole.items():
            assert_same_bits(epigrad.forward.gated_product(value[part], gate[part], kind), want[part])
        assert_same_bits(epigrad.forward.lerp(value[part], gate[part], 0.3), mixed[part])


@on_devices
@pytest.mark.parametrize("reach", ["offset", "stride"])
def test_elements_past_two_to_the_31(device: str, reach: str) -> None:
    """Only the pages that hold the elements are touched."""
    far = 2**31 + 64
    try:
        memory = torch.empty(far + 64, dtype=torch.bfloat16, device=device)
    except RuntimeError:
        pytest.skip("this machine does not promise 4 GiB of memory")
    view = memory[far : far + 6].view(2, 3) if reach == "offset" else memory.as_strided((2, 3), (far, 1))
    view.copy_(torch.arange(6.0).view(2, 3))
    near = view.clone()
    assert_same_bits(epigrad.gated_product(view, view, "swiglu"), epigrad.gated_product(near, near, "swiglu"))
    assert_same_bits(epigrad.linear(view, view), epigrad.linear(near, near))
    out = memory.as_strided((2, 3), (far, 1), 16)
    assert_same_bits(epigrad.forward.lerp(near, 2 * near, 0.5, out=out), epigrad.lerp(near, 2 * near, 0.5))
