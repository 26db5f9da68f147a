"""The same inputs give the same bits: run after run, on any number of threads, in any process, on
each device."""

from __future__ import annotations

import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import epigrad
import pytest
import torch

from tests.support.cases import ACTIVATIONS, DTYPES, GATED_KINDS, SAVE_MODES
from tests.support.devices import on_devices
from tests.support.digests import calls, digest, gemm_calls, random_tensor
from tests.support.layouts import LAYOUTS, OUT_LAYOUTS, Guarded, assert_same_bits, laid_out
from tests.support.repository import ROOT


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runs_and_thread_counts_agree(dtype: torch.dtype, device: str) -> None:
    for name, call in calls(dtype, device).items():
        torch.set_num_threads(1)
        first = call()
        for threads in (1, 2, 3, 2, 7):
            torch.set_num_threads(threads)
            for want, got in zip(first, call(), strict=True):
                assert_same_bits(got, want, f"{name} on {threads} threads")


@on_devices
@pytest.mark.parametrize("save", SAVE_MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_grad_mode_does_not_change_the_output(activation: str, dtype: torch.dtype, save: str, device: str) -> None:
    random = functools.partial(random_tensor, dtype=dtype, device=device)
    a, b, bias = random(33, 17), random(17, 21, seed=1), random(21, seed=2)
    with torch.no_grad():
        want = epigrad.matmul_bias_activation(a, b, bias, activation, save=save)
    with torch.inference_mode():
        in_inference = epigrad.matmul_bias_activation(a, b, bias, activation, save=save)
    assert_same_bits(in_inference.clone(), want, "inference mode")
    for asking in ((a,), (b,), (a, b), (a, b, bias)):
        operands = [x.detach().requires_grad_(any(x is y for y in asking)) for x in (a, b, bias)]
        got = epigrad.matmul_bias_activation(*operands, activation, save=save)
        assert_same_bits(got, want, f"{len(asking)} inputs ask for gradients")


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", GATED_KINDS, ids=str)
def test_elementwise_results_do_not_depend_on_layout(kind: str, dtype: torch.dtype, device: str) -> None:
    """Values and gradients, for every layout of inputs and outputs; a repeated dimension against
    its copy."""
    values = 3 * torch.randn(7, 1, 46, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grad = random_tensor(7, 1, 23, dtype=dtype, device=device, seed=1)
    for layout in LAYOUTS:
        x = laid_out(values, dtype, layout, device)
        copy = x.contiguous().clone()
        want = epigrad.forward.gated_activation(copy, kind)
        want_grad = epigrad.backward.gated_activation_backward(grad, copy, kind)
        assert_same_bits(epigrad.gated_activation(x, kind), want, layout)
        assert_same_bits(epigrad.backward.gated_activation_backward(grad, x, kind), want_grad, layout)
        mixed = epigrad.forward.lerp(copy, want_grad, 0.3)
        assert_same_bits(epigrad.forward.lerp(x, want_grad, 0.3), mixed, f"lerp of {layout}")
        alpha = copy.reshape(-1)[:1].clone()
        bent = epigrad.forward.xielu(copy, alpha, alpha)
        assert_same_bits(epigrad.forward.xielu(x, alpha, alpha), bent, f"xielu of {layout}")
        learned, _ = epigrad.backward.prelu_backward(bent, copy, alpha, needs=(True, False))
        assert_same_bits(epigrad.backward.prelu_backward(bent, x, alpha)[0], learned, f"prelu of {layout}")
        for out_layout in OUT_LAYOUTS:
            out = Guarded.like(want, out_layout)
            epigrad.forward.gated_activation(x, kind, out=out.tensor)
            assert_same_bits(out.tensor, want, f"{layout} into {out_layout}")


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_broadcast_weight_is_as_one_written_out(dtype: torch.dtype, device: str) -> None:
    for columns in (1, 15, 16, 17, 127, 129, 513, 1025, 2047, 2048, 2049, 4100):
        start, end, grad = (random_tensor(3, columns, dtype=dtype, device=device, seed=seed) for seed in range(3))
        weight = random_tensor(3, 1, dtype=dtype, device=device, seed=3)
        whole = weight.expand(3, columns).contiguous()
        assert_same_bits(epigrad.lerp(start, end, weight), epigrad.lerp(start, end, whole))
        got = epigrad.backward.lerp_backward(grad, start, end, weight)
        want = epigrad.backward.lerp_backward(grad, start, end, whole)
        for one, other in zip(got[:2], want[:2], strict=True):
            assert one is not None and other is not None
            assert_same_bits(one, other)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise_results_do_not_depend_on_alignment(dtype: torch.dtype, device: str) -> None:
    values = random_tensor(300, dtype=dtype, device=device)
    want = epigrad.forward.gated_product(values, values, "swiglu")
    want_grads = epigrad.backward.gated_product_backward(values, values, want, "geglu")
    mixed = epigrad.forward.lerp(values, want, 0.3)
    for offset in range(1, 18):
        memory = torch.zeros(offset + 300, dtype=dtype, device=device)
        memory[offset:] = values
        moved = memory[offset:]
        assert_same_bits(epigrad.forward.gated_product(moved, moved, "swiglu"), want, f"at offset {offset}")
        assert_same_bits(epigrad.forward.lerp(moved, want, 0.3), mixed, f"lerp at offset {offset}")
        # Each operand at an alignment of its own, and the output at another.
        for got, one in zip(
            epigrad.backward.gated_product_backward(moved, values, want, "geglu"), want_grads, strict=True
        ):
            assert_same_bits(got, one, f"gradients at offset {offset}")
        out = torch.zeros(offset + 301, dtype=dtype, device=device)[1 + offset :]
        epigrad.forward.gated_product(moved, values, "swiglu", out=out)
        assert_same_bits(out, want, f"into offset {offset + 1}")


@on_devices
def test_rows_of_a_product_do_not_depend_on_the_other_threads_work(device: str) -> None:
    """Many threads of the caller at once give what one gives."""
    products = gemm_calls(torch.float32, device)
    want = {name: call() for name, call in products.items()}
    with ThreadPoolExecutor(4) as pool:
        for name, call in products.items():
            for got in pool.map(lambda _, call=call: call(), range(8)):
                for one, other in zip(got, want[name], strict=True):
                    assert_same_bits(one, other, name)


@on_devices
def test_another_process_computes_the_same_bits(device: str) -> None:
    program = f"from tests.support.digests import digest; print(digest({device!r}))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == digest(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_do_not_depend_on_their_neighbours_numbers(dtype: torch.dtype) -> None:
    """A number that the processor's instructions would take for zero sends the rows beside it
    another way."""
    x, weight = random_tensor(32, 1024, dtype=dtype), random_tensor(64, 1024, dtype=dtype, seed=1)
    x[:, 512:], weight[:, 512:] = (
        -x[:, :512],
        weight[:, :512],
    )  # so that what is rounded away on the way is all there is
    for special in (1e-38, torch.inf):
        other = x.clone()
        other[0, 0] = special
        assert_same_bits(
            epigrad.linear(other, weight)[1:], epigrad.linear(x, weight)[1:], f"{special} in the first row"
        )
