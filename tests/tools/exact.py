"""Walks every activation and its slope at default parameters, and keeps the worst errors in ULP
with their arguments.

    python -m tests.tools.exact FILE                   all numbers of the half types and of float32
    python -m tests.tools.exact FILE --dtypes float64  10^8 points of each activation
    python -m tests.tools.exact FILE --device cuda     on a GPU

EPIGRAD_CPU_ENGINE chooses an engine of the CPU.

A call stops after --minutes, with exit code 1 if there is more to do. FILE is written after each
chunk; the same call then goes on from there, with the same build on the same device.

float64 is measured against quadruple precision. mpmath measures 10^4 of the points again, and the
neighbourhoods of the worst arguments are searched in ever smaller steps.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import hashlib
import itertools
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import epigrad
import mpmath
import torch
from epigrad import _native
from epigrad.cli import machine
from torch import Tensor

from tests.support import exact
from tests.support.ulp import ACTIVATIONS, DTYPES, arguments, measure_slope, measure_value, slope_of, value_of
from tests.tools import records

Found = dict[str, list[list[float]]]
"""For value and slope the worst errors with their arguments, the largest first."""

CHUNK = 1 << 22
BLOCK = {"cpu": 1 << 15, "cuda": 1 << 20}
SEEDED = 1 << 13
"""What a seed of `arguments` is asked for, in float64."""
FIRST_SEED = 1000
KEPT = 8
"""Places whose neighbourhoods are searched."""
NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
NUMBERS = {"bfloat16": 1 << 16, "float16": 1 << 16, "float32": 1 << 32}


def numbers(dtype: torch.dtype, start: int, end: int, device: str) -> Tensor:
    """Those numbers of a dtype whose bits, read as an unsigned integer, are in a range."""
    unsigned = torch.arange(start, end, device=device)
    size = torch.finfo(dtype).bits
    signed = torch.where(unsigned < 1 << (size - 1), unsigned, unsigned - (1 << size))
    return signed.to({16: torch.int16, 32: torch.int32}[size]).view(dtype)


def results(activation: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """What epigrad computes."""
    return value_of(activation, x), slope_of(activation, preactivation=x)


def measure_for(dtype: str, device: str) -> exact.Measure:
    """What measures errors, with the first name that is possible here."""
    if dtype == "float64":
        return exact.in_quadruple
    return exact.in_double if device == "cpu" and exact.compiled() else exact.in_torch


def found(activation: str, x: Tensor, measure: exact.Measure) -> Found:
    """The worst of some arguments.

    Every NaN is to give what one NaN does, of which the value is NaN.
    """
    got = results(activation, x)
    measured = [errors.to(x.device) for errors in measure(activation, x, *got)]
    if not x.isfinite().all():
        _, slope = results(activation, x.new_full((1,), math.nan))
        alike = got[0].isnan(), got[1].isnan() if slope.isnan() else got[1] == slope
        at_nan = [torch.where(x.isnan() & ~same, math.inf, 0.0) for same in alike]
        measured = [errors.where(x.isfinite(), nan) for errors, nan in zip(measured, at_nan, strict=True)]
    worst = [int(errors.argmax()) for errors in measured]
    of_value, of_slope = ([[e[i].item(), x[i].item()]] for e, i in zip(measured, worst, strict=True))
    return {"value": of_value, "slope": of_slope}


def merged(parts: Iterable[Found]) -> Found:
    """The worst of several."""
    worst: Found = {"value": [], "slope": []}
    for part, what in itertools.product(parts, worst):
        places = {(ulps, at) for ulps, at in (*worst[what], *part[what])}
        worst[what] = [list(place) for place in sorted(places, key=lambda place: (-place[0], place[1]))[:KEPT]]
    return worst


def blocks(row: dict[str, Any], device: str, threads: int) -> Iterator[Tensor]:
    """The arguments of a row's next chunk."""
    dtype = NAMES[row["dtype"]]
    if row["dtype"] == "float64":
        first = FIRST_SEED + row["points"] // (6 * SEEDED)
        for seed in range(first, first + 4 * threads):
            yield arguments(row["activation"], dtype, SEEDED, seed).to(device)
    else:
        step, start = BLOCK[device], row["points"]
        end = min(start + max(CHUNK, step * threads), row["of"])
        for at in range(start, end, step):
            yield numbers(dtype, at, min(at + step, end), device)


def searched(activation: str, at: float, device: str, measure: exact.Measure) -> Found:
    """What is worst around an argument, in steps that halve."""
    best = merged([found(activation, torch.tensor([at], dtype=torch.float64, device=device), measure)])
    for what in best:
        for halvings in range(3, 50):
            centre = best[what][0][1]
            offsets = torch.linspace(-1, 1, 1023, dtype=torch.float64, device=device) * 2.0**-halvings
            best[what] = merged([best, found(activation, centre * (1 + offsets), measure)])[what][:1]
    return best


