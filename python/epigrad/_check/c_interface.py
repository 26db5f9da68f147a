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
from epigrad._check.problem import GATES, Problem
from epigrad._core import loader, selection, tables
from epigrad.kinds import arguments_of

_CODES = {
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
}
"""DLPack's code and bits."""
_DEVICES = {"cpu": 1, "cuda": 2}
_MOST_OUTPUTS, _MOST_DIMENSIONS, _ALIGNMENT = 6, 64, 256


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Tensors = ctypes.POINTER(ctypes.POINTER(_DLTensor))


class _Call(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("op", ctypes.c_char_p),
        ("kind", ctypes.c_char_p),
        ("parameters", ctypes.POINTER(ctypes.c_double)),
        ("num_parameters", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("gate", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("num_inputs", ctypes.c_int32),
        ("num_outputs", ctypes.c_int32),
        ("inputs", _Tensors),
        ("outputs", _Tensors),
        ("nbytes", ctypes.POINTER(ctypes.c_uint64)),
        ("workspace", ctypes.c_void_p),
        ("workspace_nbytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("backend", ctypes.c_char_p),
    ]


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
    held = _DLTensor(
        tensor.data_ptr(), _DEVICES[device.type], device.index or 0, tensor.dim(), code, bits, 1, shape, strides, 0
    )
    return ctypes.pointer(held)


def _array(tensors: Sequence[Tensor | None]) -> Any:
    pointers: Any = ctypes.POINTER(_DLTensor) * max(1, len(tensors))
    return pointers(*[None if tensor is None else _described(tensor) for tensor in tensors])


def call(
    problem: Problem, op: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], number: float | None
) -> None:
    """Run an operation with a workspace of its own.

    Args:
        problem: has the kind, its parameters, the gate and the dimension.
        op: a name of the table of operations.
        inputs: in its order; what is left out at the end is absent.
        outputs: likewise.
        number: lerp's weight, if it is a number.

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
    made = _Call(
        struct_size=ctypes.sizeof(_Call),
        op=op.encode(),
        kind=None if kind is None else kind.name.encode(),
        parameters=(ctypes.c_double * max(1, len(numbers)))(*numbers),
        num_parameters=len(numbers),
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
    ranks = (ctypes.c_int32 * _MOST_OUTPUTS)()
    shapes = (ctypes.c_int64 * (_MOST_OUTPUTS * _MOST_DIMENSIONS))()
    needed = ctypes.c_uint64()
    flags = (ctypes.c_uint8 * _MOST_OUTPUTS)(*[tensor is not None for tensor in wanted])
    _raise(library.epg_infer(ctypes.byref(made), flags, shapes, ranks, ctypes.byref(needed)))
    for tensor, rank, place in zip(wanted, ranks, range(_MOST_OUTPUTS), strict=False):
        if tensor is not None:
            inferred = tuple(shapes[place * _MOST_DIMENSIONS : place * _MOST_DIMENSIONS + rank])
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
