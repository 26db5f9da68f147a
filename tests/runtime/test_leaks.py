"""Thousands of calls, refused ones included, leave neither memory nor Python objects behind."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward, plan

from tests.support.processes import run_script
from tests.support.tiers import THIRD, in_turns, thorough

PAGES = Path("/proc/self/statm")
MIB = 1 << 20

X = torch.randn(16, 64)
WEIGHT = torch.randn(32, 64, requires_grad=True)
BIAS = torch.randn(32, requires_grad=True)


def resident() -> int:
    """Resident bytes of this process."""
    return int(PAGES.read_text().split()[1]) * 4096


def train() -> None:
    epigrad.linear(X, WEIGHT, BIAS, "gelu").sum().backward()
    WEIGHT.grad = BIAS.grad = None


def second_order() -> None:
    x = X[:1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(epigrad.linear(x, WEIGHT, BIAS, "gelu").sum(), x, create_graph=True)
    gradient.square().sum().backward(inputs=[x])


def block() -> None:
    epigrad.gated_mlp(X, torch.ones(64, 64), None, WEIGHT.T, None).sum().backward()
    WEIGHT.grad = None


def gated_layer() -> None:
    epigrad.gated_linear(X, WEIGHT, WEIGHT).sum().backward()
    WEIGHT.grad = None


def stateless() -> None:
    backward.linear_backward(torch.ones(16, 32), X, WEIGHT, BIAS, "silu", needs=(True, True, False))
    backward.lerp_backward(X, X, X, X)


def written_into() -> None:
    forward.lerp(X, X, 0.5, out=torch.empty_like(X))


def planned() -> None:
    made = plan.GatedActivation.select(input_shape=(16, 64), dtype=torch.float32)
    made.run(input=X, out=torch.empty(16, 32))


def refused_shape() -> None:
    with pytest.raises(errors.InvalidProblemError):
        epigrad.linear(X, torch.ones(3, 5))


def refused_dtype() -> None:
    with pytest.raises(errors.DTypeError):
        forward.linear(X, WEIGHT.detach().double())


def refused_out() -> None:
    with pytest.raises(errors.InvalidProblemError):
        forward.lerp(X, X, 0.5, out=X)


def refused_plan() -> None:
    with pytest.raises(errors.InvalidProblemError):
        plan.Lerp.select(shape=(-1,), dtype=torch.float32)


def refused_run() -> None:
    made = plan.Lerp.select(shape=(16, 64), weight=0.5, dtype=torch.float32)
    with pytest.raises(errors.InvalidProblemError):
        made.run(start=X, end=X, out=torch.empty(3))


def ghosts() -> None:
    x = torch.ones(4, 64, device="meta", requires_grad=True)
    epigrad.linear(x, torch.ones(32, 64, device="meta")).sum().backward()


def abandoned() -> None:
    epigrad.mlp(X, WEIGHT, BIAS, torch.ones(4, 32), None)


def cycle() -> None:
    class Holder:
        pass

    holder: Any = Holder()
    holder.out = epigrad.linear(X, WEIGHT, BIAS, "tanh")
    holder.itself = holder


CALLS = (
    train,
    second_order,
    block,
    gated_layer,
    stateless,
    written_into,
    planned,
    refused_shape,
    refused_dtype,
    refused_out,
    refused_plan,
    refused_run,
    ghosts,
    abandoned,
    cycle,
)


@pytest.fixture
def _only_new_objects() -> Iterator[None]:
    """The collector leaves out the many objects of the modules that the tests have imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_only_new_objects")
@pytest.mark.parametrize("call", in_turns(CALLS, 5, thorough, lambda f: f.__name__))
def test_objects_do_not_pile_up(call: Callable[[], None]) -> None:
    for _ in range(50):
        call()
    gc.collect()
    objects, tensors = len(gc.get_objects()), count_tensors()
    for _ in range(300):
        call()
    gc.collect()
    assert count_tensors() <= tensors
    assert len(gc.get_objects()) < objects + 150


def count_tensors() -> int:
    # By type: isinstance would ask torch's lazy attributes for their class, and some warn.
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())


def growth(call: Callable[[], None]) -> list[int]:
    """Bytes by which rounds of calls let this process grow, until one does so by little."""

    def rounds(count: int) -> int:
        for _ in range(count):
            call()
        gc.collect()
        return resident()

    # Allocators fill up first, the more of them the more processors; a leak goes on growing.
    # 600 leaked tensors of this size would be 2.4 MiB or more, 600 leaked messages 0.1 MiB.
    before = rounds(600)
    grown: list[int] = []
    while len(grown) < 12 and (not grown or grown[-1] >= MIB // 16):
        after = rounds(600)
        grown.append(after - before)
        before = after
    return grown


# In a process of their own: a call that Go runs leaves it garbage, and other tests may have made
# the heap large that Go lets double before it collects. GOGC has it collect sooner.
@pytest.mark.skipif(not PAGES.exists(), reason="resident memory is read from Linux's /proc")
@pytest.mark.parametrize("third", in_turns(range(THIRD), THIRD, thorough))
def test_resident_memory_does_not_grow(third: int) -> None:
    script = f"""
import json
from tests.runtime import test_leaks
calls = test_leaks.CALLS[{third} :: {THIRD}]
print(json.dumps({{call.__name__: test_leaks.growth(call) for call in calls}}))
"""
    grown = json.loads(run_script(script, timeout=240, GOGC="10"))
    assert len(grown) == len(CALLS) // THIRD
    assert all(sizes[-1] < MIB // 16 for sizes in grown.values()), grown


def test_reference_counts_stay() -> None:
    out = torch.empty(16, 64)
    shape_counts = [sys.getrefcount(value) for value in (X, WEIGHT, BIAS, out)]
    for _ in range(1000):
        forward.lerp(X, X, 0.5, out=out)
        forward.linear(X, WEIGHT, BIAS, "relu")
        refused_shape()
        refused_out()
    assert [sys.getrefcount(value) for value in (X, WEIGHT, BIAS, out)] == shape_counts


def test_large_results_are_given_back() -> None:
    x, weight = torch.randn(512, 512), torch.randn(512, 512, requires_grad=True)
    before = 0
    for step in range(60):
        epigrad.mlp(x, weight, None, weight, None).sum().backward()
        weight.grad = None
        if step == 20:
            before = resident() if PAGES.exists() else 0
    if PAGES.exists():
        # Each step makes at least four tensors of 1 MiB.
        assert resident() - before < 40 * MIB
