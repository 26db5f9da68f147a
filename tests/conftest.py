"""What every test gets: marks, hypothesis's profile, the backends that must be there, the count of
parity cases."""

from __future__ import annotations

import collections
import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import epigrad
import hypothesis
import pytest
import torch

from tests.support import tiers

FULL = os.environ.get("EPIGRAD_TEST_FULL", "") not in ("", "0")

# What Inductor does once on a machine takes longer than all that the tests compile: trying vector
# instructions, compiling headers ahead, starting processes. The variables reach what the tests
# start, too.
if not FULL:
    for variable in ("VEC_ISA_OK", "CPP_CACHE_PRECOMPILE_HEADERS"):
        os.environ.setdefault(f"TORCHINDUCTOR_{variable}", "0")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# The kernels of large products are tested with small ones too, which are BLAS's by rule.
os.environ.setdefault("EPIGRAD_CUDA_ONE_KERNEL", "1")

# Tables are plain and as wide as their text, whatever terminal the tests are started from.
for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(variable, None)

# Read where transformers is imported: a test that wanted the network would fail at once.
os.environ["HF_HUB_OFFLINE"] = "1"

hypothesis.settings.register_profile("default", deadline=None, max_examples=60)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("full", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("full" if FULL else "ci" if os.environ.get("CI") else "default")


SLOW = os.environ.get("EPIGRAD_TEST_SLOW", "") not in ("", "0")

_collected: collections.Counter[str] = collections.Counter()


def pytest_make_parametrize_id(val: object) -> str | None:
    """An activation's name in a test's, with its parameters."""
    return str(val) if isinstance(val, epigrad.Activation) else None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "parity: one case compared with the float64 reference by the tolerance rule")
    config.addinivalue_line(
        "markers", "feature(names, rows): what of PyTorch a test runs an operator under: docs/features.md"
    )
    config.addinivalue_line("markers", "thorough: left to `make check`; `make test` does not run it")
    config.addinivalue_line("markers", "nightly: left to `make nightly`")
    config.addinivalue_line("markers", "slow: takes seconds or tens of GB; runs with EPIGRAD_TEST_SLOW=1")


def pytest_report_header() -> str:
    """What chose the cases of a run, to repeat it."""
    seed = os.environ.get("EPIGRAD_TEST_SEED")
    return f"cases: turn {tiers.commits()} (commits)" + (f", EPIGRAD_TEST_SEED={seed}" if seed else "")


def pytest_sessionstart(session: pytest.Session) -> None:
    """A device that EPIGRAD_TEST_DEVICES names must be there: else a run of no tests would pass for
    one of its own."""
    if os.environ.get("EPIGRAD_TEST_DEVICES"):
        from tests.support import devices

        wrong = devices.unusable_choice()
        if wrong:
            pytest.exit(f"EPIGRAD_TEST_DEVICES: {wrong}", returncode=1)


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Leaves slow tests out unless asked for, and notes on which device each parity case runs.

    The night's longest test is the first: beside it the others run.
    """
    items.sort(key=lambda item: item.path.name != "test_page.py")
    config.stash[tiers.COLLECTED] = items.copy()  # of which `-m` leaves some out later
    for item in items:
        if not SLOW and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: EPIGRAD_TEST_SLOW=1 runs it"))
        if isinstance(item, pytest.Function) and item.get_closest_marker("parity"):
            device = item.callspec.params["case"].device
            item.user_properties.append(("parity", device))
            _collected[device] += 1
        if isinstance(item, pytest.Function) and item.get_closest_marker("feature"):
            from tests.support import features

            item.user_properties += [("feature", cell) for cell in features.cells_of(item)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many parity cases there are on each device: collected where nothing ran, else passed."""
    counts = _collected
    if not config.option.collectonly:
        passed = terminalreporter.stats.get("passed", [])
        counts = collections.Counter(
            device for report in passed for name, device in report.user_properties if name == "parity"
        )
    path = os.environ.get("EPIGRAD_FEATURES")
    if path:
        from tests.support import features

        ended = {
            outcome: [
                tuple(value)
                for report in terminalreporter.stats.get(outcome, [])
                # not of a file that could not be read
                for name, value in getattr(report, "user_properties", ())
                if name == "feature"
            ]
            for outcome in ("passed", "failed", "error")
        }
        features.save(Path(path), ended["passed"], ended["failed"] + ended["error"])
    if counts:
        told = ", ".join(f"{device} {count}" for device, count in sorted(counts.items()))
        terminalreporter.write_line(f"parity cases: {told}")


@pytest.fixture(autouse=True)
def _settings_of_torch() -> object:
    """Seeds PyTorch for each test, and puts back the thread count and default dtype that a test may
    change."""
    torch.manual_seed(0)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


@pytest.fixture
def _one_thread(_settings_of_torch: object) -> None:
    """For small models, whose many small operations wait for threads more than they compute."""
    torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Notes how long each test takes, in seconds and in seconds of a processor, into a file of this
    process in the folder that EPIGRAD_DURATIONS names. `.ci/budget.py` reads them."""
    folder = os.environ.get("EPIGRAD_DURATIONS")
    if not folder:
        return (yield)
    begin, processor = time.perf_counter(), _processor_seconds()
    try:
        return (yield)
    finally:
        took = time.perf_counter() - begin, _processor_seconds() - processor
        with Path(folder, f"pytest-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps([item.nodeid, *(round(each, 3) for each in took)]) + "\n")


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
