"""Calls on the CPU while allocations of epigrad's C code fail, each in turn: the program of
test_allocation_failure.py, which runs it under failing_malloc.c.

Each allocation that fails has a process of its own, forked before the core is loaded. The program
prints how many allocations there are.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import epigrad
import torch
from epigrad import backward, errors, forward
from torch import Tensor

EVERY = 2**62
AGAIN = 4  # the third call of a geometry goes another way
PREPARED: Any = ctypes.CDLL(None)  # failing_malloc.c's functions
PREPARED.fail_allocations.argtypes = [ctypes.c_int64, ctypes.c_int64]
PREPARED.watch_allocations.restype = ctypes.c_int64
Call = tuple[str, list[Tensor], Callable[[list[Tensor]], Any]]


def ramp(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape), dtype=torch.float64).reshape(shape).to(dtype)


def calls() -> Iterator[Call]:
    """A name, the outputs, and what writes them."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        # blocks that all threads share, or that are a thread's each; few rows; sums in parts
        for m, n, k in ((1130, 260, 8), (1130, 260, 1), (40, 70, 24), (3, 3, 9000)):
            if dtype != torch.float32 and m > 40:
                continue  # as float32
            x, w, b, grad = (ramp(*shape, dtype=dtype) for shape in ((m, k), (n, k), (n,), (m, n)))

            def layer(out: list[Tensor], x: Tensor = x, w: Tensor = w, b: Tensor = b) -> None:
                forward.linear(x, w, b, "silu", out=out[0])

            def gradients(out: list[Tensor], x: Tensor = x, w: Tensor = w, b: Tensor = b, g: Tensor = grad) -> None:
                backward.linear_backward(g, x, w, b, "silu", out=tuple(out))

            def pass_over(out: list[Tensor], x: Tensor = x) -> None:
                forward.activation(x, "gelu", out=out[0])

            yield f"linear {m}x{n}x{k} {dtype}", [torch.empty_like(grad)], layer
            yield f"linear_backward {m}x{n}x{k} {dtype}", [torch.empty_like(tensor) for tensor in (x, w, b)], gradients
            yield f"activation {m}x{k} {dtype}", [torch.empty_like(x)], pass_over


def succeeds(call: Callable[[list[Tensor]], Any], outs: list[Tensor]) -> bool:
    """Whether a call on outputs of NaN gives results; if not, it raises DeviceError."""
    for out in outs:
        out.fill_(math.nan)
    PREPARED.watch_allocations(1)
    try:
        call(outs)
    except errors.DeviceError as error:
        text = str(error)
    else:
        return True
    finally:
        PREPARED.watch_allocations(0)
    # without memory for the text there is none
    assert not text or "cpu: aligned_alloc: ENOMEM (12): no memory for a product's workspace of " in text, text
    return False


def refuse() -> None:
    """A mistake is an error of its class, with or without memory for its text."""
    try:
        forward.linear(torch.ones(2, 3), torch.ones(2, 4))
    except errors.InvalidProblemError as error:
        text = str(error)
    else:
        raise AssertionError("a mistake was accepted")
    assert not text or "linear: weight" in text, text


def run(first: int, last: int) -> int:
    """Makes all calls while these allocations fail; returns how many there were."""
    epigrad.backends()  # loads the core
    count = 0
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, outs, call in calls():
            PREPARED.fail_allocations(first - count, last - count if last < EVERY else last)
            attempts = []
            for _ in range(AGAIN):
                attempts.append((succeeds(call, outs), [out.clone() for out in outs]))
                PREPARED.watch_allocations(1)
                refuse()
                PREPARED.watch_allocations(0)
            count += PREPARED.watch_allocations(0)
            PREPARED.fail_allocations(0, 0)
            assert succeeds(call, outs), f"{name}: it fails where there is memory again"
            for good, results in attempts:
                for result, out in zip(results, outs, strict=True):
                    complete, untouched = torch.equal(result, out), bool(result.isnan().all())
                    assert complete or (untouched and not good), f"{name}: an output is half written"
    return count


def in_a_child(first: int, last: int) -> int:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(writing, str(run(first, last)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    count = os.read(reading, 20)
    os.close(reading)
    if status:
        sys.exit(f"allocations {first} to {last} failed: status {status}")
    return int(count)


if __name__ == "__main__":
    total = in_a_child(0, 0)
    for number in range(1, total + 1):
        in_a_child(number, number)
    in_a_child(1, EVERY)
    in_a_child(total // 2, EVERY)
    print(total)
