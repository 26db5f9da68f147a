"""The tutorials link to what is there. Their notebooks are stored without what they printed, and
have a text in place of each picture.

`make docs` runs them, and fails where a cell does. `make test-full` runs them too, and counts the
pictures.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FULL
from tests.support.processes import environment
from tests.support.repository import ROOT

nbformat = pytest.importorskip("nbformat", reason="nbformat, which reads notebooks, is not installed")

FOLDER = ROOT / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def pictures(notebook: Any) -> list[Any]:
    """The cells that draw."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and "plt.show()" in cell.source]


def test_there_are_notebooks() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{number}_" for number in range(1, len(NOTEBOOKS) + 1)]
    assert len(NOTEBOOKS) >= 7


@EACH
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")


@pytest.mark.parametrize("path", [*NOTEBOOKS, *sorted(FOLDER.glob("*.md"))], ids=lambda path: path.name)
def test_links_of_tutorials_are_there(path: Path) -> None:
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    else:
        text = path.read_text()
    text = re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?://)([^)#\s]+)", text)
    assert links and not [link for link in links if not (FOLDER / link).exists()]


@EACH
def test_each_picture_has_a_text_in_its_place(path: Path) -> None:
    drawing = pictures(read(path))
    assert drawing
    for cell in drawing:
        assert len(cell.metadata["mystnb"]["image"]["alt"]) > 20


@EACH
@pytest.mark.skipif(not FULL, reason="`make docs` runs the notebooks; EPIGRAD_TEST_FULL=1 does it here")
def test_notebooks_run(path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient, which runs notebooks, is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel, in which notebooks run, is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib, which notebooks draw with, is not installed")
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", timeout=300, resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute(env=environment(OMP_NUM_THREADS="2"))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == len(pictures(notebook))
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    for cell in notebook.cells:
        if cell.source.startswith("%run -m epigrad"):
            assert any("text/html" in output.get("data", {}) for output in cell.outputs), "its table"
