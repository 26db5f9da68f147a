"""The documents tell the truth: their code runs, and what they repeat is what is repeated."""

from __future__ import annotations

import pathlib
import re

import pytest
from epigrad import library

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.split("\n")[3])
def test_python_in_the_readme_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize(("language", "example"), [("go", "examples/go/main.go"), ("c", "examples/c/linear_gelu.c")])
def test_go_and_c_in_the_readme_are_the_examples_own(language: str, example: str) -> None:
    (code,) = blocks(language)
    assert code in (ROOT / example).read_text()


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    match = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert match is not None
    assert match[1] == library.core().version


@pytest.mark.parametrize(
    "path", ["README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/c-api.md", "docs/exporting.md"]
)
def test_files_that_documents_name_exist(path: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / path).read_text(), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:go|kernels|python|tests|cbridge|docs|examples)/[\w./-]+)`", text)
    made = {"go/op/x.go", "examples/demo.png"}  # a name to choose, and what the demo writes
    assert not [name for name in links + named if name not in made and not (ROOT / name).exists()]
