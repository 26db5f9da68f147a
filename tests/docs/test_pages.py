"""The documents tell the truth: their code runs, and what they name is there."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

from tests.support.processes import run_script, start, torchtitan_path
from tests.support.repository import ROOT
from tests.support.tiers import in_turns, nightly, thorough
from tests.tools import gains, pages, readme, records

README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
HOWTO = sorted((ROOT / "docs" / "howto").glob("*.md"))
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
STALE = "a page is stale: python -m tests.tools.pages"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *DOCS,
    *HOWTO,
    *DESIGN,
    RESULTS,
    ROOT / "tests" / "README.md",
]


def blocks(page: Path, language: str) -> list[str]:
    return blocks_in(page.read_text(), language)


def blocks_in(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize("code", blocks(README, "python"), ids=lambda code: code.split("\n")[3])
def test_python_in_the_readme_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And prints what the comments on lines of their own say."""
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "".join(f"{line[2:]}\n" for line in code.splitlines() if line.startswith("# ")) in capsys.readouterr().out


WITH_PYTHON = [page for page in DOCS if blocks(page, "python")]


def test_the_readme_shows_python() -> None:
    page = README.read_text()
    for word in ("make demo", "make test", "```python", "epigrad.backward", "epigrad.plan", "torch.autograd.Function"):
        assert word in page, f"README.md does not show {word}"


@pytest.mark.parametrize("page", in_turns(WITH_PYTHON, len(WITH_PYTHON), thorough, lambda page: page.name))
def test_python_in_the_docs_runs(page: Path) -> None:
    """A page's blocks run one after the other: a page may build on what it showed."""
    # docs/models.md imports transformers
    run_script("\n".join(blocks(page, "python")), timeout=180)


PLAIN, PROCESSES, TORCHTITAN, GPU = "", "runs as two processes", "runs with torchtitan", "needs a GPU"
MODEL = "with a model of yours"


