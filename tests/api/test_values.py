"""Values never change: kinds, what plans and backends tell of themselves, reports and the like."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import epigrad
import pytest


def classes() -> Iterator[type[Any]]:
    """The classes of the package whose instances are values: frozen dataclasses, named tuples."""
    for module in pkgutil.walk_packages(epigrad.__path__, "epigrad."):
        if module.name.startswith(("epigrad.control", "epigrad.__main__", "epigrad.integrations.torchtitan")):
            continue
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            frozen = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
            if cls.__module__ == module.name and (frozen or (issubclass(cls, tuple) and hasattr(cls, "_fields"))):
                yield cls


def exported(module: ModuleType) -> Iterator[Any]:
    """What a module names in its `__all__`, and the modules that it names there."""
    for name in module.__all__:
        found = getattr(module, name)
        yield found
        if isinstance(found, ModuleType):
            yield from exported(found)


CLASSES = list(classes())
PUBLIC = [cls for cls in CLASSES if cls in set(filter(inspect.isclass, exported(epigrad)))]


def blank(cls: type[Any]) -> Any:
    return tuple.__new__(cls) if issubclass(cls, tuple) else object.__new__(cls)


def test_the_walk_finds_what_users_meet() -> None:
    found = {cls.__name__ for cls in PUBLIC}
    assert found >= {"Activation", "Gated", "KernelSku", "PrecisionGuarantee", "BackendInfo", "Report"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_no_attribute_of_a_value_can_be_set_or_deleted(cls: type[Any]) -> None:
    value = blank(cls)
    # a frozen dataclass with slots has TypeError for what is not its own
    for name in ("of_nobody", *inspect.get_annotations(cls)):
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, 1)
        with pytest.raises((AttributeError, TypeError)):
            delattr(value, name)


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_a_value_that_users_meet_says_that_it_never_changes(cls: type[Any]) -> None:
    value = blank(cls)
    for name in ("slope", "name", "kind", "__doc__"):
        with pytest.raises(AttributeError, match=rf"^{cls.__name__}: {name}: got a new value, .* make another$"):
            setattr(value, name, 0.3)
        with pytest.raises(AttributeError, match=rf"^{cls.__name__}: {name}: got a deletion, .* make another$"):
            delattr(value, name)
