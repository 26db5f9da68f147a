"""`batch_invariant`: results whose rows do not depend on other rows."""

from __future__ import annotations

import os
from typing import Any

from epigrad._core import loader
from epigrad._core.blocks import Blocks, is_set
from epigrad._core.torch_state import constant_to_dynamo

_blocks: Blocks[bool] = Blocks()


class batch_invariant:  # noqa: N801 (a context manager, named as a function)
    """Compute rows whose bits depend on no other row, in this thread and ``with`` block.

    Bits of a row of the output, of ``grad_input`` and of ``grad_preactivation`` then depend neither
    on the number of rows nor on the other rows, for operands whose rows are contiguous. It is for
    layers and blocks; elementwise functions are so always, and on a CPU layers too. On CUDA it
    costs time where there are few rows. Gradients of weights and biases are sums over rows.

    Forward remembers the mode, so backward may run outside the block. ``EPIGRAD_BATCH_INVARIANT=1``
    switches it on for a whole process; a block wins over it. Blocks nest. `epigrad.tuning` makes no
    choices for such calls.

    Args:
        enabled: False switches the mode off inside.

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
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = bool(enabled)

    def __enter__(self) -> None:
        _blocks.begin(self._enabled)

    def __exit__(self, *_: object) -> None:
        _blocks.end()


_VARIABLE: Any = os.environ.encodekey("EPIGRAD_BATCH_INVARIANT")


def is_on() -> bool:
    """Whether calls of this thread are to be batch-invariant."""
    on = _blocks.choice
    return _of_environment() if on is None else on


@constant_to_dynamo  # which would check the whole environment again at each call
def _of_environment() -> bool:
    return is_set(_VARIABLE) and loader.is_switched_on("EPIGRAD_BATCH_INVARIANT")
