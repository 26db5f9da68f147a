"""What `patch` reads out of a forward: blocks that it recognises, near misses that it refuses, and
the proof that each class gets.
"""

from __future__ import annotations

import functools
import pickle
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from epigrad.integrations import bodies, proofs
from epigrad.integrations.blocks import Gate, Gated, PackedGated, Plain
from epigrad.integrations.patching import Patched
from epigrad.integrations.recognition import row_of
from epigrad.integrations.transformers import patch, unpatch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812  (as models call it)

pytestmark = pytest.mark.usefixtures("_one_thread")
FACTOR = 2.0
SIZE = 8


class Block(nn.Module):
    """All layers that the blocks below use."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.packed = nn.Linear(SIZE, 2 * SIZE)
        self.act, self.norm, self.drop = nn.SiLU(), nn.LayerNorm(SIZE), nn.Dropout(0.4)
        self.p, self.limit, self.alpha, self.first, self.extra = 0.3, 0.7, 1.702, True, None
        self.scale = nn.Parameter(torch.ones(SIZE))
        self.function = F.gelu


# --- what is recognised ---------------------------------------------------------------------------


class Llama(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class ValueFirst(Block):
    def forward(self, x: Tensor) -> Tensor:
        value = self.up(x)
        gate = F.relu(self.gate(x))
        return self.down(self.drop(value * gate))


class Packed(Block):
    def forward(self, hidden: Tensor, unused: Any = None) -> Tensor:
        """The documentation of a forward.

        It is no statement.
        """
        gate, value = self.packed(hidden).chunk(2, dim=-1)
        return self.down(value * self.act(gate))


class SwappedHalves(Block):
    def forward(self, hidden: Tensor) -> Tensor:
        halves = torch.chunk(self.packed(hidden), 2, dim=-1)
        return self.down(halves[0] * self.act(halves[1]))


class Interleaved(Block):
    def forward(self, x: Tensor) -> Tensor:
        both = self.packed(x)
        gate, up = both[..., ::2], both[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return self.down((up + 1) * (gate * torch.sigmoid(gate * self.alpha)))


class Limited(Block):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.act(self.gate(x)).clamp(max=self.limit)
        up: Tensor = self.up(x).clamp(-self.limit, self.limit)
        return self.down(gate * up)


class PlainBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.up(x), approximate="tanh")
        x = F.dropout(x, p=self.p, training=self.training)
        x = self.down(x)
        return F.dropout(x, self.p, self.training)


class Normed(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(self.norm(self.act(self.up(self.norm(x))))))


class Pair(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.up(x))


class Guarded(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.up(x))
        if (
            isinstance(self.down.weight, torch.Tensor)
            and x.dtype != self.down.weight.dtype
            and (self.down.weight.dtype != torch.int8 and self.down.weight.dtype != torch.uint8)
        ):
            x = x.to(self.down.weight.dtype)
        return self.down(x)


class Conditional(Block):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.packed(x).chunk(2, dim=-1)
        x = self.act(a) * b if self.first else a * self.act(b)
        if self.extra is not None and self.limit > 0:
            x = self.extra(x)
        return self.down(x)


KNOWN = {
    Llama: "gated_linear swiglu",
    ValueFirst: "gated_linear reglu",
    Packed: "gated_mlp swiglu",
    SwappedHalves: "gated_mlp swiglu",
    Interleaved: "gated_mlp swiglu(limit=0.7, offset=1, alpha=1.702)",
    Limited: "gated_linear swiglu(limit_after=0.7)",
    PlainBlock: "linear gelu_tanh, since dropout by p is at work",
    Normed: "linear silu, since norm is at work",
    Pair: "linear gelu",
    Guarded: "mlp silu",
    Conditional: "gated_mlp swiglu",
}


def results(block: nn.Module, shape: tuple[int, ...] = (4, SIZE)) -> dict[str, Tensor]:
    """Output and gradients, with the same dropout each time."""
    torch.manual_seed(3)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = block(x)
    leaves = {"input": x, **dict(block.named_parameters())}
    grads = torch.autograd.grad(out.square().sum(), list(leaves.values()), materialize_grads=True)
    return {"output": out.detach(), **dict(zip(leaves, grads, strict=True))}


def assert_same(block: nn.Module, want: dict[str, Tensor]) -> None:
    for name, value in results(block).items():
        torch.testing.assert_close(value, want[name], rtol=1e-11, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")


def made(cls: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return cls().double()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cls", KNOWN, ids=lambda cls: cls.__name__)
def test_blocks_are_recognised(cls: type[nn.Module], training: bool) -> None:
    block = made(cls).train(training)
    want = results(block)
    report = patch(block)
    if training:
        assert report.patched == {"": f"{cls.__name__} by {KNOWN[cls]}"} and not report.left
    assert isinstance(block, Patched)
    assert_same(block, want)
    assert unpatch(block) == ("",) and type(block) is cls


def test_rows_say_which_layer_is_what() -> None:
    assert row_of(made(Llama), Llama) == Gated("up", "gate", Gate("act"), "down")
    assert row_of(made(SwappedHalves), SwappedHalves) == PackedGated("packed", Gate("act"), "second", "down")
    assert row_of(made(Packed), Packed) == PackedGated("packed", Gate("act"), "first", "down")
    assert row_of(made(Pair), Pair) == Plain("up", "function")


def test_what_a_condition_reads_is_asked_again() -> None:
    block = made(Conditional)
    patch(block)
    block.first = False
    own = made(Conditional)
    own.first = False
    assert_same(block, results(own))
    assert patch(block).patched and block.epigrad_block.block.gate == "second"  # type: ignore[union-attr, operator]
    assert_same(block, results(own))
    for each in (block, own):
        each.extra = nn.Tanh()
    assert_same(block, results(own))
    assert patch(block).patched
    assert_same(block, results(own))


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)),
        (nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE), nn.GELU(), nn.Dropout(0.3), nn.Linear(SIZE, SIZE), nn.Tanh()),
    ],
)
def test_sequences_are_recognised_until_they_change(layers: tuple[nn.Module, ...]) -> None:
    block, own = (nn.Sequential(*layers).double() for _ in range(2))
    assert patch(block).patched
    assert_same(block, results(own))
    for each in (block, own):
        each.append(nn.Sigmoid())
    assert_same(block, results(own))
    assert_same(block[:-2], results(own[:-2]))
    assert_same(block[1:], results(own[1:]))


def test_a_pickle_whose_class_has_another_forward_by_now_is_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    block = made(Packed)
    patch(block)
    stored = pickle.dumps(block)
    assert isinstance(pickle.loads(stored), Patched)
    monkeypatch.setattr(Packed, "forward", SwappedHalves.forward)
    loaded = pickle.loads(stored)
    assert type(loaded) is Packed and not isinstance(loaded, Patched)
    assert_same(loaded, results(made(SwappedHalves)))


# --- near misses ----------------------------------------------------------------------------------


class Residual(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


class ActivationAfter(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x) * self.up(x)))


class ScaledGate(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x) * FACTOR) * self.up(x))


class ScaledBy(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x))) * 0.5


class OwnParameter(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)) * self.scale)


class TwoGates(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x) * self.up(x))


class SameLayer(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)) * self.up(x))


class OtherInput(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(self.norm(x))) * self.up(x))


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        x *= 2
        return self.down(self.act(self.up(x)))


class InPlaceMethod(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x.mul_(2))))


class WhileTraining(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.up(x))
        if self.training:
            x = self.norm(x)
        return self.down(x)


class DropoutBefore(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.drop(self.up(x))))


class AlwaysDrops(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.dropout(self.act(self.up(x)), self.p))


class Dimension(Block):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.packed(x).chunk(2, dim=0)
        return self.down(self.act(a) * b)


class OtherLimits(Block):
    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x).clamp(min=-self.alpha, max=self.limit)
        return self.down(self.act(self.gate(x).clamp(max=self.limit)) * up)


class OneLimit(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x).clamp(max=self.limit)) * self.up(x))


class GlobalLimit(Block):
    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x).clamp(min=-FACTOR, max=FACTOR)
        return self.down(self.act(self.gate(x).clamp(max=FACTOR)) * up)


class Loop(Block):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.act(self.up(x))
        return self.down(x)


class Unused(Block):
    def forward(self, x: Tensor) -> Tensor:
        _ = self.drop(x)
        return self.down(self.act(self.up(x)))


class Two(Block):
    def forward(self, x: Tensor) -> Any:
        x = self.act(self.up(x))
        return self.down(x), x


class NeedsMore(Block):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class OtherGuard(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.up(x))
        if x.dtype != self.down.weight.dtype:
            x = x.to(self.up.weight.dtype)
        return self.down(x)


class OwnMethod(Block):
    def act_and(self, x: Tensor) -> Tensor:
        return self.act(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act_and(self.up(x)))


class Decorated(Block):
    @functools.wraps(Llama.forward)
    def forward(self, x: Tensor) -> Tensor:
        return 2 * Llama.forward(self, x)  # type: ignore[arg-type]


class Super(Llama):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


MISSES = {
    Residual: "adds, in",
    ActivationAfter: "multiplies what is no gate",
    ScaledGate: "FACTOR",
    ScaledBy: "multiplies by a number",
    OwnParameter: "parameter scale",
    TwoGates: "multiplies what is no gate",
    SameLayer: "multiplies what is no gate",
    OtherInput: "multiplies what is no gate",
    InPlace: r"x \*= 2",
    InPlaceMethod: "mul_",
    WhileTraining: "asks whether `self.training`",
    DropoutBefore: "up is followed by drop",
    AlwaysDrops: "F.dropout",
    Dimension: "dim=0",
    OtherLimits: "multiplies what is no gate",
    OneLimit: "multiplies what is no gate",
    GlobalLimit: "FACTOR",
    Loop: "for _ in range",
    Unused: "does not use what drop gives",
    Two: "returns no tensor",
    NeedsMore: "takes residual too",
    OtherGuard: "asks whether",
    OwnMethod: "method act_and",
    Decorated: "decorator",
    Super: "super",
}


@pytest.mark.parametrize("cls", MISSES, ids=lambda cls: cls.__name__)
def test_near_misses_are_left_alone(cls: type[nn.Module]) -> None:
    with pytest.raises(bodies.Unknown, match=MISSES[cls]):
        row_of(made(cls), cls)
    block = made(cls)
    report = patch(block)
    assert not report.patched and type(block) is cls


def test_a_source_that_is_not_what_runs_is_refused() -> None:
    class Changed(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.act(self.up(x)))

    own = Changed.forward
    own.__code__ = ScaledBy.forward.__code__.replace(
        co_firstlineno=own.__code__.co_firstlineno, co_filename=own.__code__.co_filename
    )
    with pytest.raises(bodies.Unknown, match="not what its source file says"):
        row_of(made(Changed), Changed)
    namespace: dict[str, Any] = {}
    exec("def forward(self, x):\n    return self.down(self.act(self.up(x)))", namespace)
    unwritten = type("Unwritten", (Block,), namespace)
    with pytest.raises(bodies.Unknown, match="has no source"):
        row_of(made(unwritten), unwritten)


# --- the proof ------------------------------------------------------------------------------------

WRONG = {
    "the other half": (SwappedHalves, PackedGated("packed", Gate("act"), "first", "down")),
    "value for gate": (Llama, Gated("gate", "up", Gate("act"), "down")),
    "another kind": (ValueFirst, Gated("up", "gate", Gate(kind="swiglu"), "drop")),
    "a limit before": (Limited, Gated("up", "gate", Gate("act", "", (("limit", "limit"),)), "down")),
    "no norm": (Normed, Plain("up", "act", "", "down")),
    "another place of a norm": (Normed, Plain("up", "act", "", "down", after=("norm", "norm", "drop"))),
    "no dropout": (PlainBlock, Plain("up", "", "gelu_tanh", "down")),
    "exact gelu": (PlainBlock, Plain("up", "", "gelu", "down")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_row_is_not_proved(name: str) -> None:
    cls, row = WRONG[name]
    assert "differs by" in proofs.doubt(made(cls), cls, row)


def test_a_proof_that_raises_leaves_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise OSError("no core")

    class Fresh(Llama):
        pass

    monkeypatch.setattr(proofs, "_difference", broken)
    assert patch(made(Fresh)).left == {"": "Fresh: its proof failed: OSError: no core"}
    monkeypatch.undo()
    assert patch(made(Fresh)).patched


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proof has been made yet."""
    monkeypatch.setattr(proofs, "_proved", type(proofs._proved)())


