"""What only a GPU has: streams, autograd's own threads, CUDA graphs, several devices, PyTorch's
settings of precision.

What is computed is compared in the files that every device runs; here it is when and where.
"""

from __future__ import annotations

import copy
import gc
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward, plan
from torch import Tensor

from benchmarks.timing import captured
from tests.cuda.calls import CALLS, CYCLES, DIFFERENTIABLE, STATELESS, Outputs, with_gradients
from tests.support.devices import needs
from tests.support.layouts import assert_same_bits
from tests.support.plan_problem import aligned_workspace
from tests.support.processes import run_script
from tests.support.threads import at_once

pytestmark = [needs("cuda"), pytest.mark.filterwarnings("ignore:.*TF32:UserWarning")]
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
every_call = pytest.mark.parametrize("name", CALLS)


def assert_all_same_bits(got: Outputs, want: Outputs, what: str) -> None:
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        assert_same_bits(one, other, f"{what}: result {index}")


# Streams


def late_copies(values: list[Tensor]) -> list[Tensor]:
    """NaN now; the values only once the current stream has slept. A reader on another stream finds
    NaN."""
    late = [torch.full_like(x, math.nan) for x in values]
    torch.cuda.synchronize(values[0].device)
    torch.cuda._sleep(CYCLES)
    for copied, x in zip(late, values, strict=True):
        copied.copy_(x)
    return late