def programs(page: Path, *marks: str) -> list[str]:
    """A page's blocks of Python whose mark is one of these: the comment on the line before."""
    found = re.findall(r"(?:^<!-- ([^\n]*) -->\n)?^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    return [code for mark, code in found if mark in marks]


def test_blocks_of_howto_pages_have_known_marks_and_are_python() -> None:
    for page in HOWTO:
        known = programs(page, PLAIN, PROCESSES, TORCHTITAN, GPU, MODEL)
        assert known and known == blocks(page, "python"), f"{page.name}: no program, or an unknown mark"
        for code in known:
            compile(code, page.name, "exec")  # all that a machine without a GPU can say of some


# Half of the pages import transformers, which takes longer than they do.
@pytest.mark.parametrize("with_transformers", [False, True])
@thorough
def test_python_in_the_howto_pages_runs(with_transformers: bool) -> None:
    """A page's blocks run one after the other, and the pages in one process."""
    marks = (PLAIN, GPU) if torch.cuda.is_available() else (PLAIN,)
    script = ""
    for page in HOWTO:
        codes = programs(page, *marks)
        if with_transformers == any("transformers" in code for code in codes):
            script += f"page = {{'__name__': {page.stem!r}}}\n"
            script += "".join(f"exec(compile({code!r}, {page.name!r}, 'exec'), page)\n" for code in codes)
    run_script(script, timeout=600)


@thorough
def test_the_lines_to_copy_run_on_a_model() -> None:
    """Those at the top of pages about a model that the reader has."""
    script = """
        import timm
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)
        llama = LlamaForCausalLM(LlamaConfig(**sizes))
        sizes = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=3)
        vision = timm.models.VisionTransformer(**sizes)
    """
    script = textwrap.dedent(script)
    pages = [page for page in HOWTO if programs(page, MODEL)]
    assert {page.stem for page in pages} > {"transformers", "timm", "trainer", "lightning", "accelerate"}
    for page in pages:
        model = "vision" if page.stem == "timm" else "llama"
        (code,) = programs(page, MODEL)
        script += f"page = dict.fromkeys(('model', 'module'), copy.deepcopy({model}))\n"
        script += f"exec(compile({code!r}, {page.name!r}, 'exec'), page)\n"
    out = run_script(f"import copy\n{script}", timeout=300)
    lines = [code for page in pages for code in programs(page, MODEL) if "print(patch(" in code]
    assert out.count("patched 1 block") == len(lines) > 0


@pytest.mark.parametrize("page", [page for page in HOWTO if programs(page, PROCESSES)], ids=lambda page: page.name)
@thorough
def test_python_for_two_processes_runs_by_torchrun(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("\n".join(programs(page, PROCESSES)))
    done = start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@nightly
def test_python_for_torchtitan_runs() -> None:
    (page,) = (page for page in HOWTO if programs(page, TORCHTITAN))
    assert "EpigradFeedForward" in run_script("\n".join(programs(page, TORCHTITAN)), 300, PYTHONPATH=torchtitan_path())


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130


def test_the_readme_begins_with_the_table_and_patch() -> None:
    begin = "\n".join(README.read_text().splitlines()[:45])
    assert "print(patch(model))" in begin and readme.claims_table() in begin


@pytest.mark.parametrize("path", pages.TABLES)
def test_the_tables_of_a_page_are_those_of_the_records(path: str) -> None:
    assert pages.filled(path) == (ROOT / path).read_text(), STALE


def test_every_table_that_records_make_has_a_name() -> None:
    begins = {begin for page in PAGES for begin in re.findall(r"^<!-- python -m .*\n", page.read_text(), re.M)}
    assert begins == {pages.begin(name) for tables in pages.TABLES.values() for name in tables}


def test_a_packed_record_is_read_as_it_was(tmp_path: Path) -> None:
    """A row may lack what others have, and a value may be of several shapes."""
    timing = {"median": 1.5, "low": 1}
    rows = [
        {"case": "a", "size": [1, 2], "epigrad": timing, "memory": {}},
        {"case": "b", "epigrad": timing, "memory": {"eager": {"kept": 1}}, "error": None},
        {"skipped": "late", "memory": {"epigrad": {"kept": 2}}},
    ]
    record = {"date": "2026-01-01", "rows": rows, "unit": "seconds"}
    path = tmp_path / "r.json"
    for text in (json.dumps(record), records.packed(record)):
        path.write_text(text)
        assert records.load(path) == record
    assert path.read_text().count("median") == 1
    path.write_text(records.packed({"cells": [1], "rows": []}))
    assert records.load(path) == {"cells": [1], "rows": []}


def test_records_are_packed_and_few() -> None:
    size = 0
    for path in records.RESULTS.iterdir():
        size += path.stat().st_size
        if path.suffix == ".json":
            assert records.packed(records.load(path)) == path.read_text(), f"python -m tests.tools.records {path.name}"
    assert size < 1_500_000


def test_pages_say_what_compiled_dense_models_gain() -> None:
    times = gains.models("", gains.DENSE, "patched + compiled", "compiled", "").times
    part = f"{100 * min(times):.0f} to {100 * max(times):.0f} %"
    for page in (README, ROOT / "docs" / "pays.md"):
        assert f"xpect {part} of its time" in page.read_text(), f"{page.name}: compiled dense models take {part}"


def test_the_picture_of_the_readme_is_that_of_the_records() -> None:
    assert readme.description().encode() in readme.PICTURE.read_bytes(), STALE
    assert readme.digest(readme.MODEL_RECORD[1]).encode() in readme.models_picture().read_bytes(), STALE
    assert set(readme.bars()["time"]["epigrad"]) == {row["case"] for row in records.rows(readme.MIXTURES)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_documents_name_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text)
    named = re.findall(r"`((?:go|kernels|python|tests|cbridge|docs|examples|benchmarks|\.ci|\.github)/[\w./-]+)`", text)
    made = {"go/op/x.go", "examples/demo.png"}  # a name to choose, and what the demo writes
    assert not [link for link in links if not (page.parent / link).exists()]
    assert not [name for name in named if name not in made and not (ROOT / name).exists()]


def test_the_pages_count_the_rows_of_the_files_that_they_name() -> None:
    told = re.findall(r"Of the (\d+) rows of (\S+\.json), (\d+) are faster than eager", RESULTS.read_text())
    assert told
    for count, name, faster in told:
        rows = records.load(RESULTS.parent / name)["rows"]
        assert (len(rows), sum(row["ratio"] < 1 for row in rows)) == (int(count), int(faster)), name
    for page in PAGES:
        for count, target in re.findall(r"\[(\d+) rows\]\((\S+\.json)\)", page.read_text()):
            assert len(records.load(page.parent / target)["rows"]) == int(count), f"{page.name}: {target}"
