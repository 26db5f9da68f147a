"""libepigrad.so from NumPy through ctypes: a program whose argument names the check to run.

test_c_abi.py runs each check in a process of its own, since two Go runtimes, that of the extension
module and that of the library, do not share one.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "python" / "epigrad" / "_check"))  # importing epigrad would bring PyTorch
from c_structs import BATCH_INVARIANT, CPU, CUDA, MAX_OUTPUTS, MAX_RANK, WEBGPU, Call, DataType, Device, DLTensor  # noqa: E402

LIBRARY = Path(os.environ.get("EPIGRAD_LIBRARY") or ROOT / "build" / "libepigrad.so")
OK, INVALID, DTYPE, UNSUPPORTED, DEVICE, MISALIGNED, WORKSPACE, BUFFER, UNAVAILABLE = range(9)
ACCUMULATE, ALLOW_TF32, ASSUME_WORKSPACE = 1, 2, 4
GATE_FIRST = 1
Array = np.ndarray[Any, np.dtype[Any]]

LIB = ctypes.CDLL(str(LIBRARY))
for _name in ("epg_version", "epg_last_error", "epg_status_class"):
    getattr(LIB, _name).restype = ctypes.c_char_p
for _name in ("epg_plan_workspace", "epg_plan_query", "epg_plan_run", "epg_plan_validate"):
    getattr(LIB, _name).argtypes = [ctypes.c_int64, ctypes.c_void_p]
LIB.epg_plan_destroy.argtypes = [ctypes.c_int64]
LIB.epg_plan_describe.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p]
LIB.epg_plan_create.argtypes = [ctypes.c_void_p] * 3
LIB.epg_infer.argtypes = [ctypes.c_void_p] * 5
LIB.epg_webgpu_alloc.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
LIB.epg_webgpu_free.argtypes = [ctypes.c_void_p]
for _name in ("epg_webgpu_write", "epg_webgpu_read"):
    getattr(LIB, _name).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
for _name in ("epg_backends", "epg_kinds"):
    getattr(LIB, _name).argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p]


class PlanFacts(ctypes.Structure):
    """epg_plan_facts."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("vector_width", "deterministic", "bit_stable", "batch_invariant")),
        *((name, ctypes.c_char_p) for name in ("op", "kind", "dtype", "accumulator", "math_precision")),
        *((name, ctypes.c_char_p) for name in ("backend", "arch", "kernel", "layout")),
    ]


