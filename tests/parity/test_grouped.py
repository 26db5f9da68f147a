"""grouped_linear and experts: rows that nobody selects, empty groups, wrong offsets."""

from __future__ import annotations

import epigrad
import pytest
import torch
from epigrad import errors
from epigrad._core import tables

from tests.support.cases import (
    DTYPES,
)
from tests.support.compositions import leaves
from tests.support.devices import needs, on_devices
from tests.support.layouts import assert_same_bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@on_devices
def test_what_nobody_selects_is_not_read(dtype: torch.dtype, device: str) -> None:
    """NaN in rows, experts and scales that no index names gets nowhere."""
    x = torch.randn(5, 4).to(device, dtype)
    index = torch.tensor([[0, 2], [2, -1], [7, 3], [0, 0], [2, 0]], device=device)
    scale = torch.rand(5, 2).to(device, dtype)
    layers = [torch.randn(*shape).to(device, dtype) for shape in ((3, 8, 4), (3, 8), (3, 4, 4), (3, 4))]
    clean = leaves((x, scale, *layers))
    want = epigrad.experts(clean[0], index, *clean[1:])
    grad = torch.randn(5, 4).to(device, dtype)
    grads = torch.autograd.grad(want, clean, grad)
    assert (want[2] == 0).all() and (grads[0][2] == 0).all()
    for layer in grads[2:]:
        assert (layer[1] == 0).all()
    x[2] = torch.nan
    scale[1, 1] = scale[2, 0] = scale[2, 1] = torch.nan
    for layer in layers:
        layer[1] = torch.nan
    dirty = leaves((x, scale, *layers))
    out = epigrad.experts(dirty[0], index, *dirty[1:])
    assert_same_bits(out.detach(), want.detach())
    grad[2] = torch.nan
    names = tables.OPS["experts_backward"].results
    for name, one, other in zip(names, torch.autograd.grad(out, dirty, grad), grads, strict=True):
        assert_same_bits(one, other, name)


@on_devices
def test_rows_behind_the_last_group_are_not_read(device: str) -> None:
    x, weight, grad = (torch.randn(*shape, device=device) for shape in ((7, 3), (2, 4, 3), (7, 4)))
    offsets = torch.tensor([2, 5], device=device)
    x[5:], grad[5:] = torch.nan, torch.nan
    operands = leaves((x, weight, torch.randn(2, 4, device=device)))
    out = epigrad.grouped_linear(*operands, "silu", offsets=offsets)
    grads = torch.autograd.grad(out, operands, grad)
    assert (out[5:] == 0).all() and (grads[0][5:] == 0).all()
    assert all(bool(gradient.isfinite().all()) for gradient in (out, *grads))


@on_devices
def test_without_groups_or_features(device: str) -> None:
    x, weight, ends = torch.randn(3, 5), torch.randn(0, 4, 5), torch.zeros(0, dtype=torch.int64)
    operands = leaves([x.to(device), weight.to(device)])
    out = epigrad.grouped_linear(*operands, offsets=ends.to(device))
    grads = torch.autograd.grad(out.sum(), operands)
    assert out.tolist() == [[0.0] * 4] * 3 and grads[0].tolist() == [[0.0] * 5] * 3 and grads[1].shape == (0, 4, 5)
    bias = torch.tensor([[1.0, -2.0], [3.0, 4.0]], device=device)
    rows, empty = torch.randn(5, 0, device=device), torch.randn(2, 2, 0, device=device)
    out = epigrad.grouped_linear(rows, empty, bias, "relu", offsets=torch.tensor([2, 4], device=device))
    assert out.tolist() == [[1.0, 0.0]] * 2 + [[3.0, 4.0]] * 2 + [[0.0, 0.0]]
    tokens, index, scale = x.to(device), torch.zeros(3, 1, dtype=torch.int64, device=device), torch.ones(3, 1)
    layers = torch.randn(0, 4, 5, device=device), torch.randn(0, 5, 2, device=device)
    out = epigrad.experts(tokens, index, scale.to(device), layers[0], None, layers[1], None)
    assert out.tolist() == [[0.0] * 5] * 3


@pytest.mark.parametrize("offsets", [[3, 2, 5], [-1, 2, 5], [1, 2, 9], [-(2**62), 2, 2**62]], ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_offsets_that_make_no_sense(offsets: list[int], dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 3), torch.randn(3, 4, 3)
    ends = torch.tensor(offsets).clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max).to(dtype)
    out = torch.full((7, 4), torch.nan)
    with pytest.raises(errors.InvalidProblemError, match=r"grouped_linear: offsets: offsets\[\d\] is"):
        epigrad.forward.grouped_linear(x, weight, offsets=ends, out=out)
    assert out.isnan().all(), "nothing is written"


@needs("cuda")
@pytest.mark.parametrize("offsets", [[3, 2, 5], [-1, 2, 5], [1, 2, 9], [-(2**62), 2, 2**62]], ids=str)
def test_a_gpu_clamps_offsets(offsets: list[int]) -> None:
    x, weight = torch.randn(7, 3, device="cuda"), torch.randn(3, 4, 3, device="cuda")
    ends = torch.tensor(offsets, device="cuda")
    sensible = ends.clamp(0, 7).cummax(0).values
    got = epigrad.grouped_linear(x, weight, offsets=ends)
    assert_same_bits(got, epigrad.grouped_linear(x, weight, offsets=sensible))


def test_a_scale_of_zero_lets_nan_through() -> None:
    x = torch.full((1, 2), torch.nan)
    weights = torch.ones(1, 4, 2), torch.ones(1, 2, 2)
    index, scale = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1)
    assert epigrad.experts(x, index, scale, weights[0], None, weights[1], None).isnan().all()


@on_devices
def test_transposed_weights_keep_their_layout(device: str) -> None:
    """gpt-oss stores its weights transposed: their gradients lie as they do."""
    x, index = torch.randn(6, 4, device=device), torch.arange(12, device=device).reshape(6, 2) % 3
    stored = [torch.randn(3, 4, 10, device=device), torch.randn(3, 5, 4, device=device)]
    w_in, w_out = (w.requires_grad_() for w in stored)
    scale = torch.rand(6, 2, device=device)
    out = epigrad.experts(x, index, scale, w_in.transpose(1, 2), None, w_out.transpose(1, 2), None, gate="even")
    grads = torch.autograd.grad(out.sum(), (w_in, w_out))
    assert all(gradient.is_contiguous() for gradient in grads)
    plain = leaves([w.detach().transpose(1, 2).contiguous() for w in stored])
    same = epigrad.experts(x, index, scale, plain[0], None, plain[1], None, gate="even")
    assert_same_bits(out.detach(), same.detach())
    for one, other in zip(grads, torch.autograd.grad(same.sum(), plain), strict=True):
        torch.testing.assert_close(one.transpose(1, 2), other)
