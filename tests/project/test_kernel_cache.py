"""`make kernels` takes from its cache only the image that it would compile."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.repository import ROOT

NAMES = ["gated_bf16", "gated_f32"]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """kernels/tools/compile_cuda.py with an empty cache, compilers that only have a version, and
    two sources."""
    monkeypatch.setenv("EPIGRAD_KERNEL_CACHE", str(tmp_path / "cache"))
    found = runpy.run_path(str(ROOT / "kernels" / "tools" / "compile_cuda.py"))
    room = found["key_of"].__globals__
    for name in ("nvcc", "g++"):
        (tmp_path / name).write_text("#!/bin/sh\necho release 1")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    (tmp_path / "gated.cu").write_text('#include "gate.cuh"\n')
    (tmp_path / "gate.cuh").write_text("// a gate\n")
    room["SOURCES"] = tmp_path
    return SimpleNamespace(room=room, source=tmp_path / "gated.cu", nvcc=tmp_path / "nvcc", **found)


def test_an_image_is_read_as_it_was_written(script: Any) -> None:
    kept = script.Kept(script.key_of(script.nvcc, script.source))
    assert kept.read() is None
    kept.write(b"\n an image \n", NAMES)
    assert kept.read() == (b"\n an image \n", NAMES)


@pytest.mark.parametrize("place", [0, 70, -1], ids=["hash", "names", "image"])
def test_a_damaged_image_is_not_used(script: Any, place: int) -> None:
    kept = script.Kept("key")
    kept.write(b"image", NAMES)
    data = bytearray(kept.path.read_bytes())
    data[place] ^= 1
    kept.path.write_bytes(data)
    assert kept.read() is None


def test_half_an_image_is_not_used(script: Any) -> None:
    kept = script.Kept("key")
    kept.write(b"image", NAMES)
    kept.path.write_bytes(kept.path.read_bytes()[:-1])
    assert kept.read() is None


@pytest.mark.parametrize("what", ["source", "header", "script", "nvcc", "g++"])
def test_a_change_has_an_image_compiled_anew(script: Any, what: str) -> None:
    before = script.key_of(script.nvcc, script.source)
    match what:
        case "source":
            script.source.write_text('#include "gate.cuh"\n\n')
        case "header":
            script.source.with_name("gate.cuh").write_text("// another gate\n")
        case "script":
            script.room["__file__"] = str(script.source)
        case _:
            script.source.with_name(what).write_text("#!/bin/sh\necho release 2")
            script.room["version_of"].cache_clear()
    assert script.key_of(script.nvcc, script.source) != before


def test_an_image_without_use_for_a_month_is_deleted(script: Any) -> None:
    old, new = script.Kept("old"), script.Kept("new")
    old.write(b"image", NAMES)
    os.utime(old.path, (0, 0))
    new.write(b"image", NAMES)
    script.prune()
    assert old.read() is None
    assert new.read() is not None
