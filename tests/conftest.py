"""What every test gets: marks, hypothesis's profile, the backends that must be there, the count of parity cases."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
import torch

# The modules that tests share are no tests; collecting one for doctests would only run what it loads.
collect_ignore = [path.name for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]

hypothesis.settings.register_profile("default", deadline=None, max_examples=60)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("full", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(
    "full" if os.environ.get("EPIGRAD_TEST_FULL", "") not in ("", "0") else "ci" if os.environ.get("CI") else "default"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "parity: one case compared with the float64 reference by the tolerance rule")


def pytest_sessionstart(session: pytest.Session) -> None:
    """A backend that EPIGRAD_REQUIRE_BACKENDS names must be there: on such a machine its tests may not be skipped."""
    required = [name for name in os.environ.get("EPIGRAD_REQUIRE_BACKENDS", "").split(",") if name]
    if not required:
        return
    import epigrad

    available = {backend.name for backend in epigrad.backends() if backend.available}
    missing = [name for name in required if name not in available]
    if missing:
        pytest.exit(f"EPIGRAD_REQUIRE_BACKENDS: not available here: {', '.join(missing)}", returncode=1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count = sum("parity" in report.keywords for report in terminalreporter.stats.get("passed", []))
    if count:
        terminalreporter.write_line(f"parity cases: {count}")


@pytest.fixture(autouse=True)
def _settings_of_torch() -> object:
    """Seeds PyTorch for each test, and puts back the thread count and default dtype that a test may change."""
    torch.manual_seed(0)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
