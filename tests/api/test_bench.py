"""`python -m epigrad bench` on problems small enough for a test."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import re
import sys
from typing import Any

import pytest
import torch
from epigrad import cli
from epigrad._core import tables
from epigrad.cli import bench, bench_cpu, bench_cuda, cuda_rows, picture, report, table, timing
from epigrad.cli.cuda_rows import BACKWARD, BOTH, FORWARD, Case
from epigrad.cli.table import print_table

from tests.api.terminal import terminal
from tests.support.cases import FULL
from tests.support.devices import REASONS, needs

DTYPES = {"float32", "float64", "bfloat16", "float16"}


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {3: ((2, 3, 4),), 1: ((4,), (8,))}
    curves = tuple(dataclasses.replace(curve, sizes=tiny[len(curve.sizes[0])]) for curve in bench_cpu.CURVES)
    monkeypatch.setattr(bench_cpu, "CURVES", curves)
    monkeypatch.setattr(bench_cpu, "QUICK_SIZES", ((2, 3, 4), (8,)))
    monkeypatch.setattr(bench_cpu, "SECONDS", 0.0)
    monkeypatch.setattr(bench_cpu, "QUICK_SECONDS", 0.0)


def run(*arguments: str) -> int:
    return cli.main(["bench", "--device", "cpu", *arguments])


@pytest.mark.parametrize(("load", "told"), [(0.5, False), (1e6, True)])
def test_a_busy_machine_is_told(
    load: float, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setitem(bench._TABLES, "cpu", lambda args: 0)
    assert cli.main(["bench", "--device", "cpu"]) == 0
    assert ("busy" in capsys.readouterr().err) == told


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
        (p.curve.name, p.kind, str(list(p.size)), p.dtype, p.direction, str(p.threads))
        for p in bench_cpu.points(threads, every, quick)
        if not some or some[1] in p.label
    ]
    assert measured == points
    assert len(set(points)) == len(points)
    assert {row["dtype"] for row in found["rows"]} == DTYPES
    assert {row["threads"] for row in found["rows"]} == ({threads} if quick else {1, threads})
    assert all(row["epigrad"]["median"] > 0 and row["ratio"] > 0 for row in found["rows"])
    assert sum(line["points"] for line in found["summary"]) == len(points)
    assert found["versions"]["epigrad"] == tables.VERSION


def row(ratio: float, dtype: str = "float32", threads: int = 2, direction: str = bench_cpu.BOTH) -> dict[str, Any]:
    fields = {"case": "linear", "kind": "gelu", "size": [1, 2, 3], "dtype": dtype}
    return {**fields, "ratio": ratio, "threads": threads, "direction": direction}


def test_the_summary_has_mean_worst_and_share() -> None:
    others = [row(3.0, threads=1), row(0.7, direction=bench_cpu.FORWARD), row(0.1) | {"case": "mlp"}]
    both, *_ = lines = bench_cpu.summary([row(0.5), row(2.0) | {"size": [4, 5, 6]}, row(1.02), *others])
    assert len(lines) == 4
    assert both["points"] == 3
    assert both["geometric_mean"] == pytest.approx(1.02 ** (1 / 3))
    assert (both["worst"], both["worst_at"]) == (2.0, [4, 5, 6])
    assert both["share_at_level"] == pytest.approx(2 / 3)
    assert bench_cpu.summary([]) == []


def test_no_dtype_meets_the_goal_of_another() -> None:
    """PyTorch's bfloat16 is so slow on some processors that it hid what float32 lost."""
    rows = [
        row(ratio, dtype) | {"size": list(size)}
        for dtype, ratio in (("float32", 1.5), ("bfloat16", 0.1))
        for size in bench_cpu.PRODUCTS
    ]
    found = [(line["dtype"], line["goal"], round(line["geometric_mean"], 3)) for line in bench_cpu.summary(rows)]
    assert found == [("float32", 0.95, 1.5), ("bfloat16", 0.95, 0.1)]


