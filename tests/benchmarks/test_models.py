"""`python -m benchmarks models` on models small enough for a test."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from epigrad.cli.models import MODELS, Model
from epigrad.integrations import patching
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from transformers.models.llama import modeling_llama

from benchmarks import __main__ as program
from benchmarks import models, pictures, timing
from benchmarks.models import Settings, Variant
from tests.support.devices import needs
from tests.support.models import TINY
from tests.support.processes import start
from tests.support.tiers import nightly

pytestmark = pytest.mark.usefixtures("_one_thread")

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ON_CPU = Settings(CPU, least=2, compiled=False)
GRAPHS = "compiled + CUDA graphs"


def tiny(name: str) -> Model:
    return dataclasses.replace(MODELS[name], small=TINY[name])


def rows_of(name: str, settings: Settings = ON_CPU) -> dict[str, dict[str, Any]]:
    """What `measure` says of each variant in the end."""
    *_, rows = models.measure(name, tiny(name), settings, 0.0)
    return {row["variant"]: row for row in rows}


@nightly
def test_the_command_measures_models_in_processes_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = "python -m benchmarks models --device cpu --quick --rows 'bert|vit' --seconds 0.2"
    done = start(*shlex.split(command)[1:], "--json", str(path), timeout=300, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    both = [(model, variant) for model in ("bert", "vit") for variant in ("eager", "patched")]
    assert [(row["model"], row["variant"]) for row in found["rows"]] == both
    assert found["libraries"].keys() >= {"transformers", "timm"}
    for row in found["rows"]:
        assert row["wall"]["fastest"] > 0
        assert not {"busy", "host", "peak"} & row.keys()
        if row["variant"] == "patched":
            assert row["ratio"] == row["ratio_to_unpatched"] > 0
    assert "2/2 vit: eager" in done.stdout and "difference" in done.stdout


@nightly
def test_compiled_models_are_measured_beside_the_others() -> None:
    torch._dynamo.reset()
    rows = rows_of("vit", dataclasses.replace(ON_CPU, compiled=True))
    assert list(rows) == ["eager", "patched", "compiled", "patched + compiled"]
    for variant, row in rows.items():
        assert "error" not in row, row["error"]
        assert row["difference"] < 1e-5
        if "compiled" in variant:
            assert row["graph_breaks"] == 0 and row["ratio"] > 0
    both = rows["patched + compiled"]
    ratio = both["wall"]["fastest"] / rows["compiled"]["wall"]["fastest"]
    assert both["ratio_to_unpatched"] == pytest.approx(ratio)


@pytest.mark.parametrize("name", MODELS)
def test_patched_models_compute_the_same(name: str) -> None:
    rows = rows_of(name)
    assert list(rows) == ["eager", "patched"]
    for row in rows.values():
        assert "error" not in row, row["error"]
        assert row["deviation"].keys() == {"logits", "gradients"}
        assert all(0 < distance < 1e-5 for distance in row["deviation"].values())
        assert row["difference"] < 1e-5
    assert rows["eager"]["difference"] == 0


def scaled(_: nn.Module, __: object, out: Tensor) -> Tensor:
    return 1.01 * out


def scaled_gradient(_: nn.Module, gradients: tuple[Tensor, ...], __: object) -> tuple[Tensor, ...]:
    return tuple(1.01 * gradient for gradient in gradients)


@pytest.mark.parametrize("what", ["logits", "gradients"])
def test_wrong_results_are_not_timed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = models.patch

    def wrong(model: nn.Module) -> Any:
        report = own(model)
        block = model.get_submodule(next(iter(report.patched)))
        if what == "logits":
            block.register_forward_hook(scaled)
        else:
            block.register_full_backward_hook(scaled_gradient)  # type: ignore[arg-type]
        return report

    monkeypatch.setattr(models, "patch", wrong)
    rows = rows_of("llama")
    assert rows["patched"]["error"].startswith(f"ArithmeticError: {what} are ")
    assert "wall" not in rows["patched"] and "wall" in rows["eager"]


def test_a_model_that_is_not_patched_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "patch", lambda model: patching.Report({}, {}))
    assert "patched 0 blocks" in rows_of("bert")["patched"]["error"]


def test_liger_computes_the_mlps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function replaces the class in transformers too, which is taken back."""
    given: dict[str, object] = {}

    def apply(rope: bool = True, rms_norm: bool = True, swiglu: bool = True, model: Any = None) -> None:
        given.update(rope=rope, rms_norm=rms_norm, swiglu=swiglu, model=model)
        modeling_llama.LlamaMLP = nn.Identity  # type: ignore[misc,assignment]

    liger = types.ModuleType("liger_kernel.transformers")
    liger.apply_liger_kernel_to_llama = apply  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", liger)
    model = tiny("llama")
    module, before = model.make(on_cuda=False)[0], modeling_llama.LlamaMLP
    models._apply_liger(models.LIGERS["llama"], module)
    assert given == {"rope": False, "rms_norm": False, "swiglu": True, "model": module}
    assert modeling_llama.LlamaMLP is before


