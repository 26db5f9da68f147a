"""The structs of cbridge/include/epigrad.h and dlpack.h, for ctypes.

It imports nothing else, so that tests of the library without PyTorch can load this file alone.
"""

from __future__ import annotations

import ctypes


class Device(ctypes.Structure):
    """DLDevice."""

    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    """DLDataType."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Tensors = ctypes.POINTER(ctypes.POINTER(DLTensor))


class Call(ctypes.Structure):
    """epg_call."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("struct_size", "flags")),
        *((name, ctypes.c_char_p) for name in ("op", "kind")),
        ("parameters", ctypes.POINTER(ctypes.c_double)),
        *((name, ctypes.c_int32) for name in ("num_parameters", "dim", "gate", "num_threads")),
        *((name, ctypes.c_int32) for name in ("num_inputs", "num_outputs")),
        ("inputs", Tensors),
        ("outputs", Tensors),
        ("nbytes", ctypes.POINTER(ctypes.c_uint64)),
        ("workspace", ctypes.c_void_p),
        ("workspace_nbytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("backend", ctypes.c_char_p),
    ]


CPU, CUDA, WEBGPU = 1, 2, 15
"""DLDeviceType."""
MAX_RANK, MAX_OUTPUTS = 64, 10
"""EPG_MAX_RANK and EPG_MAX_OUTPUTS."""

ACCUMULATE, BATCH_INVARIANT = 1, 8
"""EPG_ACCUMULATE and EPG_BATCH_INVARIANT."""
