"""``python -m epigrad check``: random problems against an oracle in float64."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable

import torch

from epigrad import errors
from epigrad._check.modes import MODES
from epigrad._check.problem import Problem
from epigrad._check.search import Failure, search, verdict
from epigrad._core import selection
from epigrad.cli.arguments import names_out_of, positive
from epigrad.cli.machine import backend as backend_text
from epigrad.cli.machine import cpu_name
from epigrad.cli.report import STDOUT, Progress, Report

__all__ = ["add_parser", "main"]

SECONDS = 10.0
_EPILOG = """\
modes:
  correct  output and gradients lie within error bounds of a reference in float64; nothing else is written
  bitwise  the same bits again, on one thread, for one gradient alone; for elementwise operations in any layout; for
           some rows alone, in epigrad.batch_invariant
  bad      a malformed call raises an error of the right class, and writes nothing
  leak     calls again and again keep no memory
  race     calls from several threads at once give the bits of calls one after the other

Problems are drawn over operations, kinds and their parameters, dtypes, sizes, layouts, what is saved, ways to call, and
gradients that are asked for. A failure is shrunk, and printed as a command that shows it again. A mode stops after ten.

examples:
  python -m epigrad check                                  ten seconds for each mode on the CPU
  python -m epigrad check --seconds 60 --mode correct      one mode, longer
  python -m epigrad check --problems 100000 --seed 7       as many, and the same for the same seed
  python -m epigrad check --problem 'linear kind=gelu sizes=1x3x5x4'

exit codes: 0 nothing failed; 1 something did; 2 arguments that make no sense; 130 stopped by Ctrl-C
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "check",
        help="random problems against an oracle",
        description="Check this machine's epigrad with random problems.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    much = parser.add_mutually_exclusive_group()
    much.add_argument(
        "--seconds", type=positive, default=None, metavar="S", help=f"for each mode, {SECONDS:g} if not given"
    )
    much.add_argument("--problems", type=_count, metavar="N", help="for each mode, in place of seconds")
    much.add_argument("--problem", type=_problem, metavar="TEXT", help="this one alone")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="0 if not given")
    parser.add_argument("--backend", choices=("cpu", "webgpu", "cuda"), default="cpu", help="cpu if not given")
    parser.add_argument(
        "--mode",
        type=names_out_of(MODES),
        default=tuple(MODES),
        metavar="MODES",
        help=f"of {','.join(MODES)}; all if not given",
    )
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        nargs="?",
        const=STDOUT,
        metavar="PATH",
        help="write JSON to a file, or into a directory; without PATH, to stdout in place of text",
    )
    parser.set_defaults(run=main, error=parser.error)


def main(args: argparse.Namespace) -> int:
    """Check, print what failed and write the file; 1 if anything failed."""
    here = {info.name: info for info in selection.backends()}
    if args.backend not in here or not here[args.backend].available:
        raise selection.unavailable(args.backend)
    if args.problem is not None:
        return _one(args)
    report = Report(
        device=torch.cuda.get_device_name() if args.backend == "cuda" else cpu_name(),
        command=_command(args),
        unit="problems",
        path=args.json,
        slug="check",
        facts={"backend": backend_text(args.backend), "seed": args.seed, "threads": torch.get_num_threads()},
    )
    failed = False
    with Progress(len(args.mode), args.json) as progress:
        for mode in args.mode:
            progress.begin(mode)
            begin = time.monotonic()
            count, found = _searched(args, mode, progress)
            taken = time.monotonic() - begin
            failed |= bool(found)
            report.add(
                {
                    "mode": mode,
                    "problems": count,
                    "failed": len(found),
                    "seconds": taken,
                    "failures": [
                        {"wrong": each.wrong, "command": each.command(args.backend), "drawn": str(each.drawn)}
                        for each in found
                    ],
                }
            )
            progress.end(f"{mode}: {count} problems in {taken:.1f} s, {len(found) or 'none'} failed")
    report.finish(lambda: None)
    return int(failed)


def _searched(args: argparse.Namespace, mode: str, progress: Progress) -> tuple[int, list[Failure]]:
    """What `search` gives, with the bar moved and failures printed meanwhile."""
    more = _goes_on(args)

    def goes_on(count: int) -> bool:
        progress.describe(f"{mode}: {count} problems")
        return more(count)

    def tell(failure: Failure) -> None:
        progress.note(f"{mode}: {failure.wrong}\n  {failure.command(args.backend)}")

    return search(mode, args.backend, args.seed, goes_on, tell)


def _one(args: argparse.Namespace) -> int:
    wrong = {mode: text for mode in args.mode if (text := verdict(mode, args.problem, args.backend))}
    if args.json == STDOUT:
        print(json.dumps({"problem": str(args.problem), "backend": args.backend, "modes": args.mode, "wrong": wrong}))
    for mode in args.mode:
        print(f"{mode}: {wrong.get(mode, 'ok')}", file=sys.stderr if args.json == STDOUT else sys.stdout)
    return int(bool(wrong))


def _goes_on(args: argparse.Namespace) -> Callable[[int], bool]:
    if args.problems is not None:
        return lambda count: count < args.problems
    end = time.monotonic() + (args.seconds or SECONDS)
    return lambda count: time.monotonic() < end


def _command(args: argparse.Namespace) -> str:
    much = f"--problems {args.problems}" if args.problems is not None else f"--seconds {args.seconds or SECONDS:g}"
    return f"python -m epigrad check {much} --seed {args.seed} --backend {args.backend} --mode {','.join(args.mode)}"


def _problem(text: str) -> Problem:
    try:
        return Problem.read(text)
    except errors.EpigradError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: want a number of problems, more than 0")
    return int(text)
