"""The C interface, called through ctypes with NumPy's memory: runs the checks of c_abi.py."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from tests.support.processes import run_script, start
from tests.support.repository import ROOT

PROGRAM = Path(__file__).with_name("c_abi.py")
LIBRARY = Path(os.environ.get("EPIGRAD_LIBRARY") or ROOT / "build" / "libepigrad.so")
CHECKS = [
    statement.name.removeprefix("check_")
    for statement in ast.parse(PROGRAM.read_text()).body
    if isinstance(statement, ast.FunctionDef) and statement.name.startswith("check_")
]


def require_library() -> None:
    if not LIBRARY.exists():
        message = f"{LIBRARY} is not there: `make lib` builds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def test_c_abi() -> None:
    """In their order: the first look at a library that nothing has called, and the last forks."""
    require_library()
    done = start(str(PROGRAM), *CHECKS, EPIGRAD_LIBRARY=str(LIBRARY), timeout=120)
    assert done.stdout.split() == CHECKS, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0


def test_it_loads_where_the_address_space_that_the_documents_ask_for_is_left() -> None:
    asked = re.search(r"leave\s+(\d+)\s+GiB", (ROOT / "docs" / "c-api.md").read_text())
    assert asked is not None
    body = f"""
import ctypes, resource
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + {asked[1]} * 2**30,) * 2)
library = ctypes.CDLL({str(LIBRARY)!r})
print(library.epg_validate(None))
"""
    require_library()
    assert run_script(body) == "1"
