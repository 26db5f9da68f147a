"""What options of the command line accept."""

from __future__ import annotations

import argparse
import math
import pathlib
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

from epigrad import errors
from epigrad._check.problem import Problem
from epigrad.cli.report import STDOUT


class Formatter(argparse.HelpFormatter):
    """Fits a text to the terminal. Lines without a margin are paragraphs; the others are names or
    commands, with what they do."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        text = re.sub(r"(?<![\n:])\n(?=[^ \n])|\n {7,}", " ", text)
        lines = []
        for line in text.splitlines():
            command, _, told = line.partition("   ") if line.startswith("  python") else ("", "", "")
            if len(line) <= width:
                lines.append(line)
            elif told:
                margin = " " * 6
                lines += [command, *textwrap.wrap(told.strip(), width, initial_indent=margin, subsequent_indent=margin)]
            else:
                name = re.match(r"( +\S+ +)?", line)
                lines += textwrap.wrap(line, width, subsequent_indent=" " * len(name[0] if name else ""))
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """A parser whose errors do not begin with all options."""

    elsewhere: Mapping[str, str] = {}
    """Words that its options lack, and the command that has them."""

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += errors.proposal(choice[1], re.findall(r"[\w.]+", choice[2]), slips=2)
        for word, command in self.elsewhere.items():
            if word in message:
                message += f"; a clone of the repository has it: {command}"
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help lists all options\n")


def names_out_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """The type of an option whose value is known names, with commas between."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"{name!r}: want one or more of {', '.join(known)}, separated by commas"
                    f"{errors.proposal(name, known)}"
                )
        return chosen

    return names


def positive(text: str) -> float:
    """The type of an option whose value is seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: want a number of seconds > 0")
    return value


def problem(text: str) -> Problem:
    """The type of an option whose value is a problem, such as ``linear sizes=1x3x5x4``."""
    try:
        return Problem.read(text)
    except errors.EpigradError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("check: problem: ")) from None


def pattern(text: str) -> re.Pattern[str]:
    """The type of an option whose value is a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def add_json(parser: argparse.ArgumentParser, instead_of: str) -> None:
    text = f"write JSON to a file, or to a new file in a directory; without PATH, to stdout in place of {instead_of}"
    parser.add_argument("--json", type=pathlib.Path, nargs="?", const=STDOUT, metavar="PATH", help=text)


def add_options(parser: argparse.ArgumentParser, known: Collection[str]) -> None:
    """The options of every table of measurements, `bench`'s and those of the repository's
    benchmarks, with the dtypes that are known."""
    dtypes = f"some of {', '.join(known)} (default: several)"
    parser.add_argument("--quick", action="store_true", help="about one minute on cpu, bfloat16 only on cuda")
    parser.add_argument("--rows", type=pattern, metavar="PATTERN", help="only rows that match this regular expression")
    parser.add_argument("--dtypes", type=names_out_of(known), metavar="NAMES", help=dtypes)
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="time limit of a table, after which remaining rows are skipped; with models or experts, time of the "
        "measurements, without compilation",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="measure torch.compile too (default: yes on cuda, no on cpu, where it needs a C++ compiler)",
    )
    add_json(parser, "the table")
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        metavar="PNG",
        help="draw the ratios to a file, or to a new file in a directory (needs matplotlib)",
    )
