"""WebGPU: arrays on the adapter, what is refused, what must never end the process. Parity cases run
elsewhere."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import importlib.util
import itertools
import math
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward
from epigrad._check.calls import Inputs
from epigrad._check.problem import Problem
from epigrad._core import loader, tables
from epigrad.cli import runner
from epigrad.webgpu import Array
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import webgpu as bench_webgpu
from tests.api.checking import example_of
from tests.support.cases import FULL
from tests.support.devices import REQUIRED, needs
from tests.support.layouts import assert_same_bits
from tests.support.processes import run_script
from tests.support.tiers import in_turns, nightly, thorough
from tests.support.ulp import BOUND

pytestmark = needs("webgpu")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


# A process of its own finds wgpu-native where this one does: in the wheel, or where the environment
# says.
NATIVE = {name: os.environ[name] for name in ("EPIGRAD_WGPU_NATIVE",) if name in os.environ}


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def on_host(results: object) -> list[Tensor | None]:
    listed = results if isinstance(results, tuple) else (results,)
    return [result.to_torch() if isinstance(result, Array) else result for result in listed]


@dtypes
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 0, 3), (5, 7), (2, 3, 5)], ids=str)
def test_an_array_is_what_it_was_made_from(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = draw(*shape, dtype=dtype)
    array = Array.from_torch(tensor)
    assert array.shape == tensor.shape and isinstance(array.shape, torch.Size)
    assert array.dtype == dtype and array.__dlpack_device__() == (15, 0) and array.stride() == tensor.stride()
    assert_same_bits(array.to_torch(), tensor)
    if len(shape) > 1:
        assert_same_bits(Array.from_torch(tensor.mT).to_torch(), tensor.mT.contiguous())


@dtypes
def test_bits_survive(dtype: torch.dtype) -> None:
    """Every half there is, and random words as float32: payloads of NaN, denormals, both zeros."""
    if dtype.itemsize == 2:
        bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    else:
        bits = torch.randint(-(2**31), 2**31, (4099,), dtype=torch.int64).to(torch.int32)
    tensor = bits.view(dtype)
    assert torch.equal(Array.from_torch(tensor).to_torch().view(bits.dtype), bits)


def test_an_array_of_zeros_without_memory() -> None:
    """PyTorch's zeros of forward mode have no address to copy from."""
    assert_same_bits(Array.from_torch(torch._efficientzerotensor((3, 4))).to_torch(), torch.zeros(3, 4))


def reuse_freed_memory(shape: tuple[int, ...]) -> list[Array]:
    """New arrays in the memory that was given back last, if any was: they are full of sevens."""
    gc.collect()
    return [Array.from_torch(torch.full(shape, 7.0)) for _ in range(4)]


def test_a_copy_of_an_array_shares_its_memory_and_keeps_it() -> None:
    tensor = draw(64, 64)
    array = Array.from_torch(tensor)
    copied = copy.copy(array)
    assert copied.address == array.address and copied.shape == array.shape and copied.dtype == array.dtype
    forward.lerp(Array.from_torch(tensor), Array.from_torch(tensor), 0.0, out=copied)
    assert_same_bits(array.to_torch(), tensor)
    del array
    others = reuse_freed_memory((64, 64))
    assert_same_bits(copied.to_torch(), tensor)
    address = copied.address
    del copied, others
    gc.collect()
    # the last holder has given the memory back, and only the last
    with pytest.raises(errors.EpigradError):
        loader.core().webgpu_free(address)


def test_a_deep_copy_of_an_array_has_data_of_its_own() -> None:
    tensor = draw(64, 64)
    array = Array.from_torch(tensor)
    first, second = copy.deepcopy([array, array])
    assert first is second and first.address != array.address
    forward.lerp(reuse_freed_memory((64, 64))[0], Array.from_torch(tensor), 0.0, out=first)
    assert_same_bits(array.to_torch(), tensor)
    assert_same_bits(first.to_torch(), torch.full((64, 64), 7.0))
    one = copy.deepcopy(array)
    del array
    others = reuse_freed_memory((64, 64))
    assert_same_bits(one.to_torch(), tensor)
    del others


