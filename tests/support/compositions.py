"""The operations composed of PyTorch's own, with the activation as an argument.

With an activation's float64 formula and float64 inputs they are the reference; with PyTorch's
operator and the case's dtype they are what a PyTorch user has, whose error the tolerance is
measured from.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Pointwise = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]
"""What a gated kind makes of value and gate."""
Gradients = tuple[Tensor | None, ...]


def matmul_bias_activation(a: Tensor, b: Tensor, bias: Tensor | None, act: Pointwise) -> Tensor:
    product = torch.matmul(a, b)
    return act(product if bias is None else product + bias)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None, act: Pointwise) -> Tensor:
    return act(functional.linear(input, weight, bias))


def halves(input: Tensor, dim: int, gate: str) -> tuple[Tensor, Tensor]:
    """The values and the gates."""
    if gate in ("odd", "even"):
        first, second = (input.movedim(dim, 0)[start::2].movedim(0, dim) for start in range(2))
    else:
        first, second = input.chunk(2, dim) if input.shape[dim] else (input, input)
    return (first, second) if gate in ("second", "odd") else (second, first)


def gated_activation(input: Tensor, dim: int, gate: str, act: Product) -> Tensor:
    return act(*halves(input, dim, gate))


def mlp(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, act: Pointwise) -> Tensor:
    return functional.linear(act(functional.linear(x, w1, b1)), w2, b2)


def gated_mlp(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, gate: str, act: Product
) -> Tensor:
    return functional.linear(gated_activation(functional.linear(x, w1, b1), -1, gate, act), w2, b2)


def gated_linear(x: Tensor, wv: Tensor, wg: Tensor, bv: Tensor | None, bg: Tensor | None, act: Product) -> Tensor:
    return act(functional.linear(x, wv, bv), functional.linear(x, wg, bg))


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: float = 0.5) -> Tensor:
    """xIELU of Apertus, without the -1e-6 that transformers clamps with."""
    a_p, a_n = functional.softplus(alpha_p.squeeze()), beta + functional.softplus(alpha_n.squeeze())
    return torch.where(x > 0, a_p * x * x + beta * x, a_n * (torch.expm1(x) - x) + beta * x)


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor, act: Pointwise) -> Tensor:
    """By a layer of each group's rows."""
    ends = [0, *offsets.tolist()]
    parts = [
        linear(x[first:end], weight[group], None if bias is None else bias[group], act)
        for group, (first, end) in enumerate(itertools.pairwise(ends))
    ]
    return torch.cat([*parts, x.new_zeros(len(x) - ends[-1], weight.shape[1])])


def experts(
    x: Tensor,
    index: Tensor,
    scale: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    act: Pointwise,
) -> Tensor:
    """By a block of each expert's slots; `act` is of the whole preactivation."""
    out = x.new_zeros(*index.shape, x.shape[1])
    for expert in range(len(w_in)):
        tokens, places = torch.where(index == expert)
        b1, b2 = (None if bias is None else bias[expert] for bias in (b_in, b_out))
        out = out.index_put((tokens, places), mlp(x[tokens], w_in[expert], b1, w_out[expert], b2, act))
    selects = (index >= 0) & (index < len(w_in))
    return torch.where(selects[..., None], scale[..., None] * out, 0).sum(1).to(x.dtype)


def _experts(x: Tensor, scale: Tensor, *layers: Any, index: Tensor, act: Any, gate: str | None = None) -> Tensor:
    whole = act if gate is None else lambda pre: act(*halves(pre, -1, gate))
    return experts(x, index.to(x.device), scale, *layers, whole)


def _lerp(start: Tensor, end: Tensor, given: Tensor | None, weight: float | None = None) -> Tensor:
    return torch.lerp(start, end, given if weight is None else weight)


_COMPOSITIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "matmul_bias_activation": (matmul_bias_activation, ("act",)),
    "linear": (linear, ("act",)),
    "gated_linear": (gated_linear, ("act",)),
    "mlp": (mlp, ("act",)),
    "gated_mlp": (gated_mlp, ("act", "gate")),
    "grouped_linear": (grouped_linear, ("act", "offsets")),
    "experts": (_experts, ("act", "index", "gate")),
    "activation": (lambda x, act: act(x), ("act",)),
    "gated_activation": (gated_activation, ("act", "dim", "gate")),
    "gated_product": (lambda value, gate, act: act(value, gate), ("act",)),
    "lerp": (_lerp, ("weight",)),
    "prelu": (functional.prelu, ()),
    "xielu": (xielu, ("beta",)),
}
"""Functions of the tensors that have gradients, and the names of what they take beside them."""


def of(op: str, act: Any, known: Mapping[str, Any]) -> Callable[..., Tensor]:
    """An operation with an activation, or what a gated kind makes of value and gate, and what is
    known beside its tensors."""
    function, names = _COMPOSITIONS[op]
    known = {**known, "act": act}
    return functools.partial(function, **{name: known[name] for name in names if name in known})


def leaves(inputs: Sequence[Tensor | None], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    """The inputs as leaves that ask for gradients, in their own memory unless another dtype is
    asked for."""
    return [None if x is None else x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]


def with_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor, Gradients]:
    """The result of a function of these inputs, and every gradient by autograd (None for an absent
    input)."""
    arguments = leaves(inputs)
    out = function(*arguments)
    given = iter(torch.autograd.grad(out, [x for x in arguments if x is not None], grad.to(out.dtype)))
    return out.detach(), tuple(None if x is None else next(given) for x in arguments)


def in_float64(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor, Gradients]:
    """`with_gradients` in float64 on the CPU."""
    on_cpu = [None if x is None else x.detach().cpu() for x in inputs]
    return with_gradients(function, leaves(on_cpu, torch.float64), grad.cpu().to(torch.float64))
