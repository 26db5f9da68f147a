"""Every public name has a docstring, whose examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import epigrad
import pytest
from epigrad import backward, forward, plan


def modules() -> Iterator[ModuleType]:
    yield epigrad
    for info in pkgutil.walk_packages(epigrad.__path__, "epigrad."):
        # gopy's output is generated, then come a program and a C module; the last needs torchtitan
        # (tests/pytorch/test_torchtitan.py).
        if not info.name.startswith(
            ("epigrad.control", "epigrad.__main__", "epigrad._native", "epigrad.integrations.torchtitan")
        ):
            yield importlib.import_module(info.name)


MODULES = {module.__name__: module for module in modules()}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(MODULES[name]).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_documented_and_list_real_names(name: str) -> None:
    module = MODULES[name]
    assert module.__doc__, f"{name} has no docstring"
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.__all__ names {public}"


FUNCTIONS: dict[str, Any] = {
    **{
        f"epigrad.{name}": getattr(epigrad, name)
        for name in epigrad.__all__
        if inspect.isfunction(getattr(epigrad, name))
    },
    **{f"forward.{name}": getattr(forward, name) for name in forward.__all__},
    **{f"backward.{name}": getattr(backward, name) for name in backward.__all__},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_arguments_errors_source_and_an_example(name: str) -> None:
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    arguments = list(inspect.signature(function).parameters)
    for argument in arguments:
        assert re.search(rf"^\s+{argument}: ", text, re.MULTILINE), f"{name}: {argument} is not described"
    for section in ("Returns:", "Raises:", "Examples:"):
        assert section in text, f"{name}: no {section}"
    assert ">>> " in text
    if name != "epigrad.backends":
        assert "Source:" in text, f"{name}: no source of the formula"
        assert "float32" in text and "bfloat16" in text, f"{name}: the dtypes are not named"


CLASSES = [
    *(getattr(plan, name) for name in plan.__all__ if hasattr(getattr(plan, name), "select")),
    *(getattr(epigrad.nn, name) for name in epigrad.nn.__all__),
    epigrad.use_backend,
    epigrad.tuning,
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_classes_have_an_example(cls: type) -> None:
    assert ">>> " in (cls.__doc__ or "")
