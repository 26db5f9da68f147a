"""Errors at every number of the half types, at samples of float32, and at the worst arguments that
`python -m tests.tools.exact` has found. And that tool's own instruments."""

from __future__ import annotations

import json
import math
import platform
import sys
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from tests.support import exact
from tests.support.devices import on_devices
from tests.support.tiers import THIRD, in_turns, thorough
from tests.support.ulp import ACTIVATIONS, BOUND, arguments, measure_slope, measure_value
from tests.tools import exact as tool
from tests.tools.records import RESULTS, load

RECORDS = sorted(RESULTS.glob("*-exact-*.json"))
activations = pytest.mark.parametrize("activation", in_turns(ACTIVATIONS, THIRD, thorough))


def needs_quadruple() -> None:
    if exact.compiled("-DQUAD") is None:
        assert platform.machine() != "x86_64" or sys.platform != "linux", "gcc with libquadmath is not there"
        pytest.skip("gcc has libquadmath on x86-64 only")


def sample() -> Tensor:
    """Float32 of every exponent and either sign, NaN among them."""
    generator = torch.Generator().manual_seed(5)
    mantissas = torch.randint(1 << 23, (512, 60), generator=generator)
    mantissas[:, :4] = torch.tensor([0, 1, (1 << 23) - 2, (1 << 23) - 1])
    bits = (torch.arange(-256, 256).unsqueeze(1) << 23) + mantissas
    return bits.to(torch.int32).flatten().view(torch.float32)


@on_devices
@activations
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_every_number_of_the_half_types(dtype: torch.dtype, activation: str, device: str) -> None:
    x = tool.numbers(dtype, 0, 1 << 16, device)
    worst = tool.found(activation, x, tool.measure_for(str(dtype), device))
    assert max(worst["value"][0], worst["slope"][0])[0] <= BOUND[device][dtype], worst


@on_devices
@activations
def test_float32_of_every_exponent_and_the_worst_known(activation: str, device: str) -> None:
    """On a GPU the walk of all numbers met errors above the bound, and an overflow of selu: nothing
    else may be worse."""
    bound, known, overflows = BOUND[device][torch.float32], set(), set()
    for row in rows("float32", activation):
        for ulps, at in (place for places in row["worst"].values() for place in places):
            known.add(at)
            if row["device"] == device and math.isinf(ulps):
                overflows.add(at)
            elif row["device"] == device:
                bound = max(bound, ulps)
    points = torch.tensor(sorted(known - overflows))
    x = torch.cat([sample(), arguments(activation, torch.float32, 2000), points]).to(device)
    worst = tool.found(activation, x, tool.measure_for("float32", device))
    assert max(worst["value"][0], worst["slope"][0])[0] <= bound, worst


def rows(dtype: str, activation: str) -> list[dict[str, Any]]:
    """What the records have of an activation."""
    records = [load(record) for record in RECORDS]
    return [
        row | {"backend": record["backend"], "device": "cpu" if record["backend"].startswith("engine") else "cuda"}
        for record in records
        for row in record["rows"]
        if (row["dtype"], row["activation"]) == (dtype, activation)
    ]


@activations
def test_float64_is_as_exact_as_the_record_says(activation: str) -> None:
    """At the worst arguments, on the record's engine: a kernel that is less exact there fails."""
    needs_quadruple()
    engine = tool.facts("cpu")["backend"].split(",")[0]
    for row in (row for row in rows("float64", activation) if row["backend"].split(",")[0] == engine):
        for what, places in row["worst"].items():
            x = torch.tensor([at for _, at in places], dtype=torch.float64)
            errors = exact.in_quadruple(activation, x, *tool.results(activation, x))[what == "slope"]
            recorded = torch.tensor([ulps for ulps, _ in places], dtype=torch.float64)
            assert (errors <= recorded + 1e-6).all(), f"{what} of {activation}"


@activations
def test_the_references_agree(activation: str) -> None:
    """Each is off by less than 1/100 of an ULP of float32, and quadruple precision is much nearer
    to mpmath."""
    needs_quadruple()
    x = sample()
    x = torch.cat([x[x.isfinite()], arguments(activation, torch.float32, 500)])
    got = tool.results(activation, x)
    best = exact.in_quadruple(activation, x, *got)
    for measure in (exact.in_double, exact.in_torch):
        for errors, nearer in zip(measure(activation, x, *got), best, strict=True):
            finite = nearer.isfinite()
            assert torch.equal(errors.isfinite(), finite)
            assert (errors - nearer)[finite].abs().max() < 0.01
    assert tool.spot_check(activation, 60, "cpu", exact.in_quadruple)["largest_difference"] < 1e-9
    few = x[::2000]
    got = tool.results(activation, few)
    by_mpmath = measure_value(activation, few, got[0]).ulps, measure_slope(activation, few, got[1]).ulps
    errors = exact.in_double(activation, few, *got)
    assert max(abs(e.max().item() - m) for e, m in zip(errors, by_mpmath, strict=True)) < 1e-5


