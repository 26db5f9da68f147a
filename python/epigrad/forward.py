"""The functions of `epigrad` without a graph: nothing is saved and no output requires a gradient.

`out` gives a tensor to write into: right shape and dtype, any strides, no memory shared with an
input. It is returned itself.
"""

from __future__ import annotations

from typing import Literal, overload

from epigrad._core import selection
from epigrad._core.call import Call, call_of
from epigrad._core.checks import check_out, check_tensors, finite, lerp_weight
from epigrad._core.stateless import launch_into, launch_one
from epigrad.kinds import ActivationLike, Gated
from epigrad.webgpu import Data

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


@overload
def matmul_bias_activation(
    a: Data,
    b: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    return_preactivation: Literal[False] = False,
    out: Data | None = None,
) -> Data: ...
@overload
def matmul_bias_activation(
    a: Data,
    b: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    return_preactivation: Literal[True],
    out: Data | None = None,
) -> tuple[Data, Data]: ...
def matmul_bias_activation(
    a: Data,
    b: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    return_preactivation: bool = False,
    out: Data | None = None,
) -> Data | tuple[Data, Data]:
    """Compute ``act(a @ b + bias)``, without a graph.

    Args:
        a: ``[..., M, K]`` or ``[K]``; float32, float64, bfloat16 or float16, as all tensors here.
        b: ``[K, N]``, ``[..., K, N]`` or ``[K]``; batch dimensions broadcast as in `torch.matmul`.
        bias: ``[N]``, a scalar where `b` is 1-D, or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        return_preactivation: return ``a @ b + bias`` too, rounded to the storage dtype.
        out: a tensor to write the output into.

    Returns:
        The output, or ``(output, preactivation)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.matmul_bias_activation`.

    Examples:
        >>> import epigrad, torch
        >>> a, b = torch.ones(2, 3), -torch.ones(3, 4)
        >>> out, pre = epigrad.forward.matmul_bias_activation(
        ...     a, b, activation="relu", return_preactivation=True
        ... )
        >>> out[0, 0].item(), pre[0, 0].item()
        (0.0, -3.0)
    """
    check_tensors("matmul_bias_activation", a=a, b=b)
    call = call_of("matmul_bias_activation", activation)
    return _with_preactivation(call, (a, b, bias), return_preactivation, out)


@overload
def linear(
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    return_preactivation: Literal[False] = False,
    out: Data | None = None,
) -> Data: ...
@overload
def linear(
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    return_preactivation: Literal[True],
    out: Data | None = None,
) -> tuple[Data, Data]: ...
def linear(
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    return_preactivation: bool = False,
    out: Data | None = None,
) -> Data | tuple[Data, Data]:
    """Compute ``act(input @ weight.T + bias)``, without a graph.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight: ``[N, K]``.
        bias: ``[N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        return_preactivation: return ``input @ weight.T + bias`` too, rounded to the storage dtype.
        out: a tensor ``[..., N]`` to write the output into.

    Returns:
        The output ``[..., N]``, or ``(output, preactivation)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.linear`.

    Examples:
        >>> import epigrad, torch
        >>> x, weight, out = torch.ones(5, 3), torch.ones(4, 3), torch.empty(5, 4)
        >>> epigrad.forward.linear(x, weight, activation="tanh", out=out) is out
        True
    """
    check_tensors("linear", input=input, weight=weight)
    call = call_of("linear", activation)
    return _with_preactivation(call, (input, weight, bias), return_preactivation, out)


def activation(input: Data, activation: ActivationLike, *, out: Data | None = None) -> Data:
    """Compute ``act(input)``, elementwise, without a graph.

    Args:
        input: any shape; float32, float64, bfloat16 or float16.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        out: a tensor to write into.

    Returns:
        A tensor of input's shape.

    Raises:
        InvalidProblemError: (a ``ValueError``) unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) another dtype or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.activation`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.forward.activation(torch.tensor([-1.0, 2.0]), "relu")
        tensor([0., 2.])
    """
    op = "activation"
    call = call_of(op, activation)
    check_tensors(op, input=input)
    return launch_one(call, (input,), out)


