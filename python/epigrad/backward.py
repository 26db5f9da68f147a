"""Stateless gradients, for your own `torch.autograd.Function`: no graph, nothing saved.

A gradient is None where `needs` is False, or where it cannot exist (no bias, a weight that is a
number). `out` gives tensors to write into. They have the right shape and dtype, any strides, and
share no memory with another output or an input. One that is not needed is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from epigrad import errors
from epigrad._core import selection
from epigrad._core.call import Call, call_of
from epigrad._core.checks import check_out, check_tensors, finite, lerp_weight, needs_mask, out_tensors
from epigrad._core.stateless import launch_into, launch_one
from epigrad.kinds import ActivationLike, Gated
from epigrad.webgpu import Data

__all__ = [
    "activation_backward",
    "experts_backward",
    "gated_activation_backward",
    "gated_linear_backward",
    "gated_mlp_backward",
    "gated_product_backward",
    "grouped_linear_backward",
    "lerp_backward",
    "linear_backward",
    "matmul_bias_activation_backward",
    "mlp_backward",
    "prelu_backward",
    "xielu_backward",
]

_Three = tuple[Data | None, Data | None, Data | None]
_Five = tuple[Data | None, Data | None, Data | None, Data | None, Data | None]
_Six = tuple[Data | None, Data | None, Data | None, Data | None, Data | None, Data | None]


def matmul_bias_activation_backward(
    grad_output: Data,
    a: Data,
    b: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    preactivation: Data | None = None,
    output: Data | None = None,
    needs: Sequence[bool] = (True, True, True),
    out: Sequence[Data | None] = (None, None, None),
    accumulate: bool = False,
) -> _Three[Data]:
    """Compute the gradients of ``act(a @ b + bias)``.

    With ``pre = a @ b + bias`` and ``grad_pre = grad_output * act'(pre)``:
    ``grad_a = grad_pre @ b.T``, ``grad_b = a.T @ grad_pre``, ``grad_bias = sum(grad_pre)``,
    each summed over the dimensions that broadcast. In half types `grad_pre` is rounded once to the
    storage dtype before the two products, and the bias is summed unrounded.

    Args:
        grad_output: of the output's shape; float32, float64, bfloat16 or float16, as all tensors.
        a: ``[..., M, K]`` or ``[K]``.
        b: ``[K, N]``, ``[..., K, N]`` or ``[K]``.
        bias: ``[N]``, a scalar where `b` is 1-D, or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        preactivation: the saved ``pre``; without it and `output` it is formed from the inputs.
        output: the saved output, for relu, sigmoid and tanh only.
        needs: which of ``(grad_a, grad_b, grad_bias)`` are computed.
        out: tensors to write them into, which are returned themselves.
        accumulate: add into `out` for `grad_b` and `grad_bias`, which is then given for each that
            is needed; `grad_a` is overwritten.

    Returns:
        ``(grad_a, grad_b, grad_bias)``, each of its input's shape or None.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: The chain rule; the activations' formulas and papers are listed in ``go/activation``.

    Examples:
        >>> import epigrad, torch
        >>> a, b, grad = torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 4)
        >>> grads = epigrad.backward.matmul_bias_activation_backward(grad, a, b)
        >>> torch.allclose(grads[0], grad @ b.T), torch.allclose(grads[1], a.T @ grad), grads[2]
        (True, True, None)
    """
    return _gemm_backward(
        "matmul_bias_activation_backward",
        ("grad_a", "grad_b", "grad_bias"),
        (grad_output, a, b, bias, preactivation, output),
        activation,
        needs,
        out,
        accumulate,
    )


def linear_backward(
    grad_output: Data,
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    preactivation: Data | None = None,
    output: Data | None = None,
    needs: Sequence[bool] = (True, True, True),
    out: Sequence[Data | None] = (None, None, None),
    accumulate: bool = False,
) -> _Three[Data]:
    """Compute the gradients of ``act(input @ weight.T + bias)``.

    With ``grad_pre = grad_output * act'(pre)``: ``grad_input = grad_pre @ weight``,
    ``grad_weight = grad_pre.T @ input``, ``grad_bias = sum(grad_pre)``. In half types `grad_pre` is
    rounded once before the two products, and the bias is summed unrounded.

    Args:
        grad_output: ``[..., N]``; float32, float64, bfloat16 or float16, as all tensors.
        input: ``[..., K]``.
        weight: ``[N, K]``.
        bias: ``[N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        preactivation: the saved ``pre`` ``[..., N]``; without it and `output` it is formed from the
            inputs.
        output: the saved output ``[..., N]``, for relu, sigmoid and tanh only.
        needs: which of ``(grad_input, grad_weight, grad_bias)`` are computed.
        out: tensors to write them into, which are returned themselves.
        accumulate: add into `out` for `grad_weight` and `grad_bias`, which is then given for each
            that is needed; `grad_input` is overwritten.

    Returns:
        ``(grad_input, grad_weight, grad_bias)``, each of its input's shape or None.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: The chain rule; the activations' formulas and papers are listed in ``go/activation``.

    Examples:
        >>> import epigrad, torch
        >>> x, weight, bias, grad = (torch.ones(size) for size in ((5, 3), (4, 3), (4,), (5, 4)))
        >>> needs = (False, True, True)
        >>> epigrad.backward.linear_backward(grad, x, weight, bias, "relu", needs=needs)[2]
        tensor([5., 5., 5., 5.])
    """
    return _gemm_backward(
        "linear_backward",
        ("grad_input", "grad_weight", "grad_bias"),
        (grad_output, input, weight, bias, preactivation, output),
        activation,
        needs,
        out,
        accumulate,
    )


def activation_backward(grad_output: Data, input: Data, activation: ActivationLike, *, out: Data | None = None) -> Data:
    """Compute the gradient of ``act(input)``: ``grad_output * act'(input)``.

    Args:
        grad_output: shape of input; float32, float64, bfloat16 or float16.
        input: the forward's input.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        out: a tensor of input's shape and dtype to write into, which is returned itself.

    Returns:
        The gradient to `input`.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.activation`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.backward.activation_backward(torch.ones(2), torch.tensor([-1.0, 2.0]), "relu")
        tensor([0., 1.])
    """
    op = "activation_backward"
    call = call_of(op, activation)
    check_tensors(op, grad_output=grad_output, input=input)
    check_out(op, out)
    if out is not None and out is grad_output:  # which the core can do, for what it forms itself
        raise errors.InvalidProblemError(f"{op}: out: shares memory with grad_output, want an output of its own")
    needs, outputs = (True, False, False), (out, None, None)
    grad_input, _, _ = launch_into(call, (grad_output, input), needs, outputs)
    assert grad_input is not None
    return grad_input


def gated_activation_backward(
    grad_output: Data,
    input: Data,
    kind: str | Gated = "swiglu",
    dim: int = -1,
    *,
    gate: str = "second",
    out: Data | None = None,
) -> Data:
    """Compute the gradient of `epigrad.gated_activation`, in the places of value and gate.

    Without limits and offset it is ``grad_value = grad_output * act(gate)`` and
    ``grad_gate = grad_output * value * act'(gate)``.

    Args:
        grad_output: input's shape with half the size along `dim`; float32, float64, bfloat16 or
            float16, as all tensors.
        input: the forward's input.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        dim: the dimension that is split.
        gate: where the gates are along `dim`: the ``"second"`` or the ``"first"`` half, or the
            ``"odd"`` or the ``"even"`` places.
        out: a tensor of input's shape and dtype to write into, which is returned itself.

    Returns:
        The gradient to `input`.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: Dauphin et al. 2016, https://arxiv.org/abs/1612.08083; Shazeer 2020,
    https://arxiv.org/abs/2002.05202.

    Examples:
        >>> import epigrad, torch
        >>> x = torch.tensor([2.0, 3.0])
        >>> epigrad.backward.gated_activation_backward(torch.ones(1), x, "bilinear")
        tensor([3., 2.])
    """
    op = "gated_activation_backward"
    call = call_of(op, kind, dim, gate)
    check_tensors(op, grad_output=grad_output, input=input)
    return launch_one(call, (grad_output, input), out)


def gated_product_backward(
    grad_output: Data,
    value: Data,
    gate: Data,
    kind: str | Gated = "swiglu",
    *,
    needs: Sequence[bool] = (True, True),
    out: Sequence[Data | None] = (None, None),
) -> tuple[Data | None, Data | None]:
    """Compute the gradients of ``value * act(gate)``.

    ``grad_value = grad_output * act(gate)`` and ``grad_gate = grad_output * value * act'(gate)``.

    Args:
        grad_output: shape of value; float32, float64, bfloat16 or float16, as all tensors.
        value: the forward's value.
        gate: the forward's gate, of the same shape.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        needs: which of ``(grad_value, grad_gate)`` are computed.
        out: tensors to write them into, which are returned themselves.

    Returns:
        ``(grad_value, grad_gate)``, None where not needed.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.

    Examples:
        >>> import epigrad, torch
        >>> value, gate = torch.tensor([2.0]), torch.tensor([3.0])
        >>> epigrad.backward.gated_product_backward(torch.ones(1), value, gate, "reglu")
        (tensor([3.]), tensor([2.]))
    """
    op, names = "gated_product_backward", ("grad_value", "grad_gate")
    call = call_of(op, kind)
    check_tensors(op, grad_output=grad_output, value=value, gate=gate)
    mask, outputs = needs_mask(op, needs, names), out_tensors(op, out, names)
    grad_value, grad_gate = launch_into(call, (grad_output, value, gate), mask, outputs)
    return grad_value, grad_gate


def lerp_backward(
    grad_output: Data,
    start: Data | None,
    end: Data | None,
    weight: float | Data,
    *,
    needs: Sequence[bool] = (True, True, True),
    out: Sequence[Data | None] = (None, None, None),
) -> _Three[Data]:
    """Compute the gradients of ``start + weight * (end - start)``.

    ``grad_start = grad_output * (1 - weight)``, ``grad_end = grad_output * weight``,
    ``grad_weight = grad_output * (end - start)``, each summed to the shape of what broadcast.

    Args:
        grad_output: the shape that all broadcast to; float32, float64, bfloat16 or float16, as all
            tensors.
        start: the forward's start. It may be None unless `grad_weight` is needed; `grad_start` then
            has grad_output's shape.
        end: the forward's end, or None as `start`.
        weight: a number, which has no gradient, or a tensor.
        needs: which of ``(grad_start, grad_end, grad_weight)`` are computed.
        out: tensors to write them into, which are returned themselves.

    Returns:
        ``(grad_start, grad_end, grad_weight)``, None where not needed.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, no start or end, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `torch.lerp`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.backward.lerp_backward(torch.ones(2), None, None, 0.25)
        (tensor([0.7500, 0.7500]), tensor([0.2500, 0.2500]), None)
    """
    op, names = "lerp_backward", ("grad_start", "grad_end", "grad_weight")
    parameters, tensor = lerp_weight(op, weight)
    call = Call(op, None, parameters, backend=selection.current())
    check_tensors(op, grad_output=grad_output)
    mask, outputs = needs_mask(op, needs, names), out_tensors(op, out, names)
    inputs = (grad_output, start, end, tensor)
    grad_start, grad_end, grad_weight = launch_into(call, inputs, mask, outputs)
    return grad_start, grad_end, grad_weight


def prelu_backward(
    grad_output: Data,
    input: Data,
    weight: Data,
    *,
    needs: Sequence[bool] = (True, True),
    out: Sequence[Data | None] = (None, None),
) -> tuple[Data | None, Data | None]:
    """Compute the gradients of ``input if input > 0 else weight * input``.

    ``grad_input = grad_output * (1 if input > 0 else weight)``, and ``grad_weight`` is
    ``grad_output * (0 if input > 0 else input)``, summed to weight's shape.

    Args:
        grad_output: shape of input; float32, float64, bfloat16 or float16, as all tensors.
        input: the forward's input.
        weight: the forward's weight: one element, or ``[C]`` where C is the input's second size.
        needs: which of ``(grad_input, grad_weight)`` are computed.
        out: tensors to write them into, which are returned themselves.

    Returns:
        ``(grad_input, grad_weight)``, None where not needed.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852.

    Examples:
        >>> import epigrad, torch
        >>> x, weight = torch.tensor([-2.0, 4.0]), torch.tensor([0.25])
        >>> epigrad.backward.prelu_backward(torch.ones(2), x, weight)
        (tensor([0.2500, 1.0000]), tensor([-2.]))
    """
    op, names = "prelu_backward", ("grad_input", "grad_weight")
    check_tensors(op, grad_output=grad_output, input=input, weight=weight)
    mask, outputs = needs_mask(op, needs, names), out_tensors(op, out, names)
    call = Call(op, backend=selection.current())
    grad_input, grad_weight = launch_into(call, (grad_output, input, weight), mask, outputs)
    return grad_input, grad_weight


def xielu_backward(
    grad_output: Data,
    input: Data,
    alpha_p: Data,
    alpha_n: Data,
    beta: float = 0.5,
    *,
    needs: Sequence[bool] = (True, True, True),
    out: Sequence[Data | None] = (None, None, None),
) -> _Three[Data]:
    """Compute the gradients of xIELU.

    With ``a_p = softplus(alpha_p)``, ``a_n = beta + softplus(alpha_n)`` and the logistic function
    ``s``: ``grad_input`` is ``grad_output`` times ``2 * a_p * input + beta`` where input > 0, else
    times ``a_n * (exp(input) - 1) + beta``. ``grad_alpha_p`` is the sum of
    ``grad_output * input**2 * s(alpha_p)`` where input > 0, and ``grad_alpha_n`` that of
    ``grad_output * (exp(input) - 1 - input) * s(alpha_n)`` where it is not.

    Args:
        grad_output: shape of input; float32, float64, bfloat16 or float16, as all tensors.
        input: the forward's input.
        alpha_p: one element, before softplus.
        alpha_n: one element, before softplus.
        beta: a number.
        needs: which of ``(grad_input, grad_alpha_p, grad_alpha_n)`` are computed.
        out: tensors to write them into, which are returned themselves.

    Returns:
        ``(grad_input, grad_alpha_p, grad_alpha_n)``, None where not needed.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, a beta that is not finite, overlapping
            `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, not a tensor, or a beta that
            is not a number.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: Huang and Schlag 2024, https://arxiv.org/abs/2411.13010.

    Examples:
        >>> import epigrad, torch
        >>> alpha = torch.tensor([0.0])
        >>> epigrad.backward.xielu_backward(torch.ones(2), torch.tensor([0.0, 2.0]), alpha, alpha)
        (tensor([0.5000, 3.2726]), tensor([2.]), tensor([0.]))
    """
    op, names = "xielu_backward", ("grad_input", "grad_alpha_p", "grad_alpha_n")
    call = Call(op, None, (finite(op, "beta", beta),), backend=selection.current())
    check_tensors(op, grad_output=grad_output, input=input, alpha_p=alpha_p, alpha_n=alpha_n)
    mask, outputs = needs_mask(op, needs, names), out_tensors(op, out, names)
    inputs = (grad_output, input, alpha_p, alpha_n)
    grad_input, grad_alpha_p, grad_alpha_n = launch_into(call, inputs, mask, outputs)
    return grad_input, grad_alpha_p, grad_alpha_n


def gated_linear_backward(
    grad_output: Data,
    input: Data,
    weight_value: Data,
    weight_gate: Data,
    bias_value: Data | None = None,
    bias_gate: Data | None = None,
    kind: str | Gated = "swiglu",
    *,
    preactivation: Data | None = None,
    needs: Sequence[bool] = (True,) * 5,
    out: Sequence[Data | None] = (None,) * 5,
    accumulate: bool = False,
) -> _Five[Data]:
    """Compute the gradients of ``value * act(gate)`` of two layers of one input.

    With ``value = input @ weight_value.T + bias_value`` and ``gate`` likewise, and ``grad_value``
    and ``grad_gate`` those of `gated_product_backward`:
    ``grad_input = grad_value @ weight_value + grad_gate @ weight_gate``,
    ``grad_weight_value = grad_value.T @ input``, and each bias is a sum over rows. In half types
    ``grad_value`` and ``grad_gate`` are rounded once before the products, biases are summed
    unrounded, and `grad_input` is rounded after each of its two products.

    Args:
        grad_output: ``[..., H]``; float32, float64, bfloat16 or float16, as all tensors.
        input: ``[..., K]``.
        weight_value: ``[H, K]``.
        weight_gate: ``[H, K]``.
        bias_value: ``[H]`` or None.
        bias_gate: ``[H]`` or None.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        preactivation: the saved values and gates ``[..., 2*H]``, values first; without them, they
            are formed again.
        needs: which of ``(grad_input, grad_weight_value, grad_weight_gate, grad_bias_value,
            grad_bias_gate)`` are computed.
        out: tensors to write them into, which are returned themselves.
        accumulate: add into `out` for weights and biases, which is then given for each that is
            needed; `grad_input` is overwritten.

    Returns:
        The five gradients in the order of `needs`, each of its input's shape or None.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: The chain rule; `epigrad.gated_linear`.

    Examples:
        >>> import epigrad, torch
        >>> x, up, gate, grad = (torch.ones(size) for size in ((5, 3), (4, 3), (4, 3), (5, 4)))
        >>> epigrad.backward.gated_linear_backward(grad, x, up, gate, kind="reglu")[0][0]
        tensor([24., 24., 24.])
    """
    op = "gated_linear_backward"
    call = call_of(op, kind)
    check_tensors(op, grad_output=grad_output, input=input, weight_value=weight_value, weight_gate=weight_gate)
    inputs = (grad_output, input, weight_value, weight_gate, bias_value, bias_gate, preactivation)
    return _layers_backward(call, _GATED_LINEAR, inputs, needs, out, accumulate)  # type: ignore[return-value]


def mlp_backward(
    grad_output: Data,
    input: Data,
    weight1: Data,
    bias1: Data | None,
    weight2: Data,
    bias2: Data | None,
    activation: ActivationLike = "gelu_tanh",
    *,
    preactivation: Data | None = None,
    needs: Sequence[bool] = (True,) * 5,
    out: Sequence[Data | None] = (None,) * 5,
    accumulate: bool = False,
) -> _Five[Data]:
    """Compute the gradients of ``act(input @ weight1.T + bias1) @ weight2.T + bias2``.

    With ``hidden = act(pre)`` and ``grad_pre = (grad_output @ weight2) * act'(pre)``:
    ``grad_weight2 = grad_output.T @ hidden``, ``grad_weight1 = grad_pre.T @ input``,
    ``grad_input = grad_pre @ weight1``, and each bias is a sum over rows. The hidden activation is
    formed again from ``pre``.

    Args:
        grad_output: ``[..., N]``; float32, float64, bfloat16 or float16, as all tensors.
        input: ``[..., K]``.
        weight1: ``[H, K]``.
        bias1: ``[H]`` or None.
        weight2: ``[N, H]``.
        bias2: ``[N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        preactivation: the saved ``pre`` ``[..., H]``; without it, it is formed again.
        needs: which of ``(grad_input, grad_weight1, grad_bias1, grad_weight2, grad_bias2)`` are
            computed.
        out: tensors to write them into, which are returned themselves.
        accumulate: add into `out` for weights and biases, which is then given for each that is
            needed; `grad_input` is overwritten.

    Returns:
        The five gradients in the order of `needs`, each of its input's shape or None.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: The chain rule; `epigrad.mlp`.

    Examples:
        >>> import epigrad, torch
        >>> x, up, down, grad = (torch.ones(size) for size in ((5, 3), (4, 3), (2, 4), (5, 2)))
        >>> needs = (False, False, False, True, False)
        >>> epigrad.backward.mlp_backward(grad, x, up, None, down, None, "relu", needs=needs)[3]
        tensor([[15., 15., 15., 15.],
                [15., 15., 15., 15.]])
    """
    op = "mlp_backward"
    call = call_of(op, activation)
    check_tensors(op, grad_output=grad_output, input=input, weight1=weight1, weight2=weight2)
    inputs = (grad_output, input, weight1, bias1, weight2, bias2, preactivation)
    return _layers_backward(call, _MLP, inputs, needs, out, accumulate)  # type: ignore[return-value]


def gated_mlp_backward(
    grad_output: Data,
    input: Data,
    weight_in: Data,
    bias_in: Data | None,
    weight_out: Data,
    bias_out: Data | None,
    kind: str | Gated = "swiglu",
    *,
    gate: str = "second",
    preactivation: Data | None = None,
    needs: Sequence[bool] = (True,) * 5,
    out: Sequence[Data | None] = (None,) * 5,
    accumulate: bool = False,
) -> _Five[Data]:
    """Compute the gradients of ``gated_activation(pre) @ weight_out.T + bias_out``.

    With ``pre = input @ weight_in.T + bias_in``, ``hidden = gated_activation(pre)``, and
    ``grad_pre`` the gradient of `gated_activation` for ``grad_output @ weight_out``:
    ``grad_weight_out = grad_output.T @ hidden``, ``grad_weight_in = grad_pre.T @ input``,
    ``grad_input = grad_pre @ weight_in``, and each bias is a sum over rows. ``hidden`` is formed
    again from ``pre``.

    Args:
        grad_output: ``[..., N]``; float32, float64, bfloat16 or float16, as all tensors.
        input: ``[..., K]``.
        weight_in: ``[2*H, K]``: value and gate rows, in the order that `gate` tells.
        bias_in: ``[2*H]`` or None.
        weight_out: ``[N, H]``.
        bias_out: ``[N]`` or None.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        gate: where the gates are among weight_in's rows: the ``"second"`` or the ``"first"`` half,
            or the ``"odd"`` or the ``"even"`` rows.
        preactivation: the saved ``pre`` ``[..., 2*H]``; without it, it is formed again.
        needs: which of ``(grad_input, grad_weight_in, grad_bias_in, grad_weight_out,
            grad_bias_out)`` are computed.
        out: tensors to write them into, which are returned themselves.
        accumulate: add into `out` for weights and biases, which is then given for each that is
            needed; `grad_input` is overwritten.

    Returns:
        The five gradients in the order of `needs`, each of its input's shape or None.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: The chain rule; `epigrad.gated_mlp`.

    Examples:
        >>> import epigrad, torch
        >>> x, both, down, grad = (torch.ones(size) for size in ((5, 3), (8, 3), (2, 4), (5, 2)))
        >>> epigrad.backward.gated_mlp_backward(grad, x, both, None, down, None, "reglu")[3]
        tensor([[45., 45., 45., 45.],
                [45., 45., 45., 45.]])
    """
    op = "gated_mlp_backward"
    call = call_of(op, kind, 0, gate)
    check_tensors(op, grad_output=grad_output, input=input, weight_in=weight_in, weight_out=weight_out)
    inputs = (grad_output, input, weight_in, bias_in, weight_out, bias_out, preactivation)
    return _layers_backward(call, _GATED_MLP, inputs, needs, out, accumulate)  # type: ignore[return-value]


def grouped_linear_backward(
    grad_output: Data,
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    offsets: Data,
    preactivation: Data | None = None,
    needs: Sequence[bool] = (True, True, True),
    out: Sequence[Data | None] = (None, None, None),
    accumulate: bool = False,
) -> _Three[Data]:
    """Compute the gradients of ``act(input[t] @ weight[e].T + bias[e])``, of row t in group e.

    With ``grad_pre = grad_output * act'(pre)``: ``grad_input[t] = grad_pre[t] @ weight[e]``,
    ``grad_weight[e] = grad_pre.T @ input`` of the group's rows, and ``grad_bias[e]`` is the sum of
    ``grad_pre`` over them. Rows of no group have gradient 0, and a group without rows too.

    Args:
        grad_output: ``[T, N]``; float32, float64, bfloat16 or float16, as all tensors but
            `offsets`.
        input: ``[T, K]``.
        weight: ``[E, N, K]``.
        bias: ``[E, N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        offsets: ``[E]``, int32 or int64: where each group's rows end.
        preactivation: the saved ``pre`` ``[T, N]``; without it, it is formed from the inputs.
        needs: which of ``(grad_input, grad_weight, grad_bias)`` are computed.
        out: tensors to write them into, which are returned themselves.
        accumulate: add into `out` for `grad_weight` and `grad_bias`, which is then given for each
            that is needed; `grad_input` is overwritten.

    Returns:
        ``(grad_input, grad_weight, grad_bias)``, each of its input's shape or None.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`;
            on the CPU also offsets that make no sense.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: The chain rule; `epigrad.grouped_linear`.

    Examples:
        >>> import epigrad, torch
        >>> rows, weight, grad = torch.ones(3, 2), torch.ones(2, 4, 2), torch.ones(3, 4)
        >>> ends = torch.tensor([1, 3])
        >>> epigrad.backward.grouped_linear_backward(grad, rows, weight, offsets=ends)[1][:, 0]
        tensor([[1., 1.],
                [2., 2.]])
    """
    op = "grouped_linear_backward"
    call = call_of(op, activation)
    check_tensors(op, grad_output=grad_output, input=input, weight=weight, offsets=offsets)
    inputs = (grad_output, input, weight, bias, offsets, preactivation)
    return _layers_backward(call, _GROUPED_LINEAR, inputs, needs, out, accumulate)  # type: ignore[return-value]


def experts_backward(
    grad_output: Data,
    input: Data,
    index: Data,
    scale: Data,
    weight_in: Data,
    bias_in: Data | None,
    weight_out: Data,
    bias_out: Data | None,
    kind: ActivationLike | Gated = "swiglu",
    *,
    gate: str = "second",
    preactivation: Data | None = None,
    needs: Sequence[bool] = (True,) * 6,
    out: Sequence[Data | None] = (None,) * 6,
    accumulate: bool = False,
) -> _Six[Data]:
    """Compute the gradients of a mixture of feed-forward experts.

    With ``hidden`` and ``pre`` of the slot of token t and expert e, and ``g = grad_output[t] @
    weight_out[e]``: ``grad_scale = hidden @ g + bias_out[e] @ grad_output[t]``, ``grad_pre`` is the
    gradient of the activation for ``scale * g``, ``grad_weight_out[e]`` sums ``grad_output[t] *
    (scale * hidden)`` over the expert's slots, ``grad_weight_in[e]`` sums ``grad_pre * input[t]``,
    and ``grad_input[t]`` sums ``grad_pre @ weight_in[e]`` in the order of j.

    Args:
        grad_output: ``[T, K]``; float32, float64, bfloat16 or float16, as all tensors but `index`.
        input: ``[T, K]``.
        index: ``[T, k]``, int64. One outside of 0 to E-1 selects nothing.
        scale: ``[T, k]``; may be float32 beside half types.
        weight_in: ``[E, 2*H, K]``, or ``[E, H, K]`` if `kind` is an activation.
        bias_in: ``[E, 2*H]``, or ``[E, H]``, or None.
        weight_out: ``[E, K, H]``.
        bias_out: ``[E, K]`` or None.
        kind: a gated kind or an activation: a name, an `epigrad.Gated` or an `epigrad.Activation`.
        gate: where the gates are among weight_in's rows: the ``"second"`` or the ``"first"`` half,
            or the ``"odd"`` or the ``"even"`` rows.
        preactivation: the saved ``pre`` ``[T*k, 2*H]`` (or ``[T*k, H]``); without it, it is formed
            again.
        needs: which of ``(grad_input, grad_scale, grad_weight_in, grad_bias_in, grad_weight_out,
            grad_bias_out)`` are computed.
        out: tensors to write them into, which are returned themselves.
        accumulate: add into `out` for weights and biases, which is then given for each that is
            needed; `grad_input` and `grad_scale` are overwritten.

    Returns:
        The six gradients in the order of `needs`, each of its input's shape or None.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        UnsupportedError: (a ``NotImplementedError``) more than 8192 experts on CUDA.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: The chain rule; `epigrad.experts`.

    Examples:
        >>> import epigrad, torch
        >>> x, index, scale = torch.ones(2, 3), torch.tensor([[0], [1]]), torch.ones(2, 1)
        >>> up, down, grad = torch.ones(2, 4, 3), torch.ones(2, 3, 4), torch.ones(2, 3)
        >>> tensors = (grad, x, index, scale, up, None, down, None)
        >>> epigrad.backward.experts_backward(*tensors, "relu")[1]
        tensor([[36.],
                [36.]])
    """
    op = "experts_backward"
    call = call_of(op, kind, 0, gate)
    check_tensors(op, grad_output=grad_output, input=input, index=index, scale=scale)
    check_tensors(op, weight_in=weight_in, weight_out=weight_out)
    inputs = (grad_output, input, index, scale, weight_in, bias_in, weight_out, bias_out, preactivation)
    return _layers_backward(call, _EXPERTS, inputs, needs, out, accumulate)  # type: ignore[return-value]


_GATED_LINEAR = ("grad_input", "grad_weight_value", "grad_weight_gate", "grad_bias_value", "grad_bias_gate")
_MLP = ("grad_input", "grad_weight1", "grad_bias1", "grad_weight2", "grad_bias2")
_GROUPED_LINEAR = ("grad_input", "grad_weight", "grad_bias")
_EXPERTS = ("grad_input", "grad_scale", "grad_weight_in", "grad_bias_in", "grad_weight_out", "grad_bias_out")
_GATED_MLP = ("grad_input", "grad_weight_in", "grad_bias_in", "grad_weight_out", "grad_bias_out")


def _gemm_backward(
    op: str,
    names: tuple[str, str, str],
    inputs: tuple[Data | None, ...],
    activation: ActivationLike,
    needs: Sequence[bool],
    out: Sequence[Data | None],
    accumulate: bool,
) -> _Three[Data]:
    call = call_of(op, activation)
    # The names of a and b are those of their gradients.
    check_tensors(op, **{"grad_output": inputs[0], names[0][5:]: inputs[1], names[1][5:]: inputs[2]})
    return _layers_backward(call, names, inputs, needs, out, accumulate)  # type: ignore[return-value]


def _layers_backward(
    call: Call,
    names: tuple[str, ...],
    inputs: tuple[Data | None, ...],
    needs: Sequence[bool],
    out: Sequence[Data | None],
    accumulate: bool,
) -> tuple[Data | None, ...]:
    """The gradients to the operands behind grad_output; those of weights and biases may be added
    into.
    """
    op = call.op
    mask, outputs = needs_mask(op, needs, names), out_tensors(op, out, names)
    if accumulate:
        call = call._replace(accumulate=True)
        operands = inputs[1:] if op != "experts_backward" else (inputs[1], *inputs[3:])
        for name, need, operand, output in zip(names[1:], mask[1:], operands[1:], outputs[1:], strict=False):
            if need and operand is not None and output is None and name != "grad_scale":
                raise errors.InvalidProblemError(
                    f"{op}: out: no tensor for {name}, want one to add into since accumulate is True"
                )
    return launch_into(call, inputs, mask, outputs)
