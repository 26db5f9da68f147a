"""Decomposes the operators into PyTorch's operations for exporters.

`ExportedProgram.run_decompositions` has no registry for operators with an autograd rule. This
module wraps it, so that its default table and that of `torch.onnx.export` have epigrad's operators
too. A table that a caller passes is used as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch.export import ExportedProgram, default_decompositions

from epigrad._core.torch_state import is_exported_to_onnx
from epigrad.ops import decompositions

Table = Mapping[Any, Callable[..., Any]]

_own: Any = ExportedProgram.run_decompositions
_decompositions = decompositions()


@functools.wraps(_own)
def _run_decompositions(self: Any, decomp_table: Table | None = None, *rest: Any, **options: Any) -> Any:
    if decomp_table is None:
        decomp_table = {**_decompositions, **default_decompositions()}
    elif is_exported_to_onnx():
        decomp_table = {**_decompositions, **decomp_table}
    return _own(self, decomp_table, *rest, **options)


ExportedProgram.run_decompositions = _run_decompositions  # type: ignore[method-assign]
