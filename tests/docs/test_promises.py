"""docs/promises.md: its table of recorded runs, and the commands and tests that it names. And the
table of docs/reference/errors.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import epigrad
import pytest
import torch
from epigrad import cli, errors, forward, plan
from epigrad._check.modes import MODES
from torch import Tensor

from tests.support.repository import ROOT
from tests.tools import check_page, check_record
from tests.tools.records import RESULTS

PAGE = ROOT / "docs" / "promises.md"


def test_the_records_add_up_and_name_their_builds() -> None:
    for path, record in check_page.records(RESULTS).items():
        assert record["problems"] == check_record.totals(record["runs"]), path
        for run in record["runs"]:
            assert re.fullmatch(r"(v[\d.]+(-\d+-g)?)?[0-9a-f]{7,}", run["commit"]), f"{path}: {run['commit']}"
            assert len(run["library"]) == 64, path


def commands() -> list[str]:
    found = re.findall(r"`([^`\n]+)`", PAGE.read_text())
    return sorted(
        {text for text in found if text.startswith(("python -m", "go test", "EPIGRAD_", "make "))}
        - {"EPIGRAD_CPU_ENGINE"}
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
    if words[0] == "make":
        targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
        assert set(words[1:]) <= set(targets), command
        return
    for place in (word.split("::")[0].removesuffix("/...") for word in words if re.match(r"(\./)?(tests|go)/", word)):
        assert (ROOT / place).exists(), command


def test_each_promise_has_a_command_and_a_test() -> None:
    table = PAGE.read_text().split("| promise | command | tests |\n")[1].split("\n\n")[0]
    for line in table.splitlines()[1:]:
        _, promise, command, tests, _ = re.split(r"(?<!\\)\|", line)
        assert promise.strip().startswith("**") and "`" in command and "](" in tests, line


X = torch.ones(3)
SUBCLASS = type("Subclass", (torch.Tensor,), {})


def into(x: Tensor) -> Tensor:
    return forward.activation(x, "relu", out=torch.empty_like(x))


def planned(x: Tensor) -> Tensor:
    made = plan.GatedActivation.select(input_shape=(2, 6), kind="glu", dtype=torch.float32)
    made.run(input=x, out=(out := torch.empty(2, 3)))
    return out


REFUSED: dict[str, tuple[Callable[[], object], ...]] = {
    "tensors that are not strided: sparse, nested": (
        lambda: epigrad.activation(torch.eye(3).to_sparse(), "relu"),
        lambda: epigrad.activation(torch.nested.nested_tensor([X], layout=torch.jagged), "relu"),
    ),
    "subclasses of tensors in": (lambda: forward.activation(X.as_subclass(SUBCLASS), "relu"),),
    "`epigrad.forward` and `epigrad.backward` under": (
        lambda: torch.vmap(lambda x: forward.activation(x, "relu"))(torch.ones(2, 3)),
    ),
    "an `out` whose negative bit": (lambda: forward.activation(X, "relu", out=torch._neg_view(torch.ones(3))),),
    "an `out` in code that is compiled or traced": (
        lambda: torch.jit.trace(into, (X,)),
        lambda: torch.jit.trace(planned, (torch.ones(2, 6),)),
    ),
    "a tensor of zeros without memory": (lambda: planned(torch._efficientzerotensor(2, 6)),),
    "a dtype outside the four, or a mix": (
        lambda: epigrad.activation(torch.ones(3, dtype=torch.int32), "relu"),
        lambda: epigrad.linear(torch.ones(2, 3), torch.ones(4, 3, dtype=torch.float64)),
    ),
    "an `out` that overlaps": (
        lambda: forward.activation(X, "relu", out=X),
        lambda: forward.lerp(X, X, X, out=torch.ones(1).expand(3)),
    ),
}
"""Calls that each row of the table refuses, by how the row begins."""

ELSEWHERE = {
    "more than 8192 experts": ("go/backend/cuda/grouped_test.go", "mostRouted"),
    "a gated layer whose shards": ("tests/pytorch/distributed.py", "GatedColwiseParallel"),
    "`epigrad.parallel.experts` with": ("tests/pytorch/spread/agreement.py", "create_graph=True"),
    "sums longer than": ("go/backend/webgpu/webgpu_test.go", "TestDividedSumsAreNotBatchInvariant"),
}
"""What stands in a test of other rows, which need a device or processes."""

UNTESTED = {"products and passes on CUDA"}
"""They need more memory than a test takes."""


def rows_of_what_is_refused() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    table = page.split("| call | error | why |\n")[1].split("\n\n")[0]
    return [(line.split("|")[1].strip(), line.split("|")[2].strip(" `")) for line in table.splitlines()[1:]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "error"), rows_of_what_is_refused())
def test_what_the_page_says_is_refused(call: str, error: str) -> None:
    begins = [begin for begin in (*REFUSED, *ELSEWHERE, *UNTESTED) if call.startswith(begin)]
    assert len(begins) == 1, call
    for refused in REFUSED.get(begins[0], ()):
        with pytest.raises(getattr(errors, error)):
            refused()
    if begins[0] in ELSEWHERE:
        path, text = ELSEWHERE[begins[0]]
        assert text in (ROOT / path).read_text()


def test_each_row_of_the_test_is_on_the_page() -> None:
    calls = [call for call, _ in rows_of_what_is_refused()]
    for begin in (*REFUSED, *ELSEWHERE, *UNTESTED):
        assert any(call.startswith(begin) for call in calls), begin
