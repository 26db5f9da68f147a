"""One small call of each kind on the GPU, for tests of where and when a call runs, not of what it
computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import epigrad
import torch
from epigrad import backward, forward
from torch import Tensor

CYCLES = 100_000_000
"""What torch.cuda._sleep is given: about 50 ms, far longer than any call here takes to be
launched."""

Outputs = tuple[Tensor, ...]
Shape = tuple[int, ...]

ROWS, FEATURES, HIDDEN = 64, 48, 320  # more than the kernels of small products take


@dataclass(frozen=True)
class Call:
    """A function of tensors of these shapes that gives tensors."""

    run: Callable[..., Outputs]
    shapes: tuple[Shape, ...]

    def operands(
        self, seed: int = 0, dtype: torch.dtype = torch.float32, device: str | torch.device = "cuda"
    ) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in self.shapes]


def _given(results: Sequence[Tensor | None]) -> Outputs:
    return tuple(result for result in results if result is not None)


X, UP, BIAS, Y = (ROWS, FEATURES), (HIDDEN, FEATURES), (HIDDEN,), (ROWS, HIDDEN)
SMALL = (64, 64)
EXPERTS, EACH = 5, 2
UPS, DOWNS = (EXPERTS, 2 * HIDDEN, FEATURES), (EXPERTS, FEATURES, HIDDEN)


def _index(x: Tensor) -> Tensor:
    """Experts of each token, on its device."""
    return (torch.arange(ROWS * EACH, device=x.device) * 7 % EXPERTS).view(ROWS, EACH)


def _offsets(x: Tensor) -> Tensor:
    """Where the groups of rows end, the first of which is empty."""
    return torch.arange(EXPERTS, device=x.device) * (ROWS // EXPERTS)


STATELESS: dict[str, Call] = {
    "linear": Call(lambda x, w, b: (forward.linear(x, w, b, "gelu"),), (X, UP, BIAS)),
    "linear_backward": Call(
        lambda grad, x, w, b: _given(backward.linear_backward(grad, x, w, b, "gelu")), (Y, X, UP, BIAS)
    ),
    "matmul_backward": Call(
        lambda grad, a, b: _given(backward.matmul_bias_activation_backward(grad, a, b, None, "tanh")),
        ((3, ROWS, HIDDEN), (3, ROWS, FEATURES), (FEATURES, HIDDEN)),
    ),
    "small_linear": Call(lambda x, w, b: (forward.linear(x, w, b, "gelu"),), (SMALL, SMALL, SMALL[:1])),
    "small_linear_backward": Call(
        lambda grad, x, w, b: _given(backward.linear_backward(grad, x, w, b, "gelu")), (SMALL, SMALL, SMALL, SMALL[:1])
    ),
    "gated": Call(lambda x: (forward.gated_activation(x, "geglu"),), (Y,)),
    "gated_backward": Call(
        lambda grad, x: (backward.gated_activation_backward(grad, x, "swiglu"),), ((ROWS, HIDDEN // 2), Y)
    ),
    "lerp": Call(lambda start, end, weight: (forward.lerp(start, end, weight),), (Y, Y, (HIDDEN,))),
    "lerp_backward": Call(
        lambda grad, start, end, weight: _given(backward.lerp_backward(grad, start, end, weight)), (Y, Y, Y, (HIDDEN,))
    ),
    "prelu_backward": Call(lambda grad, x, w: _given(backward.prelu_backward(grad, x, w)), (Y, Y, BIAS)),
    "xielu_backward": Call(lambda grad, x, p, n: _given(backward.xielu_backward(grad, x, p, n)), (Y, Y, (1,), (1,))),
    "grouped_linear_backward": Call(
        lambda grad, x, w: _given(backward.grouped_linear_backward(grad, x, w, None, "gelu", offsets=_offsets(x))),
        (Y, X, (EXPERTS, *UP)),
    ),
    "experts_backward": Call(
        lambda grad, x, scale, up, down: _given(
            backward.experts_backward(grad, x, _index(x), scale, up, None, down, None)
        ),
        (X, X, (ROWS, EACH), UPS, DOWNS),
    ),
}
"""Stateless functions, those with sums over rows among them."""

DIFFERENTIABLE: dict[str, Call] = {
    "linear": Call(lambda x, w, b: (epigrad.linear(x, w, b, "gelu"),), (X, UP, BIAS)),
    "matmul": Call(
        lambda a, b: (epigrad.matmul_bias_activation(a, b, None, "sigmoid"),),
        ((3, ROWS, FEATURES), (3, FEATURES, HIDDEN)),
    ),
    "gated_activation": Call(lambda x: (epigrad.gated_activation(x, "geglu_tanh"),), (Y,)),
    "gated_product": Call(lambda value, gate: (epigrad.gated_product(value, gate, "swiglu"),), (Y, Y)),
    "lerp": Call(lambda start, end, weight: (epigrad.lerp(start, end, weight),), (Y, Y, (ROWS, 1))),
    "prelu": Call(lambda x, w: (epigrad.prelu(x, w),), (Y, BIAS)),
    "xielu": Call(lambda x, p, n: (epigrad.xielu(x, p, n),), (Y, (1,), (1,))),
    "mlp": Call(
        lambda x, w1, b1, w2, b2: (epigrad.mlp(x, w1, b1, w2, b2, "gelu"),),
        (X, UP, BIAS, (FEATURES, HIDDEN), (FEATURES,)),
    ),
    "gated_linear": Call(
        lambda x, v, g, bv, bg: (epigrad.gated_linear(x, v, g, bv, bg, "swiglu"),),
        (X, UP, UP, BIAS, BIAS),
    ),
    "gated_mlp": Call(
        lambda x, w1, w2: (epigrad.gated_mlp(x, w1, None, w2, None, "swiglu"),),
        (X, (2 * HIDDEN, FEATURES), (FEATURES, HIDDEN)),
    ),
    "grouped_linear": Call(
        lambda x, w, b: (epigrad.grouped_linear(x, w, b, "gelu", offsets=_offsets(x)),),
        (X, (EXPERTS, *UP), (EXPERTS, *BIAS)),
    ),
    "experts": Call(
        lambda x, scale, up, b1, down, b2: (epigrad.experts(x, _index(x), scale, up, b1, down, b2),),
        (X, (ROWS, EACH), UPS, UPS[:2], DOWNS, DOWNS[:2]),
    ),
}


def with_gradients(call: Call, operands: Sequence[Tensor]) -> Outputs:
    """The output of a differentiable call, and every gradient of a weighted sum of it."""
    leaves = [x if x.requires_grad else x.detach().requires_grad_() for x in operands]
    (out,) = call.run(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, out.detach() + 1))


CALLS: dict[str, Call] = STATELESS | {
    f"{name}_with_gradients": Call(lambda *operands, call=call: with_gradients(call, operands), call.shapes)
    for name, call in DIFFERENTIABLE.items()
}
