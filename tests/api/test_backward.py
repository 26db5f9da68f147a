"""The stateless gradients: `needs`, `out`, `accumulate`, aliasing, and what may be left out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward
from torch import Tensor
from torch.autograd import forward_ad

from tests.support.cases import ACTIVATIONS
from tests.support.layouts import OUT_LAYOUTS, Guarded, assert_same_bits, unchanged

MASKS = list(itertools.product((False, True), repeat=3))


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64).to(dtype)


def nan(*shape: int) -> Tensor:
    return torch.full(shape, math.nan)


GRAD, X, WEIGHT, BIAS = rand(2, 3, 5), rand(2, 3, 4), rand(5, 4), rand(5)


def linear(**options: Any) -> tuple[Tensor | None, ...]:
    return backward.linear_backward(GRAD, X, WEIGHT, BIAS, "silu", **options)


def matmul(**options: Any) -> tuple[Tensor | None, ...]:
    return backward.matmul_bias_activation_backward(GRAD, X, WEIGHT.T, BIAS, "silu", **options)


def lerp(**options: Any) -> tuple[Tensor | None, ...]:
    return backward.lerp_backward(GRAD, GRAD + 1, rand(3, 1), rand(5, seed=1), **options)


THREE = pytest.mark.parametrize("function", [linear, matmul, lerp], ids=lambda f: f.__name__)


@pytest.mark.parametrize("needs", [(True, True), (True,), True, None], ids=str)
def test_needs_of_another_form_is_refused(needs: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="needs"):
        linear(needs=needs)


@THREE
def test_some_of_out(function: Any) -> None:
    every = function()
    for place in range(3):
        out: list[Tensor | None] = [None, None, None]
        out[place] = torch.full_like(every[place], math.nan)
        got = function(out=out)
        assert got[place] is out[place]
        for one, full in zip(got, every, strict=True):
            assert_same_bits(one, full)


def test_an_out_that_is_not_needed_is_ignored() -> None:
    wrong = torch.full((7,), 9, dtype=torch.int32)
    every = linear()
    with unchanged(wrong):
        for needs in MASKS:
            out = tuple(None if need else wrong for need in needs)
            for one, full, need in zip(linear(needs=needs, out=out), every, needs, strict=True):
                assert_same_bits(one, full if need else None)
        got = backward.lerp_backward(GRAD, None, None, 0.5, needs=(True, False, False), out=(None, GRAD, wrong))
        assert got[1] is None and got[2] is None
        backward.linear_backward(GRAD, X, WEIGHT, None, "silu", needs=(True, True, False), out=(None, None, wrong))


def test_disjoint_views_of_one_buffer_are_fine() -> None:
    every = linear()
    flat = torch.full((sum(full.numel() for full in every),), math.nan)
    parts = flat.split([full.numel() for full in every])
    linear(out=tuple(part.view(full.shape) for part, full in zip(parts, every, strict=True)))
    for part, full in zip(parts, every, strict=True):
        assert_same_bits(part.view(full.shape), full)


def test_interleaved_views_are_disjoint() -> None:
    grad, start, end = rand(4, 6), rand(4, 6, seed=1), rand(4, 6, seed=2)
    every = backward.lerp_backward(grad, start, end, 0.25)
    woven = nan(4, 12)
    got = backward.lerp_backward(grad, start, end, 0.25, out=(woven[:, ::2], woven[:, 1::2], None))
    for one, full in zip(got[:2], every[:2], strict=True):
        assert_same_bits(one.contiguous(), full)
    columns = nan(4, 12)
    backward.lerp_backward(grad, start, end, 0.25, out=(columns[:, :6], columns[:, 6:], None))
    assert_same_bits(columns[:, 6:].contiguous(), every[1])
    skewed = nan(9 * 12)
    left = skewed.as_strided((4, 6), (12, 2), 0)
    right = skewed.as_strided((4, 6), (24, 2), 1)
    backward.lerp_backward(grad, start, end, 0.25, out=(left, right, None))
    assert_same_bits(right.contiguous(), every[1])


def test_an_output_may_lie_in_the_gaps_of_an_input() -> None:
    woven = nan(4, 12)
    woven[:, ::2] = rand(4, 6)
    grad = woven[:, ::2]
    want = backward.lerp_backward(grad.clone(), None, None, 0.25)[0]
    got = backward.lerp_backward(grad, None, None, 0.25, needs=(True, False, False), out=(woven[:, 1::2], None, None))[
        0
    ]
    assert_same_bits(got.contiguous(), want)


def overlaps() -> list[tuple[str, Any]]:
    flat = nan(64)
    square = flat[:24].view(4, 6)
    grad = rand(4, 6)
    return [
        ("the same", (square, square, None)),
        ("shifted by one", (square, flat[1:25].view(4, 6), None)),
        ("last element", (square, flat[23:47].view(4, 6), None)),
        ("transposed", (square, flat[:24].view(6, 4).T, None)),
        ("itself expanded", (flat[:6].expand(4, 6), None, None)),
        ("itself by strides", (flat.as_strided((4, 6), (5, 1)), None, None)),
        ("crossing strides", (flat.as_strided((4, 6), (12, 2), 0), flat.as_strided((4, 6), (6, 3), 1), None)),
        ("an input", (grad, None, None)),
    ]


@pytest.mark.parametrize(("name", "out"), overlaps(), ids=[name for name, _ in overlaps()])
def test_overlapping_memory_is_refused(name: str, out: Any) -> None:
    grad = out[0] if name == "an input" else rand(4, 6)
    start, end = rand(4, 6, seed=1), rand(4, 6, seed=2)
    with unchanged(*out), pytest.raises(errors.InvalidProblemError, match=r"grad_(start|end)\b"):
        backward.lerp_backward(grad, start, end, 0.25, out=out)


@pytest.mark.parametrize("place", range(4))
def test_an_out_over_any_input_is_refused(place: int) -> None:
    inputs = [GRAD.clone(), X.clone(), WEIGHT.clone(), BIAS.clone()]
    target = torch.empty(0).set_(inputs[place].untyped_storage())[: BIAS.numel()]
    with unchanged(*inputs), pytest.raises(errors.InvalidProblemError, match="grad_bias"):
        backward.linear_backward(*inputs, "silu", out=(None, None, target))
    pre = nan(2, 3, 5)
    with unchanged(pre), pytest.raises(errors.InvalidProblemError, match="grad_bias"):
        backward.linear_backward(*inputs, "silu", preactivation=pre, out=(None, None, pre.view(-1)[3:8]))


def test_inputs_may_share_memory_among_themselves() -> None:
    square = rand(4, 4)
    got = backward.matmul_bias_activation_backward(square, square, square, square[0], "tanh")
    want = backward.matmul_bias_activation_backward(
        square.clone(), square.clone(), square.clone(), square[0].clone(), "tanh"
    )
    for one, full in zip(got, want, strict=True):
        assert_same_bits(one, full)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_accumulate_adds_weight_and_bias_gradients(dtype: torch.dtype) -> None:
    grad = torch.arange(-4.0, 4.0).view(2, 4).to(dtype)
    x, weight, bias = torch.ones(2, 3, dtype=dtype), torch.full((4, 3), 2.0, dtype=dtype), torch.zeros(4, dtype=dtype)
    outs = [torch.full(shape, 3.0, dtype=dtype) for shape in ((2, 3), (4, 3), (4,))]
    got = backward.linear_backward(grad, x, weight, bias, out=tuple(outs), accumulate=True)
    assert all(one is out for one, out in zip(got, outs, strict=True))
    assert torch.equal(outs[0], grad @ weight)
    assert torch.equal(outs[1], 3 + grad.T @ x)
    assert torch.equal(outs[2], 3 + grad.sum(0))
    backward.linear_backward(grad, x, weight, bias, out=tuple(outs), accumulate=True)
    assert torch.equal(outs[1], 3 + 2 * (grad.T @ x))


def test_accumulate_with_strided_out_and_empty_problems() -> None:
    every = linear()
    for layout in OUT_LAYOUTS:
        held = [Guarded.holding(torch.zeros_like(full), layout) for full in every[1:]]
        linear(out=(None, held[0].tensor, held[1].tensor), accumulate=True)
        for g, full in zip(held, every[1:], strict=True):
            assert torch.equal(g.tensor, full)
            g.check()
    kept = (None, torch.full((5, 4), 2.0), torch.full((5,), 2.0))
    backward.linear_backward(torch.ones(0, 5), torch.ones(0, 4), WEIGHT, BIAS, "gelu", out=kept, accumulate=True)
    assert torch.equal(kept[1], torch.full((5, 4), 2.0)) and torch.equal(kept[2], torch.full((5,), 2.0))


def test_accumulate_asks_for_what_is_needed_only() -> None:
    every = linear()
    weight = torch.zeros(5, 4)
    got = linear(needs=(True, True, False), out=(None, weight, None), accumulate=True)
    assert torch.equal(got[1], every[1]) and got[2] is None
    assert_same_bits(linear(needs=(True, False, False), accumulate=True)[0], every[0])
    bare = backward.linear_backward(GRAD, X, WEIGHT, None, "silu", out=(None, weight.zero_(), None), accumulate=True)
    assert bare[2] is None
    for needs, name in (((False, True, False), "grad_weight"), ((False, False, True), "grad_bias")):
        with pytest.raises(errors.InvalidProblemError, match=name):
            linear(needs=needs, accumulate=True)
    with pytest.raises(errors.InvalidProblemError, match="grad_b"):
        matmul(accumulate=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_a_preactivation_is_what_would_be_formed(activation: str, dtype: torch.dtype) -> None:
    grad, x, weight, bias = (value.to(dtype) for value in (GRAD, X, WEIGHT, BIAS))
    _, pre = forward.linear(x, weight, bias, activation, return_preactivation=True)
    given = backward.linear_backward(grad, x, weight, bias, activation, preactivation=pre)
    for one, formed in zip(given, backward.linear_backward(grad, x, weight, bias, activation), strict=True):
        assert_same_bits(one, formed)


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_an_output_gives_the_same_gradients(activation: str) -> None:
    grad, x, weight, bias = (value.double() for value in (GRAD, X, WEIGHT, BIAS))
    out = forward.linear(x, weight, bias, activation)
    given = backward.linear_backward(grad, x, weight, bias, activation, output=out)
    for one, formed in zip(given, backward.linear_backward(grad, x, weight, bias, activation), strict=True):
        torch.testing.assert_close(one, formed)


def test_lerp_without_its_ends() -> None:
    weight = rand(5, seed=1)
    full = backward.lerp_backward(GRAD, X.new_zeros(2, 3, 5), X.new_ones(2, 3, 5), weight)
    got = backward.lerp_backward(GRAD, None, None, weight, needs=(True, True, False))
    assert_same_bits(got[0], full[0])
    assert_same_bits(got[1], full[1])
    assert backward.lerp_backward(GRAD, None, None, 0.5)[2] is None
    for start, end, name in ((None, GRAD, "start"), (GRAD, None, "end")):
        with pytest.raises(errors.InvalidProblemError, match=name):
            backward.lerp_backward(GRAD, start, end, weight)


def test_nothing_is_recorded() -> None:
    leaves = [value.clone().requires_grad_() for value in (GRAD, X, WEIGHT, BIAS)]
    for got in backward.linear_backward(*leaves, "gelu"):
        assert not got.requires_grad and got.grad_fn is None and got.is_contiguous()
    assert not forward.linear(*leaves[1:], "gelu").requires_grad
    assert not forward.gated_activation(leaves[1]).requires_grad
    assert not forward.lerp(leaves[1], leaves[1], 0.5).requires_grad
    parameter = torch.nn.Parameter(WEIGHT.clone())
    assert_same_bits(forward.linear(X, parameter), forward.linear(X, WEIGHT))


def test_a_backward_of_your_own() -> None:
    class Gelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return forward.linear(x, weight, None, "gelu")

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            return backward.linear_backward(
                grad, *ctx.saved_tensors, None, "gelu", needs=(*ctx.needs_input_grad, False)
            )[:2]

    x, weight = rand(3, 4, dtype=torch.float64).requires_grad_(), rand(5, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(Gelu.apply, (x, weight))


def test_an_out_that_requires_grad_is_refused_as_by_pytorch() -> None:
    leaf = nan(5, 4).requires_grad_()
    for out in (leaf, leaf * 1):
        with unchanged(out.detach()), pytest.raises(errors.InvalidProblemError, match="out: a tensor that requires"):
            linear(out=(None, out, None))
        with unchanged(out.detach()), pytest.raises(errors.InvalidProblemError, match="out: a tensor that requires"):
            forward.lerp(WEIGHT, WEIGHT, 0.5, out=out)
    linear(out=(None, leaf, None), needs=(True, False, True))
    with torch.no_grad():
        assert_same_bits(linear(out=(None, leaf, None))[1].detach(), linear()[1])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
def test_tangents_and_transforms_are_refused() -> None:
    calls = [lambda x: backward.gated_activation_backward(x[..., :2], x), forward.gated_activation]
    for call in calls:
        with forward_ad.dual_level(), pytest.raises(errors.UnsupportedError, match="tangent"):
            call(forward_ad.make_dual(WEIGHT, torch.ones_like(WEIGHT)))
        with pytest.raises(errors.UnsupportedError, match=r"torch\.func transforms"):
            torch.func.vmap(call)(X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_save_modes_give_the_same_bits(activation: str, dtype: torch.dtype) -> None:
    """The mode "auto" too, where it keeps the preactivation and not the output."""
    leaves = [rand(*shape, dtype=dtype).requires_grad_() for shape in ((33, 17), (21, 17), (21,))]
    grad = rand(33, 21, dtype=dtype)

    def gradients(save: str) -> tuple[Tensor, ...]:
        return torch.autograd.grad(epigrad.linear(*leaves, activation, save=save), leaves, grad)

    modes = ["recompute"] if activation in ("relu", "sigmoid", "tanh") else ["recompute", "auto"]
    for mode in modes:
        for one, other in zip(gradients(mode), gradients("preactivation"), strict=True):
            assert_same_bits(one, other, mode)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_second_order_of_gelu_tanh_far_out(dtype: torch.dtype) -> None:
    x = torch.tensor([1e20, -1e20, 1e38, 100.0, math.nan], dtype=dtype, requires_grad=True)
    one = torch.ones_like(x).requires_grad_()
    (first,) = torch.autograd.grad(epigrad.gated_product(one, x, "geglu_tanh").sum(), x, create_graph=True)
    second = torch.autograd.grad(first.sum(), (x, one))
    zero_one = [1.0, 0.0, 1.0, 1.0]
    assert first[:4].tolist() == zero_one and second[1][:4].tolist() == zero_one and not second[0][:4].any()
    assert all(value[4].isnan() for value in (first, *second))


def test_an_activations_gradient_is_not_written_over_the_upstream_one() -> None:
    grad = torch.ones(3)
    with pytest.raises(errors.InvalidProblemError, match="activation_backward: out: shares memory with grad_output"):
        backward.activation_backward(grad, torch.randn(3), "mish", out=grad)
    assert torch.equal(grad, torch.ones(3))
