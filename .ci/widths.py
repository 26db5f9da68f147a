"""Finds lines that are too wide in the repository's files, by kind of file.

    python .ci/widths.py

prints each as file:line: columns, and fails if there is one. Markdown has at most 120 columns. Tables, code blocks and
lines that are one link may be wider.
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


def prose(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of Markdown that can be broken."""
    in_code = False
    for number, text in lines:
        if text.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not text.lstrip().startswith("|") and not _LINK.fullmatch(text):
            yield number, text


# By the end of a file's name: the most columns, and which lines count.
KINDS: dict[str, tuple[int, Callable[[Iterable[Line]], Iterator[Line]]]] = {".md": (120, prose)}


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
