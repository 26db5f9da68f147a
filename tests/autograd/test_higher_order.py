"""Gradients of gradients: gradcheck, gradgradcheck and third order in float64, and second order in
every dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import epigrad
import pytest
import torch
from torch import Tensor

from tests.support import oracle
from tests.support.cases import ACTIVATIONS, DTYPES, GATED_IN_PRODUCTS, GATED_KINDS, GATES, IN_PRODUCTS, SAVE_MODES
from tests.support.devices import on_devices
from tests.support.operators import FUNCTIONS
from tests.support.tiers import THIRD, in_turns, thorough

Operation = Callable[..., Tensor]


def _operands(*shapes: tuple[int, ...], odd_signs: bool = False) -> tuple[Tensor, ...]:
    """Float64 leaves; with odd signs, products over an odd number of features stay away from a kink
    at zero, and times 1.3 from those at 3."""
    generator = torch.Generator().manual_seed(len(shapes))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    if odd_signs:
        drawn = [torch.where(x < 0, -1.0, 1.0) + 0.02 * x for x in drawn]
    return tuple(x.requires_grad_() for x in drawn)


def _gemm_operations() -> dict[str, tuple[Operation, tuple[Tensor, ...]]]:
    operations: dict[str, tuple[Operation, tuple[Tensor, ...]]] = {}
    for activation in ACTIVATIONS:
        kinked = bool(oracle.ACTIVATIONS[activation].kinks)
        operations[f"activation-{activation}"] = (
            lambda x, activation=activation: epigrad.activation(2 * x, activation),
            _operands((3, 4), odd_signs=kinked),
        )
        if activation not in IN_PRODUCTS:
            continue
        for save in SAVE_MODES:
            operations[f"matmul-{activation}-{save}"] = (
                lambda a, b, bias, activation=activation, save=save: epigrad.matmul_bias_activation(
                    1.3 * a, b, 0.1 * bias, activation, save=save
                ),
                _operands((2, 3), (3, 2), (2,), odd_signs=kinked),
            )
        operations[f"matmul-broadcast-{activation}"] = (
            lambda a, b, activation=activation: epigrad.matmul_bias_activation(1.3 * a, b, None, activation),
            _operands((2, 1, 2, 3), (2, 3, 2), odd_signs=kinked),
        )
        operations[f"linear-{activation}"] = (
            lambda x, w, bias, activation=activation: epigrad.linear(1.3 * x, w, 0.1 * bias, activation),
            _operands((2, 2, 3), (2, 3), (2,), odd_signs=kinked),
        )
        operations[f"mlp-{activation}"] = (
            lambda x, w1, b1, w2, b2, activation=activation: epigrad.mlp(1.3 * x, w1, 0.1 * b1, w2, b2, activation),
            _operands((2, 3), (3, 3), (3,), (2, 3), (2,), odd_signs=kinked),
        )
    operations["matmul-vectors"] = (
        lambda a, b, bias: epigrad.matmul_bias_activation(a, b, bias, "gelu"),
        _operands((3,), (3,), ()),
    )
    return operations


def _experts(kind: str, has_biases: bool) -> tuple[Operation, tuple[Tensor, ...]]:
    """Three experts, of which a slot of the last token selects none."""
    index = torch.tensor([[0, 1], [2, 0], [1, 3]])
    hidden = 4 if kind in ("swiglu", "geglu") else 2

    def call(x: Tensor, scale: Tensor, w1: Tensor, w2: Tensor, *biases: Tensor) -> Tensor:
        b1, b2 = biases or (None, None)
        return epigrad.experts(x, index.to(x.device), scale, w1, b1, w2, b2, kind)

    return call, _operands((3, 3), (3, 2), (3, hidden, 3), (3, 3, 2), *[(3, hidden), (3, 3)] * has_biases)


def _elementwise_operations() -> dict[str, tuple[Operation, tuple[Tensor, ...]]]:
    operations: dict[str, tuple[Operation, tuple[Tensor, ...]]] = {}
    for kind in GATED_KINDS:
        kinked = bool(oracle.GATED[kind].kinks)
        operations[f"product-{kind}"] = (
            lambda value, gate, kind=kind: (
                epigrad.gated_product(1.2 * value, 8 * gate, kind) + epigrad.gated_product(8 * value, 1.2 * gate, kind)
            ),
            _operands((2, 3), (2, 3), odd_signs=kinked),
        )
        if kind not in GATED_IN_PRODUCTS:
            continue
        for gate in GATES:
            operations[f"gated-{kind}-{gate}"] = (
                lambda x, kind=kind, gate=gate: epigrad.gated_activation(x, kind, 1, gate=gate),
                _operands((2, 4, 2), odd_signs=kinked),
            )
        operations[f"gated_linear-{kind}"] = (
            lambda x, wv, wg, bv, bg, kind=kind: epigrad.gated_linear(x, wv, wg, bv, 0.1 * bg, kind),
            _operands((2, 3), (2, 3), (2, 3), (2,), (2,), odd_signs=kinked),
        )
        operations[f"gated_mlp-{kind}"] = (
            lambda x, w1, w2, kind=kind: epigrad.gated_mlp(x, w1, None, w2, None, kind),
            _operands((2, 3), (4, 3), (2, 2), odd_signs=kinked),
        )
        for gate in ("even", "odd"):
            operations[f"gated_mlp-{kind}-{gate}"] = (
                lambda x, w1, w2, kind=kind, gate=gate: epigrad.gated_mlp(x, w1, None, w2, None, kind, gate=gate),
                _operands((2, 3), (4, 3), (2, 2), odd_signs=kinked),
            )
    for kind in ("tanh", "softplus", "swiglu", "geglu"):
        for bias in ("", "-biases"):
            operations[f"experts-{kind}{bias}"] = _experts(kind, bool(bias))
    operations["prelu"] = (epigrad.prelu, _operands((2, 3), (), odd_signs=True))
    operations["prelu-channels"] = (epigrad.prelu, _operands((2, 3, 2), (3,), odd_signs=True))
    for beta in (0.5, -0.25):
        operations[f"xielu-{beta}"] = (
            lambda x, p, n, beta=beta: epigrad.xielu(1.3 * x, p, n, beta),
            _operands((2, 3), (1,), (1,), odd_signs=True),
        )
    operations["lerp-float"] = (lambda s, e: epigrad.lerp(s, e, 0.3), _operands((2, 3), (2, 3)))
    operations["lerp-tensor"] = (epigrad.lerp, _operands((2, 3), (2, 3), (2, 3)))
    operations["lerp-broadcast"] = (epigrad.lerp, _operands((2, 1), (1, 3), ()))
    return operations


OPERATIONS = _gemm_operations() | _elementwise_operations()


def _on(device: str, name: str) -> tuple[Operation, tuple[Tensor, ...]]:
    operation, operands = OPERATIONS[name]
    return operation, tuple(x.detach().to(device).requires_grad_() for x in operands)


@on_devices
@pytest.mark.parametrize("name", in_turns(OPERATIONS, THIRD, thorough))
def test_gradcheck_and_gradgradcheck(device: str, name: str) -> None:
    operation, operands = _on(device, name)
    assert torch.autograd.gradcheck(operation, operands)
    assert torch.autograd.gradgradcheck(operation, operands)


THIRD_ORDER = [
    *(f"activation-{name}" for name in ("softplus", "mish", "hardswish", "elu", "softcap", "quick_gelu")),
    "product-swiglu(limit=7, offset=1, alpha=1.702)",
    "product-swiglu(limit_after=1.3)",
    "product-situ_glu",
    "matmul-gelu-auto",
    "matmul-tanh-auto",
    "linear-silu",
    "linear-tanh",
    "mlp-gelu_tanh",
    "experts-swiglu-biases",
    "gated-swiglu-second",
    "product-geglu",
    "gated_linear-swiglu",
    "lerp-tensor",
    "prelu-channels",
    "xielu-0.5",
]


@on_devices
@pytest.mark.parametrize("name", THIRD_ORDER)
def test_third_order(device: str, name: str) -> None:
    operation, operands = _on(device, name)

    def gradients(*operands: Tensor) -> tuple[Tensor, ...]:
        out = operation(*operands)
        weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=device).view(out.shape)
        return torch.autograd.grad((out * weights).sum(), operands, create_graph=True)

    assert torch.autograd.gradgradcheck(gradients, operands)


def _second_order(function: Operation, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients of the squared length of the gradients."""
    out = function(*operands)
    first = torch.autograd.grad(out.sum(), operands, create_graph=True)
    return torch.autograd.grad(sum(((g * g).sum() for g in first), start=out.sum()), operands)


LAYERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "linear": ((64, 24), (40, 24), (40,)),
    "gated_linear": ((64, 24), (40, 24), (40, 24), (40,), (40,)),
    "mlp": ((64, 24), (40, 24), (40,), (24, 40), (24,)),
    "gated_mlp": ((64, 24), (80, 24), (80,), (24, 40), (24,)),
    "experts": ((64, 24), (64, 2), (3, 80, 24), (3, 80), (3, 24, 40), (3, 24)),
}


def _assert_as_near_as_pytorch(
    ours: Operation, theirs: Operation, exact: Operation, operands: Sequence[Tensor], dtype: torch.dtype
) -> None:
    """The rule for errors, with the largest element as the size of the terms.

    PyTorch's error in float64 is taken from the one in float32. The reference may be as far off as
    epigrad.
    """
    measured = torch.float32 if dtype == torch.float64 else dtype
    ratio = torch.finfo(dtype).eps / torch.finfo(measured).eps
    factor = 3.0 if dtype == torch.float64 else 1.5
    rounded = [x.to(dtype) for x in operands]

    def second_order(function: Operation, as_dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = tuple(x.detach().to(as_dtype).requires_grad_() for x in rounded)
        return tuple(x.to(torch.float64) for x in _second_order(function, leaves))

    results = (second_order(exact, torch.float64), second_order(theirs, measured), second_order(ours, dtype))
    for want, other, got in zip(*results, strict=True):
        largest = want.abs().max()
        allowed = factor * ratio * (other - want).abs().max() + torch.finfo(dtype).eps / 2 * largest
        assert (got - want).abs().max() <= allowed


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*ACTIVATIONS, *GATED_KINDS], ids=str)
def test_second_order_is_as_near_to_the_reference_as_pytorch(
    device: str, kind: str | epigrad.Activation | epigrad.Gated, dtype: torch.dtype
) -> None:
    """Into the tails too, where gradcheck's small inputs do not reach."""
    generator = torch.Generator().manual_seed(3)
    value, gate = ((3 * torch.randn(64, 65, generator=generator)).to(device) for _ in range(2))
    if kind in GATED_KINDS:
        row = oracle.GATED[kind]
        ours = partial(epigrad.gated_product, kind=kind)
        _assert_as_near_as_pytorch(ours, row.eager, row.value, (value, gate), dtype)
    else:
        of_one = oracle.ACTIVATIONS[kind]
        ours = partial(epigrad.activation, activation=kind)
        _assert_as_near_as_pytorch(ours, of_one.eager, of_one.value, (value,), dtype)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", LAYERS)
def test_second_order_of_layers_is_as_near_to_the_reference_as_pytorch(
    device: str, op: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(shape, generator=generator).to(device) / shape[-1] ** 0.25 for shape in LAYERS[op]]
    call = FUNCTIONS[op]
    _assert_as_near_as_pytorch(call.function, call.eager, call.eager, drawn, dtype)


@on_devices
@pytest.mark.parametrize("operation", ["relu", "reglu"])
def test_second_derivative_is_zero_where_the_first_is_a_step(device: str, operation: str) -> None:
    gate = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, device=device, requires_grad=True)
    one = torch.ones_like(gate)
    if operation == "relu":
        out = epigrad.matmul_bias_activation(gate[:, None], one[:1, None], None, "relu")
    else:
        out = epigrad.gated_product(one, gate, "reglu")
    (first,) = torch.autograd.grad(out.sum(), gate, create_graph=True)
    assert first.tolist() == [0.0, 0.0, 1.0]
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.sum(), gate, allow_unused=True)
        assert second is None or second.tolist() == [0.0, 0.0, 0.0]
