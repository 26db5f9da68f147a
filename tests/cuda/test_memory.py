"""Memory on a GPU: what is kept for backward, the peak, what plans allocate, running out of it, and
large tensors."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, forward
from torch import Tensor

from tests.cuda.calls import CALLS, DIFFERENTIABLE
from tests.support import compositions
from tests.support.devices import needs
from tests.support.layouts import assert_same_bits
from tests.support.oracle import ACTIVATIONS
from tests.support.plan_problem import CLASSES, DTYPES, arguments, tensors_for, workspace_of

pytestmark = needs("cuda")

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def allocations() -> int:
    """How many blocks have been asked of PyTorch's allocator so far."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_a_plan_allocates_nothing_on_the_device(cls: Any, dtype: torch.dtype) -> None:
    inputs, outputs = tensors_for(cls, dtype, "cuda")
    made = cls.select(**arguments(cls), dtype=dtype, device="cuda")
    workspace = workspace_of(made, "cuda")
    made.run(**inputs, **outputs, workspace=workspace)
    torch.cuda.synchronize()
    before, allocated, free = allocations(), torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(10):
        made.run(**inputs, **outputs, workspace=workspace)
    torch.cuda.synchronize()
    assert allocations() == before and torch.cuda.memory_allocated() == allocated
    if "PYTEST_XDIST_WORKER" not in os.environ:  # what the driver gives is everybody's
        assert torch.cuda.mem_get_info()[0] == free


def settled(limit: int) -> int:
    """Bytes that are allocated, once they are at most `limit` or long enough has passed: autograd's
    thread lets go of a graph a moment after its gradients are there.
    """
    deadline = time.monotonic() + 5
    while torch.cuda.memory_allocated() > limit and time.monotonic() < deadline:
        time.sleep(0.01)
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("name", CALLS)
def test_memory_is_given_back_after_each_call(name: str) -> None:
    call = CALLS[name]
    values = call.operands()
    call.run(*values)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        call.run(*values)
    assert settled(before) <= before


# What is kept for backward

ROWS, FEATURES, HIDDEN = 512, 256, 1024
PREACTIVATION = ROWS * HIDDEN * 2  # bytes in bfloat16


