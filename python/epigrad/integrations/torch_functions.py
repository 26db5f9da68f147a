"""PyTorch's own products, and its sums of rows, by epigrad's, inside
``batch_invariant(torch_functions=True)``. A number of each row that meets the row's elements, as in
a norm, has such a sum as its gradient.

Each function here takes what PyTorch's takes, and gives None for a call that stays PyTorch's: other
dtypes, devices and layouts, subclasses of tensors, ``out=``, and what PyTorch refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import Function, forward_ad
from torch.nn import functional as torch_functional

from epigrad import functional
from epigrad._core.checks import PLAIN
from epigrad._core.invariance import PRODUCTS
from epigrad._core.torch_state import cast_dtype, transforms_active

_TYPES = PLAIN | {FakeTensor}  # `torch.export` runs a model on fake tensors
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _linear(input: Any, weight: Any, bias: Any = None, **others: Any) -> Tensor | None:
    if others or not _are_ours(input, weight, *(() if bias is None else (bias,))):
        return None
    if input.dim() == 0 or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        return None
    if bias is not None and bias.shape != weight.shape[:1]:
        return None
    return functional.linear(input, weight, bias)


def _matmul(input: Any, other: Any, **others: Any) -> Tensor | None:
    if others or not _are_ours(input, other) or not _multiply(input, other):
        return None
    return functional.matmul_bias_activation(input, other)


def _mm(input: Any, mat2: Any, **others: Any) -> Tensor | None:
    return _matmul(input, mat2, **others) if _have_dims(2, input, mat2) else None


def _bmm(input: Any, mat2: Any, **others: Any) -> Tensor | None:
    if not _have_dims(3, input, mat2) or input.shape[0] != mat2.shape[0]:
        return None
    return _matmul(input, mat2, **others)


def _addmm(input: Any, mat1: Any, mat2: Any, *others: Any, beta: Any = 1, alpha: Any = 1, **more: Any) -> Tensor | None:
    if others or more or not _have_dims(2, mat1, mat2):
        return None
    return _added(input, mat1, mat2, beta, alpha)


def _baddbmm(
    input: Any, batch1: Any, batch2: Any, *others: Any, beta: Any = 1, alpha: Any = 1, **more: Any
) -> Tensor | None:
    if others or more or not _have_dims(3, batch1, batch2) or batch1.shape[0] != batch2.shape[0]:
        return None
    return _added(input, batch1, batch2, beta, alpha)


def _added(input: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Tensor | None:
    """``beta * input + alpha * (a @ b)``. A vector is a bias, whose sum is rounded once. Else each
    step is rounded, so that no element depends on where it is."""
    if not _are_ours(input, a, b) or not _multiply(a, b):
        return None
    if beta == alpha == 1 and input.shape == b.shape[-1:]:
        return functional.matmul_bias_activation(a, b, input)
    product = functional.matmul_bias_activation(a, b)
    if alpha != 1:
        product = product * alpha
    added: Tensor = input.to(product.dtype).expand(product.shape)
    if beta == 0:  # PyTorch then ignores input, and NaN in it, and its gradient is 0
        return torch.where(torch.zeros((), dtype=torch.bool, device=product.device), added, product)
    return product + (added if beta == 1 else added * beta)


def _of_rows(is_mean: bool) -> Any:
    """`torch.mean` or `torch.sum` of the last dimension, as a product with ones.

    PyTorch's own order follows the number of rows on a GPU. Sums are in float64, so that no product
    is in TF32.
    """

    def reduced(
        input: Any,
        dim: Any = None,
        keepdim: Any = False,
        *others: Any,
        axis: Any = None,
        dtype: Any = None,
        **more: Any,
    ) -> Tensor | None:
        dim = axis if dim is None else dim
        if others or more or not _are_ours(input) or input.dim() == 0 or dtype not in (None, *_DTYPES):
            return None
        if (dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim) not in (-1, input.dim() - 1):
            return None
        if dtype is None and not is_mean and torch.is_autocast_enabled(input.device.type):
            return None  # its dtype then depends on the device
        kept = dtype or input.dtype
        out = _summed(input.to(kept))
        if is_mean:
            out = out / input.shape[-1]
        return (out if keepdim else out.squeeze(-1)).to(kept)

    return reduced


def _summed(rows: Tensor, product: Callable[[Tensor, Tensor], Tensor] = functional.linear) -> Tensor:
    """The sum of each row, ``[..., 1]``, in float64."""
    with torch.autocast(rows.device.type, enabled=False):
        return product(rows.double(), rows.new_ones(1, rows.shape[-1], dtype=torch.float64))


def _outside(rows: Tensor, ones: Tensor) -> Tensor:
    """The product where no block is open. In an `autograd.Function` Dynamo traces none."""
    out: Tensor = torch.ops.epigrad.linear(rows, ones, batch_invariant=True)[0]
    return out


class _Spread(Function):
    """A number of each row, ``[..., 1]``, for each of the row's elements. Backward sums those of a
    row, as PyTorch's does for an operand that it broadcasts."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, features: int) -> Tensor:
        return numbers.expand(*numbers.shape[:-1], features)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed(grad, _outside).to(grad.dtype), None


