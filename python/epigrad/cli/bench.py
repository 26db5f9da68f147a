"""``python -m epigrad bench``: this machine, against PyTorch eager and `torch.compile`.

One table for each kind of device: `bench_cpu`, `bench_cuda` and `bench_webgpu` say what their rows
are and how they are timed. `bench_models` has the table of whole models, and `bench_experts` that
of mixtures of experts.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
from typing import TYPE_CHECKING

from epigrad._core import selection
from epigrad.cli import bench_cpu, bench_cuda, bench_experts, bench_models, bench_webgpu
from epigrad.cli.arguments import Formatter, names_out_of, positive
from epigrad.cli.models import MODELS
from epigrad.cli.report import STDOUT, check_paths

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "main"]

_EPILOG = """\
examples:
  python -m epigrad bench --quick                          about one minute on cpu
  python -m epigrad bench --rows "gated.*bfloat16"         some rows only
  python -m epigrad bench --json results --plot results    files named by date and device
  python -m epigrad bench --models gpt2,vit                training steps of whole models, on cpu or cuda
  python -m epigrad bench --experts                        mixtures of experts, on cpu or cuda
  python -m epigrad bench --quick --json | jq .rows        JSON on stdout, progress on stderr

On cpu a point is skipped, and named, if one PyTorch call takes longer than 0.5 s and longer than the point's share of
the time. Small sizes run first. The table shows forward + backward on all threads; the JSON has every row.

exit codes: 0 success; 1 a row failed or a device is unavailable; 2 invalid arguments; 130 stopped by Ctrl-C. The JSON
file then has the rows measured so far.
"""
_TABLES = {"cpu": bench_cpu.run, "cuda": bench_cuda.run, "webgpu": bench_webgpu.run}


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="speed on this machine, compared with PyTorch eager and torch.compile",
        description="Time epigrad's operations on this machine, in turns with PyTorch's composition of each.\n"
        "A ratio below 1 means that epigrad is faster.",
        epilog=_EPILOG,
        formatter_class=Formatter,
    )
    parser.add_argument(
        "--device",
        choices=[*_TABLES, "all"],
        help="device to benchmark, or 'all' (default: cuda if available, else cpu)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="less work: on cpu three sizes on all threads (about one minute), on cuda bfloat16 only, on webgpu small "
        "tensors; with --models on cpu, small models",
    )
    parser.add_argument(
        "--models",
        type=names_out_of(MODELS),
        nargs="?",
        const=tuple(MODELS),
        metavar="NAMES",
        help="measure training steps of models from transformers and timm instead of operations: "
        f"{', '.join(MODELS)} (default: all)",
    )
    parser.add_argument(
        "--experts",
        type=names_out_of(bench_experts.CASES),
        nargs="?",
        const=tuple(bench_experts.CASES),
        metavar="NAMES",
        help="measure mixtures of experts instead of operations, compared with transformers' grouped_mm and dense "
        f"products (on cpu with 1/8 of the features): {', '.join(bench_experts.CASES)} (default: all)",
    )
    parser.add_argument(
        "--dtypes",
        type=names_out_of(bench_experts.DTYPES),
        metavar="NAMES",
        help=f"dtypes for --experts: {', '.join(bench_experts.DTYPES)} (default: bfloat16; on cpu float32 too)",
    )
    parser.add_argument(
        "--rows", type=_pattern, metavar="PATTERN", help="only rows whose name matches this regular expression"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="time limit of a table, after which remaining rows are skipped (default: "
        f"{bench_cpu.BUDGET:g} on cpu, {bench_cpu.QUICK_BUDGET:g} with --quick; {bench_cuda.BUDGET:g} on cuda; none on "
        "webgpu). With --models or --experts: time of the measurements, without compilation",
    )
    parser.add_argument("--all-kinds", action="store_true", help="on cpu, measure every activation and gated kind")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="measure torch.compile too (default: yes on cuda, no on cpu, where it needs a C++ compiler)",
    )
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        nargs="?",
        const=STDOUT,
        metavar="PATH",
        help="write JSON to a file, or to a new file in a directory; without PATH, to stdout in place of the table",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        metavar="PNG",
        help="draw the ratios to a file, or to a new file in a directory (needs matplotlib)",
    )
    parser.set_defaults(run=main, error=parser.error)


def main(args: argparse.Namespace) -> int:
    """Measure the table of each requested device."""
    if args.models is not None and args.experts is not None:
        args.error("--models and --experts exclude each other")
    for option in ("models", "experts"):
        if getattr(args, option) is None:
            continue
        if args.device in ("webgpu", "all"):
            args.error(f"--{option} runs on one device: want --device cpu or cuda")
        if args.rows is not None or args.all_kinds:
            args.error(f"--{option} takes neither --rows nor --all-kinds: choose rows with --{option} NAMES")
    if args.dtypes is not None and args.experts is None:
        args.error("--dtypes needs --experts; for other tables choose dtypes with --rows PATTERN")
    here = {info.name for info in selection.backends() if info.available}
    chosen = [args.device] if args.device in _TABLES else [name for name in _TABLES if name in here]
    if args.device is None:
        chosen = [name for name in chosen if name != "webgpu"][-1:]
    for name in chosen:
        if name not in here:
            raise selection.unavailable(name)
    check_paths(args, len(chosen))
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        print("warning: the machine is busy, so timings are unreliable", file=sys.stderr)
    if args.models is not None:
        return bench_models.run(args, chosen[0])
    if args.experts is not None:
        return bench_experts.run(args, chosen[0])
    return max(_TABLES[name](args) for name in chosen)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
