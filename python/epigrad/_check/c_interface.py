"""Calls by the C interface (cbridge/include/epigrad.h), which the extension exports too."""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
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

__all__ = ["ACCUMULATE", "Prepared", "call", "plans"]

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
_CPU = torch.device("cpu")


@functools.cache
def _library() -> Any:
    loader.core()
    library = ctypes.CDLL(importlib.import_module("epigrad._native").__file__)
    library.epg_last_error.restype = library.epg_status_class.restype = ctypes.c_char_p
    return library


def _described(tensor: Tensor, without_memory: torch.device) -> Any:
    """A pointer to a tensor's DLTensor, which keeps its shape and strides alive. A meta tensor is
    described as one on the device `without_memory`."""
    numbers = ctypes.c_int64 * max(1, tensor.dim())
    shape, strides = numbers(*tensor.shape), numbers(*tensor.stride())
    code, bits = _CODES[tensor.dtype]
    device = without_memory if tensor.is_meta else tensor.device
    place = Device(_DEVICES[device.type], device.index or 0)
    return ctypes.pointer(DLTensor(tensor.data_ptr(), place, tensor.dim(), DataType(code, bits, 1), shape, strides, 0))


def _array(tensors: Sequence[Tensor | None], without_memory: torch.device) -> Any:
    pointers: Any = ctypes.POINTER(DLTensor) * max(1, len(tensors))
    return pointers(*[None if tensor is None else _described(tensor, without_memory) for tensor in tensors])


class Prepared:
    """A call of an operation.

    Args:
        problem: has the kind, its parameters, the gate and the dimension.
        op: a name of the table of operations.
        inputs: in its order; those omitted at the end are absent.
        outputs: likewise.
        number: lerp's weight, if it is a number.
        flags: of the call, beside that of `epigrad.batch_invariant`.
        without_memory: the device that meta tensors stand for, in a call that does not run.
    """

    def __init__(
        self,
        problem: Problem,
        op: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        number: float | None,
        flags: int = 0,
        without_memory: torch.device = _CPU,
    ) -> None:
        row = tables.OPS[op]
        self._given = [*inputs, *[None] * (len(row.tensors) - len(inputs))]
        self._wanted = [*outputs, *[None] * (len(row.results) - len(outputs))]
        kind = problem.kind_object
        numbers = [number] if number is not None else list(arguments_of(kind)) if kind is not None else []
        backend = selection.current()
        on_gpu = any(tensor is not None and tensor.is_cuda for tensor in self._given)
        self._call = Call(
            struct_size=ctypes.sizeof(Call),
            op=op.encode(),
            parameters=(ctypes.c_double * max(1, len(numbers)))(*numbers),
            num_parameters=len(numbers),
            flags=flags | (BATCH_INVARIANT if invariance.is_on() and problem.operation.products else 0),
            num_threads=torch.get_num_threads(),
            num_inputs=len(self._given),
            num_outputs=len(self._wanted),
            inputs=_array(self._given, without_memory),
            outputs=_array(self._wanted, without_memory),
            stream=torch.cuda.current_stream().cuda_stream if on_gpu else None,
            backend=None if backend is None else backend.encode(),
        )
        for name, value in problem.operation.options(problem).items():
            self.change(name, value)

    def change(self, name: str, value: Any) -> None:
        """Set an option of a function, or a field of the struct."""
        if name in ("activation", "kind"):
            name, value = "kind", (value if isinstance(value, str) else value.name).encode()
        if name == "gate" and value in GATES:
            value = GATES.index(value)
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

    def plan(self) -> dict[str, Any]:
        """What would run: `epg_plan_describe` of a plan of the call.

        Raises:
            EpigradError: the class that the call's status stands for.
        """
        handle, needed = ctypes.c_int64(), ctypes.c_uint64()
        _raise(_library().epg_plan_create(ctypes.byref(self._call), None, ctypes.byref(handle)))
        try:
            _library().epg_plan_describe(handle, None, ctypes.c_uint64(0), ctypes.byref(needed))
            text = ctypes.create_string_buffer(needed.value)
            _raise(_library().epg_plan_describe(handle, text, needed, None))
        finally:
            _raise(_library().epg_plan_destroy(handle))
        described: dict[str, Any] = json.loads(text.value)
        return described

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


def call(
    problem: Problem,
    op: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | None],
    number: float | None,
    flags: int = 0,
) -> None:
    """Run an operation; the arguments are those of `Prepared`.

    Raises:
        EpigradError: the class that the call's status stands for.
        AssertionError: epg_infer gives another shape than an output has.
    """
    prepared = Prepared(problem, op, inputs, outputs, number, flags)
    prepared.run()
    for tensor, shape in zip(outputs, prepared.shapes, strict=False):
        assert tensor is None or shape == tuple(tensor.shape), (
            f"{op}: epg_infer says {shape}, want {tuple(tensor.shape)}"
        )


def _raise(code: int) -> None:
    if code:
        library = _library()
        raise errors.from_status(code, library.epg_status_class(code).decode(), library.epg_last_error())


def plans(problem: Problem, device: torch.device) -> dict[str, dict[str, Any]]:
    """What would run for a problem, forward and backward to everything, by the operations' names;
    the tensors are contiguous.

    Raises:
        EpigradError: what a run would raise.
    """

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    given = {name: empty(shape, problem.dtype_of(name)) for name, shape in problem.shapes.items() if shape is not None}
    if problem.operation.integers is not None:
        name, integers = problem.operation.integers(problem)
        given[name] = integers.to("meta")
    given["grad_output"] = empty(problem.out_shape, problem.torch_dtype)
    number = 0.5 if problem.op == "lerp" and "weight" not in given else None
    found = {}
    for op in (problem.op, f"{problem.op}_backward"):
        inputs = [given.get(name) for name in tables.OPS[op].tensors]
        prepared = Prepared(problem, op, inputs, [], number, without_memory=device)
        found[op] = prepared.plan()
        if "preactivation" in tables.OPS[op].results:
            prepared.workspace_size()
            shape = prepared.shapes[tables.OPS[op].results.index("preactivation")]
            if shape is not None:
                given["preactivation"] = empty(shape, problem.torch_dtype)
    return found
