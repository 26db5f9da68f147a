"""Defects of the libraries that epigrad starts from, each a test by name.

The first group are those of numr's activation(A @ B + bias) backward, the second those of
baracuda-kernels' gated activation and lerp plans. What the parity suites cover in general is asked
here about exactly the failing problem.
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable

import epigrad
import mpmath
import pytest
import torch
from epigrad import backward, errors, forward, plan
from torch import Tensor

from tests.support import oracle
from tests.support.cases import ACTIVATIONS, DTYPES, GATED_KINDS
from tests.support.layouts import Guarded
from tests.support.processes import start
from tests.support.tiers import thorough

HALF_DTYPES = [dtype for dtype in DTYPES if dtype.itemsize == 2]


def _leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


# numr


def test_batched_b_gradient_is_not_summed_over_the_batch() -> None:
    a, b = _leaf(3, 4, 5), _leaf(3, 5, 2)
    grad = torch.randn(3, 4, 2, dtype=torch.float64)
    (got,) = torch.autograd.grad(epigrad.matmul_bias_activation(a, b), b, grad)
    torch.testing.assert_close(got, a.detach().mT @ grad, rtol=1e-13, atol=1e-14)


def test_gradient_of_a_shared_b_is_summed_over_the_batch() -> None:
    a, b = _leaf(3, 4, 5), _leaf(5, 2)
    grad = torch.randn(3, 4, 2, dtype=torch.float64)
    (got,) = torch.autograd.grad(epigrad.matmul_bias_activation(a, b), b, grad)
    torch.testing.assert_close(got, (a.detach().mT @ grad).sum(0), rtol=1e-13, atol=1e-14)


def test_one_dimensional_b_stays_in_bounds() -> None:
    a, b = _leaf(3, 4, 5), _leaf(5)
    out = epigrad.matmul_bias_activation(a, b, None, "tanh")
    want = torch.tanh(a @ b)
    grad = torch.randn(3, 4, dtype=torch.float64)
    for got, expected in zip(
        torch.autograd.grad(out, (a, b), grad), torch.autograd.grad(want, (a, b), grad), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_batch_of_zero_gives_zero_gradients_to_what_is_shared() -> None:
    a, b, bias = _leaf(0, 4, 5), _leaf(5, 2), _leaf(2)
    out = epigrad.matmul_bias_activation(a, b, bias, "gelu")
    grad_a, grad_b, grad_bias = torch.autograd.grad(out, (a, b, bias), torch.empty(0, 4, 2, dtype=torch.float64))
    assert grad_a.shape == (0, 4, 5)
    assert not grad_b.any()
    assert grad_b.shape == (5, 2)
    assert not grad_bias.any()
    assert grad_bias.shape == (2,)


@pytest.mark.parametrize(
    "shapes",
    [((4, 3), (4, 5), (5, 2)), ((4, 2), (4, 6), (5, 2)), ((4,), (4, 5), (5, 2)), ((3, 4, 2), (2, 4, 5), (5, 2))],
    ids=str,
)
def test_backward_checks_its_shapes(shapes: tuple[tuple[int, ...], ...]) -> None:
    grad, a, b = (torch.ones(shape) for shape in shapes)
    with pytest.raises(errors.InvalidProblemError):
        backward.matmul_bias_activation_backward(grad, a, b)


def test_element_counts_do_not_overflow_32_bits() -> None:
    """m * n is beyond 2^35: the geometry of the problem is checked and answered without memory for
    it."""
    m = n = 3 * 2**16
    weight = torch.empty(n, 1, device="meta", requires_grad=True)
    out = epigrad.linear(torch.empty(m, 1, device="meta"), weight, None, "gelu")
    assert out.shape == (m, n)
    assert torch.autograd.grad(out, weight, torch.empty_like(out))[0].shape == (n, 1)
    selected = plan.GemmEpilogueBackward.select(m=m, n=n, k=1, activation="gelu", dtype=torch.float32)
    assert selected.workspace_size == 0 or selected.workspace_size >= m * n


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_empty_sizes_are_computed(activation: str) -> None:
    for m, k, n in ((0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)):
        a, b, bias = _leaf(m, k), _leaf(k, n), _leaf(n)
        out = epigrad.matmul_bias_activation(a, b, bias, activation)
        want = oracle.ACTIVATIONS[activation].value(a @ b + bias)
        torch.testing.assert_close(out, want, rtol=1e-13, atol=1e-15)
        grads = torch.autograd.grad(out.sum(), (a, b, bias))
        assert [g.shape for g in grads] == [a.shape, b.shape, bias.shape]


@pytest.mark.parametrize("special", [math.nan, math.inf])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_non_finite_derivatives_are_not_replaced(activation: str, special: float) -> None:
    """A gradient that is NaN or infinite in PyTorch is so here."""
    pre = torch.tensor([[0.5]], dtype=torch.float64)
    grad = torch.tensor([[special]], dtype=torch.float64)
    gradients = backward.matmul_bias_activation_backward(grad, pre, torch.ones_like(pre), pre[0] * 0, activation)
    for gradient in gradients:
        assert gradient is not None
        assert not gradient.isfinite().any()
    at_nan = backward.matmul_bias_activation_backward(pre, pre * math.nan, torch.ones_like(pre), None, activation)[0]
    assert at_nan is not None
    leaf = (pre * math.nan).requires_grad_()
    (want,) = torch.autograd.grad(oracle.ACTIVATIONS[activation].eager(leaf), leaf, pre)
    torch.testing.assert_close(at_nan, want, rtol=0, atol=0, equal_nan=True)


def test_no_fast_math_in_the_tails() -> None:
    """Approximations of exp and tanh lose these: the results are far below the largest value, and
    not zero."""
    one = torch.ones(1)
    for kind, gate, exact in (
        ("swiglu", -85.0, -85 * mpmath.exp(-85) / (1 + mpmath.exp(-85))),
        ("glu", -85.0, 1 / (1 + mpmath.exp(85))),
        ("geglu", -13.0, -13 * mpmath.ncdf(-13)),
    ):
        got = epigrad.gated_product(one, torch.tensor([gate]), kind).item()
        assert abs(got / float(exact) - 1) < 2.0**-23


def test_relu_derivative_at_zero_is_zero() -> None:
    x = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    for save in ("auto", "preactivation", "recompute"):
        (grad,) = torch.autograd.grad(epigrad.matmul_bias_activation(x, one, None, "relu", save=save), x, one)
        assert grad.item() == 0.0
    (grad,) = torch.autograd.grad(epigrad.matmul_bias_activation(x, one, None, "relu"), x, one, create_graph=True)
    assert grad.item() == 0.0


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_second_order_gradients_are_not_silently_wrong(activation: str) -> None:
    points = torch.tensor([-2.5, -0.7, 0.4, 3.0], dtype=torch.float64, requires_grad=True)
    out = epigrad.matmul_bias_activation(points[:, None], torch.ones(1, 1, dtype=torch.float64), None, activation)
    (first,) = torch.autograd.grad((out * out).sum(), points, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), points)
    value, slope, curvature = (oracle.derivative(activation, order, points) for order in range(3))
    torch.testing.assert_close(second, 2 * slope**2 + 2 * value * curvature, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_bias_gradient_is_summed_before_it_is_rounded(dtype: torch.dtype) -> None:
    """One rounding, of the sum: rounding grad_preactivation first is many times as far off here."""
    rows = 2000
    pre = torch.full((rows, 1), 0.3, dtype=dtype)
    grad = torch.ones(rows, 1, dtype=dtype)
    one = torch.ones(1, 1, dtype=dtype)
    for activation in ("gelu", "silu", "sigmoid", "tanh"):
        grad_bias = backward.matmul_bias_activation_backward(
            grad, pre, one, one[0], activation, preactivation=pre, needs=(False, False, True)
        )[2]
        assert grad_bias is not None
        exact = rows * oracle.derivative(activation, 1, pre[:1].to(torch.float64)).item()
        assert abs(grad_bias.item() - exact) <= torch.finfo(dtype).eps / 2 * exact * 1.01


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_half_types_accumulate_in_float32(dtype: torch.dtype) -> None:
    """A sum of ones kept in a half type stops at 256 or 2048."""
    a, b = torch.ones(1, 4096, dtype=dtype), torch.ones(4096, 1, dtype=dtype)
    assert epigrad.matmul_bias_activation(a, b).item() == 4096.0
    grad = torch.ones(4096, 1, dtype=dtype)
    _, grad_b, grad_bias = backward.matmul_bias_activation_backward(grad, b, b[:1], b[0])
    assert grad_b is not None
    assert grad_bias is not None
    assert grad_b.item() == grad_bias.item() == 4096.0
    _, _, grad_weight = backward.lerp_backward(grad, 0 * grad, grad, b[:1])
    assert grad_weight is not None
    assert grad_weight.item() == 4096.0


# baracuda-kernels


def test_float64_lerp_keeps_a_float64_weight() -> None:
    start, end = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    third = 1 / 3
    assert epigrad.lerp(start, end, third).tolist() == [third] * 3
    grad_start, grad_end, _ = backward.lerp_backward(end, None, None, third, needs=(True, True, False))
    assert grad_start is not None
    assert grad_end is not None
    assert grad_start.tolist() == [1 - third] * 3
    assert grad_end.tolist() == [third] * 3


def test_glu_gradient_does_not_cancel_for_large_gates() -> None:
    """s(b) s(-b) is about e^-b there, where s(b) (1 - s(b)) is zero."""
    gate = torch.tensor([20.0, 40.0, 80.0, 600.0], dtype=torch.float64)
    _, grad_gate = backward.gated_product_backward(torch.ones_like(gate), torch.ones_like(gate), gate, "glu")
    assert grad_gate is not None
    for got, at in zip(grad_gate.tolist(), gate.tolist(), strict=True):
        exact = mpmath.exp(-mpmath.mpf(at)) / (1 + mpmath.exp(-mpmath.mpf(at))) ** 2
        assert abs(got / exact - 1) < 1e-15


def test_geglu_does_not_cancel_in_the_negative_tail() -> None:
    gate = torch.tensor([-3.0, -6.0, -12.0, -30.0], dtype=torch.float64)
    one = torch.ones_like(gate)
    out = epigrad.gated_product(one, gate, "geglu")
    _, grad_gate = backward.gated_product_backward(one, one, gate, "geglu")
    assert grad_gate is not None
    for value, slope, at in zip(out.tolist(), grad_gate.tolist(), map(mpmath.mpf, gate.tolist()), strict=True):
        phi = mpmath.erfc(-at / mpmath.sqrt(2)) / 2
        assert abs(value / (at * phi) - 1) < 1e-15
        assert abs(slope / (phi + at * mpmath.npdf(at)) - 1) < 1e-15


@pytest.mark.parametrize("kind", GATED_KINDS, ids=str)
def test_nan_gates_are_not_swallowed(kind: str) -> None:
    """reglu's max(gate, 0) lost them."""
    gate, one, value = torch.tensor([math.nan]), torch.ones(1), torch.full((1,), 0.1)
    assert epigrad.gated_product(value, gate, kind).isnan().all()
    grad_value, _ = backward.gated_product_backward(one, value, gate, kind)
    assert grad_value is not None
    assert grad_value.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sku_and_guarantee_tell_what_runs(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    accumulator = "float64" if dtype == torch.float64 else "float32"
    for selected in (
        plan.GemmEpilogueBackward.select(m=2, n=3, k=4, dtype=dtype),
        plan.GatedActivationBackward.select(input_shape=(2, 4), dtype=dtype),
        plan.LerpBackward.select(shape=(2, 3), dtype=dtype),
    ):
        assert selected.sku.dtype == name
        assert selected.sku.backend == "cpu"
        assert not selected.sku.arch.startswith("sm")
        assert selected.precision_guarantee.accumulator == selected.sku.accumulator
    assert plan.GemmEpilogueBackward.select(m=2, n=3, k=4, dtype=dtype).sku.accumulator == accumulator


def test_size_one_dimensions_may_have_any_stride() -> None:
    memory = torch.arange(64.0)
    x = memory.as_strided((1, 3, 4, 1), (63, 4, 1, 17))
    want = x.contiguous()
    assert torch.equal(epigrad.gated_activation(x, "swiglu", 2), epigrad.gated_activation(want, "swiglu", 2))
    assert torch.equal(epigrad.lerp(x, x, 0.5), want)
    out = Guarded.empty((1, 3, 4, 1), torch.float32, "odd_ones")
    forward.lerp(x, x, 0.25, out=out.tensor)
    assert torch.equal(out.tensor, want)


def test_strided_and_expanded_tensors_are_accepted() -> None:
    x = torch.randn(6, 8).t()[::2]
    grad = torch.ones(()).expand(4, 3)
    assert torch.equal(
        backward.gated_activation_backward(grad, x, "geglu"),
        backward.gated_activation_backward(grad.contiguous(), x.contiguous(), "geglu"),
    )


def test_lerp_weight_has_a_gradient() -> None:
    start, end, weight = _leaf(4, 3), _leaf(4, 3), _leaf(3)
    (got,) = torch.autograd.grad(epigrad.lerp(start, end, weight).sum(), weight)
    torch.testing.assert_close(got, (end - start).sum(0).detach(), rtol=1e-13, atol=1e-14)


def test_rank_above_eight_is_no_limit_that_is_silent() -> None:
    """Beyond the ranks that the contract names, the result is right or the call says that it is not
    offered."""
    x = torch.randn(*[1] * 9, 4)
    try:
        got = epigrad.gated_activation(x, "swiglu")
    except errors.UnsupportedError:
        return
    assert torch.equal(got.flatten(), epigrad.gated_activation(x.flatten(), "swiglu"))


def test_workspace_too_small_tells_needed_and_got() -> None:
    m, n, k = 64, 32, 16
    selected = plan.GemmEpilogueBackward.select(m=m, n=n, k=k, activation="gelu", dtype=torch.float32)
    tensors = {"grad_output": torch.ones(m, n), "a": torch.ones(m, k), "b": torch.ones(k, n)}
    grad_a = torch.full((m, k), math.nan)
    if selected.workspace_size == 0:
        pytest.skip("this plan needs no workspace")
    small = torch.empty(selected.workspace_size + 256, dtype=torch.uint8)
    small = small[-small.data_ptr() % 256 :][: selected.workspace_size - 1]
    with pytest.raises(errors.WorkspaceTooSmallError) as raised:
        selected.run(**tensors, grad_a=grad_a, workspace=small)
    assert raised.value.needed == selected.workspace_size
    assert raised.value.got == selected.workspace_size - 1
    assert grad_a.isnan().all()


# Defects of epigrad 0.1


def negated_calls(x: Tensor, negative: Tensor, out: Tensor) -> dict[str, Callable[[], object]]:
    """Calls that read `negative`, a view that negates the memory of `out`, and would write into
    `out`; all are 4x4."""
    backs = {"linear": backward.linear_backward, "matmul_bias_activation": backward.matmul_bias_activation_backward}
    wide = torch._neg_view(torch.cat([out, out]).T.contiguous())
    calls: dict[str, Callable[[], object]] = {
        "linear": lambda: forward.linear(negative, x, out=out),
        "matmul_bias_activation": lambda: forward.matmul_bias_activation(x, negative, out=out),
        "gated_product": lambda: forward.gated_product(x, negative, out=out),
        "gated_activation": lambda: forward.gated_activation(wide, out=torch._neg_view(wide)[:, :4]),
        "lerp": lambda: forward.lerp(x, x, negative, out=out),
        "gated_product_backward": lambda: backward.gated_product_backward(negative, x, x, out=(None, out)),
        "lerp_backward": lambda: backward.lerp_backward(x, negative, x, 0.5, out=(out, None, None)),
    }
    for name, back in backs.items():
        for accumulate in (False, True):
            calls[f"{name}_backward, accumulate={accumulate}"] = lambda back=back, accumulate=accumulate: back(  # type: ignore[misc]
                x, negative, x, out=(None, out, None), needs=(True, True, False), accumulate=accumulate
            )
    return calls


NEGATED = list(negated_calls(*[torch.ones(4, 4)] * 3))


@pytest.mark.parametrize("name", NEGATED)
@pytest.mark.parametrize("how", ["negated view", "imaginary part of a conjugate"])
def test_an_output_does_not_overlap_an_input_with_the_negative_bit(how: str, name: str) -> None:
    """The bit is resolved by a copy, with which an output does not overlap."""
    memory = torch.randn(4, 4, dtype=torch.complex64)
    out = torch.view_as_real(memory)[..., 1]
    negative = memory.conj().imag if how.startswith("imaginary") else torch._neg_view(out)
    assert negative.is_neg() and torch.equal(negative, -out)
    before, x = memory.clone(), torch.randn(4, 4)
    with pytest.raises(errors.InvalidProblemError, match="shares memory with"):
        negated_calls(x, negative, out)[name]()
    assert torch.equal(memory, before)


def test_an_input_with_the_negative_bit_is_computed_with_where_nothing_overlaps() -> None:
    x, weight, out = torch.randn(4, 4), torch.randn(4, 4), torch.empty(4, 4)
    negative, zeros = torch._neg_view(x), torch._efficientzerotensor((4, 4))
    assert forward.linear(negative, weight, out=out) is out
    assert torch.equal(out, forward.linear(-x, weight))
    # both are materialised, and only one can share memory
    forward.lerp(negative, zeros, 0.25, out=out)
    assert torch.equal(out, forward.lerp(-x, torch.zeros(4, 4), 0.25))
    with pytest.raises(errors.InvalidProblemError, match="shares memory with start"):
        forward.lerp(negative, zeros, 0.25, out=x)
    with pytest.raises(errors.InvalidProblemError, match="out: shape"):
        forward.lerp(negative, x, 0.25, out=torch.empty(3, 4))


def test_a_meta_tensor_with_the_negative_bit_has_shapes_only() -> None:
    x = torch.empty(3, 4, device="meta")
    out = torch.empty(3, 4, device="meta")
    assert forward.activation(torch._neg_view(x), "relu", out=out) is out


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_a_plan_refuses_the_negative_bit(kind: type[Tensor]) -> None:
    start, end, out = torch.randn(4, 4), torch.randn(4, 4), torch.full((4, 4), math.nan)
    negative = torch._neg_view(start)
    if kind is torch.nn.Parameter:
        negative = torch.nn.Parameter(negative, requires_grad=False)
    chosen = plan.Lerp.select(shape=(4, 4), weight=0.5, dtype=torch.float32)
    for call in (chosen.run, chosen.can_implement):
        with pytest.raises(errors.UnsupportedError, match="start: a view with the negative bit"):
            call(start=negative, end=end, out=out)
        with pytest.raises(errors.UnsupportedError, match="out: a view with the negative bit"):
            call(start=end, end=end, out=negative)
    assert out.isnan().all()


def zero_calls(x: Tensor, zeros: Tensor, bias: Tensor) -> dict[str, Callable[[], object]]:
    """Calls that read `zeros`; it and x are 4x4, bias is 4."""
    wide = torch.cat([x, x], 1)
    return {
        "linear": lambda: epigrad.linear(zeros, x, bias, "gelu"),
        "linear, weight": lambda: epigrad.linear(x, zeros, bias, "gelu"),
        "matmul_bias_activation": lambda: epigrad.matmul_bias_activation(x, zeros, bias, "tanh"),
        "gated_activation": lambda: epigrad.gated_activation(zeros, "geglu"),
        "gated_product": lambda: epigrad.gated_product(zeros, x, "glu"),
        "lerp": lambda: epigrad.lerp(x, zeros, zeros),
        "linear_backward": lambda: backward.linear_backward(zeros, x, x, bias, "gelu"),
        "matmul_bias_activation_backward": lambda: backward.matmul_bias_activation_backward(zeros, x, zeros, bias),
        "gated_activation_backward": lambda: backward.gated_activation_backward(zeros, wide),
        "gated_product_backward": lambda: backward.gated_product_backward(x, zeros, x),
        "lerp_backward": lambda: backward.lerp_backward(zeros, x, x, 0.25),
        "with out": lambda: forward.linear(zeros, x, bias, out=torch.empty(4, 4)),
    }


ZEROS = list(zero_calls(*[torch.ones(4, 4)] * 3))


@pytest.mark.parametrize("shape", ["4x4", "expanded", "negated"])
@pytest.mark.parametrize("name", ZEROS)
def test_zero_tensors_without_memory_are_zeros(name: str, shape: str) -> None:
    x, bias = torch.randn(4, 4), torch.randn(4)
    zeros = {
        "4x4": lambda: torch._efficientzerotensor((4, 4)),
        "expanded": lambda: torch._efficientzerotensor((4,)).expand(4, 4),
        "negated": lambda: torch._neg_view(torch._efficientzerotensor((4, 4))),
    }[shape]()
    assert zeros._is_zerotensor()
    got = zero_calls(x, zeros, bias)[name]()
    plain = -torch.zeros(4, 4) if shape == "negated" else torch.zeros(4, 4)
    want = zero_calls(x, plain, bias)[name]()
    for ours, theirs in zip(*([y] if isinstance(y, Tensor) else y for y in (got, want)), strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


def test_gradients_pass_zero_tensors() -> None:
    """As input they are saved for backward; as grad_output they come from another function's
    backward."""
    x, weight = torch._efficientzerotensor((3, 4)), torch.randn(2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(epigrad.linear(x, weight, None, "gelu").sum(), weight)
    assert torch.equal(grad, torch.zeros(2, 4))
    inputs = torch.randn(3, 4, requires_grad=True)
    result = epigrad.linear(inputs, weight, None, "gelu")
    for got in torch.autograd.grad(result, (inputs, weight), torch._efficientzerotensor((3, 2))):
        assert torch.equal(got, torch.zeros_like(got)) and not got._is_zerotensor()


def test_a_plan_names_the_tensor_of_zeros_without_memory() -> None:
    zeros, end, out = torch._efficientzerotensor((4, 4)), torch.randn(4, 4), torch.full((4, 4), math.nan)
    chosen = plan.Lerp.select(shape=(4, 4), weight=0.5, dtype=torch.float32)
    for call in (chosen.run, chosen.can_implement):
        with pytest.raises(errors.UnsupportedError, match=r"lerp: start: a tensor of zeros without memory.*clone"):
            call(start=zeros, end=end, out=out)
        lost = torch.randn(4, 4)
        lost.untyped_storage().resize_(0)
        with pytest.raises(errors.InvalidProblemError, match="a null pointer"):
            call(start=lost, end=end, out=out)
    assert out.isnan().all()


FAULT = """
import ctypes, faulthandler, mmap, os, sys, tempfile
import torch
import epigrad

how, count, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if when == "before":
    faulthandler.enable()
good = torch.ones(count)
for _ in range(4):  # from the third on, a kernel is held
    epigrad.lerp(good, good, 0.5)
if when == "after":
    faulthandler.enable()
with tempfile.TemporaryFile() as file:
    file.truncate(4 * count)
    memory = mmap.mmap(file.fileno(), 4 * count)
    bad = torch.frombuffer(memory, dtype=torch.float32)
    if how == "cut":
        file.truncate(0)
    else:
        address, length = ctypes.c_void_p(bad.data_ptr()), ctypes.c_size_t(4 * count)
        assert ctypes.CDLL(None).mprotect(address, length, 0) == 0
    print("calling", flush=True)
    epigrad.lerp(bad, good, 0.5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the signals of Linux")
@pytest.mark.parametrize("count", [1024, 1 << 20], ids=["calling thread", "several threads"])
@pytest.mark.parametrize(
    ("how", "number"), [("protected", signal.SIGSEGV), pytest.param("cut", signal.SIGBUS, marks=thorough)]
)
def test_a_fault_in_an_inputs_memory_ends_the_process_by_its_signal(how: str, number: int, count: int) -> None:
    done = start("-c", FAULT, how, str(count), "never")
    assert (done.returncode, done.stdout.strip()) == (-number, "calling"), done.stderr
    assert "goroutine" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the signals of Linux")
@thorough
def test_faulthandler_tells_where_a_fault_was() -> None:
    for when in ("before", "after"):
        done = start("-c", FAULT, "protected", "1024", when)
        assert "Segmentation fault" in done.stderr and "in lerp" in done.stderr, done.stderr
        if when == "before":
            assert done.returncode == -signal.SIGSEGV and "goroutine" not in done.stderr, done.stderr
