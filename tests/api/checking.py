"""Problems of `epigrad check`, and defects that are planted for it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from epigrad._check import search
from epigrad._check.operations import OPERATIONS
from epigrad._check.problem import EXAMPLE, Problem
from epigrad._core import tables


def wrong_in(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """Plants a defect: what a function gives goes through `change`, with the call's arguments."""
    own = getattr(module, name)

    def defective(*arguments: Any, **options: Any) -> Any:
        return change(own(*arguments, **options), *arguments, **options)

    monkeypatch.setattr(module, name, defective)


def example_of(op: str, dtype: str = "float32") -> str:
    """A small problem of an operation, as text."""
    kind = {"gated": "kind=swiglu ", "": ""}.get(tables.OPS[op].kinds, "kind=gelu ")
    return f"{op} {kind}dtype={dtype} sizes={'x'.join(map(str, EXAMPLE[: len(OPERATIONS[op])]))}"


def found(mode: str, op: str, entry: str = "stateless", count: int = 200) -> str:
    """What is wrong with the first problem of an operation that fails, called in this way."""
    some = (problem for problem in search.problems(mode, "cpu", 0) if problem.op == op)
    for problem in itertools.islice(some, count):
        if wrong := search.verdict(mode, dataclasses.replace(problem, entry=entry), "cpu"):
            return wrong
    return ""


def some_of(count: int, **fields: Any) -> list[Problem]:
    """Problems with these fields, of those that a seed draws with them."""
    every = itertools.islice(search.problems("correct", "cpu", 2), 3000)
    some = (each for each in every if all(getattr(each, name) == value for name, value in fields.items()))
    return list(itertools.islice(some, count))
