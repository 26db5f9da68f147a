"""Runs the CUDA kernels on the CPU (tests/cuda/emulator), one elementwise kernel at a time on
contiguous tensors."""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tests.support.repository import ROOT

KERNELS, TESTS = ROOT / "kernels" / "cuda", ROOT / "tests" / "cuda"
SOURCES = (KERNELS, TESTS / "emulator")
BINARY = ROOT / "build" / "cuda-emulator"
BLOCK = 128
MAX_RANK = 8
MOST_PARAMETERS = 4
SHORT = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}


def compiler() -> list[str] | None:
    """A C++ compiler's command, if there is one."""
    for command in [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]:
        if shutil.which(shlex.split(command)[0]):
            return shlex.split(command)
    return None


@cache
def emulator() -> Path:
    """The emulator, built where a source is newer. Several test processes may do so at once."""
    sources = [path for folder in SOURCES for path in folder.iterdir() if path.suffix in (".cu", ".cuh", ".h", ".cpp")]
    if not BINARY.exists() or any(path.stat().st_mtime > BINARY.stat().st_mtime for path in sources):
        command = compiler()
        assert command is not None
        BINARY.parent.mkdir(exist_ok=True)
        target = BINARY.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas", f"-I{KERNELS}", f"-I{TESTS}"]
        subprocess.run([*command, *flags, "-o", str(target), str(TESTS / "emulator" / "emulator.cpp")], check=True)
        target.replace(BINARY)
    return BINARY


def elementwise(kernel: str, *inputs: Tensor, outputs: int = 1, parameters: Sequence[float] = ()) -> list[Tensor]:
    """The outputs of an elementwise kernel's vector form, for contiguous inputs of one dtype and
    length."""
    first = inputs[0]
    padded = -(-first.nbytes // 256) * 256
    memory = bytearray(padded * (len(inputs) + outputs))
    for i, tensor in enumerate(inputs, outputs):
        memory[i * padded : i * padded + tensor.nbytes] = tensor.view(torch.uint8).numpy().tobytes()
    operands = outputs + len(inputs)
    width = 16 // first.element_size()
    vectors, tail = divmod(len(first), width)
    numbers = [*parameters, *[0.0] * (MOST_PARAMETERS - len(parameters))]
    packed = struct.pack(f"<{operands}q {MOST_PARAMETERS}dqq", *[0] * operands, *numbers, vectors, tail)
    packed += bytes(operands * MAX_RANK * 8)  # strides, which one dimension does not have
    packed += struct.pack("<QqII", 0, vectors, 0, 0) + bytes(MAX_RANK * 24)
    packed += struct.pack("<iiII", 1, 0, 0, 0)
    name = f"{kernel}_{SHORT[first.dtype]}".encode()
    job = struct.pack("<Q", len(memory)) + memory + struct.pack("<QI", 1, len(name)) + name
    job += struct.pack("<III", vectors // BLOCK + 1, BLOCK, len(packed)) + packed
    job += struct.pack("<I", operands) + b"".join(struct.pack("<Iq", 8 * i, i * padded) for i in range(operands))
    result = subprocess.run([emulator()], input=job, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    written = bytearray(result.stdout)
    return [torch.frombuffer(written, dtype=first.dtype, count=len(first), offset=i * padded) for i in range(outputs)]
