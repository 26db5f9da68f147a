"""Has the code of `torch.compile` call `torch.ops.epigrad._linear` in place of `linear`.

That code runs after autograd, so the operator's autograd rule, which is Python, would only cost
time. Graphs keep the operators' own names: Inductor replaces them when it turns a graph into code.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import lowering

from epigrad.ops import ADAPTED, OPERATORS

_lowering: Any = lowering
for _operator in (*OPERATORS, *ADAPTED):
    _lowering.make_fallback(_operator.overload, warn=False)  # as Inductor does by itself
    _lowering.lowerings[_operator.overload] = _lowering.fallback_handler(_operator.bare)
