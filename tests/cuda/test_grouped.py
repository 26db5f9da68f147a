"""Groups of rows on a GPU at sizes of many tiles: by Hopper's kernels, and by those of any
strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import epigrad
import pytest
import torch
from epigrad import Gated, backward
from torch import Tensor

from benchmarks.timing import captured
from tests.support import compositions, oracle
from tests.support.compositions import leaves
from tests.support.devices import needs
from tests.support.kernels import kernels_of, on_hopper
from tests.support.layouts import assert_same_bits

pytestmark = needs("cuda")

HALF = (torch.bfloat16, torch.float16)
SIZES = {
    "many tiles": (1500, 264, 136, 5, 3),
    "few rows": (9, 2880, 328, 40, 2),
    "one row a group": (40, 128, 64, 200, 1),
    "a long depth": (300, 8200, 72, 3, 2),
    "many columns": (300, 72, 1032, 3, 2),
    "more groups than Hopper's kernels take": (700, 64, 48, 600, 2),
}
"""Tokens, features, hidden features, experts, and experts of a token."""

KINDS: dict[str, Any] = {
    "swiglu": "swiglu",
    "swiglu_oai": Gated("swiglu_oai"),
    "geglu_tanh": "geglu_tanh",
    "glu": "glu",
    "relu2": "relu2",
    "gelu": "gelu",
}


def drawn(generator: torch.Generator, dtype: torch.dtype, *shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape, generator=generator)).to("cuda", dtype)


def problem(size: str, kind: str, dtype: torch.dtype, transposed: bool = False) -> tuple[Tensor, list[Tensor], Tensor]:
    """An index, the tensors with gradients, and the gradient to the output."""
    tokens, features, hidden, experts, each = SIZES[size]
    g = torch.Generator().manual_seed(0)
    columns = 2 * hidden if kind not in ("relu2", "gelu") else hidden
    index = torch.randint(-1, experts + 1, (tokens, each), generator=g).to("cuda")
    w_in = drawn(g, dtype, experts, columns, features, scale=features**-0.5)
    w_out = drawn(g, dtype, experts, features, hidden, scale=hidden**-0.5)
    if transposed:
        w_in, w_out = (w.transpose(1, 2).contiguous().transpose(1, 2) for w in (w_in, w_out))
    layers = [w_in, drawn(g, dtype, experts, columns), w_out, drawn(g, dtype, experts, features)]
    scale = torch.rand(tokens, each, generator=g).to("cuda")
    return index, [drawn(g, dtype, tokens, features), scale, *layers], drawn(g, dtype, tokens, features)


def formula(kind: Any, gate: str) -> Callable[[Tensor], Tensor]:
    row = oracle.GATED[kind] if str(kind) in map(str, oracle.GATED) else None
    act = oracle.ACTIVATIONS[kind].value if row is None else row.value
    return act if row is None else lambda z: act(*compositions.halves(z, -1, gate))


def wanted(index: Tensor, tensors: list[Tensor], grad: Tensor, kind: Any, gate: str) -> list[Tensor]:
    """Output and gradients in float64."""
    wide = leaves(tensors, torch.float64)
    out = compositions.experts(wide[0], index, *wide[1:], formula(kind, gate))
    return [out.detach(), *torch.autograd.grad(out, wide, grad.double())]


def assert_near(got: list[Tensor], want: list[Tensor], dtype: torch.dtype) -> None:
    """Each result is near, and so is each of its rows: relative to its own size, or to that of a
    usual row, since terms cancel."""
    eps = torch.finfo(dtype).eps
    for place, (one, other) in enumerate(zip(got, want, strict=True)):
        rows = other.reshape(-1, other.shape[-1])
        sizes = torch.linalg.vector_norm(rows, dim=1)
        distances = torch.linalg.vector_norm(one.double().reshape(rows.shape) - rows, dim=1)
        whole = torch.linalg.vector_norm(distances) / torch.linalg.vector_norm(sizes)
        assert whole <= 4 * eps, f"result {place}: {whole:.2g}"
        worst = (distances / sizes.clamp(min=sizes.square().mean().sqrt())).max()
        assert worst <= 8 * eps, f"result {place}: {worst:.2g} of a row"


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["as stored", "transposed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_mixture_of_many_tiles(size: str, kind: str, transposed: bool, dtype: torch.dtype) -> None:
    index, tensors, grad = problem(size, kind, dtype, transposed)
    gate = "second" if kind in ("relu2", "gelu") else "even" if transposed else "first"
    operands = leaves(tensors)
    out = epigrad.experts(operands[0], index, *operands[1:], KINDS[kind], gate=gate)
    grads = torch.autograd.grad(out, operands, grad, retain_graph=True)
    assert_near([out.detach(), *grads], wanted(index, tensors, grad, KINDS[kind], gate), dtype)
    for one, other in zip(grads, torch.autograd.grad(out, operands, grad), strict=True):
        assert_same_bits(one, other)
    plain = epigrad.experts(tensors[0], index, *tensors[1:], KINDS[kind], gate=gate)
    assert_same_bits(plain, out.detach())


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["as stored", "transposed"])
@pytest.mark.parametrize("rank", [8, 72])
@pytest.mark.parametrize("kind", ["swiglu", "relu2"])
def test_adapters_are_pairs_of_one_kernel(kind: str, rank: int, transposed: bool, dtype: torch.dtype) -> None:
    """Against a mixture that has their products in its weights. Where factors lie otherwise than
    weights, the second product has a kernel of its own."""
    index, tensors, grad = problem("many tiles", kind, dtype)
    generator = torch.Generator().manual_seed(1)
    factors = []
    for weight in (tensors[2], tensors[4]):
        experts, rows, columns = weight.shape
        factors.append(drawn(generator, dtype, experts, rank, columns, scale=columns**-0.5))
        factors.append(drawn(generator, dtype, experts, rows, rank, scale=rank**-0.5))
    if transposed:
        factors = [factor.transpose(1, 2).contiguous().transpose(1, 2) for factor in factors]
    operands = leaves([*tensors, *factors])
    first, second = (epigrad.LowRank(*operands[at : at + 2]) for at in (6, 8))
    found = []

    def forward() -> None:
        found.append(epigrad.experts(operands[0], index, *operands[1:6], kind, adapter_in=first, adapter_out=second))

    names = kernels_of(forward)
    assert any(name.startswith("grouped_product") for name in names) == (transposed or not on_hopper()), names
    grads = torch.autograd.grad(found[0], operands, grad)

    wide = leaves(operands, torch.float64)
    whole = [*wide[:6]]
    for place, at in ((2, 6), (4, 8)):
        whole[place] = wide[place] + wide[at + 1] @ wide[at]
    out = compositions.experts(whole[0], index, *whole[1:], formula(kind, "second"))
    want = [out.detach(), *torch.autograd.grad(out, wide, grad.double())]
    assert_near([found[0].detach(), *grads], want, dtype)


@pytest.mark.parametrize("kind", ["swiglu", "relu2", "gelu"])
def test_each_gradient_alone_has_the_same_bits(kind: str) -> None:
    index, tensors, grad = problem("many tiles", kind, torch.bfloat16)
    operands = leaves(tensors)
    out = epigrad.experts(operands[0], index, *operands[1:], kind)
    grads = torch.autograd.grad(out, operands, grad, retain_graph=True)
    for operand, whole in zip(operands, grads, strict=True):
        (alone,) = torch.autograd.grad(out, operand, grad, retain_graph=True)
        assert_same_bits(alone, whole)


@pytest.mark.parametrize("gate", ["second", "first", "odd", "even"])
@pytest.mark.parametrize("kind", ["swiglu", "geglu"])
def test_every_place_of_the_gate(kind: str, gate: str) -> None:
    index, tensors, grad = problem("many tiles", kind, torch.bfloat16)
    operands = leaves(tensors)
    out = epigrad.experts(operands[0], index, *operands[1:], kind, gate=gate)
    grads = torch.autograd.grad(out, operands, grad)
    assert_near([out.detach(), *grads], wanted(index, tensors, grad, kind, gate), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_an_infinite_weight_spoils_no_other_gradient(dtype: torch.dtype) -> None:
    """Rows that only fill a tile are 0, whose product with the infinite weight is NaN."""
    index, tensors, grad = problem("many tiles", "relu2", dtype)
    tensors[2].mul_(0.1)
    tensors[3].fill_(3)  # all preactivations are positive
    tensors[4][0, 0, 0] = torch.inf
    grad[:, 0] = 1
    operands = leaves(tensors)
    out = epigrad.experts(operands[0], index, *operands[1:], "relu2")
    (grad_bias,) = torch.autograd.grad(out, operands[3], grad)
    assert grad_bias[0, 0] == torch.inf
    assert int(grad_bias.isfinite().sum()) == grad_bias.numel() - 1


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_addresses_that_boxes_cannot_start_at(dtype: torch.dtype) -> None:
    """Weights and tokens that start two bytes late go another way, to results as near."""
    index, tensors, grad = problem("many tiles", "swiglu", dtype)

    def late(tensor: Tensor) -> Tensor:
        buffer = tensor.new_empty(tensor.numel() + 1)
        return buffer[1:].view(tensor.shape).copy_(tensor)

    moved = leaves([late(tensor) for tensor in tensors])
    out = epigrad.experts(moved[0], index, *moved[1:])
    grads = torch.autograd.grad(out, moved, late(grad))
    assert_near([out.detach(), *grads], wanted(index, tensors, grad, "swiglu", "second"), dtype)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_float32_gradients_of_many_tiles(dtype: torch.dtype) -> None:
    index, tensors, grad = problem("many tiles", "swiglu", dtype)
    layers = tensors[2:]
    narrow = backward.experts_backward(grad, tensors[0], index, *tensors[1:])
    into = [torch.zeros(tensor.shape, device="cuda") for tensor in layers]
    for times in (1, 2):
        backward.experts_backward(grad, tensors[0], index, *tensors[1:], out=(None, None, *into), accumulate=True)
        for one, other in zip(into, narrow[2:], strict=True):
            distance = torch.linalg.vector_norm(one / times - other.float()) / torch.linalg.vector_norm(other.float())
            assert distance <= torch.finfo(dtype).eps
    fresh = [torch.full(tensor.shape, torch.nan, device="cuda") for tensor in layers]
    backward.experts_backward(grad, tensors[0], index, *tensors[1:], out=(None, None, *fresh))
    for one, other in zip(fresh, narrow[2:], strict=True):
        assert_same_bits(one.to(dtype), other)


def test_a_graph_of_cuda_has_the_routing_of_each_run() -> None:
    """Forward and backward."""
    index, tensors, grad = problem("many tiles", "swiglu", torch.bfloat16)

    def run() -> list[Tensor]:
        operands = leaves(tensors)
        out = epigrad.experts(operands[0], index, *operands[1:])
        return [out.detach(), *torch.autograd.grad(out, operands, grad)]

    graph, results = captured(run)
    for seed in range(3):
        index.copy_(torch.randint(0, 5, index.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        for place, (one, other) in enumerate(zip(results, run(), strict=True)):
            assert_same_bits(one, other, f"result {place}")


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_offsets_that_make_no_sense_are_clamped(dtype: torch.dtype) -> None:
    """As the running maximum of what lies between 0 and the rows; a row that is nobody's may be
    NaN."""
    g = torch.Generator().manual_seed(1)
    x, weight, bias = drawn(g, dtype, 200, 72), drawn(g, dtype, 4, 136, 72), drawn(g, dtype, 4, 136)
    grad = drawn(g, dtype, 200, 136)
    for wrong, right in (([150, -7, 1 << 40, 3], [150, 150, 200, 200]), ([-1, 90, 20, 190], [0, 90, 90, 190])):
        results = []
        for offsets in (wrong, right):
            operands = leaves([x, weight, bias])
            with torch.no_grad():
                operands[0][right[-1] :] = torch.nan
            out = epigrad.grouped_linear(*operands, "silu", offsets=torch.tensor(offsets, device="cuda"))
            results.append([out.detach(), *torch.autograd.grad(out, operands, grad)])
            assert out[right[-1] :].eq(0).all() and results[-1][1][right[-1] :].eq(0).all()
        for one, other in zip(*results, strict=True):
            assert not one.isnan().any()
            assert_same_bits(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_tokens_that_nobody_sees_may_be_anything(dtype: torch.dtype) -> None:
    index, tensors, grad = problem("few rows", "swiglu", dtype)
    index[1::2] = torch.tensor([-(1 << 62), 1 << 62], device="cuda")
    for value in (torch.nan, 0.0):
        tensors[0][1::2] = value
        grad[1::2] = value
        operands = leaves(tensors)
        out = epigrad.experts(operands[0], index, *operands[1:])
        results = [out.detach(), *torch.autograd.grad(out, operands, grad)]
        assert all(result.isfinite().all() for result in results)
        assert out[1::2].eq(0).all() and results[1][1::2].eq(0).all() and results[2][1::2].eq(0).all()


@pytest.mark.slow
def test_weights_of_more_than_two_to_the_31_elements() -> None:
    """The first and the last expert, whose weights begin beyond 2^31, have the bits that they have
    alone."""
    groups, columns, features, rows = 9, 16384, 16384, 384
    assert (groups - 1) * columns * features >= 2**31
    g = torch.Generator().manual_seed(2)
    x, grad = drawn(g, torch.bfloat16, 2 * rows, features), drawn(g, torch.bfloat16, 2 * rows, columns)
    weight = torch.empty(groups, columns, features, device="cuda", dtype=torch.bfloat16).normal_(std=features**-0.5)
    offsets = torch.tensor([rows] * (groups - 1) + [2 * rows], device="cuda")
    operands = leaves([x, weight])
    out = epigrad.grouped_linear(*operands, None, "gelu", offsets=offsets)
    grad_x, grad_weight = torch.autograd.grad(out, operands, grad)
    assert not grad_weight[1:-1].any()
    for part, group in ((slice(0, rows), 0), (slice(rows, None), groups - 1)):
        alone = leaves([x[part], weight[group : group + 1]])
        own = epigrad.grouped_linear(*alone, None, "gelu", offsets=torch.tensor([rows], device="cuda"))
        own_x, own_weight = torch.autograd.grad(own, alone, grad[part])
        assert_same_bits(out[part], own, f"output of group {group}")
        assert_same_bits(grad_x[part], own_x, f"input's gradient of group {group}")
        assert_same_bits(grad_weight[group : group + 1], own_weight, f"weight's gradient of group {group}")
