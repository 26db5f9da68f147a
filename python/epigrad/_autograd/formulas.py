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

from epigrad._core.call import GATE_NAMES, Call
from epigrad._core.tables import is_half
from epigrad.kinds import Activation, Gated


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


def _gelu_tanh(x: Tensor) -> Tensor:
    # (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel for u < 0.
    near = x.clamp(-_TANH_REACH, _TANH_REACH)
    return x * torch.sigmoid(_TANH_SCALE * (near + _TANH_CUBIC * near * near * near))


def _gelu_tanh_backward(grad: Tensor, x: Tensor) -> Tensor:
    near = x.clamp(-_TANH_REACH, _TANH_REACH)
    inner = _TANH_SCALE * (near + _TANH_CUBIC * near * near * near)
    gate = torch.sigmoid(inner)
    # The first x stays as it is: an infinite one gives NaN, as in the kernels.
    return grad * (gate + x * gate * torch.sigmoid(-inner) * (_TANH_SCALE * (1 + 3 * _TANH_CUBIC * near * near)))


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return grad * (gate * (1 + x * torch.sigmoid(-x)))


# Beyond it a sigmoid is 0 or 1 in every dtype. A product with beta that overflows there is left
# out: 0 * inf is NaN.
_SIGMOID_REACH = 1024.0


def _swish(x: Tensor, beta: float) -> Tensor:
    return x * torch.sigmoid(beta * x)


def _swish_backward(grad: Tensor, x: Tensor, beta: float) -> Tensor:
    scaled = beta * x
    gate = torch.sigmoid(scaled)
    return grad * (gate * (1 + torch.where(scaled.abs() > _SIGMOID_REACH, x, scaled) * torch.sigmoid(-scaled)))


def _sigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    # sigmoid(x) (1 - sigmoid(x)) cancels for large x.
    return grad * (torch.sigmoid(x) * torch.sigmoid(-x))


def _tanh_backward(grad: Tensor, x: Tensor) -> Tensor:
    # 1 - tanh(x)^2 = 4 sigmoid(2 x) sigmoid(-2 x), which does not cancel for large |x|.
    return grad * (4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x))


# Where torch.where chooses, the side that it leaves out gets a 0 for its input: an infinity there
# would make NaN of the gradient 0 that it gets.


def _elu(x: Tensor, scale: float, factor: float, width: float) -> Tensor:
    below = torch.where(x <= 0, x, 0)
    return torch.where(x <= 0, factor * torch.expm1(below / width), scale * x)


def _elu_backward(grad: Tensor, x: Tensor, scale: float, factor: float, width: float) -> Tensor:
    below = torch.where(x <= 0, x, 0)
    return torch.where(x <= 0, grad * (factor / width * torch.exp(below / width)), scale * grad)


_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934, 1.6732632423543772848
_SELU = (_SELU_SCALE, _SELU_SCALE * _SELU_ALPHA, 1.0)


def _log1p_exp(x: Tensor) -> Tensor:
    # exp never overflows, and both sides of 0 have all derivatives.
    return torch.where(x > 0, x, 0) + torch.log1p(torch.exp(torch.where(x > 0, -x, x)))


def _softplus(x: Tensor, beta: float, threshold: float) -> Tensor:
    straight = beta * x > threshold
    return torch.where(straight, x, _log1p_exp(beta * torch.where(straight, 0, x)) / beta)


def _softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    straight = beta * x > threshold
    return torch.where(straight, grad, grad * torch.sigmoid(beta * torch.where(straight, 0, x)))


def _mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    softplus = _log1p_exp(x)
    return grad * (torch.tanh(softplus) + _tanh_backward(x * torch.sigmoid(x), softplus))


def _hardswish(x: Tensor) -> Tensor:
    inside = torch.where((x > -3) & (x < 3), x, 0)
    return torch.where(x <= -3, x * 0, torch.where(x >= 3, x, torch.where(x.isnan(), x, inside * (inside + 3) / 6)))


def _hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    inside = torch.where((x > -3) & (x < 3), x, 0)
    return torch.where(x <= -3, 0, torch.where(x < 3, grad * ((2 * inside + 3) / 6), grad))


def _hardsigmoid(x: Tensor) -> Tensor:
    outside = torch.where(x >= 3, 1, torch.where(x <= -3, 0, x * 0))
    return torch.where((x > -3) & (x < 3), (x + 3) / 6, outside)


def _hardtanh(x: Tensor, low: float, high: float) -> Tensor:
    return torch.where(x <= low, low, torch.where(x >= high, high, x))


def _hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where((x <= low) | (x >= high), 0, grad)


def _softcap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def _softcap_backward(grad: Tensor, x: Tensor, cap: float) -> Tensor:
    return _tanh_backward(grad, x / cap)


