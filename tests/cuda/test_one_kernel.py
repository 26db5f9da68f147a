"""Products with their epilogues in one kernel, which Hopper has for half types
(kernels/cuda/product_sm90.cuh): right, chosen where they can run, and replaced where they cannot.
"""

from __future__ import annotations

import epigrad
import pytest
import torch
from epigrad import backward, forward, plan
from torch import Tensor

from tests.support.cases import ACTIVATIONS, Case
from tests.support.devices import needs
from tests.support.gemm_problem import gemm_problem
from tests.support.layouts import assert_same_bits
from tests.support.oracle import Row, preactivation
from tests.support.parity import Wanted, assert_parity, assert_result

pytestmark = needs("cuda")

HALVES = (torch.bfloat16, torch.float16)
SHAPES = (
    ((256, 192), (192, 256)),  # whole tiles
    ((200, 136), (136, 264)),  # the last tile of each dimension is short
    ((1, 520), (520, 384)),
    ((2, 70, 72), (72, 1002)),  # rows that do not start at multiples of 16 bytes
)
LAYOUTS = ("transposed", "offset", "step", "expanded_first")


def on_hopper() -> bool:
    return torch.cuda.get_device_capability() == (9, 0)


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
    problem = gemm_problem(case)
    call = getattr(forward, op)
    out, pre = call(*problem.operands, kind, return_preactivation=True)
    assert_same_bits(call(*problem.operands, kind), out, "the output does not depend on what else is wanted")

    def want_pre(case: Case) -> Wanted:
        problem = gemm_problem(case)
        eager = problem.preactivation()
        return Wanted((preactivation(*problem.sized_operands).reshape(eager.shape),), (eager,))

    assert_result("out", out, 0, case, lambda case: gemm_problem(case).wanted())
    assert_parity(("preactivation",), (pre,), case, want_pre)


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (2048, 3072, 768), (300, 200, 136)], ids=str)
def test_hopper_alone_has_them(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    assert kernel_of(m, n, k).startswith("gemm_epilogue_sm90_gelu_bf16_nn_") == on_hopper()
    assert "sm90" not in kernel_of(m, n, k, torch.float32)


def test_a_long_depth_is_blas() -> None:
    assert kernel_of(1024, 512, 4096).startswith("cublaslt")


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
    (slope,) = torch.autograd.grad(case_row(kind).value(x).sum(), x)
    return slope


def case_row(kind: str | epigrad.Activation) -> Row:
    return Case("linear", kind, torch.bfloat16, "matrix", "contiguous").row


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sizes", [(256, 192, 384, 128), (200, 136, 264, 72), (130, 72, 1000, 264)], ids=str)
@pytest.mark.parametrize("kind", [kind for kind in ACTIVATIONS if kind != "none"], ids=str)
def test_the_backward_of_an_mlp(
    kind: str | epigrad.Activation, sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    """Each gradient is within the roundings of what it is summed of, from the preactivation as it
    is stored; and no gradient depends on which others are wanted."""
    rows, inputs, hidden, outputs = sizes
    torch.manual_seed(0)
    x, weight1, bias1, weight2, bias2, grad = (
        torch.randn(shape, device="cuda").to(dtype) / shape[-1] ** 0.5
        for shape in ((rows, inputs), (hidden, inputs), (hidden,), (outputs, hidden), (outputs,), (rows, outputs))
    )
    pre = forward.linear(x * 8, weight1, bias1, "none")
    operands = (grad, x, weight1, bias1, weight2, bias2)
    found = backward.mlp_backward(*operands, kind, preactivation=pre)
    for alone in range(5):
        needs = tuple(index == alone for index in range(5))
        (got,) = (g for g in backward.mlp_backward(*operands, kind, preactivation=pre, needs=needs) if g is not None)
        assert_same_bits(got, found[alone], f"gradient {alone} alone")

    unit = torch.finfo(dtype).eps / 2
    z, g64 = pre.double(), grad.double()
    through = g64 @ weight2.double()
    grad_pre = through * slope_by_autograd(kind, z)
    activated = case_row(kind).value(z)
    size = (g64.abs() @ weight2.double().abs()) * slope_by_autograd(kind, z).abs()
    wanted = (
        (grad_pre @ weight1.double(), size @ weight1.double().abs()),
        (grad_pre.T @ x.double(), size.T @ x.double().abs()),
        (grad_pre.sum(0), size.sum(0)),
        (g64.T @ activated, g64.T.abs() @ activated.abs()),
        (g64.sum(0), g64.abs().sum(0)),
    )
    for index, (got, (want, terms)) in enumerate(zip(found, wanted, strict=True)):
        assert got is not None
        error = (got.double() - want).abs()
        assert (error <= 1.1 * unit * (terms + want.abs()) + 1e-6).all(), (
            index,
            float((error / (terms + 1e-9)).max() / unit),
        )


def test_hopper_has_the_backward_of_an_mlp_in_one_kernel() -> None:
    """The gradient of the hidden activation is in no memory, so the workspace is smaller."""
    x, weight1, weight2, grad = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((512, 256), (1024, 256), (256, 1024), (512, 256))
    )
    with torch.profiler.profile(acc_events=True) as profiler:
        backward.mlp_backward(grad, x, weight1, None, weight2, None, "gelu")
        torch.cuda.synchronize()
    names = [event.key for event in profiler.key_averages()]
    assert any(name.startswith("hidden_backward_sm90_gelu_bf16_nn") for name in names) == on_hopper(), names
