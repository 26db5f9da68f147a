"""How exact products on a GPU are, which PyTorch's settings decide."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from epigrad import backward, forward, plan
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


def relative_error(got: Tensor, a: Tensor, b: Tensor) -> float:
    """The worst error of a product, relative to the size of the terms summed."""
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    return float(((got.double() - exact).abs() / size).max())


@pytest.mark.usefixtures("_matmul_settings")
def test_tf32_follows_pytorchs_setting() -> None:
    """On, off, and on again for the same problem: a kernel that was kept must not keep the
    setting."""
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    coarse = 2e-6  # TF32 keeps 11 bits of each operand; float32 comes to a tenth of this
    for allowed in (False, True, False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        expected = relative_error(a @ b, a, b) > coarse
        assert expected == allowed, "PyTorch itself does not follow, on this device"
        assert (relative_error(forward.matmul_bias_activation(a, b), a, b) > coarse) == allowed
        grad_a, grad_b, _ = backward.matmul_bias_activation_backward(a, a, b)
        assert grad_a is not None and grad_b is not None
        assert (relative_error(grad_a, a, b.T) > coarse) == allowed
        assert (relative_error(grad_b, a.T, a) > coarse) == allowed


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
