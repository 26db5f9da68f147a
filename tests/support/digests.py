"""Calls whose bits must not change, and one hash of all that they compute, which processes can
compare."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import epigrad
import torch
from torch import Tensor

from tests.support.cases import DTYPES
from tests.support.layouts import bits

Outputs = tuple[Tensor | None, ...]
Call = Callable[[], Outputs]


def random_tensor(*shape: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def gemm_calls(
    dtype: torch.dtype, device: str, activation: str = "gelu", batch: tuple[int, ...] = ()
) -> dict[str, Call]:
    """Forward and backward, large enough to be spread over threads, over odd sizes."""
    random = functools.partial(random_tensor, dtype=dtype, device=device)
    a, b, bias = random(*batch, 131, 67), random(67, 149, seed=1), random(149, seed=2)
    weight = b.T.contiguous()
    grad = random(*batch, 131, 149, seed=3)
    _, pre = epigrad.forward.matmul_bias_activation(a, b, bias, activation, return_preactivation=True)
    backward = epigrad.backward.matmul_bias_activation_backward
    return {
        "forward": lambda: epigrad.forward.matmul_bias_activation(a, b, bias, activation, return_preactivation=True),
        "backward": lambda: backward(grad, a, b, bias, activation, preactivation=pre),
        "backward from inputs": lambda: backward(grad, a, b, bias, activation),
        "linear": lambda: (epigrad.forward.linear(a, weight, bias, activation),),
        "linear backward": lambda: epigrad.backward.linear_backward(grad, a, weight, bias, activation),
    }


def elementwise_calls(dtype: torch.dtype, device: str) -> dict[str, Call]:
    random = functools.partial(random_tensor, dtype=dtype, device=device)
    x, grad = random(37, 2, 5003), random(37, 1, 5003, seed=1)
    start, end, weight = (random(20011, 9, seed=seed) for seed in (2, 3, 4))
    weight, alpha = weight[0], random(1, seed=5)
    return {
        "gated": lambda: (epigrad.forward.gated_activation(x, "geglu", 1),),
        "gated backward": lambda: (epigrad.backward.gated_activation_backward(grad, x, "geglu", 1),),
        "lerp": lambda: (epigrad.forward.lerp(start, end, weight),),
        "lerp by a number": lambda: (epigrad.forward.lerp(start, end, 0.3),),
        "lerp backward": lambda: epigrad.backward.lerp_backward(end, start, end, weight),
        "prelu": lambda: (epigrad.forward.prelu(start, weight),),
        "prelu backward": lambda: epigrad.backward.prelu_backward(end, start, weight),
        "xielu": lambda: (epigrad.forward.xielu(start, alpha, alpha),),
        "xielu backward": lambda: epigrad.backward.xielu_backward(end, start, alpha, alpha),
        "lerp backward to one row": lambda: epigrad.backward.lerp_backward(end, start[:1], end[:, :1], weight[:1]),
    }


def gated_linear_calls(dtype: torch.dtype, device: str) -> dict[str, Call]:
    random = functools.partial(random_tensor, dtype=dtype, device=device)
    layer = (random(131, 67), random(149, 67, seed=1), random(149, 67, seed=2), random(149, seed=3), None)
    grad = random(131, 149, seed=4)
    return {
        "gated layer": lambda: epigrad.forward.gated_linear(*layer, "geglu", return_preactivation=True),
        "gated layer backward": lambda: epigrad.backward.gated_linear_backward(grad, *layer, "geglu"),
    }


def calls(dtype: torch.dtype, device: str) -> dict[str, Call]:
    batched = {f"batched {name}": call for name, call in gemm_calls(dtype, device, "silu", (3,)).items()}
    products = gemm_calls(dtype, device) | batched | gated_linear_calls(dtype, device)
    return products | elementwise_calls(dtype, device)


def digest(device: str) -> str:
    """One hash of everything that `calls` computes."""
    found = hashlib.sha256()
    for dtype in DTYPES:
        for call in calls(dtype, device).values():
            for result in call():
                if result is not None:
                    found.update(bits(result).cpu().numpy().tobytes())
    return found.hexdigest()
