"""PEFT's adapters of experts (``target_parameters``), as low-rank updates of `epigrad.experts`.

Importing this lets PEFT's wrapper of a parameter hand over its adapter, once PEFT is imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from epigrad import errors
from epigrad._core import lora
from epigrad._core.mixtures import SPREAD
from epigrad._core.values import LowRank
from epigrad.integrations.experts import ADAPTERS, NAME, takes_implementation, up_name
from epigrad.ops.import_hook import after_import


def _at_import() -> None:
    """Let PEFT's wrapper of a parameter hand its adapter to experts that epigrad computes.

    Its own way registers a parametrization, which forms a tensor of the weight's size in each call.
    """
    wrapper = sys.modules[lora.ROOM].__dict__.get("ParamWrapper")
    own: Any = getattr(wrapper, "_activate_lora", None)
    if wrapper is None or own is None:
        return

    @functools.wraps(own)
    def activate(self: Any, active_adapters: list[str]) -> AbstractContextManager[None]:
        experts = self.get_base_layer()
        adapter = _adapter_of(self, experts)
        _check_spread(self, experts, adapter)
        context: AbstractContextManager[None] = (
            own(self, active_adapters) if adapter is None else _handed(experts, self.parameter_name, adapter)
        )
        return context

    wrapper._activate_lora = activate


def _adapter_of(wrapper: Any, experts: Any) -> LowRank | None:
    """The adapter of a parameter of experts; None if epigrad does not compute them with it."""
    if not takes_implementation(type(experts)):
        return None
    if experts.config._experts_implementation != NAME or wrapper.parameter_name not in (up_name(experts), "down_proj"):
        return None
    adapter = lora.adapter_of(wrapper)
    if adapter is None or wrapper.num_experts == 1 or lora.why_peft_computes(wrapper):
        return None
    if not lora.fits(wrapper, wrapper.get_param()):
        return None
    # PEFT packs a's rows expert by expert, and b's columns number by number of the rank.
    a = adapter.a.unflatten(0, (wrapper.num_experts, -1))
    b = adapter.b.unflatten(1, (-1, wrapper.num_experts)).permute(2, 0, 1)
    return LowRank(a, b, adapter.scale)


def _check_spread(wrapper: Any, experts: Any, adapter: LowRank | None) -> None:
    """Refuse an adapter of experts that are spread over processes, if it would be added for all of
    them to the weights of some."""
    if not lora.active(wrapper):
        return
    what = f"experts: {type(experts).__name__}: {wrapper.parameter_name}"
    if experts.__dict__.get(SPREAD):
        if adapter is None:
            reason = lora.why_peft_computes(wrapper) or "has an adapter that epigrad does not take"
            raise errors.UnsupportedError(
                f"{what} {reason}, and its experts are spread over processes: want one active adapter, in the dtype of "
                "the experts or in float32 beside half types"
            )
    elif adapter is not None and getattr(experts, "_is_expert_parallel", False):
        raise errors.UnsupportedError(
            f"{what} has an adapter, and transformers spreads its experts over processes by a transport of its own: "
            'want ep_implementation="epigrad" of its DistributedConfig, or epigrad.parallel.ExpertParallel'
        )


@contextmanager
def _handed(experts: nn.Module, name: str, adapter: LowRank) -> Iterator[None]:
    others = experts.__dict__.get(ADAPTERS, {})
    experts.__dict__[ADAPTERS] = others | {name: adapter}
    try:
        yield
    finally:
        experts.__dict__[ADAPTERS] = others
        if not others:
            del experts.__dict__[ADAPTERS]


after_import(lora.ROOM, _at_import)
