"""`python -m epigrad bench` on problems small enough for a test, and how it measures."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import itertools
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
from epigrad.cli import bench, models, operations, report, table, timing
from epigrad.cli.models import MODELS
from epigrad.cli.operations import BOTH, Point
from epigrad.cli.table import print_table
from epigrad.integrations import patching

from tests.api.terminal import terminal
from tests.support.devices import REASONS, needs
from tests.support.models import TINY

DTYPES = {"float32", "float64", "bfloat16", "float16"}


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {3: ((2, 3, 4), (4, 5, 6), (6, 7, 8)), 1: ((4,), (8,), (16,))}
    tiny = tuple(
        dataclasses.replace(each, sizes={"cpu": sizes[len(each.sizes["cpu"][0])]}) for each in bench.OPERATIONS
    )
    monkeypatch.setattr(bench, "OPERATIONS", tuple(tiny))
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    monkeypatch.setitem(bench.EXPERTS, "mixtral-like", (4, 64, 64, 256, 2))
    for name in ("gpt2", "vit"):
        monkeypatch.setitem(MODELS, name, dataclasses.replace(MODELS[name], small=TINY[name]))


def run(*arguments: str) -> int:
    return cli.main(["bench", "--device", "cpu", *arguments])


@pytest.mark.parametrize(("load", "told"), [(0.5, False), (1e6, True)])
def test_a_busy_machine_is_told(
    load: float, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(bench, "run", lambda *_: 0)
    assert run() == 0
    assert ("busy" in capsys.readouterr().err) == told


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("quick", [False, True])
def test_writes_a_row_for_every_operation_size_and_dtype(quick: bool, tmp_path: pathlib.Path) -> None:
    threads = torch.get_num_threads()
    assert run("--json", str(tmp_path / "r.json"), *(["--quick"] if quick else [])) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    directions = ["forward and backward"] if quick else ["forward", "forward and backward"]
    wanted = list(itertools.product(range(3), [each.name for each in bench.OPERATIONS], directions, operations.DTYPES))
    assert [(row["case"], row["direction"], row["dtype"]) for row in found["rows"]] == [each[1:] for each in wanted]
    assert set(operations.DTYPES) == DTYPES
    assert all(row["epigrad"]["median"] > 0 and row["ratio"] > 0 and row["difference"] < 0.1 for row in found["rows"])
    assert {row["threads"] for row in found["rows"]} == {threads} == {torch.get_num_threads()}
    assert found["versions"]["epigrad"] == tables.VERSION


@pytest.mark.usefixtures("_tiny")
def test_a_report_has_experts_and_operations_in_one_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "EXPERTS", {"mixtral-like": bench.EXPERTS["mixtral-like"]})
    assert run("--report") == 0
    (file,) = tmp_path.iterdir()
    assert f"wrote {file.name}" in capsys.readouterr().out
    found = json.loads(file.read_text())
    cases = [row["case"] for row in found["rows"]]
    assert cases[:2] == ["mixtral-like"] * 2
    assert set(cases[2:]) == {each.name for each in bench.OPERATIONS}
    assert found["versions"]["epigrad"] == tables.VERSION


@pytest.mark.parametrize("others", [["--models"], ["--experts"], ["--rows", "mlp"], ["--json"]], ids=str)
def test_a_report_is_the_same_everywhere(others: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("--report", *others)
    assert "--report writes a file of the same rows everywhere" in capsys.readouterr().err


@pytest.mark.usefixtures("_tiny", "_one_thread")
def test_steps_of_models_are_measured(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    assert run("--models", "gpt2,vit", "--seconds", "0.1", "--json", str(path), "--plot", str(tmp_path)) == 0
    found = json.loads(path.read_text())
    assert found["command"] == "python -m epigrad bench --device cpu --models gpt2,vit --seconds 0.1"
    assert [(row["case"], row["kind"]) for row in found["rows"]] == [
        (name, "training step") for name in ("gpt2", "vit")
    ]
    assert all(row["ratio"] > 0 and 0 < row["difference"] < 1e-5 for row in found["rows"])
    assert "training step" in capsys.readouterr().out
    (picture,) = tmp_path.glob("*-models-*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_model_that_is_not_patched_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "patch", lambda model: patching.Report({}, {}))
    tiny = dataclasses.replace(MODELS["bert"], small=TINY["bert"])
    with pytest.raises(RuntimeError, match="patched 0 blocks"):
        models.measure(tiny, torch.device("cpu"), compiled=False, seconds=0)


@pytest.mark.usefixtures("_tiny", "_one_thread")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_mixtures_of_experts_are_measured(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--experts", "mixtral-like", "--dtypes", dtype, "--seconds", "0.1", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["case"], row["dtype"], row["size"]) == ("mixtral-like", dtype, "4 of 8 -> 8, 32 tokens x 2")
    assert row["ratio"] > 0 and row["difference"] < 8 * torch.finfo(getattr(torch, dtype)).eps


@pytest.mark.usefixtures("_tiny")
def test_pytorch_compiled_is_measured_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(function: Any, **options: object) -> Any:
        return function

    def broken(function: Any, **options: object) -> Any:
        return functools.partial(int, "no compiler")

    for stand_in, field in ((compiled, "ratio_to_compile"), (broken, "compile_error")):
        monkeypatch.setattr(torch, "compile", stand_in)
        assert run("--compile", "--quick", "--rows", "linear gelu 2x3x4 float32", "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert field in row and row["ratio"] > 0


def test_a_call_of_pytorchs_that_takes_too_long_is_made_once() -> None:
    calls: list[torch.Tensor] = []

    def eager(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x

    operation = operations.Operation("activation", "gelu", (eager, eager), lambda n: ((n,),))
    found = Point(operation, (4,), "float32", BOTH, 1).measure(torch.device("cpu"), False, 1.0, limit=0.0)
    assert len(calls) == 1 and found["skipped"].startswith("PyTorch takes ")


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


@pytest.mark.parametrize("name", ["linear", "mlp", "gated_mlp"])
def test_preactivations_have_the_standard_deviation_1(name: str) -> None:
    (operation,) = (each for each in bench.OPERATIONS if each.name == name)
    for size in ((64, 256, 1024), (256, 256, 1024)):  # of which one has as many rows as inputs
        point = Point(operation, size, "float32", BOTH, 1)
        made = point.operands(torch.Generator().manual_seed(0))
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
        (("--models", "gpt3"), "'gpt3': want one or more of gpt2, bert,"),
        (("--experts", "mixtral"), "'mixtral': want one or more of qwen3-30b-a3b, gpt-oss-20b, mixtral-like"),
        (("--models", "--experts"), "exclude each other"),
        (("--models", "--dtypes", "float32"), "--models takes no --dtypes"),
        (("--experts", "--dtypes", "float64"), "--experts: PyTorch's grouped_mm takes no float64"),
        (("--all-kinds",), "a clone of the repository has it: python -m benchmarks cpu --all-kinds\n"),
        (("--device", "webgpu"), "a clone of the repository has it: python -m benchmarks webgpu\n"),
        (("--device", "all"), "a clone of the repository has it: python -m benchmarks\n"),
    ],
)
def test_refuses_before_it_measures(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(*arguments)
    assert text in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib draws the picture")
@pytest.mark.usefixtures("_tiny")
def test_draws_bars(tmp_path: pathlib.Path) -> None:
    assert run("--rows", "mlp", "--plot", str(tmp_path / "r.png")) == 0
    assert (tmp_path / "r.png").stat().st_size > 10_000


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "timm" else own(name))
    with pytest.raises(SystemExit, match="2"):
        run("--models")
    assert "vit is a model of timm, which is not installed: pip install timm" in capsys.readouterr().err


@pytest.mark.usefixtures("_tiny")
def test_json_alone_goes_to_stdout_and_progress_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rows", "mlp gelu_tanh 2x3x4 float32 forward,", "--json") == 0
    captured = capsys.readouterr()
    assert [row["kind"] for row in json.loads(captured.out)["rows"]] == ["gelu_tanh"]
    assert re.search("^1/1 mlp", captured.err, re.M)  # after a word about a busy machine
    with pytest.raises(SystemExit, match="2"):
        report.check_paths(argparse.Namespace(json=report.STDOUT, plot=None, error=lambda text: sys.exit(2)), tables=2)


@pytest.mark.usefixtures("_tiny")
def test_a_bench_that_is_stopped_is_exit_code_130(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured until then is in the file."""
    measure, calls = Point.measure, iter(range(9))

    def stopped(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return measure(*arguments, **options)

    monkeypatch.setattr(Point, "measure", stopped)
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
    pattern = "gated_mlp swiglu 2x3x4 float(32|64) forward,"
    assert run("--rows", pattern, "--json", str(tmp_path / "r.json")) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert [(row["kind"], row["dtype"]) for row in found["rows"]] == [("swiglu", "float32"), ("swiglu", "float64")]
    assert found["command"].endswith(f"--rows {pattern!r}")


@pytest.mark.parametrize("operation", bench.OPERATIONS, ids=lambda operation: operation.name)
def test_both_sides_of_every_operation_compute_the_same(operation: operations.Operation) -> None:
    ours, eager = operation.pair
    size = (2, 3, 4) if operation.sizes is operations.LAYERS else (2048,)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in operation.shapes(*size)]
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


@needs("cuda")
def test_the_table_of_a_gpu(tmp_path: pathlib.Path) -> None:
    assert cli.main(["bench", "--device", "cuda", "--quick", "--rows", "2048x768", "--json", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert path.name.startswith(f"{found['date']}-cuda-") and found["cuda"]
    for row in found["rows"]:
        assert row["epigrad"]["median"] > 0 and row["ratio_to_compile"] > 0
        assert row["memory"]["epigrad"]["kept"] <= row["memory"]["eager"]["kept"]
