"""Products with their epilogues in one kernel, which Hopper has for half types
(kernels/cuda/product_sm90.cuh): right, chosen where they can run, and replaced where they cannot.
"""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Callable

import epigrad
import pytest
import torch
from epigrad import backward, forward, plan
from torch import Tensor

from tests.support.cases import ACTIVATIONS, Case
from tests.support.devices import needs
from tests.support.kernels import kernels_of, on_hopper
from tests.support.layouts import assert_same_bits
from tests.support.parity import assert_parity, assert_result
from tests.support.problem import problem_of

pytestmark = needs("cuda")

HALVES = (torch.bfloat16, torch.float16)
SHAPES = (
    ((256, 192), (192, 256)),  # whole tiles
    ((200, 136), (136, 264)),  # the last tile of each dimension is short
    ((1, 520), (520, 384)),
    ((2, 70, 72), (72, 1002)),  # rows that do not start at multiples of 16 bytes
)
LAYOUTS = ("transposed", "offset", "step", "expanded_first")


def kernel_of(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16, activation: str = "gelu") -> str:
    made = plan.GemmEpilogue.select(m=m, n=n, k=k, dtype=dtype, activation=activation, device="cuda")
    return made.sku.kernel


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "layout"),
    [*((kind, "contiguous") for kind in ACTIVATIONS), *(("gelu", layout) for layout in LAYOUTS)],
    ids=lambda part: str(part),
)
@pytest.mark.parametrize("op", ["linear", "matmul_bias_activation"])
def test_parity(
    op: str, kind: str | epigrad.Activation, layout: str, shape: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> None:
    case = Case(op, kind, dtype, str(shape), layout, bias=layout != "step", device="cuda")
    problem = problem_of(case)
    out, pre = problem.forward(return_preactivation=True)
    assert_same_bits(problem.forward(), out, "the output does not depend on what else is wanted")
    assert_result("out", out, 0, case, lambda case: problem_of(case).wanted())
    assert_parity(("preactivation",), (pre,), case, lambda case: problem_of(case).wanted_preactivation())


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (2048, 3072, 768), (2000, 1528, 1400)], ids=str)
def test_hopper_alone_has_them(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    assert kernel_of(m, n, k).startswith("linear_sm90_gelu_bf16_nn_") == on_hopper()
    assert "sm90" not in kernel_of(m, n, k, torch.float32)


WAYS = {1: "_nn_128", 2: "_nn_192", 3: "cublaslt+"}
"""Ways that a tuning file names (go/backend/cuda/ways.go), and what their kernels are named by."""


def test_tuning_may_choose_otherwise(tmp_path: pathlib.Path) -> None:
    shape, found = (1024, 1152, 320), tmp_path / "found.json"
    m, n, k = shape
    x, weight = randoms(torch.bfloat16, (m, k), (k, n))
    want = forward.matmul_bias_activation(x, weight, activation="gelu")
    with epigrad.tuning(found):
        chosen = kernel_of(*shape)
    keys = [key for key in json.loads(found.read_text()) if " way: " in key]
    assert len(keys) == on_hopper()
    assert any(name in chosen for name in WAYS.values())
    for way, name in WAYS.items() if on_hopper() else ():
        path = tmp_path / f"{way}.json"
        path.write_text(json.dumps({keys[0]: base64.b64encode(bytes([way])).decode()}))
        with epigrad.tuning(path):
            assert name in kernel_of(*shape)
            got = forward.matmul_bias_activation(x, weight, activation="gelu")
        torch.testing.assert_close(got, want)


def addresses(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Operands of which the first starts at no multiple of 16 bytes."""
    x = torch.randn(300 * 256 + 1, device="cuda").to(dtype)[1:].view(300, 256)
    return x, torch.randn(512, 256, device="cuda").to(dtype) / 16, torch.randn(512, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_addresses_that_boxes_cannot_start_at(dtype: torch.dtype) -> None:
    """Such calls have the same geometry, and the same held program."""
    x, weight, bias = addresses(dtype)
    odd = torch.cat((bias, bias))[511:1023].copy_(bias)
    for operand, added in [(x, bias), (x.clone(), bias), (x.clone(), odd)] * 3:
        out, pre = forward.linear(operand, weight, added, "silu", return_preactivation=True)
        want = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(pre.double(), want, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(out.double(), torch.nn.functional.silu(want), rtol=2e-2, atol=2e-2)


def test_a_graph_captures_them() -> None:
    x, weight, bias = (tensor.clone() for tensor in addresses(torch.bfloat16))
    want = forward.linear(x, weight, bias, "gelu")
    out = torch.empty_like(want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward.linear(x, weight, bias, "gelu", out=out)
    for _ in range(2):
        out.zero_()
        graph.replay()
        assert_same_bits(out, want, "replayed")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_nothing_leaks_from_row_to_row(value: float) -> None:
    x, weight, bias = (tensor.clone() for tensor in addresses(torch.bfloat16))
    clean = forward.linear(x, weight, bias, "relu")
    x[131, 7] = value
    dirty = forward.linear(x, weight, bias, "relu")
    rows = torch.arange(300, device="cuda") != 131
    assert_same_bits(dirty[rows].contiguous(), clean[rows].contiguous(), "other rows")
    assert not torch.isfinite(dirty[131]).all()


def slope_by_autograd(kind: str | epigrad.Activation, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value_of(kind, x).sum(), x)
    return slope


def value_of(kind: str | epigrad.Activation, x: Tensor) -> Tensor:
    value: Tensor = Case("linear", kind, torch.bfloat16, "matrix", "contiguous").row.value(x)
    return value


GATES = {
    "glu": "sigmoid",
    "reglu": "relu",
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "bilinear": "none",
}
SIZES = [(256, 192, 384, 128), (200, 136, 264, 72), (130, 72, 1000, 264)]


def randoms(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").to(dtype) / shape[-1] ** 0.5 for shape in shapes]


def assert_near(found: Tensor, want: Tensor, terms: Tensor, roundings: float) -> None:
    """Within so many roundings of what it is summed of."""
    error = (found.double() - want).abs()
    unit = torch.finfo(found.dtype).eps / 2
    assert (error <= roundings * unit * (terms + want.abs()) + 1e-6).all(), float((error / (terms + 1e-9)).max() / unit)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", [*(kind for kind in ACTIVATIONS if kind != "none"), *GATES], ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_the_backward_of_a_block(
    biased: bool, kind: str | epigrad.Activation, sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    """Each gradient is within the roundings of what it is summed of, from the preactivation as it
    is stored; and no gradient depends on which others are wanted."""
    rows, inputs, hidden, outputs = sizes
    gated = kind in GATES
    columns = 2 * hidden if gated else hidden
    x, weight1, bias1, weight2, bias2, grad = randoms(
        dtype, (rows, inputs), (columns, inputs), (columns,), (outputs, hidden), (outputs,), (rows, outputs)
    )
    pre = forward.linear(x * 8, weight1, bias1, "none")
    operands = (grad, x, weight1, bias1 if biased else None, weight2, bias2 if biased else None)
    wanted_all = (True, True, biased, True, biased)
    call: Callable[..., tuple[Tensor | None, ...]] = backward.gated_mlp_backward if gated else backward.mlp_backward
    found = call(*operands, kind, preactivation=pre, needs=wanted_all)
    for alone in (index for index in range(5) if wanted_all[index]):
        needs = tuple(index == alone for index in range(5))
        got: Tensor | None
        (got,) = (g for g in call(*operands, kind, preactivation=pre, needs=needs) if g is not None)
        assert_same_bits(got, found[alone], f"gradient {alone} alone")

    z, g64 = pre.double(), grad.double()
    through, terms = g64 @ weight2.double(), g64.abs() @ weight2.double().abs()
    if gated:
        value, gate = z.chunk(2, -1)
        act, slope = value_of(GATES[str(kind)], gate), slope_by_autograd(GATES[str(kind)], gate)
        slopes = torch.cat((act, value * slope), -1)
        activated = value * act
        through, terms = through.repeat(1, 2), terms.repeat(1, 2)
    else:
        slopes, activated = slope_by_autograd(kind, z), value_of(kind, z)
    grad_pre, terms = through * slopes, terms * slopes.abs()
    wanted = (
        (grad_pre @ weight1.double(), terms @ weight1.double().abs()),
        (grad_pre.T @ x.double(), terms.T @ x.double().abs()),
        (grad_pre.sum(0), terms.sum(0)),
        (g64.T @ activated, g64.T.abs() @ activated.abs()),
        (g64.sum(0), g64.abs().sum(0)),
    )
    # eager's order, with biases of gated layers, rounds once more: the hidden gradient
    roundings = 2.1 if gated and biased else 1.1
    for got, (want, of) in zip(found, wanted, strict=True):
        if got is not None:
            assert_near(got, want, of, roundings)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("form", ["nt", "nn"])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_gated_linear(biased: bool, form: str, kind: str, sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """From two weights, and from the halves of one, with the preactivation and without it."""
    rows, inputs, hidden, _ = sizes
    x, weight, bias = randoms(dtype, (rows, inputs), (2 * hidden, inputs), (2 * hidden,))
    weight = weight * 8
    if form == "nn":
        weight = weight.T.contiguous().T
    values, gates = weight.chunk(2)
    bias_value, bias_gate = bias.chunk(2) if biased else (None, None)
    out, pre = forward.gated_linear(x, values, gates, bias_value, bias_gate, kind, return_preactivation=True)
    alone = forward.gated_linear(x, values, gates, bias_value, bias_gate, kind)
    assert_same_bits(alone, out, "without the preactivation")
    apart = forward.gated_linear(x, values.clone(), gates.clone(), bias_value, bias_gate, kind)
    assert_same_bits(apart, out, "weights of their own")

    x64, weight64 = x.double(), weight.double()
    want, terms = x64 @ weight64.T, x64.abs() @ weight64.abs().T
    if biased:
        want, terms = want + bias.double(), terms + bias.double().abs()
    assert_near(pre, want, terms, 1.01)
    value, gate = pre.double().chunk(2, -1)
    activated = value * value_of(GATES[kind], gate)
    assert_near(out, activated, torch.zeros_like(activated), 1.1)


def test_hopper_has_blocks_in_one_kernel_a_product() -> None:
    x, weight1, weight2, grad, half = randoms(
        torch.bfloat16, (4096, 256), (1024, 256), (256, 1024), (4096, 256), (256, 512)
    )
    pre = forward.linear(x, weight1, None)
    plain = kernels_of(lambda: backward.mlp_backward(grad, x, weight1, None, weight2, None, "gelu", preactivation=pre))
    gated = kernels_of(lambda: backward.gated_mlp_backward(grad, x, weight1, None, half, None, preactivation=pre))
    values, gates = weight1.chunk(2)
    layer = kernels_of(lambda: forward.gated_linear(x, values, gates))
    for names, wanted in (
        (plain, "hidden_backward_sm90_gelu_bf16_nn"),
        (gated, "gated_hidden_backward_sm90_silu_bf16_nn"),
        (layer, "gated_linear_sm90_silu_bf16_nt"),
    ):
        assert any(name.startswith(wanted) for name in names) == on_hopper(), names


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rows", [1, 130, 300])
def test_a_sum_of_two_products_is_one_kernel(rows: int, dtype: torch.dtype) -> None:
    """The gradient to a gated layer's input, where no rule of speed takes another way."""
    x, values, gates, grad = randoms(dtype, (rows, 136), (264, 136), (264, 136), (rows, 264))
    pre = forward.gated_linear(x, values, gates, return_preactivation=True)[1]
    value, gate = (half.requires_grad_() for half in pre.double().chunk(2, -1))
    slopes = torch.autograd.grad(value * torch.nn.functional.silu(gate), (value, gate), grad.double())
    of_value, of_gate = (slope.to(dtype).double() for slope in slopes)
    want = of_value @ values.double() + of_gate @ gates.double()
    terms = of_value.abs() @ values.double().abs() + of_gate.abs() @ gates.double().abs()

    found = []
    with epigrad.batch_invariant():
        needs = (True, False, False, False, False)
        names = kernels_of(
            lambda: found.append(
                backward.gated_linear_backward(grad, x, values, gates, preactivation=pre, needs=needs)[0]
            )
        )
    assert sum(name.startswith("linear_sm90_none_") for name in names) == on_hopper(), names
    assert found[0] is not None
    assert_near(found[0], want, terms, 3)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gated_layers_at_addresses_that_boxes_cannot_start_at(dtype: torch.dtype) -> None:
    x, weight, _ = addresses(dtype)
    values, gates = weight.chunk(2)
    weight2, pre, grad = randoms(dtype, (128, 256), (300, 512), (300, 128))
    for operand in [x, x.clone()] * 3:
        out, kept = forward.gated_linear(operand, values, gates, return_preactivation=True)
        want = (x.double() @ weight.double().T).chunk(2, -1)
        torch.testing.assert_close(kept.double(), torch.cat(want, -1), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(out.double(), want[0] * torch.nn.functional.silu(want[1]), rtol=5e-2, atol=5e-2)
    odd = torch.empty(300 * 512 + 1, device="cuda", dtype=dtype)[1:].view(300, 512).copy_(pre)
    for operand in [odd, pre] * 3:
        found = backward.gated_mlp_backward(grad, x.clone(), weight, None, weight2, None, preactivation=operand)
        first = backward.gated_mlp_backward(grad, x.clone(), weight, None, weight2, None, preactivation=pre)
        for one, other in zip(found, first, strict=True):
            if one is not None and other is not None:
                torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
