"""The documents tell the truth: their code runs, and what they repeat is what is repeated."""

from __future__ import annotations

import datetime
import pathlib
import re

import epigrad
import pytest
from packaging.version import Version

from tests.support.repository import ROOT

README = (ROOT / "README.md").read_text()
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.split("\n")[3])
def test_python_in_the_readme_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize(("language", "example"), [("go", "examples/go/main.go"), ("c", "examples/c/linear_gelu.c")])
def test_go_and_c_in_the_readme_are_the_examples_own(language: str, example: str) -> None:
    (code,) = blocks(language)
    assert code in (ROOT / example).read_text()


def releases() -> list[tuple[Version, datetime.date]]:
    """The dated headings of the CHANGELOG, in its order; every heading but Unreleased is one."""
    found = []
    for heading in HEADINGS:
        if heading != "Unreleased":
            match = re.fullmatch(r"(\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)", heading)
            assert match is not None, f"CHANGELOG.md: '## {heading}', want '## 1.2.3 (2026-12-31)' or '## Unreleased'"
            found.append((Version(match[1]), datetime.date.fromisoformat(match[2])))
    return found


def follows(version: str, newest: str) -> bool:
    """Whether epigrad.h may state a version: the newest release, or a dev version of a later one."""
    stated = Version(version)
    if stated.is_devrelease:
        return Version(stated.base_version) > Version(newest)
    return version == newest


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", True),
        ("0.2.0.dev0", True),
        ("0.1.1.dev0", True),
        ("0.2.0", False),
        ("0.1.0.dev0", False),
        ("0.0.9", False),
        ("0.2.0rc1", False),
    ],
)
def test_a_version_is_the_newest_release_or_on_the_way_to_a_later_one(version: str, expected: bool) -> None:
    assert follows(version, "0.1.0") is expected


def test_the_version_follows_the_newest_release_of_the_changelog() -> None:
    version = epigrad.__version__
    assert str(Version(version)) == version, "a wheel's name would have another"
    assert follows(version, str(releases()[0][0]))


def test_the_changelog_lists_releases_with_the_newest_first() -> None:
    found = releases()
    assert found == sorted(found, reverse=True)
    assert HEADINGS.count("Unreleased") == 1 and HEADINGS[0] == "Unreleased"


def test_the_abi_version_is_the_releases_own() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text()
    promised = {minor: int(abi) for minor, abi in re.findall(r"^\| (\d+\.\d+) \| (\d+) \|$", text, re.M)}
    stated = re.search(r"^#define EPG_ABI_VERSION (\d+)$", (ROOT / "cbridge/include/epigrad.h").read_text(), re.M)
    assert stated is not None
    newest, _ = releases()[0]
    released = promised[f"{newest.major}.{newest.minor}"]
    # On the way to the next release it may be that one's already.
    changes = Version(epigrad.__version__).is_devrelease
    assert int(stated[1]) in ((released, released + 1) if changes else (released,))


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name)
def test_files_that_documents_name_exist(path: pathlib.Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:go|kernels|python|tests|cbridge|docs|examples|\.ci|\.github)/[\w./-]+)`", text)
    made = {"go/op/x.go", "examples/demo.png"}  # a name to choose, and what the demo writes
    assert not [link for link in links if not (path.parent / link).exists()]
    assert not [name for name in named if name not in made and not (ROOT / name).exists()]
