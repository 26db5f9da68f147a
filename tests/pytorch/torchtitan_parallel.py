"""One of the processes of test_torchtitan.py: a dense block of torchtitan's Llama, as the override
makes it and split by tensor parallel, beside torchtitan's own in one process.

    python -m tests.pytorch.torchtitan_parallel RANK WORLD PORT

Prints a line ``ok CHECK`` for each check that passed, and ends with the first failure's traceback.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from typing import Any

import spmd_types
import torch
import torch.distributed as dist
from epigrad.integrations.torchtitan import EpigradFeedForward
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torchtitan.config.override import OverrideConfig, apply_overrides
from torchtitan.distributed import parallel_dims
from torchtitan.distributed.spmd_types import set_current_spmd_mesh
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.common.decoder_sharding import dense_activation_placement, set_dense_ffn_sharding
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.deepseek_v3 import deepseekv3_configs
from torchtitan.models.llama3 import llama3_configs

OVERRIDE = OverrideConfig(imports=["epigrad.integrations.torchtitan.feed_forward"])


def overridden(config: Any) -> tuple[Any, list[str]]:
    """A configuration with the override applied, and what torchtitan's log says of it."""
    changed = copy.deepcopy(config)
    return changed, apply_overrides(OVERRIDE, changed)


def built(config: Any) -> Any:
    block = config.build()
    torch.manual_seed(0)
    block.init_states()
    return block


def names() -> None:
    """All dense blocks are taken: those of layers, and the shared experts of mixtures."""
    config = llama3_configs["debugmodel"](attn_backend="flex")
    changed, told = overridden(config)
    assert len(told) == len(config.layers)
    assert told[0].endswith("layers.0.feed_forward FeedForward.Config -> EpigradFeedForward.Config"), told[0]
    assert all(type(layer.feed_forward) is EpigradFeedForward.Config for layer in changed.layers)
    _, told = overridden(deepseekv3_configs["debugmodel"](attn_backend="flex", moe_comm_backend="standard"))
    assert any(".shared_experts " in line for line in told), told


def alone(own: FeedForward, block: FeedForward) -> None:
    assert type(block) is EpigradFeedForward and type(own) is FeedForward
    assert list(block.state_dict()) == list(own.state_dict())
    x = torch.randn(2, 5, own.w1.in_features)
    kept: list[list[int]] = [[], []]
    for module, sizes in zip((own, block), kept, strict=True):
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: (s.append(t.data_ptr()), t)[1], lambda t: t):
            module(x).square().sum().backward()
    torch.testing.assert_close(block(x), own(x))
    for mine, theirs in zip(block.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert len(set(kept[1])) == len(set(kept[0])) - 1  # not silu(w1(x))


def split(own: FeedForward, config: Any, backend: str) -> None:
    """Each process has half of the hidden layer."""
    set_dense_ffn_sharding(config, attn_x_layout=dense_activation_placement(tp=spmd_types.I), enable_sp=False)
    block = built(config)
    set_spmd_backend(backend)
    sizes = dict.fromkeys(("dp_replicate", "dp_shard", "cp", "pp", "ep"), 1)
    dims = parallel_dims.ParallelDims(**sizes, tp=2, world_size=2, spmd_backend=backend)
    dims.build_mesh()
    block.parallelize(dims)
    torch.manual_seed(1)
    x = torch.randn(2, 5, own.w1.in_features)
    plain = backend == "spmd_types"
    with set_current_spmd_mesh(dims.spmd_dense_mesh()) if plain else contextlib.nullcontext():
        out = block(x if plain else DTensor.from_local(x, dims.get_mesh("tp"), [Replicate()]))
        whole(out).square().sum().backward()
    torch.testing.assert_close(whole(out), own(x))
    own.zero_grad()
    own(x).square().sum().backward()
    for name, dim in (("w1", 0), ("w3", 0), ("w2", 1)):
        got, want = block.get_submodule(name).weight, own.get_submodule(name).weight.grad
        assert isinstance(got, DTensor) != plain and want is not None
        torch.testing.assert_close(whole(got.grad), want.chunk(2, dim)[dist.get_rank()] if plain else want)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    rank, world, port = sys.argv[1:]
    parallel_dims.device_type = "cpu"  # torchtitan's own choice without a GPU is "cuda"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))
    config = llama3_configs["debugmodel"](attn_backend="flex")
    changed, _ = overridden(config)
    own = built(config.layers[0].feed_forward)
    names()
    print("ok names")
    alone(own, built(changed.layers[0].feed_forward))
    print("ok alone")
    for backend in ("spmd_types", "partial_dtensor"):
        split(own, copy.deepcopy(changed.layers[0].feed_forward), backend)
        print(f"ok {backend}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