@pytest.fixture
def _slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that are measured at once, on a clock of their own: PyTorch takes 1 us for an element
    in bfloat16."""
    clock = [0.0]
    monkeypatch.setattr(bench_cpu.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(bench_cpu, "CURVES", [curve for curve in bench_cpu.CURVES if curve.name == "activation"])

    def measure(point: bench_cpu.Point, seconds: float, limit: float, *_: object) -> tuple[dict[str, Any], float]:
        took = 1e-6 * point.work if point.dtype == "bfloat16" else 1e-6
        clock[0] += took
        if took > limit:
            return {**point.row(), "skipped": bench_cpu._slow(took)}, took
        return {**point.row(), "ratio": 1.0, "epigrad": dataclasses.asdict(timing.Timing.of([took]))}, took

    monkeypatch.setattr(bench_cpu, "_measure", measure)


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
    works = [row["work"] for row in rows]
    assert works == sorted(works) and "skipped" not in rows[0]
    assert rows[-1]["skipped"] == "0.3 s were over" and bench_cpu.time.perf_counter() < 2


def test_a_call_of_pytorchs_that_takes_too_long_is_made_once() -> None:
    calls: list[torch.Tensor] = []

    def eager(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x

    (curve,) = (curve for curve in bench_cpu.CURVES if curve.name == "activation")
    traced = dataclasses.replace(curve, make=lambda kind: (eager, eager))
    point = bench_cpu.Point(traced, "gelu", (4,), "float32", bench_cpu.BOTH, 1)
    found, _ = bench_cpu._measure(point, 1.0, limit=0.0, wanted=0, compiled=False)
    assert len(calls) == 1 and found["skipped"].startswith("PyTorch takes ")


def test_the_table_has_80_columns_and_whole_words() -> None:
    rows = [
        row(1.234, dtype) | {"case": curve.name, "kind": curve.kind, "size": list(size)}
        for curve in bench_cpu.CURVES
        for dtype in DTYPES
        for size in curve.sizes
    ]
    kept = made("x")
    kept.rows, kept.facts["summary"] = rows, bench_cpu.summary(rows)
    with terminal() as screen:
        bench_cpu._print(kept)
    lines = screen.lines
    assert max(map(len, lines)) <= 80 and len(lines) <= 4 + len(bench_cpu.CURVES) * len(DTYPES)
    words = set(" ".join(lines).split())
    assert words >= DTYPES | {curve.name for curve in bench_cpu.CURVES if " " not in curve.name}


@pytest.mark.parametrize(
    ("columns", "room", "widths"),
    [
        ([["a", "bb"], ["ccc ddd", "e"]], 80, [2, 7]),
        ([["name", "x_long_name"], ["some words here", "-"]], 20, [11, 9]),
        ([["x" * 30, "y"], ["z" * 10, "-"]], 20, [10, 10]),
        ([["", ""], ["a", "b"]], 20, [0, 1]),
    ],
)
def test_a_narrow_table_folds_between_words(columns: list[list[str]], room: int, widths: list[int]) -> None:
    assert table._widths(columns, room) == widths


def test_a_bar_has_room_beside_a_long_name() -> None:
    with terminal() as screen, report.Progress(3, None) as progress:
        for _ in range(3):
            progress.begin("gated_linear swiglu 1024x1024x4096 bfloat16 forward and backward, 2 threads")
            progress.bar.refresh()
    bars = [line for line in screen.lines if "gated_linear" in line]
    assert bars and all(len(line) <= 80 and line.count("━") + line.count("╸") + line.count("╺") >= 15 for line in bars)


def test_whole_curves_on_all_threads_have_a_goal() -> None:
    rows = [
        row(0.5, threads=threads, direction=direction) | {"size": list(size)}
        for threads in (1, 2)
        for direction in (bench_cpu.FORWARD, bench_cpu.BOTH)
        for size in bench_cpu.PRODUCTS
    ]
    assert [line["goal"] for line in bench_cpu.summary(rows)] == [None, None, None, 0.95]
    assert [line["goal"] for line in bench_cpu.summary(rows[:-1])] == [None] * 4


@pytest.mark.parametrize("name", ["linear", "gated_linear", "mlp", "gated_mlp"])
def test_preactivations_have_the_standard_deviation_1(name: str) -> None:
    (curve,) = (curve for curve in bench_cpu.CURVES if curve.name == name)
    for size in ((64, 256, 1024), (256, 256, 1024)):  # of which one has as many rows as inputs
        point = bench_cpu.Point(curve, curve.kind, size, "float32", bench_cpu.BOTH, 1)
        made = bench_cpu.operands(point, torch.Generator().manual_seed(0))
        for weight in (tensor for tensor in made[1:] if tensor.ndim == 2):
            deviation = weight.std().item() * weight.shape[1] ** 0.5
            assert 0.98 < deviation < 1.02, tuple(weight.shape)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--seconds", "abc"), "want a number of seconds > 0"),
        (("--seconds", "inf"), "want a number of seconds > 0"),
        (("--plot", "picture.foo"), "want a directory, or a file name that ends in .png"),
        (("--json", "nowhere"), "want an existing directory, or a file name with a suffix"),
    ],
)
def test_refuses_before_it_measures(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*arguments)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("ratios", [(1.5, 3.0), (0.2,), (0.001, 40.0)])
def test_a_picture_shows_where_eager_is(ratios: tuple[float, ...]) -> None:
    bottom, top = picture._limits(ratios)
    assert 0 < bottom < 1 < top


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib draws the picture")
@pytest.mark.usefixtures("_tiny")
def test_draws_curves(tmp_path: pathlib.Path) -> None:
    assert run("--rows", "lerp|product", "--plot", str(tmp_path / "r.png")) == 0
    assert (tmp_path / "r.png").stat().st_size > 10_000


@pytest.mark.usefixtures("_tiny")
def test_json_alone_goes_to_stdout_and_progress_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rows", "lerp number 4 float32 forward, 1 thread$", "--json") == 0
    captured = capsys.readouterr()
    assert [row["kind"] for row in json.loads(captured.out)["rows"]] == ["number"]
    assert re.search("^1/1 lerp", captured.err, re.M)  # after a word about a busy machine
    with pytest.raises(SystemExit, match="2"):
        report.check_paths(argparse.Namespace(json=report.STDOUT, plot=None, error=lambda text: sys.exit(2)), tables=2)


@pytest.mark.usefixtures("_tiny")
def test_a_bench_that_is_stopped_is_exit_code_130(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured until then is in the file."""
    measure, calls = bench_cpu._measure, iter(range(9))

    def stopped(*arguments: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(bench_cpu, "_measure", stopped)
    assert run("--json", str(tmp_path / "r.json")) == 130
    assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == 2
    assert "stopped" in capsys.readouterr().err


def test_a_table_without_rows_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Nothing", ("a", "b"), [])
    assert capsys.readouterr().out == ""
    print_table("Something", ("a", "b"), [("1", "2")])
    assert "Something" in capsys.readouterr().out


def test_times_are_told_with_their_unit() -> None:
    assert [report.seconds_told(x) for x in (2.5e-6, 0.0125, 1.5, 83.0)] == ["2.5 us", "12.5 ms", "1.5 s", "83 s"]


@pytest.mark.usefixtures("_tiny")
def test_rows_are_chosen_by_a_pattern(tmp_path: pathlib.Path) -> None:
    pattern = "lerp number 4 float(32|64) forward, 1 thread$"
    assert run("--rows", pattern, "--json", str(tmp_path / "r.json")) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert [(row["kind"], row["dtype"]) for row in found["rows"]] == [("number", "float32"), ("number", "float64")]
    assert found["command"].endswith(f"--rows {pattern!r}")


@pytest.mark.parametrize("curve", bench_cpu.CURVES, ids=lambda curve: f"{curve.name}-{curve.kind}")
def test_both_sides_of_every_curve_compute_the_same(curve: bench_cpu.Curve) -> None:
    size = (2, 3, 4) if len(curve.sizes[0]) == 3 else (2048,)
    for kind in curve.all_kinds():
        ours, eager = curve.make(kind)
        tensors = [torch.randn(shape, dtype=torch.float64) for shape in curve.shapes(*size)]
        torch.testing.assert_close(ours(*tensors), eager(*tensors))


def made(device: str, path: pathlib.Path | None = None) -> report.Report:
    return report.Report(device, "bench", "seconds", path, "cpu", date="2026-01-31")


def test_a_directory_gets_a_file_named_by_date_and_processor(tmp_path: pathlib.Path) -> None:
    made("Maker(R) Model 8000 CPU @ 2.00GHz", tmp_path).add({"row": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["2026-01-31-cpu-maker-model-8000.json"]


def test_the_file_has_each_row_as_soon_as_it_is_measured(tmp_path: pathlib.Path) -> None:
    kept = made("x", tmp_path / "r.json")
    for count in (1, 2, 3):
        kept.add({"row": count})
        assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == count


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "{}/missing/r.json"],
        ["--rows", "("],
        ["--rows", "no such row"],
        ["--seconds", "0"],
        ["--device", "tpu"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_arguments_that_make_no_sense_are_refused_before_measuring(
    arguments: list[str], tmp_path: pathlib.Path
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", *(argument.format(tmp_path) for argument in arguments)])


@pytest.mark.skipif("cuda" not in REASONS, reason="for a machine without CUDA")
def test_a_device_that_is_absent_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--device", "cuda"]) == 1
    assert REASONS["cuda"] in capsys.readouterr().err


def test_timing_takes_turns_and_drops_the_first_round() -> None:
    calls: list[str] = []
    timings = timing.interleaved({name: functools.partial(calls.append, name) for name in "abc"}, 0, least=20)
    rounds = {"".join(calls[first : first + 3]) for first in range(0, len(calls), 3)}
    assert rounds == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert timings["a"].rounds == 19
    assert timings["a"].fastest <= timings["a"].low <= timings["a"].median <= timings["a"].high
    assert timing.interleaved({"a": lambda: None}, 0, least=1)["a"].rounds == 1


def test_a_call_is_timed_by_the_clock_that_is_given() -> None:
    clock = [0.0]

    def step() -> None:
        clock[0] += 2

    assert timing.interleaved({"a": step}, 0, clock=lambda: clock[0])["a"].median == 2


@pytest.mark.parametrize(
    ("seconds", "wanted", "rounds"),
    # the first of several rounds does not count
    [(0.5, 0, 1), (3.0, 0, 2), (1.0, 8, 7), (0.3, 8, 2)],
)
def test_a_slow_row_gets_the_rounds_that_it_needs_within_ten_times_its_seconds(
    monkeypatch: pytest.MonkeyPatch, seconds: float, wanted: int, rounds: int
) -> None:
    clock = [0.0]

    def step() -> None:
        clock[0] += 1

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    assert timing.interleaved({"a": step}, seconds, least=1, wanted=wanted)["a"].rounds == rounds


# The table of a GPU, whose rows are measured here on the CPU in a smaller size


def shrunk(case: Case, dtype: str = "float64") -> Case:
    def smaller(size: int) -> int:
        return 1 if size == 1 else max(2, 2 * round(size / 1024))

    inputs = tuple(tuple(smaller(size) for size in shape) for shape in case.inputs)
    return dataclasses.replace(case, inputs=inputs, dtype=dtype)


GPU_CASES = list({(case.op, case.kind, case.clock): shrunk(case) for case in cuda_rows.cases()}.values())
every_gpu_case = pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: f"{case.op}-{case.kind}-{case.clock}")


@every_gpu_case
def test_both_sides_of_a_gpus_row_compute_the_same(case: Case) -> None:
    inputs = case.make_inputs(torch.device("cpu"))
    out = case.eager(*inputs)
    grad = torch.randn_like(out)
    if case.gradients:
        wanted = [inputs[index] for index in case.gradients]
        gradients = torch.autograd.grad(out, wanted, grad)
    if case.ours_backward is not None:
        results = [x for x in case.ours_backward(inputs, grad) if x is not None]  # type: ignore[attr-defined]
        torch.testing.assert_close(results, list(gradients))
    for ours in (case.ours, *case.variants.values()):
        if ours is not None:
            got = ours(*inputs)
            torch.testing.assert_close(got, out)
            if case.gradients:
                torch.testing.assert_close(torch.autograd.grad(got, wanted, grad), gradients)


@every_gpu_case
def test_a_gpus_row_is_measured(case: Case) -> None:
    settings = bench_cuda.Settings(torch.device("cpu"), 0.0, compiled=False)
    rows = list(bench_cuda.measure(case, list(case.directions), settings))
    assert [row["direction"] for row in rows] == list(case.directions)
    for row in rows:
        assert "error" not in row, row["error"]
        assert row["epigrad"]["median"] > 0 and row["ratio"] > 0
        assert {"eager", *case.variants} <= row.keys() or row["direction"] == FORWARD
        has_ceiling = case.clock == "device" and (not case.products or row["direction"] in case.products)
        assert ("share" in row) == has_ceiling
        assert set(row["short_of"]) <= set(row["goals"]) <= {"eager", "compile", "share"}
        json.dumps(row)
    bench_cuda._print(rows)


def test_the_rows_of_a_gpu_are_those_that_have_goals() -> None:
    cases = cuda_rows.cases()
    labels = [case.label(direction) for case in cases for direction in case.directions]
    assert len(set(labels)) == len(labels)
    for op, clock, direction in (
        *(("gated", "device", direction) for direction in (FORWARD, BACKWARD)),
        *(("lerp", "device", direction) for direction in (FORWARD, BACKWARD)),
        ("linear", "device", BACKWARD),
        ("mlp", "device", BOTH),
        ("linear", "wall", BOTH),
        ("mlp", "graph", BOTH),
    ):
        chosen = [case for case in cases if case.op == op and case.clock == clock and case.directions.get(direction)]
        assert chosen, f"{op}, {clock}, {direction}"
        if clock == "device" and op in ("gated", "lerp"):
            assert {case.dtype for case in chosen} == DTYPES
    assert len(cuda_rows.cases(quick=True)) < len(cases)


def test_what_moves_is_what_is_read_and_written() -> None:
    sizes = {}
    for case in cuda_rows.cases():
        if case.op in ("gated", "lerp") and case.dtype == "bfloat16":
            inputs = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in case.inputs]
            out = torch.empty(cuda_rows.ROWS, cuda_rows.COLUMNS, dtype=torch.bfloat16, device="meta")
            sizes[case.kind] = [cuda_rows.traffic(case, way, inputs, out) / out.nbytes for way in (FORWARD, BACKWARD)]
    assert sizes["swiglu"] == [3.0, 5.0]
    assert sizes["number"] == [3.0, 3.0]
    assert sizes["tensor"] == [4.0, 7.0]
    assert sizes["columns"] == [pytest.approx(3.0, rel=1e-3), pytest.approx(5.0, rel=1e-3)]


def test_a_row_says_what_failed_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("no compiler\nand a long trace")

    case = GPU_CASES[0]
    monkeypatch.setattr(torch, "compile", broken)
    settings = bench_cuda.Settings(torch.device("cpu"), 0.0, compiled=True)
    for row in bench_cuda.measure(case, [FORWARD, BACKWARD], settings):
        assert "error" not in row, row["error"]
        assert row["compile_error"] == "RuntimeError: no compiler" and "ratio" in row
    failing = dataclasses.replace(case, ours=broken)
    for row in bench_cuda.measure(failing, [FORWARD, BACKWARD], settings):
        assert row["error"] == "RuntimeError: no compiler"
        assert bench_cuda._summary(row) == row["error"]
    without = dataclasses.replace(case, eager=broken)
    assert [row["error"] for row in bench_cuda.measure(without, [FORWARD], settings)] == ["RuntimeError: no compiler"]


@needs("cuda")
def test_the_table_of_a_gpu(tmp_path: pathlib.Path) -> None:
    pattern = "32x64x64 bfloat16|2048x768x3072|lerp number .* bfloat16|linear gelu 64x768x3072|mlp gelu 8192"
    arguments = ["--device", "cuda", "--quick", "--no-compile", "--rows", pattern, "--json", str(tmp_path)]
    assert cli.main(["bench", *arguments]) == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert path.name.startswith(f"{found['date']}-cuda-") and found["cuda"]
    by_clock = {row["clock"] for row in found["rows"]}
    assert by_clock == {"device", "wall", "graph"}
    for row in found["rows"]:
        assert "error" not in row, row["error"]
        assert row["epigrad"]["median"] > 0
    assert any(row.get("memory", {}).get("epigrad", {}).get("kept", 0) > 0 for row in found["rows"])
    assert all(0 < row["share"] < 2 for row in found["rows"] if "share" in row)
