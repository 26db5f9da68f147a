"""setup.py, which pip runs: where it cannot build it says what to do."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.support.repository import ROOT

SETUP = ROOT / "setup.py"


def test_on_windows_the_build_ends_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    # setuptools itself asks for the platform when it is imported
    for name in ("bdist_wheel", "build_ext"):
        pytest.importorskip(f"setuptools.command.{name}")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SETUP))
    assert str(caught.value) == (
        "epigrad's Python package does not build on Windows: install WSL 2 (wsl --install) and run pip in it"
    )