def _with_spread_numbers(function: Callable[..., Tensor]) -> Any:
    """An elementwise function of two tensors, if one has a number for each row of the other."""

    def computed(input: Any = None, other: Any = None, *more: Any, **others: Any) -> Tensor | None:
        if more or "out" in others or not torch.is_grad_enabled() or not _are_tensors(input, other):
            return None
        if transforms_active() or forward_ad._current_level >= 0:  # where products are PyTorch's, too
            return None
        if _has_numbers_of(input, other):
            return function(_spread(input, other), other, **others)
        if _has_numbers_of(other, input):
            return function(input, _spread(other, input), **others)
        return None

    return computed


def _are_tensors(*given: Any) -> bool:
    return all(isinstance(each, Tensor) for each in given)


def _has_numbers_of(numbers: Tensor, rows: Tensor) -> bool:
    """Whether one tensor learns a number for each row of another."""
    shape = (*rows.shape[:-1], 1)  # which no scalar has
    if not numbers.requires_grad or numbers.shape != shape or rows.shape in ((), shape):
        return False
    return numbers.dtype == rows.dtype and _are_ours(numbers, rows)


def _spread(numbers: Tensor, rows: Tensor) -> Tensor:
    spread: Tensor = _Spread.apply(numbers, rows.shape[-1])
    return spread


def _have_dims(dims: int, *tensors: Any) -> bool:
    return _are_tensors(*tensors) and all(tensor.dim() == dims for tensor in tensors)


def _are_ours(*tensors: Any) -> bool:
    """Whether all are dense tensors of one device and, after autocast, of one of our dtypes."""
    for tensor in tensors:
        if type(tensor) not in _TYPES or tensor.layout != torch.strided or tensor.is_nested:
            return False
    device, dtype = tensors[0].device, cast_dtype(tensors[0])
    if device.type not in ("cpu", "cuda", "meta") or dtype not in _DTYPES:
        return False
    return all(tensor.device == device and cast_dtype(tensor) == dtype for tensor in tensors)


def _multiply(a: Tensor, b: Tensor) -> bool:
    """Whether `torch.matmul` takes operands of these shapes."""
    if a.dim() == 0 or b.dim() == 0 or a.shape[-1] != b.shape[-2 if b.dim() > 1 else 0]:
        return False
    batches = zip_longest(reversed(a.shape[:-2]), reversed(b.shape[:-2]), fillvalue=1)
    return all(one == other or one == 1 or other == 1 for one, other in batches)


_ELEMENTWISE: list[Callable[..., Tensor]] = [
    getattr(owner, name)
    for owner in (torch, Tensor)
    for name in ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide")
]
"""Operators call those of `Tensor`."""

PRODUCTS.update(
    {
        torch_functional.linear: _linear,
        **dict.fromkeys((torch.matmul, torch.linalg.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
        **dict.fromkeys((torch.mm, Tensor.mm), _mm),
        **dict.fromkeys((torch.bmm, Tensor.bmm), _bmm),
        **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
        **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), _baddbmm),
        **dict.fromkeys((torch.sum, Tensor.sum), _of_rows(is_mean=False)),
        **dict.fromkeys((torch.mean, Tensor.mean), _of_rows(is_mean=True)),
        **{function: _with_spread_numbers(function) for function in _ELEMENTWISE},
    }
)
