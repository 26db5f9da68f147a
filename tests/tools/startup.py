"""Measures what a new process waits for, and makes the table of docs/performance.md about it.

    python -m tests.tools.startup FILE [--processes 20]

starts one process after another and writes a record. The table is of the one that RECORD names.
Times are the processor's, of all threads, so that other programs change
them little. Files are in the system's cache: what a disk costs is not measured.
tests/project/test_startup.py fails where the table is stale or a limit is exceeded, and holds what
is imported.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import statistics
from typing import Any, NamedTuple

from tests.support.processes import run_script
from tests.tools import records

RECORD = records.RESULTS / "2026-11-25-cpu-amd-epyc-startup.json"


class Step(NamedTuple):
    """A step of a process. All run one after the other.

    Attributes:
        name: what the table calls it.
        code: what it runs.
        limit: the most milliseconds that its median may have.
    """

    name: str
    code: str
    limit: int | None = None


STEPS = (
    Step("`import torch`", "import torch"),
    Step("`import epigrad`, after it", "import epigrad", 150),
    Step("first GELU layer of PyTorch, forward and backward", "train(eager)"),
    Step("first GELU layer of epigrad, forward and backward", "train(ours)", 100),
    Step("second GELU layer of epigrad", "train(ours)"),
)
PREPARE = """
x, weight = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
def eager(): return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))
def ours(): return epigrad.linear(x, weight, None, "gelu")
def train(layer): layer().sum().backward()
"""


def script() -> str:
    """What a process does: it prints the seconds of each step."""
    lines = ["import json, time", "seconds = []"]
    for step in STEPS:
        if step.code.startswith("train") and PREPARE not in lines:
            lines.append(PREPARE)
        lines += ["start = time.process_time()", step.code, "seconds.append(time.process_time() - start)"]
    return "\n".join([*lines, "print(json.dumps([seconds, torch.get_num_threads(), torch.__version__]))"])


def measured(processes: int) -> dict[str, Any]:
    """A record: the milliseconds of each step, of so many processes."""
    from epigrad.cli.machine import cpu_name

    _process()  # writes byte code, and fills the system's cache
    times, threads, versions = zip(*(_process() for _ in range(processes)), strict=True)
    rows = [
        {
            "step": step.name,
            "median": round(statistics.median(seconds) * 1e3, 3),
            "fastest": round(min(seconds) * 1e3, 3),
        }
        for step, seconds in zip(STEPS, zip(*times, strict=True), strict=True)
    ]
    return {
        "date": datetime.date.today().isoformat(),
        "command": f"python -m tests.tools.startup FILE --processes {processes}",
        "what": "milliseconds of processor time of the first steps of a process",
        "device": cpu_name(),
        "threads": threads[0],
        "torch": versions[0],
        "rows": rows,
    }


def _process() -> tuple[list[float], int, str]:
    """The seconds of each step, PyTorch's threads and its version, of a process of its own."""
    seconds, threads, version = json.loads(run_script(script(), PYTHONDONTWRITEBYTECODE=None))
    return seconds, threads, version


def table() -> str:
    """The table of docs/performance.md."""
    record = records.load(RECORD)
    machine = f"[{record['device']}](results/{RECORD.name}), ms"
    lines = [
        [row["step"], *(_three_digits(row[which]) for which in ("median", "fastest")), str(step.limit or "")]
        for row, step in zip(record["rows"], STEPS, strict=True)
    ]
    return records.table([machine, "median", "fastest", "limit"], lines)


def _three_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--processes", type=int, default=20)
    args = parser.parse_args()
    args.file.write_text(records.packed(measured(args.processes)))


if __name__ == "__main__":
    main()
