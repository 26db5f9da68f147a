"""The CPU's work on PyTorch's own threads: the bits of goroutines, callers of every sort, and settings."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import epigrad
import pytest
import torch
from epigrad import errors, forward
from torch import Tensor

from tests.runtime.test_determinism import digest
from tests.support.layouts import assert_same_bits
from tests.support.processes import run_script, start
from tests.support.threads import at_once

ON_PYTORCH = "PyTorch's threads"


def threads_in_use() -> str:
    return next(info.detail for info in epigrad.backends() if info.name == "cpu").rsplit(", ", 1)[1]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere work runs on goroutines")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def leaves(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Large enough for more than one thread."""
    generator = torch.Generator().manual_seed(number)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((160, 96), (130, 96), (130,)))
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def gradients(number: int) -> tuple[Tensor, ...]:
    tensors = leaves(number)
    out = epigrad.linear(*tensors, "gelu")
    return (out.detach(), *torch.autograd.grad(out.square().sum(), tensors))


def agree(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for one, other in zip(got, want, strict=True):
        assert_same_bits(one, other)


def test_beside_pytorch_its_threads_are_used() -> None:
    assert threads_in_use() == ON_PYTORCH


def test_goroutines_compute_the_same_bits() -> None:
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from tests.runtime import test_determinism, test_team
assert test_team.threads_in_use() == "goroutines", test_team.threads_in_use()
print(test_determinism.digest("cpu"))
"""
    said = run_script(
        script,
        timeout=120,
        EPIGRAD_CPU_THREADS="goroutines",
        EPIGRAD_CPU_ENGINE=os.environ.get("EPIGRAD_CPU_ENGINE"),
    )
    assert said.split()[-1] == digest("cpu")


def test_callers_with_thread_counts_of_their_own() -> None:
    want = [gradients(number) for number in range(4)]

    def work(number: int) -> None:
        for step in range(15):
            torch.set_num_threads(1 + (number + step) % 4)  # PyTorch's OpenMP keeps it for each thread
            torch.relu(torch.zeros(100_000))  # an operator of its own in between
            agree(gradients(number), want[number])

    at_once(work, 4)


def test_a_hook_inside_of_backward_that_calls_it() -> None:
    want = gradients(1)
    tensors = leaves(0)
    met: list[tuple[Tensor, ...]] = []
    hidden = epigrad.linear(*tensors, "silu")

    def hook(_: Tensor) -> None:
        with torch.enable_grad():
            met.append(gradients(1))

    hidden.register_hook(hook)
    epigrad.linear(hidden, torch.ones(70, 130), None, "tanh").sum().backward()
    assert tensors[0].grad is not None
    agree(met[0], want)


def test_a_refused_call_between_good_ones() -> None:
    want = gradients(2)
    for _ in range(3):
        with pytest.raises(errors.EpigradError):
            forward.linear(torch.ones(200, 200), torch.ones(300, 100))
        agree(gradients(2), want)


def test_threads_of_the_caller_come_and_go() -> None:
    """Each has a team of its own in PyTorch's runtime, which ends with it."""
    want = gradients(3)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            agree(gradients(3), want)
        except BaseException as error:
            failures.append(error)

    for _ in range(30):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures[0]


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


def test_doctor_tells_what_work_runs_on() -> None:
    assert ON_PYTORCH in start("-m", "epigrad", "doctor").stdout


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
