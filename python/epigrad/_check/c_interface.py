"""Calls by the C interface (cbridge/include/epigrad.h), which the extension exports too."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from epigrad import errors
from epigrad._check.c_structs import (
    ACCUMULATE,
    BATCH_INVARIANT,
    CPU,
    CUDA,
    MAX_OUTPUTS,
    MAX_RANK,
    Call,
    DataType,
    Device,
    DLTensor,
)
from epigrad._check.problem import GATES, Problem
from epigrad._core import invariance, loader, selection, tables
from epigrad.kinds import arguments_of

__all__ = ["ACCUMULATE", "call"]

_CODES = {
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
}
"""DLPack's code and bits."""
_DEVICES = {"cpu": CPU, "cuda": CUDA}
_ALIGNMENT = 256


@functools.cache
def _library() -> Any:
    loader.core()
    library = ctypes.CDLL(importlib.import_module("epigrad._native").__file__)
    library.epg_last_error.restype = library.epg_status_class.restype = ctypes.c_char_p
    return library


def _described(tensor: Tensor) -> Any:
    """A pointer to a tensor's DLTensor, which keeps its shape and strides alive."""
    numbers = ctypes.c_int64 * max(1, tensor.dim())
    shape, strides = numbers(*tensor.shape), numbers(*tensor.stride())
    code, bits = _CODES[tensor.dtype]
    device = tensor.device
    place = Device(_DEVICES[device.type], device.index or 0)
    return ctypes.pointer(DLTensor(tensor.data_ptr(), place, tensor.dim(), DataType(code, bits, 1), shape, strides, 0))


def _array(tensors: Sequence[Tensor | None]) -> Any:
    pointers: Any = ctypes.POINTER(DLTensor) * max(1, len(tensors))
    return pointers(*[None if tensor is None else _described(tensor) for tensor in tensors])


def call(
    problem: Problem,
    op: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | None],
    number: float | None,
    flags: int = 0,
) -> None:
    """Run an operation with a workspace of its own.

    Args:
        problem: has the kind, its parameters, the gate and the dimension.
        op: a name of the table of operations.
        inputs: in its order; what is left out at the end is absent.
        outputs: likewise.
        number: lerp's weight, if it is a number.
        flags: of the call, beside that of `epigrad.batch_invariant`.

    Raises:
        EpigradError: the class that the call's status stands for.
    """
    library, row = _library(), tables.OPS[op]
    given = [*inputs, *[None] * (len(row["inputs"]) - len(inputs))]
    wanted = [*outputs, *[None] * (len(row["outputs"]) - len(outputs))]
    kind = problem.kind_object
    numbers = [number] if number is not None else list(arguments_of(kind)) if kind is not None else []
    options = problem.operation.options(problem)
    backend = selection.current()
    on_gpu = any(tensor is not None and tensor.is_cuda for tensor in given)
    made = Call(
        struct_size=ctypes.sizeof(Call),
        op=op.encode(),
        kind=None if kind is None else kind.name.encode(),
        parameters=(ctypes.c_double * max(1, len(numbers)))(*numbers),
        num_parameters=len(numbers),
        flags=flags | (BATCH_INVARIANT if invariance.is_on() and problem.operation.products else 0),
        dim=options.get("dim", 0),
        gate=GATES.index(options.get("gate", "second")),
        num_threads=torch.get_num_threads(),
        num_inputs=len(given),
        num_outputs=len(wanted),
        inputs=_array(given),
        outputs=_array(wanted),
        stream=torch.cuda.current_stream().cuda_stream if on_gpu else None,
        backend=None if backend is None else backend.encode(),
    )
    ranks = (ctypes.c_int32 * MAX_OUTPUTS)()
    shapes = (ctypes.c_int64 * (MAX_OUTPUTS * MAX_RANK))()
    needed = ctypes.c_uint64()
    present = (ctypes.c_uint8 * MAX_OUTPUTS)(*[tensor is not None for tensor in wanted])
    _raise(library.epg_infer(ctypes.byref(made), present, shapes, ranks, ctypes.byref(needed)))
    for tensor, rank, place in zip(wanted, ranks, range(MAX_OUTPUTS), strict=False):
        if tensor is not None:
            inferred = tuple(shapes[place * MAX_RANK : place * MAX_RANK + rank])
            assert inferred == tuple(tensor.shape), f"{op}: epg_infer says {inferred}, want {tuple(tensor.shape)}"
    device = next(tensor.device for tensor in given if tensor is not None)
    workspace = torch.empty(needed.value + _ALIGNMENT, dtype=torch.uint8, device=device)
    made.workspace = -(-workspace.data_ptr() // _ALIGNMENT) * _ALIGNMENT
    made.workspace_nbytes = needed.value
    _raise(library.epg_run(ctypes.byref(made)))


def _raise(code: int) -> None:
    if code:
        library = _library()
        raise errors.from_status(code, library.epg_status_class(code).decode(), library.epg_last_error())