def gated_activation(
    input: Data, kind: str | Gated = "swiglu", dim: int = -1, *, gate: str = "second", out: Data | None = None
) -> Data:
    """Compute a gated kind of the halves of `input` along `dim`, without a graph.

    `epigrad.Gated` has the formula.

    Args:
        input: any shape whose size along `dim` is even; float32, float64, bfloat16 or float16.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        dim: the dimension that is split.
        gate: where the gates are along `dim`: the ``"second"`` or the ``"first"`` half, or the
            ``"odd"`` or the ``"even"`` places.
        out: a tensor to write into.

    Returns:
        A tensor of input's shape with half the size along `dim`.

    Raises:
        InvalidProblemError: (a ``ValueError``) a missing or odd dim, unknown kind or gate,
            overlapping `out`.
        DTypeError: (a ``TypeError``) another dtype or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.gated_activation`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.forward.gated_activation(torch.tensor([2.0, 3.0]), "bilinear")
        tensor([6.])
    """
    op = "gated_activation"
    call = call_of(op, kind, dim, gate)
    check_tensors(op, input=input)
    return launch_one(call, (input,), out)


def gated_product(value: Data, gate: Data, kind: str | Gated = "swiglu", *, out: Data | None = None) -> Data:
    """Compute a gated kind of two separate tensors, without a graph.

    `epigrad.Gated` has the formula.

    Args:
        value: any shape; float32, float64, bfloat16 or float16.
        gate: the shape and dtype of `value`.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        out: a tensor to write into.

    Returns:
        A tensor of value's shape.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.gated_product`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.forward.gated_product(torch.tensor([2.0]), torch.tensor([-3.0]), "reglu")
        tensor([0.])
    """
    op = "gated_product"
    call = call_of(op, kind)
    check_tensors(op, value=value, gate=gate)
    return launch_one(call, (value, gate), out)


def lerp(start: Data, end: Data, weight: float | Data, *, out: Data | None = None) -> Data:
    """Compute ``start + weight * (end - start)``, without a graph.

    Args:
        start: any shape; float32, float64, bfloat16 or float16.
        end: a shape that broadcasts with `start`.
        weight: a number, used in full precision, or a tensor that broadcasts with the others.
        out: a tensor of the shape that all broadcast to.

    Returns:
        A tensor of the shape that all broadcast to.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `torch.lerp`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.forward.lerp(torch.zeros(2), torch.ones(2), 0.25)
        tensor([0.2500, 0.2500])
    """
    op = "lerp"
    parameters, tensor = lerp_weight(op, weight)
    check_tensors(op, start=start, end=end)
    call = Call(op, None, parameters, backend=selection.current())
    return launch_one(call, (start, end, tensor), out)


def prelu(input: Data, weight: Data, *, out: Data | None = None) -> Data:
    """Compute ``input if input > 0 else weight * input``, elementwise, without a graph.

    Args:
        input: any shape; float32, float64, bfloat16 or float16, as all tensors here.
        weight: one element, or ``[C]`` where C is the input's second size.
        out: a tensor to write into.

    Returns:
        A tensor of input's shape.

    Raises:
        InvalidProblemError: (a ``ValueError``) a weight of another shape, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.prelu`.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.forward.prelu(torch.tensor([-2.0, 4.0]), torch.tensor([0.25]))
        tensor([-0.5000,  4.0000])
    """
    op = "prelu"
    check_tensors(op, input=input, weight=weight)
    return launch_one(Call(op, backend=selection.current()), (input, weight), out)


def xielu(input: Data, alpha_p: Data, alpha_n: Data, beta: float = 0.5, *, out: Data | None = None) -> Data:
    """Compute xIELU, the activation of Apertus, elementwise, without a graph.

    Args:
        input: any shape; float32, float64, bfloat16 or float16, as all tensors here.
        alpha_p: one element, before softplus.
        alpha_n: one element, before softplus.
        beta: a number.
        out: a tensor to write into.

    Returns:
        A tensor of input's shape.

    Raises:
        InvalidProblemError: (a ``ValueError``) an alpha of another shape, a beta that is not
            finite, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, not a tensor, or a beta that
            is not a number.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.xielu`.

    Examples:
        >>> import epigrad, torch
        >>> alpha = torch.tensor([0.0])
        >>> epigrad.forward.xielu(torch.tensor([1.0]), alpha, alpha, beta=0.25)
        tensor([0.9431])
    """
    op = "xielu"
    check_tensors(op, input=input, alpha_p=alpha_p, alpha_n=alpha_n)
    call = Call(op, None, (finite(op, "beta", beta),), backend=selection.current())
    return launch_one(call, (input, alpha_p, alpha_n), out)