def kept(function: Callable[[Tensor], Tensor]) -> int:
    """Bytes that stay allocated between forward and backward, the result and what there was before
    aside."""
    x = torch.randn(ROWS, FEATURES, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    function(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = function(x)
    return torch.cuda.memory_allocated() - before - out.nbytes


def weights(gated: bool) -> tuple[Tensor, Tensor]:
    rows = 2 * HIDDEN if gated else HIDDEN
    up = torch.randn(rows, FEATURES, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    down = torch.randn(FEATURES, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return up, down


@pytest.mark.parametrize(("save", "blocks"), [("auto", 1), ("preactivation", 1), ("recompute", 0)])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_an_mlp_keeps_its_preactivation_alone(activation: str, save: str, blocks: int) -> None:
    up, down = weights(gated=False)
    bytes_kept = kept(lambda x: epigrad.mlp(x, up, None, down, None, activation, save=save))
    assert bytes_kept == blocks * PREACTIVATION


@pytest.mark.parametrize(("save", "blocks"), [("auto", 2), ("preactivation", 2), ("recompute", 0)])
@pytest.mark.parametrize("kind", ["swiglu", "geglu"])
def test_a_gated_mlp_keeps_its_preactivation_alone(kind: str, save: str, blocks: int) -> None:
    up, down = weights(gated=True)
    bytes_kept = kept(lambda x: epigrad.gated_mlp(x, up, None, down, None, kind, save=save))
    assert bytes_kept == blocks * PREACTIVATION


@pytest.mark.parametrize(("save", "blocks"), [("auto", 2), ("preactivation", 2), ("recompute", 0)])
def test_a_gated_linear_layer_keeps_its_preactivation_alone(save: str, blocks: int) -> None:
    value, gate = weights(gated=False)[0], weights(gated=False)[0]
    assert kept(lambda x: epigrad.gated_linear(x, value, gate, save=save)) == blocks * PREACTIVATION


@pytest.mark.parametrize(
    ("activation", "save", "blocks"),
    [("gelu", "auto", 1), ("gelu", "recompute", 0), ("relu", "auto", 0), ("tanh", "auto", 0), ("none", "auto", 0)],
)
def test_a_layer_keeps_what_its_derivative_needs(activation: str, save: str, blocks: int) -> None:
    up, _ = weights(gated=False)
    assert kept(lambda x: epigrad.linear(x, up, None, activation, save=save)) == blocks * PREACTIVATION


def peak(function: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> int:
    """The most that a forward and backward add to what is allocated."""

    def step() -> None:
        out = function(*operands)
        torch.autograd.grad(out, operands, torch.ones_like(out))

    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("op", ["linear", "mlp", "gated_mlp"])
def test_the_peak_is_at_most_pytorchs(op: str) -> None:
    """Of a block that is large beside what products may take as workspace, which is let pass once,
    and so are the
    gradients: one backward makes them all while it holds what was saved, PyTorch's nodes let go one
        by one.
    """
    rows, features, hidden = 8192, 512, 4096
    activation = "silu" if op == "gated_mlp" else "gelu"
    act = ACTIVATIONS[activation].eager
    shapes = [(rows, features), ((2 if op == "gated_mlp" else 1) * hidden, features), (features, hidden)]
    x, up, down = (torch.randn(s, device="cuda", dtype=torch.bfloat16, requires_grad=True) for s in shapes)
    if op == "linear":
        ours = peak(lambda x, w: epigrad.linear(x, w, None, activation), (x, up))
        theirs = peak(lambda x, w: compositions.linear(x, w, None, act), (x, up))
    elif op == "mlp":
        ours = peak(lambda x, u, d: epigrad.mlp(x, u, None, d, None, activation), (x, up, down))
        theirs = peak(lambda x, u, d: compositions.mlp(x, u, None, d, None, act), (x, up, down))
    else:
        ours = peak(lambda x, u, d: epigrad.gated_mlp(x, u, None, d, None), (x, up, down))
        theirs = peak(
            lambda x, u, d: compositions.gated_mlp(
                x, u, None, d, None, "second", lambda value, gate: value * act(gate)
            ),
            (x, up, down),
        )
    gradients = sum(t.numel() * t.element_size() for t in (x, up, down))
    assert ours <= theirs + gradients + 33 * MIB, f"{ours / MIB:.0f} MiB, PyTorch {theirs / MIB:.0f} MiB"


# Running out


@pytest.mark.parametrize("name", ["lerp", "linear", "gated"])
def test_out_of_memory_is_pytorchs_own_error(name: str) -> None:
    """A terabyte of results from operands of kilobytes; the next call works."""
    column = torch.zeros(1 << 19, 1, device="cuda")
    calls: dict[str, Callable[[], object]] = {
        "lerp": lambda: epigrad.lerp(column, column.mT, 0.5),
        "linear": lambda: epigrad.linear(column, column, None, "gelu"),
        "gated": lambda: epigrad.gated_activation(column.expand(1 << 19, 1 << 20)),
    }
    with pytest.raises(torch.OutOfMemoryError):
        calls[name]()
    assert epigrad.lerp(column[:3], column[:3] + 1, 0.5).tolist() == [[0.5]] * 3


def test_out_of_memory_in_backward_is_pytorchs_own_error() -> None:
    x = torch.zeros(1, 1, device="cuda", requires_grad=True)
    out = epigrad.linear(x.expand(64, 1), torch.ones(1, 1, device="cuda"))
    torch.cuda.synchronize()
    wide = torch.zeros(1, 1, device="cuda").expand(1 << 19, 1 << 19)
    with pytest.raises(torch.OutOfMemoryError):
        backward.gated_product_backward(wide, wide, wide)
    assert torch.autograd.grad(out.sum(), x)[0].item() == 64.0


# Past 32 bits


@pytest.mark.slow
def test_gated_activation_of_more_than_two_to_the_31_elements() -> None:
    """Results at both ends and around element 2^31 have the bits that their rows have alone."""
    rows, columns = 65539, 32771
    assert rows * columns > 2**31, "the halves alone reach past 2^31"
    x = torch.empty(rows, 2 * columns, device="cuda", dtype=torch.bfloat16).normal_()
    grad = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16).normal_()
    out = forward.gated_activation(x, "geglu")
    grad_x = backward.gated_activation_backward(grad, x, "geglu")
    for start in (0, 2**31 // (2 * columns) - 2, 2**31 // columns - 2, rows - 5):
        part = slice(start, start + 5)
        own, own_grad = x[part].clone(), grad[part].clone()
        assert_same_bits(out[part], forward.gated_activation(own, "geglu"), f"row {start}")
        assert_same_bits(grad_x[part], backward.gated_activation_backward(own_grad, own, "geglu"), f"row {start}")


@pytest.mark.slow
def test_lerp_of_more_than_two_to_the_31_elements() -> None:
    """And a weight that broadcasts, whose gradient is a sum of that many terms."""
    rows, columns = 2**21 + 3, 1025
    assert rows * columns > 2**31
    start, end, grad = (torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16).normal_() for _ in range(3))
    weight = torch.rand(columns, device="cuda").bfloat16()
    out = forward.lerp(start, end, weight)
    grads = backward.lerp_backward(grad, start, end, weight)
    assert grads[0] is not None and grads[1] is not None and grads[2] is not None
    for first in (0, 2**31 // columns - 2, rows - 5):
        part = slice(first, first + 5)
        own = tuple(x[part].clone() for x in (grad, start, end))
        assert_same_bits(out[part], forward.lerp(own[1], own[2], weight), f"row {first}")
        own_grads = backward.lerp_backward(*own, weight, needs=(True, True, False))
        assert_same_bits(grads[0][part], own_grads[0], f"start's gradient, row {first}")
        assert_same_bits(grads[1][part], own_grads[1], f"end's gradient, row {first}")
    exact = torch.zeros(columns, device="cuda", dtype=torch.float64)
    size = torch.zeros_like(exact)
    for g, s, e in zip(*(x.split(1 << 16) for x in (grad, start, end)), strict=True):
        terms = g.double() * (e.double() - s.double())
        exact += terms.sum(0)
        size += terms.abs().sum(0)
    allowed = exact.abs() * torch.finfo(torch.bfloat16).eps / 2 + size * math.log2(rows) * 2**-24
    assert ((grads[2].double() - exact).abs() <= allowed).all(), "a pairwise float32 sum, rounded once"


def test_differentiable_calls_keep_nothing_after_backward() -> None:
    for call in DIFFERENTIABLE.values():
        values = [x.requires_grad_() for x in call.operands()]
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        (out,) = call.run(*values)
        torch.autograd.grad(out, values, torch.ones_like(out))
        limit = before - out.nbytes // -512 * 512
        assert settled(limit) <= limit
        del out
