"""`make sanitize`: AddressSanitizer is at work in the extension."""

from __future__ import annotations

import os

import pytest

from tests.support.processes import start

OVERFLOW = """
import ctypes
import torch, epigrad
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
floats = (ctypes.c_float * 64).from_address(libc.malloc(16))
epigrad.forward.activation(torch.frombuffer(floats, dtype=torch.float32), "relu")
"""


@pytest.mark.skipif(not os.environ.get("EPIGRAD_REQUIRE_SANITIZERS"), reason="built without sanitizers: make sanitize")
def test_reading_behind_an_allocation_is_reported() -> None:
    done = start("-c", OVERFLOW)
    assert done.returncode != 0 and "ERROR: AddressSanitizer" in done.stderr, done.stderr
