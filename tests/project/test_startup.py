"""What a process loads when it imports epigrad, and the table of what it waits for."""

from __future__ import annotations

import json

from tests.support.processes import run_script
from tests.tools import records, startup


def test_importing_epigrad_imports_no_library_but_pytorch() -> None:
    """tests/runtime/test_fork.py asks that the core is not loaded either."""
    script = """
import sys, torch
before = set(sys.modules)
import epigrad
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    assert run_script(script) == "epigrad"


def test_importing_epigrad_adds_no_part_of_pytorch() -> None:
    """Each would take a part of a second: `torch.distributed.tensor`, `torch._dynamo`, ..."""
    script = """
import sys, torch
before = set(sys.modules)
import epigrad
print(*sorted(name for name in set(sys.modules) - before if name.partition(".")[0] == "torch"))
"""
    assert run_script(script) == ""


def test_a_second_import_says_that_there_is_one_in_a_process() -> None:
    script = """
import sys, epigrad
for name in [name for name in sys.modules if name.split(".")[0] == "epigrad"]:
    del sys.modules[name]
for _ in range(2):
    try:
        import epigrad
    except ImportError as error:
        print(error)
"""
    told = run_script(script).splitlines()
    assert len(told) == 2 and all(line.startswith("epigrad: imported a second time in one process") for line in told)


def test_a_process_times_its_first_steps() -> None:
    seconds, threads, version = json.loads(run_script(startup.script()))
    assert len(seconds) == len(startup.STEPS) and all(second > 0 for second in seconds)
    assert threads >= 1 and version


def test_the_record_is_within_the_limits() -> None:
    """Of times that a record keeps, not of this process's, which would depend on the machine."""
    rows = records.load(startup.RECORD)["rows"]
    assert [row["step"] for row in rows] == [step.name for step in startup.STEPS]
    assert sum(step.limit is not None for step in startup.STEPS) == 2
    for row, step in zip(rows, startup.STEPS, strict=True):
        assert step.limit is None or row["median"] <= step.limit, row