def test_the_race_of_these_tests_is_one() -> None:
    values = [torch.ones(64, device="cuda")]
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        # memory for the copy below, so that it need not be asked of the driver
        torch.empty(64, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        (late,) = late_copies(values)
        with torch.cuda.stream(other):
            early = late.clone()
    torch.cuda.synchronize()
    assert early.isnan().all() and not late.isnan().any()


@every_call
@pytest.mark.parametrize("side", [False, True], ids=["default", "side"])
def test_the_current_stream_is_the_one(name: str, side: bool) -> None:
    call = CALLS[name]
    values = call.operands()
    want = call.run(*values)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        call.run(*values)  # the stream's own memory
        got = call.run(*late_copies(values))
        read = tuple(x.clone() for x in got)  # a reader in the same stream needs no event
    stream.synchronize()
    assert_all_same_bits(read, want, name)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_backward_runs_on_the_stream_of_forward(name: str) -> None:
    """Called from another stream, which autograd makes wait at both ends."""
    call = DIFFERENTIABLE[name]
    values = call.operands()
    want = with_gradients(call, values)
    leaves = [x.detach().requires_grad_() for x in values]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        (out,) = call.run(*leaves)
        torch.autograd.grad(out, leaves, out.detach(), retain_graph=True)
    torch.cuda.synchronize()
    (grad,) = late_copies([want[0] + 1])
    gradients = torch.autograd.grad(out, leaves, grad)
    read = tuple(x.clone() for x in gradients)
    torch.cuda.current_stream().synchronize()
    assert_all_same_bits((out.detach(), *read), want, name)


@pytest.mark.parametrize("given", ["stream", "handle", "current"])
def test_a_plan_runs_on_the_stream_it_is_given(given: str) -> None:
    made = plan.GemmEpilogueBackward.select(m=64, n=80, k=48, activation="gelu", dtype=torch.float32, device="cuda")
    values = [torch.randn(shape, device="cuda") for shape in ((64, 80), (64, 48), (48, 80))]
    workspace = aligned_workspace(made.workspace_size, torch.device("cuda", torch.cuda.current_device()))
    want = backward.matmul_bias_activation_backward(*values, None, "gelu")[:2]
    outs = {name: torch.full_like(x, math.nan) for name, x in zip(("grad_a", "grad_b"), values[1:], strict=True)}
    side = torch.cuda.Stream()
    stream = {"stream": side, "handle": side.cuda_stream, "current": None}[given]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late = late_copies(values)
    inputs = dict(zip(("grad_output", "a", "b"), late, strict=True))
    if given == "current":
        with torch.cuda.stream(side):
            made.run(**inputs, **outs, workspace=workspace, stream=stream)
    else:
        made.run(**inputs, **outs, workspace=workspace, stream=stream)
    side.synchronize()
    for (name, got), one in zip(outs.items(), want, strict=True):
        assert_same_bits(got, one, name)


@every_call
def test_a_call_does_not_wait_for_the_gpu(name: str) -> None:
    call = CALLS[name]
    values = call.operands()
    for _ in range(3):
        call.run(*values)
    torch.cuda.synchronize()
    slept = torch.cuda.Event()
    torch.cuda._sleep(4 * CYCLES)
    slept.record()
    call.run(*values)
    assert not slept.query(), "the call waited for what the stream had to do before"
    torch.cuda.synchronize()


@every_call
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_pytorch_sees_no_synchronisation(name: str) -> None:
    call = CALLS[name]
    values = call.operands()
    call.run(*values)
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.run(*values)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", STATELESS)
def test_runs_agree_while_the_gpu_is_busy_elsewhere(name: str) -> None:
    call = STATELESS[name]
    values = call.operands(3, torch.bfloat16)
    want = call.run(*values)
    busy, other = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(10):
        with torch.cuda.stream(other):
            busy = (busy @ busy).clamp(-1, 1)
        assert_all_same_bits(call.run(*values), want, name)
    torch.cuda.synchronize()


# Threads


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_backward_in_autograds_thread(name: str) -> None:
    call = DIFFERENTIABLE[name]
    values = call.operands()
    want = with_gradients(call, values)
    leaves = [x.detach().requires_grad_() for x in values]
    threads: list[int] = []
    leaves[0].register_hook(lambda grad: threads.append(threading.get_ident()))
    (out,) = call.run(*leaves)
    out.backward(out.detach() + 1)
    assert threads and threads[0] != threading.get_ident(), "autograd runs a GPU's nodes in a thread of its own"
    assert_all_same_bits((out.detach(), *(x.grad for x in leaves if x.grad is not None)), want, name)


@pytest.mark.parametrize("own_stream", [False, True])
def test_many_threads_at_once(own_stream: bool) -> None:
    names = list(CALLS)
    want = {name: CALLS[name].run(*CALLS[name].operands()) for name in names}
    torch.cuda.synchronize()

    def work(number: int) -> None:
        stream = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            for turn in range(3 * len(names)):
                name = names[(number + turn) % len(names)]
                got = CALLS[name].run(*CALLS[name].operands())
                assert_all_same_bits(got, want[name], name)

    at_once(work, 4)


def test_a_thread_in_which_pytorch_has_not_used_the_gpu_yet() -> None:
    """Nothing has made a context current there."""
    start, end = torch.zeros(300, device="cuda"), torch.ones(300, device="cuda")
    out = torch.full_like(start, math.nan)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(forward.lerp, start, end, 0.25, out=out).result(60)
    torch.cuda.synchronize()
    assert torch.equal(out, torch.full_like(out, 0.25))


def test_the_first_use_may_be_in_a_thread() -> None:
    script = """
import threading, torch, epigrad
x = torch.ones(4, 3, device="cuda", requires_grad=True)
results = []
def work():
    out = epigrad.linear(x, torch.ones(2, 3, device="cuda"), None, "relu")
    results.append(torch.autograd.grad(out.sum(), x)[0].sum().item())
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(results)
"""
    assert run_script(script, timeout=120) == "[24.0]"


# CUDA graphs


@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_graph_replays_on_new_values(name: str, dtype: torch.dtype) -> None:
    call = CALLS[name]
    static = call.operands(0, dtype)
    graph, results = captured(lambda: call.run(*static))
    for seed in (1, 2):
        values = call.operands(seed, dtype)
        for place, x in zip(static, values, strict=True):
            place.copy_(x)
        for x in results:
            x.fill_(math.nan)
        graph.replay()
        assert_all_same_bits(results, call.run(*values), f"{name}, seed {seed}")


def test_a_graph_of_plans() -> None:
    """One workspace for all: the stream keeps its uses apart."""
    made = plan.GemmEpilogueBackward.select(m=64, n=80, k=48, activation="silu", dtype=torch.bfloat16, device="cuda")
    workspace = aligned_workspace(made.workspace_size, torch.device("cuda", torch.cuda.current_device()))
    shapes = {"grad_output": (64, 80), "a": (64, 48), "b": (48, 80)}
    given = {name: torch.randn(shape, device="cuda").bfloat16() for name, shape in shapes.items()}
    grad_a, grad_b = torch.empty_like(given["a"]), torch.empty_like(given["b"])

    def run() -> Outputs:
        made.run(**given, grad_a=grad_a, workspace=workspace)
        made.run(**given, grad_b=grad_b, workspace=workspace)
        return grad_a, grad_b

    graph, results = captured(run)
    for place in given.values():
        place.copy_(torch.randn_like(place))
    graph.replay()
    want = backward.matmul_bias_activation_backward(*given.values(), None, "silu", needs=(True, True, False))
    for got, one in zip(results, want[:2], strict=True):
        assert_same_bits(got, one)


MODULES: dict[str, Callable[..., torch.nn.Module]] = {
    "linear": lambda **options: epigrad.nn.Linear(48, 80, activation="gelu", **options),
    "mlp": lambda **options: epigrad.nn.MLP(48, 96, **options),
    "gated_mlp": lambda **options: epigrad.nn.GatedMLP(48, 64, bias=True, **options),
}


# PyTorch says so of its own modules too: their parameters were made on another stream than the one
# that is captured.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_graphed_modules(name: str, dtype: torch.dtype) -> None:
    gc.collect()  # a graph that is freed while another is captured ends the capture
    module = MODULES[name](device="cuda", dtype=dtype)
    sample = torch.randn(32, 48, device="cuda", dtype=dtype, requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(module), (sample,))
    for _ in range(2):
        x = torch.randn(32, 48, device="cuda", dtype=dtype, requires_grad=True)
        results = []
        for one in (module, graphed):
            out = one(x)
            gradients = torch.autograd.grad(out, (x, *one.parameters()), torch.ones_like(out))
            results.append((out.detach().clone(), *(g.clone() for g in gradients)))
        assert_all_same_bits(results[1], results[0], name)


# Devices


@two_devices
@every_call
def test_another_device_than_the_current_one(name: str) -> None:
    call = CALLS[name]
    values = call.operands(device="cuda:1")
    with torch.cuda.device(1):
        want = call.run(*values)
        torch.cuda.synchronize()
    with torch.cuda.device(0):
        got = call.run(*values)
        assert torch.cuda.current_device() == 0
    assert all(x.device == torch.device("cuda", 1) for x in got)
    assert_all_same_bits(got, want, name)


@two_devices
@every_call
def test_the_stream_of_another_device(name: str) -> None:
    call = CALLS[name]
    values = call.operands(device="cuda:1")
    want = call.run(*values)
    side = torch.cuda.Stream(device="cuda:1")
    torch.cuda.synchronize(1)
    with torch.cuda.stream(side):  # which makes cuda:1 current
        call.run(*values)
        late = late_copies(values)
        with torch.cuda.device(0):
            got = call.run(*late)
    side.synchronize()
    assert_all_same_bits(got, want, name)


@two_devices
def test_plans_of_another_device() -> None:
    made = plan.Lerp.select(shape=(33,), weight=0.5, dtype=torch.float32, device="cuda:1")
    start, end = torch.zeros(33, device="cuda:1"), torch.ones(33, device="cuda:1")
    out = torch.empty_like(start)
    with torch.cuda.device(0):
        made.run(start=start, end=end, out=out)
    assert torch.equal(out, torch.full_like(out, 0.5))
    with pytest.raises(errors.DeviceMismatchError, match="cuda:1"):
        made.run(start=start.to("cuda:0"), end=end.to("cuda:0"), out=out.to("cuda:0"))
    for stream in (torch.cuda.default_stream("cuda:0"), torch.cuda.Stream("cuda:0")):
        with pytest.raises(errors.DeviceMismatchError, match="stream: on cuda:0, want cuda:1"):
            made.run(start=start, end=end, out=out, stream=stream)


def refused_mixes(call: Callable[..., object], operands: list[Tensor], other: str) -> None:
    for index in range(len(operands)):
        mixed = [x.to(other) if i == index else x for i, x in enumerate(operands)]
        with pytest.raises(errors.DeviceMismatchError, match=other.partition(":")[0]):
            call(*mixed)


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if len(call.shapes) > 1])
def test_cpu_and_cuda_do_not_mix(name: str) -> None:
    refused_mixes(CALLS[name].run, CALLS[name].operands(), "cpu")


