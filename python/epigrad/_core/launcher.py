"""A core whose calls go through the dispatcher: the functions of `epigrad._autograd` run on it where PyTorch is to see
each operation, and on the loaded core where nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from epigrad._core.call import GATE_NAMES, Call
from epigrad._core.torch_state import is_dynamo_compiling, is_exported_to_onnx, is_traced

__all__ = ["COMPOSED", "DISPATCHED", "Dispatched", "factor_of", "options_of", "overload"]

Results = tuple[Tensor | None, ...]


COMPOSED: dict[str, Callable[..., Any]] = {}
"""The operators as PyTorch's own operations, by name."""


def overload(name: str) -> Any:
    """An operator of epigrad's as it is called: each has one overload.

    A trace has no place for a backward's list of `needs`, and the older ONNX exporter knows PyTorch's operations only:
    there it is what the operator is composed of.
    """
    if not is_dynamo_compiling() and is_traced() and (name.endswith("_backward") or is_exported_to_onnx()):
        return COMPOSED[name]
    return getattr(torch.ops.epigrad, name).default


def options_of(call: Call) -> dict[str, Any]:
    """What operators take of a call by keyword: its backend, and its parameters where it has any."""
    options: dict[str, Any] = {"backend": call.backend}
    if call.parameters:
        options["parameters"] = call.parameters
    return options


def _gemm(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    save = "preactivation" if needs[1] else "recompute"
    out, preactivation = overload(call.op)(*inputs, call.kind, save=save, **options_of(call))
    return out, preactivation if needs[1] else None


def _gemm_backward(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    grad, a, b, bias, preactivation, output = inputs
    arguments = (grad, a, b, bias, call.kind, preactivation, output)
    return tuple(overload(call.op)(*arguments, needs=needs, **options_of(call)))


def _activation(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    out = overload(call.op)(*inputs, call.kind, **options_of(call))
    return (out, *(None,) * (len(needs) - 1))


def _gated_activation(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    gate = GATE_NAMES[call.gate]
    return (overload(call.op)(*inputs, call.kind, call.dim, gate=gate, **options_of(call)),)


def _gated_product(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    return (overload(call.op)(*inputs, call.kind, **options_of(call)),)


def _gated_product_backward(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    return tuple(overload(call.op)(*inputs, call.kind, needs=needs, **options_of(call)))


def _lerp(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    return (overload(call.op)(*inputs, factor=factor_of(call), backend=call.backend),)


def _lerp_backward(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    return tuple(overload(call.op)(*inputs, factor=factor_of(call), needs=needs, backend=call.backend))


def _block(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    save = "preactivation" if needs[1] else "recompute"
    out, preactivation = overload(call.op)(*inputs, call.kind, save=save, **_block_options(call))
    return out, preactivation if needs[1] else None


def _block_backward(call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
    *operands, preactivation = inputs
    results: Results = overload(call.op)(*operands, call.kind, preactivation, needs=needs, **_block_options(call))
    return results


def _block_options(call: Call) -> dict[str, Any]:
    return options_of(call) | ({"gate": GATE_NAMES[call.gate]} if call.op.startswith("gated") else {})


def factor_of(call: Call) -> float | None:
    """Lerp's weight, where it is a number."""
    return call.parameters[0] if call.parameters else None


_CALLS: dict[str, Callable[[Call, Results, tuple[bool, ...]], Results]] = {
    "matmul_bias_activation": _gemm,
    "linear": _gemm,
    "matmul_bias_activation_backward": _gemm_backward,
    "linear_backward": _gemm_backward,
    "activation": _activation,
    "activation_backward": _activation,
    "gated_activation": _gated_activation,
    "gated_activation_backward": _gated_activation,
    "gated_product": _gated_product,
    "gated_product_backward": _gated_product_backward,
    "lerp": _lerp,
    "lerp_backward": _lerp_backward,
    "mlp": _block,
    "gated_mlp": _block,
    "mlp_backward": _block_backward,
    "gated_mlp_backward": _block_backward,
}


class Dispatched:
    """Calls operators in place of kernels."""

    def launch(self, call: Call, inputs: Results, needs: tuple[bool, ...]) -> Results:
        """As the core's own `launch`, for results that are new."""
        return _CALLS[call.op](call, inputs, needs)


DISPATCHED = Dispatched()