@mpmath.workdps(60)
def spot_check(activation: str, count: int, device: str, measure: exact.Measure) -> dict[str, float]:
    """How far errors by mpmath are from the measure's."""
    x = arguments(activation, torch.float64, -(-count // 6)).to(device)[:count]
    got = results(activation, x)
    largest = 0.0
    for by_mpmath, y, errors in zip((measure_value, measure_slope), got, measure(activation, x, *got), strict=True):
        again = [by_mpmath(activation, x[i : i + 1], y[i : i + 1]).ulps for i in range(len(x))]
        largest = max(largest, (errors.cpu() - torch.tensor(again, dtype=torch.float64)).abs().max().item())
    return {"points": len(x), "largest_difference": largest}


def walk(row: dict[str, Any], device: str, threads: int) -> None:
    """Goes on by a chunk; after the last of float64, searches and checks."""
    measure = measure_for(row["dtype"], device)
    begin, name = time.perf_counter(), row["activation"]
    threads = 1 if measure is exact.in_torch and device != "cpu" else threads
    row["reference"] = measure.__name__.replace("_", " ") + ("" if measure is exact.in_torch else ", by C")
    with concurrent.futures.ThreadPoolExecutor(threads) as executor:

        def one(x: Tensor) -> tuple[int, Found]:
            return len(x), found(name, x, measure)

        parts = list(executor.map(one, blocks(row, device, threads)))
        row["points"] += sum(count for count, _ in parts)
        row["worst"] = merged([row["worst"], *(part for _, part in parts)])
        if row["dtype"] == "float64" and row["points"] >= row["of"]:
            places = {at for what in row["worst"].values() for _, at in what}
            row["worst"] = merged(list(executor.map(lambda at: searched(name, at, device, measure), sorted(places))))
            row["checked_by_mpmath"] = spot_check(name, row["check"], device, measure)
    row["threads"] = threads
    row["seconds"] = round(row["seconds"] + time.perf_counter() - begin, 3)


def facts(device: str) -> dict[str, Any]:
    """What is measured, and on what: a file goes on only where these agree."""
    library = Path(str(_native.__file__)).read_bytes()
    return {
        "device": machine.cpu_name() if device == "cpu" else torch.cuda.get_device_name(device),
        "backend": machine.backend(device),
        "versions": {"epigrad": epigrad.__version__, "torch": torch.__version__},
        "library": hashlib.sha256(library).hexdigest(),
    }


def begun(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The record so far, with a row for each activation and dtype that is asked for."""
    now = facts(options.device)
    new = {"what": "errors in ULP", "date": datetime.date.today().isoformat(), "commit": machine.commit(), **now}
    record: dict[str, Any] = records.load(file) if file.exists() else new | {"rows": []}
    if others := [name for name, fact in now.items() if record[name] != fact]:
        raise SystemExit(f"{file} is of another {', '.join(others)}: give another file")
    have = {(row["dtype"], row["activation"]) for row in record["rows"]}
    for dtype, name in itertools.product(options.dtypes, options.activations):
        if (dtype, name) not in have:
            row = {"activation": name, "dtype": dtype, "points": 0, "of": NUMBERS.get(dtype, options.points)}
            check = {"check": options.check} if dtype == "float64" else {}
            record["rows"].append(row | check | {"seconds": 0.0, "worst": {"value": [], "slope": []}})
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", choices=BLOCK, default="cpu")
    parser.add_argument("--dtypes", nargs="+", choices=NAMES, default=list(NUMBERS))
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=ACTIVATIONS, metavar="NAME")
    parser.add_argument("--points", type=int, default=10**8, help="of each activation in float64")
    parser.add_argument("--check", type=int, default=10**4, help="of these, by mpmath")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--threads", type=int, help="as many as processors; one where a GPU measures")
    options = parser.parse_args()
    threads = options.threads or torch.get_num_threads()
    torch.set_num_threads(1)  # of one call: calls run at once
    end = time.monotonic() + 60 * options.minutes
    record = begun(options.file, options)
    todo = [r for r in record["rows"] if r["dtype"] in options.dtypes and r["activation"] in options.activations]
    for row in todo:
        while row["points"] < row["of"]:
            if time.monotonic() > end:
                print("not finished: the same call goes on")
                return 1
            walk(row, options.device, threads)
            scratch = options.file.with_suffix(".part")
            scratch.write_text(records.packed(record))
            scratch.replace(options.file)
        worst = {what: places[0] for what, places in row["worst"].items()}
        print(row["activation"], row["dtype"], row["points"], worst, f"{row['seconds']} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
