"""Which gradients the running backward computes, from autograd's engine.

`ctx.needs_input_grad` is fixed in forward. A backward may need the input's gradient alone, as in
zero-bubble pipelines, saliency maps and adversarial training.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

# For Python without the interpreter lock. PyTorch's object of a node is one for all threads there,
# and fails where one thread drops it while another asks for it (PyTorch 2.11).
_nodes = threading.Lock()


# Gradients below these limits, on a CPU and on a GPU, take less time than asking autograd. If
# `torch.autograd.grad` wants a leaf's gradient, PyTorch answers in 12 to 30 us, by an exception.
CHEAP_ELEMENTS = 1 << 19, 1 << 24
"""The elements of a gradient."""
CHEAP_PRODUCT = 1 << 21, 1 << 29
"""The multiply-adds of a layer's rows and its first weight."""
TENSOR_CORES = 16
"""How many times as many multiply-adds of a half type a GPU computes."""


def asked_unless_cheap(
    ctx: Any, needs: tuple[bool, ...], grad: Tensor, weight: torch.Size | None = None
) -> tuple[bool, ...]:
    """`asked`; or all needs, if no graph is recorded and computing them is cheap. A layer gives the
    shape of its first weight. Each backward calls this, so it does little."""
    return needs if len(needs) == 1 or _is_cheap(grad, weight) else asked(ctx, needs)


def _is_cheap(grad: Tensor, weight: torch.Size | None) -> bool:
    elements, on_gpu = grad.numel(), grad.is_cuda
    # A compiler's symbol would become a number by the comparison.
    if type(elements) is not int or torch.is_grad_enabled():
        return False
    if weight is None:
        return elements < CHEAP_ELEMENTS[on_gpu]
    size = weight.numel()
    if type(size) is not int or size >= CHEAP_ELEMENTS[on_gpu]:
        return False
    rows = elements // max(grad.shape[-1], 1) if grad.ndim else 1
    is_half = on_gpu and grad.itemsize == 2
    return rows * size < CHEAP_PRODUCT[on_gpu] * (TENSOR_CORES if is_half else 1)


def asked(ctx: Any, needs: tuple[bool, ...]) -> tuple[bool, ...]:
    """The needs of a function's tensors, without those that this backward leaves out."""
    # The engine does not know a node that a user calls, or that a compiler traces.
    if sum(needs) < 2 or torch._C._current_autograd_node() is not ctx:
        return needs
    wanted = []
    with _nodes:
        edges = iter(ctx.next_functions)
        for need in needs:
            node = None
            while need and node is None:  # a tensor that needs none has an edge to no node
                node, _ = next(edges)
            wanted.append(need and _executes(node) is not False)
    return tuple(wanted)


def accumulates(parameter: Tensor) -> bool:
    """Whether this backward accumulates a parameter's gradient."""
    with _nodes, torch.enable_grad():
        return _executes(get_gradient_edge(parameter).node) is True


def _executes(node: Any) -> bool | None:
    """Whether this backward executes a node; None if `torch.autograd.grad` returns its gradient."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return None
