"""`batch_invariant`: results whose rows do not depend on other rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from epigrad._core import loader
from epigrad._core.blocks import Blocks, is_set
from epigrad._core.torch_state import constant_to_dynamo

_blocks: Blocks[bool] = Blocks()

PRODUCTS: dict[Any, Callable[..., Tensor | None]] = {}
"""PyTorch's functions that `torch_functions` computes, and what computes them. It gives None for a
call that stays PyTorch's. `epigrad.integrations.torch_functions` fills it in."""


class batch_invariant:  # noqa: N801 (a context manager, named as a function)
    """Compute rows whose bits depend on no other row, in this thread and ``with`` block.

    Bits of a row of the output, of ``grad_input`` and of ``grad_preactivation`` then depend neither
    on the number of rows nor on the other rows, for operands whose rows are contiguous. It is for
    layers and blocks; elementwise functions are so always, and on a CPU layers too. On CUDA it
    costs time where there are few rows. Gradients of weights and biases are sums over rows.

    Forward remembers the mode, so backward may run outside the block. ``EPIGRAD_BATCH_INVARIANT=1``
    switches it on for a whole process; a block wins over it. Blocks nest. `epigrad.tuning` makes no
    choices for such calls.

    With `torch_functions`, PyTorch's own products are epigrad's inside, forward and backward:
    ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``matmul`` and ``linear``, as functions, methods,
    ``@`` and ``torch.nn.Linear``. So are ``sum`` and ``mean`` of the last dimension, and the
    gradient of a number ``[..., 1]`` that ``+``, ``-``, ``*`` or ``/`` gives to a whole row. Norms
    are made of these. So a model of PyTorch's layers gets the promise, unchanged. It is for dense
    tensors of one device and one of the four dtypes. Everything else stays PyTorch's: other
    functions, such as fused attention, ``out=``, and subclasses of tensors. Every call of PyTorch
    inside then passes through Python. docs/howto/rl.md has the list, and a program.

    Args:
        enabled: False switches the mode off inside, for PyTorch's functions too.
        torch_functions: True computes PyTorch's products, too. A block inside that does not set it
            leaves them as they are.

    Raises:
        UnsupportedError: (a ``NotImplementedError``) from a call inside on WebGPU, with tensors
            that are larger than the adapter's bindings.

    Examples:
        >>> import epigrad, torch
        >>> x, weight = torch.randn(100, 64), torch.randn(32, 64)
        >>> with epigrad.batch_invariant():
        ...     all_rows, one = epigrad.linear(x, weight), epigrad.linear(x[7:8], weight)
        >>> torch.equal(all_rows[7:8], one)
        True
        >>> with epigrad.batch_invariant(torch_functions=True):
        ...     torch.equal((x @ weight.T)[7:8], x[7:8] @ weight.T)
        True
    """

    def __init__(self, enabled: bool = True, *, torch_functions: bool = False) -> None:
        self._enabled = bool(enabled)
        self._torch_functions = bool(torch_functions)

    def __enter__(self) -> None:
        _blocks.begin(self._enabled)
        if self._torch_functions:
            _products.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._torch_functions:
            _products.__exit__(None, None, None)
        _blocks.end()


class _Products(TorchFunctionMode):
    """Computes PyTorch's products by epigrad's.

    It sees functions above autograd, so that epigrad's function records backward, and the mode with
    it. A `TorchDispatchMode` sees what composite functions call, too. But it sees backward only
    while its block is open, and Dynamo does not trace it.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        product = PRODUCTS.get(function)
        if product is not None and _blocks.choice:
            out = product(*args, **kwargs)
            if out is not None:
                return out
        return function(*args, **kwargs)


_products: Any = _Products()

_VARIABLE: Any = os.environ.encodekey("EPIGRAD_BATCH_INVARIANT")


def is_on() -> bool:
    """Whether calls of this thread are to be batch-invariant."""
    on = _blocks.choice
    return _of_environment() if on is None else on


@constant_to_dynamo  # which would check the whole environment again at each call
def _of_environment() -> bool:
    return is_set(_VARIABLE) and loader.is_switched_on("EPIGRAD_BATCH_INVARIANT")