_QUICK_GELU_BETA = 1.702

ACTIVATIONS: dict[str, Formula] = {
    "none": Formula(lambda x: x, lambda grad, x: grad),
    "relu": Formula(
        lambda x: torch.where(x <= 0, torch.zeros_like(x), x), _relu_backward, _relu_backward, composed=functional.relu
    ),
    "gelu": Formula(lambda x: x * _gaussian_cdf(x), _gelu_backward, composed=functional.gelu),
    "gelu_tanh": Formula(_gelu_tanh, _gelu_tanh_backward, composed=lambda x: functional.gelu(x, approximate="tanh")),
    "silu": Formula(lambda x: x * torch.sigmoid(x), _silu_backward, composed=functional.silu),
    "sigmoid": Formula(torch.sigmoid, _sigmoid_backward, torch.ops.aten.sigmoid_backward),
    "tanh": Formula(torch.tanh, _tanh_backward, torch.ops.aten.tanh_backward),
    "leaky_relu": Formula(
        lambda x, slope: torch.where(x > 0, x, slope * x),
        lambda grad, x, slope: torch.where(x > 0, grad, slope * grad),
        composed=functional.leaky_relu,
    ),
    "relu2": Formula(lambda x: torch.relu(x).square(), lambda grad, x: _relu_backward(grad * (2 * torch.relu(x)), x)),
    "quick_gelu": Formula(
        lambda x: _swish(x, _QUICK_GELU_BETA), lambda grad, x: _swish_backward(grad, x, _QUICK_GELU_BETA)
    ),
    "swish": Formula(_swish, _swish_backward),
    "elu": Formula(
        lambda x, alpha: _elu(x, 1, alpha, 1),
        lambda grad, x, alpha: _elu_backward(grad, x, 1, alpha, 1),
        composed=functional.elu,
    ),
    "selu": Formula(
        lambda x: _elu(x, *_SELU), lambda grad, x: _elu_backward(grad, x, *_SELU), composed=functional.selu
    ),
    # functional.celu keeps alpha in float32
    "celu": Formula(
        lambda x, alpha: _elu(x, 1, alpha, alpha), lambda grad, x, alpha: _elu_backward(grad, x, 1, alpha, alpha)
    ),
    "softplus": Formula(_softplus, _softplus_backward, composed=functional.softplus),
    "mish": Formula(lambda x: x * torch.tanh(_log1p_exp(x)), _mish_backward, composed=functional.mish),
    "hardswish": Formula(_hardswish, _hardswish_backward, composed=functional.hardswish),
    "hardsigmoid": Formula(
        _hardsigmoid,
        lambda grad, x: torch.where((x > -3) & (x < 3), grad / 6, 0),
        composed=functional.hardsigmoid,
    ),
    "relu6": Formula(
        lambda x: _hardtanh(x, 0, 6), lambda grad, x: _hardtanh_backward(grad, x, 0, 6), composed=functional.relu6
    ),
    "hardtanh": Formula(_hardtanh, _hardtanh_backward, composed=functional.hardtanh),
    "softcap": Formula(_softcap, _softcap_backward),
}


@dataclass(frozen=True, slots=True)
class Learnable:
    """A function of several tensors that broadcast, as PyTorch operations.

    All take the tensors, then numbers.

    Attributes:
        value: the output.
        backward: from grad and these, the gradients of the tensors, of grad's shape. A tensor that
            is None was not kept; so is a gradient that needs it.
        composed: the output as a PyTorch user writes it, for exported graphs.
        by_channel: whether the tensors after the first are parameters of an activation, whose
            elements belong to its second dimension.
    """

    value: Callable[..., Tensor]
    backward: Callable[..., tuple[Tensor | None, ...]]
    composed: Callable[..., Tensor]
    by_channel: bool = True


