"""`python -m benchmarks lora` on blocks small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import lora


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_contenders_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = lora.Case("llama", 8, 16, 32, rank=2), lora.Case("experts", 8, 16, 32, rank=2, experts=4, each=2)
    monkeypatch.setitem(lora.CASES, "cpu", tiny)
    path = tmp_path / "r.json"
    options = ["--device", "cpu", "--seconds", "0.2", "--json", str(path), "--plot", str(tmp_path)]
    assert program.main(["lora", *options]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["case"], row["size"]) for row in rows] == [("llama", [8, 16, 32]), ("experts", [8, 16, 32, 4, 2])]
    for row in rows:
        assert row["difference"] < 1e-5 and row["ratio"] > 0 and row["ratio_to_frozen"] > 0
