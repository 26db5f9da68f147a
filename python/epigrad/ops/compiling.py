"""Has the code of `torch.compile` call `torch.ops.epigrad._linear` in place of `linear`.

That code runs after autograd, so the operator's autograd rule, which is Python, would only cost
time. Graphs keep the operators' own names: Inductor replaces them when it turns a graph into code.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from epigrad.ops.operator import Operator


def lower(operators: Iterable[Operator]) -> None:
    """Have Inductor call the operators without an autograd rule. It has to be imported already."""
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    for operator in operators:
        lowering.make_fallback(operator.overload, warn=False)  # as Inductor does by itself
        lowering.lowerings[operator.overload] = lowering.fallback_handler(operator.bare)
