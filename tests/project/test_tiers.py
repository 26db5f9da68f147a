"""`make test` has a case of every module, and of whatever parity is tested for."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.support import tiers
from tests.support.cases import BRIEFLY, GATED_BRIEFLY, Case
from tests.support.repository import ROOT

ONLY_AT_NIGHT = {"tests/webgpu/test_page.py": "Chromium", "tests/pytorch/test_torchtitan.py": "torchtitan"}
"""Modules, and what only the night's run installs for them."""


def collected(request: pytest.FixtureRequest) -> list[tuple[pytest.Item, bool]]:
    """The tests of this run, and whether `make test` takes them."""
    return [(item, tiers.tier_of(item) == "test") for item in request.config.stash[tiers.COLLECTED]]


def test_each_module_has_a_quick_case(request: pytest.FixtureRequest) -> None:
    found = collected(request)
    modules = {(str(item.path.relative_to(ROOT)), quick) for item, quick in found}
    assert {path for path, _ in modules} - {path for path, quick in modules if quick} <= set(ONLY_AT_NIGHT)


def test_each_part_of_pytorch_has_a_quick_case(request: pytest.FixtureRequest) -> None:
    names = [
        (name, quick)
        for item, quick in collected(request)
        for mark in item.iter_markers("feature")
        for name in mark.args[0]
    ]
    slow = {name for name, _ in names} - {name for name, quick in names if quick}
    assert slow <= {"AOTInductor"}, "only that of AOTInductor takes a C++ compiler half a minute"


@pytest.mark.parametrize("axis", [field.name for field in fields(Case)])
def test_each_operation_meets_on_each_device_quickly_what_it_ever_meets(
    axis: str, request: pytest.FixtureRequest
) -> None:
    ever, quickly = set(), set()
    for item, quick in collected(request):
        if isinstance(item, pytest.Function) and item.get_closest_marker("parity"):
            case: Case = item.callspec.params["case"]
            met = item.originalname, case.op, case.device, str(getattr(case, axis))
            ever.add(met)
            if quick:
                quickly.add(met)
    assert quickly == ever


@pytest.mark.parametrize("kinds", [BRIEFLY, GATED_BRIEFLY], ids=["activations", "gated kinds"])
def test_three_commits_in_a_row_take_all_kinds(kinds: tuple[object, ...]) -> None:
    for first in (7, tiers.commits()):
        taken = [
            [kind for kind in kinds if tiers.has_turn(kinds.index(kind), 3, commit)]
            for commit in range(first, first + 3)
        ]
        assert sorted(str(kind) for part in taken for kind in part) == sorted(map(str, kinds))
        assert min(map(len, taken)) >= len(kinds) // 3 > 0


def test_the_commits_are_counted() -> None:
    assert tiers.commits() > 0 or not (ROOT / ".git").exists()
