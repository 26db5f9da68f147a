"""setup.py, which pip runs: where it cannot build it says what to do."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

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


def test_make_builds_the_extension_once(tmp_path: Path) -> None:
    """pip links a clone into .venv without a compiler's work, which `make build` does itself."""
    recipe = re.search(r"(\w+)=1 \$\(PIP_INSTALL\).*--editable", (ROOT / "Makefile").read_text())
    assert recipe is not None
    variables = {recipe[1]: "1", "CC": str(tmp_path / "no compiler")}
    command = [sys.executable, str(SETUP), "--quiet", "build_ext", "--build-lib", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | variables, timeout=60)
    assert not any(tmp_path.iterdir())
