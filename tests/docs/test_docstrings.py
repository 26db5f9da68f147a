"""What the documents say is true: examples in docstrings and pages run, and every public name is documented."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import epigrad
import pytest
from epigrad import backward, forward, plan

from tests.support.processes import run_script
from tests.support.repository import ROOT

RESULTS = ROOT / "docs" / "results" / "README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def modules() -> Iterator[ModuleType]:
    yield epigrad
    for info in pkgutil.walk_packages(epigrad.__path__, "epigrad."):
        # gopy's output is generated, and the others are a program and a C module.
        if not info.name.startswith(("epigrad.control", "epigrad.__main__", "epigrad._native")):
            yield importlib.import_module(info.name)


MODULES = {module.__name__: module for module in modules()}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(MODULES[name], optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


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


def blocks() -> list[Any]:
    """The Python blocks of each page of docs, which run one after the other: a page may build on what it showed.

    Those of the README stand alone: test_documents.py.
    """
    found = []
    for page in PAGES[1:]:
        if page.exists():
            texts = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
            if texts:
                found.append(pytest.param(texts, id=page.name))
    return found


@pytest.mark.parametrize("texts", blocks())
def test_python_blocks_of_the_pages_run(texts: list[str]) -> None:
    run_script("\n".join(texts), timeout=180)  # docs/models.md imports transformers


def test_the_readme_shows_python() -> None:
    readme = (ROOT / "README.md").read_text()
    for word in ("make demo", "make test", "```python", "epigrad.backward", "epigrad.plan", "torch.autograd.Function"):
        assert word in readme, f"README.md does not show {word}"


def links(page: Path) -> list[str]:
    """The files that a page links to; code blocks are left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL) if page.exists() else ""
    return re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text)


def test_links_between_pages_lead_somewhere() -> None:
    for page in (*PAGES, *sorted(ROOT.glob("*.md")), RESULTS):
        for target in links(page):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_pages_count_the_rows_of_the_files_that_they_name() -> None:
    told = re.findall(r"Of the (\d+) rows of (\S+\.json), (\d+) are faster than eager", RESULTS.read_text())
    assert told
    for count, name, faster in told:
        rows = json.loads((RESULTS.parent / name).read_text())["rows"]
        assert (len(rows), sum(row["ratio"] < 1 for row in rows)) == (int(count), int(faster)), name
    for page in (*PAGES, RESULTS):
        for count, target in re.findall(r"\[(\d+) rows\]\((\S+\.json)\)", page.read_text()):
            assert len(json.loads((page.parent / target).read_text())["rows"]) == int(count), f"{page.name}: {target}"
