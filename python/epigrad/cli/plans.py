"""``python -m epigrad plans``: what would run for a given problem."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from epigrad import kinds, plan
from epigrad._check.operations import OPERATIONS
from epigrad._check.plan_calls import plans
from epigrad._core import tables
from epigrad._core.call import GATE_NAMES
from epigrad.cli.arguments import Formatter, problem
from epigrad.cli.table import print_table

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_GEMM = ("m", "n", "k", "batch", "b_batched", "activation", "lda", "ldb", "ld_grad")
_GATED = ("input_shape", "split_dim", "kind", "gate")
_LERP = ("shape", "weight")
_CLASSES: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "GemmEpilogue": (plan.GemmEpilogue, _GEMM, ("m", "n", "k")),
    "GemmEpilogueBackward": (plan.GemmEpilogueBackward, _GEMM, ("m", "n", "k")),
    "GatedActivation": (plan.GatedActivation, _GATED, ("input_shape",)),
    "GatedActivationBackward": (plan.GatedActivationBackward, _GATED, ("input_shape",)),
    "Lerp": (plan.Lerp, _LERP, ("shape",)),
    "LerpBackward": (plan.LerpBackward, _LERP, ("shape",)),
}
_EXAMPLE = "python -m epigrad plans --class GemmEpilogueBackward --m 64 --n 96 --k 64"
_EPILOG = f"""\
examples:
  {_EXAMPLE}
  python -m epigrad plans --class GatedActivation --input-shape 8192 28672
  python -m epigrad plans --class GemmEpilogue --m 8 --n 8 --k 8 --batch 4
  python -m epigrad plans --class LerpBackward --shape 4 1024 1024 --json
  python -m epigrad plans --problem 'mlp dtype=bfloat16 sizes=1x8x16x32x16'

exit codes: 0 success; 1 the problem was refused (stderr says why); 2 invalid arguments
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "plans",
        help="which kernel runs for a given problem",
        description="Select a plan as epigrad.plan does, without any data, and show its kernel, the guarantees on its\n"
        "results and its workspace. Options are the arguments of select.",
        epilog=_EPILOG,
        formatter_class=Formatter,
    )
    parser.add_argument(
        "--class",
        dest="plan_class",
        choices=_CLASSES,
        metavar="CLASS",
        help=f"a class of epigrad.plan: {', '.join(_CLASSES)}",
    )
    parser.add_argument(
        "--problem",
        type=problem,
        metavar="TEXT",
        help="in place of --class: any operation, forward and backward, as in check --problem; tensors are contiguous. "
        f"Operations: {', '.join(OPERATIONS)}",
    )
    parser.add_argument("--dtype", choices=tuple(tables.DTYPES), help="default: float32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the tables")
    absent = argparse.SUPPRESS
    gemm = parser.add_argument_group("GemmEpilogue, GemmEpilogueBackward: act(a @ b + bias)")
    gemm.add_argument("--m", type=int, default=absent, metavar="M", help="rows of a; required")
    gemm.add_argument("--n", type=int, default=absent, metavar="N", help="columns of b; required")
    gemm.add_argument("--k", type=int, default=absent, metavar="K", help="columns of a, rows of b; required")
    gemm.add_argument("--activation", default=absent, metavar="NAME", help="as in epigrad.linear; default: none")
    gemm.add_argument("--batch", type=int, nargs="*", default=absent, metavar="SIZE", help="batch dimensions of a")
    gemm.add_argument("--b-batched", action="store_true", default=absent, help="b has the batch dimensions too")
    for name, matrix in (("lda", "a"), ("ldb", "b"), ("ld-grad", "the output or its gradient")):
        gemm.add_argument(
            f"--{name}", type=int, default=absent, metavar="LD", help=f"elements between rows of {matrix}"
        )
    gated = parser.add_argument_group("GatedActivation, GatedActivationBackward: value * act(gate)")
    gated.add_argument("--input-shape", type=int, nargs="*", default=absent, metavar="SIZE", help="required")
    gated.add_argument("--split-dim", type=int, default=absent, metavar="DIM", help="dimension to split; default: -1")
    gated.add_argument("--kind", default=absent, metavar="NAME", help="as in epigrad.gated_activation; default: swiglu")
    gated.add_argument("--gate", choices=GATE_NAMES, default=absent, help="where the gates are; default: second")
    either = parser.add_argument_group("parameters of an activation or a gated kind")
    either.add_argument(
        "--parameter",
        type=_parameter,
        action="append",
        default=absent,
        metavar="NAME=VALUE",
        help="such as slope=0.2; may be repeated",
    )
    lerp = parser.add_argument_group("Lerp, LerpBackward: start + weight * (end - start)")
    lerp.add_argument("--shape", type=int, nargs="*", default=absent, metavar="SIZE", help="required")
    lerp.add_argument("--weight", type=float, default=absent, metavar="W", help="a number (default: a tensor)")
    parser.set_defaults(run=main)