@pytest.mark.parametrize("measure", [exact.in_torch, exact.in_double], ids=["torch", "double"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_infinity_is_right_exactly_where_the_number_rounds_to_it(dtype: torch.dtype, measure: exact.Measure) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([largest, largest, largest, 1.0], dtype=dtype)
    value = torch.tensor([math.inf, -math.inf, math.nan, math.inf], dtype=dtype)
    by_relu2, by_relu = (measure(name, x, value, x)[0].tolist() for name in ("relu2", "relu"))
    assert by_relu2 == [0, math.inf, math.inf, math.inf]
    assert by_relu == [math.inf] * 4


def test_one_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = tool.results

    def wrong(activation: str, x: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = correct(activation, x)
        return torch.where(x == 0.8125, value * (1 + 2**-21), value), torch.where(x.isnan(), 0.0, slope)

    monkeypatch.setattr(tool, "results", wrong)
    around = tool.numbers(torch.float32, 0x3F500000 - 999, 0x3F500000 + 999, "cpu")
    (((ulps, argument),), slope) = tool.found("silu", around, exact.in_double).values()
    assert ulps > 3
    assert argument == 0.8125
    assert slope[0][0] < 2


@pytest.mark.parametrize("what", ["value", "slope"])
def test_a_nan_unlike_the_others_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = tool.results

    def wrong(activation: str, x: Tensor) -> tuple[Tensor, Tensor]:
        pair = dict(zip(("value", "slope"), correct(activation, x), strict=True))
        pair[what] = torch.where(x.view(torch.int32) == 0x7FC12345, 0.0, pair[what])
        return pair["value"], pair["slope"]

    monkeypatch.setattr(tool, "results", wrong)
    worst = tool.found("silu", tool.numbers(torch.float32, 0x7FC10000, 0x7FC20000, "cpu"), exact.in_double)
    assert worst[what][0][0] == math.inf


def call(file: Path, *options: str) -> int:
    threads = torch.get_num_threads()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["exact", str(file), "--activations", "silu", "--threads", "2", *options])
            return tool.main()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_walk_that_is_stopped_goes_on(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == "float64":
        needs_quadruple()
    monkeypatch.setattr(tool, "CHUNK", 1 << 14)
    monkeypatch.setattr(tool, "BLOCK", {"cpu": 1 << 13})
    monkeypatch.setattr(tool, "SEEDED", 100)
    monkeypatch.setattr(tool, "KEPT", 1)
    options = ("--dtypes", dtype, "--points", "14400", "--check", "20")
    assert call(tmp_path / "whole.json", *options) == 0
    assert call(tmp_path / "parts.json", *options, "--minutes", "-1") == 1
    walk, left = tool.walk, [1, 1, 0]

    def stopped(*arguments: Any) -> None:
        if not left.pop(0):
            raise KeyboardInterrupt
        walk(*arguments)

    monkeypatch.setattr(tool, "walk", stopped)
    with pytest.raises(KeyboardInterrupt):
        call(tmp_path / "parts.json", *options)
    monkeypatch.setattr(tool, "walk", walk)
    (half,) = load(tmp_path / "parts.json")["rows"]
    assert 0 < half["points"] < half["of"]
    assert call(tmp_path / "parts.json", *options) == 0
    (parts,), (whole,) = (load(tmp_path / name)["rows"] for name in ("parts.json", "whole.json"))
    assert parts | {"seconds": 0} == whole | {"seconds": 0}


def test_a_file_of_another_build_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(tool.facts("cpu") | {"library": "another", "rows": []}))
    with pytest.raises(SystemExit, match="of another library"):
        call(file)


@mpmath.workdps(60)
def test_a_search_finds_what_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak at 1.23 is found from 1.2."""

    def measure(activation: str, x: Tensor, value: Tensor, slope: Tensor) -> exact.Errors:
        return 1 / (1 + (x - 1.23).abs()), torch.zeros_like(x)

    ((_, argument),) = tool.searched("gelu", 1.2, "cpu", measure)["value"][:1]
    assert abs(argument - 1.23) < 1e-12
