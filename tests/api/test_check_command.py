"""The command line of `python -m epigrad check`."""

from __future__ import annotations

import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from epigrad import cli, errors
from epigrad._check import modes, search
from epigrad._check.modes import MODES
from epigrad._check.operations import OPERATIONS
from epigrad._check.problem import Problem
from epigrad.cli import report

from tests.api.checking import example_of
from tests.api.terminal import terminal
from tests.support.processes import start

pytestmark = pytest.mark.usefixtures("_one_thread")


def run(*arguments: str) -> int:
    return cli.main(["check", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mode", "right"), "'right': want one or more of correct, bitwise, bad, leak, race, separated by commas"),
        (("--seconds", "-1"), "-1: want a number of seconds > 0"),
        (("--problems", "0"), "0: want a number of problems > 0"),
        (
            ("--problem", "linea sizes=1"),
            "operation 'linea', want one of matmul_bias_activation, linear",
        ),
        (
            ("--problem", "linear sizes=1x2"),
            "linear: sizes=1x2, want LEADxROWSxFEATURESxCOLUMNS, such as sizes=1x3x5x4",
        ),
        (("--problem", "lerp"), "lerp: sizes=, want ROWSxCOLUMNSxMASK, such as sizes=1x3x5"),
        (("--problem", "linear kind=rely sizes=1x2x3x4"), "kind=rely: "),
        (("--problem", "linear size=1x2x3x4"), "'size=1x2x3x4', want NAME=VALUE, with a name out of kind, dtype"),
        (("--problem", "linear dtype=int8 sizes=1x2x3x4"), "dtype=int8"),
        (("--problem", "linear sizes=-1x2x3x4"), "sizes=-1x2x3x4"),
        (("--problem", "linear kind=swiglu sizes=1x2x3x4"), "linear: kind=swiglu, want an activation"),
        (("--problem", "linear kind=relu(1) sizes=1x2x3x4"), "kind=relu(1): "),
        (("--problem", "linear sizes=1x2x3x4 needs="), "needs=: want 0 or 1"),
        (("--problem", "linear sizes=1x2x3x4 scale=nan"), "scale=nan: want a number > 0"),
        (("--problem", "linear sizes=1x2x3x4 bias=7"), "bias=7: want 0 or 1"),
        (
            ("--problem", "gated_product sizes=1x3x5 entry=module"),
            "gated_product: entry=module, want one of autograd, dispatcher, stateless, c, plan",
        ),
        (
            ("--problem", "linear sizes=1x2x3x4 values=odd"),
            "values=odd: want one of normal, tiny, huge, infinite, mixed",
        ),
        (("--problem", ""), "operation '', want one of matmul_bias_activation, linear"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_backend_that_is_not_here() -> None:
    if torch.cuda.is_available():
        pytest.skip("CUDA is here")
    with pytest.raises(SystemExit) as ended:
        run("--backend", "cuda", "--problems", "1")
    assert ended.value.code == 2


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--problems", "1", "--mode", "bad", "--json", str(tmp_path / "none" / "r.json"))
    assert ended.value.code == 2
    assert "its directory does not exist" in capsys.readouterr().err


def test_a_single_problem_has_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert run("--problem", "linear sizes=1x3x5x4", "--mode", "correct,bad", "--json", str(path)) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["mode"], row["problems"], row["failed"]) for row in rows] == [("correct", 1, 0), ("bad", 1, 0)]


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_sizes_that_an_error_gives_as_an_example_are_right(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.InvalidProblemError) as refused:
        Problem.read(op)
    assert str(refused.value).endswith((problem := example_of(op)).rpartition(" ")[2])
    assert run("--problem", problem, "--mode", "correct") == 0, capsys.readouterr().out


def test_a_terminal_keeps_a_line_for_each_mode_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar erases itself, and with it nothing else."""
    arguments = ("--problems", "2", "--mode", "correct,bad")
    with terminal() as screen:
        assert run(*arguments) == 0
    assert "\x1b[" in screen.raw, "no bar"
    assert run(*arguments) == 0
    wanted = ["1/2 correct: 2 problems in S, none failed", "2/2 bad: 2 problems in S, none failed"]
    wanted.append("passed: 4 problems on cpu")
    for lines in (screen.lines, capsys.readouterr().out.splitlines()):
        assert [line for line in (re.sub(r"\d+\.\d s", "S", line) for line in lines) if line in wanted] == wanted
    assert screen.lines[-1] == wanted[-1]


def test_the_verdict_of_failures_counts_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.check, "warm", lambda backend: None)
    monkeypatch.setattr(search, "SHRINK_SECONDS", 0.0)
    monkeypatch.setitem(MODES, "correct", lambda problem, backend: "wrong: a test")
    assert run("--problems", "3", "--mode", "correct") == 1
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "failed: 3 of 3 problems on cpu; the commands above reproduce them"


def test_seconds_are_those_of_the_whole_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading what the first calls load counts. The modes share the rest, and one that takes less
    leaves time to the others."""
    clock = itertools.count()
    monkeypatch.setattr(cli.check.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(cli.check, "warm", lambda backend: all(next(clock) < 100 for _ in range(200)))
    monkeypatch.setattr(search, "SHRINK_SECONDS", -1.0)
    monkeypatch.setitem(MODES, "correct", lambda problem, backend: "wrong: a test")
    monkeypatch.setitem(MODES, "bad", lambda problem, backend: "")
    monkeypatch.setitem(MODES, "leak", lambda problem, backend: "")
    assert run("--seconds", "400", "--mode", "bad,correct,leak", "--json") == 1
    taken = [row["seconds"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert taken[0] == pytest.approx(300 / 3, abs=10)
    assert taken[1] < 80 < taken[2] and sum(taken) == pytest.approx(300, abs=20)


def test_ctrl_c_keeps_what_was_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = itertools.count()

    def interrupted(problem: Problem, backend: str) -> str:
        number = next(counted)
        if number == 6:  # while the failure of the fourth is made small
            raise KeyboardInterrupt
        return "wrong: a test" if number >= 3 else ""

    monkeypatch.setattr(cli.check, "warm", lambda backend: None)
    monkeypatch.setitem(MODES, "correct", interrupted)
    path = tmp_path / "r.json"
    assert run("--problems", "100", "--mode", "correct,bad", "--json", str(path)) == 130
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["problems"], row["failed"], row["stopped"]) == (4, 1, True)
    printed = capsys.readouterr()
    assert "4 problems" in printed.out and "1 failed, stopped" in printed.out and printed.err == "stopped\n"


FAULT = """
import itertools, os, signal, sys
from epigrad import cli
from epigrad._check.modes import MODES
from epigrad.cli import check
counted = itertools.count()
MODES["correct"] = lambda problem, backend: os.kill(os.getpid(), signal.SIGKILL) if next(counted) == 3 else ""
check.warm = lambda backend: None
cli.main(["check", "--mode", "correct", "--seed", "5"])
"""


def test_a_problem_that_ends_the_process_is_printed() -> None:
    done = start("-c", FAULT)
    assert done.returncode == -signal.SIGKILL
    problem = next(itertools.islice(search.problems("correct", "cpu", 5), 3, None))
    told = done.stderr.splitlines()[-2:]
    assert told == ["the process ended at this problem:", f"  {search.command('correct', problem, 'cpu')}"]


def test_without_a_terminal_there_is_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report.Progress, "LINE_SECONDS", 0.0)
    assert run("--problems", "3", "--mode", "correct") == 0
    lines = capsys.readouterr().out.splitlines()
    tried = [f"1/1 correct: {text}" for text in ("1 problem", "2 problems", "3 problems")]
    assert lines[:4] == ["0/1 starting", *tried]


def test_the_oracle_runs_on_one_thread_and_the_call_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, int] = {}
    own, expected = modes.run, modes._compared

    def running(*arguments: Any) -> Any:
        threads["call"] = torch.get_num_threads()
        return own(*arguments)

    def comparing(*arguments: Any) -> str:
        threads["oracle"] = torch.get_num_threads()
        return expected(*arguments)

    monkeypatch.setattr(modes, "run", running)
    monkeypatch.setattr(modes, "_compared", comparing)
    torch.set_num_threads(2)  # the fixture of this file sets it back
    assert modes.correct(Problem.read("linear sizes=1x3x5x4"), "cpu") == ""
    assert threads == {"call": 2, "oracle": 1} and torch.get_num_threads() == 2
