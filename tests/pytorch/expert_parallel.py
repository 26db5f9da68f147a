"""One of the processes of test_expert_parallel.py: experts spread over processes, each check beside
one process that has them all.

    python -m tests.pytorch.expert_parallel RANK WORLD PORT DEVICE [CHECK ...]

Prints a line ``ok CHECK`` for each check that passed, and ends with the first failure's traceback.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest import mock

import epigrad
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as saved
from epigrad import errors
from epigrad._core.wide import DECLARES
from epigrad.parallel import ExpertParallel, experts
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Errors relative to the largest number of a tensor: of sums in another order, and in half types of
the parts of ranks, which are rounded."""
LOCAL, FEATURES, HIDDEN = 3, 24, 8


@dataclass
class Mixture:
    """All tokens and all experts, the same in every process, and the parts that are this one's."""

    tokens: Sequence[int]
    kind: str | epigrad.Gated = "swiglu"
    gate: str = "second"
    dtype: torch.dtype = torch.float64
    each: int = 2
    bias: bool = True
    scale_dtype: torch.dtype | None = None
    owner: int | None = None
    device: str = "cpu"
    group: list[Tensor | None] = field(init=False)
    index: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        count = LOCAL * len(self.tokens)
        rows = HIDDEN * (1 if self.kind in ("relu2", "none") else 2)

        def normal(*sizes: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(self.device, dtype).mul_(0.5)

        total = sum(self.tokens)
        bias_in, bias_out = (normal(count, rows), normal(count, FEATURES)) if self.bias else (None, None)
        scale = normal(total, self.each, dtype=self.scale_dtype or self.dtype)
        self.group = [normal(total, FEATURES), scale]
        self.group += [normal(count, rows, FEATURES), bias_in, normal(count, FEATURES, HIDDEN), bias_out]
        low, high = (-2, count + 2) if self.owner is None else (self.owner * LOCAL, (self.owner + 1) * LOCAL)
        self.index = torch.randint(low, high, (total, self.each), generator=generator).to(self.device)
        if self.owner is None and total:
            self.index[0, 0] = 1 << 40
        self.grad = normal(total, FEATURES)

    @property
    def mine(self) -> slice:
        first = sum(self.tokens[: dist.get_rank()])
        return slice(first, first + self.tokens[dist.get_rank()])

    def part(self, place: int, tensor: Tensor | None) -> Tensor | None:
        """This process's part of an operand or of its gradient."""
        first = LOCAL * dist.get_rank()
        return tensor if tensor is None else tensor[self.mine if place < 2 else slice(first, first + LOCAL)]

    def leaves(self, tensors: Sequence[Tensor | None]) -> list[Any]:
        return [None if t is None else t.clone().requires_grad_() for t in tensors]

    def own(self) -> list[Any]:
        """This process's operands, which require gradients."""
        return self.leaves([self.part(place, tensor) for place, tensor in enumerate(self.group)])

    def call(self, operands: Sequence[Any], **options: Any) -> Tensor:
        x, scale, *weights = operands
        return experts(x, self.index[self.mine], scale, *weights, self.kind, gate=self.gate, **options)

    def run(self, operands: Sequence[Any] | None = None, **options: Any) -> list[Tensor]:
        """The output and the gradients of this process."""
        operands = self.own() if operands is None else operands
        out = self.call(operands, **options)
        given = [t for t in operands if t is not None]
        return [out, *torch.autograd.grad(out, given, self.grad[self.mine])]

    def alone(self) -> list[Tensor]:
        """The same parts of what one process computes."""
        x, scale, *weights = operands = self.leaves(self.group)
        out = epigrad.experts(x, self.index, scale, *weights, self.kind, gate=self.gate)
        given = [t for t in operands if t is not None]
        grads = iter(torch.autograd.grad(out, given, self.grad))
        parts = [self.part(place, None if t is None else next(grads)) for place, t in enumerate(operands)]
        return [out[self.mine], *[part for part in parts if part is not None]]


def assert_near(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for place, (one, other) in enumerate(zip(got, want, strict=True)):
        assert one.shape == other.shape and one.dtype == other.dtype, place
        largest = float(other.double().abs().max()) if other.numel() else 0.0
        tolerance = TOLERANCES[one.dtype] * max(largest, 1e-3)
        difference = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
        assert difference <= tolerance, f"{place}: {difference}, want at most {tolerance}"


def assert_equal(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for place, (one, other) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(one, other), place


def uneven(world: int) -> list[int]:
    return [23, 7, 40, 11][:world]


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


CHECKS: dict[str, Callable[[str], None]] = {
    "equality": equality,
    "bits": bits,
    "chosen chunks": chosen_chunks,
    "batch invariance": batch_invariance,
    "adapters": adapters,
    "wide gradients": wide_gradients,
    "some gradients": some_gradients,
    "strides": strides,
    "autocast": under_autocast,
    "checkpoint": under_checkpoint,
    "compile": compiled,
    "watched": watched,
    "groups": groups,
    "disagreement": disagreement,
    "bad arguments": bad_arguments,
    "memory": memory,
    "style": style,
    "DDP": with_ddp,
}
OF_FOUR: dict[str, Callable[[str], None]] = {"FSDP2": with_fsdp, "FSDP2 over all": with_fsdp_over_all}
"""Checks of four processes or more."""


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


def main(rank: int, world: int, port: int, device: str, names: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    timeout = timedelta(seconds=20 if "death" in names else 120)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timeout)
    for name in names or CHECKS:
        try:
            (CHECKS | OF_FOUR | {"death": death})[name](device)
        except Exception as error:
            raise AssertionError(name) from error
        print("ok", name, flush=True)
    # As distributed.py: Gloo's threads may hold tensors still.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
