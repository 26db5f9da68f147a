"""Every activation and its slope, in units in the last place, against 60-digit arithmetic (docs/accuracy.md)."""

from __future__ import annotations

import json
import os

import golden
import golden_cpu
import pytest
import torch
from devices import on_devices
from golden import PORTABLE
from ulp import (
    ACTIVATIONS,
    DTYPES,
    FROM_OUTPUT,
    arguments,
    measure_slope,
    measure_slope_from_output,
    measure_value,
    slope_of,
    value_of,
)

# Float64 formulas round several times. On CPU float32 computes in float64 and the half types in that or in float32 (by
# the engine), and the result is rounded visibly once; on a GPU float32 has about as many roundings as float64.
BOUND = {
    "cpu": {torch.float64: 4.0, torch.float32: 0.51, torch.bfloat16: 0.51, torch.float16: 0.51},
    "cuda": {torch.float64: 4.0, torch.float32: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0},
}
COUNT = 4000 if os.environ.get("EPIGRAD_TEST_FULL", "") not in ("", "0") else 250

cases = pytest.mark.parametrize("dtype", DTYPES, ids=str)
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


@on_devices
@cases
@activations
def test_value(activation: str, dtype: torch.dtype, device: str) -> None:
    x = arguments(activation, dtype, COUNT).to(device)
    measured = measure_value(activation, x, value_of(activation, x))
    assert measured.ulps <= BOUND[device][dtype], f"{activation}({measured.argument})"


@on_devices
@cases
@activations
def test_slope(activation: str, dtype: torch.dtype, device: str) -> None:
    x = arguments(activation, dtype, COUNT).to(device)
    measured = measure_slope(activation, x, slope_of(activation, preactivation=x))
    assert measured.ulps <= BOUND[device][dtype], f"{activation}'({measured.argument})"


@on_devices
@cases
@pytest.mark.parametrize("activation", FROM_OUTPUT)
def test_slope_from_output(activation: str, dtype: torch.dtype, device: str) -> None:
    y = value_of(activation, arguments(activation, dtype, COUNT).to(device))
    measured = measure_slope_from_output(activation, y, slope_of(activation, output=y))
    assert measured.ulps <= BOUND[device][dtype], f"{activation}' from the output {measured.argument}"


def test_the_table_of_the_vector_kernels_is_that_of_its_generator() -> None:
    assert golden_cpu.TABLE.read_text() == golden_cpu.activation_table()


def test_golden_numbers_are_those_of_their_generator() -> None:
    rows = json.loads((PORTABLE / "testdata" / "activation_golden.json").read_text())
    assert rows == golden.rows()
    assert (PORTABLE / "normal_table.go").read_text() == golden.normal_table()
