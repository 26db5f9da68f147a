"""How exact products on a GPU are, which PyTorch's settings decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import epigrad
import pytest
import torch
from epigrad import backward, forward, plan
from epigrad._core import tables
from torch import Tensor

from tests.support.devices import needs
from tests.support.plan_problem import workspace_of

pytestmark = [needs("cuda"), pytest.mark.filterwarnings("ignore:.*TF32:UserWarning")]


@pytest.fixture
def _matmul_settings() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in names}
    yield
    for name, value in before.items():
        setattr(matmul, name, value)


COARSE = 2e-6
"""TF32 keeps 11 bits of each operand; float32 comes to a tenth of this."""


def relative_error(got: Tensor, a: Tensor, b: Tensor) -> float:
    """The worst error of a product, relative to the size of the terms summed."""
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    return float(((got.double() - exact).abs() / size).max())


@pytest.mark.usefixtures("_matmul_settings")
def test_tf32_follows_pytorchs_setting() -> None:
    """On, off, and on again for the same problem: a kernel that was kept must not keep the
    setting."""
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    for allowed in (False, True, False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        expected = relative_error(a @ b, a, b) > COARSE
        assert expected == allowed, "PyTorch itself does not follow, on this device"
        assert (relative_error(forward.matmul_bias_activation(a, b), a, b) > COARSE) == allowed
        grad_a, grad_b, _ = backward.matmul_bias_activation_backward(a, a, b)
        assert grad_a is not None and grad_b is not None
        assert (relative_error(grad_a, a, b.T) > COARSE) == allowed
        assert (relative_error(grad_b, a.T, a) > COARSE) == allowed


MULTIPLYING = [name for name, row in tables.OPS.items() if row.multiplies and not name.endswith("_backward")]
SIZE, GROUPS = 512, 2


def _offsets(x: Tensor) -> Tensor:
    return torch.tensor([SIZE // 2, SIZE], device=x.device)


def _index(x: Tensor) -> Tensor:
    return (torch.arange(SIZE, device=x.device) % GROUPS).view(SIZE, 1)


SQUARE, STACK, TALL = (SIZE, SIZE), (GROUPS, SIZE, SIZE), (2 * SIZE, SIZE)
PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "matmul_bias_activation": (epigrad.matmul_bias_activation, (SQUARE, SQUARE)),
    "linear": (epigrad.linear, (SQUARE, SQUARE)),
    "gated_linear": (lambda x, v, g: epigrad.gated_linear(x, v, g, None, None, "bilinear"), (SQUARE,) * 3),
    "mlp": (lambda x, up, down: epigrad.mlp(x, up, None, down, None, "none"), (SQUARE,) * 3),
    "gated_mlp": (
        lambda x, up, down: epigrad.gated_mlp(x, up, None, down, None, "bilinear"),
        (SQUARE, TALL, SQUARE),
    ),
    "grouped_linear": (lambda x, w: epigrad.grouped_linear(x, w, None, "none", offsets=_offsets(x)), (SQUARE, STACK)),
    "experts": (
        lambda x, scale, up, down: epigrad.experts(x, _index(x), scale, up, None, down, None, "bilinear"),
        (SQUARE, (SIZE, 1), (GROUPS, *TALL), STACK),
    ),
}
"""Every operation with a product, of operands of these shapes, with nothing that rounds besides."""


def distances(run: Callable[..., Tensor], operands: Sequence[Tensor]) -> list[float]:
    """How far an output and each gradient lie from those of float64, relative to their norms: a
    number for each product that is in no other."""
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.detach().to(dtype).requires_grad_() for x in operands]
        out = run(*leaves)
        upstream = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64, device=out.device).view(out.shape)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, upstream.to(dtype))))
    pairs = zip(*results, strict=True)
    return [float((got.double() - exact).norm() / exact.norm()) for got, exact in pairs]


def precision_follows(run: Callable[..., Tensor], name: str) -> None:
    """Asserts that every product of an operation, forward and backward, is in TF32 if PyTorch
    allows it, and else in float32.

    Errors are relative to norms here. TF32's are over 1e-4, float32's under 1e-5.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    operands = [torch.randn(shape, generator=generator, device="cuda") for shape in PRODUCTS[name][1]]
    for allowed in (False, True, False):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        for place, error in enumerate(distances(run, operands)):
            assert (error > 5e-5) == allowed, f"{name}: result {place}: {error:.1e}, TF32 is {allowed}"


@pytest.mark.usefixtures("_matmul_settings")
@pytest.mark.parametrize("name", MULTIPLYING)
def test_tf32_is_in_every_product_that_pytorch_allows_it_for(name: str) -> None:
    precision_follows(PRODUCTS[name][0], name)


@pytest.mark.usefixtures("_matmul_settings")
@pytest.mark.parametrize("name", MULTIPLYING)
def test_compiled_products_follow_tf32_too(name: str) -> None:
    torch.compiler.reset()
    precision_follows(torch.compile(PRODUCTS[name][0], fullgraph=True), name)


@pytest.mark.usefixtures("_matmul_settings")
@pytest.mark.parametrize("allowed", [False, True])
def test_a_plan_keeps_to_the_precision_that_it_guarantees(allowed: bool) -> None:
    a, b, out = (torch.randn(512, 512, device="cuda") for _ in range(3))
    torch.backends.cuda.matmul.allow_tf32 = allowed
    made = plan.GemmEpilogue.select(m=512, n=512, k=512, dtype=torch.float32, device="cuda")
    assert made.precision_guarantee.math_precision == ("tf32" if allowed else "float32")
    torch.backends.cuda.matmul.allow_tf32 = not allowed
    made.run(a=a, b=b, out=out, workspace=workspace_of(made, "cuda"))
    assert (relative_error(out, a, b) > 2e-6) == allowed


def test_tf32_is_off_unless_asked_for() -> None:
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    assert relative_error(forward.matmul_bias_activation(a, b), a, b) < 2e-6


@pytest.mark.usefixtures("_matmul_settings")
@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_reduced_precision_reductions_follow_pytorchs_setting(dtype: torch.dtype, allowed: bool) -> None:
    """A long sum into few results, which invites a split: allowed or not, the tolerance rule
    holds."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = allowed
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = allowed
    a, b = (torch.randn(shape, device="cuda").to(dtype) for shape in ((64, 8192), (8192, 64)))
    exact = a.double() @ b.double()
    size = a.double().abs() @ b.double().abs()
    theirs = relative_error(a @ b, a, b)
    got = forward.matmul_bias_activation(a, b)
    rounding = exact.abs() * torch.finfo(dtype).eps / 2
    assert ((got.double() - exact).abs() <= 1.5 * theirs * size + rounding).all()