@dtypes
def test_a_pickle_of_an_array_has_its_data(dtype: torch.dtype) -> None:
    tensor = draw(5, 7, dtype=dtype)
    array = Array.from_torch(tensor)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        text = pickle.dumps([array, array, Array((0, 3), dtype)], protocol=protocol)
        first, second, empty = pickle.loads(text)
        assert first is second and first.address != array.address
        assert_same_bits(first.to_torch(), tensor)
        assert empty.shape == (0, 3) and empty.dtype == dtype


def test_another_process_reads_a_pickle_of_an_array(tmp_path: Path) -> None:
    tensor, file = draw(5, 7, dtype=torch.float16), tmp_path / "arrays.pickle"
    array = Array.from_torch(tensor)
    file.write_bytes(pickle.dumps([array, array, Array((0, 3), torch.float16)]))
    del array
    body = f"""
import pickle
import epigrad
first, second, empty = pickle.loads(open({str(file)!r}, "rb").read())
result = epigrad.forward.lerp(first, second, 0.5).to_torch()
print(first is second, pickle.dumps(result.tolist()).hex(), empty.shape)
"""
    same, values, shape = run_script(body, **NATIVE).split(" ", 2)
    assert (same, shape) == ("True", "torch.Size([0, 3])")
    assert_same_bits(torch.tensor(pickle.loads(bytes.fromhex(values)), dtype=torch.float16), tensor)


@dtypes
@pytest.mark.parametrize("op", [op for op, row in tables.OPS.items() if not row.is_second])
def test_arrays_give_the_bits_of_the_hosts_tensors(op: str, dtype: torch.dtype) -> None:
    """What lies between a block's steps is memory of the device, and is given back."""
    row = tables.OPS[op]
    problem = Problem.read(example_of(row.forward, str(dtype).removeprefix("torch.")))
    inputs = Inputs.of(problem)
    tensors = {"grad_output": inputs.grad} if row.is_backward else {}
    tensors |= inputs.operands(row.forward)
    arrays = {name: Array.from_torch(tensor) for name, tensor in tensors.items()}
    keeps = {"return_preactivation": True} if "preactivation" in row.results else {}
    function = functools.partial(getattr(backward if row.is_backward else forward, op), **problem.options, **keeps)
    with epigrad.use_backend("webgpu"):
        want = on_host(function(**tensors))
    got = function(**arrays)
    assert all(isinstance(one, Array) for one in (got if isinstance(got, tuple) else (got,)))
    for ours, theirs in zip(on_host(got), want, strict=True):
        assert_same_bits(ours, theirs)
    for name, array in arrays.items():
        assert_same_bits(array.to_torch(), tensors[name])


@dtypes
def test_out_is_written_and_accumulated_into(dtype: torch.dtype) -> None:
    x, weight, bias, grad = (
        draw(5, 7, dtype=dtype),
        draw(3, 7, dtype=dtype),
        draw(3, dtype=dtype),
        draw(5, 3, dtype=dtype),
    )
    arrays = [Array.from_torch(tensor) for tensor in (grad, x, weight, bias)]
    out = Array((5, 3), dtype)
    assert forward.linear(*arrays[1:], "relu", out=out) is out
    held = [draw(3, 7, dtype=dtype), draw(3, dtype=dtype)]
    into = [Array((5, 7), dtype), *map(Array.from_torch, held)]
    got = backward.linear_backward(*arrays, "gelu", out=into, accumulate=True)
    assert all(one is given for one, given in zip(got, into, strict=True))
    with epigrad.use_backend("webgpu"):
        assert_same_bits(out.to_torch(), forward.linear(x, weight, bias, "relu"))
        want = backward.linear_backward(
            grad, x, weight, bias, "gelu", out=(torch.empty(5, 7, dtype=dtype), *held), accumulate=True
        )
    for ours, theirs in zip(on_host(got), want, strict=True):
        assert theirs is not None
        assert_same_bits(ours, theirs)


