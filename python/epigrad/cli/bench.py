"""``python -m epigrad bench``: this machine, against PyTorch eager and `torch.compile`.

Operations, training steps of models, and mixtures of experts. The repository's folder
``benchmarks`` has more: WebGPU, all kinds, ceilings and goals, other libraries.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from epigrad._core import selection
from epigrad.cli import machine, models
from epigrad.cli.arguments import Formatter, Parser, add_options, names_out_of
from epigrad.cli.models import MODELS
from epigrad.cli.operations import BOTH, DTYPES, FORWARD, OPERATIONS, Point, measure_experts
from epigrad.cli.report import STDOUT, Row, check_paths, command, told, told_name
from epigrad.cli.runner import Bar, Column, Subject, Task, run

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[Parser]

_EPILOG = """\
examples:
  python -m epigrad bench --quick                          about one minute on cpu
  python -m epigrad bench --rows "gated.*bfloat16"         some rows only
  python -m epigrad bench --json results --plot results    files named by date and device
  python -m epigrad bench --models gpt2,vit                training steps of whole models
  python -m epigrad bench --experts                        mixtures of experts
  python -m epigrad bench --quick --json | jq .rows        JSON on stdout, progress on stderr
  python -m epigrad bench --report                         a file for an issue: records of your device are welcome

On cpu a row is skipped, and named, if one PyTorch call takes longer than 0.5 s. Small sizes run first. A checkout of
the repository has more: python -m benchmarks --help.

