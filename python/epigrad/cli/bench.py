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
from epigrad.cli.arguments import names_out_of, positive
from epigrad.cli.models import MODELS
from epigrad.cli.report import STDOUT, check_paths

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "main"]

_EPILOG = """\
examples:
  python -m epigrad bench --quick                          short rounds, roughly right
  python -m epigrad bench --rows "gated.*bfloat16"         some rows only
  python -m epigrad bench --json results --plot results    kept by date and device, in a directory that exists
  python -m epigrad bench --models gpt2,vit                training steps of whole models, on cpu or cuda
  python -m epigrad bench --experts                        mixtures of experts, on cpu or cuda
  python -m epigrad bench --quick --json | jq .rows        progress goes to stderr then

exit codes: 0 if all was measured, 1 if a row failed or a device is not here, 2 for arguments that make no sense. What
was measured when Ctrl-C stops it is in the JSON file.
"""
_TABLES = {"cpu": bench_cpu.run, "cuda": bench_cuda.run, "webgpu": bench_webgpu.run}


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="this machine, against PyTorch eager and torch.compile",
        description="Time epigrad's operations on this machine, in turns with the same composed of PyTorch's.\n"
        "A ratio of less than 1 means that epigrad is faster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device",
        choices=[*_TABLES, "all"],
        help="what is measured: a device, or all that are here; by default cuda where there is one, else cpu",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer rounds, on cuda bfloat16 alone, on webgpu small tensors, on cpu small models",
    )
    parser.add_argument(
        "--models",
        type=names_out_of(MODELS),
        nargs="?",
        const=tuple(MODELS),
        metavar="NAMES",
        help=f"training steps of models of transformers and timm in place of operations: {', '.join(MODELS)}, or all",
    )
    parser.add_argument(
        "--experts",
        type=names_out_of(bench_experts.CASES),
        nargs="?",
        const=tuple(bench_experts.CASES),
        metavar="NAMES",
        help="mixtures of experts of transformers in place of operations, against its grouped_mm and dense products "
        f"(on a CPU of an eighth of the features): {', '.join(bench_experts.CASES)}, or all",
    )
    parser.add_argument(
        "--dtypes",
        type=names_out_of(bench_experts.DTYPES),
        metavar="NAMES",
        help=f"of experts: {', '.join(bench_experts.DTYPES)}; by default bfloat16, on a CPU float32 too",
    )
    parser.add_argument("--rows", type=_pattern, metavar="PATTERN", help="only rows whose name this is found in")
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="how long a table takes: on cpu shared by its rows, on cuda what is left then is skipped; of models how "
        "long the timing takes, without compiling",
    )
    parser.add_argument("--all-kinds", action="store_true", help="every activation and gated kind, on cpu")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="whether torch.compile is measured too: on cuda it is, on cpu it is not (it needs a C++ compiler)",
    )
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        nargs="?",
        const=STDOUT,
        metavar="PATH",
        help="write JSON to a file, or into a directory; without PATH, to stdout in place of the table",
    )
    parser.add_argument(
        "--plot", type=pathlib.Path, metavar="PNG", help="draw the ratios, to a file or into a directory (matplotlib)"
    )
    parser.set_defaults(run=main, error=parser.error)


def main(args: argparse.Namespace) -> int:
    """Measure the table of each requested device."""
    if args.models is not None and args.experts is not None:
        args.error("--models, --experts: want one of the two")
    for option in ("models", "experts"):
        if getattr(args, option) is None:
            continue
        if args.device in ("webgpu", "all"):
            args.error(f"--{option}: want one device, cpu or cuda")
        if args.rows is not None or args.all_kinds:
            args.error(f"--{option}: --rows and --all-kinds choose rows of other tables: want --{option} NAMES")
    if args.dtypes is not None and args.experts is None:
        args.error("--dtypes: want --experts with it; --rows PATTERN chooses dtypes of other tables")
    here = {info.name for info in selection.backends() if info.available}
    chosen = [args.device] if args.device in _TABLES else [name for name in _TABLES if name in here]
    if args.device is None:
        chosen = [name for name in chosen if name != "webgpu"][-1:]
    for name in chosen:
        if name not in here:
            raise selection.unavailable(name)
    check_paths(args, len(chosen))
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        print("this machine is busy: times mean little", file=sys.stderr)
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
