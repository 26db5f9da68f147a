"""torchtitan's dense SwiGLU blocks by epigrad: an override, which its command line names.

    ./run_train.sh --override.imports epigrad.integrations.torchtitan.feed_forward

Importing this imports torchtitan, 0.3 or newer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torchtitan.config import derive, override
from torchtitan.models.common.feed_forward import FeedForward

from epigrad import functional

__all__ = ["EpigradFeedForward", "feed_forward"]


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
