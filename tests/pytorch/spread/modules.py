"""`ExpertParallel`, alone and beside FSDP2 and DDP."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import epigrad
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as saved
from epigrad import errors
from epigrad._core.wide import DECLARES
from epigrad.parallel import ExpertParallel
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.pytorch.spread.mixture import FEATURES, HIDDEN, LOCAL, assert_equal, assert_near


class Model(nn.Module):
    """Tokens, a router and experts."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(FEATURES, count, bias=False)
        self.experts = epigrad.nn.Experts(FEATURES, HIDDEN, count, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        scale, index = self.router(x).softmax(-1).topk(2)
        out: Tensor = self.experts(x, index, scale)
        return out


def style(device: str) -> None:
    """`ExpertParallel`: parameters, gradients, state dicts, checkpoints, copies, and refusals."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device, (world,), mesh_dim_names=("ep",))
    torch.manual_seed(3)
    model = Model(LOCAL * world).to(device, torch.float64)
    alone = copy.deepcopy(model)
    parallelize_module(model, mesh["ep"], {"experts": ExpertParallel()})
    x = torch.randn(8 * world, FEATURES, device=device, dtype=torch.float64)
    mine = slice(8 * rank, 8 * rank + 8)
    out, want = model(x[mine]), alone(x)
    assert_near([out], [want[mine]])
    out.square().sum().backward()
    want.square().sum().backward()
    for (name, one), other in zip(model.experts.named_parameters(), alone.experts.parameters(), strict=True):
        assert isinstance(one, DTensor) and one.to_local().shape[0] == LOCAL, name
        assert isinstance(one.grad, DTensor) and other.grad is not None, name
        assert_near([one.grad.full_tensor()], [other.grad])
    state = model.state_dict()
    assert list(state) == list(alone.state_dict())
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    saved.save(state, checkpoint_id=folder[0])
    other_model = parallelize_module(
        Model(LOCAL * world).to(device, torch.float64), mesh["ep"], {"experts": ExpertParallel()}
    )
    loaded = other_model.state_dict()
    saved.load(loaded, checkpoint_id=folder[0])
    other_model.load_state_dict(loaded)
    assert_equal([other_model(x[mine])], [out])
    whole = alone.state_dict()
    saved.load(whole, checkpoint_id=folder[0])
    alone.load_state_dict(whole)
    assert_near([alone(x)[mine]], [out])
    copied = copy.deepcopy(model)
    assert copied.experts.forward.__self__ is copied.experts
    assert_equal([copied(x[mine])], [out])
    if DECLARES:
        narrow = Model(LOCAL * world).to(device, torch.bfloat16)
        parallelize_module(narrow, mesh["ep"], {"experts": ExpertParallel()})
        for parameter in narrow.experts.parameters():
            parameter.grad_dtype = torch.float32
        narrow(x[mine].bfloat16()).square().sum().backward()
        for parameter in narrow.experts.parameters():
            sharded: Any = parameter.grad
            grad = sharded.to_local()
            assert grad.dtype == torch.float32 and not torch.equal(grad, grad.bfloat16().float())
    with pytest.raises(errors.InvalidProblemError, match=rf"weight_in: {LOCAL * world + 1} experts, want a multiple"):
        parallelize_module(Model(LOCAL * world + 1).to(device), mesh, {"experts": ExpertParallel()})
    with pytest.raises(errors.UnsupportedError, match="ExpertParallel: Linear, want"):
        parallelize_module(Model(world).to(device), mesh, {"router": ExpertParallel()})


def with_fsdp(device: str) -> None:
    """Two groups of experts' processes, whose parameters FSDP2 shards: the gradients of one
    process, as FSDP2 averages them over the groups."""
    world = dist.get_world_size()
    mesh = init_device_mesh(device, (2, world // 2), mesh_dim_names=("dp", "ep"))
    torch.manual_seed(3)
    model = Model(LOCAL * (world // 2)).to(device, torch.float64)
    alone = copy.deepcopy(model)
    parallelize_module(model, mesh["ep"], {"experts": ExpertParallel()})
    fully_shard(model.experts, mesh=mesh["dp"])
    x = torch.randn(8 * world, FEATURES, device=device, dtype=torch.float64)
    mine = slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
    out, want = model(x[mine]), alone(x)
    assert_near([out], [want[mine]])
    out.square().sum().backward()
    want.square().sum().backward()
    for (name, one), other in zip(model.experts.named_parameters(), alone.experts.parameters(), strict=True):
        grad: Any = one.grad
        assert other.grad is not None, name
        assert_near([grad.full_tensor()], [other.grad / 2])


def with_fsdp_over_all(device: str) -> None:
    """FSDP2 shards experts over groups, and the router over all processes: gradients of both are
    means over all processes, as the page on many GPUs has it. Also where parameters stay gathered,
    are used in bfloat16, or are used again by a checkpoint."""
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for reshard, policy, again in (
        (True, MixedPrecisionPolicy(), False),
        (False, MixedPrecisionPolicy(), True),
        (True, half, True),
    ):
        _with_fsdp_over_all(device, reshard, policy, again)


def _with_fsdp_over_all(device: str, reshard: bool, policy: MixedPrecisionPolicy, again: bool) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(device, (2, world // 2), mesh_dim_names=("dp", "ep"))
    options: dict[str, Any] = {"reshard_after_forward": reshard, "mp_policy": policy}
    computed = policy.param_dtype or torch.float64
    torch.manual_seed(3)
    model = Model(LOCAL * (world // 2)).to(device, torch.float32 if policy.param_dtype else torch.float64)
    alone = copy.deepcopy(model).to(computed)
    parallelize_module(model, mesh["ep"], {"experts": ExpertParallel()})
    spread: Any = fully_shard(model.experts, mesh=mesh["dp"], **options)
    spread.set_gradient_divide_factor(world)
    spread.set_force_sum_reduction_for_comms(True)
    fully_shard(model, mesh=init_device_mesh(device, (world,)), **options)
    x = torch.randn(8 * world, FEATURES, device=device, dtype=computed)
    mine = x[8 * rank : 8 * rank + 8]
    out: Any = checkpoint(model, mine, use_reentrant=False) if again else model(mine)
    out.square().mean().backward()
    alone(x).square().mean().backward()
    assert_gradients_near(model, alone)


def with_ddp(device: str) -> None:
    """DDP averages the router's gradients, and leaves out the experts, whose gradients are sums."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = Model(LOCAL * world).to(device, torch.float64)
    alone = copy.deepcopy(model)
    parallelize_module(model, init_device_mesh(device, (world,)), {"experts": ExpertParallel()})
    names = [name for name, _ in model.named_parameters() if name.startswith("experts.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    x = torch.randn(8 * world, FEATURES, device=device, dtype=torch.float64)
    averaged = DistributedDataParallel(model)  # which has to live as long as backward
    averaged(x[8 * rank : 8 * rank + 8]).square().mean().backward()
    alone(x).square().mean().backward()
    for parameter in model.experts.parameters():
        assert parameter.grad is not None
        parameter.grad.div_(world)
    assert_gradients_near(model, alone)


def assert_gradients_near(model: nn.Module, alone: nn.Module) -> None:
    """Those of sharded or replicated parameters, in the dtype of one process's."""
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        grad = one.grad
        assert grad is not None and other.grad is not None
        whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
        assert_near([whole.to(other.dtype)], [other.grad])
