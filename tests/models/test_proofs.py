"""The proof that a row computes what the forward of a class does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from epigrad.integrations import proofs
from epigrad.integrations.blocks import Gate, Gated, PackedGated, Plain
from epigrad.integrations.transformers import patch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.models.handmade import (
    KNOWN,
    Limited,
    Llama,
    Normed,
    Packed,
    PlainBlock,
    SwappedHalves,
    ValueFirst,
    assert_same,
    made,
    results,
)

pytestmark = pytest.mark.usefixtures("_one_thread")

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
