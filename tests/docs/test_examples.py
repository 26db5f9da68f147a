"""The programs of examples/ run and show what they say, also in the tutorials of Go and C."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from epigrad.cli.timing import Timing
from matplotlib.figure import Figure

from tests.api.test_c_abi import LIBRARY, require_library
from tests.api.test_seeds import require
from tests.docs.test_pages import blocks
from tests.support.repository import ROOT

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
    module = example("demo")
    for name, value in {"ROUND_SECONDS": 0.0, "WANTED_ROUNDS": 0, "PICTURE": tmp_path / "demo.png"}.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_the_demo_measures_what_its_networks_do(demo: ModuleType) -> None:
    for network, names in demo.OPERATIONS.items():
        for make in demo.NETWORKS[network].values():
            model = make()
            # the second block repeats the first; LayerNorm is PyTorch's in both
            told = {id(p) for path in names for p in model.get_submodule(path.replace(".0", ".1")).parameters()}
            told |= {id(p) for path in names for p in model.get_submodule(path).parameters()}
            left = [name for name, p in model.named_parameters() if id(p) not in told]
            assert all(name.startswith("norms.") for name in left), left


def test_the_demos_operations_have_the_networks_sizes(demo: ModuleType) -> None:
    measured = demo.operations(torch.randn(demo.BATCH, 64))
    assert [operation.name for operation in measured] == [
        "linear + GELU, 128x64 to 256",
        "linear + GELU, 128x256 to 128",
        "linear, 128x128 to 10",
        "linear, 128x64 to 96",
        "MLP, SwiGLU, 128x96 to 192 to 96",
        "lerp, 128x96",
        "linear, 128x96 to 10",
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [(1.0, 1.02, "equal"), (1.02, 1.0, "equal"), (1.0, 1.5, "epigrad 1.50x less"), (1.5, 1.0, "PyTorch 1.50x less")],
)
def test_the_demo_says_who_is_ahead(demo: ModuleType, ours: float, theirs: float, told: str) -> None:
    assert demo.verdict(ours, theirs, "less") == told


@pytest.mark.parametrize("was_busy", [False, True])
def test_the_demos_picture_has_every_bar_and_warns(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, was_busy: bool
) -> None:
    texts: list[str] = []

    def savefig(figure: Figure, path: pathlib.Path, **_: object) -> None:
        texts.extend(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))

    monkeypatch.setattr(Figure, "savefig", savefig)
    timings = {"PyTorch": Timing.of([2e-6]), "epigrad": Timing.of([1e-6])}
    result = demo.Result(losses=[1.0] * demo.EPOCHS, seconds=[1e-6, 3e-6])
    results = {network: dict.fromkeys(demo.LIBRARIES, result) for network in demo.NETWORKS}
    saved = {"PyTorch": 1024, "epigrad": 3072}
    demo.draw(results, [demo.Operation(name, timings, saved) for name in ("one", "two")], was_busy)
    assert texts.count("epigrad 2.00x faster (1 / 2 us)") == 2
    assert texts.count("equal (3 / 3 us)") == len(demo.NETWORKS)
    assert texts.count("PyTorch 3.00x less (3 / 1 KiB)") == 2
    assert (demo.BUSY in texts) == was_busy


def test_a_machine_whose_rounds_differ_is_busy(demo: ModuleType) -> None:
    assert demo.busy([Timing.of([1.0, 1.0, 1.0, 1.0]), Timing.of([1.0, 3.0, 3.0, 3.0])])
    assert not demo.busy([Timing.of([1.0, 1.1, 1.2, 3.0])])


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