def test_a_plan_runs_on_arrays() -> None:
    """A plan for device "webgpu" takes arrays, and no tensor of the host."""
    made = epigrad.plan.GemmEpilogue.select(m=5, n=3, k=7, activation="gelu", dtype=torch.float32, device="webgpu")
    assert made.sku.backend == "webgpu" and made.workspace_size == 0
    a, b, out = draw(5, 7), draw(7, 3), Array((5, 3), torch.float32)
    made.run(a=Array.from_torch(a), b=Array.from_torch(b), out=out)
    with epigrad.use_backend("webgpu"):
        assert_same_bits(out.to_torch(), forward.matmul_bias_activation(a, b, None, "gelu"))
        host = epigrad.plan.GemmEpilogue.select(m=5, n=3, k=7, activation="gelu", dtype=torch.float32)
    result = torch.empty(5, 3)
    host.run(a=a, b=b, out=result)
    assert_same_bits(out.to_torch(), result)
    with pytest.raises(errors.DeviceMismatchError):
        made.run(a=a, b=b, out=result)


def test_a_call_on_arrays_does_not_wait() -> None:
    """A product that takes a while is asked for in less. (Mesa's lavapipe itself waits before it
    takes the next.)"""
    a = Array.from_torch(draw(512, 512))
    forward.matmul_bias_activation(a, a).to_torch()
    began = time.perf_counter()
    result = forward.matmul_bias_activation(a, a)
    asked = time.perf_counter() - began
    result.to_torch()
    assert asked < (time.perf_counter() - began) / 2


def test_memory_is_given_back() -> None:
    """Arrays that nobody holds any more serve the next: 75 GiB of them, one after the other."""
    for _ in range(300):
        Array((64, 1024, 1024), torch.float32)


def test_no_mode_of_pytorchs_is_in_the_way_of_arrays() -> None:
    x, weight, grad = draw(3, 5), draw(4, 5), draw(3, 4)
    arrays = [Array.from_torch(t) for t in (x, weight, grad)]
    with FlopCounterMode(display=False):
        out = forward.linear(*arrays[:2], None, "gelu")
        grads = backward.linear_backward(arrays[2], *arrays[:2])
    torch.testing.assert_close(out.to_torch(), torch.nn.functional.gelu(x @ weight.T))
    for got, want in zip(on_host(grads[:2]), (grad @ weight, grad.T @ x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Array((3,), torch.float64), errors.UnsupportedError, "float64"),
        (lambda: Array((-1,), torch.float32), errors.InvalidProblemError, "want sizes >= 0"),
        (lambda: Array.from_torch([1.0]), errors.DTypeError, "list"),
        (lambda: Array.from_torch(torch.ones(2, device="meta")), errors.DeviceMismatchError, "meta"),
        (lambda: Array((2**60,), torch.float32), errors.DeviceError, "OUT_OF_MEMORY"),
        (
            lambda: epigrad.linear(Array((2, 3), torch.float32), torch.ones(4, 3)),
            errors.DTypeError,
            "want a torch.Tensor",
        ),
        (
            lambda: forward.linear(Array((2, 3), torch.float32), torch.ones(4, 3)),
            errors.DeviceMismatchError,
            "webgpu:0",
        ),
        (
            lambda: forward.linear(Array((2, 3), torch.float32), Array((4, 3), torch.float16)),
            errors.DTypeError,
            "float16",
        ),
    ],
)
def test_what_is_refused(make: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()  # type: ignore[operator]


def test_an_output_may_not_be_an_input() -> None:
    x = Array.from_torch(draw(3, 3))
    with pytest.raises(errors.InvalidProblemError, match="shares memory"):
        forward.linear(x, Array.from_torch(draw(3, 3)), out=x)


def test_float64_is_unsupported() -> None:
    x = torch.ones(2, 2, dtype=torch.float64)
    with epigrad.use_backend("webgpu"), pytest.raises(errors.UnsupportedError, match="float64"):
        epigrad.linear(x, x)


ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
ARGUMENTS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e-38, 3e38, -3e38, 1.0, -1.0)


