"""The tutorials link to what is there. Their notebooks store what they show, which
docs/extensions/notebooks.py has written, and each runs alone, at night."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import environment
from tests.support.tiers import nightly

nbformat = pytest.importorskip("nbformat", reason="nbformat, which reads notebooks, is not installed")
pytest.importorskip("matplotlib", reason="matplotlib, which notebooks draw with, is not installed")
notebooks = pytest.importorskip("notebooks", reason="nbclient, which runs notebooks, is not installed")

FOLDER: Path = notebooks.FOLDER


def number(path: Path) -> int:
    """Of a notebook, by which the site lists them."""
    return int(path.stem.partition("_")[0])


NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"), key=number)
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
PACKAGES = {"epigrad", "torch", "matplotlib", "peft", "transformers"}
"""What `pip install "epigrad[notebooks]"` brings for notebooks to import."""
THIS_MACHINE = {
    "a path": re.compile(r"(?<![\w<.])/\w[\w.-]*/|\b[A-Z]:\\"),
    "an address": re.compile(r"\b0x[0-9a-f]{5,}|\b\d+(\.\d+){3}\b"),
    "a warning": re.compile(r"Warning\b"),
    "a traceback": re.compile(r"Traceback"),
}


def pictures(notebook: Any) -> list[Any]:
    """The cells that draw."""
    return [cell for cell in notebooks.code_cells(notebook) if "plt.show()" in cell.source]


def shows_all(notebook: Any) -> None:
    """Each cell has the outputs that its code makes, and no other."""
    for cell in notebooks.code_cells(notebook):
        data = [output.data for output in cell.outputs if output.output_type == "display_data"]
        assert sum("image/png" in shown for shown in data) == cell.source.count("plt.show()"), cell.source
        assert any("text/html" in shown for shown in data) == cell.source.startswith("%run -m epigrad"), cell.source
        streams = {output.name for output in cell.outputs if output.output_type == "stream"}
        assert streams == ({"stdout"} if "print(" in cell.source else set()), cell.source
        assert len(data) + len(streams) == len(cell.outputs), cell.source


def texts(notebook: Any) -> list[str]:
    """What is shown, but pictures."""
    shown = []
    for output in [output for cell in notebooks.code_cells(notebook) for output in cell.outputs]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        shown += [text for kind, text in data.items() if kind.startswith("text/")]
    return shown


def test_there_are_notebooks() -> None:
    assert [number(path) for path in NOTEBOOKS] == list(range(1, len(NOTEBOOKS) + 1))
    assert len(NOTEBOOKS) >= 10
    for path in NOTEBOOKS:
        notebook = notebooks.read(path)
        nbformat.validate(notebook)
        assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")


@EACH
def test_what_a_notebook_stores_was_shown_by_its_code(path: Path) -> None:
    assert not notebooks.is_stale(notebooks.read(path)), f"{path.name} has changed since it ran: make docs"


@EACH
def test_a_notebook_stores_what_each_cell_shows(path: Path) -> None:
    shows_all(notebooks.read(path))


@EACH
def test_a_notebook_shows_nothing_of_the_machine_that_ran_it(path: Path) -> None:
    shown = "\n".join(texts(notebooks.read(path)))
    assert not [name for name, mark in THIS_MACHINE.items() if mark.search(shown)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/home/someone/epigrad/docs", "a path"),
        ("C:\\Users\\someone", "a path"),
        ("<built-in method at 0x7f3a5c>", "an address"),
        ("http://10.0.0.1:8080", "an address"),
        ("UserWarning: slow", "a warning"),
    ],
)
def test_what_tells_of_a_machine_is_found(text: str, name: str) -> None:
    assert THIS_MACHINE[name].search(text)


def test_stored_notebooks_are_small() -> None:
    for path in NOTEBOOKS:
        for output in [output for cell in notebooks.code_cells(notebooks.read(path)) for output in cell.outputs]:
            assert len(output.get("data", {}).get("image/png", "")) < 60e3, path.name
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 1.5e6


@pytest.mark.parametrize("path", [*NOTEBOOKS, *sorted(FOLDER.glob("*.md"))], ids=lambda path: path.name)
def test_links_of_tutorials_are_there(path: Path) -> None:
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in notebooks.read(path).cells if cell.cell_type == "markdown")
    else:
        text = path.read_text()
    text = re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?://)([^)#\s]+)", text)
    assert links and not [link for link in links if not (FOLDER / link).exists()]


@EACH
def test_each_picture_has_a_text_in_its_place(path: Path) -> None:
    drawing = pictures(notebooks.read(path))
    assert drawing
    for cell in drawing:
        assert len(cell.metadata["mystnb"]["image"]["alt"]) > 20


@EACH
def test_a_notebook_imports_nothing_but_packages_of_its_extra(path: Path) -> None:
    cells = [cell.source for cell in notebooks.code_cells(notebooks.read(path))]
    source = re.sub("^%.*", "", "\n".join(cells), flags=re.M)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= PACKAGES | sys.stdlib_module_names
            exec(ast.unparse(node), {})  # each name is there


@nightly
@EACH
def test_a_notebook_runs_alone_in_an_empty_folder(path: Path) -> None:
    notebook = notebooks.read(path)
    notebooks.run(notebook, environment(OMP_NUM_THREADS="2"))
    shows_all(notebook)


@nightly
def test_a_stored_notebook_is_stale_once_its_code_changes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.ipynb"
    cells = [nbformat.v4.new_markdown_cell("# Tiny"), nbformat.v4.new_code_cell("import os\n\nprint(os.listdir())")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert notebooks.is_stale(notebooks.read(path))

    notebooks.store(path)
    notebook = notebooks.read(path)
    nbformat.validate(notebook)
    assert texts(notebook) == ["[]\n"], "it runs in an empty folder"
    assert not notebooks.is_stale(notebook)
    notebook.cells[0].source += ", with other words"
    assert not notebooks.is_stale(notebook)
    notebook.cells[1].source += "  # other code"
    assert notebooks.is_stale(notebook)
