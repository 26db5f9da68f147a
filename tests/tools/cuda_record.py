"""Runs the tests that need a GPU and keeps what came of them: how many passed, and what
compute-sanitizer said.

    python -m tests.tools.cuda_record docs/results [WORD ...]

writes a file named by date and device, anew after every run, so that one that is stopped keeps the
runs before it. With words, only runs whose names have one of them, in place of those in the file.
The exit code is 1 if anything failed. compute-sanitizer comes with NVIDIA's CUDA toolkit, as nvcc
does; where PATH has none, the file says so in place of its runs. Each of its tools has to find a
defect of tests/cuda/planted.cu first.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import epigrad
import torch
from epigrad.cli import machine

from tests.support.repository import ROOT
from tests.tools.records import load, packed

OTHERS = (
    "tests/accuracy/test_edges.py",
    "tests/accuracy/test_ulp.py",
    "tests/accuracy/test_exact.py",
    "tests/autograd/test_higher_order.py",
    "tests/runtime/test_determinism.py",
    *(f"tests/api/test_{name}.py" for name in ("plan", "backends", "bench")),
    "tests/benchmarks",
    "tests/autograd/test_main_grad.py",
    "tests/cuda/test_grouped.py",
)
ON_CUDA = {"EPIGRAD_TEST_DEVICES": "cuda", "EPIGRAD_REQUIRE_BACKENDS": "cpu,cuda"}
# The kernels for all GPUs from Ampere on, in place of Hopper's.
AMPERES = {"EPIGRAD_CUDA_PROGRAM": "sm80"}

# What is run: a name, what the environment has besides, and pytest's arguments.
RUNS: tuple[tuple[str, dict[str, str], tuple[str, ...]], ...] = (
    ("parity", {}, ("-n", "8", "tests/parity")),
    ("parity, all products by cuBLASLt", {"EPIGRAD_CUDA_BLAS_ALONE": "1"}, ("-n", "8", "tests/parity")),
    ("the other tests on the device", {}, ("-n", "8", *OTHERS)),
    ("parity by mma.sync", AMPERES, ("-n", "8", "tests/parity")),
    (
        "exactness, bits and groups by mma.sync",
        AMPERES,
        (
            *("-n", "4", "tests/accuracy/test_edges.py", "tests/accuracy/test_ulp.py", "tests/cuda/test_grouped.py"),
            *(f"tests/runtime/test_{name}.py" for name in ("determinism", "batch_invariance")),
        ),
    ),
    (
        "streams, threads, graphs, bits of rows",
        {},
        (
            *("-n", "4", *(f"tests/cuda/test_{name}.py" for name in ("execution", "precision", "one_kernel"))),
            *(f"tests/runtime/test_{name}.py" for name in ("prepared", "batch_invariance")),
        ),
    ),
    ("memory", {}, ("tests/cuda/test_memory.py",)),
    (
        "more than 2^31 elements",
        {"EPIGRAD_TEST_SLOW": "1"},
        ("-m", "slow", "tests/cuda/test_memory.py", "tests/cuda/test_grouped.py"),
    ),
)

# Every kernel family, in each of the two ways that products go, on a stream that PyTorch's own work
# is on too.
SANITIZED = {
    "streams": ("tests/cuda/test_execution.py", "-k", "test_the_current_stream_is_the_one and side"),
    "products": ("tests/cuda/test_one_kernel.py", "-k", "test_addresses_that_boxes_cannot_start_at"),
    "groups": (
        "tests/cuda/test_grouped.py",
        "-k",
        "test_addresses_that_boxes_cannot_start_at or make_no_sense or nobody_sees"
        " or (few and (swiglu_oai or relu2)) or infinite",
    ),
}
# racecheck and initcheck take many times as long, and so has the other program fewer tests.
FEW_GROUPS = ("tests/cuda/test_grouped.py", "-k", "make_no_sense or (bfloat16 and one and swiglu_oai)")
SLOW = ("racecheck", "initcheck")
# The tools, the slowest first, and what each says of its defect in PLANTED. initcheck does not see
# what the copy engine writes: it reports PyTorch's reads of results of product_sm90.cuh. Leaving
# PyTorch's kernels out would hide what they write, too.
TOOLS = {
    "racecheck": "Race reported between Write access",
    "memcheck": "Invalid __global__ write",
    "synccheck": "Barrier error detected",
    "initcheck": "Uninitialized __global__ memory read",
}
PLANTED = ROOT / "tests" / "cuda" / "planted.cu"
FOUND = 77  # compute-sanitizer's exit code where it finds something
SUMMARY = re.compile(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", re.MULTILINE)
PLAIN = ("-p", "no:cacheprovider", "-p", "no:benchmark")
AT_ONCE = 7  # runs; each is bound by the host most of the time
ALONE = "memory"  # whose tests compare the device's free memory


def pytest(environment: dict[str, str], arguments: tuple[str, ...], under: tuple[str, ...] = ()) -> dict[str, Any]:
    """One run of pytest, counted by its own report."""
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch, "report.xml")
        tests = [sys.executable, "-m", "pytest", "-q", *PLAIN, f"--junitxml={report}", *arguments]
        begin = time.perf_counter()
        result = subprocess.run(
            [*under, *tests],
            cwd=ROOT,
            env={**os.environ, **ON_CUDA, **environment},
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        row: dict[str, Any] = {"arguments": " ".join(arguments), "environment": {**ON_CUDA, **environment}}
        row["seconds"] = round(time.perf_counter() - begin)
        if report.exists():
            (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
            tests_run, failed, errors, skipped = (
                int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")
            )
            row |= {"passed": tests_run - failed - errors - skipped, "failed": failed + errors, "skipped": skipped}
        if parity := re.search(r"^parity cases: (.*)$", result.stdout, re.MULTILINE):
            row["parity_cases"] = parity[1]
        if summaries := SUMMARY.findall(result.stdout):
            row["summary"] = summaries[-1]
        row["exit_code"] = result.returncode
        if result.returncode:
            row["tail"] = result.stdout.splitlines()[-40:]
        return row


def watched_by(sanitizer: str, tool: str) -> tuple[str, ...]:
    """What a command runs under."""
    return (sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", str(FOUND))


def sanitized(tool: str) -> Iterator[tuple[str, dict[str, str], tuple[str, ...]]]:
    """What runs under a tool, as RUNS."""
    for what, arguments in SANITIZED.items():
        yield what, {}, FEW_GROUPS if what == "groups" and tool in SLOW else arguments
    if tool != "initcheck":
        yield "groups by mma.sync", AMPERES, FEW_GROUPS


def run(*command: str) -> tuple[int, str]:
    """A command's exit code and all that it wrote."""
    result = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.returncode, result.stdout


