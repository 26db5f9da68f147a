"""The differentiable functions of epigrad.

Each checks Python types; the core checks everything else. A call goes through `torch.ops.epigrad`
where PyTorch has to see an operator, else straight to the core, with autograd or without. Where
nothing requires a gradient, nothing is kept and no preactivation is formed.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function

from epigrad import errors, ops
from epigrad._autograd.functions import Elementwise, Layers, kept
from epigrad._autograd.main_grad import refuse_tracing, sinks_of, with_wide_views
from epigrad._core import invariance, loader, selection
from epigrad._core.adapters import Scales, operands_of, scaled, with_scales
from epigrad._core.call import Call, call_of, kind_of
from epigrad._core.checks import check_save, finite, lerp_weight, overridden, require_tensors
from epigrad._core.launcher import DISPATCHER, Tensors, only, operator_arguments
from epigrad._core.mixtures import InRows
from epigrad._core.tables import OPS, row_of
from epigrad._core.torch_state import any_autocast, constant_to_dynamo, is_traced, recorded, watched, with_adapters
from epigrad._core.values import LowRank
from epigrad._core.wide import any_switched, may_be_wide
from epigrad.kinds import ActivationLike, Gated, arguments_of

__all__ = [
    "activation",
    "experts",
    "gated_activation",
    "gated_linear",
    "gated_mlp",
    "gated_product",
    "grouped_linear",
    "lerp",
    "linear",
    "matmul_bias_activation",
    "mlp",
    "prelu",
    "xielu",
]


def matmul_bias_activation(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: ActivationLike = "none",
    *,
    save: str = "auto",
) -> Tensor:
    """Compute ``act(a @ b + bias)``.

    The activation is applied to the accumulator before it is rounded to the storage dtype.

    Args:
        a: ``[..., M, K]`` or ``[K]``; float32, float64, bfloat16 or float16, as all tensors here.
        b: ``[K, N]``, ``[..., K, N]`` or ``[K]``; batch dimensions broadcast as in `torch.matmul`.
        bias: ``[N]``, a scalar where `b` is 1-D, or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        save: what is kept for backward. ``"preactivation"``; ``"recompute"``: the inputs only;
            ``"auto"``: the output for relu, sigmoid and tanh, nothing for ``"none"``, else the
            preactivation.

    Returns:
        A contiguous tensor of the shape that `torch.matmul` gives.

    Gradients:
        With ``pre = a @ b + bias`` and ``grad_pre = grad_output * act'(pre)``: ``grad_a = grad_pre
        @ b.T``, ``grad_b = a.T @ grad_pre``, ``grad_bias = sum(grad_pre)``, each summed over the
        dimensions that broadcast. In half types `grad_pre` is rounded once to the storage dtype
        before the two products, and the bias is summed unrounded.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes or `save`, an unknown activation.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: `torch.matmul`; docs/kinds.md has the activations' formulas.

    Examples:
        >>> import epigrad, torch
        >>> a, b, bias = torch.ones(2, 3), torch.ones(3, 4), torch.full((4,), -5.0)
        >>> epigrad.matmul_bias_activation(a, b, bias, "relu").shape
        torch.Size([2, 4])
        >>> out = epigrad.matmul_bias_activation(a, b, activation="gelu")
        >>> torch.allclose(out, torch.nn.functional.gelu(a @ b))
        True
    """
    return _layers("matmul_bias_activation", (a, b, bias), activation, save)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: ActivationLike = "none",
    *,
    save: str = "auto",
    adapter: LowRank | None = None,
) -> Tensor:
    """Compute ``act(input @ weight.T + bias)``, as `torch.nn.functional.linear` with an activation.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight: ``[N, K]``.
        bias: ``[N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        save: what is kept for backward. ``"preactivation"``; ``"recompute"``: the inputs only;
            ``"auto"``: the output for relu, sigmoid and tanh, nothing for ``"none"``, else the
            preactivation.
        adapter: an `epigrad.LowRank` that updates `weight` (LoRA), or None.

    Returns:
        A contiguous tensor ``[..., N]``.

    Gradients:
        With ``grad_pre = grad_output * act'(pre)``: ``grad_input = grad_pre @ weight``,
        ``grad_weight = grad_pre.T @ input``, ``grad_bias = sum(grad_pre)``. In half types
        `grad_pre` is rounded once before the two products, and the bias is summed unrounded.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes or `save`, an unknown activation.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: `torch.nn.functional.linear`; docs/kinds.md has the activations' formulas.

    Examples:
        >>> import epigrad, torch
        >>> x, weight, bias = torch.ones(5, 3), torch.ones(4, 3), torch.zeros(4)
        >>> out = epigrad.linear(x, weight, bias, "silu")
        >>> torch.allclose(out, torch.nn.functional.silu(x @ weight.T + bias))
        True
    """
    return _layers("linear", (input, weight, bias), activation, save, adapters=(adapter,))


def activation(input: Tensor, activation: ActivationLike) -> Tensor:
    """Compute ``act(input)``, elementwise.

    Args:
        input: any shape; float32, float64, bfloat16 or float16. It is what is kept for backward.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.

    Returns:
        A contiguous tensor of input's shape.

    Gradients:
        ``grad_input = grad_output * act'(input)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown activation.
        DTypeError: (a ``TypeError``) another dtype or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: docs/kinds.md has the formulas, and who uses them.

    Examples:
        >>> import epigrad, torch
        >>> x = torch.linspace(-2, 2, 5)
        >>> torch.allclose(epigrad.activation(x, "silu"), torch.nn.functional.silu(x))
        True
    """
    return _elementwise("activation", (input,), None, activation)


def gated_activation(input: Tensor, kind: str | Gated = "swiglu", dim: int = -1, *, gate: str = "second") -> Tensor:
    """Compute a gated kind of the halves of `input` along `dim`, one the value and one the gate.

    Without limits and offset that is ``value * phi(gate)``, but for ``"situ_glu"``. `epigrad.Gated`
    has the whole formula.

    Args:
        input: any shape whose size along `dim` is even; float32, float64, bfloat16 or float16.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        dim: the dimension that is split.
        gate: where the gates are along `dim`: the ``"second"`` half, as in
            `torch.nn.functional.glu`, the ``"first"``, or at the ``"odd"`` or the ``"even"``
            places. With ``"even"`` the gate is ``input[..., ::2]``, as in gpt-oss.

    Returns:
        A contiguous tensor of input's shape with half the size along `dim`.

    Gradients:
        Without limits and offset it is ``grad_value = grad_output * act(gate)`` and ``grad_gate =
        grad_output * value * act'(gate)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) a missing or odd dim, an unknown kind or gate.
        DTypeError: (a ``TypeError``) another dtype or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: Dauphin et al. 2016, https://arxiv.org/abs/1612.08083; Shazeer 2020,
    https://arxiv.org/abs/2002.05202.

    Examples:
        >>> import epigrad, torch
        >>> x = torch.arange(8.0).reshape(2, 4)
        >>> torch.allclose(epigrad.gated_activation(x, "glu"), torch.nn.functional.glu(x))
        True
        >>> epigrad.gated_activation(x, "swiglu", dim=0).shape
        torch.Size([1, 4])
        >>> limited = epigrad.Gated("swiglu", limit=7)
        >>> epigrad.gated_activation(torch.tensor([100.0, 1.0]), limited)
        tensor([5.1174])
        >>> epigrad.gated_activation(x, "bilinear", gate="even")
        tensor([[ 0.,  6.],
                [20., 42.]])
    """
    return _elementwise("gated_activation", (input,), None, kind, dim, gate)


def gated_product(value: Tensor, gate: Tensor, kind: str | Gated = "swiglu") -> Tensor:
    """Compute a gated kind of two separate tensors.

    Without limits and offset that is ``value * phi(gate)``, but for ``"situ_glu"``. `epigrad.Gated`
    has the whole formula.

    Args:
        value: any shape; float32, float64, bfloat16 or float16.
        gate: the shape and dtype of `value`.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.

    Returns:
        A contiguous tensor of value's shape.

    Gradients:
        ``grad_value = grad_output * act(gate)`` and ``grad_gate = grad_output * value *
        act'(gate)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) shapes that differ, an unknown kind.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.

    Examples:
        >>> import epigrad, torch
        >>> value, gate = torch.ones(2, 3), torch.linspace(-1, 1, 6).reshape(2, 3)
        >>> torch.allclose(epigrad.gated_product(value, gate), torch.nn.functional.silu(gate))
        True
        >>> epigrad.gated_product(value, gate * 100, epigrad.Gated("reglu", limit=7))[1]
        tensor([7., 7., 7.])
    """
    return _elementwise("gated_product", (value, gate), None, kind)


def lerp(start: Tensor, end: Tensor, weight: float | Tensor) -> Tensor:
    """Compute ``start + weight * (end - start)``, as `torch.lerp`.

    Args:
        start: any shape; float32, float64, bfloat16 or float16.
        end: a shape that broadcasts with `start`.
        weight: a number, used in full precision, or a tensor that broadcasts with the others.

    Returns:
        A contiguous tensor of the shape that all broadcast to. Each gradient has its input's shape.

    Gradients:
        ``grad_start = grad_output * (1 - weight)``, ``grad_end = grad_output * weight``,
        ``grad_weight = grad_output * (end - start)``, each summed to the shape of what broadcast.

    Raises:
        InvalidProblemError: (a ``ValueError``) shapes that do not broadcast.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: `torch.lerp`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.lerp(torch.zeros(3), torch.full((3,), 10.0), torch.tensor([0.0, 0.5, 1.0]))
        tensor([ 0.,  5., 10.])
    """
    parameters, tensor = lerp_weight("lerp", weight)
    call = Call("lerp", parameters=parameters, backend=selection.current())
    return _elementwise("lerp", (start, end, tensor), call)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Compute ``input if input > 0 else weight * input``, elementwise, as
    `torch.nn.functional.prelu`.

    Under autocast the weight is cast to input's dtype.

    Args:
        input: any shape; float32, float64, bfloat16 or float16, as all tensors here.
        weight: one element, or ``[C]`` where C is the input's second size.

    Returns:
        A contiguous tensor of input's shape. At 0 the slope is `weight`.

    Gradients:
        ``grad_input = grad_output * (1 if input > 0 else weight)``, and ``grad_weight`` is
        ``grad_output * (0 if input > 0 else input)``, summed to weight's shape.

    Raises:
        InvalidProblemError: (a ``ValueError``) a weight of another shape.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852.

    Examples:
        >>> import epigrad, torch
        >>> x, weight = torch.tensor([-2.0, 4.0]), torch.tensor([0.25], requires_grad=True)
        >>> out = epigrad.prelu(x, weight)
        >>> out.detach()
        tensor([-0.5000,  4.0000])
        >>> out.sum().backward()
        >>> weight.grad
        tensor([-2.])
    """
    call = Call("prelu", backend=selection.current())
    return _elementwise("prelu", (input, weight), call)


def xielu(input: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: float = 0.5) -> Tensor:
    """Compute xIELU, the activation of Apertus, elementwise.

    With ``a_p = softplus(alpha_p)`` and ``a_n = beta + softplus(alpha_n)``, it is
    ``a_p * input**2 + beta * input`` where input > 0, else
    ``a_n * (exp(input) - 1 - input) + beta * input``. At 0 the slope is `beta`.

    Under autocast the alphas are cast to input's dtype.

    Args:
        input: any shape; float32, float64, bfloat16 or float16, as all tensors here.
        alpha_p: one element, before softplus.
        alpha_n: one element, before softplus.
        beta: a number.

    Returns:
        A contiguous tensor of input's shape.

    Gradients:
        With ``a_p = softplus(alpha_p)``, ``a_n = beta + softplus(alpha_n)`` and the logistic
        function ``s``: ``grad_input`` is ``grad_output`` times ``2 * a_p * input + beta`` where
        input > 0, else times ``a_n * (exp(input) - 1) + beta``. ``grad_alpha_p`` is the sum of
        ``grad_output * input**2 * s(alpha_p)`` where input > 0, and ``grad_alpha_n`` that of
        ``grad_output * (exp(input) - 1 - input) * s(alpha_n)`` where it is not.

    Raises:
        InvalidProblemError: (a ``ValueError``) an alpha of another shape, a beta that is not
            finite.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, not a tensor, or a beta that
            is not a number.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: Huang and Schlag 2024, https://arxiv.org/abs/2411.13010.

    Examples:
        >>> import epigrad, torch
        >>> x, alpha_n = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([0.0])
        >>> alpha_p = torch.tensor([0.0], requires_grad=True)
        >>> out = epigrad.xielu(x, alpha_p, alpha_n)
        >>> out.detach()
        tensor([-0.0611,  0.0000,  1.1931])
        >>> out.sum().backward()
        >>> alpha_p.grad
        tensor([0.5000])
    """
    call = Call("xielu", parameters=(finite("xielu", "beta", beta),), backend=selection.current())
    return _elementwise("xielu", (input, alpha_p, alpha_n), call)


def gated_linear(
    input: Tensor,
    weight_value: Tensor,
    weight_gate: Tensor,
    bias_value: Tensor | None = None,
    bias_gate: Tensor | None = None,
    kind: str | Gated = "swiglu",
    *,
    save: str = "auto",
    adapter_value: LowRank | None = None,
    adapter_gate: LowRank | None = None,
) -> Tensor:
    """Compute a gated kind of ``value = input @ weight_value.T + bias_value`` and
    ``gate = input @ weight_gate.T + bias_gate``.

    `epigrad.Gated` has the formula.

    The weights are two tensors, as Llama's ``up_proj`` and ``gate_proj``. `gated_mlp` takes them as
    one.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight_value: ``[H, K]``.
        weight_gate: ``[H, K]``.
        bias_value: ``[H]`` or None.
        bias_gate: ``[H]`` or None.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        save: ``"auto"`` and ``"preactivation"`` keep ``[value, gate]`` for backward;
            ``"recompute"`` keeps the inputs only.
        adapter_value: an `epigrad.LowRank` that updates `weight_value` (LoRA), or None.
        adapter_gate: an `epigrad.LowRank` that updates `weight_gate` (LoRA), or None.

    Returns:
        A contiguous tensor ``[..., H]``.

    Gradients:
        With ``value = input @ weight_value.T + bias_value`` and ``gate`` likewise, and
        ``grad_value`` and ``grad_gate`` those of `gated_product_backward`: ``grad_input =
        grad_value @ weight_value + grad_gate @ weight_gate``, ``grad_weight_value = grad_value.T @
        input``, and each bias is a sum over rows. In half types ``grad_value`` and ``grad_gate``
        are rounded once before the products, and biases are summed unrounded. On CUDA
        `grad_input` may be rounded after each of its two products; elsewhere it is rounded once.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes or `save`, an unknown kind.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.

    Examples:
        >>> import epigrad, torch
        >>> x, up, gate = torch.ones(5, 3), torch.full((4, 3), 0.1), torch.full((4, 3), 0.2)
        >>> out = epigrad.gated_linear(x, up, gate, kind="swiglu")
        >>> torch.allclose(out, (x @ up.T) * torch.nn.functional.silu(x @ gate.T))
        True
    """
    return _layers(
        "gated_linear",
        (input, weight_value, weight_gate, bias_value, bias_gate),
        kind,
        save,
        adapters=(adapter_value, adapter_gate),
    )


def mlp(
    input: Tensor,
    weight1: Tensor,
    bias1: Tensor | None,
    weight2: Tensor,
    bias2: Tensor | None,
    activation: ActivationLike = "gelu_tanh",
    *,
    save: str = "auto",
    adapter1: LowRank | None = None,
    adapter2: LowRank | None = None,
) -> Tensor:
    """Compute ``act(input @ weight1.T + bias1) @ weight2.T + bias2``.

    The hidden activation is never saved for backward.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight1: ``[H, K]``.
        bias1: ``[H]`` or None.
        weight2: ``[N, H]``.
        bias2: ``[N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        save: ``"auto"`` and ``"preactivation"`` keep the first layer's preactivation for backward;
            ``"recompute"`` keeps the inputs only.
        adapter1: an `epigrad.LowRank` that updates `weight1` (LoRA), or None.
        adapter2: an `epigrad.LowRank` that updates `weight2` (LoRA), or None.

    Returns:
        A contiguous tensor ``[..., N]``.

    Gradients:
        With ``hidden = act(pre)`` and ``grad_pre = (grad_output @ weight2) * act'(pre)``:
        ``grad_weight2 = grad_output.T @ hidden``, ``grad_weight1 = grad_pre.T @ input``,
        ``grad_input = grad_pre @ weight1``, and each bias is a sum over rows. The hidden activation
        is formed again from ``pre``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes or `save`, an unknown activation.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: Vaswani et al. 2017, section 3.3, https://arxiv.org/abs/1706.03762.

    Examples:
        >>> import epigrad, torch
        >>> x, up, down = torch.ones(5, 3), torch.full((8, 3), 0.1), torch.full((2, 8), 0.1)
        >>> out = epigrad.mlp(x, up, None, down, None, "relu")
        >>> torch.allclose(out, torch.relu(x @ up.T) @ down.T)
        True
    """
    return _layers("mlp", (input, weight1, bias1, weight2, bias2), activation, save, adapters=(adapter1, adapter2))


def gated_mlp(
    input: Tensor,
    weight_in: Tensor,
    bias_in: Tensor | None,
    weight_out: Tensor,
    bias_out: Tensor | None,
    kind: str | Gated = "swiglu",
    *,
    gate: str = "second",
    save: str = "auto",
    adapter_in: LowRank | None = None,
    adapter_out: LowRank | None = None,
) -> Tensor:
    """Compute ``gated_activation(input @ weight_in.T + bias_in) @ weight_out.T + bias_out``.

    The hidden activation is never saved for backward.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight_in: ``[2*H, K]``: value and gate rows, in the order that `gate` tells.
        bias_in: ``[2*H]`` or None.
        weight_out: ``[N, H]``.
        bias_out: ``[N]`` or None.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        gate: where the gates are among weight_in's rows: the ``"second"`` half, the ``"first"``, as
            in most Llama-style checkpoints, or the ``"odd"`` or the ``"even"`` rows.
        save: ``"auto"`` and ``"preactivation"`` keep the first layer's output for backward;
            ``"recompute"`` keeps the inputs only.
        adapter_in: an `epigrad.LowRank` that updates `weight_in` (LoRA), or None.
        adapter_out: an `epigrad.LowRank` that updates `weight_out` (LoRA), or None.

    Returns:
        A contiguous tensor ``[..., N]``.

    Gradients:
        With ``pre = input @ weight_in.T + bias_in``, ``hidden = gated_activation(pre)``, and
        ``grad_pre`` the gradient of `gated_activation` for ``grad_output @ weight_out``:
        ``grad_weight_out = grad_output.T @ hidden``, ``grad_weight_in = grad_pre.T @ input``,
        ``grad_input = grad_pre @ weight_in``, and each bias is a sum over rows. ``hidden`` is
        formed again from ``pre``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes or `save`, an unknown kind or gate.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: Shazeer 2020, https://arxiv.org/abs/2002.05202.

    Examples:
        >>> import epigrad, torch
        >>> x, up, down = torch.ones(5, 3), torch.full((8, 3), 0.1), torch.full((2, 4), 0.1)
        >>> out = epigrad.gated_mlp(x, up, None, down, None, "glu")
        >>> torch.allclose(out, torch.nn.functional.glu(x @ up.T) @ down.T)
        True
    """
    return _layers(
        "gated_mlp",
        (input, weight_in, bias_in, weight_out, bias_out),
        kind,
        save,
        gate,
        adapters=(adapter_in, adapter_out),
    )


def grouped_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: ActivationLike = "none",
    *,
    offsets: Tensor,
    save: str = "auto",
    adapter: LowRank | None = None,
) -> Tensor:
    """Compute ``act(input[t] @ weight[e].T + bias[e])``, where e is the group of row t.

    Group e has the rows from ``offsets[e-1]`` to ``offsets[e]``, the first one from row 0. Rows
    from the last offset on have output 0 and gradient 0, and are not read. A group without rows has
    gradients 0.

    Args:
        input: ``[T, K]``, its rows sorted by group; float32, float64, bfloat16 or float16, as all
            tensors here but `offsets`.
        weight: ``[E, N, K]`` with any strides: ``w.transpose(1, 2)`` of a ``[E, K, N]`` is fine.
        bias: ``[E, N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        offsets: ``[E]``, int32 or int64: where each group's rows end, as in
            `torch.nn.functional.grouped_mm`. They stay on the device, and nothing waits for it.
        save: what is kept for backward. ``"auto"`` and ``"preactivation"``: the preactivation, but
            nothing for ``"none"``; ``"recompute"``: the inputs only.
        adapter: an `epigrad.LowRank` that updates `weight` (LoRA), or None.

    Returns:
        A contiguous tensor ``[T, N]``.

    Gradients:
        With ``grad_pre = grad_output * act'(pre)``: ``grad_input[t] = grad_pre[t] @ weight[e]``,
        ``grad_weight[e] = grad_pre.T @ input`` of the group's rows, and ``grad_bias[e]`` is the sum
        of ``grad_pre`` over them. Rows of no group have gradient 0, and a group without rows too.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes or `save`, an unknown activation; on
            the CPU also offsets that fall, are negative or exceed T. Elsewhere such offsets are
            clamped, and so they are where `torch.vmap` hides them from `torch.func.grad`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: `torch.nn.functional.grouped_mm`.

    Examples:
        >>> import epigrad, torch
        >>> rows, weight = torch.ones(5, 3), torch.stack([torch.ones(4, 3), 2 * torch.ones(4, 3)])
        >>> out = epigrad.grouped_linear(rows, weight, offsets=torch.tensor([2, 4]))
        >>> out[:, 0]
        tensor([3., 3., 6., 6., 0.])
    """
    return _layers("grouped_linear", (input, weight, bias, offsets), activation, save, adapters=(adapter,))


