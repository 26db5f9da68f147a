#!/usr/bin/env python3
"""Finds lines that are too wide in the repository's files, by kind of file.

    python .ci/widths.py

prints each as file:line: columns, and fails if there is one. Markdown has at most 120 columns,
a comment 100: in Go, C, CUDA and WGSL, in the Makefile, in .ci's scripts, in TOML and YAML (ruff
holds Python's). What cannot be broken may be wider: tables, code blocks, a line that is one link,
code in a comment, what a program has written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

Line = tuple[int, str]
"""A line's number and text."""

_LINK = re.compile(r"\s*(?:[-*] )?!?\[[^]]*\]\([^)]*\)[.,;:]?")
_COMMENT = re.compile(r"\s*(?://(?! #cgo)|/\*|\* )(?! {2}|\t)|.*\s(?://|/\*)\s")
_HASH_COMMENT = re.compile(r"\s*#(?! {2})|.*\s# ")
_GENERATED = re.compile(r"// Code generated .* DO NOT EDIT\.")


def prose(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of Markdown that can be broken."""
    in_code = False
    for number, text in lines:
        if text.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not text.lstrip().startswith("|") and not _LINK.fullmatch(text):
            yield number, text


def comments(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of source code that are a comment or end in one; a tab is four columns."""
    for number, text in lines:
        if number == 1 and _GENERATED.fullmatch(text):
            return
        if _COMMENT.match(text):
            yield number, text.expandtabs(4)


def hash_comments(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of scripts and settings that are a comment or end in one."""
    return ((number, text) for number, text in lines if _HASH_COMMENT.match(text))


Kind = tuple[int, Callable[[Iterable[Line]], Iterator[Line]]]
"""The most columns, and which lines count."""

# By the pattern of the files' names.
KINDS: dict[str, Kind] = {"*.md": (120, prose)}
KINDS |= dict.fromkeys(("*.go", "*.c", "*.h", "*.cpp", "*.cu", "*.cuh", "*.wgsl"), (100, comments))
KINDS |= dict.fromkeys(("Makefile", ".ci/*", "*.toml", "*.yml", "*.yaml"), (100, hash_comments))


def files(pattern: str) -> list[Path]:
    """The repository's files with such a name."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    return [path for path in map(Path, names) if path.exists()]


def too_wide(path: Path, kind: Kind) -> Iterator[str]:
    """A message for each line of a file that is too wide."""
    most, counted = kind
    for number, text in counted(enumerate(path.read_text().splitlines(), 1)):
        if len(text) > most:
            yield f"{path}:{number}: {len(text)} columns, want at most {most}"


def main() -> None:
    wide = [line for pattern, kind in KINDS.items() for path in files(pattern) for line in too_wide(path, kind)]
    sys.exit("\n".join(wide) or None)


if __name__ == "__main__":
    main()