def planted(sanitizer: str, architecture: str) -> Iterator[dict[str, Any]]:
    """A row for each tool: whether it finds its defect. It fails if it does not."""
    with tempfile.TemporaryDirectory() as scratch:
        program = f"{scratch}/planted"
        failed, output = run("env", "nvcc", f"-arch={architecture}", "-lineinfo", "-o", program, str(PLANTED))
        if failed:
            yield {"what": f"{PLANTED.name} does not compile", "exit_code": failed, "tail": output.splitlines()[-40:]}
            return
        for tool, report in TOOLS.items():
            code, output = run(*watched_by(sanitizer, tool), program, tool)
            found = code == FOUND and report in output
            row: dict[str, Any] = {"what": f"{tool}, planted", "found": found, "exit_code": int(not found)}
            if summaries := SUMMARY.findall(output):
                row["summary"] = summaries[-1]
            if not found:
                row["tail"] = [*output.splitlines()[-40:], f"exit code {code}"]
            yield row


def facts() -> dict[str, Any]:
    """What was tested, and on what."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "devices": torch.cuda.device_count(),
        "backend": next(info.detail for info in epigrad.backends() if info.name == "cuda"),
        "versions": {"epigrad": epigrad.__version__, "torch": torch.__version__},
        "commit": os.environ.get("EPIGRAD_COMMIT") or machine.commit(),
    }


def main() -> int:
    """Run everything and write the file; 1 if anything failed."""
    folder, *words = sys.argv[1:]
    contents = facts()
    name = re.sub(r"[^a-z0-9]+", "-", contents["device"].lower()).strip("-")
    path = pathlib.Path(folder, f"{contents['date']}-cuda-{name}-tests.json").resolve()
    if words and path.exists():
        contents |= {key: rows for key, rows in load(path).items() if key in ("tests", "sanitizer")}

    def chosen(what: str) -> bool:
        return not words or any(word in what for word in words)

    def keep(key: str, row: dict[str, Any]) -> None:
        others = [old for old in contents.get(key, []) if old["what"] != row["what"]]
        contents[key] = [*others, row]
        path.write_text(packed(contents))
        print(json.dumps({name: value for name, value in row.items() if name != "tail"}), flush=True)

    if sanitizer := shutil.which("compute-sanitizer"):
        major, minor = torch.cuda.get_device_capability()
        for row in planted(sanitizer, f"sm_{major}{minor}"):
            keep("sanitizer", row)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as executor:
        runs = {}
        for tool in TOOLS if sanitizer else ():
            for what, environment, arguments in sanitized(tool):
                if chosen(f"{tool}, {what}"):
                    watched = watched_by(str(sanitizer), tool)
                    started = executor.submit(pytest, environment, ("-n", "0", *arguments), watched)
                    runs[started] = ("sanitizer", f"{tool}, {what}")
        for what, *how in RUNS:
            if what != ALONE and chosen(what):
                runs[executor.submit(pytest, *how)] = ("tests", what)
        for ended in concurrent.futures.as_completed(runs):
            key, what = runs[ended]
            keep(key, {"what": what, **ended.result()})
    for what, environment, arguments in RUNS:
        if what == ALONE and chosen(what):
            keep("tests", {"what": what, **pytest(environment, arguments)})
    if not sanitizer:
        keep("sanitizer", {"what": "not run: there is no compute-sanitizer on PATH", "exit_code": 0})
    return int(any(row["exit_code"] for key in ("tests", "sanitizer") for row in contents.get(key, [])))


if __name__ == "__main__":
    sys.exit(main())
