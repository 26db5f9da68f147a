"""Finds lines that are too wide in the repository's files, by kind of file.

    python .ci/widths.py

prints each as file:line: columns, and fails if there is one. Markdown has at most 120 columns,
a comment of Go, C, CUDA or WGSL 100 (ruff holds Python's). What cannot be broken may be wider:
tables, code blocks, a line that is one link, code in a comment, what a program has written.
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


# By the end of a file's name: the most columns, and which lines count.
KINDS: dict[str, tuple[int, Callable[[Iterable[Line]], Iterator[Line]]]] = {".md": (120, prose)}
KINDS |= dict.fromkeys((".go", ".c", ".h", ".cpp", ".cu", ".cuh", ".wgsl"), (100, comments))


def too_wide(path: Path) -> Iterator[str]:
    """A message for each line of a file that is too wide."""
    most, counted = KINDS[path.suffix]
    for number, text in counted(enumerate(path.read_text().splitlines(), 1)):
        if len(text) > most:
            yield f"{path}:{number}: {len(text)} columns, want at most {most}"


def main() -> None:
    patterns = [f"*{kind}" for kind in KINDS]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    paths = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    sys.exit("\n".join(message for path in paths if Path(path).exists() for message in too_wide(Path(path))) or None)


if __name__ == "__main__":
    main()
