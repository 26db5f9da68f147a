"""A release: its version, the CHANGELOG and the ABI agree, and .ci/release.py refuses a tag that
does not."""

from __future__ import annotations

import datetime
import re
import runpy
import subprocess
import sys

import epigrad
import pytest
from packaging.version import Version

from tests.support.repository import ROOT

TOOL = ROOT / ".ci" / "release.py"
NOTES = runpy.run_path(str(TOOL))["notes"]
HEADER = '#define EPG_VERSION "{}"\n'
CHANGELOG = """# Changelog

What changed.

## Unreleased

## 1.2.0 (2026-12-31)

- New.

## 1.1.0 (2026-12-01)

- Old.
"""
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_the_notes_are_the_section_of_the_version() -> None:
    assert NOTES("v1.2.0", HEADER.format("1.2.0"), CHANGELOG) == "- New."
    assert NOTES("v1.2.0", HEADER.format("1.2.0"), CHANGELOG.replace("## Unreleased\n\n", "")) == "- New."


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "words"),
    [
        ("v1.2.1", "1.2.0", CHANGELOG, "want the tag v1.2.0"),
        ("1.2.0", "1.2.0", CHANGELOG, "want the tag v1.2.0"),
        ("v1.3.0.dev0", "1.3.0.dev0", CHANGELOG, "no release"),
        ("v1.3.0", "1.3.0", CHANGELOG, "newest release is '1.2.0 (2026-12-31)'"),
        ("v1.2.0", "1.2.0", CHANGELOG.replace(" (2026-12-31)", ""), "want '1.2.0 (year-month-day)'"),
        ("v1.2.0", "1.2.0", CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- Later.\n"), "under Unreleased"),
        ("v1.2.0", "1.2.0", CHANGELOG.replace("- New.\n", ""), "says nothing of 1.2.0"),
        ("v1.2.0", "1.2.0", "# Changelog\n", "newest release is ''"),
    ],
)
def test_what_does_not_agree_is_refused(tag: str, version: str, changelog: str, words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        NOTES(tag, HEADER.format(version), changelog)
    assert words in str(caught.value)


def test_the_program_refuses_what_is_no_tag_of_this_version() -> None:
    done = subprocess.run([sys.executable, TOOL, "v0.0.0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not done.stdout and "want the tag v" in done.stderr


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
