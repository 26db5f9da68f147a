"""What mypy makes of calls on arrays and on tensors: `make lint` checks it, with what must be
refused marked so."""

from __future__ import annotations

from typing import assert_type

from epigrad import backward, forward
from epigrad.webgpu import Array
from torch import Tensor


def on_arrays(x: Array, weight: Array, bias: Array) -> None:
    hidden = assert_type(forward.linear(x, weight, bias, "gelu"), Array)
    assert_type(forward.linear(x, weight, None, return_preactivation=True), tuple[Array, Array])
    assert_type(forward.gated_activation(hidden, "swiglu", out=x), Array)
    assert_type(forward.gated_product(hidden, hidden), Array)
    assert_type(forward.lerp(x, hidden, 0.5), Array)
    assert_type(forward.lerp(x, hidden, hidden), Array)
    assert_type(forward.prelu(x, bias), Array)
    assert_type(forward.xielu(x, bias, bias, 0.5, out=x), Array)
    gradients = backward.linear_backward(hidden, x, weight, bias, "gelu", out=(None, weight, bias), accumulate=True)
    assert_type(gradients, tuple[Array | None, Array | None, Array | None])
    assert_type(backward.gated_activation_backward(hidden, x), Array)
    assert_type(backward.gated_product_backward(hidden, x, x), tuple[Array | None, Array | None])
    assert_type(backward.lerp_backward(x, None, None, 0.5), tuple[Array | None, Array | None, Array | None])
    assert_type(backward.prelu_backward(x, x, bias), tuple[Array | None, Array | None])
    assert_type(backward.xielu_backward(x, x, bias, bias), tuple[Array | None, Array | None, Array | None])


def on_tensors(x: Tensor, weight: Tensor) -> None:
    assert_type(forward.linear(x, weight), Tensor)
    assert_type(forward.lerp(x, x, 0.5), Tensor)
    gradients = backward.lerp_backward(x, x, x, x, out=(None, x, None))
    assert_type(gradients, tuple[Tensor | None, Tensor | None, Tensor | None])


def on_both(x: Tensor, array: Array) -> None:
    forward.linear(x, array)  # type: ignore[type-var]
    forward.lerp(array, array, 0.5, out=x)  # type: ignore[type-var]
