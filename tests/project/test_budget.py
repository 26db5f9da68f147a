"""A tier that takes too long fails, and says which tests are slow."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import environment
from tests.support.repository import ROOT

budget = runpy.run_path(str(ROOT / ".ci" / "budget.py"))


@pytest.mark.parametrize(
    ("minutes", "others", "slack", "status", "words"),
    [
        (7.9, 0.0, budget["SLACK"], 0, "7.9 minutes of 8"),
        (9.5, 0.0, budget["SLACK"], 0, "9.5 minutes of 8"),
        (9.7, 0.0, budget["SLACK"], 1, "too long. Make a test faster"),
        (9.7, 0.5, budget["SLACK"], 0, "too long, but other programs used 0.5 processors"),
        (15.9, 0.0, 2.0, 0, "15.9 minutes of 8"),
        (16.1, 0.0, 2.0, 1, "too long. Make a test faster"),
    ],
)
def test_a_fifth_more_than_the_limit_fails_on_an_idle_machine(
    minutes: float, others: float, slack: float, status: int, words: str
) -> None:
    code, text = budget["verdict"]("make test", 8, minutes, others, slack)
    assert code == status and words in text


def test_others_are_all_programs_without_the_command() -> None:
    assert budget["others"](1000.0, 1200.0, 150.0, 100.0) == 0.5
    assert budget["others"](None, 1200.0, 150.0, 100.0) == 0
    before, begin = budget["processor_seconds"](), time.monotonic()
    if before is None:
        return
    while time.monotonic() < begin + 0.5:
        pass
    assert 0.2 < budget["processor_seconds"]() - before < 0.6 * (os.cpu_count() or 1)


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "budget.py"), "test", "5", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment(), check=False)


def test_the_slowest_tests_are_printed_and_the_status_is_the_commands(tmp_path: Path) -> None:
    program = """
import json, os, pathlib, sys
lines = [json.dumps([f"test_{i}", i]) + "\\n" for i in range(20)]
pathlib.Path(os.environ["EPIGRAD_DURATIONS"], "a.jsonl").write_text("".join(lines))
sys.exit(3)
"""
    ran = run(tmp_path, program)
    assert ran.returncode == 3
    shown = [line.split()[-1] for line in ran.stdout.splitlines()]
    assert shown == [f"test_{i}" for i in range(19, 9, -1)]
    ran = run(tmp_path, "pass")
    assert ran.returncode == 0 and ran.stdout.startswith("test: 0.0 minutes of 5")


def test_durations_of_go_and_of_python_are_noted(tmp_path: Path) -> None:
    variables = environment(EPIGRAD_DURATIONS=str(tmp_path))
    arguments = [str(ROOT / ".ci" / "gotest.py"), "-run", "TestMidpoints|TestNoSuch", "./go/dtype", "./go/status"]
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["ok", "ok"], ran.stdout
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/project/test_rooms.py"]
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, check=True)
    noted = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert any(name.startswith("github.com/epigrad/epigrad/go/dtype TestMidpoints") for name, *_ in noted)
    assert any(name.startswith("tests/project/test_rooms.py::") for name, *_ in noted)
    assert all(took == "skip" or took >= 0 for _, *times in noted for took in times)


@pytest.mark.parametrize("wrong", ['t.Error("wrong by 3")', 'panic("wrong by 3")', 'println("wrong by 3"); os.Exit(3)'])
def test_output_of_a_go_test_that_fails_is_printed(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n\ngo 1.26\n")
    (tmp_path / "x_test.go").write_text(
        'package x\n\nimport (\n"os"\n"testing"\n)\n\nvar _ = os.Exit\n'
        f'func TestGood(t *testing.T) {{ t.Log("quiet") }}\nfunc TestBad(t *testing.T) {{ {wrong} }}\n'
    )
    command = [sys.executable, str(ROOT / ".ci" / "gotest.py"), "./..."]
    ran = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "wrong by 3" in ran.stdout and "quiet" not in ran.stdout
