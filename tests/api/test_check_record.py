"""`tests/tools/check_record.py`: what a file of recorded runs says, and which runs it takes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from epigrad import _native
from epigrad.cli import machine

from tests.support.tiers import nightly
from tests.tools import check_record


def record(folder: Path, *arguments: str) -> int:
    return check_record.main([str(folder), *arguments])


@pytest.fixture
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "commit", lambda: None)
    monkeypatch.delenv("EPIGRAD_COMMIT", raising=False)


@pytest.mark.usefixtures("_no_git")
@nightly
def test_runs_are_added_up_and_keep_their_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert record(tmp_path, "--jobs", "1", "--commit", "one", "bad=3", "correct=2") == 0
    (path,) = tmp_path.iterdir()
    older = path.rename(path.with_name(f"2026-01-01{path.name[10:]}"))
    monkeypatch.setenv("EPIGRAD_COMMIT", "two")
    assert record(tmp_path, "--jobs", "1", "--seed", "1", "bad=4") == 0
    assert list(tmp_path.iterdir()) == [older], "a new day goes on with the file"
    contents = json.loads(older.read_text())
    assert contents["problems"] == {"bad": {"problems": 7, "failed": 0}, "correct": {"problems": 2, "failed": 0}}
    assert [run["commit"] for run in contents["runs"]] == ["one", "two"]
    library = hashlib.sha256(Path(str(_native.__file__)).read_bytes()).hexdigest()
    assert {run["library"] for run in contents["runs"]} == {library}
    assert [(run["first_seed"], run["last_seed"]) for run in contents["runs"]] == [(0, 0), (1, 1)]
    assert all(run["backend"] == machine.backend("cpu") for run in contents["runs"])


def test_seeds_that_a_file_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = check_record.place(tmp_path, "cpu")
    path.write_text(json.dumps({"runs": [{"first_seed": 4, "last_seed": 6, "rows": []}]}))
    with pytest.raises(SystemExit) as ended:
        record(tmp_path, "--jobs", "2", "--seed", "3", "bad=1")
    assert ended.value.code == 2
    assert "give --seed 7" in capsys.readouterr().err


def test_engines_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for engine in ("avx2", "avx512bf16"):
        monkeypatch.setattr(machine, "backend", lambda backend, engine=engine: f"engine {engine} on amd64, 2 CPUs")
        names.append(check_record.place(tmp_path, "cpu").name)
    assert "-avx2-check.json" in names[0] and "-avx512bf16-check.json" in names[1]


@pytest.mark.usefixtures("_no_git")
def test_without_a_commit_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="EPIGRAD_COMMIT"):
        record(tmp_path, "bad=1")
    assert not list(tmp_path.iterdir())


def test_a_failure_and_a_crash_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="wrong=1: exit code 2: "):
        record(tmp_path, "--jobs", "1", "--commit", "one", "wrong=1")
    row = {"mode": "bad", "problems": 5, "failed": 2, "seconds": 1, "failures": [{}, {}]}
    facts = {"device": "d", "backend": "b", "threads": 1, "versions": {}}
    monkeypatch.setattr(check_record, "checked", lambda mode, args: (row, facts))
    assert record(tmp_path, "--jobs", "1", "--commit", "one", "bad=5") == 1
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["problems"] == {"bad": {"problems": 5, "failed": 2}}
