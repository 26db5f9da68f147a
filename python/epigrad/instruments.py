"""What a function keeps for backward, and how long calls take, one library beside another.

The tutorials measure with these, and they know nothing of epigrad: they serve any function of
PyTorch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from epigrad.cli import machine as _machine
from epigrad.cli.timing import interleaved

__all__ = ["forward_and_backward", "kept_bytes", "machine", "times"]


def kept_bytes(forward: Callable[[], object], aside: Iterable[Tensor] = ()) -> int:
    """Bytes of memory that autograd keeps between forward and backward.

    PyTorch hands every tensor that a graph saves to `torch.autograd.graph.saved_tensors_hooks`.
    Tensors that share memory count once, and a view counts as the whole of its memory. The number
    is the same on every machine.

    Args:
        forward: The call to measure. What it returns has to hold the graph, as an output does.
        aside: Tensors whose memory does not count: inputs and weights, which live on in any case.

    Returns:
        Bytes, on all devices together.

    Examples:
        >>> import epigrad
        >>> x = torch.randn(256, 2, 512, requires_grad=True)
        >>> kept_bytes(lambda: x.sin())
        1048576
        >>> kept_bytes(lambda: x.sin(), aside=[x])
        0
        >>> kept_bytes(lambda: torch.nn.functional.silu(x[:, 0]) * x[:, 1], aside=[x])
        524288
        >>> kept_bytes(lambda: epigrad.gated_product(x[:, 1], x[:, 0], "swiglu"), aside=[x])
        0
    """
    memory: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        memory[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = forward()
    for tensor in aside:
        memory.pop(tensor.untyped_storage().data_ptr(), None)
    del out  # only now: memory that is free could be given out again, and would count as the same
    return sum(memory.values())


def forward_and_backward(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    """A call that runs a function and the gradients to all of its inputs, for `times`.

    Args:
        function: Takes the inputs and returns one tensor. It is called once here, for its shape.
        inputs: Tensors that require gradients.

    Returns:
        A function without arguments. It returns the gradients, in the order of the inputs.

    Examples:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> (gradient,) = forward_and_backward(torch.square, [x])()
        >>> gradient.shape
        torch.Size([2])
    """
    with torch.no_grad():
        grad_output = torch.randn_like(function(*inputs))
    return lambda: torch.autograd.grad(function(*inputs), inputs, grad_output)


def times(calls: Mapping[str, Callable[[], object]], seconds: float = 1.0) -> dict[str, float]:
    """Processor seconds of each call: the fewest of many rounds.

    The calls take turns in each round, so a slow moment of the machine hits all of them. PyTorch
    has one thread meanwhile, whose processor time leaves out other programs. A call does not wait
    for a GPU: measure calls on the CPU.

    Args:
        calls: What to measure, by name.
        seconds: How long the rounds go on, all calls together. There are at least six rounds. The
            first one chooses kernels and does not count.

    Returns:
        The seconds of one call, by name.

    Examples:
        >>> x = torch.randn(256, 256)
        >>> found = times({"sum": x.sum, "product": lambda: x @ x}, seconds=0.1)
        >>> found["sum"] < found["product"]
        True
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timings = interleaved(calls, seconds, least=6, clock=time.process_time)
    finally:
        torch.set_num_threads(threads)
    return {name: timing.fastest for name, timing in timings.items()}


def machine() -> str:
    """What times were measured on: the processor, epigrad's engine for it, PyTorch's version.

    Examples:
        >>> print(machine())  # doctest: +SKIP
        AMD EPYC, epigrad's engine avx2 on amd64, PyTorch 2.15.0+cu132
    """
    engine = (_machine.backend("cpu") or "").split(",")[0]
    return f"{_machine.cpu_name()}, epigrad's {engine}, PyTorch {torch.__version__}"
