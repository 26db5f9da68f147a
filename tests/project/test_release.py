"""A release: its version, the CHANGELOG and the ABI agree, .ci/release.py refuses a tag that does
not and archives that must not be published, and `make release` does what the workflow does."""

from __future__ import annotations

import datetime
import hashlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import epigrad
import pytest
from packaging.version import Version

from tests.support.repository import ROOT

TOOL = ROOT / ".ci" / "release.py"
PROGRAM = runpy.run_path(str(TOOL))
HEADER = '#define EPG_VERSION "{}"\n'
SOURCE = "https://example.org/epigrad"
CHANGELOG = """# Changelog

What changed.

## Unreleased

## 1.2.0 (2026-12-31)

- New.

## 1.1.0 (2026-12-01)

- Old.
"""
LATER = CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- Later.\n")
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def notes(tag: str | None, version: str, changelog: str = CHANGELOG, dry: bool = False) -> str:
    text: str = PROGRAM["notes"](tag, dry, HEADER.format(version), changelog, SOURCE)
    return text


@pytest.mark.parametrize("tag", ["v1.2.0", None])
def test_the_notes_are_the_section_of_the_version(tag: str | None) -> None:
    assert notes(tag, "1.2.0") == "- New."
    assert notes(tag, "1.2.0", CHANGELOG.replace("## Unreleased\n\n", "")) == "- New."


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "words"),
    [
        ("v1.2.1", "1.2.0", CHANGELOG, "want the tag v1.2.0"),
        ("1.2.0", "1.2.0", CHANGELOG, "want the tag v1.2.0"),
        ("v1.3.0.dev0", "1.3.0.dev0", CHANGELOG, "no release"),
        (None, "1.3.0.dev0", LATER, "no release"),
        ("v1.3.0", "1.3.0", CHANGELOG, "newest release is '1.2.0 (2026-12-31)'"),
        ("v1.2.0", "1.2.0", CHANGELOG.replace(" (2026-12-31)", ""), "want '1.2.0 (year-month-day)'"),
        ("v1.2.0", "1.2.0", LATER, "under Unreleased"),
        ("v1.2.0", "1.2.0", CHANGELOG.replace("- New.\n", ""), "says nothing of 1.2.0"),
        ("v1.2.0", "1.2.0", "# Changelog\n", "newest release is ''"),
    ],
)
def test_what_does_not_agree_is_refused(tag: str | None, version: str, changelog: str, words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        notes(tag, version, changelog)
    assert words in str(caught.value)


def test_a_dev_version_is_tried_with_what_is_unreleased() -> None:
    assert notes(None, "1.3.0.dev0", LATER, dry=True) == "- Later."
    for version, changelog, words in (
        ("1.3.0.dev0", CHANGELOG, "nothing under Unreleased"),
        ("1.2.0", LATER, "only a dev version is tried"),
    ):
        with pytest.raises(SystemExit, match=words):
            notes(None, version, changelog, dry=True)


def test_the_page_has_no_broken_lines_and_links_to_the_release() -> None:
    text = """One, as
[a page](docs/a.md#b) says.

### New

- **First**, with
  a [second line](https://example.org/x).
  - Below it,
    wrapped.
- Last. [Here](#new)

| a | b |
|---|---|
| c | d |

```sh
make
  release
```
End."""
    want = f"""One, as [a page]({SOURCE}/blob/v1.2.0/docs/a.md#b) says.

### New

- **First**, with a [second line](https://example.org/x).
  - Below it, wrapped.
- Last. [Here](#new)

| a | b |
|---|---|
| c | d |

```sh
make
  release
```
End."""
    assert PROGRAM["page"](text, SOURCE, "v1.2.0") == want


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*arguments], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_program_refuses_what_is_no_tag_of_this_version() -> None:
    done = run(sys.executable, str(TOOL), "notes", "v0.0.0")
    assert done.returncode == 1 and not done.stdout and "want the tag v" in done.stderr


def test_no_page_of_a_release_links_to_a_file_by_a_relative_path() -> None:
    for text in PROGRAM["sections_of"]((ROOT / "CHANGELOG.md").read_text()).values():
        assert not re.search(r"\]\((?!https://|#)", PROGRAM["page"](text, SOURCE, "v1.2.0"))


# --- archives -------------------------------------------------------------------------------------

WHEEL, SDIST = "epigrad-1.2.0-cp311-abi3-manylinux_2_28_x86_64.whl", "epigrad-1.2.0.tar.gz"


def test_archives_are_listed_with_their_sums(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(bytes(2_500_000))
    (tmp_path / SDIST).write_bytes(b"sdist")
    (tmp_path / "notes.txt").write_text("no archive")
    assert PROGRAM["archives"](tmp_path, "1.2.0").splitlines() == [
        f"{hashlib.sha256(bytes(2_500_000)).hexdigest()}    2.5 MB  {WHEEL}",
        f"{hashlib.sha256(b'sdist').hexdigest()}    0.0 MB  {SDIST}",
    ]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({SDIST: 1}, "has no *.whl"),
        ({WHEEL: 1}, "has no *.tar.gz"),
        ({WHEEL: 1, SDIST: 1, WHEEL.replace("1.2.0", "1.2.0.dev0"): 1}, "want version 1.2.0"),
        ({WHEEL: 1, SDIST: 1, "epigrad-1.1.0.tar.gz": 1}, "epigrad-1.1.0.tar.gz: want version 1.2.0"),
        ({WHEEL: 25_000_001, SDIST: 1}, "25.0 MB, want at most 25 MB"),
    ],
)
def test_archives_that_must_not_be_published_are_refused(tmp_path: Path, sizes: dict[str, int], words: str) -> None:
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(SystemExit) as caught:
        PROGRAM["archives"](tmp_path, "1.2.0")
    assert words in str(caught.value)


def test_the_documents_state_the_largest_wheel() -> None:
    limit = f"A wheel has at most {PROGRAM['LARGEST_WHEEL'] / 1e6:.0f} MB."
    for page in ("CONTRIBUTING.md", "docs/performance.md"):
        assert limit in (ROOT / page).read_text(), page


# --- make release ---------------------------------------------------------------------------------


def test_make_release_refuses_before_it_builds() -> None:
    done = run("make", "release", "TAG=v0.0.0", f"PYTHON={sys.executable}")
    assert done.returncode and "want the tag v" in done.stderr and "building" not in done.stdout


def test_make_release_does_what_the_workflow_does() -> None:
    """In its order; `make check-install` makes wheel and sdist first."""
    recipe = (ROOT / "Makefile").read_text().partition("\nrelease: ")[2].partition("\n\n")[0]
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    ours = [".ci/release.py notes", "build/checked", "$(MAKE) check-install"]
    theirs = [".ci/release.py notes", "check.yml", "make wheel sdist", ".ci/check-install"]
    for text, words in ((recipe, ours), (workflow, theirs)):
        places = [text.find(word) for word in words]
        assert -1 not in places and places == sorted(places)


# --- versions -------------------------------------------------------------------------------------


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
    """Whether epigrad.h may state a version: the newest release, or a dev version of a later
    one."""
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
