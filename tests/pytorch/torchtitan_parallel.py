"""One of the processes of test_torchtitan.py: blocks as the overrides make them, beside those of
torchtitan in one process. A dense block of its Llama is split by tensor parallel, and a mixture of
its Qwen3 by expert parallel and by tensor parallel.

    python -m tests.pytorch.torchtitan_parallel RANK WORLD PORT

Prints a line ``ok CHECK`` for each check that passed, and ends with the first failure's traceback.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
from functools import partial
from typing import Any

import pytest
import spmd_types
import torch
import torch.distributed as dist
from epigrad import errors
from epigrad.integrations.torchtitan import W13, EpigradFeedForward, EpigradRoutedExperts
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from torchtitan.config.override import OverrideConfig, apply_overrides
from torchtitan.distributed import parallel_dims
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.distributed.full_dtensor import resolve_fsdp_mesh, resolve_sparse_fsdp_mesh
from torchtitan.distributed.spmd_types import set_current_spmd_mesh
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.common.decoder_sharding import dense_activation_placement, set_dense_ffn_sharding
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.moe import RoutedExperts
from torchtitan.models.common.moe_sharding import set_moe_sharding_config
from torchtitan.models.deepseek_v3 import deepseekv3_configs
from torchtitan.models.gpt_oss import gptoss_configs
from torchtitan.models.llama3 import llama3_configs
from torchtitan.models.qwen3 import qwen3_configs

BACKENDS = ("spmd_types", "partial_dtensor")


def overridden(config: Any, *names: str) -> tuple[Any, list[str]]:
    """A configuration with overrides applied, and what torchtitan's log says of it."""
    changed = copy.deepcopy(config)
    imports = [f"epigrad.integrations.torchtitan.{name}" for name in names or ("feed_forward",)]
    return changed, apply_overrides(OverrideConfig(imports=imports), changed)


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


def names_of_mixtures() -> None:
    """All mixtures of plain experts are taken, beside dense blocks; others are refused."""
    config = qwen3_configs["debugmodel_moe"](attn_backend="flex")
    changed, told = overridden(config, "routed_experts")
    assert len(told) == len(config.layers)
    assert told[0].endswith("layers.0.moe.routed_experts RoutedExperts.Config -> EpigradRoutedExperts.Config"), told[0]
    assert all(type(layer.moe.routed_experts) is EpigradRoutedExperts.Config for layer in changed.layers)
    deepseek = partial(deepseekv3_configs["debugmodel"], attn_backend="flex")
    _, told = overridden(deepseek(moe_comm_backend="standard"), "routed_experts", "feed_forward")
    assert any(".routed_experts " in line for line in told) and any(".shared_experts " in line for line in told)
    with pytest.raises(errors.UnsupportedError, match=r"token_dispatcher: DeepEPTokenDispatcher\.Config, want"):
        overridden(deepseek(moe_comm_backend="deepep"), "routed_experts")
    with pytest.raises(errors.UnsupportedError, match=r"inner_experts: GptOssGroupedExperts\.Config, want"):
        overridden(gptoss_configs["debugmodel"](attn_backend="flex", moe_comm_backend="standard"), "routed_experts")


def near(got: Tensor, want: Tensor | None) -> None:
    """As close as products in bfloat16 are, which torchtitan's and epigrad's experts have."""
    assert want is not None and got.shape == want.shape and got.dtype == want.dtype
    assert float((whole(got) - want).abs().max()) <= 2e-2 * float(want.abs().max())


def mixture(config: Any) -> tuple[Any, Any]:
    """torchtitan's own mixture, and that of the override with the same parameters."""
    changed, _ = overridden(config, "routed_experts")
    own, block = built(config.layers[0].moe), built(changed.layers[0].moe)
    assert type(own.routed_experts) is RoutedExperts and type(block.routed_experts) is EpigradRoutedExperts
    assert [float(each.std()) for each in experts_of(block)] == pytest.approx([0.02, 0.02, 0.005], rel=0.02)
    block.load_state_dict(own.state_dict())
    return own, block


def experts_of(block: Any, grads: bool = False) -> list[Any]:
    """Gates, values and the last weights of experts, or their gradients."""
    experts = block.routed_experts.inner_experts
    parts = [getattr(experts, name) for name in ("w1_EFD", "w3_EFD", "w2_EDF") if hasattr(experts, name)]
    if hasattr(experts, W13):
        parts.insert(0, getattr(experts, W13))
    given = [part.grad if grads else part for part in parts]
    return [*given[0].unbind(2), *given[1:]] if hasattr(experts, W13) else given


def mixture_alone(config: Any) -> None:
    own, block = mixture(config)
    state, other = own.state_dict(), block.state_dict()
    assert set(state) == set(other) and all(torch.equal(state[name], other[name]) for name in state)
    torch.manual_seed(1)
    x = torch.randn(2, 5, config.dim)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [module(each) for module, each in zip((own, block), inputs, strict=True)]
    for output in outputs:
        output.square().sum().backward()
    near(outputs[1], outputs[0])
    near(inputs[1].grad, inputs[0].grad)
    near(block.router.gate.weight.grad, own.router.gate.weight.grad)
    for got, want in zip(experts_of(block, True), experts_of(own, True), strict=True):
        near(got, want)
    assert torch.equal(block.tokens_per_expert_E, own.tokens_per_expert_E)