def flushed_below() -> float:
    """What the adapter takes to be zero, as WGSL lets it: nothing on Mesa's lavapipe, all denormals
    on an H200."""
    smallest = torch.finfo(torch.float32).smallest_normal
    with epigrad.use_backend("webgpu"):
        return smallest if epigrad.lerp(torch.tensor([smallest / 2]), torch.zeros(1), 0.0) == 0 else 0.0


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_not_finite_is_as_on_the_cpu(activation: str) -> None:
    x = torch.tensor(ARGUMENTS)
    results = []
    for name in ("webgpu", "cpu"):
        with epigrad.use_backend(name):
            results.append(value_and_slope(activation, x))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=flushed_below(), equal_nan=True)
        has_sign = ~theirs.isnan() & ((theirs == 0) | (theirs.abs() >= flushed_below()))
        assert torch.equal(ours.signbit() & has_sign, theirs.signbit() & has_sign)


@pytest.mark.parametrize("op", ["prelu", "xielu"])
def test_learned_activations_at_what_is_not_finite_are_as_on_the_cpu(op: str) -> None:
    """`check` found the slope of xielu at NaN, which was that at -infinity. Of finite numbers there
    are denormals: in the middle terms of xielu cancel, and 3e38 overflows in float32 alone."""
    x, parameters = torch.tensor(ARGUMENTS[:8]), [torch.tensor([0.3])] * (1 if op == "prelu" else 2)
    results = []
    for name in ("webgpu", "cpu"):
        with epigrad.use_backend(name):
            out = getattr(forward, op)(x, *parameters)
            results.append((out, getattr(backward, f"{op}_backward")(torch.ones_like(x), x, *parameters)[0]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=flushed_below(), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", sorted(tables.GATED_KINDS.keys() - {"bilinear"}))  # whose results are infinite
def test_a_large_gradient_overflows_nowhere_on_the_way(kind: str, dtype: torch.dtype) -> None:
    """`check` found NaN for `situ_glu`: a product overflowed before its slope was scaled."""
    gate = torch.linspace(-30, -5, 26, dtype=dtype)
    grad = torch.tensor([2e38, -2e38, 2.0**63, -(2.0**65)], dtype=dtype).repeat_interleave(len(gate))
    gate = gate.repeat(4)
    value, results = torch.ones_like(gate), []
    for name in ("webgpu", "cpu"):
        with epigrad.use_backend(name):
            results.append(backward.gated_product_backward(grad, value, gate, kind))
    # A slope may be denormal, or 0 where such numbers are, before the gradient multiplies it.
    rounding, vanished = torch.finfo(dtype).eps, 2e38 * max(flushed_below(), 2.0**-149)
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and theirs is not None and theirs.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=16 * rounding, atol=vanished)


def value_and_slope(activation: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """act(x) and act'(x), each as a product of one element."""
    column, one = x.unsqueeze(1), torch.ones(1, 1, dtype=x.dtype)
    value = forward.matmul_bias_activation(column, one, None, activation)
    slope, _, _ = backward.matmul_bias_activation_backward(
        torch.ones_like(column), column, one, None, activation, preactivation=column, needs=(True, False, False)
    )
    assert slope is not None
    return value.squeeze(1), slope.squeeze(1)


@dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_slopes_to_a_few_units_in_the_last_place(activation: str, dtype: torch.dtype) -> None:
    """Against the CPU's, which are rounded once from float64, over the whole range and its
    tails."""
    spans = [torch.linspace(-100, 100, 4001), torch.linspace(-15, 15, 8001), torch.logspace(-30, 1, 400)]
    x = torch.cat(spans).to(dtype)
    results = []
    for name in ("webgpu", "cpu"):
        with epigrad.use_backend(name):
            results.append([result.double() for result in value_and_slope(activation, x)])
    info = torch.finfo(dtype)
    units = BOUND["webgpu"][dtype] + 0.51  # theirs
    for ours, theirs in zip(*results, strict=True):
        unit = info.eps * 2 ** theirs.abs().clamp(min=info.smallest_normal).log2().floor()
        # A slope passes through zero, near which the error is that of the terms it is the
        # difference of.
        crossing = 2**-22 * ((x > -2) & (x < 0)).double()
        slack = crossing + flushed_below()
        assert ((ours - theirs).abs() <= units * unit + slack).all(), ((ours - theirs).abs() / unit).max()


WHOLES: list[Array] = []  # whose memory the arrays below are in


def starting_at(tensor: Tensor, skip: int) -> Array:
    """An array that starts `skip` elements into its memory, with NaN around it, as another
    program's may."""
    around = torch.full((skip,), math.nan, dtype=tensor.dtype)
    whole = Array.from_torch(torch.cat([around, tensor.flatten(), torch.full_like(tensor.flatten()[:8], math.nan)]))
    WHOLES.append(whole)
    view = object.__new__(Array)
    for name, value in (
        ("address", whole.address + skip * tensor.dtype.itemsize),
        ("_shape", tensor.shape),
        ("_dtype", tensor.dtype),
    ):
        object.__setattr__(view, name, value)
    return view


@dtypes
def test_arrays_may_start_anywhere(dtype: torch.dtype) -> None:
    grad, start, end = torch.arange(1, 33.0).reshape(4, 8).to(dtype), draw(4, 8, dtype=dtype), draw(4, 8, dtype=dtype)
    x, weight, bias = draw(4, 12, dtype=dtype), draw(8, 12, dtype=dtype), draw(8, dtype=dtype)
    tall, column = draw(32, 12, dtype=dtype), draw(1, 12, dtype=dtype)
    calls: dict[str, Callable[[Callable[[Tensor], Array]], object]] = {
        "linear": lambda at: forward.linear(at(x), at(weight), at(bias), "gelu"),
        "linear_backward": lambda at: backward.linear_backward(at(grad), at(x), at(weight), at(bias)),
        "sum of a column": lambda at: backward.linear_backward(
            at(grad.reshape(32, 1)), at(tall), at(column), at(bias[:1]), needs=(False, False, True)
        ),
        "gated_product_backward": lambda at: backward.gated_product_backward(at(grad), at(start), at(end)),
    }
    for shape in ((4, 1), (1, 8), (1, 1), (8,)):
        factor = draw(*shape, dtype=dtype)
        calls[f"lerp_backward by {shape}"] = lambda at, factor=factor: backward.lerp_backward(  # type: ignore[misc]
            at(grad), at(start), at(end), at(factor)
        )
    for name, call in calls.items():
        want = on_host(call(Array.from_torch))
        for skip in (1, 2, 3, 4):
            for place, (got, whole) in enumerate(
                zip(on_host(call(lambda t, skip=skip: starting_at(t, skip))), want, strict=True)
            ):  # type: ignore[misc]
                if whole is not None and got is not None:
                    assert_same_bits(got, whole, f"{name}, {skip} elements in: output {place}")
            WHOLES.clear()


def test_lerp_with_a_number_near_one_keeps_what_float32_leaves_out() -> None:
    grad = torch.linspace(-2, 2, 41)
    for weight in (1.0578189070472463, 1 - 2**-30, math.inf):
        with epigrad.use_backend("webgpu"):
            grad_start = backward.lerp_backward(grad, None, None, weight)[0]
        assert grad_start is not None
        exact = (1 - weight) * grad.double()
        close = (grad_start.double() - exact).abs() <= 2 * torch.finfo(torch.float32).eps * exact.abs()
        assert (close | (grad_start.double() == exact) | (exact.isnan() & grad_start.isnan())).all(), weight


def test_threads_share_the_device() -> None:
    """Calls from several threads, failing ones among them, none of which disturbs another; for a
    minute where all cases are asked for."""
    seconds = 60 if FULL else 3
    wrong: list[str] = []
    done = threading.Event()

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for turn in itertools.count():
            if done.is_set():
                return
            m, k, n = (int(torch.randint(1, 40, (), generator=generator)) for _ in range(3))
            x, weight = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
            want = torch.nn.functional.silu(x @ weight.T)
            try:
                if turn % 3 == 0:
                    got = forward.linear(Array.from_torch(x), Array.from_torch(weight), None, "silu").to_torch()
                else:
                    with epigrad.use_backend("webgpu"):
                        got = forward.linear(x, weight, None, "silu")
                if not torch.allclose(got, want, atol=1e-4):
                    wrong.append(f"{m} x {k} x {n}: {(got - want).abs().max()}")
                if turn % 7 == 0:
                    with pytest.raises(errors.DeviceError):
                        Array((2**58,), torch.float32)
            except Exception as error:
                wrong.append(repr(error))
                done.set()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


def test_a_budget_is_kept() -> None:
    body = """
import torch, epigrad
from epigrad.webgpu import Array
kept = []
try:
    while len(kept) < 100:
        kept.append(Array((1 << 20,), torch.float32))
except epigrad.errors.DeviceError as error:
    print(error.name, len(kept), "EPIGRAD_WEBGPU_MEMORY" in str(error))
del kept[:]
print(epigrad.forward.lerp(Array.from_torch(torch.zeros(2)), Array.from_torch(torch.ones(2)), 0.5).to_torch().tolist())
"""
    printed = run_script(body, **NATIVE, EPIGRAD_WEBGPU_MEMORY=str(64 << 20)).split("\n")
    assert printed == ["OUT_OF_MEMORY 16 True", "[0.5, 0.5]"]


CAUSES = {
    "no library": ({"EPIGRAD_WGPU_NATIVE": "/nowhere/libwgpu_native.so"}, "cannot be loaded"),
    "another library": ({"EPIGRAD_WGPU_NATIVE": "libm.so.6"}, "want 29.0.1"),
    "no driver": ({"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}, "no adapter"),
    "no such adapter": ({"EPIGRAD_WEBGPU_ADAPTER": "abacus"}, "EPIGRAD_WEBGPU_ADAPTER"),
}


@pytest.mark.parametrize("cause", in_turns(CAUSES, len(CAUSES), thorough))
def test_why_it_is_not_available(cause: str) -> None:
    variables, text = CAUSES[cause]
    body = """
import torch, epigrad
(info,) = (info for info in epigrad.backends() if info.name == "webgpu")
print(info.available, info.reason)
try:
    with epigrad.use_backend("webgpu"):
        print("ran")
except epigrad.errors.BackendUnavailableError as error:
    print("refused", info.reason in str(error))
print(epigrad.linear(torch.ones(1, 1), torch.ones(1, 1)).item())
"""
    first, second, third = run_script(body, **(NATIVE | variables)).split("\n")
    assert first.startswith("False ") and text in first and "webgpu: " not in first
    assert (second, third) == ("refused True", "1.0")


@nightly
def test_another_compiler_takes_every_kernel(tmp_path: Path) -> None:
    """What is compiled for calls of all kinds also passes Dawn's Tint, the compiler of Chromium."""
    if importlib.util.find_spec("wgpudawn") is None:
        reason = "no wgpudawn here: pip install wgpudawn"
        assert "webgpu" not in REQUIRED, reason
        pytest.skip(reason)
    body = """
import torch, epigrad
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for n in (5, 6):
        x, w, b, g, i = (torch.ones(s, dtype=dtype) for s in ((5, 7), (n, 7), (n,), (5, n), (5, 2 * n)))
        with epigrad.use_backend("webgpu"):
            for name in ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"):
                y, pre = epigrad.forward.linear(x, w, b, name, return_preactivation=True)
                epigrad.backward.linear_backward(g, x, w, b, name)
                if name in ("relu", "sigmoid", "tanh"):
                    epigrad.backward.linear_backward(g, x, w, b, name, output=y)
            for kind in ("glu", "reglu", "swiglu", "geglu", "geglu_tanh", "bilinear"):
                epigrad.forward.gated_activation(i, kind)
                epigrad.backward.gated_activation_backward(g, i, kind)
            for weight in (0.3, g, g[:, :1], g[0]):
                epigrad.forward.lerp(g, g, weight)
                epigrad.backward.lerp_backward(g, b, g, weight)
            epigrad.mlp(x, w, b, w.mT.contiguous(), None)
    array = epigrad.webgpu.Array.from_torch(i)
    epigrad.backward.gated_activation_backward(epigrad.webgpu.Array.from_torch(g), array, "swiglu")
"""
    run_script(body, timeout=300, **NATIVE, EPIGRAD_WEBGPU_SOURCES=str(tmp_path))
    sources = sorted(tmp_path.iterdir())
    assert {path.name.split("-")[0] for path in sources} >= {"elementwise", "gemm", "reduce"}
    assert any("enable subgroups;" in path.read_text() for path in sources if path.name.startswith("reduce-"))
    check = """
import pathlib
import wgpudawn
adapter = wgpudawn.gpu.request_adapter_sync()
device = adapter.request_device_sync(required_features=["subgroups"])
for path in sorted(pathlib.Path(FOLDER).iterdir()):
    module = device.create_shader_module(code=path.read_text())
    device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
print("fine")
"""
    assert run_script(f"FOLDER = {str(tmp_path)!r}{check}", timeout=300) == "fine"


@pytest.mark.parametrize("case", bench_webgpu.cases(32, (8, 16)), ids=lambda case: f"{case.name} {case.size}")
def test_both_sides_of_a_benchmarks_row_compute_the_same(case: bench_webgpu.Case) -> None:
    inputs = [draw(*shape) for shape in case.shapes]
    arrays, outputs = [Array.from_torch(x) for x in inputs], [Array(shape, torch.float32) for shape in case.outputs]
    case.ours(arrays, outputs)
    want = case.eager(inputs)
    for ours, theirs in zip(on_host(tuple(outputs)), want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    row = bench_webgpu.measure(case, "float32", torch.device("cpu"), 0.0)
    assert row["epigrad"]["median"] > 0 and row["epigrad_rate"] > 0 and row["ratio"] > 0


def test_a_benchmarks_row_that_fails_says_so() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no")

    case = dataclasses.replace(bench_webgpu.cases(32, (8, 16))[0], ours=fail)
    task = runner.Task("", {}, functools.partial(bench_webgpu.measure, case, "float16", torch.device("cpu")))
    assert runner._measured(task, 0.0) == [{"error": "RuntimeError: no"}]


def test_adapters_are_arrays_too() -> None:
    x, weight, a, b = torch.randn(6, 4), torch.randn(5, 4), torch.randn(2, 4), torch.randn(5, 2)
    arrays = [Array.from_torch(tensor) for tensor in (x, weight, a, b)]
    adapter = epigrad.LowRank(*arrays[2:])
    out = forward.linear(*arrays[:2], None, "silu", adapter=adapter)
    got = backward.linear_backward(out, *arrays[:2], None, "silu", adapter=adapter)
    host = epigrad.LowRank(a, b)
    want = backward.linear_backward(out.to_torch(), x, weight, None, "silu", adapter=host)
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.to_torch(), other)
