"""The command line: ``python -m epigrad doctor``, ``plans`` and ``bench``.

A subcommand is a module here with ``add_parser(subparsers)``, which sets ``run=main``, and ``main(args) -> int``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

from epigrad import errors

__all__ = ["main"]

_COMMANDS = ("doctor", "bench", "plans")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 for success, 1 for a failure, 2 for arguments that make no
    sense.
    """
    parser = argparse.ArgumentParser(prog="python -m epigrad", description="epigrad on the command line")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name in _COMMANDS:
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            importlib.import_module(f"{__name__}.{name}").add_parser(subparsers)
    args = parser.parse_args(arguments)
    try:
        code: int = args.run(args)
    except errors.EpigradError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return code
