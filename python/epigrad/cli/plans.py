"""``python -m epigrad plans``: what would run for a given problem."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import torch

from epigrad import plan
from epigrad.cli.table import print_table

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "main"]

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
_EXAMPLE = "python -m epigrad plans --class GemmEpilogueBackward --m 1024 --n 4096 --k 1024"
_DTYPES = ("float32", "float64", "bfloat16", "float16")


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "plans",
        help="what would run for a given problem",
        epilog=f"example: {_EXAMPLE}",
    )
    parser.add_argument("--class", dest="plan_class", choices=_CLASSES, help="class of epigrad.plan; required")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32")
    parser.add_argument("--device", default="cpu")
    gemm = parser.add_argument_group("GemmEpilogue, GemmEpilogueBackward")
    for name in ("m", "n", "k", "lda", "ldb"):
        gemm.add_argument(f"--{name}", type=int, default=argparse.SUPPRESS)
    gemm.add_argument("--ld-grad", type=int, default=argparse.SUPPRESS)
    gemm.add_argument("--batch", type=int, nargs="*", default=argparse.SUPPRESS, help="batch dimensions")
    gemm.add_argument("--b-batched", action="store_true", default=argparse.SUPPRESS)
    gemm.add_argument("--activation", default=argparse.SUPPRESS)
    gated = parser.add_argument_group("GatedActivation, GatedActivationBackward")
    gated.add_argument("--input-shape", type=int, nargs="*", default=argparse.SUPPRESS)
    gated.add_argument("--split-dim", type=int, default=argparse.SUPPRESS)
    gated.add_argument("--kind", default=argparse.SUPPRESS)
    gated.add_argument("--gate", choices=("second", "first"), default=argparse.SUPPRESS)
    lerp = parser.add_argument_group("Lerp, LerpBackward")
    lerp.add_argument("--shape", type=int, nargs="*", default=argparse.SUPPRESS)
    lerp.add_argument("--weight", type=float, default=argparse.SUPPRESS, help="a number; without it, a tensor")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=main, error=parser.error)


def main(args: argparse.Namespace) -> int:
    """Select the plan and print what it tells."""
    if args.plan_class is None:
        args.error(f"--class is required, as in: {_EXAMPLE}")
    plan_class, accepted, required = _CLASSES[args.plan_class]
    given = {name: value for name, value in vars(args).items() if name in _GEMM + _GATED + _LERP}
    for name in given.keys() - set(accepted):
        args.error(f"--{name.replace('_', '-')} does not belong to {args.plan_class}")
    for name in required:
        if name not in given:
            args.error(f"{args.plan_class} needs --{name.replace('_', '-')}")
    selected = plan_class.select(dtype=getattr(torch, args.dtype), device=args.device, **given)
    facts = {
        "class": args.plan_class,
        "sku": dataclasses.asdict(selected.sku),
        "precision_guarantee": dataclasses.asdict(selected.precision_guarantee),
        "workspace_size": selected.workspace_size,
    }
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    print_table(f"{args.plan_class}: kernel", ("field", "value"), list(facts["sku"].items()))
    rows = [*facts["precision_guarantee"].items(), ("workspace_size", f"{selected.workspace_size} bytes")]
    print_table("Guarantees", ("field", "value"), rows)
    return 0
