"""Gradients of gradients on the core: which operators compute them, what `torch.func` gives, and
what the operators refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import epigrad
import pytest
import torch
import torch.distributed as dist
from epigrad import errors
from epigrad.kinds import Activation, activation_of
from torch import Tensor
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import oracle
from tests.support.cases import ACTIVATIONS

SECOND = torch.ops.epigrad.activation_backward_backward


class Seen(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.name())
        return func(*args, **kwargs or {})


def _leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


LAYERS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], str]] = {
    "activation": (lambda x: epigrad.activation(x, "silu"), [(4, 6)], "activation"),
    "linear": (lambda x, w, b: epigrad.linear(x, w, b, "silu"), [(4, 3), (6, 3), (6,)], "activation"),
    "linear-output": (lambda x, w, b: epigrad.linear(x, w, b, "tanh"), [(4, 3), (6, 3), (6,)], "activation"),
    "mlp": (
        lambda x, v, b, w, c: epigrad.mlp(x, v, b, w, c, "softplus"),
        [(4, 3), (6, 3), (6,), (2, 6), (2,)],
        "activation",
    ),
    "gated_product": (lambda v, g: epigrad.gated_product(v, g, "swiglu"), [(4, 6), (4, 6)], "gated_product"),
    "gated_activation": (lambda x: epigrad.gated_activation(x, "geglu"), [(4, 6)], "gated_activation"),
    "gated_linear": (lambda x, v, w: epigrad.gated_linear(x, v, w), [(4, 3), (6, 3), (6, 3)], "gated_activation"),
    "gated_mlp": (
        lambda x, v, w: epigrad.gated_mlp(x, v, None, w, None, "geglu"),
        [(4, 3), (6, 3), (2, 3)],
        "gated_activation",
    ),
    "experts": (
        lambda x, v, w: epigrad.experts(
            x, torch.tensor([[0], [1], [1], [0]]), torch.ones(4, 1, dtype=x.dtype), v, None, w, None, "silu"
        ),
        [(4, 3), (2, 6, 3), (2, 3, 6)],
        "activation",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_core_computes_what_lies_between_products(name: str) -> None:
    """And PyTorch none of it: no exponential, no sigmoid, no error function."""
    function, shapes, between = LAYERS[name]
    leaves = _leaves(*shapes)
    with Seen() as seen:
        (first,) = torch.autograd.grad(function(*leaves).sum(), leaves[:1], create_graph=True)
        torch.autograd.grad(first.square().sum(), leaves, allow_unused=True)
    assert f"epigrad::{between}_backward_backward" in seen.names
    assert not {"aten::exp", "aten::sigmoid", "aten::erfc", "aten::special_erfc"} & set(seen.names)


def _theirs(x: Tensor, v: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return functional.linear(functional.silu(functional.linear(x, v, b)), w).sum()


def _ours(x: Tensor, v: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return epigrad.mlp(x, v, b, w, None, "silu").sum()


@pytest.mark.parametrize("place", range(3))
def test_torch_func_has_the_same_second_derivatives(place: int) -> None:
    leaves = [leaf.detach() for leaf in _leaves((3, 2), (4, 2), (4,), (1, 4))]

    def of(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda chosen: function(*leaves[:place], chosen, *leaves[place + 1 :])

    at, tangent = leaves[place], torch.ones_like(leaves[place])
    hessian = torch.func.hessian(of(_ours))(at)
    torch.testing.assert_close(hessian, torch.func.hessian(of(_theirs))(at))
    _, product = torch.func.jvp(torch.func.grad(of(_ours)), (at,), (tangent,))
    torch.testing.assert_close(product, hessian.flatten(at.dim()).sum(-1))
    leaf = at.clone().requires_grad_()
    (first,) = torch.autograd.grad(of(_ours)(leaf), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first * tangent).sum(), leaf)
    torch.testing.assert_close(second, product)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_infinities_and_nan_are_those_of_pytorch(activation: str | Activation, dtype: torch.dtype) -> None:
    """And a kink has the curvature of the side whose slope it has."""
    row, kind = oracle.ACTIVATIONS[activation], activation_of("activation", activation)
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.25], dtype=dtype)
    wide = x.double().requires_grad_()
    (slope,) = torch.autograd.grad(row.eager(wide).sum(), wide, create_graph=True)
    want = torch.zeros_like(wide)
    if slope.requires_grad:
        (want,) = torch.autograd.grad(slope.sum(), wide)
    ones = torch.ones_like(x)
    got = SECOND(ones, ones, x, kind.name, parameters=list(kind.values))[1]
    torch.testing.assert_close(got, want.to(dtype), equal_nan=True)
    kinks = torch.tensor([kink for kink in row.kinks if kink == torch.tensor(kink, dtype=dtype).item()], dtype=dtype)
    beside = kinks - torch.tensor([-1 if kink in row.kinks_from_right else 1 for kink in kinks.tolist()]) / 64
    near, at = (SECOND(k * 0 + 1, k * 0 + 1, k, kind.name, parameters=list(kind.values))[1] for k in (beside, kinks))
    assert torch.equal(at == 0, near == 0)


def test_what_the_operators_refuse() -> None:
    x, half = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
    for call, error, text in (
        (lambda: SECOND(x, x, x[:1], "silu"), errors.InvalidProblemError, r"input: shape \[1, 3\], want .*\[2, 3\]"),
        (lambda: SECOND(x, x, None, "silu"), errors.InvalidProblemError, "input: missing"),
        (lambda: SECOND(x, x, None, "silu", x), errors.InvalidProblemError, "output: given for .silu"),
        (lambda: SECOND(x, half, x, "silu"), errors.DTypeError, "bfloat16, want float32"),
        (
            lambda: torch.ops.epigrad.gated_activation_backward_backward(x, x, x),
            errors.InvalidProblemError,
            "odd size 3",
        ),
        (
            lambda: torch.ops.epigrad.gated_product_backward_backward(x, x, x, x[:1], x),
            errors.InvalidProblemError,
            r"\[1, 3\]",
        ),
    ):
        with pytest.raises(error, match=text):
            call()


def test_bits_are_those_of_the_dispatched_way() -> None:
    leaves = _leaves((4, 3), (6, 3), (6,), (2, 6), (2,), dtype=torch.float32)

    def second() -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(LAYERS["mlp"][0](*leaves).sum(), leaves[:1], create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaves, allow_unused=True)

    with Seen():
        seen = second()
    for one, other in zip(second(), seen, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_have_second_derivatives_of_a_layer_without_activation(dtype: torch.dtype) -> None:
    """Exactly, of small whole numbers."""

    def second(layer: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [leaf.detach().sign().to(dtype).requires_grad_() for leaf in _leaves((2, 2), (3, 2), (3,))]
        first = torch.autograd.grad(layer(*leaves).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.sum() for grad in first), leaves)

    for got, want in zip(second(epigrad.linear, dtype), second(functional.linear, torch.float64), strict=True):
        assert torch.equal(got.double(), want)


@pytest.mark.parametrize("name", ["activation", "gated_activation", "gated_product"])
def test_sharded_tensors_have_the_same_second_derivatives(name: str) -> None:
    function, shapes, _ = LAYERS[name]
    leaves = _leaves(*shapes)

    def second(tensors: list[Tensor]) -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(function(*tensors).sum(), tensors[:1], create_graph=True)
        return torch.autograd.grad(first.square().sum(), tensors)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        sharded = [distribute_tensor(leaf.detach(), mesh, [Shard(0)]).requires_grad_() for leaf in leaves]
        for got, want in zip(second(sharded), second(leaves), strict=True):
            torch.testing.assert_close(got.full_tensor(), want)  # type: ignore[attr-defined]
    finally:
        dist.destroy_process_group()
