"""`python -m benchmarks cpu` on problems small enough for a test."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import pathlib
import re
from typing import Any

import pytest
import torch
from epigrad._core import tables
from epigrad.cli import operations, report, runner, timing
from epigrad.cli.operations import BOTH, FORWARD, Point
from epigrad.cli.report import Row

from benchmarks import __main__ as program
from benchmarks import cpu, pictures
from tests.api.terminal import terminal
from tests.support.cases import FULL

DTYPES = {"float32", "float64", "bfloat16", "float16"}


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {3: ((2, 3, 4),), 1: ((4,), (8,))}
    curves = tuple(dataclasses.replace(curve, sizes=tiny[len(curve.sizes[0])]) for curve in cpu.CURVES)
    monkeypatch.setattr(cpu, "CURVES", curves)
    monkeypatch.setattr(cpu, "QUICK_SIZES", ((2, 3, 4), (8,)))
    monkeypatch.setattr(cpu, "SECONDS", 0.0)
    monkeypatch.setattr(cpu, "QUICK_SECONDS", 0.0)


def run(*arguments: str) -> int:
    return program.main(["cpu", *arguments])


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_writes_a_row_for_every_point_and_sums_them_up(every: bool, quick: bool, tmp_path: pathlib.Path) -> None:
    """Of all kinds a few do, unless all cases are asked for."""
    threads = torch.get_num_threads()
    some = ["--rows", "gelu"] if every and not FULL else []
    options = [*(["--all-kinds"] if every else []), *(["--quick"] if quick else [])]
    code = run("--json", str(tmp_path / "r.json"), *options, *some)
    found = json.loads((tmp_path / "r.json").read_text())
    assert code == 0
    assert torch.get_num_threads() == threads
    fields = ("case", "kind", "size", "dtype", "direction", "threads")
    measured = [tuple(str(row[name]) for name in fields) for row in found["rows"]]
    points = [
        (p.operation.name, p.operation.kind, str(list(p.size)), p.dtype, p.direction, str(p.threads))
        for p in cpu.points(threads, every, quick)
        if not some or some[1] in p.label
    ]
    assert measured == points
    assert len(set(points)) == len(points)
    assert {row["dtype"] for row in found["rows"]} == DTYPES
    assert {row["threads"] for row in found["rows"]} == ({threads} if quick else {1, threads})
    assert all(row["epigrad"]["median"] > 0 and row["ratio"] > 0 for row in found["rows"])
    assert sum(line["points"] for line in cpu.summary(found["rows"])) == len(points)
    assert found["versions"]["epigrad"] == tables.VERSION


def row(ratio: float, dtype: str = "float32", threads: int = 2, direction: str = BOTH) -> dict[str, Any]:
    fields = {"case": "linear", "kind": "gelu", "size": [1, 2, 3], "dtype": dtype}
    return {**fields, "ratio": ratio, "threads": threads, "direction": direction}


def test_the_summary_has_mean_worst_and_share() -> None:
    others = [row(3.0, threads=1), row(0.7, direction=FORWARD), row(0.1) | {"case": "mlp"}]
    both, *_ = lines = cpu.summary([row(0.5), row(2.0) | {"size": [4, 5, 6]}, row(1.02), *others])
    assert len(lines) == 4
    assert both["points"] == 3
    assert both["geometric_mean"] == pytest.approx(1.02 ** (1 / 3))
    assert (both["worst"], both["worst_at"]) == (2.0, [4, 5, 6])
    assert both["share_at_level"] == pytest.approx(2 / 3)
    assert cpu.summary([]) == []


def test_no_dtype_meets_the_goal_of_another() -> None:
    """PyTorch's bfloat16 is so slow on some processors that it hid what float32 lost."""
    rows = [
        row(ratio, dtype) | {"size": list(size)}
        for dtype, ratio in (("float32", 1.5), ("bfloat16", 0.1))
        for size in cpu.PRODUCTS
    ]
    found = [(line["dtype"], line["goal"], round(line["geometric_mean"], 3)) for line in cpu.summary(rows)]
    assert found == [("float32", 0.95, 1.5), ("bfloat16", 0.95, 0.1)]


