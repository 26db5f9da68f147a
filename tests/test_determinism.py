"""The same inputs give the same bits: run after run, on any number of threads, in any process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable

import epigrad
import pytest
import torch
from cases import ACTIVATIONS, DTYPES, GATED_KINDS, SAVE_MODES
from layouts import LAYOUTS, OUT_LAYOUTS, Guarded, assert_same_bits, bits, laid_out
from torch import Tensor

Outputs = tuple[Tensor | None, ...]
Call = Callable[[], Outputs]


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _gemm(dtype: torch.dtype, activation: str = "gelu", batch: tuple[int, ...] = ()) -> dict[str, Call]:
    """Forward and backward, large enough to be spread over threads, over odd sizes."""
    a, b = _random(*batch, 131, 67, dtype=dtype), _random(67, 149, dtype=dtype, seed=1)
    bias, grad = _random(149, dtype=dtype, seed=2), _random(*batch, 131, 149, dtype=dtype, seed=3)
    _, pre = epigrad.forward.matmul_bias_activation(a, b, bias, activation, return_preactivation=True)
    backward = epigrad.backward.matmul_bias_activation_backward
    return {
        "forward": lambda: epigrad.forward.matmul_bias_activation(a, b, bias, activation, return_preactivation=True),
        "backward": lambda: backward(grad, a, b, bias, activation, preactivation=pre),
        "backward from inputs": lambda: backward(grad, a, b, bias, activation),
    }


def _elementwise(dtype: torch.dtype) -> dict[str, Call]:
    x, grad = _random(37, 2, 5003, dtype=dtype), _random(37, 1, 5003, dtype=dtype, seed=1)
    start, end, weight = (_random(20011, 9, dtype=dtype, seed=seed) for seed in (2, 3, 4))
    weight = weight[0]
    return {
        "gated": lambda: (epigrad.forward.gated_activation(x, "geglu", 1),),
        "gated backward": lambda: (epigrad.backward.gated_activation_backward(grad, x, "geglu", 1),),
        "lerp": lambda: (epigrad.forward.lerp(start, end, weight),),
        "lerp backward": lambda: epigrad.backward.lerp_backward(end, start, end, weight),
        "lerp backward to one row": lambda: epigrad.backward.lerp_backward(end, start[:1], end[:, :1], weight[:1]),
    }


def _calls(dtype: torch.dtype) -> dict[str, Call]:
    batched = {f"batched {name}": call for name, call in _gemm(dtype, "silu", (3,)).items()}
    return _gemm(dtype) | batched | _elementwise(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runs_and_thread_counts_agree(dtype: torch.dtype) -> None:
    for name, call in _calls(dtype).items():
        torch.set_num_threads(1)
        first = call()
        for threads in (1, 2, 3, 2, 7):
            torch.set_num_threads(threads)
            for want, got in zip(first, call(), strict=True):
                assert_same_bits(got, want, f"{name} on {threads} threads")


@pytest.mark.parametrize("save", SAVE_MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_grad_mode_does_not_change_the_output(activation: str, dtype: torch.dtype, save: str) -> None:
    a, b, bias = _random(33, 17, dtype=dtype), _random(17, 21, dtype=dtype, seed=1), _random(21, dtype=dtype, seed=2)
    with torch.no_grad():
        want = epigrad.matmul_bias_activation(a, b, bias, activation, save=save)
    with torch.inference_mode():
        in_inference = epigrad.matmul_bias_activation(a, b, bias, activation, save=save)
    assert_same_bits(in_inference.clone(), want, "inference mode")
    for asking in ((a,), (b,), (a, b), (a, b, bias)):
        operands = [x.detach().requires_grad_(any(x is y for y in asking)) for x in (a, b, bias)]
        got = epigrad.matmul_bias_activation(*operands, activation, save=save)
        assert_same_bits(got, want, f"{len(asking)} inputs ask for gradients")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", GATED_KINDS)
def test_elementwise_results_do_not_depend_on_layout(kind: str, dtype: torch.dtype) -> None:
    """Values and gradients, for every layout of inputs and outputs; a repeated dimension against its copy."""
    values = 3 * torch.randn(7, 1, 46, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grad = _random(7, 1, 23, dtype=dtype, seed=1)
    for layout in LAYOUTS:
        x = laid_out(values, dtype, layout)
        copy = x.contiguous().clone()
        want = epigrad.forward.gated_activation(copy, kind)
        want_grad = epigrad.backward.gated_activation_backward(grad, copy, kind)
        assert_same_bits(epigrad.gated_activation(x, kind), want, layout)
        assert_same_bits(epigrad.backward.gated_activation_backward(grad, x, kind), want_grad, layout)
        mixed = epigrad.forward.lerp(copy, want_grad, 0.3)
        assert_same_bits(epigrad.forward.lerp(x, want_grad, 0.3), mixed, f"lerp of {layout}")
        for out_layout in OUT_LAYOUTS:
            out = Guarded.empty(want.shape, dtype, out_layout)
            epigrad.forward.gated_activation(x, kind, out=out.tensor)
            assert_same_bits(out.tensor, want, f"{layout} into {out_layout}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise_results_do_not_depend_on_alignment(dtype: torch.dtype) -> None:
    values = _random(300, dtype=dtype)
    want = epigrad.forward.gated_product(values, values, "swiglu")
    for offset in range(1, 18):
        memory = torch.zeros(offset + 300, dtype=dtype)
        memory[offset:] = values
        moved = memory[offset:]
        assert_same_bits(epigrad.forward.gated_product(moved, moved, "swiglu"), want, f"at offset {offset}")


def test_rows_of_a_product_do_not_depend_on_the_other_threads_work() -> None:
    """Many threads of the caller at once give what one gives."""
    from concurrent.futures import ThreadPoolExecutor

    calls = _gemm(torch.float32)
    want = {name: call() for name, call in calls.items()}
    with ThreadPoolExecutor(4) as pool:
        for name, call in calls.items():
            for got in pool.map(lambda _, call=call: call(), range(8)):
                for one, other in zip(got, want[name], strict=True):
                    assert_same_bits(one, other, name)


def digest() -> str:
    """One hash of everything that `_calls` computes."""
    found = hashlib.sha256()
    for dtype in DTYPES:
        for call in _calls(dtype).values():
            for result in call():
                if result is not None:
                    found.update(bits(result).numpy().tobytes())
    return found.hexdigest()


def test_another_process_computes_the_same_bits() -> None:
    program = f"import sys; sys.path[:0] = {sys.path!r}; import test_determinism; print(test_determinism.digest())"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == digest()
