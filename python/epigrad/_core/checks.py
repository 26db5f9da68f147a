"""Checks of Python types, which the core cannot see. The core validates the rest of a call."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from epigrad import errors
from epigrad._core.torch_state import transforms_active, unpack_dual
from epigrad.kinds import number
from epigrad.webgpu import Array, Data

PLAIN = frozenset((Tensor, torch.nn.Parameter))
"""The types whose memory the core may read: of a subclass it cannot know what it stands for."""

PLAIN_OR_NONE = PLAIN | {type(None)}

_TENSORS = (Tensor, Array)  # what has data; only a tensor can have a graph

SAVES = ("auto", "preactivation", "recompute")
"""What a function may be asked to keep for backward."""


def lerp_weight(op: str, weight: float | Data) -> tuple[tuple[float, ...], Data | None]:
    """The weight as the call's parameter or as a tensor: one of the two."""
    if type(weight) is float:  # as mostly: the checks below take longer than all else
        return (weight,), None
    if isinstance(weight, _TENSORS):
        return (), weight
    if isinstance(weight, numbers.Real):
        try:
            return (float(weight),), None
        except OverflowError:
            raise errors.InvalidProblemError(
                f"{op}: weight: {type(weight).__name__} beyond the range of float64, want a float64 value"
            ) from None
    if overridden(weight):
        return (), weight  # type: ignore[return-value]  # what stands for a tensor
    raise errors.DTypeError(f"{op}: weight: {type(weight).__name__}, want a number or a torch.Tensor")


def finite(op: str, argument: str, given: object) -> float:
    if type(given) is float and -math.inf < given < math.inf:  # as mostly: the checks below take long
        return given
    value = number(f"{op}: {argument}", given)
    if not -math.inf < value < math.inf:
        raise errors.InvalidProblemError(f"{op}: {argument}: got {given!r}, want a finite number")
    return value


def overridden(*arguments: object) -> bool:
    """Whether an argument is no tensor but has a `__torch_function__`, as the proxies of `torch.fx`
    do: PyTorch then sees the function itself. Dynamo, which cannot always trace the question, has
    no such arguments.
    """
    if is_dynamo_compiling():
        return False
    return any(not isinstance(value, Tensor) and hasattr(type(value), "__torch_function__") for value in arguments)


def needs_mask(op: str, needs: Sequence[bool], names: Sequence[str]) -> tuple[bool, ...]:
    """The `needs` of a stateless function as bools, one per gradient."""
    if not isinstance(needs, Sequence) or not all(isinstance(need, int) for need in needs):
        raise errors.InvalidProblemError(f"{op}: needs: {needs!r}, want a bool for each of {', '.join(names)}")
    if len(needs) != len(names):
        raise errors.InvalidProblemError(f"{op}: needs: {len(needs)} values, want {len(names)}: {', '.join(names)}")
    return tuple(map(bool, needs))


def check_out(op: str, out: object, argument: str = "out") -> None:
    """Refuse an `out` of a stateless function that is neither a tensor nor None."""
    if out is not None and not isinstance(out, _TENSORS):
        given = type(out).__name__
        raise errors.DTypeError(f"{op}: {argument}: {given}, want a torch.Tensor or None")


def out_tensors(op: str, out: Sequence[Data | None], names: Sequence[str]) -> tuple[Data | None, ...]:
    """The `out` of a stateless function, one tensor or None per gradient."""
    if isinstance(out, _TENSORS) or not isinstance(out, Sequence):
        raise errors.DTypeError(f"{op}: out: {type(out).__name__}, want a tuple for {', '.join(names)}")
    if len(out) != len(names):
        raise errors.InvalidProblemError(f"{op}: out: {len(out)} values, want {len(names)}: {', '.join(names)}")
    for tensor, name in zip(out, names, strict=True):
        check_out(op, tensor, f"out: {name}")
    return tuple(out)


def check_tensors(op: str, **tensors: object) -> None:
    """Refuse a required argument that is not a tensor, None included."""
    for name, value in tensors.items():
        if not isinstance(value, _TENSORS):
            raise errors.DTypeError(f"{op}: {name}: {type(value).__name__}, want a torch.Tensor")


def require_tensors(op: str, **arguments: object) -> None:
    """Refuse arguments that are not tensors, and nested tensors; biases and adapters may be
    None."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor) and (value is not None or not ("bias" in name or "adapter" in name)):
            raise errors.DTypeError(f"{op}: {name}: {type(value).__name__}, want a torch.Tensor")
        if value is not None and value.is_nested:
            raise errors.UnsupportedError(
                f"{op}: {name}: a nested tensor, want a strided one: call this with values(), or with each of unbind()"
            )


def check_save(op: str, save: object) -> None:
    if save not in SAVES:
        raise errors.InvalidProblemError(f"{op}: save: {save!r}, want 'auto', 'preactivation' or 'recompute'")


def refuse_transforms(op: str, *tensors: Tensor | None) -> None:
    """Refuse what would silently lose a tangent or a batch dimension."""
    if transforms_active():
        raise errors.UnsupportedError(f"{op}: called under torch.func transforms, want plain tensors")
    for tensor in tensors:
        if isinstance(tensor, Tensor) and unpack_dual(tensor).tangent is not None:
            raise errors.UnsupportedError(
                f"{op}: a tensor with a tangent: forward-mode differentiation is not supported: use reverse mode"
            )


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have a byte in common."""
    if one.device != other.device or not one.numel() or not other.numel():
        return False
    ranges = [(t.data_ptr(), t.data_ptr() + (_reach(t) + 1) * t.element_size()) for t in (one, other)]
    (first, behind), (other_first, other_behind) = ranges
    if first >= other_behind or other_first >= behind:
        return False
    start = min(first, other_first)
    unit = math.gcd(one.element_size(), other.element_size(), first - other_first)
    marks = torch.zeros((max(behind, other_behind) - start) // unit, dtype=torch.bool)

    def of(tensor: Tensor) -> Tensor:
        """The marks of a tensor's bytes."""
        each, strides = tensor.element_size() // unit, tensor.stride()
        sizes = [size if stride else 1 for size, stride in zip(tensor.shape, strides, strict=True)]
        return marks.as_strided(
            (*sizes, each), (*(stride * each for stride in strides), 1), (tensor.data_ptr() - start) // unit
        )

    of(one).fill_(True)
    return bool(of(other).any())


def _reach(tensor: Tensor) -> int:
    """The offset of the last element, in elements."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def refuse_negative(op: str, argument: str, tensor: Tensor) -> None:
    """Refuse to write through a view that negates on reading, as a conjugate's imaginary part."""
    if type(tensor) in PLAIN and tensor.is_neg():
        raise errors.UnsupportedError(
            f"{op}: {argument}: a view with the negative bit set, want a plain tensor: call resolve_neg()"
        )


def refuse_zeros(op: str, tensors: dict[str, Tensor | None]) -> None:
    """Refuse tensors of zeros without memory, as forward mode makes, if nothing is allocated."""
    for argument, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor._is_zerotensor():
            raise errors.UnsupportedError(
                f"{op}: {argument}: a tensor of zeros without memory, want a tensor with memory: call clone()"
            )


def refuse_graph(op: str, argument: str, output: Tensor) -> None:
    """Refuse an output whose graph would not hold what is written, as PyTorch does."""
    if isinstance(output, Tensor) and output.requires_grad and torch.is_grad_enabled():
        raise errors.InvalidProblemError(
            f"{op}: {argument}: a tensor that requires grad, want one that does not, or a call under torch.no_grad()"
        )
