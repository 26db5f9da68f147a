"""Which gradients the running backward computes, from autograd's engine.

`ctx.needs_input_grad` is fixed in forward. A backward may need the input's gradient alone, as in
zero-bubble pipelines, saliency maps and adversarial training.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

# For Python without the interpreter lock. PyTorch's object of a node is one for all threads there,
# and fails where one thread drops it while another asks for it (PyTorch 2.11).
_nodes = threading.Lock()


CHEAP = {"cpu": (1 << 22, 1 << 19), "cuda": (1 << 29, 1 << 24)}
"""The multiply-adds of products, and the elements of other functions, whose gradients take as long
as a few questions on a device: PyTorch answers one in 12 to 30 us, by an exception, if
`torch.autograd.grad` wants a leaf's gradient."""
TENSOR_CORES = 16
"""How many times as many multiply-adds of a half type a GPU computes meanwhile."""


def asked_unless_cheap(
    ctx: Any, needs: tuple[bool, ...], grad: Tensor, shapes: Sequence[torch.Size | None] | None = None
) -> tuple[bool, ...]:
    """`asked`; or all needs, if no graph is recorded and computing them is cheap. The work is
    estimated from a gradient's elements; for layers, from its rows and the tensors' shapes."""
    work, device = grad.numel(), grad.device.type
    # A compiler's symbol would become a number by the comparison.
    if type(work) is not int or torch.is_grad_enabled():
        return asked(ctx, needs)
    products, elements = CHEAP.get(device, CHEAP["cpu"])
    if shapes is None:
        cheap = elements
    else:
        rows = work // max(grad.shape[-1], 1) if grad.ndim else 1
        work = rows * sum([shape.numel() for shape in shapes if shape is not None])
        cheap = products * TENSOR_CORES if device == "cuda" and grad.element_size() == 2 else products
    return needs if work < cheap else asked(ctx, needs)


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
