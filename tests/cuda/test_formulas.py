"""The formulas of the CUDA kernels in units in the last place, against 60-digit arithmetic, without
a GPU.

The kernels' sources are compiled for the CPU (tests/cuda/emulator). What a GPU's approximate
instructions may be off is put in there, so the bounds hold for a GPU too; that it runs the same
code is for the tests on a GPU to show.
"""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from epigrad import Activation
from torch import Tensor

from tests.cuda import emulator
from tests.support import definitions, formulas, oracle
from tests.support.cases import parsed
from tests.support.tiers import THIRD, in_turns, thorough
from tests.support.ulp import (
    ACTIVATIONS,
    DTYPES,
    FROM_OUTPUT,
    OTHERS,
    Worst,
    arguments,
    curvature_bound,
    measure_curvature,
    measure_slope,
    measure_slope_from_output,
    measure_value,
    reference,
    worst,
)

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs a C++ compiler: apt-get install g++")

# The half types compute in float32 to about 2^-16, and round to storage.
BOUND = {torch.float64: 4.0, torch.float32: 3.0, torch.bfloat16: 0.52, torch.float16: 0.56}
COUNT = 250

cases = pytest.mark.parametrize("dtype", DTYPES, ids=str)
activations = pytest.mark.parametrize("activation", in_turns([*ACTIVATIONS, *OTHERS], THIRD, thorough))
GATES = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "relu2", "swish")
"""The formulas of gates."""


def elementwise(kernel: str, activation: str, *inputs: Tensor, outputs: int = 1) -> list[Tensor]:
    """The kernel that computes an activation, or what has it as its gate, without limits."""
    name, numbers = formulas.of_activation(parsed(Activation, activation))
    if kernel.startswith("gated"):
        numbers = (math.nan, math.nan, -0.0, *numbers)
    return emulator.elementwise(f"{kernel}_{name}", *inputs, outputs=outputs, parameters=numbers)


def check(measured: Worst, dtype: torch.dtype, formula: str) -> None:
    assert measured.ulps <= BOUND[dtype], f"{formula} at {measured.argument} is {measured.ulps:.3f} units off"


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@cases
@activations
def test_value_and_slope(activation: str, dtype: torch.dtype) -> None:
    x = arguments(activation, dtype, COUNT)
    ones = torch.ones_like(x)
    (value,) = elementwise("activation", activation, x)
    check(measure_value(activation, x, value), dtype, activation)
    (slope,) = elementwise("grad_preactivation", activation, ones, x)
    check(measure_slope(activation, x, slope), dtype, f"{activation}'")
    if formulas.of_activation(parsed(Activation, activation))[0] not in GATES:
        return
    # What value and slope share changes neither.
    (gated,) = elementwise("gated", activation, ones, x)
    both = elementwise("gated_backward", activation, ones, ones, x, outputs=2)
    assert same(gated, value) and same(both[0], value) and same(both[1], slope)


@cases
@activations
def test_curvature(activation: str, dtype: torch.dtype) -> None:
    x = arguments(activation, dtype, COUNT)
    ones = torch.ones_like(x)
    slope, curvature = elementwise("curvature", activation, ones, ones, x, outputs=2)
    check(measure_slope(activation, x, slope), dtype, f"{activation}'")
    measured, bound = measure_curvature(activation, x, curvature), curvature_bound(activation, "cuda", dtype)
    assert measured.ulps <= bound, f"{activation}'' at {measured.argument} is {measured.ulps:.3f} units off"


