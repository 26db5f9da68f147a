"""`patch` on every class of the installed transformers that is called like a block.

It prints what was left alone and why: ``python -m pytest -s tests/models/test_zoo.py``.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from epigrad.integrations.transformers import patch, unpatch
from torch import nn

from tests.models import zoo
from tests.support.repository import ROOT
from tests.support.tiers import nightly

pytestmark = pytest.mark.usefixtures("_one_thread")
Walked = tuple[dict[str, str], dict[str, list[str]]]
ISSUE = re.compile(r"MLP|Mlp|FeedForward|FFN")
"""The names that issue 26 counts: at least 350 of 468 in transformers 5.24."""


def results(block: nn.Module, width: int) -> dict[str, Any]:
    torch.manual_seed(3)
    x = torch.randn(2, 3, width, dtype=torch.float64).requires_grad_()
    out = block(x)
    leaves = {"input": x, **dict(block.named_parameters())}
    grads = torch.autograd.grad(out.square().sum(), list(leaves.values()), materialize_grads=True)
    return {"output": out.detach(), **dict(zip(leaves, grads, strict=True))}


def assert_computes_the_same(block: nn.Module) -> None:
    """With weights that reach limits, with dropout and without."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    layer = block.get_submodule(block.epigrad_block.read[0])  # type: ignore[union-attr]
    sizes = [getattr(each, name, 0) for each in layer.modules() for name in ("in_features", "nx")]
    width = next(filter(None, sizes))
    for training in (True, False):
        block.train(training)
        patch(block)
        got = results(block, width)
        unpatch(block)
        want = results(block, width)
        for name, value in got.items():
            scale = max(float(want[name].abs().max()), 1e-3)
            assert float((value - want[name]).abs().max()) <= 1e-11 * scale, (type(block).__name__, name)
    patch(block)


@pytest.fixture(scope="module")
def walked() -> Walked:
    """What computes each class's blocks, and the classes that are left alone by the reason."""
    return walk(zoo.classes())


def walk(classes: Iterable[type[nn.Module]]) -> Walked:
    patched: dict[str, str] = {}
    left: dict[str, list[str]] = defaultdict(list)
    for cls in classes:
        block = zoo.instance(cls)
        if block is None:
            left["no instance of it could be made here"].append(cls.__name__)
            continue
        report = patch(block.double())
        if "" in report.patched:
            assert_computes_the_same(block)
            patched[f"{cls.__module__}.{cls.__name__}"] = report.patched[""].partition(" by ")[2]
        else:
            reason = report.left.get("", "").partition(": ")[2]
            left[reason or "it holds blocks, and is none itself"].append(cls.__name__)
    return patched, left


@pytest.mark.parametrize("family", ["llama", "phi", "t5", "bert", "gpt2", "clip"])
def test_the_classes_of_a_family_are_right(family: str) -> None:
    classes = zoo.classes_of(importlib.import_module(f"transformers.models.{family}.modeling_{family}"))
    patched, left = walk(classes)
    assert classes and len(patched) + sum(map(len, left.values())) == len(classes)
    assert patched, left


@nightly
def test_most_classes_are_recognised_proved_and_right(walked: Walked) -> None:
    patched, left = walked
    classes, (_, failed) = zoo.classes(), zoo.modules()
    counted = [name for name in patched if ISSUE.search(name.rpartition(".")[2])]
    of = sum(bool(ISSUE.search(cls.__name__)) for cls in classes)
    print(f"\n{len(patched)} of {len(classes)} classes patched, {len(counted)} of {of} by the names of issue 26")
    for reason, names in sorted(left.items(), key=lambda each: (-len(each[1]), each[0])):
        print(f"  {len(names)} {reason}: {', '.join(sorted(names))}")
    print(*(f"  not imported: {name}: {error}" for name, error in failed.items()), sep="\n")
    assert len(patched) + sum(map(len, left.values())) == len(classes)
    assert len(counted) >= 350 and len(counted) >= 0.75 * of, (len(counted), of)
    assert len(patched) >= 0.78 * len(classes), len(patched)


@nightly
def test_the_page_has_these_numbers(walked: Walked) -> None:
    patched, _ = walked
    page = " ".join((ROOT / "docs" / "models.md").read_text().split())
    found = re.search(r"takes (\d+) of the (\d+) classes in transformers", page)
    assert found is not None and tuple(map(int, found.groups())) == (len(patched), len(zoo.classes()))


@nightly
def test_few_modules_cannot_be_imported() -> None:
    """Only for packages that are not installed here."""
    found, failed = zoo.modules()
    assert len(failed) <= 0.02 * len(found), failed
    assert all("No module named" in error for error in failed.values()), failed


@nightly
def test_few_instances_cannot_be_made(walked: Walked) -> None:
    missing = walked[1]["no instance of it could be made here"]
    assert len(missing) <= 0.03 * len(zoo.classes()), missing
