"""One of the processes of test_distributed.py: trains small networks in parallel, and each check
beside one process.

    python -m tests.pytorch.distributed RANK WORLD PORT DEVICE

Prints a line ``ok CHECK FUNCTION`` for each check that passed, and ends with the first failure's
traceback.
"""

from __future__ import annotations

import copy
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import epigrad
import pytest
import torch
import torch.distributed as dist
from epigrad import errors
from epigrad.parallel import GatedColwiseParallel
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.support.operators import FUNCTIONS, NAMES
from tests.support.repository import ROOT

FEATURES = 6
ROWS = 8


class Product(nn.Module):
    """Parameters of its own for a product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, FEATURES))
        self.bias = nn.Parameter(torch.randn(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.matmul_bias_activation(x, self.weight, self.bias, "silu")


class Gate(nn.Module):
    """Value and gate by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8)
        self.down = nn.Linear(8, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(epigrad.gated_product(self.value(x), self.gate(x)))
        return out


class GatedLayer(nn.Module):
    """A gated linear layer with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = (nn.Parameter(torch.randn(8, FEATURES)) for _ in range(2))
        self.value_bias, self.gate_bias = (nn.Parameter(torch.randn(8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.gated_linear(x, self.value, self.gate, self.value_bias, self.gate_bias)


class GroupedLayer(nn.Module):
    """A linear layer with a weight for rows whose first feature is negative, and one for others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(2, 5, FEATURES)), nn.Parameter(torch.randn(2, 5))

    def forward(self, x: Tensor) -> Tensor:
        first, order = x[:, 0].detach().sort()
        ends = torch.stack([(first < 0).sum(), torch.tensor(len(x), device=x.device)])
        return epigrad.grouped_linear(x[order], self.weight, self.bias, "gelu", offsets=ends)


class Mixture(nn.Module):
    """Experts with a router that is no part of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = epigrad.nn.Experts(FEATURES, 8, 3, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        scale, index = x[:, :3].softmax(-1).topk(2)
        out: Tensor = self.experts(x, index, scale)
        return out


class Pointwise(nn.Module):
    """An activation by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.activation(x, "gelu")


