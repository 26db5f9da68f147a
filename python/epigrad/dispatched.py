"""A core whose calls go through the dispatcher: the functions of `epigrad.autograd` run on it where PyTorch is to see
each operation, and on the loaded core where nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from epigrad.context import is_dynamo_compiling, is_exported_to_onnx, is_traced

__all__ = ["COMPOSED", "DISPATCHED", "Dispatched", "overload"]

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


@dataclass(frozen=True, slots=True)
class _Call:
    """One launch, in the words of `epigrad.launch.Launcher`."""

    op: str
    kind: str | None
    inputs: Results
    needs: tuple[bool, ...]
    backend: str | None
    dim: int
    gate_first: bool
    weight: float | None

    @property
    def overload(self) -> Any:
        return overload(self.op)

    @property
    def gate(self) -> str:
        return "first" if self.gate_first else "second"


def _gemm(call: _Call) -> Results:
    save = "preactivation" if call.needs[1] else "recompute"
    out, preactivation = call.overload(*call.inputs, call.kind, save=save, backend=call.backend)
    return out, preactivation if call.needs[1] else None


def _gemm_backward(call: _Call) -> Results:
    grad, a, b, bias, preactivation, output = call.inputs
    arguments = (grad, a, b, bias, call.kind, preactivation, output)
    return tuple(call.overload(*arguments, needs=call.needs, backend=call.backend))


def _activation(call: _Call) -> Results:
    out = call.overload(*call.inputs, call.kind, backend=call.backend)
    return (out, *(None,) * (len(call.needs) - 1))


def _gated_activation(call: _Call) -> Results:
    return (call.overload(*call.inputs, call.kind, call.dim, gate=call.gate, backend=call.backend),)


def _gated_product(call: _Call) -> Results:
    return (call.overload(*call.inputs, call.kind, backend=call.backend),)


def _gated_product_backward(call: _Call) -> Results:
    return tuple(call.overload(*call.inputs, call.kind, needs=call.needs, backend=call.backend))


def _lerp(call: _Call) -> Results:
    return (call.overload(*call.inputs, factor=call.weight, backend=call.backend),)


def _lerp_backward(call: _Call) -> Results:
    return tuple(call.overload(*call.inputs, factor=call.weight, needs=call.needs, backend=call.backend))


_CALLS: dict[str, Callable[[_Call], Results]] = {
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
}


class Dispatched:
    """Calls operators in place of kernels."""

    def launch(
        self,
        op: str,
        kind: str | None,
        inputs: Results,
        needs: tuple[bool, ...],
        backend: str | None = None,
        dim: int = 0,
        gate_first: bool = False,
        weight: float | None = None,
    ) -> Results:
        """As the core's own `launch`, for results that are new."""
        return _CALLS[op](_Call(op, kind, inputs, needs, backend, dim, gate_first, weight))


DISPATCHED = Dispatched()