@pytest.fixture
def _slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that are measured at once, on a clock of their own: PyTorch takes 1 us for an element
    in bfloat16."""
    clock = [0.0]
    for module in (operations, runner):
        monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(cpu, "CURVES", [curve for curve in cpu.CURVES if curve.name == "activation"])

    def measure(point: Point, device: torch.device, compiled: bool, seconds: float, limit: float, wanted: int) -> Row:
        took = 1e-6 * cpu.work_of(point) if point.dtype == "bfloat16" else 1e-6
        clock[0] += took
        if took > limit:
            return {"skipped": f"PyTorch takes {report.seconds_told(took)}", "took": took}
        timed = dataclasses.asdict(timing.Timing.of([took]))
        return {"ratio": 1.0, "epigrad": timed, "eager": timed}

    monkeypatch.setattr(Point, "measure", measure)


@pytest.mark.usefixtures("_slow_bfloat16")
def test_a_point_that_pytorch_takes_too_long_for_is_skipped_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--quick", "--seconds", "1", "--rows", "float32|bfloat16")
    assert run(*arguments, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    # 0.26 s of the second size tell how long the third would take
    skipped = [(row["dtype"], *row["size"], row["skipped"]) for row in rows if "skipped" in row]
    assert skipped == [("bfloat16", 1 << 22, "PyTorch takes 4.19 s")]
    assert run(*arguments) == 0
    assert re.search(
        "Skipped.*\n.*\n.*\nactivation gelu +4194304 +PyTorch takes 4.19 s +bfloat16", capsys.readouterr().out
    )


@pytest.mark.usefixtures("_slow_bfloat16")
def test_what_is_left_when_the_time_is_over_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    """`--seconds` bounds the table, whose large sizes come last."""
    assert run("--seconds", "0.3", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    works = [math.prod(row["size"]) for row in rows]
    assert works == sorted(works) and "skipped" not in rows[0]
    assert rows[-1]["skipped"] == "0.3 s were over" and runner.time.perf_counter() < 2


def test_the_table_has_80_columns_and_whole_words() -> None:
    rows = [
        row(1.234, dtype) | {"case": curve.name, "kind": curve.kind, "size": list(size)}
        for curve in cpu.CURVES
        for dtype in DTYPES
        for size in curve.sizes
    ]
    with terminal() as screen:
        cpu._print(rows)
    lines = screen.lines
    assert max(map(len, lines)) <= 80 and len(lines) <= 4 + len(cpu.CURVES) * len(DTYPES)
    words = set(" ".join(lines).split())
    assert words >= DTYPES | {curve.name for curve in cpu.CURVES if " " not in curve.name}


def test_whole_curves_on_all_threads_have_a_goal() -> None:
    rows = [
        row(0.5, threads=threads, direction=direction) | {"size": list(size)}
        for threads in (1, 2)
        for direction in (FORWARD, BOTH)
        for size in cpu.PRODUCTS
    ]
    assert [line["goal"] for line in cpu.summary(rows)] == [None, None, None, 0.95]
    assert [line["goal"] for line in cpu.summary(rows[:-1])] == [None] * 4


@pytest.mark.parametrize("name", ["linear", "gated_linear", "mlp", "gated_mlp"])
def test_preactivations_have_the_standard_deviation_1(name: str) -> None:
    (curve,) = (curve for curve in cpu.CURVES if curve.name == name)
    for size in ((64, 256, 1024), (256, 256, 1024)):  # of which one has as many rows as inputs
        point = Point(curve.operation(curve.kind), size, "float32", BOTH, 1)
        made = point.operands(torch.Generator().manual_seed(0))
        for weight in (tensor for tensor in made[1:] if tensor.ndim == 2):
            deviation = weight.std().item() * weight.shape[1] ** 0.5
            assert 0.98 < deviation < 1.02, tuple(weight.shape)


@pytest.mark.parametrize("ratios", [(1.5, 3.0), (0.2,), (0.001, 40.0)])
def test_a_picture_shows_where_eager_is(ratios: tuple[float, ...]) -> None:
    bottom, top = pictures._limits(ratios)
    assert 0 < bottom < 1 < top


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib draws the picture")
@pytest.mark.usefixtures("_tiny")
def test_draws_curves(tmp_path: pathlib.Path) -> None:
    assert run("--rows", "lerp number|product NN", "--plot", str(tmp_path / "r.png")) == 0
    assert (tmp_path / "r.png").stat().st_size > 10_000


@pytest.mark.parametrize("curve", cpu.CURVES, ids=lambda curve: f"{curve.name}-{curve.kind}")
def test_both_sides_of_every_curve_compute_the_same(curve: cpu.Curve) -> None:
    size = (2, 3, 4) if len(curve.sizes[0]) == 3 else (2048,)
    for kind in curve.all_kinds():
        ours, eager = curve.make(kind)
        tensors = [torch.randn(shape, dtype=torch.float64) for shape in curve.shapes(*size)]
        torch.testing.assert_close(ours(*tensors), eager(*tensors))