class Mix(nn.Module):
    """A learned interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.lerp(x, x.roll(1, -1), self.weight)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "matmul_bias_activation": Product,
    "linear": lambda: epigrad.nn.Linear(FEATURES, FEATURES, activation="gelu"),
    "activation": lambda: nn.Sequential(epigrad.nn.Linear(FEATURES, FEATURES), Pointwise()),
    "gated_activation": lambda: nn.Sequential(epigrad.nn.Linear(FEATURES, 12), epigrad.nn.GatedActivation()),
    "gated_product": Gate,
    "lerp": Mix,
    "prelu": lambda: epigrad.nn.PReLU(FEATURES),
    "xielu": epigrad.nn.XIELU,
    "gated_linear": GatedLayer,
    "mlp": lambda: epigrad.nn.MLP(FEATURES, 8),
    "gated_mlp": lambda: epigrad.nn.GatedMLP(FEATURES, 8, bias=True),
    "grouped_linear": GroupedLayer,
    "experts": Mixture,
}


def network(op: str, device: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module, Tensor]:
    """The same network twice, and a batch; the same in every process."""
    torch.manual_seed(7)
    model = NETWORKS[op]().to(device, dtype)
    return model, copy.deepcopy(model), torch.randn(ROWS, FEATURES, device=device, dtype=dtype)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().sin().square().mean()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same_training(parallel: nn.Module, alone: nn.Module, **tolerance: float) -> None:
    for (name, one), other in zip(parallel.named_parameters(), alone.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None, name
        torch.testing.assert_close(whole(one.grad).double(), other.grad.double(), **tolerance)


def piece(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def ddp(op: str, mesh: DeviceMesh, device: str) -> None:
    model, alone, x = network(op, device)
    parallel = DistributedDataParallel(model)
    for _ in range(2):
        loss(parallel, piece(x)).backward()
        loss(alone, x).backward()
    assert_same_training(parallel, alone, rtol=1e-6, atol=1e-7)


def fsdp2(op: str, mesh: DeviceMesh, device: str) -> None:
    model, alone, x = network(op, device)
    for layer in model.children():
        # the layers of a block too, whose hooks gather their parameters
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss(model, piece(x)).backward()
    loss(alone, x).backward()
    assert_same_training(model, alone, rtol=1e-6, atol=1e-7)
    # Mixed precision: parameters and inputs in bfloat16, gradients summed and kept in float32.
    model, alone, x = network(op, device, torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    loss(model, piece(x)).backward()
    loss(alone.bfloat16(), x.bfloat16()).backward()
    assert seen == [torch.bfloat16] and all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert_same_training(model, alone, rtol=2e-2, atol=2e-3)


COLUMNS = {
    # Parameters by features, activations where that is: no communication forward.
    "matmul_bias_activation": [Replicate(), Shard(1), Shard(0)],
    "linear": [Replicate(), Shard(0), Shard(0)],
    "activation": [Shard(1)],
    "gated_activation": [Shard(0)],
    "gated_product": [Shard(1), Shard(1)],
    "lerp": [Shard(1), Shard(1), Shard(0)],
    "prelu": [Shard(1), Shard(0)],
    "xielu": [Shard(1), Replicate(), Replicate()],
    "gated_linear": [Replicate(), *[Shard(0)] * 4],
    "mlp": [Replicate(), Shard(0), Shard(0), Shard(1), Replicate()],
    "gated_mlp": [Shard(0), Replicate(), Replicate(), Replicate(), Replicate()],
    "grouped_linear": [Replicate(), Shard(1), Shard(1)],
    "experts": [Replicate()] * 6,
}
GROUPED = ("grouped_linear", "experts")
"""Functions that also take a tensor of integers, which every device has whole."""


def placed(op: str, mesh: DeviceMesh, device: str, placements: Sequence[Any]) -> None:
    """The function on DTensors communicates nothing, and has the gradients of whole tensors."""
    function = FUNCTIONS[op].function
    tensors = FUNCTIONS[op].tensors(device, torch.float64)
    shards = [
        distribute_tensor(t.detach(), mesh, [way]).requires_grad_() for t, way in zip(tensors, placements, strict=True)
    ]
    want = function(*tensors)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    with CommDebugMode() as forward:
        out = function(*shards)
    assert forward.get_total_counts() == 0, forward.get_comm_counts()
    torch.testing.assert_close(whole(out), want)
    placed_grad = distribute_tensor(grad, mesh, _placements_of_gradient(out))
    with CommDebugMode() as backward:
        grads = torch.autograd.grad(out, shards, placed_grad)
    assert backward.get_total_counts() == 0, backward.get_comm_counts()
    for one, other in zip(grads, torch.autograd.grad(want, tensors, grad), strict=True):
        torch.testing.assert_close(whole(one), other)


def _placements_of_gradient(out: Any) -> list[Any]:
    """Of a sum in parts every part has the whole gradient."""
    return [Replicate() if way.is_partial() else way for way in out.placements]


GATED_COLUMNS = torch.__version__ >= "2.12"
"""Whether this version of PyTorch has what columns of two halves need."""

PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "gated_product": lambda: {"value": ColwiseParallel(), "gate": ColwiseParallel(), "down": RowwiseParallel()},
    "mlp": lambda: {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "gated_mlp": lambda: {"up": GatedColwiseParallel(), "down": RowwiseParallel()},
}


def tensor_parallel(op: str, mesh: DeviceMesh, device: str) -> None:
    if op in GROUPED:
        with implicit_replication():
            placed(op, mesh, device, COLUMNS[op])
        return
    if op != "gated_linear" or GATED_COLUMNS:
        placed(op, mesh, device, COLUMNS[op])
    # And by rows.
    rest: Any = Shard(0) if op in ("gated_product", "lerp") else Replicate()
    by_rows = [Shard(0), *[rest] * (len(COLUMNS[op]) - 1)]
    placed(op, mesh, device, [*by_rows[:2], Replicate()] if op == "lerp" else by_rows)
    if op not in PLANS or (op == "gated_mlp" and not GATED_COLUMNS):
        return
    model, alone, x = network(op, device)
    parallel = parallelize_module(model, mesh, PLANS[op]())
    x_alone = x.clone().requires_grad_()
    x.requires_grad_()
    with CommDebugMode() as communication:
        loss(parallel, x).backward()
    # One sum of outputs forward; backward one of the input's gradients for each layer that takes
    # it.
    assert set(communication.get_comm_counts()) == {torch.ops.c10d_functional.all_reduce}
    assert communication.get_total_counts() == (3 if op == "gated_product" else 2)
    loss(alone, x_alone).backward()
    torch.testing.assert_close(x.grad, x_alone.grad)
    assert_same_training(parallel, alone, rtol=1e-6, atol=1e-7)
    for (name, one), other in zip(parallel.state_dict().items(), alone.state_dict().values(), strict=True):
        assert torch.equal(whole(one), other), name


def refused(op: str, mesh: DeviceMesh, device: str) -> None:
    """A layer with an activation is not sharded as a linear one. A gated layer whose halves lie
    apart says so, or is gathered where it is known.
    """
    if op == "linear":
        model, _, _ = network(op, device)
        with pytest.raises(NotImplementedError, match=r"ColwiseParallel currently only support nn\.Linear"):
            parallelize_module(model, mesh, ColwiseParallel())
    if op != "gated_mlp":
        return
    model, alone, x = network(op, device)
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    with pytest.raises(errors.UnsupportedError, match="GatedColwiseParallel"):
        model(x)
    model, alone, x = network(op, device)
    if not GATED_COLUMNS:
        with pytest.raises(errors.UnsupportedError, match=r"want 2\.12"):
            parallelize_module(model, mesh, PLANS[op]())
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    torch.testing.assert_close(parallelize_module(model, mesh, plan)(x), alone(x))


def recipes() -> dict[str, Any]:
    """What docs/pytorch.md defines for several processes."""
    page = (ROOT / "docs" / "pytorch.md").read_text()
    scope: dict[str, Any] = {"torch": torch}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if "torch.distributed" in block:
            exec(compile(block, "docs/pytorch.md", "exec"), scope)
    return scope


def assert_not_rounded(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        grad: Any = parameter.grad
        own = grad.to_local() if isinstance(grad, DTensor) else grad
        assert own.dtype == torch.float32
        assert not own.numel() or not torch.equal(own, own.bfloat16().float()), f"{name} was rounded"


def float32_gradients(op: str, mesh: DeviceMesh, device: str) -> None:
    """Gradients in float32 of a model in bfloat16, by grad_dtype; main_grad is refused."""
    if op not in ("mlp", "gated_linear", "experts") or not hasattr(torch.Tensor, "grad_dtype"):
        return
    page = recipes()
    ways: list[Callable[[nn.Module], Any]] = [
        lambda model: page["shard"](model, (), mesh),
        lambda model: page["replicate"](model, (), device, dist.get_world_size()),
    ]
    if torch.__version__ >= "2.15":  # where FSDP2 asks for float32 by itself
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        ways.append(lambda model: fully_shard(model, mesh=mesh, mp_policy=policy))
    for spread in ways:
        model, alone, x = network(op, device, torch.float32)
        spread(model)
        loss(model, piece(x)).backward()
        loss(alone.bfloat16(), x.bfloat16()).backward()
        assert_same_training(model, alone, rtol=2e-2, atol=2e-3)
        model.zero_grad()
        # of one process alone: a sum of rounded numbers may have more bits than they have
        (loss(model, piece(x)) * (dist.get_rank() == 0)).backward()
        assert_not_rounded(model)
    # DDP's buckets have the parameters' dtype, so the sum is the loop's own.
    model, alone, x = network(op, device, torch.bfloat16)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    loss(model, piece(x)).backward()
    assert_not_rounded(model)
    page["average_gradients"](model)
    loss(alone, x).backward()
    assert_same_training(model, alone, rtol=2e-2, atol=2e-3)
    if op == "mlp":
        main_grad_refused(op, mesh, device)


def main_grad_refused(op: str, mesh: DeviceMesh, device: str) -> None:
    """Where a parameter's gradient has to come to `.grad`, or is a shard."""
    model, _, x = network(op, device, torch.bfloat16)
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    handle = epigrad.accumulate_main_grad(model)
    with pytest.raises(errors.UnsupportedError, match="under DistributedDataParallel"):
        DistributedDataParallel(model)(piece(x))
    fully_shard(model, mesh=mesh)
    with pytest.raises(errors.UnsupportedError, match="a sharded parameter"):
        epigrad.accumulate_main_grad(model)
    with pytest.raises(errors.UnsupportedError, match="FSDP was applied to the module afterwards"):
        model(piece(x))
    handle.remove()


CHECKS = {"DDP": ddp, "FSDP2": fsdp2, "TP": tensor_parallel, "refused": refused, "float32 gradients": float32_gradients}


def main(rank: int, world: int, port: int, device: str) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (world,))
    for name, check in CHECKS.items():
        for op in NAMES:
            try:
                check(op, mesh, device)
            except Exception as error:
                raise AssertionError(f"{name} {op}") from error
            print("ok", name, op, flush=True)
    dist.destroy_process_group()
    # Gloo's threads may hold tensors still, and end the process with SIGABRT if the interpreter
    # ends under them (pytorch/pytorch#179291).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
