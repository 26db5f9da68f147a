"""Runs `python -m epigrad check` in several processes, each with a seed of its own, and keeps what
came of it.

    python -m tests.tools.check_record docs/results --jobs 2 correct=10000 bitwise=30000
    python -m tests.tools.check_record docs/results --backend cuda --jobs 12 --seconds 300 race
    EPIGRAD_CPU_ENGINE=avx2 python -m tests.tools.check_record docs/results --jobs 3 correct=80000

A mode has so many problems in each process, or so many seconds. A file is of one backend, device
and engine, and named by them and by the day of its first run. Later runs are added to it, unless it
has their seeds. Each run says of which commit and which library it is; where there is no git,
`--commit` or EPIGRAD_COMMIT does. The file is written after each mode. The exit code is 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
from epigrad import _native
from epigrad.cli import machine

from tests.tools.records import load, packed

Row = dict[str, Any]


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


def checked(mode: str, args: argparse.Namespace) -> tuple[Row, Row]:
    """A row for a mode, the sums over processes; and what a report says of the machine."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = [pathlib.Path(scratch, f"{job}.json") for job in range(args.jobs)]
        runs = [started(mode, args, args.seed + job, path) for job, path in enumerate(paths)]
        told = [(run.communicate()[1], run.returncode) for run in runs]
        for errors, code in told:
            if code not in (0, 1):
                raise SystemExit(f"{mode}: exit code {code}: {errors}")
        reports = [json.loads(path.read_text()) for path in paths]
    parts = [report["rows"][0] for report in reports]
    row = {
        "mode": parts[0]["mode"],
        "problems": sum(part["problems"] for part in parts),
        "failed": sum(part["failed"] for part in parts),
        "seconds": round(max(part["seconds"] for part in parts)),
        "failures": [failure for part in parts for failure in part["failures"]],
    }
    return row, {name: reports[0][name] for name in ("device", "backend", "threads", "versions")}


def place(folder: pathlib.Path, backend: str) -> pathlib.Path:
    """The file of this backend, device and engine: the one that is there, or one of today."""
    device = torch.cuda.get_device_name() if backend == "cuda" else machine.cpu_name()
    engine = re.findall(r"^engine (\w+)", machine.backend(backend) or "") if backend == "cpu" else []
    words = [re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in (backend, device, *engine, "check")]
    name = "-".join(words)
    dated = re.compile(rf"\d\d\d\d-\d\d-\d\d-{re.escape(name)}\.json")
    there = sorted(path for path in folder.glob("*.json") if dated.fullmatch(path.name))
    return there[-1] if there else folder / f"{datetime.date.today().isoformat()}-{name}.json"


def build(commit: str | None) -> Row:
    """What is checked."""
    library = pathlib.Path(str(_native.__file__)).read_bytes()
    commit = commit or os.environ.get("EPIGRAD_COMMIT") or machine.commit()
    if not commit:
        raise SystemExit("no git is here to ask for the commit: give --commit or EPIGRAD_COMMIT")
    return {"commit": commit, "library": hashlib.sha256(library).hexdigest()}


def totals(runs: list[Row]) -> dict[str, dict[str, int]]:
    """Problems and failures of each mode."""
    counted: collections.Counter[tuple[str, str]] = collections.Counter()
    for run in runs:
        for row in run["rows"]:
            for what in ("problems", "failed"):
                counted[row["mode"], what] += row[what]
    modes = dict.fromkeys(mode for mode, _ in counted)
    return {mode: {what: counted[mode, what] for what in ("problems", "failed")} for mode in modes}


def main(arguments: list[str] | None = None) -> int:
    """Check, and write the file; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("modes", nargs="+")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--commit", help="where there is no git")
    args = parser.parse_args(arguments)
    path = place(args.folder, args.backend)
    runs: list[Row] = load(path)["runs"] if path.exists() else []
    seeds = range(args.seed, args.seed + args.jobs)
    for run in runs:
        if run["first_seed"] <= seeds[-1] and seeds[0] <= run["last_seed"]:
            parser.error(f"{path} has these seeds already: give --seed {run['last_seed'] + 1}, or more")
    head = {"date": datetime.date.today().isoformat(), **build(args.commit)}
    rows: list[Row] = []
    for mode in args.modes:
        row, facts = checked(mode, args)
        rows.append(row)
        print(json.dumps(row), flush=True)
        run = {**head, **facts, "modes": args.modes, "first_seed": seeds[0], "last_seed": seeds[-1], "rows": rows}
        contents = {
            "what": "python -m epigrad check in several processes: problems, and those that failed",
            "problems": totals([*runs, run]),
            "runs": [*runs, run],
        }
        half = path.with_suffix(".part")
        half.write_text(packed(contents))
        half.replace(path)
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
