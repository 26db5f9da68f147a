"""libepigrad.so from NumPy through ctypes: a program whose arguments name the checks to run.

It asks of the library what tests/cbridge/caller does not ask of its sources. Results of every
operation through this interface are `entry=c` of `python -m epigrad check`.

test_c_abi.py runs it in a process of its own, since two Go runtimes, that of the extension module
and that of the library, do not share one.
"""

from __future__ import annotations

import ctypes
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
from c_structs import BATCH_INVARIANT, CPU, MAX_OUTPUTS, MAX_RANK, Call, DataType, Device, DLTensor  # noqa: E402

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
LIB.epg_plan_create.argtypes = [ctypes.c_void_p] * 3
LIB.epg_infer.argtypes = [ctypes.c_void_p] * 5
LIB.epg_webgpu_alloc.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
LIB.epg_webgpu_free.argtypes = [ctypes.c_void_p]
for _name in ("epg_webgpu_write", "epg_webgpu_read"):
    getattr(LIB, _name).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
for _name in ("epg_backends", "epg_kinds"):
    getattr(LIB, _name).argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p]


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
    """An epg_call; `parameters` may be a list, `workspace` an array."""
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
    for flags in (ALLOW_TF32, BATCH_INVARIANT, ASSUME_WORKSPACE):  # what the CPU makes no use of, or does anyway
        run("linear", "tanh", [X, W, B], [out, None], flags=flags)
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


def check_malformed_calls() -> None:
    """What tests/cbridge/caller cannot make of Go's slices."""
    out, huge = nan(3, 5), (ctypes.c_int64 * 2)(2**62, 4)
    for changes in ({"ndim": -1}, {"shape": None}, {"data": None}, {"shape": huge}):
        call = make_call("linear", None, [tensor(X, **changes), W, None], [out, None])
        refused(INVALID, call=call, outputs=[out])
    for field, value in {"inputs": None, "num_inputs": -1, "num_parameters": 1, "struct_size": 8}.items():
        call = make_call("linear", None, [X, W, None], [out, None])
        setattr(call, field, value)
        refused(INVALID, call=call, outputs=[out])
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
    assert LIB.epg_backends(None, 100, None) == BUFFER and LIB.epg_kinds(None, 100, None) == BUFFER
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
    assert LIB.epg_plan_workspace(plan, ctypes.byref(size)) == OK
    space = scratch(size.value)
    full = make_call("linear", "gelu", [X, W, B], [out, None], workspace=space if size.value else None)
    assert LIB.epg_plan_validate(plan, ctypes.byref(full)) == OK and np.isnan(out).all()
    assert LIB.epg_plan_run(plan, ctypes.byref(full)) == OK
    want = nan(3, 5)
    run("linear", "gelu", [X, W, B], [want, None])
    assert out.tobytes() == want.tobytes()
    refused_with(INVALID, "epg_plan_query: facts: a null pointer", LIB.epg_plan_query(plan, None))
    assert LIB.epg_plan_destroy(plan) == OK


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
    for _name in sys.argv[1:]:
        CHECKS[_name]()
        print(_name, flush=True)
