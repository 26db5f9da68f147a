"""Keeps a record of where the tests of an older commit run now: in `make test`, `make check` or
`make nightly`.

    python -m tests.tools.tiers COMMIT BEFORE GO_BEFORE GO_TEST GO_CHECK GO_NIGHTLY

BEFORE is what `pytest --collect-only -q` printed at that commit. The others are folders that
EPIGRAD_DURATIONS named in runs of the Go tests, at that commit and in each tier now: Go knows the
names of subtests only once they have run. A Go test that this machine cannot run, then as now, is
`skipped here`. A test that is nowhere is listed as missing, and ends this with an error.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import io
import json
import sys
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.repository import ROOT
from tests.tools.records import RESULTS, packed

NAMES = ("test", "check", "nightly")


class Collected:
    """A plugin of pytest that keeps the tier of each test."""

    def __init__(self) -> None:
        self.tier: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tier = {item.nodeid: tiers.tier_of(item) for item in session.items}


def in_python() -> dict[str, str]:
    """Each test's tier."""
    collected = Collected()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-m", "", "--rootdir", str(ROOT), str(ROOT / "tests")], [collected])
    return collected.tier


def in_go(folder: str) -> dict[str, bool]:
    """The names in a folder of durations, and whether each ran."""
    lines = [line for path in Path(folder).glob("go-*.jsonl") for line in path.read_text().splitlines()]
    return {name: took != "skip" for name, took, *_ in map(json.loads, lines)}


def function_of(name: str) -> str:
    """Of a test's name: without pytest's parameters, and without Go's below the last method of a
    suite."""
    if name.startswith("tests/"):
        return name.partition("[")[0]
    parts = name.removeprefix("github.com/epigrad/epigrad/").split("/")
    last = max(i for i, part in enumerate(parts) if " " in part or part.startswith("Test"))
    return "/".join(parts[: last + 1])


def rows(before: set[str], tier: dict[str, str]) -> list[dict[str, object]]:
    """How many of its former cases each tier runs now, of each function that is not all in `make
    test`."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name in before:
        counts[function_of(name)][tier.get(name, "missing")] += 1
    return [{"function": function, **count} for function, count in sorted(counts.items()) if set(count) != {"test"}]


def main() -> int:
    commit, before, *folders = sys.argv[1:]
    old = {line for line in Path(before).read_text().splitlines() if "::" in line} | set(in_go(folders[0]))
    now = in_python()
    for name, folder in reversed(list(zip(NAMES, folders[1:], strict=True))):
        now |= {test: name if ran else now.get(test, "skipped here") for test, ran in in_go(folder).items()}
    missing = sorted(old - now.keys())
    record = {
        "before": commit,
        "cases": len(old),
        "now": dict(collections.Counter(now[name] for name in old & now.keys())),
        "added since": len(now.keys() - old),
        "missing": missing,
        "rows": rows(old, now),
    }
    path = RESULTS / f"{datetime.date.today()}-tiers.json"
    path.write_text(packed(record))
    print(f"{path.relative_to(ROOT)}: {len(old)} cases, {record['now']}, {len(missing)} missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
