#!/usr/bin/env python3
"""Runs a tier of the tests, or a part of one, and fails if it takes too long.

    .ci/budget.py NAME MINUTES COMMAND...

Prints the ten slowest tests: `.ci/gotest.py` and tests/conftest.py note durations. More than the
minutes and a fifth (EPIGRAD_BUDGET_SLACK: 1.2) is a failure. Where other programs use the
processors it is a warning.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

SLACK = 1.2
BUSY = 0.2  # processors that others may use


def processor_seconds() -> float | None:
    """What all programs of this machine have used, where Linux tells."""
    try:
        fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _wait, *rest = map(int, fields)
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def slowest(folder: pathlib.Path, count: int = 10) -> list[tuple[float, str]]:
    """Seconds and names of the slowest tests."""
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(((took, name) for name, took, *_ in lines if took != "skip"), reverse=True)[:count]


def others(before: float | None, after: float | None, own: float, took: float) -> float:
    """How many processors other programs used: of the processor seconds of all before and after,
    those of the command, and the seconds that it took."""
    return 0.0 if before is None or after is None else (after - before - own) / took


def verdict(name: str, minutes: float, took: float, busy: float, slack: float = SLACK) -> tuple[int, str]:
    """The exit status and what to say: of a tier's limit, and of what it took and how many
    processors others used meanwhile."""
    text = f"{name}: {took:.1f} minutes of {minutes:g}"
    if took <= minutes * slack:
        return 0, text
    if busy > BUSY:
        return 0, f"{text}: too long, but other programs used {busy:.1f} processors"
    return 1, f"{text}: too long. Make a test faster, or move cases of it to a slower tier (CONTRIBUTING.md)"


def main() -> int:
    name, minutes, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.environ.get("EPIGRAD_DURATIONS") or scratch
        begin, processors = time.monotonic(), processor_seconds()
        code = subprocess.run(command, check=False, env=os.environ | {"EPIGRAD_DURATIONS": folder}).returncode
        took, after = time.monotonic() - begin, processor_seconds()
        for seconds, test in slowest(pathlib.Path(folder)):
            print(f"{seconds:7.1f} s  {test}")
    if code:
        return code
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = others(processors, after, own.ru_utime + own.ru_stime, took)
    slack = float(os.environ.get("EPIGRAD_BUDGET_SLACK", SLACK))
    code, text = verdict(name, float(minutes), took / 60, busy, slack)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
