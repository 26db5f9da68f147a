"""``python -m epigrad doctor``: what works here and why not, with versions."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from epigrad import errors, functional
from epigrad._core import loader, selection, tables
from epigrad.cli.arguments import Formatter
from epigrad.cli.table import print_table

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

# What epigrad works with and does not need.
_OPTIONAL = {
    "rich": "these tables in colour, and progress bars",
    "matplotlib": "bench --plot, the demo and the notebooks",
    "wgpu": "the webgpu backend",
    "transformers": "epigrad.integrations.transformers",
    "timm": "epigrad.integrations.timm",
}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="versions, and which backends work here",
        description="Show versions, the backends, how to make a missing backend available, and whether a small\n"
        "computation agrees with PyTorch.",
        epilog="exit codes: 0 if the CPU backend agrees with PyTorch and the backend that EPIGRAD_BACKEND chooses can\n"
        "run; 1 otherwise.",
        formatter_class=Formatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the tables")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    """Print the facts; the exit code is 0 if the CPU backend computes what PyTorch does and calls
    can run what ``EPIGRAD_BACKEND`` chooses.
    """
    facts = gather()
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        _print(facts)
    return 0 if facts["cpu_check"] == facts["choice_check"] == "ok" else 1


def gather() -> dict[str, Any]:
    """Everything that doctor tells, as one JSON object."""
    facts: dict[str, Any] = {
        "versions": {
            "epigrad": tables.VERSION,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "go": None,
            "platform": platform.platform(),
        },
        "packages": {name: _version(name) for name in _OPTIONAL},
        "torch_threads": torch.get_num_threads(),
        "activations": {name: row.formula for name, row in tables.ACTIVATIONS.items()},
        "gated_kinds": {name: row.formula for name, row in tables.GATED_KINDS.items()},
        "backends": [],
        "core": {},
    }
    try:
        core = loader.core()
        facts["core"] = json.loads(loader.control_call(core.control.DoctorFacts))
        facts["versions"]["go"] = facts["core"].get("go_version")
        facts["backends"] = [dataclasses.asdict(info) for info in selection.backends()]
        facts["cpu_check"] = _check_cpu()
    except errors.EpigradError as error:
        facts["cpu_check"] = f"{type(error).__name__}: {error}"
    facts["choice_check"] = _check_choice()
    return facts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_choice() -> str:
    """``"ok"``, or why the backend that is chosen for CPU tensors cannot run them: it is tried."""
    try:
        functional.lerp(torch.zeros(1), torch.ones(1), 0.5)
    except errors.EpigradError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def _check_cpu() -> str:
    """A small forward and backward against PyTorch: ``"ok"``, or what is wrong."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, 5, generator=generator, requires_grad=True) for size in (3, 4))
    with selection.use_backend("cpu"):
        out = functional.linear(x, weight, None, "gelu")
    got = torch.autograd.grad(out.sum(), (x, weight))
    reference = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))
    want = torch.autograd.grad(reference.sum(), (x, weight))
    if all(torch.allclose(a, b, atol=1e-5) for a, b in zip((out, *got), (reference, *want), strict=True)):
        return "ok"
    return "linear with gelu differs from PyTorch"


def _print(facts: dict[str, Any]) -> None:
    print_table("Versions", ("what", "version"), [(name, value or "-") for name, value in facts["versions"].items()])
    packages = [(name, version or "-", _OPTIONAL[name]) for name, version in facts["packages"].items()]
    print_table("Optional packages", ("name", "version", "for"), packages)
    rows = [
        (info["name"], "yes" if info["available"] else "no", info["device"] or "-", info["detail"] or info["reason"])
        for info in facts["backends"]
    ]
    print_table("Backends", ("name", "available", "device", "detail or reason"), rows)
    print_table("Activations", ("name", "formula"), list(facts["activations"].items()))
    print_table("Gated kinds", ("name", "formula"), list(facts["gated_kinds"].items()))
    core = dict(facts["core"], torch_threads=facts["torch_threads"])
    print_table("Core", ("fact", "value"), [(name, _told(value)) for name, value in core.items()])
    print(f"cpu check: {facts['cpu_check']}")
    print(f"backend for CPU tensors: {facts['choice_check']}")


def _told(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)
