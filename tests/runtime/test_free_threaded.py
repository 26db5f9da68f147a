"""What Python's interpreter lock would hide: state that threads share.

`make test-free-threaded` runs these without the lock. They hold with it, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import epigrad
import pytest
import torch
from epigrad import forward, plan
from torch import Tensor, nn

from tests.support.layouts import assert_same_bits
from tests.support.processes import run_script
from tests.support.threads import WORKERS, at_once

has_no_lock = not getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.mark.skipif(not has_no_lock, reason="this Python has an interpreter lock, or has it switched on")
def test_the_core_leaves_the_lock_off() -> None:
    script = """
import sys, warnings
import torch
warnings.simplefilter("error")  # Python warns where an extension has the lock switched on
import epigrad
x = torch.ones(2, 3, requires_grad=True)
epigrad.linear(x, torch.ones(4, 3), None, "gelu").sum().backward()
assert epigrad.backends()[0].available and not sys._is_gil_enabled()
print("fine")
"""
    assert run_script(script) == "fine"


@pytest.fixture(autouse=True)
def _threads(_one_thread: None) -> None:
    """One thread for each call: the threads here are the callers'."""


MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: epigrad.nn.Linear(24, 24, activation="gelu"),
    "MLP": lambda: epigrad.nn.MLP(24, 40),
    "GatedMLP": lambda: epigrad.nn.GatedMLP(24, 40),
    "PReLU": lambda: epigrad.nn.PReLU(24),
    "XIELU": epigrad.nn.XIELU,
}


def run_module(module: nn.Module, number: int) -> tuple[Tensor, ...]:
    """The output of a module, and gradients to its input and its parameters."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(7, 24, generator=generator).requires_grad_()
    out = module(x)
    return (out.detach(), *torch.autograd.grad(out.square().sum(), (x, *module.parameters())))


@pytest.mark.parametrize("name", MODULES)
def test_one_module_in_many_threads(name: str) -> None:
    module = MODULES[name]()
    want = [run_module(module, number) for number in range(WORKERS)]

    def work(number: int) -> None:
        for _ in range(20):
            for one, other in zip(run_module(module, number), want[number], strict=True):
                assert_same_bits(one, other)

    at_once(work)


def test_geometries_push_each_other_out() -> None:
    """More than the core remembers (cbridge/geometry.c), while other threads run their kernels."""

    def work(number: int) -> None:
        for rows in range(1, 101):
            for _ in range(4):  # from the third on, a kernel is held
                out = forward.activation(torch.full((rows, number + 1), 2.0), "relu2")
                assert out.shape == (rows, number + 1) and bool((out == 4.0).all())

    at_once(work)


def test_kernels_are_forgotten_while_others_run_them(tmp_path: Path) -> None:
    ends = threading.Event()
    x, weight = torch.randn(5, 24), torch.randn(24, 24)
    want = forward.linear(x, weight, None, "silu")

    def work(number: int) -> None:
        if number:
            while not ends.is_set():
                assert_same_bits(forward.linear(x, weight, None, "silu"), want)
            return
        try:
            for _ in range(200):
                with epigrad.tuning(tmp_path / "tuning.json"):  # what was chosen outside is not held inside
                    forward.linear(x, weight, None, "silu")
        finally:
            ends.set()

    at_once(work)


def test_parameters_of_kinds_stay_in_their_thread() -> None:
    x = torch.linspace(-2.0, 2.0, 50)

    def work(number: int) -> None:
        for step in range(100):
            slope = number + step / 128  # exact in float32
            got = epigrad.activation(x, epigrad.Activation("leaky_relu", slope=slope))
            assert torch.equal(got, torch.where(x > 0, x, x * slope))

    at_once(work)


def test_a_plan_is_closed_while_others_are_made() -> None:
    def work(number: int) -> None:
        for step in range(50):
            shape = (number + 1, step + 1)
            made = [plan.Lerp.select(shape=shape, weight=0.5, dtype=torch.float32) for _ in range(3)]
            out = torch.empty(shape)
            made.pop(step % 3).run(start=torch.zeros(shape), end=torch.ones(shape), out=out)
            assert torch.equal(out, torch.full(shape, 0.5))

    at_once(work)


def test_operators_of_pytorch_in_many_threads() -> None:
    x = torch.randn(6, 24)
    want = forward.gated_activation(x, "swiglu")

    def work(_: int) -> None:
        for _ in range(100):
            assert_same_bits(torch.ops.epigrad.gated_activation(x, "swiglu"), want)

    at_once(work)


def shared_weight() -> nn.Parameter:
    weight = nn.Parameter(torch.ones(128, 128, dtype=torch.bfloat16))
    weight.main_grad = torch.zeros(128, 128)
    return weight


def test_main_grad_gets_what_every_thread_adds() -> None:
    weight = shared_weight()
    handle = epigrad.accumulate_main_grad([weight])
    x = torch.ones(8, 128, dtype=torch.bfloat16)

    def work(_: int) -> None:
        for _ in range(100):
            epigrad.linear(x, weight).sum().backward()

    at_once(work)
    handle.remove()
    assert torch.equal(weight.main_grad, torch.full((128, 128), 8.0 * 100 * WORKERS))


def test_main_grad_is_switched_by_many_threads() -> None:
    weight = shared_weight()
    kept = epigrad.accumulate_main_grad([weight])

    def work(_: int) -> None:
        for _ in range(300):
            epigrad.accumulate_main_grad([weight]).remove()

    at_once(work)
    at_once(lambda _: kept.remove())  # a second time does nothing
    epigrad.linear(torch.ones(1, 128, dtype=torch.bfloat16), weight).sum().backward()
    assert weight.grad is not None and not weight.main_grad.any()
