"""The launcher of a call: the loaded core, or PyTorch's dispatcher in its place.

The functions of `epigrad._autograd` run on the dispatcher if PyTorch has to see each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor

from epigrad._core.call import GATE_NAMES, Call
from epigrad._core.torch_state import is_dynamo_compiling, is_exported_to_onnx, is_traced

Tensors = tuple[Tensor | None, ...]
Shape = Sequence[int]
Shapes = tuple[Shape | None, ...]


class Launcher(Protocol):
    """What has `launch`, as the loaded core and `DISPATCHER` have."""

    @property
    def launch(self) -> Callable[..., Tensors]:
        """Runs a call and returns the outputs that are asked for, None in the other places.

        Arguments, by position: a `Call`, inputs, needs, and two that may be left out. Outputs: None
        or a tensor or None for each output. Shapes: None or a shape or None for the inputs after
        the first; of an input that is None and has one, only that counts. Meta tensors give meta
        outputs of the real shapes; nothing is computed for them.
        """


def only(results: Tensors) -> Tensor:
    """The result of a call that has one."""
    (result,) = results
    assert result is not None
    return result


COMPOSED: dict[str, Callable[..., Any]] = {}
"""The operators as PyTorch's own operations, by name."""


def overload(name: str) -> Any:
    """An operator of epigrad's as it is called: each has one overload.

    A trace has no place for a backward's list of `needs`, and the older ONNX exporter knows
    PyTorch's operations only: there it is what the operator is composed of.
    """
    if not is_dynamo_compiling() and is_traced() and (name.endswith("_backward") or is_exported_to_onnx()):
        return COMPOSED[name]
    return getattr(torch.ops.epigrad, name).default


def options_of(call: Call) -> dict[str, Any]:
    """What operators take of a call by keyword: its backend, and what it has besides."""
    options: dict[str, Any] = {"backend": call.backend}
    if call.parameters:
        options["parameters"] = call.parameters
    if call.batch_invariant:
        options["batch_invariant"] = True
    return options


def _gemm_backward(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    grad, a, b, bias, preactivation, output = inputs
    arguments = (grad, a, b, bias, call.kind, preactivation, output)
    return tuple(overload(call.op)(*arguments, needs=needs, **options_of(call)))


def _elementwise(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    out = overload(call.op)(*inputs, call.kind, **options_of(call))
    return (out, *(None,) * (len(needs) - 1))


def _gated_activation(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    gate = GATE_NAMES[call.gate]
    return (overload(call.op)(*inputs, call.kind, call.dim, gate=gate, **options_of(call)),)


def _gated_product_backward(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    return tuple(overload(call.op)(*inputs, call.kind, needs=needs, **options_of(call)))


def _lerp(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    return (overload(call.op)(*inputs, factor=factor_of(call), backend=call.backend),)


def _lerp_backward(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    return tuple(overload(call.op)(*inputs, factor=factor_of(call), needs=needs, backend=call.backend))


def _learnable(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    return (overload(call.op)(*inputs, *call.parameters, backend=call.backend),)


def _learnable_backward(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    return tuple(overload(call.op)(*inputs, *call.parameters, needs=needs, backend=call.backend))


def _layers(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    save = "preactivation" if needs[1] else "recompute"
    out, preactivation = overload(call.op)(*inputs, call.kind, save=save, **layer_options(call))
    return out, preactivation if needs[1] else None


def _block_backward(call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
    *operands, preactivation = inputs
    results: Tensors = overload(call.op)(*operands, call.kind, preactivation, needs=needs, **layer_options(call))
    return results


def layer_options(call: Call) -> dict[str, Any]:
    """`options_of` a product, a layer or a block, which may have a place of the gate."""
    return options_of(call) | ({"gate": GATE_NAMES[call.gate]} if call.op.startswith(("gated_mlp", "experts")) else {})


def factor_of(call: Call) -> float | None:
    """Lerp's weight, where it is a number."""
    return call.parameters[0] if call.parameters else None


_CALLS: dict[str, Callable[[Call, Tensors, tuple[bool, ...]], Tensors]] = {
    "matmul_bias_activation": _layers,
    "linear": _layers,
    "matmul_bias_activation_backward": _gemm_backward,
    "linear_backward": _gemm_backward,
    "activation": _elementwise,
    "activation_backward": _elementwise,
    "gated_activation": _gated_activation,
    "gated_activation_backward": _gated_activation,
    "gated_product": _elementwise,
    "gated_product_backward": _gated_product_backward,
    "lerp": _lerp,
    "lerp_backward": _lerp_backward,
    "prelu": _learnable,
    "prelu_backward": _learnable_backward,
    "xielu": _learnable,
    "xielu_backward": _learnable_backward,
    "gated_linear": _layers,
    "gated_linear_backward": _block_backward,
    "mlp": _layers,
    "gated_mlp": _layers,
    "mlp_backward": _block_backward,
    "gated_mlp_backward": _block_backward,
    "grouped_linear": _layers,
    "grouped_linear_backward": _block_backward,
    "experts": _layers,
    "experts_backward": _block_backward,
}


def _with_shapes(inputs: Tensors, shapes: Shapes) -> Tensors:
    """The inputs, with one element in a shape for each that is None and has one."""
    first, *rest = inputs
    assert first is not None
    filled = [
        first.new_empty(()).expand(shape) if tensor is None and shape is not None else tensor
        for tensor, shape in zip_longest(rest, shapes)
    ]
    return (first, *filled)


class Dispatcher:
    """Calls operators in place of kernels."""

    def launch(
        self, call: Call, inputs: Tensors, needs: tuple[bool, ...], outputs: None = None, shapes: Shapes | None = None
    ) -> Tensors:
        """As the core's own `launch`, for results that are new."""
        return _CALLS[call.op](call, _with_shapes(inputs, shapes or ()), needs)


DISPATCHER = Dispatcher()
