"""Which tier a test is of, and which of many alike `make test` takes.

`make test` leaves out what is marked `thorough` or `nightly`. `make check` runs what is `thorough`
too, and `make nightly` runs what is `nightly`.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.support.repository import ROOT

THIRD = 3
COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests of a run, with those that are left out."""
thorough, nightly = pytest.mark.thorough, pytest.mark.nightly


@functools.cache
def commits() -> int:
    """How many commits lead to the one that is checked out, without those of merged branches: 0
    without git.

    The next commit raises the number by one, so three commits in a row take each third once. A
    commit's hash would leave a third out by chance.
    """
    command = ["git", "rev-list", "--count", "--first-parent", "HEAD"]
    try:
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout or 0)
    except OSError:
        return 0


def has_turn(index: int, of: int, at: int | None = None) -> bool:
    """Whether a commit takes the item of this index, one of every `of`: the checked out commit, or
    the one with `at` commits."""
    return index % of == (commits() if at is None else at) % of


def in_turns(items: Iterable[Any], of: int, mark: pytest.MarkDecorator, name: Callable[[Any], str] = str) -> list[Any]:
    """Parameters of a test, of which all but one of every `of` get the mark of a slower tier."""
    return [
        pytest.param(item, marks=() if has_turn(index, of) else mark, id=name(item)) for index, item in enumerate(items)
    ]


def tier_of(item: pytest.Item) -> str:
    """The first tier that runs a test: "test", "check" or "nightly"."""
    if item.get_closest_marker("nightly"):
        return "nightly"
    return "check" if item.get_closest_marker("thorough") else "test"
