"""torchtitan's dense SwiGLU blocks and its experts by epigrad: overrides, which its command line
names.

    ./run_train.sh --override.imports epigrad.integrations.torchtitan.feed_forward
    ./run_train.sh --override.imports epigrad.integrations.torchtitan.routed_experts

Importing this imports torchtitan, 0.3 or newer.
"""

# ruff: noqa: N803  # torchtitan knows arguments by their names

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchtitan.config import derive, override
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, LocalTokenDispatcher

from epigrad import errors, functional, parallel
from epigrad.parallel.styles import local

__all__ = ["EpigradExperts", "EpigradFeedForward", "EpigradRoutedExperts", "feed_forward", "routed_experts"]


class EpigradFeedForward(FeedForward):
    """``w2(silu(w1(x)) * w3(x))`` with `epigrad.gated_product` between the layers.

    The three layers are called as modules. So sharding, LoRA, float8 and selective checkpoints see
    the same layers and products as before, and checkpoints have the same names. Backward keeps
    ``w1(x)`` and ``w3(x)``, but not ``silu(w1(x))``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        pass

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w2(functional.gated_product(self.w3(x), self.w1(x), "swiglu"))
        return output


@override(target=FeedForward.Config, exact=True, description="SwiGLU by epigrad.gated_product.")
def feed_forward(cfg: FeedForward.Config) -> EpigradFeedForward.Config:
    """Replace a block's configuration; torchtitan calls this.

    Subclasses of ``FeedForward.Config`` are left alone, since their forward may be another.

    Args:
        cfg: the configuration of a ``FeedForward``.

    Returns:
        The same configuration, of an `EpigradFeedForward`.
    """
    replacement: EpigradFeedForward.Config = derive(cfg, EpigradFeedForward.Config)
    return replacement


W13 = "w13_EF2D"
"""The parameter that has ``w1_EFD``, the gates, and ``w3_EFD``, the values: their rows take turns.
So a part of the hidden features has both, as tensor parallel and FSDP2 shard them."""


class EpigradExperts(GroupedExperts):
    """The experts of a process: tokens, scores and indices in, the scaled sum of experts out.

    Products are in bfloat16, as torchtitan's. A state dict has ``w1_EFD`` and ``w3_EFD``, as views.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        del self.w1_EFD, self.w3_EFD
        sizes = (config.num_experts, config.hidden_dim, 2, config.dim)
        self.register_parameter(W13, nn.Parameter(torch.empty(sizes)))
        self.register_state_dict_post_hook(_split)
        self.register_load_state_dict_pre_hook(_join)

    def forward(self, x: Tensor, scale: Tensor, index: Tensor, group: Any) -> Tensor:
        weight_in, weight_out = [local(weight).bfloat16() for weight in (getattr(self, W13), self.w2_EDF)]
        tensors = (x.bfloat16(), index, scale, weight_in.flatten(1, 2), None, weight_out, None)
        if group is None:
            out = functional.experts(*tensors, "swiglu", gate="even")
        else:
            out = parallel.experts(*tensors, "swiglu", gate="even", group=group)
        return out.type_as(x)


def _split(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A hook of state dicts, which gives them torchtitan's two tensors."""
    both = state.pop(prefix + W13)
    state[f"{prefix}w1_EFD"], state[f"{prefix}w3_EFD"] = both[:, :, 0], both[:, :, 1]


def _join(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook before a state dict is loaded, which takes torchtitan's two tensors."""
    names = (f"{prefix}w1_EFD", f"{prefix}w3_EFD")
    if all(name in state for name in names):
        state[prefix + W13] = torch.stack([state.pop(name) for name in names], 2)


class EpigradRoutedExperts(RoutedExperts):
    """Experts by `epigrad.experts`. Under expert parallelism tokens travel by
    `epigrad.parallel.experts`, in place of torchtitan's dispatcher: a token's row goes once to each
    process that has an expert of it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(RoutedExperts.Config):
        pass

    def forward(
        self,
        x_BLD: Tensor,
        topk_scores_BLK: Tensor,
        topk_expert_ids_BLK: Tensor,
        num_local_tokens_per_expert_E: Tensor,
    ) -> Tensor:
        mesh = getattr(self.token_dispatcher, "ep_mesh", None)
        tokens = [t.flatten(0, 1) for t in (x_BLD, topk_scores_BLK, topk_expert_ids_BLK)]
        out: Tensor = self.inner_experts(*tokens, None if mesh is None else mesh.get_group())
        return out.view(x_BLD.shape)


@override(target=RoutedExperts.Config, exact=True, description="Experts, and their transport, by epigrad.")
def routed_experts(cfg: RoutedExperts.Config) -> EpigradRoutedExperts.Config:
    """Replace the configuration of a mixture's experts; torchtitan calls this.

    Args:
        cfg: the configuration of ``RoutedExperts``, with ``GroupedExperts`` and a dispatcher that
            is local or torchtitan's own ("standard").

    Returns:
        The same configuration, of `EpigradRoutedExperts`.

    Raises:
        UnsupportedError: (a ``NotImplementedError``) other experts, as those of gpt-oss or of 8
            bits; or another dispatcher, as DeepEP's.
    """
    for what, found, wanted in (
        ("inner_experts", cfg.inner_experts, (GroupedExperts.Config,)),
        ("token_dispatcher", cfg.token_dispatcher, (LocalTokenDispatcher.Config, AllToAllTokenDispatcher.Config)),
    ):
        if type(found) not in wanted:
            names = " or ".join(each.__qualname__ for each in wanted)
            raise errors.UnsupportedError(
                f"epigrad.integrations.torchtitan.routed_experts: {what}: {type(found).__qualname__}, want {names}: "
                "leave this override out"
            )
    own = derive(cfg.inner_experts, EpigradExperts.Config)
    if own.param_init is not None:
        own.param_init = _renamed(own.param_init, functools.partial(_initialize, own.param_init))
    if (sharding := own.sharding_config) is not None:
        states = _renamed(sharding.state_shardings, sharding.state_shardings["w1_EFD"])
        own.sharding_config = dataclasses.replace(sharding, state_shardings=states)
    replacement: EpigradRoutedExperts.Config = derive(cfg, EpigradRoutedExperts.Config, inner_experts=own)
    return replacement


def _renamed(of: dict[str, Any], both: Any) -> dict[str, Any]:
    """What torchtitan says of each parameter, with something else of the first two."""
    return {W13: both} | {name: value for name, value in of.items() if name not in ("w1_EFD", "w3_EFD")}


def _initialize(of: dict[str, Callable[[Tensor], Any]], both: Tensor) -> None:
    of["w1_EFD"](both[:, :, 0])
    of["w3_EFD"](both[:, :, 1])
