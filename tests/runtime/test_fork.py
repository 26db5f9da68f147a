"""fork(): harmless before the first use, a clear error and never a hang after it; other ways to
start workers work."""

from __future__ import annotations

import os

import pytest

from tests.support.processes import run_script
from tests.support.tiers import thorough

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

CHILD = """
import os, sys, warnings, torch, epigrad
warnings.simplefilter("ignore", DeprecationWarning)
def use():
    x = torch.ones(2, 3, requires_grad=True)
    out = epigrad.linear(x, torch.ones(4, 3), None, "gelu")
    out.sum().backward()
    assert x.grad is not None
def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
def refused(work):
    import gc
    for _ in range(3):
        try:
            work()
        except epigrad.errors.BackendUnavailableError as error:
            text = str(error)
            assert "fork" in text and "spawn" in text, text
        except RuntimeError as error:  # PyTorch's own, which comes first in a process whose autograd has GPU threads
            assert "Autograd-and-Fork" in str(error)
        else:
            raise AssertionError("was not refused")
    gc.collect()
"""


def test_importing_loads_no_core() -> None:
    script = """
import sys, epigrad, epigrad.nn, epigrad.plan, epigrad.backward, epigrad.forward, torch
epigrad.nn.MLP(4, 8), epigrad.nn.GatedMLP(4, 8), epigrad.nn.Lerp()
assert "epigrad._native" not in sys.modules
maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
assert "_native.abi3" not in maps
print("fine")
"""
    assert run_script(script) == "fine"


def test_a_fork_before_the_first_use_is_harmless() -> None:
    script = (
        CHILD
        + """
in_child(use)
in_child(use)
use()
print("fine")
"""
    )
    assert run_script(script) == "fine"


def test_a_child_of_a_process_that_used_it_gets_a_clear_error() -> None:
    script = (
        CHILD
        + """
use()
out = epigrad.linear(torch.ones(2, 3, requires_grad=True), torch.ones(4, 3), None, "gelu")
made = epigrad.plan.Lerp.select(shape=(2,), weight=0.5, dtype=torch.float32)
ends = {"start": torch.zeros(2), "end": torch.ones(2), "out": torch.empty(2)}
calls = {
    "autograd": use,
    "function": lambda: epigrad.lerp(torch.zeros(2), torch.ones(2), 0.5),
    "forward": lambda: epigrad.forward.gated_activation(torch.ones(4)),
    "backward": lambda: epigrad.backward.lerp_backward(torch.ones(2), None, None, 0.5),
    "a graph of the parent": lambda: out.sum().backward(),
    "select": lambda: epigrad.plan.Lerp.select(shape=(2,), weight=0.5, dtype=torch.float32),
    "a plan of the parent": lambda: made.run(**ends),
    "asking a plan of the parent": lambda: made.can_implement(**ends),
    "backends": epigrad.backends,
    "use_backend": lambda: epigrad.use_backend("cpu").__enter__(),
    "meta": lambda: epigrad.linear(torch.ones(2, 3, device="meta"), torch.ones(4, 3, device="meta")),
    "a wrong problem": lambda: epigrad.linear(torch.ones(2, 3), torch.ones(4, 5)),
}
for name, call in calls.items():
    print(name)
    in_child(lambda: refused(call))
use()
"""
    )
    assert run_script(script).splitlines()[-1] == "a wrong problem"


def test_destructors_and_exit_are_quiet_in_the_child() -> None:
    script = (
        CHILD
        + """
import gc
use()
plans = [epigrad.plan.Lerp.select(shape=(n,), weight=0.5, dtype=torch.float32) for n in range(1, 50)]
def drop():
    plans.clear()
    gc.collect()
in_child(drop)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
del plans
gc.collect()
use()
print("fine")
"""
    )
    assert run_script(script) == "fine"


def test_a_grandchild_is_refused_too() -> None:
    script = (
        CHILD
        + """
use()
in_child(lambda: in_child(lambda: refused(use)))
print("fine")
"""
    )
    assert run_script(script) == "fine"


@thorough
def test_a_fork_while_other_threads_compute() -> None:
    """PyTorch makes its first-call tables before the threads start: they are not safe against a
    fork meanwhile."""
    script = (
        CHILD
        + """
import threading
use()
x, weight = torch.ones(64, 64), torch.ones(64, 64)
stop = threading.Event()
def busy():
    while not stop.is_set():
        epigrad.linear(x, weight, None, "gelu")
threads = [threading.Thread(target=busy) for _ in range(3)]
[t.start() for t in threads]
try:
    for _ in range(10):
        in_child(lambda: refused(use))
finally:
    stop.set()
    [t.join() for t in threads]
print("fine")
"""
    )
    assert run_script(script) == "fine"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@thorough
def test_other_ways_to_start_workers(method: str, tmp_path: os.PathLike[str]) -> None:
    program = os.path.join(tmp_path, "program.py")
    with open(program, "w") as file:
        file.write(
            f"""
import multiprocessing, torch, epigrad
def work(n):
    return epigrad.lerp(torch.zeros(n), torch.ones(n), 0.5).tolist()
if __name__ == "__main__":
    work(1)
    with multiprocessing.get_context("{method}").Pool(1) as pool:
        assert pool.map(work, [1, 2]) == [[0.5], [0.5, 0.5]]
    print("fine")
"""
        )
    assert run_script(f"import runpy; runpy.run_path({program!r}, run_name='__main__')") == "fine"


def test_data_loader_workers_that_import_only() -> None:
    script = """
import torch, epigrad
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4, num_workers=2, multiprocessing_context="fork")
layer = epigrad.nn.Linear(3, 2, activation="relu")
for _ in range(2):
    for (batch,) in loader:
        layer(batch).sum().backward()
print("fine")
"""
    assert run_script(script) == "fine"