@pytest.mark.parametrize("caps", [(4.0, 25.0), (0.25, 1.0), (60.0, 2.0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_curvature_of_situ_glu(dtype: torch.dtype, caps: tuple[float, float]) -> None:
    """Also where e^-|gate| is nearly denormal, on both sides."""
    gate_cap, value_cap = caps
    sizes = torch.linspace(0.5, 85, 60, dtype=torch.float64) + 0.3
    gate = torch.cat([sizes, -sizes]).to(dtype)
    value, ones = torch.full_like(gate, 0.7), torch.ones_like(gate)
    got = emulator.elementwise("gated_curvature_situ", 0 * ones, ones, ones, value, gate, outputs=3, parameters=caps)
    with mpmath.workdps(250):

        def active(x: mpmath.mpf) -> mpmath.mpf:
            return gate_cap * mpmath.tanh(x / gate_cap) / (1 + mpmath.exp(-x))

        def capped(x: mpmath.mpf) -> mpmath.mpf:
            return value_cap * mpmath.tanh(x / value_cap)

        one = mpmath.mpf(value[0].item())
        for place, x in enumerate(map(mpmath.mpf, gate.tolist())):
            slope, bend = (mpmath.diff(active, x, order) for order in (1, 2))
            wants = capped(one) * slope, mpmath.diff(capped, one) * slope, capped(one) * bend
            terms = 0, 0, wants[0]  # as large as the slope are those that cancel in the curvature
            for result, want, term in zip(got, wants, terms, strict=True):
                bound = 8 * torch.finfo(dtype).eps * max(abs(want) + abs(term), mpmath.mpf(torch.finfo(dtype).tiny))
                assert abs(result[place].item() - want) < bound, (x, result[place].item(), float(want))


@cases
@pytest.mark.parametrize("activation", FROM_OUTPUT)
def test_slope_from_output(activation: str, dtype: torch.dtype) -> None:
    (y,) = elementwise("activation", activation, arguments(activation, dtype, COUNT))
    (slope,) = elementwise("grad_preactivation_from_output", activation, torch.ones_like(y), y)
    check(measure_slope_from_output(activation, y, slope), dtype, f"{activation}' from the output")


# act(x) and act'(x) for these x are PyTorch's own, as docs/accuracy.md has them.
SPECIAL = (-math.inf, math.inf, math.nan, -0.0)


def eager(activation: str) -> tuple[Tensor, Tensor]:
    """Value and slope of PyTorch's operator at the special arguments, in float64."""
    x = torch.tensor(SPECIAL, dtype=torch.float64, requires_grad=True)
    y = oracle.ACTIVATIONS[activation].eager(x)
    (slope,) = torch.autograd.grad(y, x, torch.ones_like(x))
    return y.detach(), slope


def signs(x: Tensor) -> list[float]:
    """The numbers, with the sign of their zeros."""
    return [math.copysign(1, v) if v == 0 else v for v in x.tolist()]


@cases
@activations
def test_special_arguments(activation: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    (value,) = elementwise("activation", activation, x)
    want_value, want_slope = (result.to(dtype) for result in eager(activation))
    torch.testing.assert_close(value, want_value, rtol=0, atol=0, equal_nan=True)
    assert signs(value)[3] == signs(want_value)[3]
    (slope,) = elementwise("grad_preactivation", activation, torch.ones_like(x), x)
    torch.testing.assert_close(slope, want_slope, rtol=0, atol=0, equal_nan=True)
    largest = torch.tensor([-1.0, 1.0], dtype=dtype) * torch.finfo(dtype).max
    (value,) = elementwise("activation", activation, largest)
    (slope,) = elementwise("grad_preactivation", activation, torch.ones_like(largest), largest)
    wanted = [reference(activation, at)[:2] for at in largest.tolist()]
    for got, exact in zip((value, slope), zip(*wanted, strict=True), strict=True):
        want = torch.tensor([definitions.double(x) for x in exact], dtype=torch.float64).to(dtype)
        plain = (want == 0) | (want.abs() == 1) | (want.abs() >= largest[1])
        assert same(got[plain] + 0.0, want[plain] + 0.0), f"{activation}: {got.tolist()}, want {want.tolist()}"
        units = worst(got, largest, zip(exact, exact, strict=True))
        check(units, dtype, activation)


# limit, limit_after, offset
LIMITS = ((math.nan, math.nan, -0.0), (7.0, math.nan, 1.0), (math.nan, 2.0, -0.0), (2.0, 1.5, 0.25), (1.0, 3.0, -0.5))


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("gate", in_turns(GATES, THIRD, thorough))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_limits_of_gated_kinds(dtype: torch.dtype, gate: str, limits: tuple[float, float, float]) -> None:
    """Around the activation's own kernels, limits select, and the offset is one sum."""
    numbers = [1.702] if gate == "swish" else []
    places = [0.0, 1.0, 1.5, 2.0, 3.0, 7.0, math.inf]
    special = [math.nan, *places, *(-place for place in places)]
    grid = torch.tensor([*itertools.product(special, special, [1.0, -0.5, 0.0, math.inf, math.nan])], dtype=dtype)
    random = 4 * torch.randn(300, 3, generator=torch.Generator().manual_seed(4), dtype=dtype)
    value, x, grad_output = torch.cat([grid, random]).T.contiguous()
    parameters = [*limits, *numbers]
    (out,) = emulator.elementwise(f"gated_{gate}", value, x, parameters=parameters)
    grads = emulator.elementwise(f"gated_backward_{gate}", grad_output, value, x, outputs=2, parameters=parameters)

    def run(kernel: str, *inputs: Tensor) -> Tensor:
        """Without an activation the gradient is what it was."""
        (result,) = inputs[:1] if gate == "none" else emulator.elementwise(kernel, *inputs, parameters=numbers)
        return result

    def within(x: Tensor, bound: Tensor) -> Tensor:
        return torch.where(x >= bound, bound, torch.where(x <= -bound, -bound, x))

    limit, limit_after, offset = torch.tensor(limits, dtype=dtype)
    below = torch.where(x >= limit, limit, x)
    active = run(f"activation_{gate}", below)
    factor = torch.where(active >= limit_after, limit_after, active)
    near = within(value, limit)
    sum = within(near, limit_after) + offset
    zero = torch.zeros((), dtype=dtype)
    grad_gate = run(f"grad_preactivation_{gate}", grad_output * sum, below)
    wanted = (
        sum * factor,
        torch.where((value.abs() >= limit) | (near.abs() >= limit_after), zero, grad_output * factor),
        torch.where((x >= limit) | (active >= limit_after), zero, grad_gate),
    )
    for got, want in zip((out, *grads), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        numbers_of = ~want.isnan()
        assert torch.equal(got[numbers_of].signbit(), want[numbers_of].signbit())


@cases
def test_relu_stops_what_is_not_finite(dtype: torch.dtype) -> None:
    g = torch.tensor([math.inf, math.nan, math.inf, math.nan], dtype=dtype)
    x = torch.tensor([-1.0, 0.0, 1.0, math.nan], dtype=dtype)
    (slope,) = elementwise("grad_preactivation", "relu", g, x)
    torch.testing.assert_close(slope, torch.tensor([0.0, 0.0, math.inf, math.nan], dtype=dtype), equal_nan=True)


@cases
def test_copies_keep_every_bit(dtype: torch.dtype) -> None:
    bits = torch.randint(256, (1001 * dtype.itemsize,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    (copied,) = elementwise("activation", "none", bits.view(dtype))
    assert same(copied, bits.view(dtype))
