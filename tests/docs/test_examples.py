"""The programs of examples/ run and show what they say, also in the tutorials of Go and C."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from epigrad.cli.timing import Timing
from matplotlib.figure import Figure

from tests.api.test_c_abi import LIBRARY, require_library
from tests.api.test_seeds import require
from tests.docs.test_pages import blocks
from tests.support.repository import ROOT
from tests.support.tiers import thorough

FOLDER = ROOT / "examples"
TUTORIALS = ROOT / "docs" / "tutorials"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("_one_thread")
def test_token_shift_learns_where_to_look() -> None:
    module = example("token_shift")
    accuracy, block = module.train(shifted=True)
    assert accuracy > 0.9
    assert (block.shift_key.mix < 0.5).float().mean() > 0.5
    assert module.train(shifted=False)[0] < 0.3


def test_a_token_shift_is_the_mix_of_two_tokens() -> None:
    shift = example("token_shift").TokenShift(3).double()
    with torch.no_grad():
        shift.mix.copy_(torch.tensor([0.0, 0.25, 1.0]))
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    before = torch.cat([torch.zeros(2, 1, 3, dtype=torch.float64), x[:, :-1]], 1)
    torch.testing.assert_close(shift(x), torch.lerp(before, x, shift.mix.expand_as(x)))
    assert torch.autograd.gradcheck(shift, x)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> ModuleType:
    """The demo with a picture of its own, a tiny model and no time for timing."""
    module = example("demo")
    changes = {"PICTURE": tmp_path / "demo.png", "STEPS": 4, "LETTERS": 8, "BATCH": 2, "CONTEXT": 16}
    changes["SECONDS"] = {"step": 0.0, "layer": 0.0}
    changes["SIZES"] = module.SIZES | {"hidden_size": 32, "head_dim": 8}
    changes["EXPERTS"] = module.EXPERTS | {"moe_intermediate_size": 32}
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    return module


@pytest.mark.usefixtures("_one_thread")
def test_the_demo_trains_the_same_and_ends_with_two_lines_to_copy(
    demo: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = []
    train = demo.train
    monkeypatch.setattr(demo, "train", lambda *arguments: trainings.append(train(*arguments)) or trainings[-1])
    demo.main()
    assert max(trainings[0].apart) < 1e-4
    assert len(trainings[0].losses["epigrad"]) == demo.STEPS
    assert demo.PICTURE.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == ["from epigrad.integrations.transformers import patch", "print(patch(model))"]


def rows_of(demo: ModuleType, theirs: float, ours: float) -> list[Any]:
    timings = {"PyTorch": Timing.of([theirs * 1e-3]), "epigrad": Timing.of([ours * 1e-3])}
    return [demo.Row(name, timings, {"PyTorch": 2**22, "epigrad": 2**20}) for name in ("one, a", "two, b")]


@pytest.mark.parametrize(
    ("theirs", "ours", "told"),
    [
        (1.0, 1.02, "Both are equal"),
        (1.02, 1.0, "Both are equal"),
        (1.0, 1.5, "PyTorch is faster"),
        (1.5, 1.0, "epigrad is faster"),
    ],
)
def test_the_demo_says_who_is_ahead(
    demo: ModuleType, theirs: float, ours: float, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.print_rows(demo.Console(width=80), rows_of(demo, theirs, ours), False)
    out = capsys.readouterr().out
    assert f"{told}: one, a; two, b." in out
    assert out.count(f"{ours / theirs:.2f}") >= 2


@pytest.mark.parametrize("busy", [False, True])
def test_the_demo_gives_no_verdict_on_a_busy_machine(
    demo: ModuleType, busy: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str] = []

    def savefig(figure: Figure, path: pathlib.Path, **_: object) -> None:
        texts.extend(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))

    monkeypatch.setattr(Figure, "savefig", savefig)
    losses = {"PyTorch": [2.0, 1.0], "epigrad": [2.0, 1.125]}
    rows = rows_of(demo, 2.0, 1.0)
    demo.draw(demo.Training(losses, {}), "words", rows, busy)
    assert "Losses: 0.06 apart, at most 0.1" in texts
    assert texts.count("0.25  (1 of 4 MiB)") == 2
    assert texts.count("0.50  (1 of 2 ms)") == (0 if busy else 2)
    assert ("Time: epigrad is faster in 2 of 2" in texts) != busy
    demo.print_rows(demo.Console(width=200), rows, busy)
    out = capsys.readouterr().out
    assert ("faster" in out) != busy
    assert (demo.BUSY in out) == busy


def test_a_machine_whose_rounds_differ_is_busy(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_seconds_of_others", lambda: 0.0)
    even, uneven = Timing.of([1.0, 1.1, 1.2, 3.0]), Timing.of([1.0, 3.0, 3.0, 3.0])
    assert not demo.Load().busy([even])
    assert demo.Load().busy([even, uneven])


def test_a_machine_whose_processors_others_use_is_busy(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    others = iter([0.0, 1e9])
    monkeypatch.setattr(demo, "_seconds_of_others", lambda: next(others))
    assert demo.Load().busy([])


def said(command: str, folder: pathlib.Path, **variables: str) -> str:
    """What commands of a page print."""
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("language", ["go", "c"])
def test_programs_of_tutorials_are_examples(language: str) -> None:
    program = {"go": FOLDER / "go" / "first_layer" / "main.go", "c": FOLDER / "c" / "first_layer.c"}[language]
    assert blocks(TUTORIALS / f"{language}.md", language) == [program.read_text()]


@thorough
def test_the_tutorial_of_go_begins_in_an_empty_folder(tmp_path: pathlib.Path) -> None:
    require("go")
    page = TUTORIALS / "go.md"
    begin, from_a_checkout, run = blocks(page, "sh")
    folder = tmp_path / "wave"
    folder.mkdir()
    (tmp_path / "epigrad").symlink_to(ROOT)
    (folder / "main.go").write_text(blocks(page, "go")[0])
    (folder / "go.sum").write_text((ROOT / "go.sum").read_text())  # spares a question to a server
    commands = begin.splitlines()[0] + "\n" + from_a_checkout + run
    assert [said(commands, folder, CGO_ENABLED="0")] == blocks(page, "text")


def test_the_tutorial_of_c_runs(tmp_path: pathlib.Path) -> None:
    require_library()
    page = TUTORIALS / "c.md"
    _, commands = blocks(page, "sh")
    require(commands.split()[0])
    (tmp_path / "build").symlink_to(LIBRARY.parent)
    (tmp_path / "first_layer.c").write_text(blocks(page, "c")[0])
    assert [said(commands, tmp_path)] == blocks(page, "text")