@two_devices
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if len(call.shapes) > 1])
def test_two_gpus_do_not_mix(name: str) -> None:
    refused_mixes(CALLS[name].run, CALLS[name].operands(device="cuda:0"), "cuda:1")


def test_an_output_or_workspace_elsewhere_is_refused() -> None:
    x = torch.zeros(5, device="cuda")
    out = torch.full((5,), math.nan)
    with pytest.raises(errors.DeviceMismatchError, match=r"\bout\b"):
        forward.lerp(x, x, 0.5, out=out)
    assert out.isnan().all()
    n = 320
    made = plan.GemmEpilogueBackward.select(m=n, n=n, k=n, activation="gelu", dtype=torch.bfloat16, device="cuda")
    given = {name: torch.ones(n, n, device="cuda", dtype=torch.bfloat16) for name in ("grad_output", "a", "b")}
    outs = {name: torch.empty_like(given["a"]) for name in ("grad_a", "grad_b")}
    assert made.workspace_size, "grad_preactivation lies between two products"
    elsewhere = aligned_workspace(made.workspace_size, torch.device("cpu"))
    with pytest.raises(errors.DeviceMismatchError, match="workspace"):
        made.run(**given, **outs, workspace=elsewhere)
    with pytest.raises(errors.DeviceMismatchError):
        made.run(**{name: t.cpu() for name, t in (given | outs).items()}, workspace=elsewhere)


