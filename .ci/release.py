#!/usr/bin/env python3
"""What a release says of itself, and what it publishes.

    .ci/release.py notes [TAG]       prints the text of the release's page on GitHub
    .ci/release.py notes --dry       the same of a dev version: what is under Unreleased
    .ci/release.py archives [FOLDER] prints the sizes and the SHA-256 of what is in dist

`notes` refuses a tag that is not v and EPG_VERSION, a dev version, a version that is not the
CHANGELOG's newest release, and changes that are still under Unreleased. `archives` refuses a folder
without a wheel or an sdist, one of another version, and a wheel that is too large.
"""

import argparse
import hashlib
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]

# What a user downloads at most, in bytes.
LARGEST_WHEEL = 25_000_000

# A line that is none of the paragraph's before it, and one that no other line continues.
BEGINS = re.compile(r"\s*([-*+] |\d+\. |#+ |\||>|<!--|```|$)")
STANDS_ALONE = re.compile(r"\s*(#+ |\||<!--|```|$)")


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


def released(tag: str, version: str, sections: dict[str, str]) -> str:
    """What the CHANGELOG says of a release, or the end of the program where the tag, the version
    and the CHANGELOG disagree."""
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag!r}, and epigrad.h states {version!r}: want the tag v{version}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"epigrad.h states {version!r}, which is no release: want three numbers, as in 1.2.3")
    if sections.pop("Unreleased", ""):
        raise SystemExit(f"CHANGELOG.md has changes under Unreleased: move them under {version}")
    newest = next(iter(sections), "")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest):
        raise SystemExit(f"CHANGELOG.md: the newest release is {newest!r}, want '{version} (year-month-day)'")
    if not sections[newest]:
        raise SystemExit(f"CHANGELOG.md says nothing of {version}")
    return sections[newest]


def unreleased(version: str, sections: dict[str, str]) -> str:
    """What the CHANGELOG says of the release that a dev version leads to."""
    if not re.fullmatch(r"\d+\.\d+\.\d+\.dev\d+", version):
        raise SystemExit(f"epigrad.h states {version!r}: only a dev version is tried, as in 1.2.3.dev0")
    if not sections.get("Unreleased"):
        raise SystemExit("CHANGELOG.md has nothing under Unreleased")
    return sections["Unreleased"]


def page(text: str, source: str, tag: str) -> str:
    """A text as the page of a release shows it: GitHub breaks lines there where the text does, and
    knows no files of the repository."""
    lines: list[str] = []
    in_code = False
    for line in text.split("\n"):
        if in_code or not lines or BEGINS.match(line) or STANDS_ALONE.match(lines[-1]):
            lines.append(line)
        else:
            lines[-1] += f" {line.strip()}"
        in_code ^= line.lstrip().startswith("```")
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({source}/blob/{tag}/", "\n".join(lines))


def notes(tag: str | None, dry: bool, header: str, changelog: str, source: str) -> str:
    """The text of a release's page; without a tag that of the version's own."""
    version, sections = version_of(header), sections_of(changelog)
    if dry:
        return page(unreleased(version, sections), source, f"v{version.partition('.dev')[0]}")
    tag = tag or f"v{version}"
    return page(released(tag, version, sections), source, tag)


def archives(folder: pathlib.Path, version: str) -> str:
    """A line for each archive, or the end of the program where one must not be published."""
    found = sorted(path for path in folder.glob("*") if path.name.endswith((".whl", ".tar.gz")))
    for ending in (".whl", ".tar.gz"):
        if not any(path.name.endswith(ending) for path in found):
            raise SystemExit(f"{folder} has no *{ending}: make wheel sdist")
    lines = []
    for path in found:
        if not path.name.startswith((f"epigrad-{version}-", f"epigrad-{version}.tar.gz")):
            raise SystemExit(f"{path.name}: want version {version}: remove it, then make wheel sdist")
        size = path.stat().st_size
        if path.suffix == ".whl" and size > LARGEST_WHEEL:
            raise SystemExit(f"{path.name}: {size / 1e6:.1f} MB, want at most {LARGEST_WHEEL / 1e6:.0f} MB")
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {size / 1e6:5.1f} MB  {path.name}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a release says of itself, and what it publishes.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("notes", help="print the text of the release's page")
    command.add_argument("tag", nargs="?", help="the release's tag, as in v1.2.3; default: epigrad.h's version")
    command.add_argument("--dry", action="store_true", help="of a dev version: print what is under Unreleased")
    command = commands.add_parser("archives", help="print sizes and SHA-256, and refuse what must not be published")
    command.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "dist")
    args = parser.parse_args()
    header = (ROOT / "cbridge" / "include" / "epigrad.h").read_text()
    if args.command == "archives":
        print(archives(args.folder, version_of(header)))
        return
    if args.tag and args.dry:
        parser.error("--dry is of no tag")
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    print(notes(args.tag, args.dry, header, (ROOT / "CHANGELOG.md").read_text(), source))


if __name__ == "__main__":
    main()
