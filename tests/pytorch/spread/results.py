"""Outputs and gradients of experts over processes are those of one process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import epigrad
import torch
import torch.distributed as dist
from epigrad.parallel import experts
from torch import Tensor

from tests.pytorch.spread.mixture import DTYPES, FEATURES, HIDDEN, LOCAL, Mixture, assert_equal, assert_near, uneven


def equality(device: str) -> None:
    """Kinds, dtypes, tokens and chunks, each with some of the others."""
    world = dist.get_world_size()
    kinds: list[dict[str, Any]] = [
        {"kind": "swiglu"},
        {"kind": "swiglu_oai", "gate": "even"},
        {"kind": epigrad.Gated("geglu", limit=1.5), "gate": "first", "bias": False},
        {"kind": "relu2", "each": 1},
        {"kind": "none", "each": LOCAL + 2},
        {"kind": "situ_glu", "gate": "odd"},
    ]
    tokens = [
        uneven(world),
        [*[0] * (world - 1), 19],
        [5, *[0] * (world - 1)],
        [0] * world,
        [1] * world,
        [33] * world,
    ]
    chunks = itertools.cycle([None, 1, 2, 3, 16])
    for turn, (options, dtype) in enumerate(itertools.product(kinds, DTYPES)):
        made = Mixture(tokens[turn % len(tokens)], dtype=dtype, device=device, **options)
        assert_near(made.run(chunks=next(chunks)), made.alone())
    for owner, count in itertools.product(range(world), (1, 3)):
        made = Mixture(uneven(world), owner=owner, each=3, device=device)
        assert_near(made.run(chunks=count), made.alone())
    for dtype in (torch.bfloat16, torch.float16):
        made = Mixture(uneven(world), dtype=dtype, scale_dtype=torch.float32, device=device)
        assert_near(made.run(chunks=2), made.alone())


def bits(device: str) -> None:
    """Runs of the same have the same bits, and forward has them whatever the chunks are."""
    for dtype in DTYPES:
        made = Mixture(uneven(dist.get_world_size()), dtype=dtype, each=4, device=device)
        first = made.run()
        assert_equal(made.run(), first)
        in_three = made.run(chunks=3)
        assert_equal(in_three[:3], first[:3])
        assert_equal(made.run(chunks=3), in_three)
        for save in ("preactivation", "recompute"):
            assert_equal(made.run(save=save), first)
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                assert_equal([made.call(made.own())], first[:1])


def chosen_chunks(device: str) -> None:
    """The process with most tokens says how many chunks there are. Others have begun with fewer."""
    made = Mixture(uneven(dist.get_world_size()), device=device)
    want = made.run(chunks=3)
    with mock.patch("epigrad.parallel.agreement._chosen", lambda tokens, _: 1 if tokens < 10 else 3):
        assert_equal(made.run(), want)


def batch_invariance(device: str) -> None:
    """Rows do not depend on how many there are."""
    world = dist.get_world_size()
    many = Mixture([40] * world, dtype=torch.float32, device=device)
    mine = many.mine
    with epigrad.batch_invariant():
        operands = many.own()
        out, grad_input, grad_scale, *_ = many.run(operands)
        for count in (1, 7):
            x, scale, *weights = operands
            few = [t[:count].detach().requires_grad_() for t in (x, scale)]
            some = experts(few[0], many.index[mine][:count], few[1], *weights, many.kind, chunks=2)
            grads = torch.autograd.grad(some, few, many.grad[mine][:count])
            assert_equal([some, *grads], [out[:count], grad_input[:count], grad_scale[:count]])


def adapters(device: str) -> None:
    """Low-rank updates of each process's experts, in float32 beside half types too."""
    world = dist.get_world_size()
    for dtype, wide in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        made = Mixture(uneven(world), dtype=dtype, device=device)
        generator = torch.Generator().manual_seed(3)
        count = LOCAL * world
        shapes = [(count, 2, FEATURES), (count, 2 * HIDDEN, 2), (count, 3, HIDDEN), (count, FEATURES, 3)]
        group = [torch.randn(*s, generator=generator, dtype=torch.float64).to(device, wide) for s in shapes]

        def updates(parts: Sequence[Tensor]) -> dict[str, epigrad.LowRank]:
            return {
                "adapter_in": epigrad.LowRank(parts[0], parts[1], 0.5),
                "adapter_out": epigrad.LowRank(parts[2], parts[3]),
            }

        whole = made.leaves(group)
        x, scale, *weights = made.group
        want = epigrad.experts(x, made.index, scale, *weights, made.kind, **updates(whole))  # type: ignore[arg-type]
        wanted = torch.autograd.grad(want, whole, made.grad)
        mine = made.leaves([made.part(2, t) for t in group])
        for chunks in (1, 2):
            out = made.call([made.part(place, t) for place, t in enumerate(made.group)], chunks=chunks, **updates(mine))
            grads = torch.autograd.grad(out, mine, made.grad[made.mine])
            assert all(g.dtype == wide for g in grads)
            assert_near([out], [want[made.mine]])
            for got, whole_grad in zip(grads, wanted, strict=True):
                part = made.part(2, whole_grad)
                assert part is not None
                assert_near([got.to(dtype)], [part.to(dtype)])