def test_meta_tensors_take_part_as_ever() -> None:
    x, weight = torch.empty(3, 4, device="meta", requires_grad=True), torch.empty(5, 4, device="meta")
    out = epigrad.linear(x, weight, None, "gelu")
    assert out.shape == (3, 5) and out.is_meta
    assert torch.autograd.grad(out.sum(), x)[0].shape == (3, 4)
    with pytest.raises(errors.DeviceMismatchError, match="meta"):
        epigrad.linear(x.detach(), torch.ones(5, 4, device="cuda"))


def test_the_choice_for_cpu_tensors_leaves_cuda_tensors_alone() -> None:
    x, weight = torch.randn(33, 7, device="cuda"), torch.randn(9, 7, device="cuda")
    want = forward.linear(x, weight, None, "gelu")
    with epigrad.use_backend("cpu"):
        assert_same_bits(forward.linear(x, weight, None, "gelu"), want)


def test_tuning_keeps_its_choices_in_the_file(tmp_path: Path) -> None:
    x, weight = (torch.randn(shape, device="cuda").bfloat16() for shape in ((256, 192), (320, 192)))
    want = forward.linear(x, weight, None, "gelu")
    with epigrad.tuning(tmp_path / "choices.json"):
        inside = forward.linear(x, weight, None, "gelu")
    assert (tmp_path / "choices.json").exists(), "a product has more than one candidate on a GPU"
    reference = torch.nn.functional.gelu(x.double() @ weight.double().T)
    size = x.double().abs() @ weight.double().abs().T
    ours, theirs = (float(((out.double() - reference).abs() / size).max()) for out in (inside, want))
    assert ours <= 1.5 * theirs + torch.finfo(torch.bfloat16).eps / 2
    assert_same_bits(forward.linear(x, weight, None, "gelu"), want, "outside the block")


# Failures


def test_a_failure_of_the_driver_is_a_device_error() -> None:
    """After a device-side assertion no launch can succeed; the process goes on and can say so."""
    script = """
import os, torch, epigrad
from epigrad import errors, forward
x, out = torch.ones(8, device="cuda"), torch.empty(8, device="cuda")
forward.lerp(x, x, 0.5, out=out)
try:
    x[torch.tensor([100], device="cuda")]
    torch.cuda.synchronize()
except RuntimeError:
    pass
try:
    forward.lerp(x, x, 0.5, out=out)
except errors.DeviceError as error:
    assert isinstance(error, RuntimeError) and isinstance(error.code, int) and error.code != 0
    print(error.name, error.name in str(error))
print(epigrad.lerp(torch.zeros(1), torch.ones(1), 0.5).item(), flush=True)
os._exit(0)  # what PyTorch does at the end of such a process is not the matter
"""
    name, told, value = run_script(script, timeout=120).split()
    assert name.startswith("CUDA_ERROR_") and told == "True" and value == "0.5"
