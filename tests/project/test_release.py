""".ci/release.py, which the release workflow asks whether a tag, epigrad.h and the CHANGELOG agree."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

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
