"""``python -m epigrad check``: random problems against an oracle in float64."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from epigrad import errors
from epigrad._check.modes import MODES
from epigrad._check.problem import Problem
from epigrad._check.search import Failure, Tell, search, verdict, warm
from epigrad._check.watch import Watch
from epigrad._core import selection
from epigrad.cli.arguments import names_out_of, positive
from epigrad.cli.machine import backend as backend_text
from epigrad.cli.machine import cpu_name
from epigrad.cli.report import STDOUT, Progress, Report, check_path

__all__ = ["add_parser", "main"]

SECONDS, MOST_FAILURES = 10.0, 10
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
So is a problem at which the process ends, which a fault in a kernel does.

examples:
  python -m epigrad check                                  ten seconds for each mode on the CPU
  python -m epigrad check --seconds 60 --mode correct      one mode, longer
  python -m epigrad check --problems 100000 --seed 7       as many, and the same for the same seed
  python -m epigrad check --problem 'linear kind=gelu sizes=1x3x5x4'

exit codes: 0 nothing failed; 1 something did; 2 arguments that make no sense, or a backend that cannot run
here; 130 stopped by Ctrl-C, after what was found until then
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
        args.error(str(selection.unavailable(args.backend)))
    check_path(args, args.json)
    report = Report(
        device=torch.cuda.get_device_name() if args.backend == "cuda" else cpu_name(),
        command=_command(args),
        unit="problems",
        path=args.json,
        slug="check",
        facts={"backend": backend_text(args.backend), "seed": args.seed, "threads": torch.get_num_threads()},
    )
    warm(args.backend)
    stopped = False
    with Progress(len(args.mode), args.json) as progress, Watch() as watch:
        for mode in args.mode:
            run = _Run(mode, args, progress, watch.tell)
            try:
                run.go()
            except KeyboardInterrupt:
                stopped = True
            report.add(run.row() | ({"stopped": True} if stopped else {}))
            progress.end(run.text() + (", stopped" if stopped else ""))
            if stopped:
                break
    report.finish(lambda: None)
    if stopped:
        print("stopped", file=sys.stderr)
        return 130
    return int(any(row["failed"] for row in report.rows))


class _Run:
    """A mode's problems: those that were drawn, or the one that is given.

    Attributes:
        mode: what is asked.
        count: how many were asked.
        failures: those that failed.
    """

    def __init__(self, mode: str, args: argparse.Namespace, progress: Progress, tell: Tell) -> None:
        self.mode = mode
        self.count = 0
        self.failures: list[Failure] = []
        self._args = args
        self._progress = progress
        self._tell = tell
        self._begin = time.monotonic()

    def go(self) -> None:
        """Ask until it is enough, or `MOST_FAILURES` failed."""
        self._progress.begin(self.mode)
        for failure in self._asked():
            self.count += 1
            if failure is not None:
                self.failures.append(failure)
                self._progress.note(f"{self.mode}: {failure.wrong}\n  {failure.command(self._args.backend)}")
            part = self._part()
            self._progress.describe(f"{self.mode}: {self.count} problems", part)
            if part >= 1 or len(self.failures) == MOST_FAILURES:
                break

    def _asked(self) -> Iterator[Failure | None]:
        args = self._args
        if args.problem is None:
            return search(self.mode, args.backend, args.seed, self._tell)
        wrong = verdict(self.mode, args.problem, args.backend, self._tell)
        return iter([Failure(self.mode, args.problem, args.problem, wrong) if wrong else None])

    def _part(self) -> float:
        """Which part is done."""
        if self._args.problem is not None:
            return 1.0
        if self._args.problems is not None:
            return self.count / float(self._args.problems)
        return (time.monotonic() - self._begin) / float(self._args.seconds or SECONDS)

    def text(self) -> str:
        """The line that ends it."""
        taken = time.monotonic() - self._begin
        return f"{self.mode}: {self.count} problems in {taken:.1f} s, {len(self.failures) or 'none'} failed"

    def row(self) -> dict[str, Any]:
        """What the file says of it."""
        backend = self._args.backend
        return {
            "mode": self.mode,
            "problems": self.count,
            "failed": len(self.failures),
            "seconds": time.monotonic() - self._begin,
            "failures": [
                {"wrong": each.wrong, "command": each.command(backend), "drawn": str(each.drawn)}
                for each in self.failures
            ],
        }


def _command(args: argparse.Namespace) -> str:
    if args.problem is not None:
        much = f"--problem '{args.problem}'"
    elif args.problems is not None:
        much = f"--problems {args.problems} --seed {args.seed}"
    else:
        much = f"--seconds {args.seconds or SECONDS:g} --seed {args.seed}"
    return f"python -m epigrad check {much} --backend {args.backend} --mode {','.join(args.mode)}"


def _problem(text: str) -> Problem:
    try:
        return Problem.read(text)
    except errors.EpigradError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: want a number of problems, more than 0")
    return int(text)
