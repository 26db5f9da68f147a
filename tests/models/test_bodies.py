"""What `patch` reads out of a forward: blocks that it recognises, near misses that it refuses."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from typing import Any

import pytest
import torch
from epigrad.integrations.blocks import Gate, Gated, PackedGated, Plain, Within
from epigrad.integrations.patching import Patched
from epigrad.integrations.recognition import row_of
from epigrad.integrations.sources import Unknown
from epigrad.integrations.transformers import patch, unpatch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (as models call it)

from tests.models.handmade import (
    KNOWN,
    SIZE,
    Block,
    Conditional,
    Llama,
    Packed,
    Pair,
    SwappedHalves,
    assert_same,
    made,
    results,
)
from tests.support.tiers import in_turns, thorough

pytestmark = pytest.mark.usefixtures("_one_thread")
FACTOR = 2.0


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


@pytest.mark.parametrize("cls", in_turns(KNOWN, len(KNOWN), thorough, lambda cls: cls.__name__))
def test_blocks_compile_without_graph_breaks(cls: type[nn.Module]) -> None:
    torch._dynamo.reset()
    block = made(cls).eval()
    want = results(block)
    patch(block)
    compiled: Any = torch.compile(block, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(compiled(x).detach(), want["output"])


def test_scripted_modules_are_left_alone() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU()))
    assert not patch(nn.Sequential(scripted)).patched


def test_rows_say_which_layer_is_what() -> None:
    assert row_of(made(Llama), Llama) == Gated("up", "gate", Gate("act"), "down")
    assert row_of(made(SwappedHalves), SwappedHalves) == PackedGated("packed", Gate("act"), "second", "down")
    assert row_of(made(Packed), Packed) == PackedGated("packed", Gate("act"), "first", "down")
    assert row_of(made(Pair), Pair) == Plain("up", "function")


def test_rows_have_the_names_and_fields_that_pickles_of_0_2_hold() -> None:
    rows = (Gate, Gated, PackedGated, Plain, Within)
    assert {row.__name__: " ".join(field.name for field in dataclasses.fields(row)) for row in rows} == {
        "Gate": "activation kind parameters",
        "Gated": "value gate kind down",
        "PackedGated": "up kind gate down between",
        "Plain": "up activation function down between after",
        "Within": "block before after given",
    }


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
    ActivationAfter: "multiplies values that are not gate and value",
    ScaledGate: "FACTOR",
    ScaledBy: "multiplies by a number",
    OwnParameter: "parameter scale",
    TwoGates: "multiplies values that are not gate and value",
    SameLayer: "multiplies values that are not gate and value",
    OtherInput: "multiplies values that are not gate and value",
    InPlace: r"x \*= 2",
    InPlaceMethod: "mul_",
    WhileTraining: "branches on `self.training`",
    DropoutBefore: "up is followed by drop",
    AlwaysDrops: "F.dropout",
    Dimension: "dim=0",
    OtherLimits: "multiplies values that are not gate and value",
    OneLimit: "multiplies values that are not gate and value",
    GlobalLimit: "FACTOR",
    Loop: "for _ in range",
    Unused: "does not use the output of drop",
    Two: "returns no tensor",
    NeedsMore: "takes residual too",
    OtherGuard: "branches on",
    OwnMethod: "method act_and",
    Decorated: "decorator",
    Super: "super",
}


@pytest.mark.parametrize("cls", MISSES, ids=lambda cls: cls.__name__)
def test_near_misses_are_left_alone(cls: type[nn.Module]) -> None:
    with pytest.raises(Unknown, match=MISSES[cls]):
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
    with pytest.raises(Unknown, match="not what its source file says"):
        row_of(made(Changed), Changed)
    namespace: dict[str, Any] = {}
    exec("def forward(self, x):\n    return self.down(self.act(self.up(x)))", namespace)
    unwritten = type("Unwritten", (Block,), namespace)
    with pytest.raises(Unknown, match="has no source"):
        row_of(made(unwritten), unwritten)
