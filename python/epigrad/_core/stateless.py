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
from epigrad._core.adapters import Scales, operands_of, refuse_shared, with_scales
from epigrad._core.call import Call
from epigrad._core.checks import check_out, needs_mask, out_tensors, refuse_graph, refuse_negative, refuse_transforms
from epigrad._core.launcher import DISPATCHER
from epigrad._core.tables import OPS, row_of
from epigrad._core.torch_state import dispatch_modes, is_traced, transforms_active
from epigrad._core.values import LowRank
from epigrad.webgpu import Array, Data

Operands = tuple[Any, ...]
"""Tensors, or arrays on an adapter; mypy does not know which."""
Adapters = tuple[Operands, Scales]


def launch_one(call: Call, inputs: tuple[Data | None, ...], out: Data | None) -> Data:
    """The result of a call that has one, written into `out` where it is given."""
    check_out(call.op, out)
    (result,) = launch_into(call, inputs, (True,), (out,))
    assert result is not None
    return result


def with_preactivation(
    call: Call,
    inputs: tuple[Data | None, ...],
    return_preactivation: bool,
    out: Data | None,
    *adapters: LowRank | None,
) -> Data | tuple[Data, Data]:
    """The output of layers, and their preactivation if it is asked for."""
    check_out(call.op, out)
    adapted: Adapters = operands_of(call.op, adapters)
    all_inputs: tuple[Data | None, ...] = inputs + adapted[0]
    needs = True, bool(return_preactivation)
    result, preactivation = launch_into(call, all_inputs, needs, (out, None), adapted[1])
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
    *adapters: LowRank | None,
) -> tuple[Data | None, ...]:
    """The gradients of an operation's inputs and of the adapters that are given; those of weights,
    biases and adapters may be added into."""
    op = call.op
    adapted: Adapters = operands_of(op, adapters)
    all_inputs: tuple[Data | None, ...] = inputs + adapted[0]
    row = row_of(op, len(all_inputs))
    own = len(OPS[op].gradients)
    places = [i for i, place in enumerate(row.gradients) if i < own or all_inputs[place] is not None]
    names = [row.results[i] for i in places]
    if adapted[0]:  # by default as long as without
        needs = (True,) * len(places) if needs == (True,) * own else needs
        out = (None,) * len(places) if out == (None,) * own else out
    mask, outputs = needs_mask(op, needs, names), out_tensors(op, out, names)
    if accumulate:
        call = call._replace(accumulate=True)
        for i, need, output in zip(places, mask, outputs, strict=True):
            if need and all_inputs[row.gradients[i]] is not None and output is None and row.outputs[i].is_added_to:
                raise errors.InvalidProblemError(
                    f"{op}: out: no tensor for {row.results[i]}, want one to add into since accumulate is True"
                )
    if len(places) == len(row.gradients):
        return launch_into(call, all_inputs, mask, outputs, adapted[1])
    needed, into = dict(zip(places, mask, strict=True)), dict(zip(places, outputs, strict=True))
    every = range(len(row.gradients))
    results = launch_into(
        call, all_inputs, tuple([needed.get(i, False) for i in every]), tuple([into.get(i) for i in every]), adapted[1]
    )
    return tuple([results[i] for i in places])


def launch_into(
    call: Call,
    inputs: tuple[Data | None, ...],
    needs: tuple[bool, ...],
    outputs: tuple[Data | None, ...],
    scales: Scales = (),
) -> tuple[Data | None, ...]:
    """Run a call, and write into those tensors of `outputs` that are given and needed.

    No graph is recorded, so tensors of a transform, and outputs with a graph, are refused. If a
    compiler or a mode looks, the call is an operator's, which makes its outputs itself.
    """
    operands: Operands = inputs
    into: Operands = outputs
    # An array on an adapter is no tensor: nothing of PyTorch's watches it.
    if (is_dynamo_compiling() or dispatch_modes() > 0 or is_traced()) and not isinstance(operands[0], Array):
        if call.accumulate or any(output is not None for output in into):
            raise errors.UnsupportedError(f"{call.op}: out: given in a compiled or traced region, want None there")
        with torch.no_grad():
            return cast(Operands, with_scales(DISPATCHER, scales).launch(call, operands, needs))
    if transforms_active() or forward_ad._current_level >= 0:
        refuse_transforms(call.op, *operands, *into)
    given = [output for output, needed in zip(into, needs, strict=True) if needed and isinstance(output, Tensor)]
    for output in given:
        refuse_negative(call.op, "out", output)
        refuse_graph(call.op, "out", output)
    if given and len(operands) > len(OPS[call.op].inputs):
        needed = [output if need else None for output, need in zip(into, needs, strict=True)]
        refuse_shared(call, operands, needed, scales)
    results = with_scales(loader.core(), scales).launch(call, operands, needs, into)
    if given:
        mark_written(given)
    return cast(Operands, results)


def mark_written(tensors: Iterable[Tensor]) -> None:
    """Tell autograd that kernels wrote into the caller's tensors: backward refuses a saved one."""
    for tensor in tensors:
        # an array on an adapter has no graph
        if isinstance(tensor, Tensor) and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
