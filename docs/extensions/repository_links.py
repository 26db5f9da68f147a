"""Links of pages that leave the site become links to the repository on GitHub.

The pages also stand in the repository, where they link to each other and to sources by relative
paths. Here each gets a path from the site's root. A path that is not there stays as it is, so that
Sphinx warns of it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/epigrad/epigrad"

# Files and folders for which a page of the site stands.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "docs": "index.md",
    "docs/README.md": "index.md",
    "docs/design": "design/README.md",
    "docs/reference": "reference/index.md",
    "docs/results": "results/README.md",
}

_LINK = re.compile(r"(?P<image>!?)(?P<text>\[[^][]*\])\((?P<path>[^)#\s:]+)(?P<place>#[^)\s]*)?\)")


def resolved(text: str, folder: Path) -> str:
    """A page's text whose links are relative to `folder`, with links for the site."""

    def link(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found["path"]))
        if not path.exists() or not path.is_relative_to(ROOT):
            return found[0]
        inside = path.relative_to(ROOT).as_posix()
        if inside in PAGES:
            target = f"/{PAGES[inside]}"
        elif path.is_relative_to(DOCS) and (found["image"] or path.suffix in (".md", ".ipynb")):
            target = f"/{path.relative_to(DOCS).as_posix()}"
        else:
            target = f"{REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{inside}"
        return f"{found['image']}{found['text']}({target}{found['place'] or ''})"

    return _LINK.sub(link, text)
