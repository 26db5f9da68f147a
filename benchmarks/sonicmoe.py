"""SonicMoE's experts as one of transformers' implementations, for ``python -m benchmarks experts``.

transformers' own way to SonicMoE downloads it and sends each token to a number of experts that may
differ. This one takes the package `sonic-moe` and the kernels of a fixed number, which are faster.
QuACK multiplies with its default configurations, or tunes each product. That takes it minutes, so
it has a choice of four configurations.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NAME", "TUNED", "register", "takes"]

NAME, TUNED = "sonic-moe", "sonic-moe tuned"
TILES = {(128, 192, True), (256, 128, False), (128, 256, False), (256, 192, False)}
"""Rows, columns, and whether two tiles take turns, of the configurations that tuning tries. The
first is the default one."""
PRODUCTS = ("gemm", "gemm_gated", "gemm_dgated")


def takes(module: nn.Module, x: Tensor) -> bool:
    """Whether the package is here, and computes these experts: SwiGLU without biases, in 16 bits on
    CUDA."""
    gate_is_swiglu = getattr(module, "act_fn", None).__class__.__name__ in ("SiLU", "SiLUActivation")
    biased = any("bias" in name for name, _ in module.named_parameters())
    return bool(
        importlib.util.find_spec("sonicmoe") and x.is_cuda and x.element_size() == 2 and gate_is_swiglu and not biased
    )


def register(tunes: bool = False) -> tuple[str, ...]:
    """Make it experts implementations of transformers, one or both, and return their names."""
    configurations: Any = importlib.import_module("quack.gemm_config")
    every = configurations.get_all_configs
    configurations.get_all_configs = lambda *args, **options: [
        each
        for each in every(*args, **options)
        if (each.tile_m, each.tile_n, each.pingpong) in TILES and each.cluster_m == 2 and not each.swap_ab
    ]
    names = (NAME, TUNED) if tunes else (NAME,)
    for name in names:
        registry = importlib.import_module("transformers.integrations.moe").ALL_EXPERTS_FUNCTIONS
        registry.register(name, functools.partial(_forward, name == TUNED))
    return names


def _choose(tuned: bool) -> None:
    """Have the products of forward, and of the backward that follows, tuned or not."""
    interface = importlib.import_module("quack.gemm_interface")
    for part in ("forward", "backward"):
        module = importlib.import_module(f"sonicmoe.functional.{part}")
        for name in PRODUCTS:
            if hasattr(module, name):
                setattr(module, name, functools.partial(getattr(interface, name), tuned=tuned))


def _forward(tuned: bool, module: Any, x: Tensor, index: Tensor, scale: Tensor) -> Tensor:
    """What transformers calls: experts of a module that has both halves of its gate in one
    weight."""
    _choose(tuned)
    sonic = importlib.import_module("sonicmoe.functional")
    activation = importlib.import_module("sonicmoe.enums").ActivationType.SWIGLU
    tokens, each = index.shape
    experts = module.num_experts
    gather, scatter, back = (torch.empty(tokens * each, dtype=torch.int32, device=x.device) for _ in range(3))
    counts = torch.empty(experts, dtype=torch.int32, device=x.device)
    ends = torch.empty(experts + 1, dtype=torch.int32, device=x.device)
    sonic.TC_topk_router_metadata_triton(index.int(), experts, counts, ends, gather, scatter, back)
    routing = (gather, scatter, back, None, False, activation)
    w_in, w_out = module.gate_up_proj.permute(1, 2, 0), module.down_proj.permute(1, 2, 0)
    # not for inference, and the halves of the gate one after the other
    hidden, pre = sonic._UpProjection.apply(x, w_in, None, ends, tokens * each, each, *routing, False, True)
    out: Tensor = sonic._DownProjection.apply(hidden, pre, w_out, None, scale.float(), ends, tokens, each, *routing)
    return out