def spread_mixture(config: Any, own: Any, backend: str, way: str) -> tuple[Any, Any]:
    """The mixture in parts, with the parameters of `own`, and the processes' meshes: half of the
    experts for each process, which has tokens of its own (``ep``); or half of each expert (``tp``).
    """
    spread = copy.deepcopy(config)
    layout = {"w1_EFD": spmd_types.S(1), "w2_EDF": spmd_types.S(2), "w3_EFD": spmd_types.S(1)}
    options: Any = {"enable_sp": False, "expert_param_layout": layout}
    set_moe_sharding_config(spread.layers[0].moe, enable_ep=way == "ep", **options)
    changed, _ = overridden(spread, "routed_experts")
    block = built(changed.layers[0].moe)
    block.load_state_dict(own.state_dict())
    set_spmd_backend(backend)
    sizes = dict.fromkeys(("dp_replicate", "cp", "pp"), 1)
    sizes |= {"dp_shard": 2, "ep": 2, "tp": 1} if way == "ep" else {"dp_shard": 1, "ep": 1, "tp": 2}
    dims = parallel_dims.ParallelDims(**sizes, world_size=2, spmd_backend=backend)
    dims.build_mesh()
    block.parallelize(dims)
    return block, dims


def split_mixture(config: Any, backend: str, way: str) -> None:
    own, _ = mixture(config)
    block, dims = spread_mixture(config, own, backend, way)
    torch.manual_seed(1)
    x = torch.randn(2, 5, config.dim)
    rank, plain = dist.get_rank(), backend == "spmd_types"
    mine = x[rank : rank + 1] if way == "ep" else x
    with set_current_spmd_mesh(dims.spmd_dense_mesh()) if plain else contextlib.nullcontext():
        replicated = way == "tp" and not plain
        out = whole(block(DTensor.from_local(mine, dims.get_mesh("tp"), [Replicate()]) if replicated else mine))
        out.square().sum().backward()
    want = own(x)
    near(out, want[rank : rank + 1] if way == "ep" else want)
    want.square().sum().backward()
    dim = {"ep": (0, 0, 0), "tp": (1, 1, 2)}[way]
    for got, grad, cut in zip(experts_of(block, True), experts_of(own, True), dim, strict=True):
        assert isinstance(got, DTensor) != plain
        near(whole(got), grad.chunk(2, cut)[rank] if plain else grad)
    state, other = block.state_dict(), own.state_dict()
    for name, cut in zip(("w1_EFD", "w3_EFD", "w2_EDF"), dim, strict=True):
        key = f"routed_experts.inner_experts.{name}"
        assert torch.equal(whole(state[key]), other[key].chunk(2, cut)[rank] if plain else other[key])


class Decoder(nn.Module):
    """As much of a model as torchtitan's FSDP2 reads."""

    tok_embeddings = norm = lm_head = None
    enable_weight_tying = False

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        layer = nn.Module()
        layer.moe, layer.moe_enabled, layer.forward = block, True, block.forward
        self.layers = nn.ModuleDict({"0": layer})

    def forward(self, x: Tensor) -> Any:
        return self.layers["0"](x)


def sharded_mixture(config: Any, backend: str) -> None:
    """Expert parallel under torchtitan's FSDP2 in bfloat16, which sums gradients in float32."""
    own, _ = mixture(config)
    block, dims = spread_mixture(config, own, backend, "ep")
    model = Decoder(block)
    options: Any = {"edp_mesh": dims.get_optional_mesh(["efsdp"])}
    mesh = dims.get_mesh(["fsdp"]) if backend == "partial_dtensor" else None
    if mesh is None:
        mesh, options["dp_mesh_dims"] = resolve_fsdp_mesh(dims)
        options["edp_mesh"], options["edp_mesh_dims"] = resolve_sparse_fsdp_mesh(dims)
    options |= {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32, "pp_enabled": False, "ep_degree": 2}
    apply_fsdp_to_decoder(model, mesh, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sums with a factor
    torch.manual_seed(1)
    x = torch.randn(2, 5, config.dim).bfloat16()
    rank = dist.get_rank()
    with set_current_spmd_mesh(dims.spmd_dense_mesh()) if backend == "spmd_types" else contextlib.nullcontext():
        out = model(x[rank : rank + 1])
        out.float().square().sum().backward()
    want = own.bfloat16()(x)
    near(out, want[rank : rank + 1])
    want.float().square().sum().backward()
    for got, grad in zip(experts_of(block, True), experts_of(own, True), strict=True):
        assert isinstance(got, DTensor) and got.dtype == torch.float32
        near(got.full_tensor(), grad.float())


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
    for backend in BACKENDS:
        split(own, copy.deepcopy(changed.layers[0].feed_forward), backend)
        print(f"ok {backend}")
    names_of_mixtures()
    print("ok names of mixtures")
    config = qwen3_configs["debugmodel_moe"](attn_backend="flex")
    config.layers[0].moe.routed_experts.inner_experts.hidden_dim = 32  # fewer than 768: faster
    set_spmd_backend(BACKENDS[0])
    mixture_alone(config)
    print("ok mixture alone")
    for way, backend in itertools.product(("ep", "tp"), BACKENDS):
        split_mixture(config, backend, way)
        print(f"ok mixture {way} {backend}")
    for backend in BACKENDS:
        sharded_mixture(config, backend)
        print(f"ok mixture FSDP2 {backend}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
