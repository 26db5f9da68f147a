"""``python -m epigrad check``: random problems against an oracle in float64."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from epigrad._check.modes import MODES
from epigrad._check.search import Failure, Tell, search, verdict, warm
from epigrad._check.watch import Watch
from epigrad._core import selection
from epigrad.cli.arguments import Formatter, add_json, names_out_of, positive, problem
from epigrad.cli.machine import backend as backend_text
from epigrad.cli.machine import cpu_name
from epigrad.cli.report import Progress, Report, check_path

SECONDS, MOST_FAILURES = 30.0, 10
_EPILOG = """\
modes:
  correct  output and gradients lie within error bounds of a float64 reference; nothing else is written
  bitwise  the same bits again, on one thread, and for each gradient alone; for elementwise operations in any layout;
           for some of the rows alone, in epigrad.batch_invariant
  bad      a malformed call raises an error of the right class, and writes nothing
  leak     repeated calls keep no memory
  race     concurrent calls from several threads give the same bits as calls one after the other

A problem is a random choice of operation, kind, parameters, dtype, sizes, layouts, entry point and gradients. check
shrinks a failing problem (at most 20 seconds each, on top of --seconds) and prints the command that reproduces it. A
mode tries at least one problem and ends after ten failures. If a kernel crashes the process, check prints the command
for that problem too.

examples:
  python -m epigrad check                                  30 seconds in total, on the CPU
  python -m epigrad check --seconds 60 --mode correct      one mode, longer
  python -m epigrad check --problems 100000 --seed 7       a fixed number; a seed always gives the same problems
  python -m epigrad check --problem 'linear kind=gelu sizes=1x3x5x4'

exit codes: 0 nothing failed; 1 something failed; 2 invalid arguments, or a backend that cannot run here; 130 stopped
by Ctrl-C, after printing what was found so far
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "check",
        help="random problems against a float64 reference",
        description="Test epigrad on this machine with random problems.",
        epilog=_EPILOG,
        formatter_class=Formatter,
    )
    much = parser.add_mutually_exclusive_group()
    much.add_argument(
        "--seconds",
        type=positive,
        default=SECONDS,
        metavar="S",
        help="how long the whole call takes, besides importing PyTorch; the modes share it (default: %(default)g)",
    )
    much.add_argument("--problems", type=_count, metavar="N", help="try N problems in each mode, however long it takes")
    much.add_argument("--problem", type=problem, metavar="TEXT", help="try this problem only")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random problems (default: 0)")
    parser.add_argument("--backend", choices=("cpu", "webgpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument(
        "--mode",
        type=names_out_of(MODES),
        default=tuple(MODES),
        metavar="MODES",
        help=f"modes to run, with commas between: {','.join(MODES)} (default: all)",
    )
    add_json(parser, "text")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    """Check, print what failed and a verdict, and write the file; 1 if anything failed."""
    stopped, end = False, time.monotonic() + args.seconds
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
    with Progress(len(args.mode), args.json) as progress, Watch() as watch:
        progress.describe("starting", 0)
        warm(args.backend)
        for place, mode in enumerate(args.mode):
            seconds = (end - time.monotonic()) / (len(args.mode) - place)
            run = _Run(mode, args, seconds, progress, watch.tell)
            try:
                run.go()
            except KeyboardInterrupt:
                stopped = True
            report.add(run.row() | ({"stopped": True} if stopped else {}))
            progress.note(f"{place + 1}/{len(args.mode)} {run.text()}" + (", stopped" if stopped else ""))
            if stopped:
                break
    report.finish(lambda: print(_verdict(report, args.backend)))
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

    def __init__(self, mode: str, args: argparse.Namespace, seconds: float, progress: Progress, tell: Tell) -> None:
        self.mode = mode
        self.count = 0
        self.failures: list[Failure] = []
        self._args = args
        self._seconds = seconds
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
            self._progress.describe(f"{self.mode}: {self._tried()}", part)
            if part >= 1 or len(self.failures) == MOST_FAILURES:
                break

    def _asked(self) -> Iterator[Failure | None]:
        args = self._args
        if args.problem is None:
            return search(self.mode, args.backend, args.seed, self._tell)
        wrong = verdict(self.mode, args.problem, args.backend, self._tell)
        return iter([Failure(self.mode, args.problem, args.problem, wrong) if wrong else None])

    def _part(self) -> float:
        """The part that is done; 1 or more is all."""
        if self._args.problem is not None:
            return 1.0
        if self._args.problems is not None:
            return self.count / float(self._args.problems)
        taken = time.monotonic() - self._begin
        return taken / self._seconds if self._seconds > taken else 1.0

    def text(self) -> str:
        taken = time.monotonic() - self._begin
        return f"{self.mode}: {self._tried()} in {taken:.1f} s, {len(self.failures) or 'none'} failed"

    def _tried(self) -> str:
        return f"{self.count} problem{'s' * (self.count != 1)}"

    def row(self) -> dict[str, Any]:
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


def _verdict(report: Report, backend: str) -> str:
    tried, failed = (sum(row[what] for row in report.rows) for what in ("problems", "failed"))
    if failed:
        return f"failed: {failed} of {tried} problems on {backend}; the commands above reproduce them"
    return f"passed: {tried} problems on {backend}"


def _command(args: argparse.Namespace) -> str:
    if args.problem is not None:
        much = f"--problem '{args.problem}'"
    elif args.problems is not None:
        much = f"--problems {args.problems} --seed {args.seed}"
    else:
        much = f"--seconds {args.seconds:g} --seed {args.seed}"
    return f"python -m epigrad check {much} --backend {args.backend} --mode {','.join(args.mode)}"


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: want a number of problems > 0")
    return int(text)
