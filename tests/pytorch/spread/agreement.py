"""Groups of processes: what all of them have to agree on, and what ends all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import epigrad
import pytest
import torch
import torch.distributed as dist
from epigrad import errors
from epigrad.parallel import experts
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from tests.pytorch.spread.mixture import FEATURES, HIDDEN, LOCAL, Mixture, assert_near, uneven


def groups(device: str) -> None:
    """A group of one process is `epigrad.experts`; and a group of some processes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    alone = [dist.new_group([other]) for other in range(world)][rank]
    made = Mixture(uneven(world), device=device)
    x, scale, *weights = made.own()
    index = made.index[made.mine] - LOCAL * rank
    got = experts(x, index, scale, *weights, made.kind, group=alone, chunks=2)
    assert torch.equal(got, epigrad.experts(x, index, scale, *weights, made.kind))
    if world > 2:
        last = dist.new_group([world - 2, world - 1])
        if rank < world - 2:
            with pytest.raises(errors.InvalidProblemError, match="this process is not in it"):
                experts(x, index, scale, *weights, made.kind, group=last)
        else:
            shifted = made.index - LOCAL * (world - 2)
            shifted[: sum(made.tokens[: world - 2])] = -1
            got = experts(x, shifted[made.mine], scale, *weights, made.kind, group=last)
            whole, scales, *others = made.group
            others = [None if t is None else t[-2 * LOCAL :] for t in others]
            want = epigrad.experts(whole, shifted, scales, *others, made.kind)  # type: ignore[arg-type]
            assert_near([got], [want[made.mine]])


DISAGREEMENTS: dict[str, dict[str, Any]] = {
    r"K: 24 on rank \d, 16 on rank 1|K: 16 on rank 1, 24": {"features": 16},
    "k, the experts of a token": {"each": 3},
    "experts of a process": {"local": 2},
    "H: ": {"hidden": 4},
    "input: dtype": {"dtype": torch.float32},
    "scale: dtype": {"scale_dtype": torch.float32},
    "kind: (swiglu|geglu)": {"kind": "geglu"},
    "parameter 0 of the kind": {"kind": epigrad.Gated("swiglu", alpha=2.0)},
    "gate: ": {"gate": "first"},
    "bias_in: given": {"bias": False},
    "adapter_out: rank": {"adapter": 2},
    "chunks: ": {"chunks": 2},
    "batch_invariant": {"invariant": True},
    "input: requires grad": {"frozen": True},
}
"""What one process does another way than the others, by the message that all get."""


def call_with(
    device: str,
    features: int = FEATURES,
    hidden: int = HIDDEN,
    local: int = LOCAL,
    each: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    scale_dtype: torch.dtype | None = None,
    kind: str | epigrad.Gated = "swiglu",
    gate: str = "second",
    bias: bool = True,
    adapter: int = 0,
    chunks: int | None = None,
    invariant: bool = False,
    frozen: bool = False,
) -> None:
    def ones(*sizes: int) -> Tensor:
        return torch.ones(*sizes, device=device, dtype=dtype)

    x, scale = ones(5, features).requires_grad_(not frozen), ones(5, each).to(scale_dtype or dtype)
    weight_in, weight_out = ones(local, 2 * hidden, features).requires_grad_(), ones(local, features, hidden)
    bias_in, bias_out = (ones(local, 2 * hidden), ones(local, features)) if bias else (None, None)
    index = torch.zeros(5, each, dtype=torch.int64, device=device)
    update = epigrad.LowRank(ones(local, adapter, hidden), ones(local, features, adapter)) if adapter else None
    tensors = (x, index, scale, weight_in, bias_in, weight_out, bias_out)
    with epigrad.batch_invariant(invariant):
        experts(*tensors, kind, gate=gate, adapter_out=update, chunks=chunks)


def disagreement(device: str) -> None:
    """All processes raise where one means another mixture, and go on together afterwards."""
    for message, change in DISAGREEMENTS.items():
        with pytest.raises(errors.InvalidProblemError, match=message) as raised:
            call_with(device, **(change if dist.get_rank() == 1 else {}))
        assert "want the same in all processes of the group" in str(raised.value)
        call_with(device)
        call_with(device, **change)


@contextmanager
def nothing_sent() -> Iterator[None]:
    with mock.patch.object(dist, "all_to_all_single", side_effect=AssertionError("sent")):
        yield


def bad_arguments(device: str) -> None:
    """Raised before anything is sent, as `epigrad.experts` does."""
    made = Mixture([4] * dist.get_world_size(), device=device)
    x, scale, *weights = made.own()
    index = made.index[made.mine]
    invalid, wrong = errors.InvalidProblemError, errors.DTypeError
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (invalid, "chunks: got 0, want 1 to 16", (x, index, scale, *weights), {"chunks": 0}),
        (invalid, "chunks: got 17", (x, index, scale, *weights), {"chunks": 17}),
        (wrong, "chunks: bool", (x, index, scale, *weights), {"chunks": True}),
        (wrong, "chunks: float", (x, index, scale, *weights), {"chunks": 2.0}),
        (wrong, "group: str", (x, index, scale, *weights), {"group": "world"}),
        (invalid, "save: 'all'", (x, index, scale, *weights), {"save": "all"}),
        (invalid, "kind", (x, index, scale, *weights, "swigly"), {}),
        (invalid, "gate", (x, index, scale, *weights), {"gate": "third"}),
        (invalid, "scale: shape", (x, index, scale[:, :1], *weights), {}),
        (invalid, "index: shape", (x, index[:2], scale[:2], *weights), {}),
        (invalid, "weight_out: shape", (x, index, scale, *weights[:2], weights[2][:, :4], weights[3]), {}),
        (wrong, "index: dtype", (x, index.int(), scale, *weights), {}),
        (wrong, "dtype", (x.float(), index, scale, *weights), {}),
        (wrong, "scale: NoneType", (x, index, None, *weights), {}),
        (wrong, "adapter_in", (x, index, scale, *weights), {"adapter_in": 3}),
    ]
    with nothing_sent():
        for error, message, arguments, options in cases:
            with pytest.raises(error, match=message):
                experts(*arguments, **options)
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        whole = DTensor.from_local(weights[0], mesh, run_check=False)
        with pytest.raises(errors.UnsupportedError, match="weight_in: a DTensor"):
            experts(x, index, scale, whole, *weights[1:])
        with pytest.raises(errors.UnsupportedError, match=r"torch\.func"):
            torch.func.grad(lambda x: experts(x, index, scale, *weights).sum())(x)
        with forward_ad.dual_level(), pytest.raises(errors.UnsupportedError, match="tangent"):
            experts(forward_ad.make_dual(x.detach(), x.detach()), index, scale, *weights)
    out = experts(x, index, scale, *weights)
    with nothing_sent(), pytest.raises(errors.UnsupportedError, match="create_graph=True"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def death(device: str) -> None:
    """A process ends where the others send rows: they end too, and their message says where."""
    made = Mixture([4] * dist.get_world_size(), device=device)
    made.run()
    if dist.get_rank() == 1:
        sys.stdout.flush()
        os._exit(0)
    with pytest.raises(RuntimeError) as raised:
        made.run()
    assert any("epigrad.parallel.experts" in note for note in raised.value.__notes__)
