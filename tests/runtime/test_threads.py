"""Calls from many threads at once, thread counts, and backward passes that autograd runs in its own threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward, plan
from torch import Tensor

from tests.support.layouts import assert_same_bits
from tests.support.processes import run_script, start
from tests.support.threads import WORKERS, at_once


@pytest.fixture
def thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def leaves(number: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((17, 33), (29, 33), (29,)))
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def gradients(number: int) -> tuple[Tensor, ...]:
    tensors = leaves(number)
    out = epigrad.linear(*tensors, "gelu")
    return (out.detach(), *torch.autograd.grad(out.square().sum(), tensors))


def test_concurrent_forward_and_backward() -> None:
    want = [gradients(number) for number in range(WORKERS)]

    def work(number: int) -> None:
        for _ in range(20):
            for got, one in zip(gradients(number), want[number], strict=True):
                assert_same_bits(got, one)

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
            for got, one in zip(torch.autograd.grad(out, tensors, retain_graph=True), want, strict=True):
                assert_same_bits(got, one)

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


@pytest.mark.usefixtures("thread_count")
def test_results_do_not_depend_on_the_thread_count() -> None:
    x, weight, bias = (t.detach() for t in leaves(2))
    big = torch.randn(301, 257)
    results = []
    for count in (1, 2, 3, 8):
        torch.set_num_threads(count)
        results.append(
            [
                forward.linear(x, weight, bias, "gelu"),
                forward.lerp(big, big + 1, 0.3),
                *backward.linear_backward(torch.ones(17, 29), x, weight, bias, "gelu"),
                *backward.matmul_bias_activation_backward(
                    torch.ones(301, 64), big, torch.ones(257, 64), torch.ones(64), "silu"
                ),
            ]
        )
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert_same_bits(got, want)


@pytest.mark.usefixtures("thread_count")
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


SMALL_STACK = """
import sys, threading
import torch
import epigrad
from epigrad import backward, forward

size, name = int(sys.argv[1]), sys.argv[2]


def differentiated(function, *tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    function(*leaves).sum().backward()
    assert all(leaf.grad is not None for leaf in leaves)


def work(dtype, n):
    # Broadcast, strided and of odd sizes: operands are gathered, and gradients are summed in the same pass.
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
        "gated_mlp": lambda: differentiated(lambda *t: epigrad.gated_mlp(t[0], t[1], None, t[2], None), x, halves.T, w),
    }[name]()


def calls():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for n in (5, 64, 200):
            for _ in range(4):  # from the third on, a kernel is held
                work(dtype, n)
    done.append(name)


done = []
threading.stack_size(size)
thread = threading.Thread(target=calls)
thread.start()
thread.join()
print(*done)
"""


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{op}{pass_}"
            for op in ("linear", "gated_activation", "gated_product", "lerp")
            for pass_ in ("", "_backward")
        ),
        *("matmul_bias_activation", "matmul_bias_activation_backward", "autograd", "mlp", "gated_mlp"),
    ],
)
def test_a_calling_thread_needs_a_stack_of_64_kb(name: str) -> None:
    """docs/c-api.md says so. The core is loaded by the first call, in such a thread too."""
    done = start("-c", SMALL_STACK, str(64 * 1024), name)
    assert (done.returncode, done.stdout.strip()) == (0, name), f"exit code {done.returncode}\n{done.stderr}"
