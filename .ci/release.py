#!/usr/bin/env python3
"""Prints what the CHANGELOG says of the release that a tag names: the text of its page on GitHub.

    .ci/release.py TAG

Refuses a tag that is not v and EPG_VERSION, a dev version, a version that is not the CHANGELOG's
newest release, and changes that are still under Unreleased.
"""

import argparse
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]


def version_of(header: str) -> str:
    """EPG_VERSION of epigrad.h."""
    match = re.search(r'^#define EPG_VERSION "(.+)"$', header, re.M)
    if match is None:
        raise SystemExit("epigrad.h does not state EPG_VERSION")
    return match[1]


def sections_of(changelog: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    _, *parts = re.split(r"^## (.+)\n", changelog, flags=re.M)
    return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def notes(tag: str, header: str, changelog: str) -> str:
    """The text of a release, or the end of the program where the tag, the header and the CHANGELOG
    disagree."""
    version = version_of(header)
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag!r}, and epigrad.h states {version!r}: want the tag v{version}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"epigrad.h states {version!r}, which is no release: want three numbers, as in 1.2.3")
    sections = sections_of(changelog)
    if sections.pop("Unreleased", ""):
        raise SystemExit(f"CHANGELOG.md has changes under Unreleased: move them under {version}")
    newest = next(iter(sections), "")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest):
        raise SystemExit(f"CHANGELOG.md: the newest release is {newest!r}, want '{version} (year-month-day)'")
    if not sections[newest]:
        raise SystemExit(f"CHANGELOG.md says nothing of {version}")
    return sections[newest]


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what the CHANGELOG says of a release.")
    parser.add_argument("tag", help="the release's tag, as in v1.2.3")
    header = (ROOT / "cbridge" / "include" / "epigrad.h").read_text()
    print(notes(parser.parse_args().tag, header, (ROOT / "CHANGELOG.md").read_text()))


if __name__ == "__main__":
    main()
