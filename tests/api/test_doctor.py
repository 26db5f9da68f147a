"""The command line: doctor's and plans' text, JSON and exit codes."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
from importlib import metadata
from typing import Any

import epigrad
import pytest
import torch
from epigrad import cli, errors
from epigrad._check.operations import OPERATIONS
from epigrad._core import loader, tables
from epigrad.cli import bench, check, doctor

from tests.api.checking import example_of
from tests.support.processes import start
from tests.support.tiers import thorough


def run(*arguments: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    return start("-m", "epigrad", *arguments, **changes)


def facts_of(text: str) -> dict[str, Any]:
    facts = json.loads(text)
    assert isinstance(facts, dict)
    return facts


def test_doctor_prints_json_and_exits_with_0() -> None:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    facts = facts_of(done.stdout)
    assert facts["cpu_check"] == "ok"
    versions = facts["versions"]
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__
    assert versions["epigrad"] == tables.VERSION
    assert versions["go"].startswith("go1.")
    assert {row["name"]: row["available"] for row in facts["backends"]} == {
        info.name: info.available for info in epigrad.backends()
    }
    for row in facts["backends"]:
        assert row["available"] or row["reason"], f"{row['name']}: no reason given"
        assert not row["reason"].startswith(row["name"]), row  # which stands before it already
    assert facts["core"]["cpu_count"] >= 1 and facts["core"]["gomaxprocs"] >= 1
    assert isinstance(facts["core"]["cpu_features"], list)


def test_doctor_prints_the_same_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in (torch.__version__, tables.VERSION, platform.python_version(), "cpu", "webgpu", "cuda", "ok"):
        assert word in text
    for info in epigrad.backends():
        assert " ".join(info.reason.split())[:30] in " ".join(text.split())


def test_doctor_reports_a_core_that_does_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise errors.BackendUnavailableError("the core is gone")

    monkeypatch.setattr(loader, "core", fails)
    assert cli.main(["doctor", "--json"]) == 1
    facts = facts_of(capsys.readouterr().out)
    assert "the core is gone" in facts["cpu_check"] and facts["versions"]["torch"] == torch.__version__
    assert cli.main(["doctor"]) == 1
    assert "the core is gone" in capsys.readouterr().out


def test_doctor_reports_wrong_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor.functional, "linear", lambda x, w, b, activation: x @ w.T)
    assert cli.main(["doctor", "--json"]) == 1
    assert facts_of(capsys.readouterr().out)["cpu_check"] != "ok"


def test_doctor_works_whatever_the_environment_chooses() -> None:
    done = run("doctor", "--json", EPIGRAD_BACKEND="cpu", EPIGRAD_TUNE="1", OMP_NUM_THREADS="1")
    assert done.returncode == 0 and facts_of(done.stdout)["torch_threads"] == 1


@thorough
def test_doctor_reports_a_choice_that_cannot_run() -> None:
    done = run("doctor", "--json", EPIGRAD_BACKEND="bogus")
    facts = facts_of(done.stdout)
    assert done.returncode == 1 and facts["cpu_check"] == "ok"
    assert "EPIGRAD_BACKEND" in facts["choice_check"] and "'bogus'" in facts["choice_check"]


def test_without_a_command_all_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    text = capsys.readouterr().err
    assert all(f"python -m epigrad {command}" in text for command in ("doctor", "bench", "plans", "check"))


@thorough
def test_tables_fold_where_columns_says_so() -> None:
    """Without a terminal nothing else folds them."""
    wide, narrow = run("doctor", COLUMNS=None), run("doctor", COLUMNS="80")
    assert max(map(len, narrow.stdout.splitlines())) <= 80 < max(map(len, wide.stdout.splitlines()))


def test_plans_without_a_class_show_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plans"])
    assert "plans --class GemmEpilogueBackward --m" in capsys.readouterr().err


PROBLEMS = {
    "GemmEpilogue": ("--m", "3", "--n", "4", "--k", "5", "--activation", "gelu"),
    "GemmEpilogueBackward": ("--m", "3", "--n", "4", "--k", "5", "--batch", "2", "--b-batched"),
    "GatedActivation": ("--input-shape", "3", "8", "--kind", "glu"),
    "GatedActivationBackward": ("--input-shape", "8", "3", "--split-dim", "0", "--gate", "first"),
    "Lerp": ("--shape", "3", "4", "--weight", "0.5"),
    "LerpBackward": ("--shape", "3", "4"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_plans_tell_what_would_run(
    name: str, dtype: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # in which no kernel's name is broken
    assert cli.main(["plans", "--class", name, "--dtype", dtype, "--json", *PROBLEMS[name]]) == 0
    facts = facts_of(capsys.readouterr().out)
    assert facts["class"] == name
    assert (
        facts["sku"]["dtype"] == dtype and facts["sku"]["accumulator"] == "float32" and facts["sku"]["backend"] == "cpu"
    )
    assert facts["precision_guarantee"]["deterministic"] is True
    assert isinstance(facts["workspace_size"], int)
    assert cli.main(["plans", "--class", name, "--dtype", dtype, *PROBLEMS[name]]) == 0
    text = capsys.readouterr().out
    assert {*facts["sku"]["kernel"].split("+"), dtype} <= set(text.split())


@pytest.mark.parametrize("op", OPERATIONS)
def test_plans_tell_what_would_run_for_every_operation(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Forward, and backward to everything."""
    problem = example_of(op, "bfloat16")
    assert cli.main(["plans", "--problem", problem, "--json"]) == 0
    plans = facts_of(capsys.readouterr().out)
    assert list(plans) == [op, f"{op}_backward"]
    for name, facts in plans.items():
        assert facts["sku"]["op"] == name and facts["sku"]["dtype"] == "bfloat16" and facts["sku"]["kernel"]
        assert (facts["inputs"], facts["outputs"]) == (list(tables.OPS[name].tensors), list(tables.OPS[name].results))
    assert cli.main(["plans", "--problem", problem]) == 0
    assert f"{op}_backward: kernel" in capsys.readouterr().out


