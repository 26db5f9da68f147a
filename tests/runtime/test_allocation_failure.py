"""Memory that is not to be had on a CPU: an error each, no output half written, and the next call
works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, forward

from tests.support.processes import run_script, start
from tests.support.tiers import in_turns, thorough

HERE = Path(__file__).parent
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="failing_malloc.c is for glibc")


@LINUX
@thorough
def test_each_allocation_of_the_core_may_fail(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC") or "gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "failing_malloc.so"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", library, HERE / "failing_malloc.c", "-ldl"], check=True)
    # at one processor and without collections, Go's runtime starts few threads
    rest = {"LD_PRELOAD": str(library), "GOMAXPROCS": "1", "GOGC": "off"}
    done = start(str(HERE / "failing_calls.py"), timeout=300, **rest)
    assert done.returncode == 0, done.stderr
    # the memo of geometries, their kernels, programs of passes, a message, scratch of products
    assert int(done.stdout) > 20


HUGE = torch.zeros(1).expand(2**46)
TALL = torch.zeros(1, 1).expand(2**24, 2**22)
CALLS: dict[str, Callable[[], Any]] = {
    "an output": lambda: forward.activation(HUGE, "relu"),
    "autograd's": lambda: epigrad.activation(HUGE.requires_grad_(), "gelu"),
    "a product's": lambda: epigrad.linear(torch.zeros(2**30, 1), torch.zeros(1, 1).expand(2**20, 1)),
    "a workspace": lambda: backward.linear_backward(
        TALL, torch.zeros(2**24, 1), torch.zeros(2**22, 1), None, "gelu", needs=(False, True, False)
    ),
}


@pytest.mark.parametrize("name", in_turns(CALLS, len(CALLS), thorough))
def test_memory_that_pytorch_does_not_have_is_its_error(name: str) -> None:
    with pytest.raises(RuntimeError) as theirs:
        torch.empty(2**46)
    with pytest.raises(type(theirs.value), match=r"DefaultCPUAllocator: can't allocate memory") as ours:
        CALLS[name]()
    assert type(ours.value) is type(theirs.value)
    assert epigrad.activation(torch.ones(3), "relu").tolist() == [1, 1, 1]


NO_OBJECTS = """
import _testcapi
import torch, epigrad
from epigrad import forward
x, w, out = torch.ones(3, 4), torch.ones(5, 4), torch.zeros(3, 5)
calls = lambda: forward.linear(x, w, None, "relu"), lambda: forward.linear(x, w, None, "relu", out=out)
for call in calls:
    failed = 0
    call(), call(), call()
    for number in range(1, 200):
        out.zero_()
        error = None
        _testcapi.set_nomemory(number, number + 1)
        try:
            call()
        except Exception as caught:
            error = caught
        finally:
            _testcapi.remove_mem_hooks()
        # PyTorch's code, which makes the tensor and counts its versions, raises RuntimeError
        assert error is None or isinstance(error, (MemoryError, RuntimeError)), repr(error)
        assert bool((out == 0).all()) or (call is calls[1] and bool((out == 4).all()))
        failed += error is not None
        assert call().sum() == 60
    assert failed > 0, "no allocation failed"
print("fine")
"""


@thorough
def test_python_objects_that_cannot_be_made_are_its_error() -> None:
    pytest.importorskip("_testcapi")
    assert run_script(NO_OBJECTS) == "fine"
