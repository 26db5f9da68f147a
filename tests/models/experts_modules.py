"""Modules of experts by themselves, and their arguments."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import mixtures
from tests.models.mixtures import EXPERTS, SPECIAL, Mixture
from tests.support.tiers import in_turns, thorough

EACH = pytest.mark.parametrize("name", in_turns(sorted(mixtures.classes()), 4, thorough))
# One of each: plain, interleaved with limits and biases, without a gate, a function as activation,
# caps, a norm after each expert.
NAMES = ["MixtralExperts", "GptOssExperts", "NemotronHExperts", "Lfm2MoeExperts", "Inkling2Experts", "MuseSparkExperts"]
FORMS = pytest.mark.parametrize("name", NAMES)
EXACT, ROUNDED = 1e-13, 5e-6
"""Errors allowed in float64, where `eager` computes in float64 and where it rounds to float32."""


def allowed(name: str) -> float:
    return EXACT if SPECIAL.get(name, Mixture()).exact else ROUNDED


@functools.cache
def made_of(name: str, dtype: torch.dtype) -> Any:
    return mixtures.make(name, dtype)


def module(name: str, dtype: torch.dtype = torch.float64, implementation: str = "epigrad") -> Any:
    """A module of experts by itself."""
    made = copy.deepcopy(mixtures.experts_of(made_of(name, dtype), name)[0])
    made.config._experts_implementation_internal = implementation
    return made


def arguments(made: Any, tokens: int = 11, chosen: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and experts chosen for them; the last expert gets none."""
    generator = torch.Generator().manual_seed(7)
    weight = made.down_proj
    features = weight.shape[2 if made.is_transposed else 1]
    x = torch.randn(tokens, features, generator=generator, dtype=torch.float64).to(weight.dtype)
    index = torch.stack([torch.randperm(EXPERTS - 1, generator=generator)[:chosen] for _ in range(tokens)])
    scale = torch.rand(tokens, chosen, generator=generator, dtype=torch.float64).to(weight.dtype)
    return x.requires_grad_(), index, scale.requires_grad_()


def run(made: Any, x: Tensor, index: Tensor, scale: Tensor) -> dict[str, Tensor]:
    out = made(x, index, scale)
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    wanted = {"input": x, "scale": scale} | dict(made.named_parameters())
    grads = torch.autograd.grad(out, list(wanted.values()), grad, allow_unused=True)
    return {"output": out.detach()} | {n: g for n, g in zip(wanted, grads, strict=True) if g is not None}
