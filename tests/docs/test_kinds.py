"""docs/kinds.md is what its program writes, and the models that it names use what it says."""

from __future__ import annotations

import math

import epigrad
import pytest
import torch
import transformers
from epigrad import Activation, Gated
from epigrad._core.tables import ACTIVATIONS, GATED_KINDS, PRESETS

from tests.support.repository import ROOT
from tests.tools import kinds

STALE = "docs/kinds.md is stale: python -m tests.tools.kinds"


def test_the_page_is_what_its_program_writes() -> None:
    assert kinds.PAGE.read_text() == kinds.text(), STALE


@pytest.mark.parametrize("picture", [kinds.PICTURE, kinds.GATED_PICTURE], ids=lambda path: path.name)
def test_the_pictures_are_of_these_kinds(picture: kinds.Path) -> None:
    assert kinds.description().encode() in picture.read_bytes(), STALE


def test_the_readme_counts_the_kinds() -> None:
    assert f"{len(ACTIVATIONS)} activations and {len(GATED_KINDS)} gated kinds" in (ROOT / "README.md").read_text()


def test_users_are_of_kinds_that_there_are() -> None:
    assert kinds.USERS.keys() <= {*ACTIVATIONS, *GATED_KINDS, *PRESETS, "prelu", "xielu"}


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [(kind, attribute) for kind, users in kinds.USERS.items() for attribute in users.values() if attribute],
)
def test_models_use_by_default_what_the_page_says(kind: str, attribute: str) -> None:
    name, field = attribute.split(".")
    used = getattr(getattr(transformers, name)(), field)
    if kind in GATED_KINDS:
        assert Activation(used) == Gated(kind).activation
    elif kind in ACTIVATIONS:
        assert Activation(used) == Activation(kind)
    else:
        assert used == kind


def test_limits_and_infinities_are_as_the_page_lists_them() -> None:
    one, gate = torch.ones(1), torch.tensor([math.inf], requires_grad=True)
    for kind in (Gated("swiglu", limit=7), Gated("swiglu", limit_after=2)):
        (slope,) = torch.autograd.grad(epigrad.gated_product(one, gate, kind), gate)
        assert slope.item() == 0
    (slope,) = torch.autograd.grad(epigrad.gated_product(one, gate, "swiglu"), gate)
    assert slope.isnan()
    for beta in (-0.5, 0.0, 0.5):
        assert epigrad.xielu(gate, torch.zeros(1), torch.zeros(1), beta).item() == math.inf
    for x, composed in ((-math.inf, 0), (math.inf, 1)):
        assert kinds.at("gelu_tanh", torch.tensor([x]))[1].isnan()
        assert torch.func.grad(lambda x: epigrad.activation(x, "gelu_tanh"))(torch.tensor(x)).item() == composed
    limited = Gated("swiglu", limit_after=2)
    assert torch.func.grad(lambda x: epigrad.gated_product(one[0], x, limited))(gate.detach()[0]).isnan()
