"""Gradients of weights lie as the weights do: PyTorch keeps a parameter's gradient in the
parameter's layout, and would copy one that lies otherwise (GPT-2's Conv1D has weights [K, N]).
"""

from __future__ import annotations

from collections.abc import Callable

import epigrad
import pytest
import torch
from epigrad import backward
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.devices import on_devices

K, N, H = 6, 5, 7

Function = Callable[..., Tensor]

FUNCTIONS: dict[str, tuple[Function, tuple[tuple[int, int], ...]]] = {
    "linear": (lambda x, w: epigrad.linear(x, w, None, "gelu"), ((N, K),)),
    "matmul": (lambda x, w: epigrad.matmul_bias_activation(x, w, None, "gelu"), ((K, N),)),
    "gated_linear": (lambda x, v, w: epigrad.gated_linear(x, v, w), ((H, K), (H, K))),
    "mlp": (lambda x, v, w: epigrad.mlp(x, v, None, w, None, "gelu"), ((H, K), (N, H))),
    "gated_mlp": (lambda x, v, w: epigrad.gated_mlp(x, v, None, w, None, "swiglu"), ((2 * H, K), (N, H))),
}
names = pytest.mark.parametrize("name", list(FUNCTIONS))


def operands(name: str, device: str, lies_transposed: bool) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The input, parameters, and the weights that are made of them."""
    shapes = FUNCTIONS[name][1]
    torch.manual_seed(0)
    x = torch.randn(3, K, device=device, requires_grad=True)
    values = [torch.randn(shape, device=device) for shape in shapes]
    parameters = tuple((value.t().contiguous() if lies_transposed else value).requires_grad_() for value in values)
    return x, parameters, tuple(p.t() if lies_transposed else p for p in parameters)


@names
@on_devices
@pytest.mark.parametrize("times", [1, 4])  # the first calls of a geometry go another way than later ones
def test_of_a_transposed_weight(device: str, name: str, times: int) -> None:
    function, _ = FUNCTIONS[name]
    for _ in range(times):
        x, parameters, weights = operands(name, device, True)
        found = torch.autograd.grad(function(x, *weights).square().sum(), (x, *parameters))
        other_x, other_parameters, plain = operands(name, device, False)
        want = torch.autograd.grad(function(other_x, *plain).square().sum(), (other_x, *other_parameters))
        assert all(gradient.is_contiguous() for gradient in (*found, *want))
        torch.testing.assert_close(found[0], want[0])
        for gradient, other in zip(found[1:], want[1:], strict=True):
            torch.testing.assert_close(gradient, other.t())


@names
@on_devices
def test_of_a_weight_alone(device: str, name: str) -> None:
    """No other gradient is wanted, so backward needs no value of the weight itself."""
    function, _ = FUNCTIONS[name]
    x, parameters, weights = operands(name, device, True)
    wanted = torch.autograd.grad(function(x, *weights).square().sum(), parameters)
    for i, (parameter, want) in enumerate(zip(parameters, wanted, strict=True)):
        others = [weight if j == i else weight.detach() for j, weight in enumerate(weights)]
        out = function(x.detach(), *others)
        (found,) = torch.autograd.grad(out.square().sum(), parameter)
        assert found.is_contiguous()
        assert torch.equal(found, want)


def copies(name: str, device: str, lies_transposed: bool) -> int:
    """What a backward copies on its way to the parameters."""
    function, _ = FUNCTIONS[name]
    x, parameters, weights = operands(name, device, lies_transposed)
    out = function(x, *weights)
    grad = torch.ones_like(out)
    with torch.profiler.profile(acc_events=True) as profiler:
        torch.autograd.backward(out, grad)
    assert all(p.grad is not None and p.grad.stride() == p.stride() for p in parameters)
    return sum(event.count for event in profiler.key_averages() if event.key in ("aten::clone", "aten::copy_"))


@names
@on_devices
def test_accumulation_keeps_the_gradient_itself(device: str, name: str) -> None:
    assert copies(name, device, True) == copies(name, device, False)


@names
def test_fakes_lie_alike(name: str) -> None:
    function, _ = FUNCTIONS[name]
    strides = []
    for mode in (FakeTensorMode(), None):
        x, _, weights = operands(name, "cpu", True)
        real = torch.autograd.grad(function(x, *weights).sum(), (x, *weights))
        if mode is None:
            strides.append([gradient.stride() for gradient in real])
            continue
        fake_x, *fake_weights = (
            mode.from_tensor(t.detach().as_strided(t.shape, t.stride())).requires_grad_() for t in (x, *weights)
        )
        fakes = torch.autograd.grad(function(fake_x, *fake_weights).sum(), (fake_x, *fake_weights))
        strides.append([gradient.stride() for gradient in fakes])
    assert strides[0] == strides[1]
    assert all(stride[0] == 1 for stride in strides[0][1:])


def test_other_layouts_give_contiguous_gradients() -> None:
    x, grad = torch.randn(3, K), torch.randn(3, N)
    wide = torch.randn(N, 2 * K)
    for weight in (
        torch.randn(N, K),
        wide[:, ::2],
        wide[:, :K],
        torch.randn(K, 2 * N).t()[::2],
        torch.randn(1, K).expand(N, K),
    ):
        _, found, _ = backward.linear_backward(grad, x, weight)
        assert found is not None and found.is_contiguous()


@pytest.mark.parametrize("shape", [(1, K), (N, 1), (0, K)])
def test_thin_weights(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).t().contiguous().t()
    _, found, _ = backward.linear_backward(torch.randn(3, shape[0]), torch.randn(3, shape[1]), weight)
    assert found is not None and found.shape == shape and found.is_contiguous()