def wide_gradients(device: str) -> None:
    """Gradients of half weights in float32, never rounded: by grad_dtype and by main_grad."""
    made = Mixture(uneven(dist.get_world_size()), dtype=torch.bfloat16, bias=False, device=device)
    reference = Mixture(made.tokens, dtype=torch.float32, bias=False, device=device)
    reference.group = [t if t is None else t.float() for t in made.group]
    reference.grad = made.grad.float()
    wanted = reference.alone()[3:]

    def assert_wide(grads: Sequence[Tensor | None]) -> None:
        for grad, want in zip(grads, wanted, strict=True):
            assert grad is not None and grad.dtype == torch.float32 and not torch.equal(grad, grad.bfloat16().float())
            assert float((grad - want).abs().max()) <= 2e-2 * float(want.abs().max())

    for chunks in (1, 2):
        operands = made.own()
        weights = [operands[2], operands[4]]
        if hasattr(torch.Tensor, "grad_dtype"):
            for weight in weights:
                weight.grad_dtype = torch.float32
            made.call(operands, chunks=chunks).backward(made.grad[made.mine])
            assert_wide([weight.grad for weight in weights])
        operands = made.own()
        weights = [operands[2], operands[4]]
        for weight in weights:
            weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
        handle = epigrad.accumulate_main_grad(weights)
        made.call(operands, chunks=chunks).backward(made.grad[made.mine])
        handle.remove()
        assert all(weight.grad is None for weight in weights)
        assert_wide([weight.main_grad for weight in weights])


def some_gradients(device: str) -> None:
    """Only those that are asked for; frozen weights, and tokens without a gradient."""
    made = Mixture(uneven(dist.get_world_size()), device=device)
    want = made.run()
    for wanted in ((0,), (1,), (2, 4), (3,), (5,), (0, 4)):
        operands = [
            None if t is None else t.detach().requires_grad_(place in wanted) for place, t in enumerate(made.own())
        ]
        out = made.call(operands)
        grads = torch.autograd.grad(out, [operands[place] for place in wanted], made.grad[made.mine])
        assert_equal(grads, [want[1 + place] for place in wanted])
        # Of a graph with all gradients, these alone.
        operands = made.own()
        grads = torch.autograd.grad(made.call(operands), [operands[place] for place in wanted], made.grad[made.mine])
        assert_equal(grads, [want[1 + place] for place in wanted])


def strides(device: str) -> None:
    """Tokens, scales, indices, weights and gradients that are views."""
    made = Mixture(uneven(dist.get_world_size()), device=device)
    want = made.run(chunks=2)
    x, scale, *weights = made.own()
    wide = torch.cat([x.detach()] * 2, 1)[:, FEATURES:].requires_grad_()
    index = made.index[made.mine].t().contiguous().t()
    turned = scale.detach().t().contiguous().t().requires_grad_()
    transposed = [w if w is None or w.dim() == 2 else w.detach().mT.contiguous().mT.requires_grad_() for w in weights]
    out = experts(wide, index, turned, *transposed, made.kind, chunks=2)
    grad = torch.cat([made.grad[made.mine]] * 2, 1)[:, :FEATURES]
    assert_near([out, *torch.autograd.grad(out, [wide, turned, *transposed], grad)], want)
    x, scale, *weights = made.own()
    grads = [torch.autograd.grad(made.call([x, scale, *weights]).sum(), [x, scale, *weights]) for _ in range(2)]
    made.grad = torch.ones_like(made.grad)
    assert_near(grads[0], made.run()[1:])


def memory(device: str) -> None:
    """Rows arrive once for a token, and hidden activations are made for this process's slots."""
    world = dist.get_world_size()
    made = Mixture([32] * world, each=4, bias=False, device=device)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    operands = made.own()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made.call(operands)
    given = {t.untyped_storage().data_ptr() for t in operands if t is not None}
    first = LOCAL * dist.get_rank()
    own = (made.index >= first) & (made.index < first + LOCAL)
    slots, rows = (count * 17 // 16 for count in (int(own.sum()), int(own.any(1).sum())))
    row = 8 * FEATURES + 4 * (8 + 8)
    most = slots * 2 * HIDDEN * 8 + rows * row + 3 * 32 * world * 4
    assert sum(size for address, size in kept.items() if address not in given) <= most
