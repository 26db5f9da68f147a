"""Errors of every activation and its slope in ULP at many points, by three references that share
nothing with the kernels.

- `in_torch`: float64 on the tensors' own device, by the oracle and autograd.
- `in_double`: float64 in C (exact.c), which is faster on a CPU.
- `in_quadruple`: the same formulas in quadruple precision, for float64.

The first two are for dtypes up to float32. Their own errors are about 2^-29 of such a dtype's ULP,
times what the formula makes of its argument's rounding.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from mpmath import mpf
from torch import Tensor

from tests.support import definitions, oracle

Errors = tuple[Tensor, Tensor]
"""In ULP, in float64: of values, and of slopes."""
Measure = Callable[[str, Tensor, Tensor, Tensor], Errors]
"""Errors of an activation's values and slopes at points, which all have one dtype."""

SOURCE = Path(__file__).with_suffix(".c")


def _power_below(x: Tensor) -> Tensor:
    """The largest power of two up to each number, or 0."""
    return (x.view(torch.int64) & (0x7FF << 52)).view(torch.float64)


def _in_ulp(got: Tensor, exact: Tensor, scale: Tensor) -> Tensor:
    """Infinity is right where the exact number rounds to it.

    Any other that is not finite is infinitely far off.
    """
    info, given = torch.finfo(got.dtype), got.double()
    errors = (given - exact).abs() / (_power_below(scale).clamp(min=info.smallest_normal) * info.eps)
    beyond = info.max * (1 + info.eps / (2 - info.eps) / 2)
    right = torch.where(given > 0, exact >= beyond, exact <= -beyond) & ~given.isnan()
    return torch.where(given.isfinite(), errors, torch.where(right, 0.0, torch.inf))


@functools.cache
def _slope_is_a_sum(activation: str) -> bool:
    """Whether errors of a slope are relative to the larger of two terms (definitions.py)."""
    return activation in definitions.SLOPE_TERMS and len(definitions.SLOPE_TERMS[activation](mpf(1))) == 2


def in_torch(activation: str, x: Tensor, value: Tensor, slope: Tensor) -> Errors:
    """By float64 tensors of the device, whose library rounds at most the last bits."""
    points = x.double()
    exact, derivative = oracle.ACTIVATIONS[activation].value(points), oracle.derivative(activation, 1, points)
    scale = derivative.abs()
    if _slope_is_a_sum(activation):
        # all of these are x g(x): the terms are g and x g'
        first = torch.where(points == 0, derivative, exact / points)
        scale = torch.maximum(scale, torch.maximum(first.abs(), (derivative - first).abs()))
    return _in_ulp(value, exact, exact.abs()), _in_ulp(slope, derivative, scale)


class _Dtype(ctypes.Structure):
    _fields_ = (("epsilon", ctypes.c_double), ("smallest", ctypes.c_double), ("largest", ctypes.c_double))


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="epigrad-exact-")
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


@functools.cache
def compiled(*flags: str) -> ctypes.CDLL | None:
    """exact.c as a library, or None where no compiler can make one: quadruple precision needs gcc's
    libquadmath."""
    target = _folder() / f"exact{''.join(flags)}.so"
    libraries = ["-lquadmath"] if "-DQUAD" in flags else []
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-ffp-contract=off", "-fPIC", "-shared", *flags]
    try:
        subprocess.run([*command, "-o", target, SOURCE, "-lm", *libraries], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ctypes.CDLL(str(target))


def _in_c(flags: tuple[str, ...], activation: str, x: Tensor, value: Tensor, slope: Tensor) -> Errors:
    library = compiled(*flags)
    if library is None:
        raise RuntimeError(f"no C compiler here makes {SOURCE.name} with {' '.join(flags) or 'no flags'}: set CC")
    info = torch.finfo(value.dtype)
    given = [t.detach().to("cpu", torch.float64).contiguous() for t in (x, value, slope)]
    errors = torch.empty_like(given[0]), torch.empty_like(given[0])
    dtype = _Dtype(info.eps, info.smallest_normal, info.max)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*given, *errors)]
    if library.errors(activation.encode(), ctypes.byref(dtype), ctypes.c_long(len(x)), *pointers):
        raise KeyError(f"{SOURCE.name} has no {activation}")
    return errors


def in_double(activation: str, x: Tensor, value: Tensor, slope: Tensor) -> Errors:
    """By C in float64, on one thread; calls from several run at once."""
    return _in_c((), activation, x, value, slope)


def in_quadruple(activation: str, x: Tensor, value: Tensor, slope: Tensor) -> Errors:
    """By C in quadruple precision, likewise."""
    return _in_c(("-DQUAD",), activation, x, value, slope)