@overload
def gated_linear(
    input: Data,
    weight_value: Data,
    weight_gate: Data,
    bias_value: Data | None = None,
    bias_gate: Data | None = None,
    kind: str | Gated = "swiglu",
    *,
    return_preactivation: Literal[False] = False,
    out: Data | None = None,
) -> Data: ...
@overload
def gated_linear(
    input: Data,
    weight_value: Data,
    weight_gate: Data,
    bias_value: Data | None = None,
    bias_gate: Data | None = None,
    kind: str | Gated = "swiglu",
    *,
    return_preactivation: Literal[True],
    out: Data | None = None,
) -> tuple[Data, Data]: ...
def gated_linear(
    input: Data,
    weight_value: Data,
    weight_gate: Data,
    bias_value: Data | None = None,
    bias_gate: Data | None = None,
    kind: str | Gated = "swiglu",
    *,
    return_preactivation: bool = False,
    out: Data | None = None,
) -> Data | tuple[Data, Data]:
    """Compute a gated kind of ``value = input @ weight_value.T + bias_value`` and
    ``gate = input @ weight_gate.T + bias_gate``, without a graph.

    `epigrad.Gated` has the formula.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight_value: ``[H, K]``.
        weight_gate: ``[H, K]``.
        bias_value: ``[H]`` or None.
        bias_gate: ``[H]`` or None.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        return_preactivation: return value and gate too, side by side in one tensor
            ``[..., 2*H]``, rounded to the storage dtype.
        out: a tensor to write the output into.

    Returns:
        The output ``[..., H]``, or ``(output, preactivation)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.gated_linear`.

    Examples:
        >>> import epigrad, torch
        >>> x, up, gate = torch.ones(5, 3), torch.ones(4, 3), -torch.ones(4, 3)
        >>> out, pre = epigrad.forward.gated_linear(
        ...     x, up, gate, kind="bilinear", return_preactivation=True
        ... )
        >>> out[0], pre[0]
        (tensor([-9., -9., -9., -9.]), tensor([ 3.,  3.,  3.,  3., -3., -3., -3., -3.]))
    """
    check_tensors("gated_linear", input=input, weight_value=weight_value, weight_gate=weight_gate)
    call = call_of("gated_linear", kind)
    inputs = (input, weight_value, weight_gate, bias_value, bias_gate)
    return _with_preactivation(call, inputs, return_preactivation, out)


@overload
def mlp(
    input: Data,
    weight1: Data,
    bias1: Data | None,
    weight2: Data,
    bias2: Data | None,
    activation: ActivationLike = "gelu_tanh",
    *,
    return_preactivation: Literal[False] = False,
    out: Data | None = None,
) -> Data: ...
@overload
def mlp(
    input: Data,
    weight1: Data,
    bias1: Data | None,
    weight2: Data,
    bias2: Data | None,
    activation: ActivationLike = "gelu_tanh",
    *,
    return_preactivation: Literal[True],
    out: Data | None = None,
) -> tuple[Data, Data]: ...
def mlp(
    input: Data,
    weight1: Data,
    bias1: Data | None,
    weight2: Data,
    bias2: Data | None,
    activation: ActivationLike = "gelu_tanh",
    *,
    return_preactivation: bool = False,
    out: Data | None = None,
) -> Data | tuple[Data, Data]:
    """Compute ``act(input @ weight1.T + bias1) @ weight2.T + bias2``, without a graph.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight1: ``[H, K]``.
        bias1: ``[H]`` or None.
        weight2: ``[N, H]``.
        bias2: ``[N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        return_preactivation: return ``input @ weight1.T + bias1`` ``[..., H]`` too, rounded to the
            storage dtype.
        out: a tensor to write the output into.

    Returns:
        The output ``[..., N]``, or ``(output, preactivation)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.mlp`.

    Examples:
        >>> import epigrad, torch
        >>> x, up, down = torch.ones(5, 3), -torch.ones(4, 3), torch.ones(2, 4)
        >>> epigrad.forward.mlp(x, up, None, down, None, "relu", return_preactivation=True)[1].shape
        torch.Size([5, 4])
    """
    check_tensors("mlp", input=input, weight1=weight1, weight2=weight2)
    call = call_of("mlp", activation)
    return _with_preactivation(call, (input, weight1, bias1, weight2, bias2), return_preactivation, out)


