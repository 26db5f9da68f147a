"""The operators ``torch.ops.epigrad.*``, which register epigrad's functions with PyTorch.

The functions of `epigrad` call them while they are compiled, exported, transformed by `torch.func`,
profiled, recorded by a dispatch mode or given tensor subclasses. An eager call bypasses them. Each
operator of a function has the function's arguments. The products, the gated layer and the two-layer
blocks also return the preactivation, which is empty if `save` keeps none. ``backend=None`` is the
backend of the tensors' device.

`OPERATORS` is the one table: schemas, kernels for tensors without data, gradients, rules of
`torch.vmap` and of autocast are its rows and their methods. In reading order:

    operator     the classes of an operator, and its registration
    gemm         ``act(a @ b + bias)``, in its two spellings
    activation   ``act(x)``
    gated        ``value * act(gate)``, of one tensor and of two
    lerp         ``start + weight * (end - start)``
    learnable    activations whose parameters are tensors
    gated_linear the gated layer with two weights
    feedforward  the two-layer blocks
    grouped      layers with a weight for each group of rows, and mixtures of experts
    shapes       shapes of results for tensors without data
    batching     helpers of the rules of `torch.vmap`
    sharding     the placements of DTensor that need no communication
    exporting    the decompositions, for exported programs
    compiling    the operators that the code of `torch.compile` calls
    import_hook  registers with a part of PyTorch once a program imports it
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from epigrad.ops import activation, feedforward, gated, gated_linear, gemm, grouped, learnable, lerp
from epigrad.ops.import_hook import after_import
from epigrad.ops.operator import Operator, call, register

__all__ = ["OPERATORS", "Operator", "call", "decompositions"]

OPERATORS: tuple[Operator, ...] = (
    *gemm.OPERATORS,
    *activation.OPERATORS,
    *gated.OPERATORS,
    *lerp.OPERATORS,
    *learnable.OPERATORS,
    *gated_linear.OPERATORS,
    *feedforward.OPERATORS,
    *grouped.OPERATORS,
)

_LIBRARY = register(OPERATORS)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition of each operator into PyTorch's operations. Merge it into a table for
    `ExportedProgram.run_decompositions`."""
    return {operator.overload: operator.decomposed for operator in OPERATORS}


def _count_flops() -> None:
    register_flop_formula = importlib.import_module("torch.utils.flop_counter").register_flop_formula
    for operator in OPERATORS:
        if operator.flops is not None:
            register_flop_formula(getattr(torch.ops.epigrad, operator.name))(operator.flops)


def _shard() -> None:
    importlib.import_module("epigrad.ops.sharding")


def _lower() -> None:
    compiling = importlib.import_module("epigrad.ops.compiling")
    compiling.lower(OPERATORS)


def _decompose() -> None:
    exporting = importlib.import_module("epigrad.ops.exporting")
    exporting.decompose_by_default(decompositions())


after_import("torch.utils.flop_counter", _count_flops)
after_import("torch.distributed.tensor", _shard)
after_import("torch.export", _decompose)
after_import("torch._inductor.lowering", _lower)
