"""Measures what a new process waits for, and writes the table of docs/performance.md about it.

    python -m tests.tools.startup FILE [--processes 20]
    python -m tests.tools.startup

The first starts one process after another and writes a record. The second makes the table of the
record that RECORD names. Files are in the system's cache: what a disk costs is not measured.
tests/project/test_startup.py fails where the table is stale, and holds what is imported.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import statistics
from typing import Any

from tests.support.processes import run_script
from tests.support.repository import ROOT
from tests.tools import readme

RECORD = ROOT / "docs" / "results" / "2026-11-25-cpu-amd-epyc-startup.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- python -m tests.tools.startup writes this table -->\n"

# A step of a process: what it is called, and its code. All steps run one after the other.
STEPS = {
    "`import torch`": "import torch",
    "`import epigrad`, after it": "import epigrad",
    "first GELU layer of PyTorch, forward and backward": "train(eager)",
    "first GELU layer of epigrad, forward and backward": "train(ours)",
    "second GELU layer of epigrad": "train(ours)",
}
PREPARE = """
x, weight = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
def eager(): return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))
def ours(): return epigrad.linear(x, weight, None, "gelu")
def train(layer): layer().sum().backward()
"""


def script() -> str:
    """What a process does: it prints the seconds of each step."""
    lines = ["import json, time", "seconds = []"]
    for code in STEPS.values():
        if code.startswith("train") and PREPARE not in lines:
            lines.append(PREPARE)
        lines += ["start = time.perf_counter()", code, "seconds.append(time.perf_counter() - start)"]
    return "\n".join([*lines, "print(json.dumps([seconds, torch.get_num_threads(), torch.__version__]))"])


def measured(processes: int) -> dict[str, Any]:
    """A record: the milliseconds of each step, of so many processes."""
    from epigrad.cli.machine import cpu_name

    load = os.getloadavg()[0]
    _process()  # writes byte code, and fills the system's cache
    times, threads, versions = zip(*(_process() for _ in range(processes)), strict=True)
    rows = [
        {
            "step": name,
            "median": round(statistics.median(seconds) * 1e3, 3),
            "fastest": round(min(seconds) * 1e3, 3),
        }
        for name, seconds in zip(STEPS, zip(*times, strict=True), strict=True)
    ]
    return {
        "date": datetime.date.today().isoformat(),
        "command": f"python -m tests.tools.startup FILE --processes {processes}",
        "what": "milliseconds of the first steps of a process",
        "device": cpu_name(),
        "threads": threads[0],
        "load_before": round(load, 2),
        "torch": versions[0],
        "rows": rows,
    }


def _process() -> tuple[list[float], int, str]:
    """The seconds of each step, PyTorch's threads and its version, of a process of its own."""
    seconds, threads, version = json.loads(run_script(script(), PYTHONDONTWRITEBYTECODE=None))
    return seconds, threads, version


def table() -> str:
    """The table of docs/performance.md."""
    record = json.loads(RECORD.read_text())
    text = f"| [{record['device']}]({RECORD.relative_to(PAGE.parent)}), ms | median | fastest |\n|---|---|---|\n"
    for row in record["rows"]:
        text += f"| {row['step']} | {_three_digits(row['median'])} | {_three_digits(row['fastest'])} |\n"
    return text


def _three_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, nargs="?")
    parser.add_argument("--processes", type=int, default=20)
    args = parser.parse_args()
    if args.file is None:
        PAGE.write_text(readme.filled(PAGE.read_text(), table(), BEGIN))
    else:
        args.file.write_text(json.dumps(measured(args.processes), indent=1) + "\n")


if __name__ == "__main__":
    main()
