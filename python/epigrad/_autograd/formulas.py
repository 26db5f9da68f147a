"""The maths of the gradients as differentiable PyTorch operations, for higher orders.

First-order gradients come from the fused kernels. When a gradient is itself differentiated,
autograd differentiates the expressions of this file, so every order is exact by construction. Half
types compute in float32 here and round once to the storage dtype.

Adding an activation adds one row to `ACTIVATIONS`; a test holds its names to the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from epigrad.kinds import Activation


@dataclass(frozen=True, slots=True)
class Formula:
    """An activation as PyTorch operations. All but `backward_from_output` take the parameters last.

    Attributes:
        value: ``act(x)``.
        backward: ``grad * act'(x)`` from grad and x.
        backward_from_output: ``grad * act'(x)`` from grad and ``act(x)``, where that is possible.
        composed: ``act(x)`` as a PyTorch user writes it, for exported graphs; None is `value`.
    """

    value: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    backward_from_output: Callable[[Tensor, Tensor], Tensor] | None = None
    composed: Callable[..., Tensor] | None = None


def _relu_backward(grad: Tensor, x: Tensor) -> Tensor:
    # A choice and not a product: an infinite gradient at x < 0 stays out, and a NaN preactivation
    # passes the gradient on.
    return torch.where(x <= 0, torch.zeros_like(grad), grad)


def _gaussian_cdf(x: Tensor) -> Tensor:
    # erfc keeps the digits that 1 + erf cancels in the negative tail (the form of jax.nn.gelu).
    tail: Tensor = torch.special.erfc(x * -math.sqrt(0.5))
    return 0.5 * tail


def _gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * (_gaussian_cdf(x) + x * density)


_TANH_SCALE = 2 * math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715
# Beyond it the gate is 0 or 1 in every dtype, and its derivatives are 0: larger powers of x would
# only overflow, and 0 * inf is NaN. A NaN passes a clamp.
_TANH_REACH = 64.0


def _gelu_tanh_gate(x: Tensor) -> Tensor:
    # (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel for u < 0.
    near = x.clamp(-_TANH_REACH, _TANH_REACH)
    return torch.sigmoid(_TANH_SCALE * (near + _TANH_CUBIC * near * near * near))


def _gelu_tanh_backward(grad: Tensor, x: Tensor) -> Tensor:
    near = x.clamp(-_TANH_REACH, _TANH_REACH)
    inner = _TANH_SCALE * (near + _TANH_CUBIC * near * near * near)
    gate = torch.sigmoid(inner)
    # The first x stays as it is: an infinite one gives NaN, as in the kernels.
    return grad * (gate + x * gate * torch.sigmoid(-inner) * (_TANH_SCALE * (1 + 3 * _TANH_CUBIC * near * near)))


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return grad * (gate * (1 + x * torch.sigmoid(-x)))


def _sigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    # sigmoid(x) (1 - sigmoid(x)) cancels for large x.
    return grad * (torch.sigmoid(x) * torch.sigmoid(-x))


def _tanh_backward(grad: Tensor, x: Tensor) -> Tensor:
    # 1 - tanh(x)^2 = 4 sigmoid(2 x) sigmoid(-2 x), which does not cancel for large |x|.
    return grad * (4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x))


ACTIVATIONS: dict[str, Formula] = {
    "none": Formula(lambda x: x, lambda grad, x: grad),
    "relu": Formula(
        lambda x: torch.where(x <= 0, torch.zeros_like(x), x), _relu_backward, _relu_backward, composed=functional.relu
    ),
    "gelu": Formula(lambda x: x * _gaussian_cdf(x), _gelu_backward, composed=functional.gelu),
    "gelu_tanh": Formula(
        lambda x: x * _gelu_tanh_gate(x),
        _gelu_tanh_backward,
        composed=lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "silu": Formula(lambda x: x * torch.sigmoid(x), _silu_backward, composed=functional.silu),
    "sigmoid": Formula(torch.sigmoid, _sigmoid_backward, lambda grad, y: grad * (y * (1 - y))),
    "tanh": Formula(torch.tanh, _tanh_backward, lambda grad, y: grad * (1 - y * y)),
    "leaky_relu": Formula(
        lambda x, slope: torch.where(x > 0, x, slope * x),
        lambda grad, x, slope: torch.where(x > 0, grad, slope * grad),
        composed=functional.leaky_relu,
    ),
    "relu2": Formula(lambda x: torch.relu(x).square(), lambda grad, x: _relu_backward(grad * (2 * torch.relu(x)), x)),
}


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of elementwise maths: float32 for half types, else its own."""
    return tensor.float() if tensor.dtype.itemsize == 2 else tensor


