"""Parses the source of a function, and checks that it is the code that runs."""

from __future__ import annotations

import ast
import inspect
import types
import weakref
from typing import Any

from epigrad._core.projections import class_name


class Unknown(Exception):  # noqa: N818  (an answer, no error)
    """The reason why a forward is not understood, as text for a report."""


_definitions: weakref.WeakKeyDictionary[types.CodeType, ast.FunctionDef | str] = weakref.WeakKeyDictionary()


def definition(function: Any) -> ast.FunctionDef:
    """The parsed definition of a function.

    Raises:
        Unknown: there is no source, or compiling it gives other code than the function runs.
    """
    if not inspect.isfunction(function):
        raise Unknown(f"its forward is a {class_name(function)}")
    if hasattr(function, "__wrapped__") or function.__closure__:
        raise Unknown("its forward is behind a decorator, or uses super()")
    code = function.__code__
    if code not in _definitions:
        try:
            _definitions[code] = _parsed(function)
        except Unknown as error:
            _definitions[code] = str(error)
    found = _definitions[code]
    if isinstance(found, str):
        raise Unknown(found)
    return found


def _parsed(function: types.FunctionType) -> ast.FunctionDef:
    try:
        source = inspect.getsource(function)
        # Not dedented, which would change docstrings.
        (found,) = ast.parse(source if source[:1].strip() else f"if True:\n{source}").body
    except (OSError, TypeError, SyntaxError, ValueError):
        raise Unknown("its forward has no source") from None
    if isinstance(found, ast.If):
        (found,) = found.body
    if not isinstance(found, ast.FunctionDef) or found.decorator_list:
        raise Unknown("its forward is behind a decorator")
    # Python compiles a call of a module's function in another way if the file imports the module.
    modules = [name for name, value in function.__globals__.items() if isinstance(value, types.ModuleType)]
    imports = ast.parse("".join(f"import {name}\n" for name in modules if name.isidentifier())).body
    if not any(_same(_compiled([*before, found]), function.__code__) for before in (imports, [])):
        raise Unknown("its forward is not what its source file says")
    return found


def _compiled(body: list[ast.stmt]) -> types.CodeType:
    """The code object of the last statement, which is a definition."""
    whole = compile(ast.Module(body, []), "<forward>", "exec", dont_inherit=True)
    return [each for each in whole.co_consts if isinstance(each, types.CodeType)][-1]


def _same(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two functions without closures have the same code."""
    parts = ("co_code", "co_names", "co_varnames", "co_consts", "co_freevars", "co_argcount", "co_kwonlyargcount")
    return all(getattr(a, part) == getattr(b, part) for part in parts)
