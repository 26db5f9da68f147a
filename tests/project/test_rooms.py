"""The rooms of python/epigrad: imports go down, never in a circle, and a room's docstring names its
modules."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import epigrad

PACKAGE = Path(epigrad.__file__).parent
FLOORS = (  # from the ground up
    ("_core",),
    ("_autograd",),
    ("ops",),
    ("functional", "forward", "backward", "plan", "nn", "parallel"),
    ("integrations",),
    ("__init__",),
    ("_check",),
    ("cli",),
    ("__main__", "instruments"),
)
WORDS = ("errors", "kinds", "webgpu")  # public classes that every floor speaks of
GENERATED = ("control",)


def modules() -> dict[str, Path]:
    """The package's modules by their names after ``epigrad.``; a package is its ``__init__``."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name not in GENERATED]
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in paths}


MODULES = modules()


def module_of(name: str) -> str | None:
    """The module that a full name stands for; None if it stands for something in a module."""
    inner = name.removeprefix("epigrad").removeprefix(".")
    candidates = (inner, f"{inner}.__init__".removeprefix("."))
    return next((module for module in candidates if module in MODULES), None)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a syntax tree but those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from executed(child)


def imports(path: Path, nodes: Callable[[ast.AST], Iterator[ast.AST]] = executed) -> set[str]:
    """The modules of the package that a module imports, functions' imports included."""
    names: list[str] = []
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: a relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [name if module_of(name) else node.module for name in full]
    found = {module_of(name) for name in names if name.split(".")[0] == "epigrad"}
    return {module for module in found if module is not None}


IMPORTS = {module: imports(path) for module, path in MODULES.items()}


def floor_of(module: str) -> int:
    room = module.split(".")[0]
    (floor,) = [number for number, rooms in enumerate(FLOORS) if room in rooms]
    return floor


def test_imports_go_down() -> None:
    arrows = [(module, imported) for module, found in IMPORTS.items() for imported in found]
    floors = [(module, imported) for module, imported in arrows if not {module, imported} & set(WORDS)]
    assert not [f"{module} imports {imported}" for module, imported in floors if floor_of(module) < floor_of(imported)]


def test_imports_make_no_circle() -> None:
    graphlib.TopologicalSorter(IMPORTS).prepare()


def test_check_has_no_circle_for_type_checkers_either() -> None:
    """Its rooms can be read from the ground up."""
    rooms = {module: imports(path, ast.walk) for module, path in MODULES.items() if module.startswith("_check.")}
    graphlib.TopologicalSorter({module: found & rooms.keys() for module, found in rooms.items()}).prepare()


def test_a_room_names_its_modules() -> None:
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            named = [line.split()[0] for line in docstring.splitlines() if re.match(r" {4}\S", line)]
            there = [entry.stem for entry in path.parent.iterdir() if entry.suffix == ".py" or entry.is_dir()]
            public = [name for name in there if not name.startswith("_") and name not in GENERATED]
            assert sorted(named) == sorted(public), module
