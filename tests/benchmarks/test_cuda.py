"""The rows of `python -m benchmarks cuda`, which are measured here on the CPU in a smaller size."""

from __future__ import annotations

import dataclasses
import gc
import json
import pathlib
import weakref

import pytest
import torch
from epigrad.cli import runner
from epigrad.cli.report import Row

from benchmarks import __main__ as program
from benchmarks import cuda, cuda_rows
from benchmarks.cuda_rows import BACKWARD, BOTH, FORWARD, Case
from tests.support.devices import needs

DTYPES = {"float32", "float64", "bfloat16", "float16"}


def shrunk(case: Case, dtype: str = "float64") -> Case:
    def smaller(size: int) -> int:
        return 1 if size == 1 else max(2, 2 * round(size / 1024))

    inputs = tuple(tuple(smaller(size) for size in shape) for shape in case.inputs)
    return dataclasses.replace(case, inputs=inputs, dtype=dtype)


def measured(case: Case, compiled: bool = False) -> list[Row]:
    """What the runner makes of a case."""
    settings = cuda.Settings(torch.device("cpu"), compiled)
    return [row for task in cuda.tasks([case], settings) for row in runner._measured(task, 0.0)]


GPU_CASES = list({(case.op, case.kind, case.clock): shrunk(case) for case in cuda_rows.cases()}.values())
every_gpu_case = pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: f"{case.op}-{case.kind}-{case.clock}")


@every_gpu_case
def test_both_sides_of_a_gpus_row_compute_the_same(case: Case) -> None:
    inputs = case.make_inputs(torch.device("cpu"))
    out = case.eager(*inputs)
    grad = torch.randn_like(out)
    if case.gradients:
        wanted = [inputs[index] for index in case.gradients]
        gradients = torch.autograd.grad(out, wanted, grad)
    if case.ours_backward is not None:
        results = [x for x in case.ours_backward(inputs, grad) if x is not None]  # type: ignore[attr-defined]
        torch.testing.assert_close(results, list(gradients))
    for ours in (case.ours, *case.variants.values()):
        if ours is not None:
            got = ours(*inputs)
            torch.testing.assert_close(got, out)
            if case.gradients:
                torch.testing.assert_close(torch.autograd.grad(got, wanted, grad), gradients)


@every_gpu_case
def test_a_gpus_row_is_measured(case: Case) -> None:
    rows = measured(case)
    assert [row["direction"] for row in rows] == list(case.directions)
    for row in rows:
        assert "error" not in row, row["error"]
        assert row["epigrad"]["median"] > 0 and row["ratio"] > 0
        assert {"eager", *case.variants} <= row.keys() or row["direction"] == FORWARD
        has_ceiling = case.clock == "device" and (not case.products or row["direction"] in case.products)
        assert ("share" in row) == has_ceiling
        assert set(row["short_of"]) <= set(row["goals"]) <= {"eager", "compile", "share"}
        json.dumps(row)
    cuda._print(rows)


def test_the_rows_of_a_gpu_are_those_that_have_goals() -> None:
    cases = cuda_rows.cases()
    labels = [case.label(direction) for case in cases for direction in case.directions]
    assert len(set(labels)) == len(labels)
    for op, clock, direction in (
        *(("gated", "device", direction) for direction in (FORWARD, BACKWARD)),
        *(("lerp", "device", direction) for direction in (FORWARD, BACKWARD)),
        ("linear", "device", BACKWARD),
        ("mlp", "device", BOTH),
        ("linear", "wall", BOTH),
        ("mlp", "graph", BOTH),
    ):
        chosen = [case for case in cases if case.op == op and case.clock == clock and case.directions.get(direction)]
        assert chosen, f"{op}, {clock}, {direction}"
        if clock == "device" and op in ("gated", "lerp"):
            assert {case.dtype for case in chosen} == DTYPES
    assert len(cuda_rows.cases(quick=True)) < len(cases)


def test_what_moves_is_what_is_read_and_written() -> None:
    sizes = {}
    for case in cuda_rows.cases():
        if case.op in ("gated", "lerp") and case.dtype == "bfloat16":
            inputs = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in case.inputs]
            out = torch.empty(cuda_rows.ROWS, cuda_rows.COLUMNS, dtype=torch.bfloat16, device="meta")
            sizes[case.kind] = [cuda_rows.traffic(case, way, inputs, out) / out.nbytes for way in (FORWARD, BACKWARD)]
    assert sizes["swiglu"] == [3.0, 5.0]
    assert sizes["number"] == [3.0, 3.0]
    assert sizes["tensor"] == [4.0, 7.0]
    assert sizes["columns"] == [pytest.approx(3.0, rel=1e-3), pytest.approx(5.0, rel=1e-3)]


def test_a_row_says_what_failed_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("no compiler\nand a long trace")

    case = GPU_CASES[0]
    monkeypatch.setattr(torch, "compile", broken)
    case = dataclasses.replace(case, directions={way: case.directions[way] for way in (FORWARD, BACKWARD)})
    for row in measured(case, compiled=True):
        assert "error" not in row, row["error"]
        assert row["compile_error"] == "RuntimeError: no compiler" and "ratio" in row
    for failing in (dataclasses.replace(case, ours=broken), dataclasses.replace(case, eager=broken)):
        rows = measured(failing, compiled=True)
        assert [row["error"] for row in rows] == ["RuntimeError: no compiler"] * 2
        assert [row["direction"] for row in rows] == [FORWARD, BACKWARD]


def test_a_case_frees_the_tensors_of_the_one_before() -> None:
    """Whichever of its directions were chosen."""
    settings = cuda.Settings(torch.device("cpu"), compiled=False)
    first, second = GPU_CASES[:2]
    tasks = {task.label: task for task in cuda.tasks([first, second], settings)}
    made: list[weakref.ref[cuda.Problem]] = []

    class Problem(cuda.Problem):
        def __init__(self, case: Case, settings: cuda.Settings) -> None:
            super().__init__(case, settings)
            made.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "Problem", Problem)
        for case in (first, second):
            runner._measured(tasks[case.label(FORWARD)], 0.0)
    gc.collect()
    assert [problem() is None for problem in made] == [True, False]


@needs("cuda")
def test_the_table_of_a_gpu(tmp_path: pathlib.Path) -> None:
    pattern = "32x64x64 bfloat16|2048x768x3072|lerp number .* bfloat16|linear gelu 64x768x3072|mlp gelu 8192"
    arguments = ["--quick", "--no-compile", "--rows", pattern, "--json", str(tmp_path)]
    assert program.main(["cuda", *arguments]) == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert path.name.startswith(f"{found['date']}-cuda-") and found["cuda"]
    by_clock = {row["clock"] for row in found["rows"]}
    assert by_clock == {"device", "wall", "graph"}
    for row in found["rows"]:
        assert "error" not in row, row["error"]
        assert row["epigrad"]["median"] > 0
    assert any(row.get("memory", {}).get("epigrad", {}).get("kept", 0) > 0 for row in found["rows"])
    assert all(0 < row["share"] < 2 for row in found["rows"] if "share" in row)
