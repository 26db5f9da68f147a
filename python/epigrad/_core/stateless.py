"""Calls without a graph, into new tensors or into those of the caller.

All validation of shapes, dtypes, strides, devices and aliasing is the core's, so that C, Go and
Python callers get the same errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from epigrad import errors
from epigrad._core import loader
from epigrad._core.call import Call
from epigrad._core.checks import check_out, needs_mask, out_tensors, refuse_graph, refuse_negative, refuse_transforms
from epigrad._core.launcher import DISPATCHER
from epigrad._core.tables import OPS
from epigrad._core.torch_state import dispatch_modes, is_traced, transforms_active
from epigrad.webgpu import Array, Data

Operands = tuple[Any, ...]
"""Tensors, or arrays on an adapter; mypy is not told which."""


def launch_one(call: Call, inputs: tuple[Data | None, ...], out: Data | None) -> Data:
    """The result of a call that has one, written into `out` where it is given."""
    check_out(call.op, out)
    (result,) = launch_into(call, inputs, (True,), (out,))
    assert result is not None
    return result


def with_preactivation(
    call: Call, inputs: tuple[Data | None, ...], return_preactivation: bool, out: Data | None
) -> Data | tuple[Data, Data]:
    """The output of layers, and their preactivation if it is asked for."""
    check_out(call.op, out)
    result, preactivation = launch_into(call, inputs, (True, bool(return_preactivation)), (out, None))
    assert result is not None
    if not return_preactivation:
        return result
    assert preactivation is not None
    return result, preactivation


def one_gradient(call: Call, inputs: tuple[Data | None, ...], out: Data | None) -> Data:
    """The gradient of an operation with one input."""
    if out is not None and out is inputs[0]:  # which the core can do, for what it forms itself
        raise errors.InvalidProblemError(f"{call.op}: out: shares memory with grad_output, want an output of its own")
    return launch_one(call, inputs, out)


def gradients(
    call: Call,
    inputs: tuple[Data | None, ...],
    needs: Sequence[bool],
    out: Sequence[Data | None],
    accumulate: bool,
) -> tuple[Data | None, ...]:
    """The gradients of an operation's inputs; those of weights and biases may be added into."""
    op, row = call.op, OPS[call.op]
    names = row.results[: len(row.gradients)]
    mask, outputs = needs_mask(op, needs, names), out_tensors(op, out, names)
    if accumulate:
        call = call._replace(accumulate=True)
        for place, need, output, gradient in zip(row.gradients, mask, outputs, row.outputs, strict=False):
            if need and inputs[place] is not None and output is None and gradient.is_added_to:
                raise errors.InvalidProblemError(
                    f"{op}: out: no tensor for {gradient.name}, want one to add into since accumulate is True"
                )
    return launch_into(call, inputs, mask, outputs)


def launch_into(
    call: Call,
    inputs: tuple[Data | None, ...],
    needs: tuple[bool, ...],
    outputs: tuple[Data | None, ...],
) -> tuple[Data | None, ...]:
    """Run a call, and write into those tensors of `outputs` that are given and needed.

    No graph is recorded: what a transform or a graph would lose is refused. Where a compiler or a
    mode looks, the call is that of an operator, which makes its outputs itself.
    """
    operands: Operands = inputs
    into: Operands = outputs
    # An array on an adapter is no tensor: nothing of PyTorch's watches it.
    if (is_dynamo_compiling() or dispatch_modes() > 0 or is_traced()) and not isinstance(operands[0], Array):
        if call.accumulate or any(output is not None for output in into):
            raise errors.UnsupportedError(f"{call.op}: out: given in a compiled or traced region, want None there")
        with torch.no_grad():
            return cast(Operands, DISPATCHER.launch(call, operands, needs))
    if transforms_active() or forward_ad._current_level >= 0:
        refuse_transforms(call.op, *operands, *into)
    given = [output for output, needed in zip(into, needs, strict=True) if needed and isinstance(output, Tensor)]
    for output in given:
        refuse_negative(call.op, "out", output)
        refuse_graph(call.op, "out", output)
    results = loader.core().launch(call, operands, needs, into)
    if given:
        mark_written(given)
    return cast(Operands, results)


def mark_written(tensors: Iterable[Tensor]) -> None:
    """Tell autograd that kernels wrote into the caller's tensors: backward refuses a saved one."""
    for tensor in tensors:
        # an array on an adapter has no graph
        if isinstance(tensor, Tensor) and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
