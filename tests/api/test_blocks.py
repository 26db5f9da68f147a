"""`mlp` and `gated_mlp` without a graph: they are the calls that they are made of, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward
from torch import Tensor

from tests.support.layouts import Guarded, assert_same_bits, unchanged

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
KINDS = {
    "mlp": ["none", "relu", "gelu", "tanh", epigrad.Activation("leaky_relu", slope=0.3)],
    "gated_mlp": ["swiglu", "bilinear"],
}
BLOCKS = [(name, kind) for name, kinds in KINDS.items() for kind in kinds]
SHAPES = {"plain": (3, 5), "batch": (2, 3, 5), "vector": (5,), "empty": (0, 5)}

every_block = pytest.mark.parametrize(("name", "kind"), BLOCKS, ids=str)
Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]


def tensors(
    name: str, shape: tuple[int, ...] = (3, 5), dtype: torch.dtype = torch.float32, bias: bool = True
) -> Tensors:
    torch.manual_seed(len(shape))
    rows = 14 if name == "gated_mlp" else 7
    made = [torch.randn(s).to(dtype) for s in (shape, (rows, 5), (rows,), (4, 7), (4,))]
    return tuple(t if bias or t.dim() > 1 or i == 0 else None for i, t in enumerate(made))  # type: ignore[return-value]


def separately(
    name: str, kind: Any, grad: Tensor, operands: Tensors
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Output, preactivation, its gradient, and the gradients by the operations that a block is made
    of."""
    x, weight1, bias1, weight2, bias2 = operands
    if name == "mlp":
        hidden, pre = forward.linear(x, weight1, bias1, kind, return_preactivation=True)
        again = forward.activation(pre, kind)  # of the preactivation as it is stored
    else:
        pre = forward.linear(x, weight1, bias1)
        hidden = again = forward.gated_activation(pre, kind)
    grad_hidden, *second = backward.linear_backward(grad, again, weight2, bias2)
    if name == "mlp":
        grad_pre = backward.activation_backward(grad_hidden, pre, kind)
    else:
        grad_pre = backward.gated_activation_backward(grad_hidden, pre, kind)
    first = backward.linear_backward(grad_pre, x, weight1, bias1)
    return forward.linear(hidden, weight2, bias2), pre, grad_pre, (*first, *second)


def functions(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return getattr(forward, name), getattr(backward, f"{name}_backward")


@every_block
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_block_is_its_calls(name: str, kind: Any, shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    operands = tensors(name, shape, dtype, bias)
    grad = torch.randn(*shape[:-1], 4).to(dtype)
    run, run_backward = functions(name)
    want, want_pre, grad_pre, want_grads = separately(name, kind, grad, operands)
    with unchanged(*operands, grad):
        out, pre = run(*operands, kind, return_preactivation=True)
        grads = run_backward(grad, *operands, kind, preactivation=pre)
        again = run_backward(grad, *operands, kind)
    assert_same_bits(out, want)
    assert_same_bits(run(*operands, kind), want)
    assert_same_bits(pre, want_pre)
    for place, (one, other, wanted) in enumerate(zip(grads, again, want_grads, strict=True)):
        if wanted is None:
            assert one is None and other is None
            continue
        assert one is not None and other is not None
        assert_same_bits(other, one)
        if place == 2:  # the separate calls sum what they have rounded
            assert (
                (one - wanted).abs() <= torch.finfo(dtype).eps * (1 + grad_pre.abs().sum_to_size(wanted.shape))
            ).all()
        else:
            assert_same_bits(one, wanted)


@every_block
def test_needs_and_out(name: str, kind: Any) -> None:
    operands, grad = tensors(name), torch.randn(3, 4)
    _, run = functions(name)
    every = run(grad, *operands, kind)
    for needs in itertools.product((False, True), repeat=5):
        for one, need, full in zip(run(grad, *operands, kind, needs=needs), needs, every, strict=True):
            assert (one is not None) == need
            if need:
                assert_same_bits(one, full)
    held = [
        Guarded.holding(torch.zeros_like(full), "transposed" if full.dim() == 2 else "contiguous") for full in every
    ]
    for one, guarded, full in zip(
        run(grad, *operands, kind, out=tuple(g.tensor for g in held)), held, every, strict=True
    ):
        assert one is guarded.tensor
        assert_same_bits(one, full)
        guarded.check()


@every_block
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accumulate_adds_all_but_the_inputs(name: str, kind: Any, dtype: torch.dtype) -> None:
    operands, grad = tensors(name, dtype=dtype), torch.randn(3, 4).to(dtype)
    _, run = functions(name)
    every = run(grad, *operands, kind)
    held = tuple(torch.full_like(full, 3.0) for full in every)
    run(grad, *operands, kind, out=held, accumulate=True)
    assert_same_bits(held[0], every[0])
    for one, full in zip(held[1:], every[1:], strict=True):
        assert ((one - full - 3).abs() <= torch.finfo(dtype).eps * (3 + 3 * full.abs())).all()
    with pytest.raises(errors.InvalidProblemError, match="no tensor for grad_"):
        run(grad, *operands, kind, accumulate=True)


@pytest.mark.parametrize("name", KINDS)
def test_errors_name_the_blocks_own_arguments(name: str) -> None:
    x, weight1, bias1, weight2, bias2 = tensors(name)
    run, run_backward = functions(name)
    first, second = ("weight1", "weight2") if name == "mlp" else ("weight_in", "weight_out")
    for given, wanted in (
        ((x, weight1[:, 1:], bias1, weight2, bias2), first),
        ((x, weight1, bias1, weight2[:, 1:], bias2), second),
        ((x, weight1, x, weight2, bias2), f"bias{first[6:]}"),
        ((x, weight1, bias1, weight2, x), f"bias{second[6:]}"),
    ):
        with pytest.raises(errors.InvalidProblemError, match=rf"^{name}: .*{wanted}"):
            run(*given)
    grad = torch.ones(3, 4)
    with pytest.raises(errors.InvalidProblemError, match="grad_output"):
        run_backward(grad[:2], x, weight1, bias1, weight2, bias2)
    with pytest.raises(errors.InvalidProblemError, match="preactivation"):
        run_backward(grad, x, weight1, bias1, weight2, bias2, preactivation=grad)
    with pytest.raises(errors.DTypeError, match=second):
        run(x, weight1, bias1, None, bias2)
    with pytest.raises(errors.InvalidProblemError, match="nope"):
        run(x, weight1, bias1, weight2, bias2, "nope")
    if name == "gated_mlp":
        with pytest.raises(errors.InvalidProblemError, match="weight_in: got 13 rows"):
            run(x, weight1[1:], None, weight2, bias2)
