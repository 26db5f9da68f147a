"""Which tier a test is of, and which of many alike `make test` takes.

`make test` leaves out what is marked `thorough` or `nightly`, `make check` what is `nightly`, and
`make nightly` nothing.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from tests.support.repository import ROOT

THIRD = 3
COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests of a run, with those that are left out."""
thorough, nightly = pytest.mark.thorough, pytest.mark.nightly
Item = TypeVar("Item")


@functools.cache
def commits() -> int:
    """How many commits lead to the one that is checked out: 0 without git.

    A number that the next commit raises by one: of things that take turns by it, as many commits in
    a row take all. A commit's hash would leave some out by chance.
    """
    counted = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return int(counted.stdout or 0)


def has_turn(index: int, of: int, at: int | None = None) -> bool:
    """Whether the thing of this number is taken by this commit, or by the one of another count."""
    return index % of == (commits() if at is None else at) % of


def in_turns(items: Iterable[Any], of: int, mark: pytest.MarkDecorator, name: Callable[[Any], str] = str) -> list[Any]:
    """Parameters of a test, of which all but one of every `of` get the mark of a slower tier."""
    return [
        pytest.param(item, marks=() if has_turn(index, of) else mark, id=name(item)) for index, item in enumerate(items)
    ]


def tier_of(item: pytest.Item) -> str:
    """The tier whose `make` runs a test: "nightly" even where a test is marked twice."""
    marks = [mark.name for mark in (nightly, thorough) if item.get_closest_marker(mark.name)]
    return {"nightly": "nightly", "thorough": "check", "": "test"}[(*marks, "")[0]]