@pytest.mark.usefixtures("_fresh")
def test_a_class_is_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[type[Any]] = []
    own = proofs._difference
    monkeypatch.setattr(proofs, "_difference", lambda *each: calls.append(each[1]) or own(*each))
    patch(nn.Sequential(*(made(Llama) for _ in range(5)), made(Packed)))
    patch(made(Llama))
    assert calls == [Llama, Packed]


def test_many_blocks_take_little_time() -> None:
    model = nn.Sequential(*(made(Llama) for _ in range(32)))
    patch(model[0])
    start = time.process_time()
    assert len(patch(model).patched) == 32
    assert time.process_time() - start < 0.3


@pytest.mark.usefixtures("_fresh")
def test_what_is_the_users_stays_as_it_was() -> None:
    block = nn.Sequential(*(made(cls) for cls in KNOWN))
    for parameter in block.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = {name: (value.clone(), value._version) for name, value in block.state_dict(keep_vars=True).items()}
    block[0].eval()
    called: list[nn.Module] = []
    for module in block.modules():
        module.register_forward_hook(lambda module, *_: called.append(module))
    block[0].act = nn.SiLU()
    flags = [module.training for module in block.modules()]
    numbers, python = torch.get_rng_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    attributes = [dict(module.__dict__) for module in block.modules()]
    patch(block)
    assert torch.equal(torch.get_rng_state(), numbers) and random.getstate() == python and not called
    assert all(map(torch.equal, torch.cuda.get_rng_state_all() if cuda else [], cuda))
    assert [module.training for module in block.modules()] == flags
    assert [dict(module.__dict__) for module in block.modules()] == attributes
    for name, value in block.state_dict(keep_vars=True).items():
        before, version = state[name]
        assert torch.equal(value, before) and value._version == version
    assert all(torch.equal(each.grad, torch.ones_like(each)) for each in block.parameters())


AROUND: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "meta": lambda: torch.device("meta"),
    "fake": FakeTensorMode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "saved": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x * 0),
}


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("name", AROUND)
def test_proofs_work_inside_of_what_changes_pytorch(name: str) -> None:
    block = made(Llama)
    with AROUND[name]():
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        assert patch(block).patched == {"": "Llama by gated_linear swiglu"}
        assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == modes
    assert_same(block, results(made(Llama)))


@pytest.mark.usefixtures("_fresh")
def test_proofs_work_with_another_default_dtype() -> None:
    block = made(Llama)
    torch.set_default_dtype(torch.float16)
    try:
        assert patch(block).patched and torch.get_default_dtype() == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_fresh")
def test_blocks_on_the_meta_device_are_patched() -> None:
    with torch.device("meta"):
        block = Llama()
    assert patch(block).patched == {"": "Llama by gated_linear swiglu"}


@pytest.mark.usefixtures("_fresh")
def test_hooks_on_all_modules_put_the_proof_off() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: pytest.fail("called"))
    try:
        assert "hooks on all modules are registered" in patch(made(Llama)).left[""]
    finally:
        handle.remove()
    assert patch(made(Llama)).patched
