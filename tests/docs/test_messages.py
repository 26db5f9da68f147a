"""Messages name functions, commands and pages that exist. Those that reach Go and C name nothing of
Python."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import epigrad
from epigrad import cli, errors

from benchmarks.__main__ import SUBJECTS
from tests.support.repository import ROOT

NATIVE = [
    path
    for room in ("go", "cbridge")
    for path in sorted((ROOT / room).rglob("*.[cg]*"))
    if path.suffix in (".go", ".c")
    and not path.name.endswith("_test.go")
    and not {"optest", "tools", "pyext", "torch"} & set(path.relative_to(ROOT).parts)
]
"""Sources whose messages reach Go and C; optest is for tests, and Python alone calls pyext and
torch."""

OF_PYTHON = re.compile(r"\b(torch|tensor|epigrad)\.(?!h\b)\w+|\.\w+\(|(?<!= )\bNone\b|\bpython -m\b|\bmethod\b")


def texts(path: Path) -> list[str]:
    """The strings of a file of Python but for docstrings, with {} for what is filled in."""
    tree = ast.parse(path.read_text())
    lone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(_filled(part) for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in lone | parts:
            found.append(node.value)
    return found


def _filled(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return errors.SITE if ast.unparse(part.value) == "errors.SITE" else "{}"


TEXTS = [text for path in sorted((ROOT / "python" / "epigrad").rglob("*.py")) for text in texts(path)]


def test_names_of_the_package_exist() -> None:
    names = {
        name for text in TEXTS if " " in text for name in re.findall(r"(?<!/)\bepigrad((?:\.[a-zA-Z_]\w*)+)", text)
    }
    assert len(names) > 10
    for name in sorted(names):
        found: Any = epigrad
        for part in name.split(".")[1:]:
            if not hasattr(found, part):
                assert importlib.util.find_spec(f"{found.__name__}.{part}"), name
                if part == "torchtitan":
                    break  # it needs torchtitan
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


def test_commands_exist() -> None:
    commands = {"epigrad": set(cli._COMMANDS), "benchmarks": set(SUBJECTS)}
    named = [match for text in TEXTS for match in re.findall(r"python -m (epigrad|benchmarks) ([a-z]+)", text)]
    assert {program for program, _ in named} == {*commands}
    for program, command in named:
        assert command in commands[program], f"python -m {program} {command}"


def test_pages_exist() -> None:
    pages = {page for text in TEXTS for page in re.findall(re.escape(errors.SITE) + r"/([\w/-]+)\.html", text)}
    assert pages
    for page in pages:
        assert (ROOT / "docs" / f"{page}.md").is_file(), page


def test_the_core_speaks_no_python() -> None:
    messages = 0
    for path in NATIVE:
        source = re.sub(r'"\s*\n\s*"', "", path.read_text())
        for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', source):
            if text.count(" ") < 4:
                continue
            messages += 1
            word = OF_PYTHON.search(text.partition("in Python, ")[0])
            assert word is None, f"{path}: {text}: {word}"
    assert messages > 100