def experts(
    input: Tensor,
    index: Tensor,
    scale: Tensor,
    weight_in: Tensor,
    bias_in: Tensor | None,
    weight_out: Tensor,
    bias_out: Tensor | None,
    kind: ActivationLike | Gated = "swiglu",
    *,
    gate: str = "second",
    save: str = "auto",
    adapter_in: LowRank | None = None,
    adapter_out: LowRank | None = None,
) -> Tensor:
    """Compute a mixture of feed-forward experts.

    For token t, with ``e = index[t, j]``, it is the sum over j of ``scale[t, j] * (weight_out[e] @
    f(weight_in[e] @ input[t] + bias_in[e]) + bias_out[e])``, where f is a gated activation of the
    two halves or an activation. The sum is formed in the order of j, so that results are
    deterministic. Of all that backward needs only the preactivation is kept: neither the sorted
    copy of the input nor an expert's output.

    Args:
        input: ``[T, K]``: a row for each token; float32, float64, bfloat16 or float16, as all
            tensors here but `index`.
        index: ``[T, k]``, int64: the experts of each token. An index outside of 0 to E-1 selects
            nothing, as the sentinels of expert parallelism do: it adds 0, and the gradient of its
            scale is 0.
        scale: ``[T, k]``: the weight of each; may be float32 beside half types.
        weight_in: ``[E, 2*H, K]``: value and gate rows, in the order that `gate` tells; ``[E, H,
            K]`` if `kind` is an activation. Any strides: ``w.transpose(1, 2)`` is fine.
        bias_in: ``[E, 2*H]`` or None; ``[E, H]`` if `kind` is an activation.
        weight_out: ``[E, K, H]``, any strides.
        bias_out: ``[E, K]`` or None.
        kind: a gated kind or an activation: a name, an `epigrad.Gated` or an `epigrad.Activation`,
            which list them; None is ``"none"``.
        gate: where the gates are among weight_in's rows: the ``"second"`` or the ``"first"`` half,
            or the ``"odd"`` or the ``"even"`` rows.
        save: ``"auto"`` and ``"preactivation"`` keep the preactivation for backward;
            ``"recompute"`` keeps the inputs only.
        adapter_in: an `epigrad.LowRank` that updates `weight_in` (LoRA), or None.
        adapter_out: an `epigrad.LowRank` that updates `weight_out` (LoRA), or None.

    Returns:
        A contiguous tensor ``[T, K]``. Nothing waits for the device, whatever the routing is.

    Gradients:
        With ``hidden`` and ``pre`` of the slot of token t and expert e, and ``g = grad_output[t] @
        weight_out[e]``: ``grad_scale = hidden @ g + bias_out[e] @ grad_output[t]``, ``grad_pre`` is
        the gradient of the activation for ``scale * g``, ``grad_weight_out[e]`` sums
        ``grad_output[t] * (scale * hidden)`` over the expert's slots, ``grad_weight_in[e]`` sums
        ``grad_pre * input[t]``, and ``grad_input[t]`` sums ``grad_pre @ weight_in[e]`` in the order
        of j.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes or `save`, an unknown kind or gate.
        UnsupportedError: (a ``NotImplementedError``) more than 8192 experts on CUDA.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or sparse tensors.

    Source: Shazeer et al. 2017, https://arxiv.org/abs/1701.06538.

    Examples:
        >>> import epigrad, torch
        >>> x, index = torch.ones(2, 3), torch.tensor([[0, 1], [1, 2]])
        >>> scale = torch.tensor([[0.5, 0.25], [1.0, 1.0]])
        >>> up, down = torch.ones(3, 4, 3), torch.ones(3, 3, 4)
        >>> epigrad.experts(x, index, scale, up, None, down, None, "relu")
        tensor([[ 9.,  9.,  9.],
                [24., 24., 24.]])
    """
    return _layers(
        "experts",
        (input, index, scale, weight_in, bias_in, weight_out, bias_out),
        kind,
        save,
        gate,
        adapters=(adapter_in, adapter_out),
    )


