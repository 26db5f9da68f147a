"""The C interface, called through ctypes with NumPy's memory: runs each check of c_abi.py in a process of its own."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from interpreter import start

PROGRAM = Path(__file__).with_name("c_abi.py")
LIBRARY = Path(os.environ.get("EPIGRAD_LIBRARY") or PROGRAM.parent.parent / "build" / "libepigrad.so")
CHECKS = [
    statement.name.removeprefix("check_")
    for statement in ast.parse(PROGRAM.read_text()).body
    if isinstance(statement, ast.FunctionDef) and statement.name.startswith("check_")
]


@pytest.mark.parametrize("check", CHECKS)
def test_c_abi(check: str) -> None:
    if not LIBRARY.exists():
        message = f"{LIBRARY} is not there: `make lib` builds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    done = start(str(PROGRAM), check, EPIGRAD_LIBRARY=str(LIBRARY), timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == "fine", (
        f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    )


def test_there_are_checks() -> None:
    assert len(CHECKS) >= 10
