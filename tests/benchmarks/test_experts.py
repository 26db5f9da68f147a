"""`python -m benchmarks experts` on mixtures small enough for a test."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as program
from benchmarks import experts
from benchmarks.experts import CASES, FLOOR, IMPLEMENTATIONS, ROUTINGS

pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens and features for each of the three models."""
    for name, case in CASES.items():
        tiny = dataclasses.replace(case, experts=4, features=64, hidden=64, tokens=32, each=2)
        monkeypatch.setitem(CASES, name, tiny)


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize(
    ("dtypes", "measured"), [((), ("float32", "bfloat16")), (("--dtypes", "float16"), ("float16",))], ids=["", "one"]
)
def test_implementations_are_measured_in_turns(
    dtypes: tuple[str, ...], measured: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    command = [
        "experts",
        "--device",
        "cpu",
        *dtypes,
        "--seconds",
        "0.05",
        "--json",
        str(path),
        "--plot",
        str(tmp_path),
    ]
    assert program.main(command) == 0
    found = json.loads(path.read_text())
    order = (*IMPLEMENTATIONS, FLOOR)
    rows = [(row["case"], row["dtype"], row["routing"], row["implementation"]) for row in found["rows"]]
    assert rows == list(itertools.product(CASES, measured, ROUTINGS, order))
    for row in found["rows"]:
        assert row["time"]["fastest"] > 0
        assert (row["implementation"] in ("eager", "epigrad")) == ("difference" in row)
        if row["implementation"] == FLOOR:
            assert row["ratio_to_floor"] == 1.0
    assert found["command"].startswith("python -m benchmarks experts --device cpu")
    assert (" ".join(dtypes) in found["command"]) and ("--dtypes" in found["command"]) == bool(dtypes)
    assert found["libraries"].keys() == {"transformers"}
    printed = capsys.readouterr().out
    assert "/grouped_mm" in printed and "zipf" in printed and "kept" not in printed
    (picture,) = tmp_path.glob("*-experts-*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_tiny")
def test_an_implementation_that_computes_something_else_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experts, "ALLOWED", 0.0)
    path = tmp_path / "r.json"
    arguments = ["--rows", "mixtral-like", "--seconds", "0.05", "--json", str(path)]
    assert program.main(["experts", "--device", "cpu", *arguments]) == 1
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    assert [(row["dtype"], row["routing"]) for row in rows] == [
        (dtype, routing) for dtype in ("float32", "bfloat16") for routing in ROUTINGS
    ]
    assert all(re.search("ArithmeticError: (eager|epigrad) is .* from grouped_mm", row["error"]) for row in rows)
    assert "mixtral-like float32 uniform: ArithmeticError" in capsys.readouterr().out


def test_a_subject_of_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["expert"])
    assert "did you mean" in (told := capsys.readouterr().err) and "experts" in told


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_token_has_different_experts_whose_scales_sum_to_1(routing: str) -> None:
    case = dataclasses.replace(CASES["qwen3-30b-a3b"], tokens=4096)
    index, scale = experts.route(case, routing, torch.device("cpu"))
    assert index.shape == scale.shape == (4096, 8)
    assert index.sort(1).values.diff(dim=1).ne(0).all()
    torch.testing.assert_close(scale.sum(1), torch.ones(4096))
    share = torch.bincount(index.flatten(), minlength=128).max() / index.numel() * 128
    assert share > 4 if routing == "zipf" else share < 1.5
