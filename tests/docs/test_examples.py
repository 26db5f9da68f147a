"""The Python programs of examples/ run and show what they say. The demo has its own command, `make
demo`."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
import torch

from tests.support.repository import ROOT

FOLDER = ROOT / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("_one_thread")
def test_token_shift_learns_where_to_look() -> None:
    module = example("token_shift")
    accuracy, block = module.train(shifted=True)
    assert accuracy > 0.9
    assert (block.shift_key.mix < 0.5).float().mean() > 0.5
    assert module.train(shifted=False)[0] < 0.3


def test_a_token_shift_is_the_mix_of_two_tokens() -> None:
    shift = example("token_shift").TokenShift(3).double()
    with torch.no_grad():
        shift.mix.copy_(torch.tensor([0.0, 0.25, 1.0]))
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    before = torch.cat([torch.zeros(2, 1, 3, dtype=torch.float64), x[:, :-1]], 1)
    torch.testing.assert_close(shift(x), torch.lerp(before, x, shift.mix.expand_as(x)))
    assert torch.autograd.gradcheck(shift, x)
