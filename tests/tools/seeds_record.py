"""Runs the program tests/api/seeds.c on many seeds in several processes, and keeps what came of it.

    make lib
    EPIGRAD_CPU_ENGINE=avx2 python -m tests.tools.seeds_record docs/results --problems 1000000

A seed is a problem, which the program compares with its own reference. The file is named by the
day, the processor and the engine. It has a hash of all lines that the program printed, so of the
bits of all results. The exit code is 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any

from epigrad.cli import machine

from tests.support.repository import ROOT
from tests.tools.check_record import place
from tests.tools.records import packed

LIBRARY = ROOT / "build" / "libepigrad.so"
SOURCE = ROOT / "tests" / "api" / "seeds.c"


def compile_seeds(program: pathlib.Path, library: pathlib.Path) -> None:
    """Compile the program, which finds the library where it is."""
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'cbridge' / 'include'}"]
    linked = [f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", "-lepigrad", "-lm"]
    compiler = shlex.split(os.environ.get("CC") or "gcc")
    subprocess.run([*compiler, *flags, "-o", program, SOURCE, *linked], check=True)


def tried(problems: int, jobs: int) -> dict[str, Any]:
    """What the program says of the seeds from 1 on, cut into one range for each process."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        program = pathlib.Path(scratch, "seeds")
        compile_seeds(program, LIBRARY)
        cuts = [1 + problems * job // jobs for job in range(jobs + 1)]
        outputs = [pathlib.Path(scratch, str(job)) for job in range(jobs)]
        runs = []
        for job, path in enumerate(outputs):
            with path.open("wb") as out:
                command = [str(program), str(cuts[job]), str(cuts[job + 1] - cuts[job])]
                runs.append(subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True))
        wrong = [run.communicate()[1].strip() for run in runs]
        lines = [line for path in outputs for line in path.read_bytes().splitlines(keepends=True)]
    return {
        "problems": len(lines),
        "failed": sum(run.returncode != 0 for run in runs),
        "wrong": [text for text in wrong if text],
        "first_seed": 1,
        "last_seed": problems,
        "lines": hashlib.sha256(b"".join(lines)).hexdigest(),
        "seconds": round(time.monotonic() - started),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the program and write the file; 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--problems", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args(arguments)
    today = datetime.date.today().isoformat()
    record = {
        "what": "tests/api/seeds.c: problems, and processes that met a wrong result, which ends them",
        "date": today,
        "commit": os.environ.get("EPIGRAD_COMMIT") or machine.commit(),
        "library": hashlib.sha256(LIBRARY.read_bytes()).hexdigest(),
        "device": machine.cpu_name(),
        "backend": machine.backend("cpu"),
        **tried(args.problems, args.jobs),
    }
    name = place(args.folder, "cpu").name[len(today) :].replace("-check.json", "-seeds.json")
    (args.folder / f"{today}{name}").write_text(packed(record))
    print(json.dumps(record))
    return int(record["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
