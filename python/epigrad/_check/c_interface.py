"""Calls by the C interface (cbridge/include/epigrad.h), which the extension exports too."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Mapping, Sequence
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
from epigrad._core import invariance, loader, selection, tables
from epigrad._core.call import GATE_NAMES
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
    place = Device(_DEVICES[tensor.device.type], tensor.device.index or 0)
    return ctypes.pointer(DLTensor(tensor.data_ptr(), place, tensor.dim(), DataType(code, bits, 1), shape, strides, 0))


def _array(tensors: Sequence[Tensor | None]) -> Any:
    pointers: Any = ctypes.POINTER(DLTensor) * max(1, len(tensors))
    return pointers(*[None if tensor is None else _described(tensor) for tensor in tensors])


Named = Mapping[str, Any]


class Prepared:
    """A call of an operation.

    Args:
        op: a name of the table of operations.
        tensors: its tensors by name, and a number that stands for one.
        outputs: likewise.
        options: the other arguments of its function.
    """

    def __init__(self, op: str, tensors: Named, outputs: Named, options: Named) -> None:
        row = tables.row_with(op, tensors)
        numbers = [each for each in tensors.values() if isinstance(each, float)]
        self._given = [None if isinstance(each, float) else each for each in map(tensors.get, row.tensors)]
        self._wanted = list(map(outputs.get, row.results))
        kind = options.get(row.kind_argument)
        if kind is not None and not isinstance(kind, str):
            numbers = list(arguments_of(kind))
        backend = selection.current()
        on_gpu = any(tensor is not None and tensor.is_cuda for tensor in self._given)
        self._call = Call(
            struct_size=ctypes.sizeof(Call),
            op=op.encode(),
            parameters=(ctypes.c_double * max(1, len(numbers)))(*numbers),
            num_parameters=len(numbers),
            flags=BATCH_INVARIANT if invariance.is_on() and row.multiplies else 0,
            num_threads=torch.get_num_threads(),
            num_inputs=len(self._given),
            num_outputs=len(self._wanted),
            inputs=_array(self._given),
            outputs=_array(self._wanted),
            stream=torch.cuda.current_stream().cuda_stream if on_gpu else None,
            backend=None if backend is None else backend.encode(),
        )
        for name, value in options.items():
            self.change(name, value)

    def change(self, name: str, value: Any) -> None:
        """Set an option of a function, or a field of the struct."""
        if name in ("activation", "kind"):
            name, value = "kind", (value if isinstance(value, str) else value.name).encode()
        if name == "accumulate":
            name, value = "flags", self._call.flags | (ACCUMULATE if value else 0)
        if name == "gate" and value in GATE_NAMES:
            value = GATE_NAMES.index(value)
        setattr(self._call, name, value)

    def workspace_size(self) -> int:
        """The bytes that it needs for its outputs, or for all if it has none.

        Raises:
            EpigradError: the class that the call's status stands for.
        """
        ranks = (ctypes.c_int32 * MAX_OUTPUTS)()
        shapes = (ctypes.c_int64 * (MAX_OUTPUTS * MAX_RANK))()
        needed = ctypes.c_uint64()
        given = [tensor is not None for tensor in self._wanted]
        present = (ctypes.c_uint8 * MAX_OUTPUTS)(*given) if any(given) else None
        _raise(_library().epg_infer(ctypes.byref(self._call), present, shapes, ranks, ctypes.byref(needed)))
        self.shapes = [
            tuple(shapes[place * MAX_RANK : place * MAX_RANK + rank]) if rank >= 0 else None
            for place, rank in enumerate(ranks)
        ]
        return needed.value

    def run(self, short: int = 0) -> None:
        """Compute, with a workspace of its own, which has some bytes too few.

        Raises:
            EpigradError: the class that the call's status stands for.
        """
        needed = self.workspace_size()
        device = next(tensor.device for tensor in self._given if tensor is not None)
        workspace = torch.empty(needed + _ALIGNMENT, dtype=torch.uint8, device=device)
        self._call.workspace = -(-workspace.data_ptr() // _ALIGNMENT) * _ALIGNMENT
        self._call.workspace_nbytes = needed - short
        _raise(_library().epg_run(ctypes.byref(self._call)))


def call(op: str, tensors: Named, outputs: Named, options: Named) -> None:
    """Run an operation; the arguments are those of `Prepared`.

    Raises:
        EpigradError: the class that the call's status stands for.
        AssertionError: epg_infer gives another shape than an output has.
    """
    prepared = Prepared(op, tensors, outputs, options)
    prepared.run()
    for name, shape in zip(tables.row_with(op, tensors).results, prepared.shapes, strict=False):
        if (tensor := outputs.get(name)) is not None:
            assert shape == tuple(tensor.shape), f"{op}: epg_infer says {shape}, want {tuple(tensor.shape)}"


def _raise(code: int) -> None:
    if code:
        library = _library()
        raise errors.from_status(code, library.epg_status_class(code).decode(), library.epg_last_error())
