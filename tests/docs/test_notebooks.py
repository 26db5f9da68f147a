"""The notebooks of examples/notebooks run, are stored without what they printed, and draw what they
talk about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes import environment
from tests.support.repository import ROOT

nbclient = pytest.importorskip("nbclient", reason="nbclient, which runs notebooks, is not installed")
pytest.importorskip("ipykernel", reason="ipykernel, in which notebooks run, is not installed")
pytest.importorskip("matplotlib", reason="matplotlib, which notebooks draw with, is not installed")
import nbformat  # noqa: E402
from jupyter_client.manager import KernelManager  # noqa: E402

FOLDER = ROOT / "examples" / "notebooks"
PICTURES = {"1_first_look": 3, "2_your_own_activation": 1, "3_memory_and_time": 2, "4_exact_tails": 4}
EACH = pytest.mark.parametrize("name", PICTURES)


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_every_notebook_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(PICTURES)


@EACH
def test_notebooks_are_stored_without_outputs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    assert notebook.cells[0].source.startswith("# ")
    for cell in notebook.cells:
        for target in (part.split(")")[0] for part in cell.source.split("](")[1:]):
            assert "://" in target or (FOLDER / target).exists(), target


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One process for all notebooks, since most of their time would be importing PyTorch; each
    begins without names."""
    manager = KernelManager(kernel_name="python3", transport="ipc")
    manager.start_kernel(env=environment(OMP_NUM_THREADS="1"))
    yield manager
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


@EACH
def test_notebooks_run(name: str, kernel: Any) -> None:
    notebook = read(name)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=60)
    client.execute()
    client.kc.stop_channels()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PICTURES[name]
    tables = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(tables) == (2 if name == "1_first_look" else 0), "of the command line"
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
