"""What the compiled kernels of kernels/cuda/product_sm80.cuh take of a GPU's processor, read from
the images. Needs no GPU."""

from __future__ import annotations

import math
import re
import subprocess
from pathlib import Path

import compile_cuda
import pytest

from tests.support.repository import ROOT

SOURCES = sorted(compile_cuda.SOURCES.glob("*_sm80_*.cu"))
REGISTERS, SHARED_OF_BLOCK, SHARED = 65536, 99 * 1024, 100 * 1024
"""What a processor has, and what a block may have of its shared memory: on compute capability 8.6,
8.9 and 12.0. Others have more."""
RESERVED = 1024
"""Bytes of shared memory that CUDA takes for each block."""
SPILLED = 40
"""Bytes of a thread's stack. SPILLS of compile_cuda.py has the reason."""


def constant(path: str, name: str) -> int:
    """A constant of a source in Go or CUDA, a number or a product of numbers."""
    found = re.search(rf"\b{name}\s*= ([\d* ]+)", (ROOT / path).read_text())
    assert found is not None, name
    return math.prod(int(factor) for factor in found[1].split("*"))


def images(fatbin: Path) -> dict[str, list[tuple[str, int, int, int]]]:
    """By architecture, each kernel's name, registers, bytes of stack and of shared memory."""
    import triton  # which brings cuobjdump, and comes with PyTorch on Linux

    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", fatbin]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    parts = re.findall(r"^Fatbin elf code:\n=+\narch = (\w+)(.*?)(?=^Fatbin|\Z)", text, re.M | re.S)
    kernel = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) ")
    return {arch: [(name, *map(int, numbers)) for name, *numbers in kernel.findall(part)] for arch, part in parts}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_blocks_fit_on_the_smallest_processor(source: Path) -> None:
    """So many of them as the kernels are compiled for, with the threads and the dynamic shared
    memory that Go launches them with."""
    functions = source.with_suffix(".functions")
    if not functions.exists() or functions.read_text().split()[0] != compile_cuda.hash_of(source):
        pytest.skip("the CUDA kernels are not compiled: make kernels")
    threads = constant("go/backend/cuda/sm80.go", "sm80Threads")
    dynamic = constant("go/backend/cuda/sm80.go", "sm80Shared")
    blocks = constant("kernels/cuda/loader_sm80.cuh", "blocks")
    found = images(source.with_suffix(".fatbin"))
    assert set(found) == set(compile_cuda.architectures_of(source))
    for architecture, kernels in found.items():
        assert sorted(name for name, *_ in kernels) == functions.read_text().split()[1:]
        for name, registers, stack, static in kernels:
            of_warp = -(-32 * registers // 256) * 256  # what a warp gets, in units of 256
            shared = max(static, RESERVED) + dynamic  # from 9.0 on, static counts what is reserved
            assert blocks * threads // 32 * of_warp <= REGISTERS, (architecture, name, registers)
            assert shared <= SHARED_OF_BLOCK and blocks * shared <= SHARED, (architecture, name, shared)
            assert stack <= SPILLED, (architecture, name, stack)
