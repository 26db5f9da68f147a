"""`python -m benchmarks parallel` on experts small enough for a test."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import parallel


def test_ways_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny = dataclasses.replace(parallel.CASES[parallel.CASE], experts=32, features=512, hidden=512, tokens=2048, each=4)
    monkeypatch.setitem(parallel.CASES, parallel.CASE, tiny)
    path = tmp_path / "r.json"
    command = ["parallel", "--device", "cpu", "--rows", "2 ranks float32 zipf", "--seconds", "0.1", "--json", str(path)]
    assert program.main(command) == 0
    rows = json.loads(path.read_text())["rows"]
    counts = [f"chunks {count}" for count in parallel.CHUNKS]
    assert [row["way"] for row in rows] == [parallel.OTHER, "slots epigrad", *counts, "products"]
    for row in rows:
        assert row["time"]["fastest"] > 0 and row["forward"]["fastest"] > 0
        assert (row["way"] not in (parallel.OTHER, "products")) == ("difference" in row)