def _sides(x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor where x > 0, and where it is not, with 0 elsewhere."""
    return torch.where(x > 0, of, 0), torch.where(x > 0, 0, of)


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    _, below = _sides(x, x)
    return torch.where(x > 0, x, weight * below)


def _prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    (_, below), (_, grad_below) = _sides(x, x), _sides(x, grad)
    return torch.where(x > 0, grad, weight * grad_below), grad_below * below


def _xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: float) -> Tensor:
    above, below = _sides(x, x)
    rising = above * (_log1p_exp(alpha_p) * above + beta)
    return torch.where(x > 0, rising, (beta + _log1p_exp(alpha_n)) * (torch.expm1(below) - below) + beta * below)


def _xielu_backward(grad: Tensor, x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: float) -> tuple[Tensor, ...]:
    (above, below), (grad_above, grad_below) = _sides(x, x), _sides(x, grad)
    bent = torch.expm1(below)
    slope = torch.where(x > 0, 2 * _log1p_exp(alpha_p) * above, (beta + _log1p_exp(alpha_n)) * bent) + beta
    grad_alpha_p = grad_above * (above * above) * torch.sigmoid(alpha_p)
    return grad * slope, grad_alpha_p, grad_below * (bent - below) * torch.sigmoid(alpha_n)


def _xielu_composed(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: float = 0.5) -> Tensor:
    a_p, a_n = (functional.softplus(_beside(x, alpha)) for alpha in (alpha_p, alpha_n))
    # elu is expm1 there, which not every exporter knows
    return torch.where(x > 0, a_p * x * x, (beta + a_n) * (functional.elu(x) - x)) + beta * x


def _lerp(start: Tensor, end: Tensor, weight: Tensor | None, number: float | None = None) -> Tensor:
    mixed: Tensor = torch.lerp(start, end, number if weight is None else weight)  # type: ignore[arg-type]
    return mixed


def _lerp_backward(
    grad: Tensor, start: Tensor | None, end: Tensor | None, weight: Tensor | None, number: float | None = None
) -> tuple[Tensor | None, ...]:
    factor = number if weight is None else weight
    of_weight = None if start is None or end is None else grad * (end - start)
    return (None, None, of_weight) if factor is None else (grad * (1 - factor), grad * factor, of_weight)


LERP = Learnable(_lerp, _lerp_backward, _lerp, by_channel=False)
LEARNABLE = {
    "prelu": Learnable(_prelu, _prelu_backward, functional.prelu),
    "xielu": Learnable(_xielu, _xielu_backward, _xielu_composed),
}
"""Activations whose parameters are tensors, by the names of their operations."""


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of elementwise maths: float32 for half types, else its own."""
    return tensor.float() if is_half(tensor.dtype) else tensor


def unrounded(activation: Activation, preactivation: Tensor) -> Tensor:
    """``act(pre)`` in the dtype of elementwise maths."""
    return ACTIVATIONS[activation.name].value(computed(preactivation), *activation.values)


def composed(activation: Activation, preactivation: Tensor) -> Tensor:
    """``act(pre)`` by PyTorch's own function, which exporters and other runtimes know."""
    formula = ACTIVATIONS[activation.name]
    return (formula.composed or formula.value)(preactivation, *activation.values)


class _Gated:
    """What a gated kind computes, as differentiable operations in the dtype of its tensors.

    The value becomes ``psi(value)`` and the gate ``phi(gate)``; the output is their product.
    """

    def __init__(self, kind: Gated) -> None:
        self.activation = kind.activation
        if self.activation is None:
            self.gate_cap, self.value_cap = kind.values
        else:
            self.limit, self.limit_after, self.offset = kind.values[:3]

    def psi(self, value: Tensor) -> Tensor:
        if self.activation is None:
            return _softcap(value, self.value_cap)
        value = _both_sides(_both_sides(value, self.limit), self.limit_after)
        return value if self.offset == 0 else value + self.offset

    def phi(self, gate: Tensor, composed: bool = False) -> Tensor:
        if self.activation is None:
            return _softcap(gate, self.gate_cap) * torch.sigmoid(gate)
        formula = ACTIVATIONS[self.activation.name]
        act = formula.composed if composed and formula.composed else formula.value
        return _from_above(act(_from_above(gate, self.limit), *self.activation.values), self.limit_after)

    def psi_backward(self, grad: Tensor, value: Tensor | None) -> Tensor:
        if self.activation is None:
            assert value is not None
            return _softcap_backward(grad, value, self.value_cap)
        limit = min(self.limit, self.limit_after)
        if limit == math.inf:
            return grad
        assert value is not None
        return torch.where((value >= limit) | (value <= -limit), 0, grad)

    def phi_backward(self, grad: Tensor, gate: Tensor | None) -> Tensor:
        if self.activation is None:
            assert gate is not None
            of_cap = _softcap_backward(grad * torch.sigmoid(gate), gate, self.gate_cap)
            return of_cap + _sigmoid_backward(grad * _softcap(gate, self.gate_cap), gate)
        if gate is None:  # of a gate that nothing is done to
            return grad
        formula, parameters = ACTIVATIONS[self.activation.name], self.activation.values
        near = _from_above(gate, self.limit)
        gradient = formula.backward(grad, near, *parameters)
        if self.limit_after != math.inf:
            gradient = torch.where(formula.value(near, *parameters) >= self.limit_after, 0, gradient)
        return gradient if self.limit == math.inf else torch.where(gate >= self.limit, 0, gradient)


def _from_above(x: Tensor, limit: float) -> Tensor:
    return x if limit == math.inf else torch.where(x >= limit, limit, x)


def _both_sides(x: Tensor, limit: float) -> Tensor:
    return x if limit == math.inf else torch.where(x >= limit, limit, torch.where(x <= -limit, -limit, x))


def keeps_value(kind: Gated) -> bool:
    """Whether the gradient to the value depends on the value."""
    return kind.activation is None or min(kind.values[:2]) != math.inf


def keeps_gate(kind: Gated) -> bool:
    """Whether the gradient to the gate depends on the gate."""
    return keeps_value(kind) or kind.activation != Activation("none")


def gated_unrounded(kind: Gated, value: Tensor, gate: Tensor) -> Tensor:
    """``psi(value) * phi(gate)`` in the dtype of elementwise maths."""
    made = _Gated(kind)
    return made.psi(computed(value)) * made.phi(computed(gate))


def gated_composed(kind: Gated, value: Tensor, gate: Tensor) -> Tensor:
    """``psi(value) * phi(gate)`` as a PyTorch user writes it."""
    made = _Gated(kind)
    return made.psi(value) * made.phi(gate, composed=True)


def _beside(input: Tensor, parameter: Tensor) -> Tensor:
    """A parameter under an input: its elements belong to the input's second dimension."""
    return parameter.reshape(-1, *(1,) * (input.dim() - 2)) if input.dim() > 1 else parameter.reshape(())


def _under(row: Learnable, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors in the dtype of elementwise maths, in shapes that broadcast."""
    wide = [None if tensor is None else computed(tensor) for tensor in tensors]
    first, *rest = wide
    if first is None or not row.by_channel:
        return wide
    return [first, *[None if parameter is None else _beside(first, parameter) for parameter in rest]]


def learnable(row: Learnable, call: Call, *tensors: Tensor | None) -> Tensor:
    """The output of a function of several tensors, rounded once."""
    first = tensors[0]
    assert first is not None
    return row.value(*_under(row, tensors), *call.parameters).to(first.dtype)


def learnable_backward(
    row: Learnable,
    call: Call,
    shapes: Sequence[Sequence[int] | None],
    needs: Sequence[bool],
    grad: Tensor,
    *tensors: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Its gradients, each summed to its tensor's shape."""
    under = _under(row, tensors)
    found = row.backward(computed(grad), *under, *call.parameters)
    gradients: list[Tensor | None] = [None] * len(tensors)
    for place, (gradient, wide, tensor) in enumerate(zip(found, under, tensors, strict=True)):
        shape = tensor.shape if tensor is not None else shapes[place]
        if needs[place] and gradient is not None and shape is not None:
            summed = gradient.sum_to_size(tuple(shape if wide is None else wide.shape))
            gradients[place] = summed.reshape(tuple(shape)).to(grad.dtype)
    return tuple(gradients)


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


def between(call: Call) -> Call:
    """The operation between the products of layers, as a call of its own."""
    op, dim = ("gated_activation", -1) if call.is_gated else ("activation", 0)
    return Call(op, call.kind, call.parameters, dim, call.gate, backend=call.backend)


def split_gate(input: Tensor, dim: int, gate: int) -> tuple[Tensor, Tensor]:
    """The value and the gate of `input` along `dim`; `gate` is an index of `GATE_NAMES`."""
    if GATE_NAMES[gate] in _IN_TURNS:
        before = (slice(None),) * (dim % input.dim())
        first, second = input[(*before, slice(0, None, 2))], input[(*before, slice(1, None, 2))]
    else:
        half = input.shape[dim] // 2
        first, second = input.narrow(dim, 0, half), input.narrow(dim, half, half)
    return (second, first) if GATE_NAMES[gate] in _GATE_COMES_FIRST else (first, second)


def joined(value: Tensor, gate: Tensor, dim: int, place: int) -> Tensor:
    """`split_gate` undone."""
    parts = [gate, value] if GATE_NAMES[place] in _GATE_COMES_FIRST else [value, gate]
    if GATE_NAMES[place] not in _IN_TURNS:
        return torch.cat(parts, dim)
    place = dim % value.dim()
    shape = list(value.shape)
    shape[place] *= 2
    # flatten has no rule where torch.autograd.grad batches gradients
    return torch.stack(parts, place + 1).reshape(shape)


_IN_TURNS = ("odd", "even")
_GATE_COMES_FIRST = ("first", "even")


def gated_backward(
    kind: Gated, grad: Tensor, value: Tensor | None, gate: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Unrounded gradients of ``psi(value) * phi(gate)`` to value and gate."""
    made = _Gated(kind)
    wide = computed(grad)
    wide_value = None if value is None else computed(value)
    wide_gate = None if gate is None else computed(gate)
    grad_value = grad_gate = None
    if needs[0] and wide_gate is not None:
        grad_value = made.psi_backward(wide * made.phi(wide_gate), wide_value)
    if needs[1] and wide_value is not None:
        grad_gate = made.phi_backward(wide * made.psi(wide_value), wide_gate)
    return grad_value, grad_gate
