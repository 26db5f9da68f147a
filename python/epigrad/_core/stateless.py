"""Calls without a graph, into new tensors or into those of the caller.

All validation of shapes, dtypes, strides, devices and aliasing is the core's, so that C, Go and
Python callers get the same errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from epigrad import errors
from epigrad._core import loader
from epigrad._core.call import Call
from epigrad._core.checks import check_out, refuse_graph, refuse_negative, refuse_transforms
from epigrad._core.launcher import DISPATCHER
from epigrad._core.torch_state import dispatch_modes, is_dynamo_compiling, is_traced, transforms_active
from epigrad.webgpu import Array, Data

Operands = tuple[Any, ...]
"""Tensors, or arrays on an adapter; mypy is not told which."""


def launch_one(call: Call, inputs: tuple[Data | None, ...], out: Data | None) -> Data:
    """The result of a call that has one, written into `out` where it is given."""
    check_out(call.op, out)
    (result,) = launch_into(call, inputs, (True,), (out,))
    assert result is not None
    return result


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