def test_what_can_be_measured_is(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = Settings(GPU, least=5, compiled=True)
    here = {"liger_kernel": True}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: here[name] or None)

    def names(settings: Settings, model: str) -> list[str]:
        return [variant.name for variant in settings.variants(model)]

    eager, compiled = ["eager", "patched"], ["compiled", "patched + compiled", GRAPHS, f"patched + {GRAPHS}"]
    assert names(on_gpu, "gpt2") == [*eager, *compiled]
    assert names(on_gpu, "llama") == [*eager, "liger", *compiled]
    assert names(dataclasses.replace(on_gpu, compiled=False), "gemma") == [*eager, "liger"]
    assert names(dataclasses.replace(on_gpu, device=CPU), "llama") == [*eager, *compiled[:2]]
    here["liger_kernel"] = False
    assert names(on_gpu, "llama") == [*eager, *compiled]
    assert Variant("patched", "reduce-overhead").unpatched == GRAPHS


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt2", 124), ("bert", 110), ("llama", 618), ("gemma", 946), ("qwen3-moe", 3870), ("vit", 87)],
)
def test_the_sizes_on_a_gpu(name: str, millions: int) -> None:
    model = MODELS[name]
    with torch.device("meta"):
        made, _ = model.make(on_cuda=True)
    assert round(sum(parameter.numel() for parameter in made.parameters()) / 1e6) == millions


def test_a_run_that_is_stopped_keeps_the_models_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(name: str, settings: Settings, seconds: float) -> list[dict[str, Any]]:
        if name == "vit":
            raise KeyboardInterrupt
        return [{"variant": "eager"}, {"variant": "patched", "busy": 0.5}]

    monkeypatch.setattr(models, "_in_a_process", rows)
    path = tmp_path / "r.json"
    assert program.main(["models", "--device", "cpu", "--rows", "gpt2|vit", "--json", str(path)]) == 130
    assert json.loads(path.read_text())["rows"] == [
        {"model": "gpt2", "variant": "eager"},
        {"model": "gpt2", "variant": "patched", "busy": 0.5},
    ]


class Deadly:
    """What ends the process that gets it."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def test_a_process_that_dies_is_a_row() -> None:
    settings: Any = Deadly()
    rows = models._in_a_process("gpt2", settings, 0.0)
    assert rows == [{"variant": "eager", "error": "its process ended with 9"}]


def test_a_step_is_timed_in_a_burst_and_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, queue = [0.0], [0.0]

    def step() -> None:
        clock[0] += 1
        queue[0] += 3

    def wait() -> None:
        clock[0] += queue[0]
        queue[0] = 0.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    walls, hosts = timing.steps_and_host({"a": step}, 0, wait, burst=4, least=3)
    assert (walls["a"].median, hosts["a"].median, walls["a"].rounds) == (4.0, 1.0, 2)


def test_a_gpu_is_busy_with_kernels_and_copies() -> None:
    def event(device: DeviceType, start: float, end: float, is_annotation: bool = False) -> Any:
        span = types.SimpleNamespace(start=start, end=end)
        return types.SimpleNamespace(device_type=device, time_range=span, is_user_annotation=is_annotation)

    events = [event(DeviceType.CUDA, 20, 22), event(DeviceType.CUDA, 10, 13), event(DeviceType.CPU, 0, 50)]
    assert models.device_seconds([*events, event(DeviceType.CUDA, 0, 50, True)]) == pytest.approx(5e-6)
    # launched early, beside the first, and ended within the second
    overlapping = [event(DeviceType.CUDA, 12, 14), event(DeviceType.CUDA, 20.5, 21.5)]
    assert models.device_seconds(events + overlapping) == pytest.approx(6e-6)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib draws the picture")
def test_draws_a_panel_for_each_model(tmp_path: Path) -> None:
    def row(model: str, variant: str, **more: Any) -> dict[str, Any]:
        return {"model": model, "variant": variant, "size": "1 x 2", **more}

    rows = [
        row("a", "eager", wall={"median": 0.1}, host={"median": 0.05}, busy=0.08),
        row("a", "patched", wall={"median": 0.1}),
        row("b", "eager", wall={"median": 0.1}),
        row("b", "patched", error="wrong"),
    ]
    record = {"rows": rows, "statistic": "median", "device": "x", "versions": {"epigrad": "0", "torch": "0"}}
    pictures.draw_models(tmp_path / "r.png", record)
    assert (tmp_path / "r.png").stat().st_size > 10_000


@needs("cuda")
@pytest.mark.parametrize("name", ["vit", "llama"])
def test_on_a_gpu(name: str) -> None:
    torch._dynamo.reset()
    rows = rows_of(name, Settings(GPU, least=5, compiled=True))
    assert {"eager", "patched", "compiled", "patched + compiled", GRAPHS, f"patched + {GRAPHS}"} <= rows.keys()
    for variant, row in rows.items():
        assert "error" not in row, row["error"]
        assert row["host"]["median"] > 0 and row["wall"]["median"] > 0
        assert 0 < row["busy"] < 10 * row["wall"]["median"]
        assert ("peak" in row) == (GRAPHS not in variant)
        assert row.get("cudagraph_skips", 0) == 0
        if "peak" in row:
            assert row["peak"] > 0
