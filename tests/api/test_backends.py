"""Backends by name, in a block and by environment variable; tuning; nothing falls back silently."""

from __future__ import annotations

import dataclasses
import threading
import types
from pathlib import Path

import epigrad
import numpy as np
import pytest
import torch
from epigrad import errors, forward

from tests.support.devices import REQUIRED
from tests.support.layouts import assert_same_bits
from tests.support.plan_problem import aligned_workspace
from tests.support.processes import run_script
from tests.support.tiers import thorough

KNOWN = {info.name: info for info in epigrad.backends()}
UNAVAILABLE = [name for name, info in KNOWN.items() if not info.available]


def test_the_list_of_backends() -> None:
    infos = epigrad.backends()
    assert isinstance(infos, list)
    assert [field.name for field in dataclasses.fields(epigrad.BackendInfo)] == [
        "name",
        "available",
        "device",
        "detail",
        "reason",
    ]
    assert {"cpu", "cuda", "webgpu"} <= {info.name for info in infos}
    for info in infos:
        assert isinstance(info.available, bool)
        assert all(isinstance(text, str) for text in (info.name, info.device, info.detail, info.reason))
        assert info.available or len(info.reason) > 10, f"{info.name} does not say why it is not available"
    assert KNOWN["cpu"].available and KNOWN["cpu"].device and KNOWN["cpu"].detail


@pytest.mark.parametrize("name", REQUIRED)
def test_a_backend_that_this_machine_must_have_is_there(name: str) -> None:
    assert name in KNOWN and KNOWN[name].available, KNOWN[name].reason if name in KNOWN else "no such backend"


def test_cpu_by_name_is_the_same() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    want = epigrad.linear(x, weight, None, "gelu")
    with epigrad.use_backend("cpu"):
        assert_same_bits(epigrad.linear(x, weight, None, "gelu"), want)
        with epigrad.use_backend("cpu"):
            assert_same_bits(forward.linear(x, weight, None, "gelu"), want)
    block = epigrad.use_backend("cpu")
    for _ in range(2):
        with block:
            epigrad.linear(x, weight)


@pytest.mark.parametrize("name", ["gpu", "CPU", "", "torch"])
def test_an_unknown_backend_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="use_backend") as caught, epigrad.use_backend(name):
        pass
    assert isinstance(caught.value, errors.EpigradError)
    assert all(known in str(caught.value) for known in KNOWN) and repr(name) in str(caught.value)


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_a_backend_that_cannot_run_here_says_why(name: str) -> None:
    with pytest.raises(errors.BackendUnavailableError) as caught, epigrad.use_backend(name):
        epigrad.linear(torch.ones(2, 3), torch.ones(4, 3))
    assert name in str(caught.value) and KNOWN[name].reason in str(caught.value)
    out = torch.full((2, 4), float("nan"))
    with pytest.raises(errors.BackendUnavailableError), epigrad.use_backend(name):
        forward.linear(torch.ones(2, 3), torch.ones(4, 3), out=out)
    assert out.isnan().all()
    assert epigrad.linear(torch.ones(2, 3), torch.ones(4, 3)).sum().item() == 24


def test_the_choice_ends_with_the_block_even_by_an_error() -> None:
    with pytest.raises(RuntimeError, match="mine"), epigrad.use_backend("cpu"):
        raise RuntimeError("mine")
    assert epigrad.linear(torch.ones(1, 1), torch.ones(1, 1)).item() == 1


def test_backward_may_run_outside_the_block_and_in_another_thread() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with epigrad.use_backend("cpu"):
        out = epigrad.linear(x, torch.ones(5, 4), None, "tanh").sum()
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    assert x.grad is not None


def script(body: str) -> str:
    return f"import torch, epigrad\nx, w = torch.ones(2, 3), torch.ones(4, 3)\n{body}"


def test_the_environment_variable() -> None:
    assert run_script(script("print(epigrad.linear(x, w).sum().item())"), EPIGRAD_BACKEND="cpu") == "24.0"
    assert run_script(script("print(epigrad.linear(x, w).sum().item())"), EPIGRAD_BACKEND="") == "24.0"


def test_an_unknown_name_in_the_environment_is_a_value_error() -> None:
    body = """
try:
    epigrad.linear(x, w)
except ValueError as error:
    assert isinstance(error, epigrad.errors.EpigradError)
    print(error)
"""
    text = run_script(script(body), EPIGRAD_BACKEND="gpu")
    assert "EPIGRAD_BACKEND" in text and "'gpu'" in text and all(name in text for name in KNOWN)