def experts_in_rows(
    rows: int, tensors: Tensors, kind: Any, save: str, gate: str, adapters: tuple[LowRank | None, LowRank | None]
) -> Tensor:
    """`experts` of which at most `rows` slots select an expert. Memory and time follow from these,
    and not from all slots."""
    return _layers("experts", tensors, kind, save, gate, adapters, rows)


_OPERATORS = {operator.name: operator.overload for operator in (*ops.OPERATORS, *ops.ADAPTED)}


@constant_to_dynamo  # which would check each row of the tables again at each call
def _row(op: str, kind: str, count: int) -> tuple[str, tuple[float, ...], tuple[int, ...], bool, bool, int] | None:
    """Facts of a call with `count` tensors: its kind's name and parameters, the places of optional
    tensors, whether it has a dim and a gate, and how many tensors are no adapters. None if the kind
    is unknown."""
    try:
        found = kind_of(op, kind)
    except errors.InvalidProblemError:
        return None
    row = row_of(op, count)
    optional = tuple([place for place, argument in enumerate(row.inputs) if argument.optional])
    return found.name, arguments_of(found), optional, row.splits, row.halves, len(OPS[op].inputs)


def _traced(
    op: str, tensors: Tensors, kind: Any, dim: int, gate: str, save: str | None = None, scales: Scales = ()
) -> Tensor | None:
    """What an operator gives while Dynamo traces, or None for arguments that need another look.

    Dynamo checks each name that it has met again at each call, so there are few here.
    """
    row = _row(op, kind, len(tensors)) if isinstance(kind, str) else None
    if row is None or any_switched() or save not in (None, "auto", "preactivation", "recompute"):
        return None
    name, parameters, biases, splits, halves, own = row
    records = False
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, Tensor):
            if tensor.is_nested:
                return None
            records = records or tensor.requires_grad
        elif tensor is not None or place not in biases:
            return None
    options: dict[str, Any] = {"backend": selection.current()}
    if halves:
        options["gate"] = gate
    if parameters:
        options["parameters"] = parameters
    if save is not None:
        options["save"] = save if records and torch.is_grad_enabled() else "recompute"
    if save is not None and invariance.is_on():
        options["batch_invariant"] = True
    if scales:
        tensors = scaled(op, scales, tensors)
    operator = _OPERATORS[op if own == len(tensors) else f"{op}.adapted"]
    results = operator(*tensors[:own], name, *((dim,) if splits else ()), *tensors[own:], **options)
    out: Tensor = results if save is None else results[0]
    return out


