"""Patched models sharded by FSDP2 and tensor parallel: a group of one process, which has the same
hooks and DTensors as one of many.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from epigrad import errors
from epigrad.integrations.transformers import patch, unpatch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.support import models
from tests.support.models import MODELS

pytestmark = pytest.mark.usefixtures("_one_thread")
BOTH = pytest.mark.parametrize("patched_first", [True, False])


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_trains_as(name: str, model: nn.Module, own: nn.Module) -> None:
    out, want = MODELS[name].output(model), MODELS[name].output(own)
    torch.testing.assert_close(out, want)
    out.square().sum().backward()
    want.square().sum().backward()
    for got, parameter in zip(model.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(whole(got.grad), parameter.grad)


# GPT-2's own block, unpatched, returns a view.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .FSDPGPT2MLP. returned a view:UserWarning")
@BOTH
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_fully_shard(name: str, patched_first: bool, mesh: DeviceMesh) -> None:
    """FSDP2 gives what it shards a class of its own: a patch before it stays, a patch after it
    leaves it alone, and says so."""
    model = models.make(name)
    blocks = [model.get_submodule(block) for block in patch(model).patched]
    if not patched_first:
        unpatch(model)
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh)
    if patched_first:
        with pytest.raises(errors.InvalidProblemError, match=r"unpatch: model: .* is a .*FSDP"):
            unpatch(model)
    else:
        assert all("patch before it gets this class" in text for text in patch(model).left.values())
    assert_trains_as(name, model, models.make(name))


@BOTH
@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("llama", {"gate_proj": ColwiseParallel, "up_proj": ColwiseParallel, "down_proj": RowwiseParallel}),
        ("phi", {"fc1": ColwiseParallel, "fc2": RowwiseParallel}),
    ],
)
def test_tensor_parallel(name: str, ways: dict[str, type], patched_first: bool, mesh: DeviceMesh) -> None:
    """Its hooks on the projections run, before the patch or after it."""
    model, own = models.make(name), models.make(name)
    if patched_first:
        patch(model)
    for layer in range(2):
        parallelize_module(
            model.get_submodule(f"model.layers.{layer}.mlp"), mesh, {k: way() for k, way in ways.items()}
        )
    report = patch(model)
    assert (name == "llama") == bool(report.patched)
    assert isinstance(model.get_submodule(MODELS[name].block).get_parameter(f"{next(iter(ways))}.weight"), DTensor)
    assert_trains_as(name, model, own)
