"""`python -m benchmarks second` on networks small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import second


@pytest.mark.usefixtures("_one_thread")
def test_contenders_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(second.SIZES, "cpu", ((16, 4, 8, 8, 1),))
    path = tmp_path / "r.json"
    options = ["--device", "cpu", "--seconds", "0.1", "--json", str(path), "--plot", str(tmp_path)]
    assert program.main(["second", *options]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {(row["kind"], row["dtype"]) for row in rows} == {
        (kind, dtype) for kind in second.EAGER for dtype in ("float32", "float64")
    }
    for row in rows:
        assert row["difference"] < 1e-5 and row["ratio"] > 0 and row["kept"]["epigrad"] < row["kept"]["eager"]
