"""The record of a GPU's tests fails where a tool of compute-sanitizer misses its planted defect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import cuda_record

NVCC = Path(sys.prefix, "cuda", "nvidia", "cu13", "bin", "nvcc")


@pytest.mark.skipif(not NVCC.exists(), reason="make kernels installs nvcc")
def test_each_tool_has_a_defect_that_compiles(tmp_path: Path) -> None:
    code = tmp_path / "planted.ptx"
    command = [str(NVCC), "-arch=sm_90", "-Werror=all-warnings", "-ptx", "-o", str(code), str(cuda_record.PLANTED)]
    subprocess.run(command, check=True)
    text = code.read_text()
    assert all(f".entry _Z{len(tool)}{tool}PKiPi(" in text for tool in cuda_record.TOOLS)


def stand_ins(folder: Path, monkeypatch: pytest.MonkeyPatch, report: str) -> str:
    """An nvcc that compiles nothing, and a sanitizer whose tools all report this and end as if they
    had found something."""
    for name, body in {"nvcc": "exit 0", "sanitizer": f"echo '========= {report}'; exit {cuda_record.FOUND}"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return str(folder / "sanitizer")


def test_a_tool_that_misses_its_defect_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer = stand_ins(tmp_path, monkeypatch, "Barrier error detected. Divergent thread(s) in warp.")
    rows = list(cuda_record.planted(sanitizer, "sm_90"))
    found = {row["what"].removesuffix(", planted"): row["found"] for row in rows}
    assert found == {tool: tool == "synccheck" for tool in cuda_record.TOOLS}
    assert [bool(row["exit_code"]) for row in rows] == [not row["found"] for row in rows]


def test_defects_that_do_not_compile_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer = stand_ins(tmp_path, monkeypatch, "")
    (tmp_path / "nvcc").write_text("#!/bin/sh\necho no; exit 3\n")
    (row,) = cuda_record.planted(sanitizer, "sm_90")
    assert (row["exit_code"], row["tail"]) == (3, ["no"])