def preactivation(a: Tensor, b: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """``a @ b + bias``; `transposed` means that b is a weight ``[N, K]``."""
    product = torch.matmul(a, b.mT if transposed else b)
    return product if bias is None else product + bias


def unrounded(activation: Activation, preactivation: Tensor) -> Tensor:
    """``act(pre)`` in the dtype of elementwise maths."""
    return ACTIVATIONS[activation.name].value(computed(preactivation), *activation.values)


def activated(activation: Activation, preactivation: Tensor) -> Tensor:
    """``act(pre)``, rounded once."""
    return unrounded(activation, preactivation).to(preactivation.dtype)


def composed(activation: Activation, preactivation: Tensor) -> Tensor:
    """``act(pre)`` by PyTorch's own function, which exporters and other runtimes know."""
    formula = ACTIVATIONS[activation.name]
    return (formula.composed or formula.value)(preactivation, *activation.values)


def gated(activation: Activation, value: Tensor, gate: Tensor) -> Tensor:
    """``value * act(gate)``, rounded once."""
    return (computed(value) * unrounded(activation, gate)).to(value.dtype)


def lerp(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """``start + weight * (end - start)``, rounded once."""
    factor = computed(weight) if isinstance(weight, Tensor) else weight
    mixed: Tensor = torch.lerp(computed(start), computed(end), factor)
    return mixed.to(start.dtype)


def grad_preactivation(
    activation: Activation, grad: Tensor, preactivation: Tensor | None, output: Tensor | None
) -> Tensor:
    """``grad * act'(pre)``, unrounded, from the saved output if there is one."""
    formula = ACTIVATIONS[activation.name]
    if output is not None and formula.backward_from_output is not None:
        return formula.backward_from_output(computed(grad), computed(output))
    if preactivation is None:
        return computed(grad)
    return formula.backward(computed(grad), computed(preactivation), *activation.values)


def gemm_backward(
    grad_pre: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    dtype: torch.dtype,
    shapes: Sequence[Sequence[int] | None],
    needs: Sequence[bool],
    transposed: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The three gradients of ``a @ b + bias`` from the unrounded `grad_pre`; `transposed` means
    that b is a weight ``[N, K]``.
    """
    bias_shape = shapes[2]
    grad_bias = None
    if needs[2] and bias_shape is not None:
        grad_bias = (grad_pre.sum_to_size(tuple(bias_shape)) if len(bias_shape) else grad_pre.sum()).to(dtype)
    rounded = grad_pre.to(dtype)
    product = linear_gradients if transposed else matmul_gradients
    grad_a, grad_b = product(rounded, a, b, shapes[0] or (), shapes[1] or (), needs)
    return grad_a, grad_b, grad_bias


def _rows(tensor: Tensor) -> Tensor:
    # Not flatten, which vectorised jacobians have no rule for.
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def linear_gradients(
    grad_pre: Tensor,
    input: Tensor | None,
    weight: Tensor | None,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    needs: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of ``input @ weight.T`` for input ``[..., K]`` and weight ``[N, K]``."""
    grad_input = grad_weight = None
    if needs[0] and weight is not None:
        grad_input = grad_pre @ weight
    if needs[1] and input is not None:
        grad_weight = torch.outer(grad_pre, input) if input.dim() == 1 else _rows(grad_pre).mT @ _rows(input)
    return grad_input, grad_weight


def matmul_gradients(
    grad_pre: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    needs: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of ``torch.matmul(a, b)``, each summed over the dimensions that broadcast."""
    if len(b_shape) == 1:
        grad_pre = grad_pre.unsqueeze(-1)
    if len(a_shape) == 1:
        grad_pre = grad_pre.unsqueeze(-2)
    grad_a = grad_b = None
    if needs[0] and b is not None:
        columns = b.unsqueeze(-1) if len(b_shape) == 1 else b
        rows_shape = (1, *a_shape) if len(a_shape) == 1 else tuple(a_shape)
        grad_a = (grad_pre @ columns.mT).sum_to_size(rows_shape).reshape(tuple(a_shape))
    if needs[1] and a is not None:
        rows = a.unsqueeze(0) if len(a_shape) == 1 else a
        if len(b_shape) <= 2:
            # One product over all rows sums the batch in the accumulator, before rounding.
            grad_b = _rows(rows).mT @ _rows(grad_pre)
        else:
            grad_b = (rows.mT @ grad_pre).sum_to_size(tuple(b_shape))
        grad_b = grad_b.reshape(tuple(b_shape))
    return grad_a, grad_b


def split_gate(input: Tensor, dim: int, gate: int) -> tuple[Tensor, Tensor]:
    """The value and the gate of `input` along `dim`; `gate` is an index of `GATE_NAMES`."""
    half = input.shape[dim] // 2
    first, second = input.narrow(dim, 0, half), input.narrow(dim, half, half)
    return (first, second) if gate == 0 else (second, first)


def joined(value: Tensor, gate: Tensor, dim: int, place: int) -> Tensor:
    """`split_gate` undone."""
    return torch.cat([value, gate] if place == 0 else [gate, value], dim)


def gated_backward(
    activation: Activation, grad: Tensor, value: Tensor | None, gate: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Unrounded gradients of ``value * act(gate)`` to value and gate."""
    wide = computed(grad)
    grad_value = grad_gate = None
    if needs[0] and gate is not None:
        grad_value = wide * unrounded(activation, gate)
    if needs[1] and value is not None:
        grad_gate = grad_preactivation(activation, wide * computed(value), gate, None)
    return grad_value, grad_gate


def lerp_backward(
    grad: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    weight: Tensor | float | None,
    shapes: Sequence[Sequence[int] | None],
    needs: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of ``start + weight * (end - start)``, each summed to its input's shape."""
    dtype = grad.dtype
    wide = computed(grad)
    factor = computed(weight) if isinstance(weight, Tensor) else weight

    def summed(gradient: Tensor, shape: Sequence[int] | None) -> Tensor:
        return gradient.sum_to_size(tuple(shape or ())).to(dtype)

    grad_start = grad_end = grad_weight = None
    if needs[0] and factor is not None:
        grad_start = summed(wide * (1 - factor), shapes[0])
    if needs[1] and factor is not None:
        grad_end = summed(wide * factor, shapes[1])
    if needs[2] and start is not None and end is not None and shapes[2] is not None:
        grad_weight = summed(wide * (computed(end) - computed(start)), shapes[2])
    return grad_start, grad_end, grad_weight
