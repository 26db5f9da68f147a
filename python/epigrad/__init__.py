"""Fused forward and backward of linear layers with activations, gated activations and lerp.

The functions here are differentiable to any order. Importing loads no Go; the first call does. In
reading order:

    functional    the functions, which `epigrad` itself has too
    forward       the same without a graph
    backward      their gradients without a graph
    nn            modules
    kinds         `Activation` and `Gated`: names with parameters
    plan          for callers who manage their own buffers
    integrations  epigrad inside of models that are there already
    parallel      experts over several processes, and tensor parallelism for gated layers
    webgpu        arrays on a WebGPU adapter
    errors        what is raised
    ops           the operators ``torch.ops.epigrad.*``
    cli           ``python -m epigrad``
    instruments   times in turns, and what a function keeps for backward
"""

# Imports go down from instruments to cli, to integrations, then to the other modules above, to
# ops, to _autograd and to _core; only errors, kinds and webgpu are imported from everywhere.
# control is generated.

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from epigrad import backward, errors, forward, functional, integrations, nn, plan, webgpu
from epigrad._autograd.main_grad import accumulate_main_grad
from epigrad._core.invariance import batch_invariant
from epigrad._core.selection import BackendInfo, backends, tuning, use_backend
from epigrad._core.values import LowRank
from epigrad.functional import *  # noqa: F403
from epigrad.kinds import Activation, Gated

__all__ = [
    "Activation",
    "BackendInfo",
    "Gated",
    "LowRank",
    "accumulate_main_grad",
    "backends",
    "backward",
    "batch_invariant",
    "errors",
    "forward",
    "integrations",
    "nn",
    "plan",
    "tuning",
    "use_backend",
    "webgpu",
    *functional.__all__,
]

if TYPE_CHECKING:
    from epigrad import parallel as parallel

    __version__: str


def __getattr__(name: str) -> Any:
    # Few programs need it, and torch.distributed.tensor takes a second to import.
    if name == "parallel":
        return importlib.import_module("epigrad.parallel")
    # The version is read on demand: the installed package's metadata, or the build's own where
    # there is none.
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("epigrad")
        except metadata.PackageNotFoundError:
            from epigrad._core import tables

            return tables.VERSION
    raise AttributeError(f"module 'epigrad' has no attribute {name!r}")
