"""Calls from many threads at once, and the threads that work runs on: PyTorch's own, or
goroutines."""

from __future__ import annotations

import os
import sys
import threading

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward, plan
from torch import Tensor

from tests.support.cases import FULL
from tests.support.digests import digest
from tests.support.layouts import assert_same_bits
from tests.support.processes import run_script, start
from tests.support.threads import WORKERS, at_once
from tests.support.tiers import thorough

ON_PYTORCH = "PyTorch's threads"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere work runs on goroutines")

SMALL, LARGE = (17, 33, 29), (160, 96, 130)
"""Rows, inner and outer width of a layer. A large one is work for more than one thread."""


def leaves(number: int, sizes: tuple[int, int, int] = SMALL) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    m, k, n = sizes
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((m, k), (n, k), (n,)))
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def gradients(number: int, sizes: tuple[int, int, int] = SMALL) -> tuple[Tensor, ...]:
    tensors = leaves(number, sizes)
    out = epigrad.linear(*tensors, "gelu")
    return (out.detach(), *torch.autograd.grad(out.square().sum(), tensors))


def agree(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for one, other in zip(got, want, strict=True):
        assert_same_bits(one, other)


def test_concurrent_forward_and_backward() -> None:
    want = [gradients(number) for number in range(WORKERS)]

    def work(number: int) -> None:
        for _ in range(20):
            agree(gradients(number), want[number])

    at_once(work)


def test_concurrent_backward_through_shared_parameters() -> None:
    _, weight, bias = leaves(0)
    inputs = [torch.ones(5, 33) * number for number in range(WORKERS)]
    outs = [epigrad.linear(x, weight, bias, "none").sum() for x in inputs]
    at_once(lambda number: outs[number].backward())
    assert torch.equal(weight.grad, sum(x.sum(0) for x in inputs).expand(29, 33))
    assert torch.equal(bias.grad, torch.full((29,), 5.0 * WORKERS))


def test_one_graph_retained_and_walked_by_many() -> None:
    tensors = leaves(1)
    out = epigrad.linear(*tensors, "tanh").sum()
    want = torch.autograd.grad(out, tensors, retain_graph=True)

    def work(number: int) -> None:
        for _ in range(20):
            agree(torch.autograd.grad(out, tensors, retain_graph=True), want)

    at_once(work)


def test_one_plan_in_many_threads() -> None:
    made = plan.GemmEpilogueBackward.select(m=17, n=29, k=33, activation="silu", dtype=torch.float32)
    want = {}
    for number in range(WORKERS):
        x, weight, _ = leaves(number)
        want[number] = backward.matmul_bias_activation_backward(
            torch.ones(17, 29), x.detach(), weight.detach().T, None, "silu"
        )

    def work(number: int) -> None:
        x, weight, _ = (t.detach() for t in leaves(number))
        buffer = torch.empty(made.workspace_size + 256, dtype=torch.uint8)
        start = -buffer.data_ptr() % 256
        workspace = buffer[start : start + made.workspace_size] if made.workspace_size else None
        for _ in range(20):
            grad_a, grad_b = torch.full((17, 33), float("nan")), torch.full((33, 29), float("nan"))
            made.run(grad_output=torch.ones(17, 29), a=x, b=weight.T, grad_a=grad_a, grad_b=grad_b, workspace=workspace)
            assert_same_bits(grad_a, want[number][0])
            assert_same_bits(grad_b, want[number][1])

    at_once(work)


def test_errors_stay_in_their_thread() -> None:
    def work(number: int) -> None:
        for _ in range(50):
            with pytest.raises(errors.InvalidProblemError, match=rf"\b{number + 50}\b"):
                forward.linear(torch.ones(2, number + 50), torch.ones(3, 4))
            assert forward.linear(torch.ones(1, 1), torch.ones(1, 1)).item() == 1.0

    at_once(work)


def test_plans_are_made_and_dropped_in_many_threads() -> None:
    def work(number: int) -> None:
        for step in range(50):
            made = plan.Lerp.select(shape=(number + 1, step + 1), weight=0.5, dtype=torch.float32)
            out = torch.empty(number + 1, step + 1)
            made.run(start=torch.zeros_like(out), end=torch.ones_like(out), out=out)
            assert torch.equal(out, torch.full_like(out, 0.5))
            del made

    at_once(work)


def test_the_interpreter_runs_on_while_a_call_computes() -> None:
    torch.set_num_threads(1)
    x = torch.randn(1280, 1280, dtype=torch.float64)  # tens of milliseconds
    forward.linear(x[:2], x)
    ticks = 0
    finished = threading.Event()

    def work() -> None:
        forward.linear(x, x)
        finished.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not finished.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 3, "the call held the interpreter lock"


def test_the_first_use_may_come_from_many_threads_at_once() -> None:
    script = """
import threading, torch, epigrad
gate = threading.Barrier(8)
results = []
def work():
    gate.wait()
    results.append(epigrad.lerp(torch.zeros(2), torch.ones(2), 0.5).tolist())
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert results == [[0.5, 0.5]] * 8, results
print("fine")
"""
    assert run_script(script) == "fine"


@on_linux
def test_beside_pytorch_its_threads_are_used() -> None:
    assert epigrad.backends()[0].detail.endswith(f", {ON_PYTORCH}")


@on_linux
def test_goroutines_compute_the_same_bits() -> None:
    script = """
import epigrad
from tests.support.digests import digest
assert epigrad.backends()[0].detail.endswith(", goroutines"), epigrad.backends()
print(digest("cpu"))
"""
    torch.set_num_threads(2)
    engine = os.environ.get("EPIGRAD_CPU_ENGINE")
    said = run_script(script, timeout=120, EPIGRAD_CPU_THREADS="goroutines", EPIGRAD_CPU_ENGINE=engine)
    assert said.split()[-1] == digest("cpu")


def test_callers_with_thread_counts_of_their_own() -> None:
    torch.set_num_threads(2)
    want = [gradients(number, LARGE) for number in range(4)]

    def work(number: int) -> None:
        for step in range(15):
            # PyTorch's OpenMP keeps it for each thread
            torch.set_num_threads(1 + (number + step) % 4)
            torch.relu(torch.zeros(100_000))  # an operator of its own in between
            agree(gradients(number, LARGE), want[number])

    at_once(work, 4)


def test_a_hook_inside_of_backward_that_calls_it() -> None:
    torch.set_num_threads(2)
    want = gradients(1, LARGE)
    tensors = leaves(0, LARGE)
    met: list[tuple[Tensor, ...]] = []
    hidden = epigrad.linear(*tensors, "silu")

    def hook(_: Tensor) -> None:
        with torch.enable_grad():
            met.append(gradients(1, LARGE))

    hidden.register_hook(hook)
    epigrad.linear(hidden, torch.ones(70, 130), None, "tanh").sum().backward()
    assert tensors[0].grad is not None
    agree(met[0], want)


def test_a_refused_call_between_good_ones() -> None:
    torch.set_num_threads(2)
    want = gradients(2, LARGE)
    for _ in range(3):
        with pytest.raises(errors.EpigradError):
            forward.linear(torch.ones(200, 200), torch.ones(300, 100))
        agree(gradients(2, LARGE), want)


def test_threads_of_the_caller_come_and_go() -> None:
    """Each has a team of its own in PyTorch's runtime, which ends with it."""
    torch.set_num_threads(2)
    want = gradients(3, LARGE)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            agree(gradients(3, LARGE), want)
        except BaseException as error:
            failures.append(error)

    for _ in range(30):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures[0]


@on_linux
def test_an_unknown_setting_is_an_error_of_the_first_call() -> None:
    script = """
import epigrad, torch
out = torch.full((2,), float("nan"))
try:
    epigrad.forward.lerp(torch.ones(2), torch.ones(2), 0.5, out=out)
except epigrad.errors.BackendUnavailableError as error:
    assert out.isnan().all()
    print(error)
"""
    said = run_script(script, EPIGRAD_CPU_THREADS="fibers")
    assert "EPIGRAD_CPU_THREADS" in said and "'fibers'" in said.replace('"', "'") and "goroutines" in said


@on_linux
@thorough
def test_doctor_tells_what_work_runs_on() -> None:
    assert ON_PYTORCH in start("-m", "epigrad", "doctor").stdout


@on_linux
@thorough
def test_a_forked_child_does_not_wait_for_threads_that_it_lacks() -> None:
    """The parent's PyTorch has used its threads, which in the child would hang PyTorch itself."""
    script = """
import os, torch, epigrad
torch.set_num_threads(2)
x = torch.randn(512, 512)
(x @ x).relu()
torch.nn.functional.gelu(torch.zeros(1_000_000))
child = os.fork()
if child == 0:
    import signal
    signal.alarm(40)  # a child that hangs ends, too
    out = epigrad.forward.linear(x, x, None, "gelu")
    os._exit(0 if epigrad.backends()[0].detail.endswith("goroutines") and out[0, 0].item() > -1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("fine")
"""
    assert run_script(script) == "fine"


SMALL_STACK = """
import sys, threading
import torch
import epigrad
from epigrad import backward, forward

size, names = int(sys.argv[1]), sys.argv[2:]


def differentiated(function, *tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    function(*leaves).sum().backward()
    assert all(leaf.grad is not None for leaf in leaves)


def work(name, dtype, n):
    # Broadcast, strided and of odd sizes: operands are gathered, and gradients are summed in the
    # same pass.
    x, w, g = (torch.randn(n, n, dtype=dtype).T for _ in range(3))
    b, factor = torch.randn(n, dtype=dtype), torch.rand(n, 1, dtype=dtype)
    halves = torch.randn(n, 2 * n + 3, dtype=dtype)[:, 3:]
    row = torch.randn(n, dtype=dtype)
    {
        "linear": lambda: forward.linear(x, w, b, "gelu", return_preactivation=True),
        "linear_backward": lambda: backward.linear_backward(g, x, w, b, "gelu"),
        "matmul_bias_activation": lambda: forward.matmul_bias_activation(x, w, b, "tanh"),
        "matmul_bias_activation_backward": lambda: backward.matmul_bias_activation_backward(g, x, w, b, "tanh"),
        "gated_activation": lambda: forward.gated_activation(halves, "geglu"),
        "gated_activation_backward": lambda: backward.gated_activation_backward(g, halves, "geglu"),
        "gated_product": lambda: forward.gated_product(x, w, "glu"),
        "gated_product_backward": lambda: backward.gated_product_backward(g, x, w, "glu"),
        "lerp": lambda: forward.lerp(x, row, factor),
        "lerp_backward": lambda: backward.lerp_backward(g, x, row, factor),
        "autograd": lambda: (
            differentiated(lambda *t: epigrad.linear(*t, "silu"), x, w, b),
            differentiated(lambda t: epigrad.gated_activation(t, "swiglu"), halves),
            differentiated(epigrad.lerp, x, row, factor),
        ),
        "mlp": lambda: differentiated(lambda *t: epigrad.mlp(*t), x, w, b, w, b),
        "gated_linear": lambda: differentiated(lambda *t: epigrad.gated_linear(*t), x, w, x, b, b),
        "gated_mlp": lambda: differentiated(lambda *t: epigrad.gated_mlp(t[0], t[1], None, t[2], None), x, halves.T, w),
    }[name]()


def calls(name):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for n in (5, 64, 200):
            for _ in range(4):  # from the third on, a kernel is held
                work(name, dtype, n)
    print(name)


threading.stack_size(size)
for name in names:
    thread = threading.Thread(target=calls, args=(name,))
    thread.start()
    thread.join()
"""

ON_SMALL_STACKS = (
    *(f"{op}{pass_}" for op in ("linear", "gated_activation", "gated_product", "lerp") for pass_ in ("", "_backward")),
    *("matmul_bias_activation", "matmul_bias_activation_backward", "autograd", "mlp", "gated_linear", "gated_mlp"),
)


@pytest.mark.parametrize("first", ON_SMALL_STACKS if FULL else ("linear_backward", "autograd"))
@thorough
def test_a_calling_thread_needs_a_stack_of_64_kb(first: str) -> None:
    """docs/c-api.md says so. The core is loaded by the first call, in such a thread too."""
    names = [first, *(name for name in ON_SMALL_STACKS if name != first)]
    done = start("-c", SMALL_STACK, str(64 * 1024), *names)
    assert (done.returncode, done.stdout.split()) == (0, names), f"exit code {done.returncode}\n{done.stderr}"