# Each of the two below computes in one of three ways: by an operator where PyTorch has to see one
# (`records` is None), recorded by autograd, or straight.

_MAY_BE_NONE = {
    op: sum([1 << place for place, argument in enumerate((row.adapted or row).inputs) if argument.optional])
    for op, row in OPS.items()
}
"""Which tensors of an operation may be left out: the bits of their places."""


def _elementwise(
    op: str,
    tensors: Tensors,
    call: Call | None,
    kind: Any = None,
    dim: int = 0,
    gate: str = "second",
) -> Tensor:
    """What a function of elements gives, of a call or a kind."""
    if call is None and is_dynamo_compiling() and (traced := _traced(op, tensors, kind, dim, gate)) is not None:
        return traced
    records = recorded(_MAY_BE_NONE[op], *tensors)
    if records is None and overridden(*tensors):
        return _as_leaf(op, tensors, kind if call is None else call.parameters, dim, gate)
    if call is None:
        call = call_of(op, kind, dim, gate)
    if records is not None and any_autocast() and (casts := ops.RULES[op].casts) is not None:
        tensors = casts(*tensors)
    if records:
        result: Tensor = Elementwise.record(loader.core(), call, *tensors)
        return result
    if records is None:
        arguments = dict(zip(OPS[op].tensors, tensors, strict=True))
        if call.parameters and OPS[op].takes_number:
            del arguments["weight"]
        require_tensors(op, **arguments)
        return only(DISPATCHER.launch(call, tensors, (True,)))
    (out,) = loader.core().launch(call, tensors, (True,))
    assert out is not None
    return out


