"""What the code of `torch.compile` calls: `torch.ops.epigrad._linear` in the place of `linear`.

In that code autograd is no question any more, and the rule for it, which is Python, would only cost
time. Graphs keep the operators' own names: the change is made where Inductor turns a graph into
code.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from epigrad.ops.operator import Operator


def lower(operators: Iterable[Operator]) -> None:
    """Have Inductor, which is imported already, call the operators by their other names."""
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    for operator in operators:
        lowering.make_fallback(operator.overload, warn=False)  # as Inductor does by itself
        lowering.lowerings[operator.overload] = lowering.fallback_handler(operator.bare)