def test_a_problem_and_a_class_of_plans_are_the_same_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plans", "--problem", "matmul_bias_activation kind=gelu sizes=0x0x3x4x5", "--json"]) == 0
    by_problem = facts_of(capsys.readouterr().out)
    for op, name in zip(by_problem, ("GemmEpilogue", "GemmEpilogueBackward"), strict=True):
        assert cli.main(["plans", "--class", name, "--json", *PROBLEMS["GemmEpilogue"]]) == 0
        by_class = facts_of(capsys.readouterr().out)
        for what in ("sku", "precision_guarantee", "workspace_size"):
            assert by_problem[op][what] == by_class[what]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--problem", "lerp sizes=2x3x0", "--class", "Lerp", "--shape", "2", "3"), "want --class or --problem"),
        (("--problem", "lerp sizes=2x3x0", "--dtype", "float64"), "--dtype does not belong to --problem"),
        (("--problem", "lerp sizes=2x3x0", "--shape", "2"), "--shape does not belong to --problem"),
        (("--problem", "lerp sizes=2x3x0", "--device", "tpu"), "--device tpu: want cpu, cuda or cuda:N"),
        (("--problem", "lerp"), "such as sizes=1x3x5"),
    ],
)
def test_plans_of_a_problem_take_nothing_beside_it(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["plans", *arguments])
    assert text in capsys.readouterr().err


def test_plans_take_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ("plans", "--class", "GemmEpilogue", "--json", "--m", "3", "--n", "4", "--k", "5")
    assert cli.main([*problem, "--activation", "leaky_relu", "--parameter", "slope=0.2"]) == 0
    assert facts_of(capsys.readouterr().out)["sku"]["kind"] == "leaky_relu(slope=0.2)"
    for wrong in (["slope"], ["slope=x"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*problem, "--parameter", *wrong])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("GemmEpilogue", "--m", "3", "--n", "4", "--k", "5", "--parameter", "slope=0.2"), "slope"),
        (("GemmEpilogue", "--m", "-3", "--n", "4", "--k", "5"), "-3"),
        (("GemmEpilogue", "--m", "3", "--n", "4", "--k", "5", "--activation", "swash"), "gelu_tanh"),
        (("GatedActivation", "--input-shape", "3", "7"), "7"),
        (("Lerp", "--shape", "3", "--device", "cuda"), "cuda"),
    ],
)
def test_a_refused_problem_is_exit_code_1(
    arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if word == "cuda" and torch.cuda.is_available():
        pytest.skip("for a machine without CUDA")
    assert cli.main(["plans", "--class", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and word in captured.err and "Error: " in captured.err


@pytest.mark.parametrize(
    "arguments", [(), ("diagnose",), ("doctor", "--colour"), ("plans",), ("plans", "--class", "Lerp")], ids=str
)
def test_arguments_that_make_no_sense_are_exit_code_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(list(arguments))
    assert left.value.code == 2
    text = capsys.readouterr().err
    assert "--help" in text
    assert not arguments or len(text.splitlines()) <= 3, "the options, in front of what is wrong"


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (("dokter",), "(did you mean 'doctor'?)"),
        (("check", "--mode", "corect"), "(did you mean 'correct'?)"),
        (("check", "--problem", "lineer"), "(did you mean 'linear'?)"),
        (("plans", "--class", "lerp"), "(did you mean 'Lerp'?)"),
        (("doctor", "extra"), "unrecognized arguments: extra"),
    ],
    ids=str,
)
def test_an_error_names_what_was_meant_and_its_own_help(
    arguments: tuple[str, ...], end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(list(arguments))
    command = " doctor" if "extra" in arguments else f" {arguments[0]}" if len(arguments) > 1 else ""
    error, more = capsys.readouterr().err.splitlines()
    assert error.endswith(end)
    assert more == f"python -m epigrad{command} --help lists all options"


@pytest.mark.parametrize("command", [None, "doctor", "bench", "plans", "check"])
def test_help_tells_exit_codes_and_its_examples_are_right(
    command: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples are parsed; those of plans, which take no time, are run."""
    with pytest.raises(SystemExit):
        cli.main([*([command] if command else []), "--help"])
    text = capsys.readouterr().out
    assert "exit codes: 0" in text and max(map(len, text.splitlines())) <= 80
    examples = [
        shlex.split(line.partition("   ")[0].partition(" | ")[0])[3:]
        for line in map(str.strip, text.splitlines())
        if line.startswith("python -m epigrad ")
    ]
    assert examples or command == "doctor"
    for slow in (bench, check):
        monkeypatch.setattr(slow, "main", lambda args: 0)
    for example in examples:
        if "--help" in example:
            continue
        assert cli.main(example) == 0, example


def test_doctor_lists_what_it_can_do_without(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    packages = facts_of(capsys.readouterr().out)["packages"]
    assert packages["timm"] == metadata.version("timm") and packages["rich"] == metadata.version("rich")
