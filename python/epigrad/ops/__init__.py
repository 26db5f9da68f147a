"""The operators ``torch.ops.epigrad.*``, which register epigrad's functions with PyTorch.

The functions of `epigrad` call them while they are compiled, exported, transformed by `torch.func`,
profiled, recorded by a dispatch mode or given tensor subclasses. An eager call bypasses them. Each
operator of a function has the function's arguments. The products, the gated layer and the two-layer
blocks also return the preactivation, which is empty if `save` keeps none. ``backend=None`` is the
backend of the tensors' device.

`OPERATORS` has one for each row of the core's table of operations (go/op), and `ADAPTED` the
overload ``adapted`` of each that takes adapters. In reading order:

    operator     an operator, of its row and its rules, and its registration
    elementwise  the rules of operations without a product
    products     the rules of layers, blocks and mixtures of experts
    shapes       shapes of results for tensors without data
    flops        the counts for `torch.utils.flop_counter`
    batching     helpers of the rules of `torch.vmap`
    sharding     the placements of DTensor that need no communication
    exporting    the decompositions, for exported programs
    compiling    the operators that the code of `torch.compile` calls
    import_hook  registers with a part of PyTorch once a program imports it
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from epigrad._autograd.functions import MATHS
from epigrad._core.tables import OPS
from epigrad.ops import elementwise, products
from epigrad.ops.import_hook import after_import
from epigrad.ops.operator import Operator, call, register

__all__ = ["ADAPTED", "OPERATORS", "RULES", "Operator", "call", "decompositions"]

RULES = products.RULES | elementwise.RULES
MATHS.update(RULES)
OPERATORS = tuple([Operator(row, RULES[row.forward]) for row in OPS.values()])
ADAPTED = tuple([Operator(row.adapted, RULES[row.forward]) for row in OPS.values() if row.adapted is not None])

_LIBRARY = register((*OPERATORS, *ADAPTED))


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition of each operator into PyTorch's operations. Merge it into a table for
    `ExportedProgram.run_decompositions`."""
    return {operator.overload: operator.decomposed for operator in (*OPERATORS, *ADAPTED)}


def _count_flops() -> None:
    register_flop_formula = importlib.import_module("torch.utils.flop_counter").register_flop_formula
    for operator in (*OPERATORS, *ADAPTED):
        # a formula is for all overloads, and that of adapters also counts calls without
        if operator.row.multiplies and operator.row.adapted is None:
            register_flop_formula(getattr(torch.ops.epigrad, operator.row.name))(operator.flops)


after_import("torch.utils.flop_counter", _count_flops)
for _part, _room in (
    ("torch.distributed.tensor", "sharding"),
    ("torch.export", "exporting"),
    ("torch._inductor.lowering", "compiling"),
):
    after_import(_part, partial(importlib.import_module, f"{__name__}.{_room}"))
