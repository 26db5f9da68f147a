"""`python -m epigrad bench` on problems small enough for a test."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
import torch
from epigrad import cli, library
from epigrad.cli import bench, timing


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"linear": ((2, 4), (6, 4), (6,)), "gated": ((2, 4),), "lerp": ((3,),) * 3}
    cases = tuple(dataclasses.replace(case, shapes=tiny[case.name.split()[0]]) for case in bench.CASES)
    monkeypatch.setattr(bench, "CASES", cases)
    monkeypatch.setattr(bench, "QUICK_SECONDS", 0.0)


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("every", [False, True])
def test_writes_a_row_for_every_case_kind_and_dtype(every: bool, tmp_path: pathlib.Path) -> None:
    code = cli.main(["bench", "--quick", "--json", str(tmp_path / "r.json"), *(["--all-kinds"] if every else [])])
    report = json.loads((tmp_path / "r.json").read_text())
    kinds = {(row["case"], row["kind"]) for row in report["rows"]}
    assert code == 0
    assert {row["dtype"] for row in report["rows"]} == {"float32", "float64", "bfloat16", "float16"}
    assert len(report["rows"]) == 4 * len(kinds)
    assert kinds == {(case.name, kind) for case in bench.CASES for kind in (case.all_kinds() if every else case.kinds)}
    assert all(row["epigrad"]["median"] > 0 and row["ratio"] > 0 for row in report["rows"])
    assert [row for row in report["rows"] if "epigrad_beyond_product" in row and "epigrad_beyond_kernels" in row]
    assert report["versions"]["epigrad"] == library.core().version


def test_both_sides_of_every_row_compute_the_same() -> None:
    for case in bench.CASES:
        for kind in case.all_kinds():
            ours, eager = case.make(kind)
            shapes = {1: ((3, 8),), 3: ((3, 4), (6, 4), (6,)) if case.name.startswith("linear") else ((5,),) * 3}
            tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes[len(case.shapes)]]
            torch.testing.assert_close(ours(*tensors), eager(*tensors))


def test_a_directory_gets_a_file_named_by_date_and_processor(tmp_path: pathlib.Path) -> None:
    bench._write(tmp_path, {"date": "2026-01-31", "device": "Maker(R) Model 8000 CPU @ 2.00GHz"})
    assert [path.name for path in tmp_path.iterdir()] == ["2026-01-31-cpu-maker-model-8000.json"]


def test_a_path_into_nowhere_is_refused_before_measuring(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", "--json", str(tmp_path / "missing" / "r.json")])


def test_timing_takes_turns_and_drops_the_first_round() -> None:
    calls: list[str] = []
    timings = timing.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0, least=3)
    assert "".join(calls) == "abbaab"
    assert timings["a"].rounds == 2
    assert timings["a"].fastest <= timings["a"].low <= timings["a"].median <= timings["a"].high
    assert timing.interleaved({"a": lambda: None}, 0, least=1)["a"].rounds == 1
