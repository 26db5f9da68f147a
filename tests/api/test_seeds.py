"""Programs in C, in Go and in Python draw the same problems from the same seeds, and get the same
bits. The one in C compares with a reference of its own, too.

EPIGRAD_CHECK_SEED is the first seed, and EPIGRAD_CHECK_PROBLEMS how many there are.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from epigrad import backward, forward
from torch import Tensor

from tests.api.test_c_abi import LIBRARY, require_library
from tests.support.repository import ROOT
from tests.tools.seeds_record import compile_seeds

FIRST = int(os.environ.get("EPIGRAD_CHECK_SEED", "1"))
PROBLEMS = int(os.environ.get("EPIGRAD_CHECK_PROBLEMS", "300"))
LIMIT = 120 + PROBLEMS  # seconds

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2")
GATES = ("bilinear", "reglu", "geglu", "geglu_tanh", "swiglu", "glu")
OPERATIONS = (
    ("matmul_bias_activation", ACTIVATIONS, ("mk", "kn", "n"), ("mn",)),
    ("gated_product", GATES, ("mk", "mk"), ("mk",)),
    ("lerp", (), ("mk", "mk", "mk"), ("mk",)),
    ("linear", ACTIVATIONS, ("mk", "nk", "n"), ("mn",)),
    ("linear_backward", ACTIVATIONS, ("mn", "mk", "nk", "n", "mn"), ("mk", "nk", "n")),
    ("gated_linear", GATES, ("mk", "nk", "nk", "n", "n"), ("mn",)),
)
WORD = 2**64 - 1


class Seeds:
    """splitmix64. seeds.c says what is drawn."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & WORD
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
        return z ^ z >> 31

    def below(self, n: int) -> int:
        return self.next() % n

    def tensor(self, letters: str, sizes: dict[str, int], dtype: torch.dtype, filled: bool) -> Tensor:
        shape = [sizes[letter] for letter in letters]
        rows, columns = (*shape, 1)[:2]
        strides = ((columns, 1), (1, rows), (columns + 3, 1))[self.below(3)][: len(shape)]
        room = torch.full((rows * (columns + 3),), torch.nan, dtype=dtype)
        made = room.as_strided(shape, strides)
        if filled:
            values = [(self.next() >> 40) / 2**22 - 2 for _ in range(rows * columns)]
            made.copy_(torch.tensor(values, dtype=torch.float64).reshape(shape))
        return made


def solve(seed: int) -> str:
    """The line of a problem."""
    s = Seeds(seed)
    op, kinds, inputs, outputs = OPERATIONS[s.below(len(OPERATIONS))]
    kind = kinds[s.below(len(kinds))] if kinds else "-"
    dtype = (torch.float32, torch.float64)[s.below(2)]
    sizes = {letter: 1 + s.below(40) for letter in "mnk"}
    given = [s.tensor(letters, sizes, dtype, True) for letters in inputs]
    results = [s.tensor(letters, sizes, dtype, False) for letters in outputs]
    if op == "lerp":
        forward.lerp(*given, out=results[0])
    elif op == "linear_backward":
        backward.linear_backward(*given[:4], kind, preactivation=given[4], out=tuple(results))
    else:
        getattr(forward, op)(*given, kind, out=results[0])
    return f"{seed} {op} {kind} {str(dtype).removeprefix('torch.')} {hash_of(results):016x}"


def hash_of(tensors: Sequence[Tensor]) -> int:
    """FNV-1a of the elements' bytes."""
    value = 14695981039346656037
    for tensor in tensors:
        for byte in tensor.contiguous().numpy().tobytes():
            value = (value ^ byte) * 1099511628211 & WORD
    return value


def printed(command: Sequence[str | Path]) -> list[str]:
    """The lines of problems that a program prints."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^\d+ \w+ \S+ float\d\d [0-9a-f]{16}$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return [solve(seed) for seed in range(FIRST, FIRST + PROBLEMS)]


def require(command: str) -> None:
    if shutil.which(command) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{command} is not there")
        pytest.skip(f"{command} is not there")


def test_c_gets_the_bits_of_python(lines: list[str], tmp_path: Path) -> None:
    require_library()
    require(shlex.split(os.environ.get("CC") or "gcc")[0])
    program = tmp_path / "seeds"
    compile_seeds(program, LIBRARY)
    assert printed([program, str(FIRST), str(PROBLEMS)]) == lines


@pytest.mark.skipif(sys.platform == "win32", reason="Go without C has another engine")
def test_go_gets_the_bits_of_python(lines: list[str]) -> None:
    require("go")
    assert printed(["go", "test", "-count=1", "-v", "-run", "^TestSeeds$", "./go/epigrad"]) == lines