def _layers(
    op: str,
    tensors: Tensors,
    kind: Any,
    save: str,
    gate: str = "second",
    adapters: tuple[LowRank | None, ...] = (),
    rows: int | None = None,
) -> Tensor:
    """What layers give. `rows` is that of `experts_in_rows`, which operators do without."""
    scales: Scales = ()
    for adapter in adapters:
        if adapter is not None:
            operands, scales = operands_of(op, adapters)
            tensors = (*tensors, *operands)
            break
    if is_dynamo_compiling() and (traced := _traced(op, tensors, kind, 0, gate, save, scales)) is not None:
        return traced
    # With rows a profiler sees kernels, and no operator.
    looks = recorded if rows is None or watched() else loader.core().recorded
    records = looks(_MAY_BE_NONE[op], *tensors)
    if records is None and overridden(*tensors):
        return _as_leaf(op, tensors, kind, 0, gate, adapters, save=save)
    call = call_of(op, kind, 0, gate)
    if records is None:
        if any_switched():
            refuse_tracing(op, tensors)
        row = row_of(op, len(tensors))
        require_tensors(op, **dict(zip([argument.name for argument in row.inputs], tensors, strict=True)))
        saved = _save(op, save, tensors)
        positional, options = operator_arguments(call, scaled(op, scales, tensors))
        out: Tensor = ops.call(op, *positional, save=saved, adapted=row.is_adapted, **options)[0]
        return out
    keep = kept(call, save)
    core = with_scales(loader.core() if rows is None else InRows(loader.core(), rows), scales)
    is_wide = records and may_be_wide(tensors)
    given = tensors = with_wide_views(call, tensors) if is_wide else tensors
    if any_autocast():
        casts = ops.RULES[op].casts
        tensors = tensors if casts is None else with_adapters(casts, len(OPS[op].inputs), *tensors)
    if records:
        result: Tensor = Layers.record(core, call, keep, *tensors)[0]
        if is_wide and (sinks := sinks_of(call, given)) is not None:
            result.grad_fn.sinks = sinks  # type: ignore[union-attr]  # the function's ctx
        return result
    computed, _ = core.launch(call, tensors, (True, False))
    assert computed is not None
    return computed


