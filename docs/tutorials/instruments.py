"""What the tutorials measure with: the memory that autograd keeps, and times of calls in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

EPIGRAD, PYTORCH = "#2a7f9e", "#d08c2f"  # the colours of all pictures


def kept(forward: Callable[[], Tensor], aside: Iterable[Tensor]) -> int:
    """Bytes that autograd keeps from forward to backward, some tensors aside: inputs and weights.

    PyTorch hands every tensor that a graph keeps to these hooks. Tensors that share memory count
    once.
    """
    memory: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = forward()
    for tensor in aside:
        memory.pop(tensor.untyped_storage().data_ptr(), None)
    del out  # only now: memory that is free could be given out again, and would count as the same
    return sum(memory.values())


def forward_and_backward(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], object]:
    """A call of the function, and the gradients to all of its inputs."""
    with torch.no_grad():
        grad_output = torch.randn_like(function(*inputs))
    return lambda: torch.autograd.grad(function(*inputs), inputs, grad_output)


def times(calls: Mapping[str, Callable[[], object]], seconds: float = 1.0) -> dict[str, float]:
    """Processor seconds of each call: the fewest of many rounds, which take so many seconds.

    In a round the calls take turns, so that a slow moment of the machine hits all of them.
    Processor time leaves out what other programs take. It is the time that passes where the call
    has one thread.
    """
    if torch.get_num_threads() != 1:
        raise RuntimeError("times: processor time counts all threads: call torch.set_num_threads(1) before")
    fewest = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()  # the first call chooses kernels
    begin, rounds = time.perf_counter(), 0
    while rounds < 10 or time.perf_counter() - begin < seconds:
        for name, call in calls.items():
            start = time.process_time()
            call()
            fewest[name] = min(fewest[name], time.process_time() - start)
        rounds += 1
    return fewest