@overload
def gated_mlp(
    input: Data,
    weight_in: Data,
    bias_in: Data | None,
    weight_out: Data,
    bias_out: Data | None,
    kind: str | Gated = "swiglu",
    *,
    gate: str = "second",
    return_preactivation: Literal[False] = False,
    out: Data | None = None,
) -> Data: ...
@overload
def gated_mlp(
    input: Data,
    weight_in: Data,
    bias_in: Data | None,
    weight_out: Data,
    bias_out: Data | None,
    kind: str | Gated = "swiglu",
    *,
    gate: str = "second",
    return_preactivation: Literal[True],
    out: Data | None = None,
) -> tuple[Data, Data]: ...
def gated_mlp(
    input: Data,
    weight_in: Data,
    bias_in: Data | None,
    weight_out: Data,
    bias_out: Data | None,
    kind: str | Gated = "swiglu",
    *,
    gate: str = "second",
    return_preactivation: bool = False,
    out: Data | None = None,
) -> Data | tuple[Data, Data]:
    """Compute ``gated_activation(input @ weight_in.T + bias_in) @ weight_out.T + bias_out``.

    No graph is recorded.

    Args:
        input: ``[..., K]``; float32, float64, bfloat16 or float16, as all tensors here.
        weight_in: ``[2*H, K]``: value and gate rows, in the order that `gate` tells.
        bias_in: ``[2*H]`` or None.
        weight_out: ``[N, H]``.
        bias_out: ``[N]`` or None.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        gate: where the gates are among weight_in's rows: the ``"second"`` or the ``"first"`` half,
            or the ``"odd"`` or the ``"even"`` rows.
        return_preactivation: return ``input @ weight_in.T + bias_in`` ``[..., 2*H]`` too, rounded
            to the storage dtype.
        out: a tensor to write the output into.

    Returns:
        The output ``[..., N]``, or ``(output, preactivation)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.gated_mlp`.

    Examples:
        >>> import epigrad, torch
        >>> x, both, down = torch.ones(5, 3), torch.ones(8, 3), torch.ones(2, 4)
        >>> epigrad.forward.gated_mlp(x, both, None, down, None, "reglu")[0]
        tensor([36., 36.])
    """
    check_tensors("gated_mlp", input=input, weight_in=weight_in, weight_out=weight_out)
    call = call_of("gated_mlp", kind, 0, gate)
    return _with_preactivation(call, (input, weight_in, bias_in, weight_out, bias_out), return_preactivation, out)


