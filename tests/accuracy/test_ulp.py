"""Every activation and its slope, in units in the last place, against 60-digit arithmetic
(docs/accuracy.md)."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from mpmath import mpf

from tests.support import definitions
from tests.support.cases import FULL
from tests.support.devices import DEVICES, computes, memory_of, running_on
from tests.support.repository import ROOT
from tests.support.tiers import in_turns, nightly
from tests.support.ulp import (
    ACTIVATIONS,
    BOUND,
    DTYPES,
    FAR,
    FROM_OUTPUT,
    OTHERS,
    arguments,
    curvature_bound,
    curvature_of,
    far_arguments,
    flushed_below,
    measure_curvature,
    measure_far_slope,
    measure_slope,
    measure_slope_from_output,
    measure_value,
    slope_of,
    value_of,
    worst,
)
from tests.tools.accuracy import special_values

COUNT = 4000 if FULL else 250

cases = pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param(device, dtype, id=f"{device}-{str(dtype).removeprefix('torch.')}")
        for device in DEVICES
        for dtype in DTYPES
        if computes(device, dtype)
    ],
)
# mpmath takes its time: one activation before the night, another one with each commit. exact.c
# measures more points of all of them (test_exact.py).
NAMES = [*ACTIVATIONS, *OTHERS]
activations = pytest.mark.parametrize("activation", in_turns(NAMES, len(NAMES), nightly))


@cases
@activations
def test_value(activation: str, dtype: torch.dtype, device: str) -> None:
    x = arguments(activation, dtype, COUNT).to(memory_of(device))
    with running_on(device):
        y = value_of(activation, x)
    measured = measure_value(activation, x, y, flushed_below(device))
    assert measured.ulps <= BOUND[device][dtype], f"{activation}({measured.argument})"


@cases
@activations
def test_slope(activation: str, dtype: torch.dtype, device: str) -> None:
    x = arguments(activation, dtype, COUNT).to(memory_of(device))
    with running_on(device):
        slope = slope_of(activation, preactivation=x)
    measured = measure_slope(activation, x, slope, flushed_below(device))
    assert measured.ulps <= BOUND[device][dtype], f"{activation}'({measured.argument})"


@pytest.mark.parametrize("device", [device for device in DEVICES if device != "webgpu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@activations
def test_curvature(activation: str, dtype: torch.dtype, device: str) -> None:
    x = arguments(activation, dtype, COUNT).to(memory_of(device))
    measured = measure_curvature(activation, x, curvature_of(activation, x))
    assert measured.ulps <= curvature_bound(activation, device, dtype), f"{activation}''({measured.argument})"


@pytest.mark.parametrize("device", [device for device in DEVICES if device != "webgpu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_curvature_that_is_0_far_out_is_so_times_a_large_number(dtype: torch.dtype, device: str) -> None:
    info = torch.finfo(dtype)
    sizes = torch.exp2(torch.arange(11, math.log2(info.max), 7, dtype=torch.float64))
    x = torch.cat([sizes, -sizes]).to(dtype).to(memory_of(device))
    for activation in NAMES:
        results = curvature_of(activation, x, times=info.max / 4).tolist()
        for at, result in zip(x.tolist(), results, strict=True):
            is_zero = abs(definitions.curvature(activation, mpf(at))[0]) < mpf("1e-700")
            assert not is_zero or result == 0, f"{activation}''({at})"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize("activation", in_turns(FAR, len(FAR), nightly))
def test_a_slope_far_out_times_gradients_of_any_size(activation: str, dtype: torch.dtype) -> None:
    x, gradients = far_arguments(activation, dtype, COUNT)
    result = slope_of(activation, preactivation=x, times=gradients)
    measured = measure_far_slope(activation, x, gradients, result)
    assert measured.ulps <= BOUND["cpu"][dtype], f"a gradient times {activation}'({measured.argument})"


@cases
@pytest.mark.parametrize("activation", in_turns(FROM_OUTPUT, len(FROM_OUTPUT), nightly))
def test_slope_from_output(activation: str, dtype: torch.dtype, device: str) -> None:
    with running_on(device):
        y = value_of(activation, arguments(activation, dtype, COUNT).to(memory_of(device)))
        slope = slope_of(activation, output=y)
    measured = measure_slope_from_output(activation, y, slope, flushed_below(device))
    assert measured.ulps <= BOUND[device][dtype], f"{activation}' from the output {measured.argument}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinity_is_right_exactly_where_the_reference_rounds_to_it(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    halfway = mpf(info.max) + mpmath.ldexp(info.eps / 2, math.frexp(info.max)[1] - 1)
    above, below = halfway * 2, halfway * (1 - mpf(2) ** -60)

    def measured(got: float, want: mpf) -> float:
        return worst(torch.tensor([got], dtype=dtype), torch.zeros(1), [(want, want)]).ulps

    for sign in (1, -1):
        assert measured(sign * math.inf, sign * above) == measured(sign * math.inf, sign * halfway) == 0
        assert measured(sign * math.inf, sign * below) == math.inf
        assert measured(-sign * math.inf, sign * above) == measured(math.nan, sign * above) == math.inf
        assert 0.49 < measured(sign * info.max, sign * below) < 0.51
        assert measured(sign * info.max, sign * above) > 1e2


@pytest.mark.parametrize(("page", "dtypes"), [("accuracy.md", DTYPES), ("accuracy-webgpu.md", DTYPES[1:])])
def test_a_page_has_a_row_for_every_activation_and_dtype(page: str, dtypes: list[torch.dtype]) -> None:
    text = (ROOT / "docs" / page).read_text()
    rows = {tuple(line.split(" | ")[:2]) for line in text.splitlines() if line.startswith("| ")}
    wanted = {(f"| {name}", str(dtype).removeprefix("torch.")) for name in ACTIVATIONS for dtype in dtypes}
    assert wanted <= rows


def test_the_page_has_the_special_values() -> None:
    assert special_values() in (ROOT / "docs" / "accuracy.md").read_text()
