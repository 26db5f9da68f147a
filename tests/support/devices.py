"""The devices that the tests run on: the CPU always, CUDA and WebGPU where their backends are
available.

The parity cases run on WebGPU with tensors in the host's memory, inside `use_backend("webgpu")`.

EPIGRAD_TEST_DEVICES ("cuda", "cpu,cuda") chooses among them. EPIGRAD_REQUIRE_BACKENDS names the
backends that a machine must have: test_backends.py fails for one that is absent, whose tests would
otherwise not exist.
"""

from __future__ import annotations

import contextlib
import os

import epigrad
import pytest
import torch

_KNOWN = ("cpu", "cuda", "webgpu")


def _names(variable: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in os.environ.get(variable, "").split(",") if name.strip())


REQUIRED = _names("EPIGRAD_REQUIRE_BACKENDS")
CHOSEN = _names("EPIGRAD_TEST_DEVICES") or _KNOWN

REASONS = {info.name: info.reason for info in epigrad.backends() if not info.available}
"""Why a backend is absent here."""

DEVICES: tuple[str, ...] = tuple(name for name in _KNOWN if name in CHOSEN and name not in REASONS)

on_devices = pytest.mark.parametrize("device", [name for name in DEVICES if name != "webgpu"])
"""Runs a test on each device that PyTorch has tensors on."""


def memory_of(device: str) -> str:
    """Where PyTorch has the tensors of a device."""
    return "cpu" if device == "webgpu" else device


def running_on(device: str) -> contextlib.AbstractContextManager[None]:
    """Runs what is inside on a device that its tensors do not name."""
    return epigrad.use_backend(device) if device == "webgpu" else contextlib.nullcontext()


def computes(device: str, dtype: torch.dtype) -> bool:
    """Whether a device's backend has kernels for a dtype."""
    return not (device == "webgpu" and dtype == torch.float64)


def unusable_choice() -> str:
    """What is wrong with EPIGRAD_TEST_DEVICES, or nothing: a device that is asked for must be
    there."""
    chosen = _names("EPIGRAD_TEST_DEVICES")
    unknown = [name for name in chosen if name not in _KNOWN]
    if unknown:
        return f"{', '.join(unknown)}: want names among {', '.join(_KNOWN)}"
    return "; ".join(f"{name} is not available here: {REASONS[name]}" for name in chosen if name in REASONS)


def needs(name: str) -> pytest.MarkDecorator:
    """Skips where a device is absent or not chosen; where the machine must have it, its tests run,
    and fail."""
    absent = name in REASONS and name not in REQUIRED
    reason = f"{name}: {REASONS[name]}" if name in REASONS else f"EPIGRAD_TEST_DEVICES leaves {name} out"
    return pytest.mark.skipif(absent or name not in CHOSEN, reason=reason)