@overload
def grouped_linear(
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    offsets: Data,
    return_preactivation: Literal[False] = False,
    out: Data | None = None,
) -> Data: ...
@overload
def grouped_linear(
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    offsets: Data,
    return_preactivation: Literal[True],
    out: Data | None = None,
) -> tuple[Data, Data]: ...
def grouped_linear(
    input: Data,
    weight: Data,
    bias: Data | None = None,
    activation: ActivationLike = "none",
    *,
    offsets: Data,
    return_preactivation: bool = False,
    out: Data | None = None,
) -> Data | tuple[Data, Data]:
    """Compute ``act(input[t] @ weight[e].T + bias[e])``, where e is the group of row t.

    No graph is recorded. Rows from the last offset on become 0.

    Args:
        input: ``[T, K]``, its rows sorted by group; float32, float64, bfloat16 or float16, as all
            tensors here but `offsets`.
        weight: ``[E, N, K]``.
        bias: ``[E, N]`` or None.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        offsets: ``[E]``, int32 or int64: where each group's rows end.
        return_preactivation: return ``input[t] @ weight[e].T + bias[e]`` ``[T, N]`` too, rounded to
            the storage dtype.
        out: a tensor to write the output into.

    Returns:
        The output ``[T, N]``, or ``(output, preactivation)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown activation, overlapping `out`;
            on the CPU also offsets that make no sense.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.grouped_linear`.

    Examples:
        >>> import epigrad, torch
        >>> rows, weight, ends = torch.ones(3, 2), torch.ones(2, 4, 2), torch.tensor([1, 3])
        >>> epigrad.forward.grouped_linear(rows, weight, offsets=ends)[:, 0]
        tensor([2., 2., 2.])
    """
    check_tensors("grouped_linear", input=input, weight=weight, offsets=offsets)
    call = call_of("grouped_linear", activation)
    return _with_preactivation(call, (input, weight, bias, offsets), return_preactivation, out)


@overload
def experts(
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
    return_preactivation: Literal[False] = False,
    out: Data | None = None,
) -> Data: ...
@overload
def experts(
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
    return_preactivation: Literal[True],
    out: Data | None = None,
) -> tuple[Data, Data]: ...
def experts(
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
    return_preactivation: bool = False,
    out: Data | None = None,
) -> Data | tuple[Data, Data]:
    """Compute a mixture of feed-forward experts, without a graph.

    Args:
        input: ``[T, K]``: a row for each token; float32, float64, bfloat16 or float16, as all
            tensors here but `index`.
        index: ``[T, k]``, int64: the experts of each token. One outside of 0 to E-1 selects
            nothing.
        scale: ``[T, k]``: the weight of each; may be float32 beside half types.
        weight_in: ``[E, 2*H, K]``, or ``[E, H, K]`` if `kind` is an activation.
        bias_in: ``[E, 2*H]``, or ``[E, H]``, or None.
        weight_out: ``[E, K, H]``.
        bias_out: ``[E, K]`` or None.
        kind: a gated kind or an activation: a name, an `epigrad.Gated` or an `epigrad.Activation`.
        gate: where the gates are among weight_in's rows: the ``"second"`` or the ``"first"`` half,
            or the ``"odd"`` or the ``"even"`` rows.
        return_preactivation: return the preactivation ``[T*k, 2*H]`` (or ``[T*k, H]``) too, rounded
            to the storage dtype: its rows are sorted by expert, then token, then j. Those of slots
            that select nothing come last and are undefined.
        out: a tensor to write the output into.

    Returns:
        The output ``[T, K]``, or ``(output, preactivation)``.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, unknown kind, overlapping `out`.
        UnsupportedError: (a ``NotImplementedError``) more than 8192 experts on CUDA.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, or not a tensor.
        EpigradError: another class of `epigrad.errors`, of devices, backends or tensor subclasses.

    Source: `epigrad.experts`.

    Examples:
        >>> import epigrad, torch
        >>> x, index, scale = torch.ones(2, 3), torch.tensor([[0], [1]]), torch.ones(2, 1)
        >>> up, down = torch.ones(2, 8, 3), torch.ones(2, 3, 4)
        >>> epigrad.forward.experts(x, index, scale, up, None, down, None, "reglu")[0]
        tensor([36., 36., 36.])
    """
    tensors = {"input": input, "index": index, "scale": scale, "weight_in": weight_in, "weight_out": weight_out}
    check_tensors("experts", **tensors)
    call = call_of("experts", kind, 0, gate)
    inputs = (input, index, scale, weight_in, bias_in, weight_out, bias_out)
    return _with_preactivation(call, inputs, return_preactivation, out)


def _with_preactivation(
    call: Call, inputs: tuple[Data | None, ...], return_preactivation: bool, out: Data | None
) -> Data | tuple[Data, Data]:
    check_out(call.op, out)
    needs = (True, bool(return_preactivation))
    result, preactivation = launch_into(call, inputs, needs, (out, None))
    assert result is not None
    if not return_preactivation:
        return result
    assert preactivation is not None
    return result, preactivation
