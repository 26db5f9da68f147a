"""docs/upgrade.md: its new lines run, its sections are the breaks that the CHANGELOG lists, and its
times are of pairs that compute the same. test_pages.py runs the Python."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import turns
from tests.docs.test_pages import blocks, blocks_in
from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "upgrade.md"
_, *_HALVES = re.split(r"^## From (\S+) to (\S+)\n", PAGE.read_text(), flags=re.M)
HALVES = list(zip(_HALVES[::3], _HALVES[1::3], _HALVES[2::3], strict=True))
"""Of each step from a version to the next: both, and its text."""


def test_c_compiles(tmp_path: Path) -> None:
    lines = "\n".join(f"{{\n{block}}}" for block in blocks(PAGE, "c"))
    assert lines
    source = tmp_path / "upgrade.c"
    start = "epg_call call = {.struct_size = sizeof call};"
    source.write_text(f'#include "epigrad.h"\nint main(void) {{\n{start}\n{lines}\nreturn (int)call.flags;\n}}\n')
    compiler = shlex.split(os.environ.get("CC") or "gcc")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-fsyntax-only"]
    include = f"-I{ROOT / 'cbridge' / 'include'}"
    done = subprocess.run([*compiler, *flags, include, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_go_is_that_of_the_examples() -> None:
    """Which `go test` compiles and runs."""

    def code(text: str) -> str:
        lines = (line.strip() for line in text.splitlines())
        return "\n".join(line for line in lines if line and not line.startswith("//"))

    examples = code((ROOT / "go" / "epigrad" / "example_test.go").read_text())
    found = blocks(PAGE, "go")
    assert found
    for block in found:
        assert code(block) in examples


@pytest.mark.parametrize(("old", "text"), [(old, text) for old, _, text in HALVES], ids=lambda value: value[:3])
@pytest.mark.parametrize(("language", "comment"), [("python", "#"), ("sh", "#"), ("c", "/*"), ("go", "//")])
def test_blocks_show_old_lines(language: str, comment: str, old: str, text: str) -> None:
    """All but those of Python, which may prepare what later ones need."""
    shown = [f"{comment} {old}: " in block for block in blocks_in(text, language)]
    assert any(shown) if language == "python" else all(shown)


def slug(heading: str) -> str:
    """The name by which a heading is linked."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize(("new", "text"), [(new, text) for _, new, text in HALVES], ids=lambda value: value[:3])
def test_every_break_of_the_changelog_has_a_section_and_every_section_is_one(new: str, text: str) -> None:
    _, *parts = re.split(r"^## (.+)\n", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    releases = dict(zip(parts[::2], parts[1::2], strict=True))
    release = next((made for heading, made in releases.items() if heading.startswith(new)), releases["Unreleased"])
    changed = re.search(r"^### Changed\n(.*?)^### ", release, re.M | re.S)
    assert changed
    entries = re.split(r"^- ", changed[1], flags=re.M)[1:]
    linked = [re.findall(r"\(docs/upgrade\.md#([\w-]+)\)", entry) for entry in entries]
    assert all(linked), [entry for entry, links in zip(entries, linked, strict=True) if not links]
    plain = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    sections = {slug(heading) for heading in re.findall(r"^### (.+)$", plain, re.M)}
    assert {link for links in linked for link in links} == sections


def test_what_takes_turns_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAYERS", "TENSORS"):
        monkeypatch.setattr(turns, name, {"cpu": getattr(turns, name)["cpu"][:1]})
    monkeypatch.setattr(turns, "ROWS", turns.ROWS[:1])
    torch.manual_seed(0)
    pairs = dict(turns.calls())
    assert len(pairs) == 7 * 2 * 2
    for name, (ours, own) in pairs.items():
        factor = 4 if "bfloat16" in name else 1
        torch.testing.assert_close(ours(), own(), rtol=factor * 1e-2, atol=factor * 1e-2)


def test_rows_of_turns_are_the_calls_that_all_builds_have() -> None:
    found = {
        "0.1": [{"times": {"a": [2.0, 1.0]}}, {"times": {"a": [6.0, 2.0]}}],
        "0.2": [{"times": {"a": [1.0, 2.0], "new": [1.0, 1.0]}}, {"times": {"a": [1.0, 1.0], "new": [1.0, 1.0]}}],
    }
    (row,) = turns.rows_of(found)
    assert row["call"] == "a" and row["ratio"] == {"0.1": 2.5, "0.2": 0.75}
    assert row["0.2"] == [[1.0, 2.0], [1.0, 1.0]]
