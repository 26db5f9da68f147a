"""docs/promises.md: its table of recorded runs, and the commands and tests that it names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from epigrad import cli
from epigrad._check.modes import MODES

from tests.support.repository import ROOT
from tests.tools import check_page, check_record

STALE = "docs/promises.md is stale: python -m tests.tools.check_page"


def test_the_page_says_what_the_records_have() -> None:
    page = check_page.PAGE.read_text()
    assert check_page.filled(page, check_page.RESULTS) == page, STALE


def test_the_records_add_up_and_name_their_builds() -> None:
    for path, record in check_page.records(check_page.RESULTS).items():
        assert record["problems"] == check_record.totals(record["runs"]), path
        for run in record["runs"]:
            assert re.fullmatch(r"(v[\d.]+(-\d+-g)?)?[0-9a-f]{7,}", run["commit"]), f"{path}: {run['commit']}"
            assert len(run["library"]) == 64, path


def run(seed: int, **problems: tuple[int, int]) -> check_record.Row:
    rows = [{"mode": mode, "problems": many, "failed": failed} for mode, (many, failed) in problems.items()]
    return {
        "device": "A CPU",
        "backend": "engine avx2 on amd64, 2 CPUs",
        "first_seed": seed,
        "last_seed": seed,
        "rows": rows,
    }


def recorded(path: Path, *runs: check_record.Row) -> None:
    path.write_text(json.dumps({"problems": check_record.totals(list(runs)), "runs": runs}))


def test_a_record_that_is_short_says_how_it_goes_on(tmp_path: Path) -> None:
    assert "No runs" in check_page.written(tmp_path)
    path = tmp_path / "2026-01-01-cpu-a-cpu-avx2-check.json"
    recorded(path, run(3, correct=(1000, 1), bad=(5, 0)), run(4, correct=(234, 0)), run(9, race=(7, 0)))
    text = check_page.written(tmp_path)
    link = f"[A CPU, engine `avx2`](results/{path.name})"
    assert f"| {link} | 1,234 | 0 | 5 | 0 | 7 | 1,246 | 1,000,000 | 1 | 3 to 4, 9 |\n" in text
    assert "EPIGRAD_CPU_ENGINE=avx2 python -m tests.tools.check_record docs/results --seed 10 " in text
    assert "No run of `--backend cuda` is recorded." in text
    recorded(path, run(3, correct=(1_000_000, 0)))
    text = check_page.written(tmp_path)
    assert "| 1,000,000 | none | 3 |" in text and "check_record" not in text


def commands() -> list[str]:
    found = re.findall(r"`([^`\n]+)`", check_page.PAGE.read_text())
    return sorted(
        {text for text in found if text.startswith(("python -m", "go test", "EPIGRAD_"))} - {"EPIGRAD_CPU_ENGINE"}
    )


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_page_are_accepted(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    if words[:4] == ["python", "-m", "epigrad", "check"]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words[3:], "--help"])
        assert ended.value.code == 0
        if "--mode" in words:
            assert words[words.index("--mode") + 1] in MODES
        return
    for place in (word.split("::")[0].removesuffix("/...") for word in words if re.match(r"(\./)?(tests|go)/", word)):
        assert (ROOT / place).exists(), command


def test_each_promise_has_a_command_and_a_test() -> None:
    table = check_page.PAGE.read_text().split("| promise | command | tests |\n")[1].split("\n\n")[0]
    for line in table.splitlines()[1:]:
        _, promise, command, tests, _ = re.split(r"(?<!\\)\|", line)
        assert promise.strip().startswith("**") and "`" in command and "](" in tests, line
