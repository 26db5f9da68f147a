"""``python -m benchmarks SUBJECT...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from epigrad import errors
from epigrad._core import selection
from epigrad.cli.arguments import Formatter, Parser, add_options
from epigrad.cli.bench import warn_if_busy
from epigrad.cli.operations import DTYPES
from epigrad.cli.report import check_paths, command
from epigrad.cli.runner import Subject, run

from benchmarks import cpu, cuda, experts, invariance, lora, models, parallel, second, ways, webgpu

SUBJECTS: dict[str, Callable[[argparse.Namespace], Subject]] = {
    "cpu": cpu.subject,
    "cuda": cuda.subject,
    "webgpu": webgpu.subject,
    "models": models.subject,
    "experts": experts.subject,
    "sonicmoe": experts.subject_beside_sonicmoe,
    "lora": lora.subject,
    "second": second.subject,
    "parallel": parallel.subject,
    "ways": ways.subject,
    "invariance": invariance.subject,
}
# What a subject needs: a GPU, or these five take one where it is there.
_ON_EITHER, _ON_CUDA = ("models", "experts", "lora", "second", "parallel"), ("sonicmoe", "ways", "invariance")
DEVICES = dict.fromkeys(_ON_EITHER, "cpu") | dict.fromkeys(_ON_CUDA, "cuda")
_EPILOG = """\
examples:
  python -m benchmarks --json docs/results --plot docs/results    cpu, cuda and webgpu, those that are here
  python -m benchmarks cpu --all-kinds --seconds 3600             every activation and gated kind
  python -m benchmarks models --rows "gpt2|vit" --json docs/results
"""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = Parser(
        prog="python -m benchmarks",
        description="Measure what docs/results keeps: each row in turns with other libraries.",
        epilog=_EPILOG,
        formatter_class=Formatter,
    )
    made.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"one or more of {', '.join(SUBJECTS)}")
    made.add_argument("--all-kinds", action="store_true", help="on cpu, every activation and gated kind")
    made.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help=f"of {', '.join(_ON_EITHER)} (default: cuda if available)",
    )
    add_options(made, DTYPES)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the tables; 1 if anything failed."""
    made = parser()
    args = made.parse_args(arguments, argparse.Namespace(error=made.error))
    here = [info.name for info in selection.backends() if info.available]
    subjects = args.subjects or [name for name in ("cpu", "cuda", "webgpu") if name in here]
    for name in subjects:
        if name not in SUBJECTS:
            args.error(f"{name!r}: want one or more of {', '.join(SUBJECTS)}{errors.proposal(name, SUBJECTS)}")
        if (needed := DEVICES.get(name, name)) not in here:
            args.error(str(selection.unavailable(needed)))
    args.device = args.device or ("cuda" if "cuda" in here else "cpu")
    check_paths(args, len(subjects))
    warn_if_busy()
    threads = torch.get_num_threads()
    try:
        return max(run(SUBJECTS[name](args), args, command(f"python -m benchmarks {name}", args)) for name in subjects)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())