_ACTIVATIONS = (nn.Module, types.FunctionType, types.BuiltinFunctionType)


def _as_leaf(
    op: str,
    tensors: Tensors,
    kind: Any,
    dim: int,
    gate: str,
    adapters: tuple[LowRank | None, ...] = (),
    **options: Any,
) -> Tensor:
    """Hand a function to what stands for its tensors: `torch.fx` records it as one call. `kind` is
    the numbers of a function without kinds."""
    row = OPS[op]
    given: list[Any] = [*tensors[: len(row.inputs)]]
    if adapters and row.adapted is not None:
        options |= {name: each for name, each in zip(row.adapted.adapters, adapters, strict=True) if each is not None}
    if row.inputs[-1].types == "offsets":
        options["offsets"] = given.pop()
    if row.kinds:
        # torch.fx records kinds, but no modules and functions among the arguments
        given.append(kind_of(op, kind) if isinstance(kind, _ACTIVATIONS) else kind)
    else:
        given = [*given[: -1 if row.takes_number and kind else None], *kind]
    if row.splits:
        given.append(dim)
    if row.halves:
        options["gate"] = gate
    out: Tensor = handle_torch_function(globals()[op], tensors, *given, **options)
    return out


def _save(op: str, save: str, tensors: Iterable[Tensor | None]) -> str:
    """What an operator is to keep: nothing where no gradient is recorded."""
    check_save(op, save)
    if not is_dynamo_compiling() and is_traced():
        # A trace is mostly run for its output, and has to be the same in every grad mode.
        return "recompute" if save == "auto" else save
    records = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return save if records else "recompute"
