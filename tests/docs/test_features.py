"""docs/features.md says what the tests show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.devices import DEVICES
from tests.support.features import Cell, Record, cells_of, load, save
from tests.tools import features

STALE = "docs/features.md is stale: python -m tests.tools.features"


def test_the_table_is_that_of_the_tests(request: pytest.FixtureRequest) -> None:
    config = request.config
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword or config.option.markexpr:
        pytest.skip("asked of the whole suite only, whose tests are all collected")
    shown = {
        cell
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.get_closest_marker("feature")
        for cell in cells_of(item)
        if cell[2] in DEVICES
    }
    written = features.read(features.PAGE.read_text())
    if "cpu" in DEVICES:
        assert on("cpu", written) == on("cpu", shown), STALE
    # A machine of one GPU, say, collects what it then skips.
    assert {cell for cell in features.recorded() if cell[2] in DEVICES} <= shown, "docs/results has what no test shows"


def on(device: str, cells: set[Cell]) -> set[Cell]:
    return {cell for cell in cells if cell[2] == device}


def test_the_table_of_other_machines_is_what_they_have_recorded() -> None:
    page = features.PAGE.read_text()
    written = features.read(page)
    assert written - on("cpu", written) == features.recorded()
    assert page == features.write(written, features.records()), STALE


def test_a_page_is_read_as_it_was_written() -> None:
    cells = {("compile", "linear", "cpu"), ("TP", "mlp", "cuda"), ("eager", "mlp + LowRank", "cpu")}
    run = Record("2026-11-21", "1 x GPU", {"torch": "2.12.0", "python": "3.12.3"}, (("TP", "mlp", "cuda"),))
    page = features.write(cells, {"a.json": run})
    assert features.read(page) == cells
    assert page.count("- [1 x GPU](results/a.json), 2026-11-21: PyTorch 2.12.0, Python 3.12.3") == 1


def test_the_cpus_table_names_no_gpu_as_its_record() -> None:
    """A record of a GPU's machine has ticks of its CPU, too, and does not count for them."""
    cells = {("eager", "lerp", "cpu"), ("eager", "lerp", "cuda")}
    page = features.write(
        cells, {"a.json": Record("2026-11-21", "1 x GPU", {"torch": "2", "python": "3"}, tuple(cells))}
    )
    cpu, gpu = page.split("## On NVIDIA GPUs")
    assert "1 x GPU" in gpu and "1 x GPU" not in cpu


def test_what_failed_once_has_no_tick(tmp_path: Path) -> None:
    cells: list[Cell] = [("compile", "linear", "cuda"), ("TP", "mlp", "cuda")]
    save(tmp_path / "run.json", cells, cells[:1])
    assert load(tmp_path / "run.json").cells == (("TP", "mlp", "cuda"),)
