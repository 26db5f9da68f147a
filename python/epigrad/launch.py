"""Hands one op to the core: shapes, outputs and workspace first, then the kernel.

All validation of shapes, dtypes, strides, devices and aliasing is the core's, so that C, Go and Python callers get the
same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from epigrad import errors
from epigrad.arguments import PLAIN, refuse_transforms, transforms_active
from epigrad.call import Call
from epigrad.context import dispatch_modes, is_dynamo_compiling, is_traced
from epigrad.dispatched import DISPATCHED
from epigrad.library import Core
from epigrad.webgpu import Array, Data

__all__ = [
    "Launcher",
    "aligned_workspace",
    "launch_into",
    "mark_written",
    "only",
    "refuse_graph",
    "refuse_negative",
    "refuse_zeros",
]

Tensors = tuple[Tensor | None, ...]
Operands = tuple[Any, ...]
"""Tensors, or arrays on an adapter: past the functions that users call, mypy need not know which."""


class Launcher(Protocol):
    """What computes: the loaded core, or the dispatcher in its place."""

    @property
    def launch(self) -> Callable[..., Tensors]:
        """Runs a call and returns the outputs that are wanted, None in the other places.

        Arguments, by position: a `Call`, inputs, needs, and outputs, which may be left out: a tensor or None for each
        output. Meta tensors give meta outputs of the real shapes; nothing is computed for them.
        """


def only(results: Tensors) -> Tensor:
    """The result of a call that has one."""
    (result,) = results
    assert result is not None
    return result


_ALIGNMENT = 256  # bytes: what a plan asks of its workspace


def launch_into(
    core: Core,
    call: Call,
    inputs: tuple[Data | None, ...],
    needs: tuple[bool, ...],
    outputs: tuple[Data | None, ...],
) -> tuple[Data | None, ...]:
    """Run a call and write into the tensors of `outputs` where there is one; one that is not needed is ignored.

    No graph is recorded: what a transform or a graph would lose is refused. Where a compiler or a mode looks, the call
    is that of an operator, which makes its outputs itself.
    """
    operands: Operands = inputs
    into: Operands = outputs
    # An array on an adapter is no tensor: nothing of PyTorch's watches it.
    if (is_dynamo_compiling() or dispatch_modes() > 0 or is_traced()) and not isinstance(operands[0], Array):
        if call.accumulate or any(output is not None for output in into):
            raise errors.UnsupportedError(f"{call.op}: out: given in a compiled or traced region, want None there")
        with torch.no_grad():
            return cast(Operands, DISPATCHED.launch(call, operands, needs))
    if transforms_active() or forward_ad._current_level >= 0:
        refuse_transforms(call.op, *operands, *into)
    given = [output for output, needed in zip(into, needs, strict=True) if needed and isinstance(output, Tensor)]
    for output in given:
        refuse_negative(call.op, "out", output)
        refuse_graph(call.op, "out", output)
    results = core.launch(call, operands, needs, into)
    mark_written(given)
    return cast(Operands, results)


def aligned_workspace(size: int, device: torch.device) -> Tensor | None:
    """A workspace of `size` bytes that starts at a multiple of 256, or None for no bytes."""
    if size == 0:
        return None
    buffer = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + size]


def mark_written(tensors: Iterable[Tensor]) -> None:
    """Tell autograd that the kernels wrote into tensors of the caller, so that a saved one is found out in backward."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and not tensor.is_inference():  # an array on an adapter has no graph
            torch.autograd.graph.increment_version(tensor)


def refuse_negative(op: str, argument: str, tensor: Tensor) -> None:
    """Refuse to write through a view that negates on reading, such as the imaginary part of a conjugate."""
    if type(tensor) in PLAIN and tensor.is_neg():
        raise errors.UnsupportedError(f"{op}: {argument}: a view with the negative bit set, want a plain tensor")


def refuse_zeros(op: str, tensors: dict[str, Tensor | None]) -> None:
    """Refuse PyTorch's tensors of zeros without memory, as forward mode makes, where nothing may be allocated."""
    for argument, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor._is_zerotensor():
            raise errors.UnsupportedError(
                f"{op}: {argument}: a tensor of zeros without memory, want one with memory: clone() makes it"
            )


def refuse_graph(op: str, argument: str, output: Tensor) -> None:
    """Refuse an output whose graph would not hold what is written, as PyTorch does."""
    if isinstance(output, Tensor) and output.requires_grad and torch.is_grad_enabled():
        raise errors.InvalidProblemError(
            f"{op}: {argument}: a tensor that requires grad, want one that does not, or a call under torch.no_grad()"
        )