@pytest.mark.skipif("webgpu" not in UNAVAILABLE, reason="webgpu can run here")
def test_the_environment_never_falls_back_and_a_block_wins() -> None:
    body = """
try:
    epigrad.linear(x, w)
except epigrad.errors.BackendUnavailableError as error:
    print("refused", "webgpu" in str(error))
with epigrad.use_backend("cpu"):
    print(epigrad.linear(x, w).sum().item())
"""
    assert run_script(script(body), EPIGRAD_BACKEND="webgpu") == "refused True\n24.0"


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without CUDA")
def test_cuda_plans_are_refused_without_cuda() -> None:
    with pytest.raises(errors.BackendUnavailableError, match="cuda"):
        epigrad.plan.Lerp.select(shape=(2,), dtype=torch.float32, device="cuda")
    with pytest.raises((errors.BackendUnavailableError, errors.InvalidProblemError), match="colour"):
        epigrad.plan.Lerp.select(shape=(2,), dtype=torch.float32, device="colour")


def test_tuning_changes_no_result(tmp_path: Path) -> None:
    x, weight = torch.randn(33, 47), torch.randn(29, 47)
    want = epigrad.linear(x, weight, None, "gelu")
    with epigrad.tuning(tmp_path / "choices.json"):
        inside = epigrad.linear(x, weight, None, "gelu")
        with epigrad.tuning(path=str(tmp_path / "choices.json")):
            again = epigrad.linear(x, weight, None, "gelu")
    assert_same_bits(epigrad.linear(x, weight, None, "gelu"), want)
    torch.testing.assert_close(inside, want)
    torch.testing.assert_close(again, want)


@thorough
def test_tuning_by_the_environment(tmp_path: Path) -> None:
    body = "print(epigrad.linear(x, w).sum().item())"
    assert run_script(script(body), EPIGRAD_TUNE="1", XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path)) == "24.0"


@thorough
def test_results_are_the_same_in_another_process() -> None:
    body = """
torch.manual_seed(4)
out = epigrad.linear(torch.randn(33, 47), torch.randn(29, 47), torch.randn(29), "gelu_tanh")
print(out.view(torch.int32).sum(dtype=torch.int64).item(), out.view(torch.int32).flatten()[::50].tolist())
"""
    assert run_script(script(body)) == run_script(script(body))


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_plans_follow_the_choice(name: str) -> None:
    cpu_plan = {"shape": (2,), "dtype": torch.float32, "device": "cpu"}
    body = "epigrad.plan.Lerp.select(shape=(2,), dtype=torch.float32)"
    refused = f"try:\n    {body}\nexcept epigrad.errors.BackendUnavailableError as error:\n    print(error)"
    assert name in run_script(script(refused), EPIGRAD_BACKEND=name)
    with pytest.raises(errors.BackendUnavailableError, match=name), epigrad.use_backend(name):
        epigrad.plan.Lerp.select(**cpu_plan)
    with epigrad.use_backend("cpu"):
        assert epigrad.plan.Lerp.select(**cpu_plan).sku.backend == "cpu"


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf"), 1e-300, np.float32(0.5)], ids=repr)
def test_a_plan_carries_any_weight(weight: float) -> None:
    start, end, out = torch.zeros(3), torch.ones(3), torch.empty(3)
    made = epigrad.plan.Lerp.select(shape=(3,), weight=weight, dtype=torch.float32)
    made.run(start=start, end=end, out=out)
    assert_same_bits(out, forward.lerp(start, end, weight))


def test_a_plan_takes_numpys_ints_and_no_stream_on_cpu() -> None:
    two = np.int64(2)
    made = epigrad.plan.GemmEpilogue.select(m=two, n=two, k=two, batch=two, dtype=torch.float32)
    given = {"a": torch.ones(2, 2, 2), "b": torch.ones(2, 2), "out": torch.empty(2, 2, 2)}
    workspace = aligned_workspace(made.workspace_size, torch.device("cpu"))
    for stream in (None, 0):
        made.run(**given, workspace=workspace, stream=stream)
    for stream in (-1, 7, 2**70, "default"):
        for call in (made.run, made.can_implement):
            with pytest.raises(errors.InvalidProblemError, match="stream"):
                call(**given, workspace=workspace, stream=stream)
    # The handle of every device's default stream is 0: it is told by its device.
    default = types.SimpleNamespace(cuda_stream=0, device=torch.device("cuda", 1))
    with pytest.raises(errors.DeviceMismatchError, match="stream: on cuda:1, want cpu"):
        made.run(**given, workspace=workspace, stream=default)


@thorough
def test_parallel_needs_no_import_of_its_own_and_costs_none() -> None:
    before = "'torch.distributed.tensor' in sys.modules"
    script = f"import sys, epigrad; print({before}, epigrad.parallel.GatedColwiseParallel.__name__)"
    assert run_script(script) == "False GatedColwiseParallel"