exit codes: 0 success; 1 a row failed or a device is unavailable; 2 invalid arguments; 130 stopped by Ctrl-C. The JSON
file then has the rows measured so far.
"""

# How long a row of an operation is measured.
SECONDS = 0.25

# Experts, features, hidden features, tokens, and experts of a token. On a CPU with an eighth of the
# features, and few tokens.
EXPERTS = {
    "qwen3-30b-a3b": (128, 2048, 768, 8192, 8),
    "gpt-oss-20b": (32, 2880, 2880, 8192, 4),
    "mixtral-like": (8, 4096, 14336, 4096, 2),
}
COLUMNS: dict[str, Column] = {
    "epigrad": ("epigrad", told),
    "ratio": ("/eager", "{:.2f}".format),
    "ratio_to_compile": ("/compile", "{:.2f}".format),
    "ratio_compiled": ("both compiled", "{:.2f}".format),
    "memory": ("kept /eager", lambda each: f"{each['epigrad']['kept'] / max(1, each['eager']['kept']):.2f}"),
}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="speed on this machine, compared with PyTorch eager and torch.compile",
        description="Time epigrad's operations on this machine, in turns with PyTorch's composition of each.\n"
        "A ratio below 1 means that epigrad is faster.",
        epilog=_EPILOG,
        formatter_class=Formatter,
    )
    parser.elsewhere = {
        "'webgpu'": "python -m benchmarks webgpu",
        "'all'": "python -m benchmarks",
        "--all-kinds": "python -m benchmarks cpu --all-kinds",
    }
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if available, else cpu")
    for option, known, what in (
        ("--models", MODELS, "training steps of models from transformers and timm"),
        ("--experts", EXPERTS, "mixtures of experts, beside PyTorch's grouped_mm (on cpu of an eighth of the size)"),
    ):
        parser.add_argument(
            option,
            type=names_out_of(known),
            nargs="?",
            const=tuple(known),
            metavar="NAMES",
            help=f"measure {what} instead of operations: {', '.join(known)} (default: all)",
        )
    parser.add_argument(
        "--report",
        action="store_true",
        help="measure experts and operations in about five minutes, and write a file that you can attach to an issue",
    )
    add_options(parser, DTYPES)
    parser.set_defaults(run=main, error=parser.error)


def main(args: argparse.Namespace) -> int:
    """Measure the table that is asked for."""
    if args.models is not None and args.experts is not None:
        args.error("--models and --experts exclude each other")
    if args.report:
        others = {"--models": args.models, "--experts": args.experts, "--rows": args.rows, "--dtypes": args.dtypes}
        given = [option for option, value in others.items() if value is not None]
        if given or args.json == STDOUT:
            what = given[0] if given else "--json without a path"
            args.error(f"--report writes a file of the same rows everywhere: it takes no {what}")
        args.quick, args.experts, args.json = True, tuple(EXPERTS), args.json or pathlib.Path()
    if args.models is not None and args.dtypes is not None:
        args.error("--models takes no --dtypes: models train in bfloat16 on cuda, in float32 on cpu")
    if args.experts is not None and "float64" in (args.dtypes or ()):
        args.error("--experts: PyTorch's grouped_mm takes no float64")
    here = {info.name for info in selection.backends() if info.available}
    name = args.device or ("cuda" if "cuda" in here else "cpu")
    if name not in here:
        raise selection.unavailable(name)
    check_paths(args)
    warn_if_busy()
    device = torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device("cpu")
    args.device = name
    return run(subject(args, device), args, command("python -m epigrad bench", args))


def warn_if_busy() -> None:
    """Say so where times mean little."""
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        print("warning: the machine is busy, so timings are unreliable", file=sys.stderr)


def subject(args: argparse.Namespace, device: torch.device) -> Subject:
    on_cuda, compiled = device.type == "cuda", device.type == "cuda" if args.compile is None else args.compile
    make = _models if args.models is not None else _experts if args.experts is not None else _operations
    tasks = list(make(args, device, compiled))
    if args.report:
        tasks += _operations(args, device, compiled)
    return Subject(
        slug="report" if args.report else {_models: "models", _experts: "experts"}.get(make, device.type),
        device=machine.name(device),
        unit=f"seconds of one call: median, quartiles, fastest; ratio: of the {'medians' if on_cuda else 'fastest'}",
        title="Time, and its ratios to PyTorch's (below 1 epigrad is faster)",
        tasks=tasks,
        names={"case": "what", "kind": "kind", "size": "size", "dtype": "dtype", "direction": "direction"},
        columns=COLUMNS,
        seconds=1.0 if args.report else SECONDS if make is _operations else 2.0 if args.quick else 10.0,
        budget=300.0 if args.report else math.inf if make is not _operations else 60.0 if args.quick else 300.0,
        facts=machine.facts(device),
        bars=_bars,
    )


def _operations(args: argparse.Namespace, device: torch.device, compiled: bool) -> Iterator[Task]:
    """Small sizes first."""
    on_cuda = device.type == "cuda"
    threads = 0 if on_cuda else torch.get_num_threads()
    for place, operation in itertools.product(range(3), OPERATIONS):
        for direction in [BOTH] if args.quick else [FORWARD, BOTH]:
            for dtype in args.dtypes or (("bfloat16",) if on_cuda and args.quick else DTYPES):
                size = operation.sizes[device.type][place]
                point = Point(operation, size, dtype, direction, threads)
                yield Task(point.label, point.fields, partial(point.measure, device, compiled))


def _models(args: argparse.Namespace, device: torch.device, compiled: bool) -> Iterator[Task]:
    for name in args.models:
        library = MODELS[name].library
        if importlib.util.find_spec(library) is None:
            args.error(f"--models: {name} is a model of {library}, which is not installed: pip install {library}")
        dtype = "bfloat16" if device.type == "cuda" else "float32"
        fields = {"case": name, "kind": "training step", "dtype": dtype, "direction": BOTH}
        yield Task(f"{name} {dtype}", fields, partial(models.measure, MODELS[name], device, compiled))


def _experts(args: argparse.Namespace, device: torch.device, compiled: bool) -> Iterator[Task]:
    for name in args.experts:
        count, features, hidden, tokens, each = EXPERTS[name]
        if device.type == "cpu":
            features, hidden, tokens = features // 8, hidden // 8, min(tokens // 8, 8 * count)
        size = f"{count} of {features} -> {hidden}, {tokens} tokens x {each}"
        for dtype in args.dtypes or (("bfloat16",) if device.type == "cuda" else ("float32", "bfloat16")):
            fields = {"case": name, "kind": "swiglu", "size": size, "dtype": dtype, "direction": BOTH}
            sizes = (count, features, hidden, tokens, each)
            yield Task(f"{name} {dtype}", fields, partial(measure_experts, sizes, dtype, device, compiled))


def _bars(rows: Sequence[Row]) -> list[Bar]:
    return [
        (
            " ".join(told_name(row[name]) for name in ("case", "kind", "size", "dtype")),
            row["ratio"],
            row["ratio"] / row["ratio_to_compile"] if "ratio_to_compile" in row else None,
        )
        for row in rows
        if "ratio" in row and row["direction"] == BOTH
    ]
