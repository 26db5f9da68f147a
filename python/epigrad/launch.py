"""Hands one op to the core: shapes, outputs and workspace first, then the kernel.

All validation of shapes, dtypes, strides, devices and aliasing is the core's, so that C, Go and Python callers get the
same errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from epigrad import errors, selection
from epigrad.arguments import refuse_transforms, transforms_active
from epigrad.library import Core

__all__ = ["aligned_workspace", "launch", "launch_into", "mark_written", "refuse_negative"]

Tensors = tuple[Tensor | None, ...]

_ALIGNMENT = 256  # bytes: what a plan asks of its workspace


def launch(
    core: Core,
    op: str,
    kind: str | None,
    inputs: Tensors,
    needs: tuple[bool, ...],
    backend: str | None,
    dim: int = 0,
    gate_first: bool = False,
    weight: float | None = None,
) -> Tensors:
    """Run an op and return the outputs that `needs` asks for, None in the other places.

    Meta tensors give meta outputs of the real shapes; nothing is computed for them.
    """
    shapes, workspace_bytes = core.infer(op, kind, dim, gate_first, weight, inputs, needs)
    first = inputs[0]
    assert first is not None  # no op has an optional first input, and infer has checked it
    outputs = tuple([None if shape is None else first.new_empty(shape) for shape in shapes])
    if not first.is_cpu or backend is not None:
        if first.is_meta:
            return outputs
        _require_cpu(first, backend)
    _execute(core, op, kind, inputs, outputs, workspace_bytes, dim, gate_first, weight, False)
    return outputs


def launch_into(
    core: Core,
    op: str,
    kind: str | None,
    inputs: Tensors,
    needs: tuple[bool, ...],
    outputs: Tensors,
    backend: str | None,
    dim: int = 0,
    gate_first: bool = False,
    weight: float | None = None,
    accumulate: bool = False,
) -> Tensors:
    """As `launch`, but writes into the tensors of `outputs` where there is one; one that is not needed is ignored.

    No graph is recorded: what a transform or a graph would lose is refused.
    """
    if transforms_active() or forward_ad._current_level >= 0:
        refuse_transforms(op, *inputs, *outputs)
    shapes, workspace_bytes = core.infer(op, kind, dim, gate_first, weight, inputs, needs)
    first = inputs[0]
    assert first is not None  # no op has an optional first input, and infer has checked it
    results: list[Tensor | None] = []
    given: list[Tensor] = []
    for shape, needed, output in zip(shapes, needs, outputs, strict=True):
        if not needed or (shape is None and output is None):
            results.append(None)
        elif output is None:
            results.append(first.new_empty(shape))  # type: ignore[arg-type]  # None was handled above
        else:
            refuse_negative(op, "out", output)
            _refuse_graph(op, output)
            given.append(output)
            results.append(output)
    filled = tuple(results)
    if first.is_meta:
        _check_meta(op, shapes, filled, first)
        return filled
    if not first.is_cpu or backend is not None:
        _require_cpu(first, backend)
    _execute(core, op, kind, inputs, filled, workspace_bytes, dim, gate_first, weight, accumulate)
    mark_written(given)
    return filled


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
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def refuse_negative(op: str, argument: str, tensor: Tensor) -> None:
    """Refuse to write through a view that negates on reading, such as the imaginary part of a conjugate."""
    if type(tensor) is torch.Tensor and tensor.is_neg():
        raise errors.UnsupportedError(f"{op}: {argument}: a view with the negative bit set, want a plain tensor")


def _refuse_graph(op: str, output: Tensor) -> None:
    """Refuse an `out` whose graph would not hold what is written, as PyTorch does."""
    if output.requires_grad and torch.is_grad_enabled():
        raise errors.InvalidProblemError(
            f"{op}: out: a tensor that requires grad, want one that does not, or a call under torch.no_grad()"
        )


def _execute(
    core: Core,
    op: str,
    kind: str | None,
    inputs: Tensors,
    outputs: Tensors,
    workspace_bytes: int,
    dim: int,
    gate_first: bool,
    weight: float | None,
    accumulate: bool,
) -> None:
    for tensor in inputs:
        if tensor is not None and tensor.is_neg():
            inputs = tuple([None if t is None else t.resolve_neg() for t in inputs])
            break
    workspace = None if workspace_bytes == 0 else aligned_workspace(workspace_bytes, torch.device("cpu"))
    core.run(op, kind, dim, gate_first, weight, inputs, outputs, workspace, 0, torch.get_num_threads(), accumulate)


def _require_cpu(first: Tensor, backend: str | None) -> None:
    """The CPU backend is the only one that this build can launch."""
    if not first.is_cpu:
        raise selection.unavailable(first.device.type)
    if backend != "cpu":
        raise selection.unavailable(str(backend))


def _check_meta(op: str, shapes: Sequence[tuple[int, ...] | None], outputs: Tensors, first: Tensor) -> None:
    """What the core would check of given outputs, for meta tensors, which never reach it."""
    for shape, output in zip(shapes, outputs, strict=True):
        if output is None:
            continue
        if shape is None:
            raise errors.InvalidProblemError(f"{op}: out: given for a gradient that does not exist, want None")
        if output.shape != shape:
            raise errors.InvalidProblemError(f"{op}: out: shape {list(output.shape)}, want {list(shape)}")
        if output.dtype != first.dtype:
            raise errors.DTypeError(f"{op}: out: dtype {output.dtype}, want {first.dtype}")
        if output.device != first.device:
            raise errors.DeviceMismatchError(f"{op}: out: device {output.device}, want {first.device}")