def tensor(array: Array, strides: bool = True, **changes: Any) -> DLTensor:
    """A DLTensor over an array's memory; without strides it says that it is contiguous."""
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    steps = (ctypes.c_int64 * array.ndim)(*(step // array.itemsize for step in array.strides))
    made = DLTensor(
        data=array.ctypes.data,
        device=Device(CPU, 0),
        ndim=array.ndim,
        dtype=DataType(2, array.itemsize * 8, 1),
        shape=shape,
        byte_offset=0,
    )
    if strides:
        made.strides = steps
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def row(tensors: Sequence[Array | DLTensor | None]) -> Any:
    """The array of pointers that a call holds."""
    pointers = (ctypes.POINTER(DLTensor) * max(len(tensors), 1))()
    for place, one in enumerate(tensors):
        if one is not None:
            pointers[place] = ctypes.pointer(one if isinstance(one, DLTensor) else tensor(one))
    return pointers


def make_call(
    op: str | None,
    kind: str | None,
    inputs: Sequence[Array | DLTensor | None],
    outputs: Sequence[Array | DLTensor | None],
    **rest: Any,
) -> Call:
    """An epg_call; `nbytes` and `parameters` may be lists, `workspace` an array."""
    call = Call(
        struct_size=ctypes.sizeof(Call),
        op=op.encode() if op is not None else None,
        kind=kind.encode() if kind else None,
    )
    call.inputs, call.outputs = row(inputs), row(outputs)
    call.num_inputs, call.num_outputs = len(inputs), len(outputs)
    workspace = rest.pop("workspace", None)
    if workspace is not None:
        call.workspace, call.workspace_nbytes = workspace.ctypes.data, workspace.nbytes
    parameters = rest.pop("parameters", None)
    if parameters is not None:
        call.parameters = (ctypes.c_double * len(parameters))(*parameters)
        call.num_parameters = len(parameters)
    nbytes = rest.pop("nbytes", None)
    if nbytes is not None:
        call.nbytes = (ctypes.c_uint64 * len(nbytes))(*nbytes)
    for name, value in rest.items():
        setattr(call, name, value)
    return call


def scratch(size: int) -> Array:
    """`size` bytes that start at a multiple of 256."""
    buffer = np.zeros(size + 256, np.uint8)
    start = -buffer.ctypes.data % 256
    return buffer[start : start + size]


def needed(call: Call) -> int:
    """The workspace that epg_infer asks for."""
    shapes, ranks, size = room()
    assert LIB.epg_infer(ctypes.byref(call), None, shapes, ranks, ctypes.byref(size)) == OK, LIB.epg_last_error()
    return size.value


def room() -> tuple[Any, Any, Any]:
    """What epg_infer writes into: shapes, ranks and the workspace's bytes."""
    return (ctypes.c_int64 * (MAX_OUTPUTS * MAX_RANK))(), (ctypes.c_int32 * MAX_OUTPUTS)(), ctypes.c_uint64()


def run(op: str, kind: str | None, inputs: Sequence[Any], outputs: Sequence[Any], **rest: Any) -> None:
    """epg_run with the workspace that it needs; the status must be OK."""
    call = make_call(op, kind, inputs, outputs, **rest)
    workspace = scratch(needed(call))
    if workspace.nbytes:
        call.workspace, call.workspace_nbytes = workspace.ctypes.data, workspace.nbytes
    status = LIB.epg_run(ctypes.byref(call))
    assert status == OK, (status, LIB.epg_last_error())


def refused(
    status: int, *words: str, call: Call, outputs: Sequence[Array] = (), run: Callable[..., int] | None = None
) -> None:
    """The call must give this status and a message with these words, and leave the outputs as they
    are."""
    before = [out.tobytes() for out in outputs]
    got = (run or LIB.epg_run)(ctypes.byref(call))
    message = LIB.epg_last_error().decode()
    assert got == status, (got, message)
    for word in words:
        assert word in message, (word, message)
    assert [out.tobytes() for out in outputs] == before, "an output was written"


def nan(*shape: int, dtype: Any = np.float64) -> Array:
    return np.full(shape, math.nan, dtype)


RNG = np.random.default_rng(3)
X, W, B, G = (RNG.standard_normal(shape) for shape in ((3, 4), (5, 4), (5,), (3, 5)))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def check_versions() -> None:
    header = (ROOT / "cbridge" / "include" / "epigrad.h").read_text()
    assert LIB.epg_abi_version() == int(header.split("#define EPG_ABI_VERSION ")[1].split()[0])
    assert LIB.epg_version().decode() == header.split('#define EPG_VERSION "')[1].split('"')[0]
    assert LIB.epg_forked() == 0


def check_no_error_before_a_call() -> None:
    """Loading without PyTorch fails to define its operators, which is no error of the program."""
    assert LIB.epg_last_error() == b""
    assert LIB.epg_torch_register() == UNAVAILABLE and b"PyTorch" in LIB.epg_last_error()


def check_forward() -> None:
    out, pre = nan(3, 5), nan(3, 5)
    run("linear", "tanh", [X, W, B], [out, pre])
    np.testing.assert_allclose(pre, X @ W.T + B, rtol=1e-14)
    np.testing.assert_allclose(out, np.tanh(X @ W.T + B), rtol=1e-14)
    run("matmul_bias_activation", None, [X, np.ascontiguousarray(W.T), None], [out, None])
    np.testing.assert_allclose(out, X @ W.T, rtol=1e-14)
    half = nan(3, 2)
    run("gated_activation", "swiglu", [X], [half], dim=-1)
    np.testing.assert_allclose(half, X[:, :2] * X[:, 2:] * sigmoid(X[:, 2:]), rtol=1e-14)
    run("gated_activation", "swiglu", [X], [half], dim=1, gate=GATE_FIRST)
    np.testing.assert_allclose(half, X[:, 2:] * X[:, :2] * sigmoid(X[:, :2]), rtol=1e-14)
    layer, pre = nan(3, 5), nan(3, 10)
    value, gate = X @ W.T, X @ -W.T + B
    run("gated_linear", "glu", [X, W, -W, None, B], [layer, pre])
    np.testing.assert_allclose(pre, np.concatenate([value, gate], 1), rtol=1e-14)
    np.testing.assert_allclose(layer, value * sigmoid(gate), rtol=1e-13)
    mixed = nan(3, 4)
    run("lerp", None, [X, -X, None], [mixed], parameters=[0.25])
    np.testing.assert_allclose(mixed, 0.5 * X, rtol=1e-14)
    run("prelu", None, [X, X[0]], [mixed])
    np.testing.assert_allclose(mixed, np.where(X > 0, X, X[0] * X), rtol=1e-14)
    alpha = np.array([0.3])
    bent = np.where(X > 0, np.log1p(np.exp(0.3)) * X * X, (0.25 + np.log1p(np.exp(0.3))) * (np.expm1(X) - X))
    run("xielu", None, [X, alpha, alpha], [mixed], parameters=[0.25])
    np.testing.assert_allclose(mixed, bent + 0.25 * X, rtol=1e-12)


def check_backward() -> None:
    grads = [nan(3, 4), nan(5, 4), nan(5)]
    run("linear_backward", "tanh", [G, X, W, B, None, None], grads)
    slope = G * (1 - np.tanh(X @ W.T + B) ** 2)
    for got, want in zip(grads, (slope @ W, slope.T @ X, slope.sum(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    once = grads[1].copy()
    run("linear_backward", "tanh", [G, X, W, B, None, None], [None, grads[1], None], flags=ACCUMULATE)
    np.testing.assert_allclose(grads[1], 2 * once, rtol=1e-12)
    ends = [nan(3, 4), nan(3, 4), nan(1)]
    weight = np.array([0.25])
    run("lerp_backward", None, [X, X, -X, weight], ends)
    for got, want in zip(ends, (0.75 * X, 0.25 * X, [(X * -2 * X).sum()]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    learned = [nan(3, 4), nan(4)]
    run("prelu_backward", None, [X, X, X[0]], learned)
    for got, want in zip(learned, (np.where(X > 0, X, X[0] * X), np.where(X > 0, 0, X * X).sum(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    product = [nan(3, 4), nan(3, 4), nan(4), nan(4)]
    run("gated_product_backward", "glu", [X, X, X], product)
    of_value, of_gate = X * sigmoid(X), X * X * sigmoid(X) * sigmoid(-X)
    for got, want in zip(product, (of_value, of_gate, of_value.sum(0), of_gate.sum(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    layer = [nan(3, 4), nan(5, 4), nan(5, 4), nan(5)]
    run("gated_linear_backward", "bilinear", [G, X, W, -W, B], [*layer, None])
    of_value, of_gate = G * (X @ -W.T), G * (X @ W.T + B)
    wanted = (of_value @ W - of_gate @ W, of_value.T @ X, of_gate.T @ X, of_value.sum(0))
    for got, want in zip(layer, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def integers(array: Array) -> DLTensor:
    """A tensor of indices or of offsets."""
    return tensor(array, dtype=DataType(0, array.itemsize * 8, 1))


def check_groups() -> None:
    weights, bias = np.stack([W, -W, 2 * W]), np.stack([B, B, -B])
    group = np.array([0, 2, 3])  # of each row, of which the last is nobody's
    for width in (np.int32, np.int64):
        offsets = integers(np.array([1, 1, 2], width))
        out, pre = nan(3, 5), nan(3, 5)
        run("grouped_linear", "tanh", [X, weights, bias, offsets], [out, pre])
        want = np.stack([weights[e] @ x + bias[e] if e < 3 else 0 * B for x, e in zip(X, group, strict=True)])
        np.testing.assert_allclose(pre, want, rtol=1e-14)
        np.testing.assert_allclose(out, np.tanh(want), rtol=1e-14)
        grads = [nan(3, 4), nan(3, 5, 4), nan(3, 5)]
        run("grouped_linear_backward", "tanh", [G, X, weights, bias, offsets, pre], grads)
        slope = G / np.cosh(want) ** 2 * (group < 3)[:, None]
        np.testing.assert_allclose(grads[0][:2], np.stack([slope[0] @ W, slope[1] @ (2 * W)]), rtol=1e-12)
        np.testing.assert_allclose(grads[1], [np.outer(slope[0], X[0]), 0 * W, np.outer(slope[1], X[1])], rtol=1e-12)
        np.testing.assert_allclose(grads[2], [slope[0], 0 * B, slope[1]], rtol=1e-12)
        assert not grads[0][2].any()
    index = np.array([[0, 1], [1, 7], [-1, 0]])  # 7 and -1 select nothing
    scale = RNG.standard_normal((3, 2))
    gates, down = RNG.standard_normal((2, 6, 4)), RNG.standard_normal((2, 4, 3))
    out, pre = nan(3, 4), nan(6, 6)
    run("experts", "swiglu", [X, integers(index), scale, gates, None, down, None], [out, pre])
    want = np.zeros((3, 4))
    for t, j in np.ndindex(3, 2):
        if 0 <= index[t, j] < 2:
            value, gate = np.split(gates[index[t, j]] @ X[t], 2)
            want[t] += scale[t, j] * (down[index[t, j]] @ (value * gate * sigmoid(gate)))
    np.testing.assert_allclose(out, want, rtol=1e-12)
    grad = nan(3, 2)
    inputs = [want, X, integers(index), scale, gates, None, down, None, pre]
    run("experts_backward", "swiglu", inputs, [None, grad, None, None, None, None])
    np.testing.assert_allclose((grad * scale).sum(1), (want * want).sum(1), rtol=1e-12)  # out is linear in scale
    assert grad[1, 1] == 0 and grad[2, 0] == 0
    for wrong, word in (([2, 1, 2], "offsets"), ([0, 1, 4], "offsets"), ([-1, 1, 2], "offsets")):
        fresh = nan(3, 5)
        call = make_call("grouped_linear", None, [X, weights, None, integers(np.array(wrong))], [fresh, None])
        workspace = scratch(needed(call))
        call.workspace, call.workspace_nbytes = workspace.ctypes.data, workspace.nbytes
        refused(INVALID, "grouped_linear", word, call=call, outputs=[fresh])
    refused(
        DTYPE, "index", call=make_call("experts", "swiglu", [X, X[:, :2], scale, gates, None, down, None], [out, None])
    )


def check_null_strides_and_layouts() -> None:
    want, out = nan(3, 5), nan(3, 5)
    run("linear", "gelu", [X, W, B], [want, None])
    run(
        "linear",
        "gelu",
        [tensor(X, strides=False), tensor(W, strides=False), tensor(B, strides=False)],
        [tensor(out, strides=False), None],
    )
    assert out.tobytes() == want.tobytes()
    wide = np.full((3, 9), math.nan)
    wide[:, 1:5] = X
    columns = nan(5, 3)
    run("linear", "gelu", [wide[:, 1:5], np.asfortranarray(W), np.repeat(B, 2)[::2]], [columns.T, None])
    assert np.ascontiguousarray(columns.T).tobytes() == want.tobytes()
    behind = tensor(X, data=X.ctypes.data - 64, byte_offset=64)
    run("linear", "gelu", [behind, W, B], [out.view(), None])
    assert out.tobytes() == want.tobytes()
    reversed_x = tensor(X[::-1])
    run("linear", "gelu", [reversed_x, W, B], [out, None])
    np.testing.assert_array_equal(out, want[::-1])


def check_dtypes() -> None:
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 1e-2)):
        out = nan(3, 5, dtype=dtype)
        run("linear", "sigmoid", [X.astype(dtype), W.astype(dtype), B.astype(dtype)], [out, None])
        np.testing.assert_allclose(out, sigmoid(X @ W.T + B), rtol=tolerance)
    brain = [(a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for a in (X, W, B)]
    out = np.zeros((3, 5), np.uint16)
    as_brain = DataType(4, 16, 1)
    run("linear", "sigmoid", [tensor(a, dtype=as_brain) for a in brain], [tensor(out, dtype=as_brain), None])
    got = (out.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(got, sigmoid(X @ W.T + B), rtol=5e-2)


def check_problem_errors() -> None:
    out = nan(3, 5)
    refused(
        INVALID,
        "linear",
        "weight",
        call=make_call("linear", None, [X, W[:, :3].copy(), None], [out, None]),
        outputs=[out],
    )
    assert LIB.epg_status_class(INVALID) == b"InvalidProblemError" and LIB.epg_status_class(OK) == b""
    refused(INVALID, "swash", "gelu_tanh", call=make_call("linear", "swash", [X, W, None], [out, None]), outputs=[out])
    refused(INVALID, "softmax", call=make_call("softmax", None, [X], [out]), outputs=[out])
    refused(INVALID, call=make_call(None, None, [X], [out]), outputs=[out])
    refused(INVALID, "weight", call=make_call("linear", None, [X, None, None], [out, None]), outputs=[out])
    refused(INVALID, call=make_call("linear", None, [X, W, None, B, B, B, B], [out, None]), outputs=[out])
    refused(INVALID, "out", call=make_call("linear", None, [X, W, None], [nan(5, 3), None]))
    square = X.copy()
    refused(
        INVALID,
        "out",
        "start",
        call=make_call("lerp", None, [square, X, None], [square], parameters=[0.5]),
        outputs=[square],
    )
    refused(
        DTYPE,
        "float32",
        "float64",
        call=make_call("linear", None, [X, W.astype(np.float32), None], [out, None]),
        outputs=[out],
    )
    for wrong in (DataType(2, 32, 4), DataType(0, 64, 1), DataType(2, 80, 1), DataType(99, 64, 1)):
        refused(
            DTYPE,
            "input",
            call=make_call("linear", None, [tensor(X, dtype=wrong), W, None], [out, None]),
            outputs=[out],
        )
    for device in (CUDA, WEBGPU):
        elsewhere = tensor(X, device=Device(device, 0))
        refused(
            DEVICE,
            call=make_call("linear", None, [X, tensor(W, device=Device(device, 0)), None], [out, None]),
            outputs=[out],
        )
        status = LIB.epg_validate(ctypes.byref(make_call("gated_activation", "glu", [elsewhere], [None], dim=-1)))
        assert status in (UNAVAILABLE, DEVICE, UNSUPPORTED, INVALID), status
    refused(
        MISALIGNED,
        "input",
        "8",
        call=make_call("linear", None, [tensor(X, byte_offset=4), W, None], [out, None]),
        outputs=[out],
    )


def check_malformed_calls() -> None:
    out = nan(3, 5)
    refused(INVALID, call=make_call("linear", None, [tensor(X, ndim=-1), W, None], [out, None]), outputs=[out])
    refused(
        INVALID, call=make_call("linear", None, [tensor(X, ndim=MAX_RANK + 1), W, None], [out, None]), outputs=[out]
    )
    refused(INVALID, call=make_call("linear", None, [tensor(X, shape=None), W, None], [out, None]), outputs=[out])
    refused(INVALID, call=make_call("linear", None, [tensor(X, data=None), W, None], [out, None]), outputs=[out])
    refused(
        INVALID,
        call=make_call("linear", None, [tensor(X, shape=(ctypes.c_int64 * 2)(-3, 4)), W, None], [out, None]),
        outputs=[out],
    )
    huge = (ctypes.c_int64 * 2)(2**62, 4)
    refused(INVALID, call=make_call("linear", None, [tensor(X, shape=huge), W, None], [out, None]), outputs=[out])
    steep = (ctypes.c_int64 * 2)(2**62, 1)
    refused(
        INVALID,
        call=make_call(
            "linear",
            None,
            [tensor(X, strides=False), tensor(W), None],
            [tensor(out, strides=False), None],
            num_inputs=-1,
        ),
    )
    without_inputs = make_call("linear", None, [X, W, None], [out, None])
    without_inputs.inputs = None
    refused(INVALID, call=without_inputs, outputs=[out])
    steep_x = tensor(X)
    steep_x.strides = steep
    refused(INVALID, call=make_call("linear", None, [steep_x, W, None], [out, None]), outputs=[out])
    refused(
        INVALID, "struct_size", call=make_call("linear", None, [X, W, None], [out, None], struct_size=8), outputs=[out]
    )
    for function in (LIB.epg_run, LIB.epg_validate):
        assert function(None) == INVALID
    assert LIB.epg_plan_create(None, None, None) == INVALID


def refused_with(status: int, text: str, got: int) -> None:
    """A function must have returned this status, with a message that begins with this text."""
    message = LIB.epg_last_error().decode()
    assert got == status and message.startswith(text), (got, message)


def check_null_result_pointers() -> None:
    call = make_call("linear", None, [X, W, B], [nan(3, 5), None])
    here = ctypes.byref(call)
    shapes, ranks, _ = room()
    refused_with(INVALID, "epg_infer: shapes: a null pointer", LIB.epg_infer(here, None, None, ranks, None))
    refused_with(INVALID, "epg_infer: ranks: a null pointer", LIB.epg_infer(here, None, shapes, None, None))
    assert LIB.epg_infer(here, None, shapes, ranks, None) == OK and list(ranks) == [2, 2, *(-1,) * (MAX_OUTPUTS - 2)]
    first, second = ctypes.c_int64(), ctypes.c_int64()
    assert LIB.epg_plan_create(here, None, ctypes.byref(first)) == OK
    for _ in range(10):
        refused_with(INVALID, "epg_plan_create: plan: a null pointer", LIB.epg_plan_create(here, None, None))
    assert LIB.epg_plan_create(here, None, ctypes.byref(second)) == OK
    assert second.value == first.value + 1, "a plan was made that nobody can destroy"
    refused_with(INVALID, "epg_plan_workspace: workspace_nbytes: a null pointer", LIB.epg_plan_workspace(first, None))
    assert LIB.epg_plan_describe(first, None, 100, None) == BUFFER and LIB.epg_backends(None, 100, None) == BUFFER
    assert LIB.epg_kinds(None, 100, None) == BUFFER
    for plan in (first, second):
        refused_with(INVALID, "call: a null pointer", LIB.epg_plan_run(plan, None))
        assert LIB.epg_plan_destroy(plan) == OK
    LIB.epg_last_error_bytes(None, None)
    # Whether or not WebGPU can run here: what is wrong with the call comes first.
    refused_with(INVALID, "epg_webgpu_alloc: data: a null pointer", LIB.epg_webgpu_alloc(16, None))
    refused_with(INVALID, "epg_webgpu_write: from: a null pointer", LIB.epg_webgpu_write(1 << 20, None, 4))
    refused_with(INVALID, "epg_webgpu_read: to: a null pointer", LIB.epg_webgpu_read(1 << 20, None, 4))
    assert LIB.epg_webgpu_free(None) == OK
    address = ctypes.c_void_p()
    if LIB.epg_webgpu_alloc(16, ctypes.byref(address)) == OK:
        host = np.zeros(4, np.float32)
        for transfer in (LIB.epg_webgpu_write, LIB.epg_webgpu_read):
            assert transfer(address, None, 0) == OK
            assert transfer(address, host.ctypes.data, 2**64 - 1) == BUFFER
            refused_with(INVALID, "webgpu: address: got 0x0, want one", transfer(None, host.ctypes.data, 16))
        assert LIB.epg_webgpu_free(address) == OK


def check_flags_and_stream() -> None:
    out = nan(3, 5)
    halves = nan(3, 2)

    def of(op: str, inputs: Sequence[Any], outputs: Sequence[Any], kind: str | None = None, **rest: Any) -> None:
        words, given = rest.pop("words"), [one for one in outputs if one is not None]
        for function in (LIB.epg_run, LIB.epg_validate):
            refused(INVALID, *words, call=make_call(op, kind, inputs, outputs, **rest), outputs=given, run=function)

    for bit in range(4, 32):
        of("linear", [X, W, B], [out, None], flags=1 << bit, words=["linear: flags", hex(1 << bit), "EPG_ACCUMULATE"])
    of("linear", [X, W, B], [out, None], stream=16, words=["linear: stream", "0x10", "cpu"])
    of("linear", [X, W, B], [out, None], gate=GATE_FIRST, words=["linear: gate"])
    of("linear", [X, W, B], [out, None], parameters=[0.5], words=["linear: parameters", "want none"])
    of("lerp", [X, X, None], [nan(3, 4)], parameters=[0.5, 1], words=["lerp: parameters"])
    of("prelu", [X, X[0, :2]], [nan(3, 4)], words=["prelu: weight", "[2]", "[4]"])
    of("xielu", [X, X[0], X[0]], [nan(3, 4)], words=["xielu: alpha_p", "one element"])
    of("xielu", [X, B[:1], B[:1]], [nan(3, 4)], parameters=[np.inf], words=["xielu: beta", "finite"])
    of("linear", [X, W, B], [out, None], flags=ACCUMULATE, words=["linear: accumulate"])
    of("linear", [X, W, B], [out, None], dim=1, words=["linear: dim"])
    of("linear", [X, W, B], [out, None], num_parameters=1, words=["linear: parameters", "and an array"])
    of("linear", [X, W, B], [out, None], num_threads=-1, words=["linear: num_threads: got -1"])
    of("gated_activation", [X], [halves], "glu", dim=1, flags=ALLOW_TF32, words=["gated_activation: allow_tf32"])
    of("gated_activation", [X], [halves], "glu", dim=1, flags=BATCH_INVARIANT, words=["gated_activation: batch_inv"])
    of("gated_activation", [X], [halves], "glu", dim=1, flags=ACCUMULATE, words=["gated_activation: accumulate"])
    of("lerp", [X, X, X], [nan(3, 4)], "relu", words=["lerp: kind", "relu"])
    of("lerp", [X, X, X], [nan(3, 4)], flags=ACCUMULATE, words=["lerp: accumulate"])
    # a permission that the CPU makes no use of
    run("linear", None, [X, W, B], [out, None], flags=ALLOW_TF32)
    # and what it does anyway
    run("linear", None, [X, W, B], [out, None], flags=BATCH_INVARIANT)
    run("linear", None, [X, W, B], [out, None], flags=ASSUME_WORKSPACE)


def check_nbytes() -> None:
    out = nan(3, 5)
    exact = [X.nbytes, W.nbytes, B.nbytes, out.nbytes, 0]
    run("linear", None, [X, W, B], [out, None], nbytes=exact)
    for place, name in enumerate(("input", "weight", "bias", "out")):
        sizes = list(exact)
        sizes[place] -= 1
        out.fill(math.nan)
        refused(
            BUFFER,
            name,
            str(exact[place]),
            call=make_call("linear", None, [X, W, B], [out, None], nbytes=sizes),
            outputs=[out],
        )
        want, got = ctypes.c_int64(), ctypes.c_int64()
        LIB.epg_last_error_bytes(ctypes.byref(want), ctypes.byref(got))
        assert (want.value, got.value) == (exact[place], exact[place] - 1)
    strided = np.zeros((3, 8))[:, ::2]
    reach = strided.strides[0] * 2 + strided.strides[1] * 3 + 8
    run("linear", None, [strided, W, B], [out, None], nbytes=[reach, 0, 0, 0, 0])
    refused(
        BUFFER, "input", call=make_call("linear", None, [strided, W, B], [out, None], nbytes=[reach - 1, 0, 0, 0, 0])
    )


def check_workspace() -> None:
    x, w, g = (np.ones(shape, np.float32) for shape in ((64, 32), (96, 32), (64, 96)))
    grads = [nan(64, 32, dtype=np.float32), nan(96, 32, dtype=np.float32), None]
    call = make_call("linear_backward", "gelu", [g, x, w, None, None, None], grads)
    size = needed(call)
    assert size > 0
    refused(WORKSPACE, "workspace", call=call, outputs=grads[:2])
    want, got = ctypes.c_int64(), ctypes.c_int64()
    LIB.epg_last_error_bytes(ctypes.byref(want), ctypes.byref(got))
    assert (want.value, got.value) == (size, 0)
    space = scratch(size + 256)
    call.workspace, call.workspace_nbytes = space.ctypes.data, size - 1
    refused(WORKSPACE, call=call, outputs=grads[:2])
    call.workspace, call.workspace_nbytes = space.ctypes.data + 8, size
    refused(MISALIGNED, "workspace", call=call, outputs=grads[:2])
    call.workspace = space.ctypes.data
    assert LIB.epg_run(ctypes.byref(call)) == OK
    assert not np.isnan(grads[0]).any()


def check_infer() -> None:
    call = make_call("linear_backward", None, [G, X, W, None, None, None], [None, None, None])
    shapes, ranks, size = room()
    wanted = (ctypes.c_uint8 * 3)(1, 0, 1)
    assert LIB.epg_infer(ctypes.byref(call), wanted, shapes, ranks, ctypes.byref(size)) == OK
    assert list(ranks) == [2, *(-1,) * (MAX_OUTPUTS - 1)] and shapes[0:2] == [3, 4]


def check_plans() -> None:
    out, plan, size = nan(3, 5), ctypes.c_int64(), ctypes.c_uint64()
    call = make_call("linear", "gelu", [X, W, B], [out, None])
    assert LIB.epg_plan_create(ctypes.byref(call), None, ctypes.byref(plan)) == OK, LIB.epg_last_error()
    assert np.isnan(out).all()
    assert LIB.epg_plan_workspace(plan, ctypes.byref(size)) == OK
    space = scratch(size.value)
    full = make_call("linear", "gelu", [X, W, B], [out, None], workspace=space if size.value else None)
    assert LIB.epg_plan_validate(plan, ctypes.byref(full)) == OK and np.isnan(out).all()
    assert LIB.epg_plan_run(plan, ctypes.byref(full)) == OK
    want = nan(3, 5)
    run("linear", "gelu", [X, W, B], [want, None])
    assert out.tobytes() == want.tobytes()
    short = ctypes.create_string_buffer(4)
    assert LIB.epg_plan_describe(plan, short, 4, ctypes.byref(size)) == BUFFER
    text = ctypes.create_string_buffer(size.value)
    assert LIB.epg_plan_describe(plan, text, size.value, ctypes.byref(size)) == OK
    facts = json.loads(text.value)
    assert (
        facts["sku"]["dtype"] == "float64"
        and facts["sku"]["accumulator"] == "float64"
        and len(text.value) + 1 == size.value
    )
    told = PlanFacts(struct_size=ctypes.sizeof(PlanFacts))
    assert LIB.epg_plan_query(plan, ctypes.byref(told)) == OK
    assert (told.op, told.dtype, told.accumulator) == (b"linear", b"float64", b"float64")
    assert told.kernel.decode() == facts["sku"]["kernel"] and told.deterministic == 1
    refused_with(INVALID, "epg_plan_query: facts: a null pointer", LIB.epg_plan_query(plan, None))
    told.struct_size += 8
    refused_with(INVALID, "epg_plan_query: struct_size", LIB.epg_plan_query(plan, ctypes.byref(told)))
    other = make_call("linear", "gelu", [X[:2].copy(), W, B], [nan(2, 5), None])
    assert LIB.epg_plan_run(plan, ctypes.byref(other)) == INVALID
    assert LIB.epg_plan_destroy(plan) == OK and LIB.epg_plan_destroy(plan) == INVALID
    assert LIB.epg_plan_run(plan, ctypes.byref(full)) == INVALID
    assert LIB.epg_plan_workspace(-1, ctypes.byref(size)) == INVALID


def check_backends() -> None:
    size = ctypes.c_uint64()
    assert LIB.epg_backends(None, 0, ctypes.byref(size)) == BUFFER
    text = ctypes.create_string_buffer(size.value)
    assert LIB.epg_backends(text, size.value, ctypes.byref(size)) == OK
    assert {"cpu", "cuda", "webgpu"} <= {info["name"] for info in json.loads(text.value)}


def check_threads() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(100):
                wrong = make_call("linear", None, [np.ones((2, number + 50)), W, None], [nan(2, 5), None])
                refused(INVALID, str(number + 50), call=wrong)
                out = nan(3, 5)
                run("linear", "relu", [X, W, B], [out, None], num_threads=number % 3)
                np.testing.assert_allclose(out, np.maximum(X @ W.T + B, 0), rtol=1e-12)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def check_fork() -> None:
    out = nan(3, 5)
    run("linear", None, [X, W, B], [out, None])
    child = os.fork()
    if child == 0:
        call = make_call("linear", None, [X, W, B], [out, None])
        refused_here = (
            LIB.epg_forked() == 1 and LIB.epg_run(ctypes.byref(call)) == UNAVAILABLE and b"fork" in LIB.epg_last_error()
        )
        os._exit(0 if refused_here else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run("linear", None, [X, W, B], [out, None])


CHECKS = {name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")}

if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
    print("fine")
