"""Every class of the installed transformers that is called like a block, and blocks of these
classes with small sizes, for the tests of `patch`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from typing import Any

import transformers
from torch import nn

LIKE_A_BLOCK = re.compile(r"MLP|Mlp|FeedForward|FFN|Intermediate$|DenseAct|DenseGated")
SIZE = 16
_SIZE = re.compile(r"size$|features$|^num_")
_LARGE = 40
"""Numbers of a configuration from here on are sizes, and made small."""


@functools.cache
def modules() -> tuple[dict[str, Any], dict[str, str]]:
    """All of transformers' modules with models, and why others could not be imported."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for family in pkgutil.iter_modules(transformers.models.__path__, "transformers.models."):
        if not family.ispkg:
            continue
        folder = importlib.import_module(family.name)
        for each in pkgutil.iter_modules(folder.__path__, f"{family.name}."):
            if ".modeling_" not in each.name:
                continue
            try:
                found[each.name] = importlib.import_module(each.name)
            except ImportError as error:  # a package that is not installed
                failed[each.name] = f"{type(error).__name__}: {error}"
    return found, failed


@functools.cache
def classes() -> tuple[type[nn.Module], ...]:
    """The classes of modules that are called like a block, each where it is defined."""
    return tuple(cls for module in modules()[0].values() for cls in classes_of(module))


def classes_of(module: Any) -> list[type[nn.Module]]:
    """Those of one module."""
    return [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls)
        and cls.__module__ == module.__name__
        and issubclass(cls, nn.Module)
        and LIKE_A_BLOCK.search(cls.__name__)
    ]


def configurations(cls: type[nn.Module]) -> Iterator[Any]:
    """Configurations that a class may take, small ones; that of its annotation first."""
    module = importlib.import_module(cls.__module__)
    try:
        hints = typing.get_type_hints(cls.__init__)
    except (NameError, TypeError):
        hints = {}
    kinds = [each for hint in hints.values() for each in (hint, *typing.get_args(hint))]
    room = cls.__module__.replace(".modeling_", ".configuration_")
    kinds += list(vars(module).values())
    with contextlib.suppress(ImportError):
        kinds += list(vars(importlib.import_module(room)).values())
    seen = set()
    for kind in kinds:
        if inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedConfig) and kind not in seen:
            seen.add(kind)
            if kind is not transformers.PreTrainedConfig:
                try:
                    config = kind()
                except Exception:
                    continue
                yield small(config)
                for name in getattr(kind, "sub_configs", {}):
                    if getattr(config, name, None) is not None:
                        yield small(getattr(config, name))


def small(config: Any) -> Any:
    """A configuration with its sizes made small."""
    config = copy.deepcopy(config)
    for name, value in vars(config).items():
        none = value == 0 and name.endswith(("intermediate_size", "features"))
        if type(value) is int and (value >= _LARGE or none) and not name.endswith("_id"):
            config.__dict__[name] = SIZE
        elif isinstance(value, list) and value and all(type(each) is int for each in value):
            config.__dict__[name] = [min(each, SIZE) for each in value]
    return config


def instance(cls: type[nn.Module]) -> nn.Module | None:
    """A small block of a class; None if nobody knows how to make one."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    for config in (*configurations(cls), None):
        arguments = {}
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if config is not None and ("config" in parameter.name or parameter.name == "args"):
                arguments[parameter.name] = config
            elif parameter.default is parameter.empty or (parameter.default is None and _SIZE.search(parameter.name)):
                arguments[parameter.name] = _value(parameter)
        try:
            return cls(**arguments)
        except Exception:
            continue
    return None


def _value(parameter: inspect.Parameter) -> Any:
    if "idx" in parameter.name or "index" in parameter.name:
        return 0
    if parameter.name.startswith(("act", "hidden_act")):
        return "gelu"
    if "bias" in parameter.name:
        return True
    if "drop" in parameter.name or parameter.annotation in ("float", float):
        return 0.1
    if "layers" in parameter.name:
        return 2
    return SIZE
