"""The launcher of a call: the loaded core, or PyTorch's dispatcher in its place.

The functions of `epigrad._autograd` run on the dispatcher if PyTorch has to see each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from epigrad._core.call import GATE_NAMES, Call
from epigrad._core.tables import row_of
from epigrad._core.torch_state import is_exported_to_onnx, is_traced

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
    (result,) = results
    assert result is not None
    return result


COMPOSED: dict[str, Callable[..., Any]] = {}
"""The operators as PyTorch's own operations, by name."""


def overload(name: str, adapted: bool = False) -> Any:
    """An operator of epigrad's as it is called: without adapters, or the overload with them.

    A trace has no place for a backward's list of `needs`, and the older ONNX exporter knows
    PyTorch's operations only: there it is what the operator is composed of.
    """
    if not is_dynamo_compiling() and is_traced() and (name.endswith("_backward") or is_exported_to_onnx()):
        return COMPOSED[f"{name}.adapted" if adapted else name]
    packet = getattr(torch.ops.epigrad, name)
    return packet.adapted if adapted else packet.default


def operator_arguments(call: Call, inputs: Tensors) -> tuple[list[Any], dict[str, Any]]:
    """What the operator of a call takes by position and by keyword, but for `save` and `needs`."""
    row = row_of(call.op, len(inputs))
    pairs = list(zip(row.inputs, inputs, strict=True))
    positional: list[Any] = [tensor for argument, tensor in pairs if not argument.comes_last]
    options: dict[str, Any] = {"backend": call.backend}
    if row.kinds:
        positional.append(call.kind)
        if call.parameters:
            options["parameters"] = call.parameters
    elif row.parameters:
        positional += call.parameters
    elif row.takes_number:
        options["factor"] = call.parameters[0] if call.parameters else None
    if row.splits:
        positional.append(call.dim)
    if row.halves:
        options["gate"] = GATE_NAMES[call.gate]
    if call.batch_invariant:
        options["batch_invariant"] = True
    return [*positional, *(tensor for argument, tensor in pairs if argument.comes_last)], options


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
        row = row_of(call.op, len(inputs))
        positional, options = operator_arguments(call, _with_shapes(inputs, shapes or ()))
        if row.keeps:
            options["save"] = "preactivation" if needs[1] else "recompute"
        elif len(row.gradients) > 1:
            options["needs"] = needs
        results = overload(call.op, row.is_adapted)(*positional, **options)
        if row.keeps:
            return results[0], results[1] if needs[1] else None
        # A tensor alone is the first of the results that a call may have.
        return tuple(results) if isinstance(results, tuple) else (results, *(None,) * (len(needs) - 1))


DISPATCHER = Dispatcher()