def _parameter(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: want NAME=VALUE")
    return name, float(value)


def main(args: argparse.Namespace) -> int:
    """Select the plan and print what it tells."""
    if (args.plan_class is None) == (args.problem is None):
        args.error(f"want --class or --problem, as in: {_EXAMPLE}")
    given = {name: value for name, value in vars(args).items() if name in (*_GEMM, *_GATED, *_LERP, "parameter")}
    if args.problem is not None:
        for name in [*given, *(["dtype"] if args.dtype else [])]:
            args.error(f"--{name.replace('_', '-')} does not belong to --problem, whose text says it")
        if not re.fullmatch(r"cpu|cuda(:\d+)?", args.device):
            args.error(f"--device {args.device}: want cpu, cuda or cuda:N")
        rows = tables.OPS
        return _print(
            args,
            {
                op: _facts(made) | {"inputs": list(rows[op].tensors), "outputs": list(rows[op].results)}
                for op, made in plans(args.problem, args.device).items()
            },
        )
    plan_class, accepted, required = _CLASSES[args.plan_class]
    if parameters := dict(given.pop("parameter", ())):
        for name, kind, default in (("activation", kinds.Activation, "none"), ("kind", kinds.Gated, "swiglu")):
            if name in accepted:
                given[name] = kind(given.get(name, default), **parameters)
                break
        else:
            args.error(f"--parameter does not belong to {args.plan_class}")
    for name in given.keys() - set(accepted):
        args.error(f"--{name.replace('_', '-')} does not belong to {args.plan_class}")
    for name in required:
        if name not in given:
            args.error(f"{args.plan_class} needs --{name.replace('_', '-')}")
    selected = plan_class.select(dtype=tables.DTYPES[args.dtype or "float32"], device=args.device, **given)
    return _print(args, {args.plan_class: {"class": args.plan_class} | _facts(selected)})


def _facts(made: plan.Plan) -> dict[str, Any]:
    return {
        "sku": dataclasses.asdict(made.sku),
        "precision_guarantee": dataclasses.asdict(made.precision_guarantee),
        "workspace_size": made.workspace_size,
    }


def _print(args: argparse.Namespace, described: dict[str, dict[str, Any]]) -> int:
    if args.json:
        print(json.dumps(described if args.problem is not None else described[args.plan_class], indent=2))
        return 0
    for name, facts in described.items():
        sku = facts["sku"] | {"kernel": facts["sku"]["kernel"].replace("+", " + ")}  # a word for each kernel
        print_table(f"{name}: kernel", ("field", "value"), [(field, value or "-") for field, value in sku.items()])
        guarantees = [*facts["precision_guarantee"].items(), ("workspace_size", f"{facts['workspace_size']} bytes")]
        print_table(f"{name}: guarantees", ("field", "value"), guarantees)
    return 0
