"""Experts over processes under autocast, checkpoints, `torch.compile`, profilers and counters."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from tests.pytorch.spread.mixture import Mixture, assert_equal, assert_near, uneven


def under_autocast(device: str) -> None:
    """As `epigrad.experts`: products in the autocast dtype, which is what travels."""
    made = Mixture(uneven(dist.get_world_size()), dtype=torch.float32, device=device)
    with torch.autocast(device, torch.bfloat16):
        out, *grads = made.run()
        want, *wanted = made.alone()
    assert out.dtype == want.dtype == torch.bfloat16 and all(grad.dtype == torch.float32 for grad in grads)
    assert_near([out], [want])
    for grad, other in zip(grads, wanted, strict=True):
        assert_near([grad.bfloat16()], [other.bfloat16()])


def under_checkpoint(device: str) -> None:
    made = Mixture(uneven(dist.get_world_size()), device=device)
    want = made.run(chunks=2)
    for reentrant in (False, True):
        operands = made.own()
        out = checkpoint(lambda *given: made.call(given, chunks=2), *operands, use_reentrant=reentrant)
        assert isinstance(out, Tensor)
        out.backward(made.grad[made.mine])
        assert_equal([out, *[t.grad for t in operands]], want)


def compiled(device: str) -> None:
    made = Mixture(uneven(dist.get_world_size()), device=device)

    def layer(*operands: Tensor) -> Tensor:
        return made.call([operands[0] * 1, *operands[1:]]) * 2

    operands = made.own()
    out = torch.compile(layer)(*operands)
    grads = torch.autograd.grad(out, operands, made.grad[made.mine])
    plain = layer(*operands)
    assert_near([out, *grads], [plain, *torch.autograd.grad(plain, operands, made.grad[made.mine])])


def watched(device: str) -> None:
    """Under a profiler, a FLOP counter and a selective checkpoint, which look at operators."""
    made = Mixture(uneven(dist.get_world_size()), device=device)
    want = made.run()
    with torch.profiler.profile() as profile:
        assert_equal(made.run(), want)
    assert profile.events()
    with FlopCounterMode(display=False) as counted:
        assert_equal(made.run(), want)
    assert counted.get_total_flops() > 0
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.epigrad.experts.default])
    operands = made.own()
    out = checkpoint(lambda *given: made.call(given), *operands, use_reentrant=False, context_fn=contexts)
    assert isinstance(out, Tensor)
    assert_equal([out, *torch.autograd.grad(out, operands, made.grad[made.mine])], want)
