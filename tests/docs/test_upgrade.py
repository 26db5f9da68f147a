"""docs/upgrade.md: its new lines run, its sections are the breaks that the CHANGELOG lists, and its
tables are those of the records. test_pages.py runs the Python."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import turns
from tests.docs.test_pages import blocks
from tests.support.repository import ROOT
from tests.tools import versions

PAGE = ROOT / "docs" / "upgrade.md"


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


@pytest.mark.parametrize(("language", "comment"), [("python", "#"), ("sh", "#"), ("c", "/*"), ("go", "//")])
def test_blocks_show_old_lines(language: str, comment: str) -> None:
    """All but those of Python, which may prepare what later ones need."""
    shown = [f"{comment} 0.1: " in block for block in blocks(PAGE, language)]
    assert any(shown) and (language == "python" or all(shown))


def slug(heading: str) -> str:
    """The name by which a heading is linked."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_break_of_the_changelog_has_a_section_and_every_section_is_one() -> None:
    _, *parts = re.split(r"^## (.+)\n", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    releases = dict(zip(parts[::2], parts[1::2], strict=True))
    release = next((text for heading, text in releases.items() if heading.startswith("0.2.0 ")), releases["Unreleased"])
    changed = re.search(r"^### Changed\n(.*?)^### ", release, re.M | re.S)
    assert changed
    entries = re.split(r"^- ", changed[1], flags=re.M)[1:]
    linked = [re.findall(r"\(docs/upgrade\.md#([\w-]+)\)", entry) for entry in entries]
    assert all(linked), [entry for entry, links in zip(entries, linked, strict=True) if not links]
    text = re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.M | re.S)
    sections = {slug(heading) for heading in re.findall(r"^### (.+)$", text, re.M)}
    assert {link for links in linked for link in links} - {"c"} == sections


def test_what_takes_turns_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGER_LAYERS", "EAGER_TENSORS"):
        monkeypatch.setattr(turns, name, {"cpu": getattr(turns, name)["cpu"][:1]})
    torch.manual_seed(0)
    pairs = dict(turns.eager_calls())
    assert len(pairs) == 5 * 2 * 2
    for name, (ours, own) in pairs.items():
        assert name.count(", ") == 3, "versions.py takes it apart"
        factor = 4 if "bfloat16" in name else 1
        torch.testing.assert_close(ours(), own(), rtol=factor * 1e-2, atol=factor * 1e-2)


def test_rows_of_turns_are_the_calls_that_all_builds_have() -> None:
    found = {
        "0.1": [{"times": {"a": [2.0, 1.0]}}, {"times": {"a": [6.0, 2.0]}}],
        "0.2": [{"times": {"a": [1.0, 2.0], "new": [1.0, 1.0]}}, {"times": {"a": [1.0, 1.0], "new": [1.0, 1.0]}}],
    }
    (row,) = turns.rows_of(found, "eager")
    assert row["call"] == "a" and row["ratio"] == {"0.1": 2.5, "0.2": 0.75}
    assert row["0.2"] == [[1.0, 2.0], [1.0, 1.0]]


def test_a_table_of_turns_shows_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = (
        ("linear gelu, 1x2x3, float32, forward", 2, 1),
        ("linear gelu, 4x5x6, float32, forward", 1.5, 0.25),
        ("lerp, 7x8, float32, forward", 1, 1.125),
        ("lerp, 9x9, float32, forward", 3, 4),
        ("lerp, 7x8, float64, forward", 5, 6),
        ("lerp, 9x9, float64, forward", 7, 8),
    )
    record: dict[str, Any] = {
        "device": "CPU",
        "threads": 2,
        "torch": "2.15.0+cu132",
        "geometric_mean": {"0.1": 1.25, "0.2": 0.5},
        "rows": [{"call": call, "ratio": {"0.1": old, "0.2": new}} for call, old, new in calls],
    }
    monkeypatch.setattr(versions, "DOCS", tmp_path)
    monkeypatch.setattr(versions, "load", lambda _: record)
    assert versions.turns_table(tmp_path / "results" / "a-versions.json").splitlines() == [
        "[CPU, 2 threads](results/a-versions.json), PyTorch 2.15.0.",
        "The geometric means of all are 1.25, 0.50.",
        "",
        "| operation | dtype | direction | 1x2x3 | 4x5x6 |",
        "|---|---|---|---|---|",
        "| linear gelu | float32 | forward | 2.00, 1.00 | 1.50, 0.25 |",
        "",
        "| operation | dtype | direction | 7x8 | 9x9 |",
        "|---|---|---|---|---|",
        "| lerp | float32 | forward | 1.00, 1.12 | 3.00, 4.00 |",
        "| lerp | float64 | forward | 5.00, 6.00 | 7.00, 8.00 |",
    ]
    del record["threads"]  # of a GPU
    assert versions.turns_table(tmp_path / "results" / "a-versions.json").startswith("[CPU](results/a-versions.json), ")


def test_records_of_other_machines_do_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> dict[str, Any]:
        return {"device": path.name, "driver": "1", "cuda": "2", "versions": {"torch": "3"}, "rows": []}

    monkeypatch.setattr(versions, "load", load)
    with pytest.raises(SystemExit, match="do not compare"):
        versions.gpu_table()
