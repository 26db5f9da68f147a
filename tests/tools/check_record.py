"""Runs `python -m epigrad check` in several processes, each with a seed of its own, and keeps what
came of it.

    python -m tests.tools.check_record docs/results --jobs 2 correct=10000 bitwise=30000
    python -m tests.tools.check_record docs/results --backend cuda --jobs 12 --seconds 300 race

A mode has so many problems in each process, or so many seconds. The file is named by date, backend,
device and engine. If it is there, the run is added to it, unless it has these seeds. The exit code
is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
from epigrad.cli.machine import cpu_name

from tests.support.repository import ROOT


def started(mode: str, args: argparse.Namespace, seed: int, path: pathlib.Path) -> subprocess.Popen[str]:
    """A check of one mode with one seed, which writes its JSON there."""
    name, _, count = mode.partition("=")
    much = ["--problems", count] if count else ["--seconds", str(args.seconds)]
    command = [sys.executable, "-m", "epigrad", "check", "--backend", args.backend, "--mode", name, "--seed", str(seed)]
    return subprocess.Popen(
        [*command, *much, "--json", str(path)],
        env={"OMP_NUM_THREADS": "2", **os.environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def checked(args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a report says of the machine, and a row for each mode: the sums over processes."""
    facts: dict[str, Any] = {}
    rows = []
    for mode in args.modes:
        with tempfile.TemporaryDirectory() as scratch:
            paths = [pathlib.Path(scratch, f"{job}.json") for job in range(args.jobs)]
            runs = [started(mode, args, args.seed + job, path) for job, path in enumerate(paths)]
            for run in runs:
                _, errors = run.communicate()
                if run.returncode not in (0, 1):
                    raise SystemExit(f"{mode}: exit code {run.returncode}: {errors}")
            reports = [json.loads(path.read_text()) for path in paths]
        parts = [report["rows"][0] for report in reports]
        rows.append(
            {
                "mode": parts[0]["mode"],
                "problems": sum(part["problems"] for part in parts),
                "failed": sum(part["failed"] for part in parts),
                "seconds": round(max(part["seconds"] for part in parts)),
                "failures": [failure for part in parts for failure in part["failures"]],
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        facts = {name: value for name, value in reports[0].items() if name not in ("rows", "command", "seed")}
    return facts, rows


def main() -> int:
    """Check, and write the file; 1 if anything failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("modes", nargs="+")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if args.backend == "cuda" else cpu_name()
    engine = os.environ.get("EPIGRAD_CPU_ENGINE", "") if args.backend == "cpu" else ""
    words = [datetime.date.today().isoformat(), args.backend, device, engine, "check"]
    name = "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words if word)
    path = args.folder / f"{name}.json"
    contents: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": []}
    seeds = range(args.seed, args.seed + args.jobs)
    for run in contents["runs"]:
        if run["first_seed"] <= seeds[-1] and seeds[0] <= run["last_seed"]:
            parser.error(f"{path} has these seeds already: give --seed {run['last_seed'] + 1}, or more")
    facts, rows = checked(args)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    contents["runs"].append({"first_seed": seeds[0], "last_seed": seeds[-1], "modes": args.modes, "rows": rows})
    totals: collections.Counter[str] = collections.Counter()
    for run in contents["runs"]:
        for row in run["rows"]:
            totals[row["mode"]] += row["problems"]
    contents = {
        "what": "python -m epigrad check in several processes: problems, and those that failed",
        **facts,
        "commit": commit.stdout.strip() or None,
        "problems": dict(totals),
        "runs": contents["runs"],
    }
    path.write_text(json.dumps(contents, indent=1) + "\n")
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
