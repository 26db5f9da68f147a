"""The command line: ``python -m epigrad doctor``, ``plans``, ``bench`` and ``check``.

A subcommand is a module here with ``add_parser(subparsers)``, which sets ``run=main``, and
``main(args) -> int``.

In a notebook ``%run -m epigrad doctor`` does the same, with the notebook's tables. In reading
order:

    doctor      what works here and why not
    plans       what would run for a given problem
    bench       this machine, against PyTorch
    check       random problems against an oracle
    operations  what bench measures
    models      the models of its training steps
    arguments   what options accept
    runner      runs a table of measurements
    contest     candidates against each other
    timing      how it is measured
    report      progress and the JSON file
    picture     bars
    table       tables on the terminal
    machine     what computes
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

from epigrad import errors
from epigrad.cli.arguments import Formatter, Parser

__all__ = ["main", "parser"]

_COMMANDS = ("doctor", "bench", "plans", "check")
_EPILOG = """\
examples:
  python -m epigrad doctor                 is everything installed that epigrad needs?
  python -m epigrad bench --quick          how fast is it on this machine, compared with PyTorch?
  python -m epigrad plans --class Lerp --shape 64 64   which kernel runs, how exact is it, how much workspace?
  python -m epigrad check                  are its results correct on this machine?
  python -m epigrad bench --help           all options of a command

exit codes: 0 success; 1 something failed or a problem was refused, and stderr or the table says what; 2 invalid
arguments; 130 stopped by Ctrl-C. In a notebook: %run -m epigrad doctor
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, with its subcommands."""
    made = Parser(
        prog="python -m epigrad",
        description="Inspect, measure and test epigrad on this machine.",
        epilog=_EPILOG,
        formatter_class=Formatter,
    )
    subparsers = made.add_subparsers(dest="command", required=True, metavar="command")
    for name in _COMMANDS:
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            importlib.import_module(f"{__name__}.{name}").add_parser(subparsers)
            subparsers.choices[name].set_defaults(error=subparsers.choices[name].error)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 for success, 1 for a failure, 2 for
    arguments that make no sense, 130 if it was stopped.
    """
    if not (sys.argv[1:] if arguments is None else arguments):
        parser().print_help(sys.stderr)
        parser().exit(2)
    args, unknown = parser().parse_known_args(arguments)
    if unknown:
        args.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = args.run(args)
    except errors.EpigradError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return code
