"""Weight gradients in float32 beside weights of 16 bits: added to ``main_grad``, or as `.grad`.

Megatron's convention is a float32 tensor ``parameter.main_grad`` that gradients are added to.
PyTorch's is ``parameter.grad_dtype = torch.float32``. Either way the product's accumulator is
stored, or added, as it is.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from epigrad import errors
from epigrad._autograd.engine import accumulates
from epigrad._core.call import Call
from epigrad._core.tables import backward_row, is_half, row_of
from epigrad._core.wide import DECLARES, SWITCHED, asks_for_float32

_OP = "accumulate_main_grad"


class _Switched:
    """The parameters in `SWITCHED`.

    Attributes:
        lock: held by a thread that changes the counts, or adds to a `main_grad`.
    """

    def __init__(self) -> None:
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make the lock. A forked child needs a new one: no thread there releases the parent's."""
        self.lock = threading.RLock()

    def __contains__(self, tensor: Tensor) -> bool:
        entry = SWITCHED.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def add(self, tensor: Tensor, count: int) -> None:
        key = id(tensor)
        with self.lock:
            before = SWITCHED[key][1] if tensor in self else 0
            if before + count:
                # A tensor that is gone takes its entry along.
                SWITCHED[key] = (ref(tensor, lambda _: SWITCHED.pop(key, None)), before + count)
            else:
                del SWITCHED[key]


_switched = _Switched()
os.register_at_fork(after_in_child=_switched.renew_lock)


class Handle:
    """What `accumulate_main_grad` returns."""

    def __init__(self, parameters: Sequence[Tensor], hook: Any) -> None:
        self._parameters = list(parameters)
        self._hook = hook
        for parameter in self._parameters:
            _switched.add(parameter, 1)

    def remove(self) -> None:
        """Switch it off: gradients of later calls go to ``.grad``. A second time does nothing."""
        with _switched.lock:
            parameters, self._parameters = self._parameters, []
        for parameter in parameters:
            _switched.add(parameter, -1)
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __repr__(self) -> str:
        count = len(self._parameters)
        on = f"{count} parameter{'s' * (count != 1)}" if count else "removed"
        return f"<accumulate_main_grad: {on}>"


def accumulate_main_grad(module_or_parameters: nn.Module | Iterable[Tensor]) -> Handle:
    """Have backward add the gradients of weights and biases to ``parameter.main_grad``.

    It is for training loops that sum gradients over several batches in float32, as Megatron's: a
    parameter that has a float32 tensor `main_grad` of its shape gets its gradient added there,
    inside of the product that forms it and never rounded to 16 bits. Its `.grad` stays None, and
    its `grad_added_to_main_grad` becomes True. A parameter without `main_grad` gets `.grad` as
    ever, and a frozen one nothing.

    A gradient that autograd is not asked for is not added: ``torch.autograd.grad(loss, input)``
    leaves `main_grad` alone, and ``torch.autograd.grad(loss, parameter)`` returns the gradient. A
    parameter with a tensor hook (``parameter.register_hook``) gets `.grad`, so that the hook sees
    the gradient and may change it. A post-accumulate hook runs either way, and `.grad` is None
    where the gradient was added to `main_grad`.

    Args:
        module_or_parameters: a module, whose parameters are switched on, or parameters. If another
            library's functions also use one, their part goes to `.grad`.

    Returns:
        A handle, whose ``remove()`` switches it off. A copy of the module is not switched on.

    Raises:
        DTypeError: (a ``TypeError``) something else than parameters; in backward, a `main_grad`
            that is not float32.
        InvalidProblemError: (a ``ValueError``) a tensor that is not a leaf; in backward, a
            `main_grad` of another shape, or whose elements share memory.
        DeviceMismatchError: (a ``ValueError``) in backward, a `main_grad` on another device.
        UnsupportedError: (a ``NotImplementedError``) a sharded parameter; and where epigrad's
            functions are called with such a parameter under ``create_graph=True``,
            DistributedDataParallel, FSDP, `torch.compile`, `torch.func` or WebGPU. Under FSDP
            ``parameter.grad_dtype = torch.float32`` serves.

    Source: Megatron-LM's `main_grad`, https://github.com/NVIDIA/Megatron-LM.

    Examples:
        >>> import epigrad, torch
        >>> layer = epigrad.nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
        >>> layer.weight.main_grad = torch.zeros(2, 2)
        >>> handle = epigrad.accumulate_main_grad(layer)
        >>> for _ in range(3):
        ...     layer(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        >>> layer.weight.main_grad, layer.weight.grad, layer.weight.grad_added_to_main_grad
        (tensor([[3., 3.],
                [3., 3.]]), None, True)
        >>> handle.remove()
    """
    if isinstance(module_or_parameters, nn.Module):
        parameters: list[Tensor] = list(module_or_parameters.parameters())
    elif isinstance(module_or_parameters, Tensor):
        parameters = [module_or_parameters]
    elif isinstance(module_or_parameters, Iterable):
        parameters = list(module_or_parameters)
    else:
        parameters = [module_or_parameters]
    for parameter in parameters:
        if not isinstance(parameter, Tensor):
            raise errors.DTypeError(f"{_OP}: {type(parameter).__name__}, want a module or torch.nn.Parameters")
        if hasattr(parameter, "placements"):
            raise errors.UnsupportedError(
                f"{_OP}: a sharded parameter, want a whole one: with FSDP set parameter.grad_dtype = torch.float32"
            )
        if not parameter.is_leaf:
            raise errors.InvalidProblemError(
                f"{_OP}: a tensor that is not a leaf, want a module or torch.nn.Parameters"
            )
    hook = None
    if isinstance(module_or_parameters, nn.Module):
        hook = module_or_parameters.register_forward_pre_hook(_refuse_fsdp)
    return Handle(parameters, hook)


def _refuse_fsdp(module: nn.Module, inputs: Any) -> None:
    """A pre-forward hook that refuses FSDP applied later, since it replaces the parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or all(parameter in _switched for parameter in module.parameters()):
        return
    if any(isinstance(part, fsdp.FSDPModule | fsdp.FullyShardedDataParallel) for part in module.modules()):
        raise errors.UnsupportedError(
            f"{_OP}: FSDP was applied to the module afterwards and replaced its parameters: for FSDP set "
            "parameter.grad_dtype = torch.float32 instead"
        )


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a gradient goes in place of a new tensor of the call's dtype.

    Attributes:
        parameter: whose `main_grad` it is added to; None for a float32 tensor that autograd gets.
        like: the operand: the parameter, or a view of it.
    """

    parameter: Tensor | None
    like: Tensor


Sinks = tuple[Sink | None, ...]


def sinks_of(call: Call, tensors: Sequence[Tensor | None]) -> Sinks | None:
    """The sinks of a function's floating-point tensors; None if every gradient is a new tensor of
    the call's dtype.
    """
    sinks = _sinks(call.op, tensors)
    if not any(sinks):
        return None
    if any(sink is not None and sink.parameter is not None for sink in sinks):
        _refuse(call)
    return sinks


def _sinks(op: str, tensors: Sequence[Tensor | None]) -> Sinks:
    real = [tensor for tensor in tensors if tensor is None or tensor.is_floating_point()]
    gradients = backward_row(op, len(tensors)).outputs
    return tuple([_sink(tensor) if of.is_added_to else None for tensor, of in zip(real, gradients, strict=True)])


def _sink(tensor: Tensor | None) -> Sink | None:
    if tensor is None or not tensor.requires_grad:
        return None
    owner = tensor if tensor in _switched else tensor._base
    if owner is not None and owner in _switched and getattr(owner, "main_grad", None) is not None:
        return Sink(owner, tensor)
    return Sink(None, tensor) if asks_for_float32(tensor) else None


class _View(torch.autograd.Function):
    """A view whose gradient stays float32. PyTorch would round it to the view's dtype."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, view: Tensor) -> Tensor:
        ctx.set_output_grad_dtype(torch.float32)
        ctx.parameter = parameter.shape, parameter.stride()
        ctx.view = view.shape, view.stride(), view.storage_offset() - parameter.storage_offset()
        return view.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.new_empty_strided(*ctx.parameter)
        shape, stride, offset = ctx.view
        if shape.numel() < total.numel():
            total.zero_()
        total.as_strided(shape, stride, offset).copy_(grad)
        return total, None


def with_wide_views(call: Call, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """A function's tensors; views of parameters that ask for float32 are replaced by others whose
    gradients have that dtype.

    Raises:
        UnsupportedError: such a view, before PyTorch 2.15 or with elements that share memory.
    """
    for place, tensor in enumerate(tensors):
        if tensor is None or not is_half(tensor.dtype) or not tensor.requires_grad:
            continue
        base = tensor._base
        if base is None or not base.is_leaf or not asks_for_float32(base) or base in _switched:
            continue
        if not DECLARES:
            raise errors.UnsupportedError(
                f"{call.op}: a view of a parameter whose grad_dtype is float32: PyTorch {torch.__version__} rounds its "
                "gradient to 16 bits: want PyTorch 2.15 or newer, or epigrad.accumulate_main_grad"
            )
        if _overlaps(tensor):
            raise errors.UnsupportedError(
                f"{call.op}: a view, whose elements share memory, of a parameter with grad_dtype float32, want a "
                "clone()"
            )
        tensors = (*tensors[:place], _View.apply(base, tensor), *tensors[place + 1 :])
    return tensors


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements may share memory. Layouts with interleaved dimensions count too."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


def refuse_tracing(op: str, tensors: Sequence[Tensor | None]) -> None:
    """Refuse parameters with `main_grad` in `torch.ops` calls: operators return new gradients."""
    if any(sink is not None and sink.parameter is not None for sink in _sinks(op, tensors)):
        raise errors.UnsupportedError(
            f"{op}: a parameter with main_grad under torch.compile, torch.func or a dispatch mode, want an eager call: "
            f"call remove() of the handle that {_OP} returned"
        )


def _refuse(call: Call) -> None:
    if call.backend == "webgpu":
        raise errors.UnsupportedError(
            f"{call.op}: {_OP}: the webgpu backend gives no float32 gradients of 16-bit parameters, want another device"
        )
    if nn.parallel.DistributedDataParallel._active_ddp_module is not None:
        raise errors.UnsupportedError(
            f"{call.op}: {_OP}: under DistributedDataParallel, whose reducer waits for .grad: call the module itself "
            "and sum main_grad over the processes by torch.distributed.all_reduce"
        )


def outputs_of(
    op: str, sinks: Sinks, needs: Sequence[bool], shapes: Sequence[Any], tensors: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], bool]:
    """The tensors that gradients of a backward's tensors are written into, and whether the kernels
    add to them. None lets the core allocate one.

    If any gradient accumulates, every weight, bias and adapter gradient does; new ones start as
    zeros.
    """
    row = row_of(op, len(tensors))
    adds = any(map(_adds, sinks, needs))
    outputs: list[Tensor | None] = []
    for sink, need, shape, gradient, place in zip(sinks, needs, shapes, row.outputs, row.gradients, strict=True):
        # an adapter's gradient has its own dtype
        like = tensors[place if gradient.is_adapters else 0]
        if not need or shape is None:
            outputs.append(None)
        elif sink is None:
            outputs.append(like.new_zeros(shape) if adds and gradient.is_added_to else None)  # type: ignore[union-attr]
        elif sink.parameter is not None:
            outputs.append(_main_grad(op, sink.parameter, sink.like))
        else:
            made = torch.zeros_like if adds else torch.empty_like
            outputs.append(made(sink.like, dtype=torch.float32, requires_grad=False))
    return outputs, adds


def _adds(sink: Sink | None, need: bool) -> bool:
    return need and sink is not None and sink.parameter is not None


def add_lock(adds: bool) -> AbstractContextManager[Any]:
    """The lock of a call that adds to `main_grad`, as PyTorch locks when it adds to `.grad`.

    Without it, backward passes of several threads would lose each other's additions.
    """
    return _switched.lock if adds else nullcontext()


def _is_returned(sink: Sink | None, need: bool) -> bool:
    """Whether autograd has to return a gradient that could be added to a `main_grad`: a caller asks
    for it, or tensor hooks may change it."""
    if sink is None or sink.parameter is None or not need:
        return False
    parameter, like = sink.parameter, sink.like
    return bool(parameter._backward_hooks or like._backward_hooks or like.retains_grad) or not accumulates(parameter)


def accumulated(sinks: Sinks, needs: Sequence[bool]) -> Sinks:
    """The sinks of the running backward, without those whose gradient autograd has to return."""
    return tuple([None if _is_returned(*each) else each[0] for each in zip(sinks, needs, strict=True)])


def delivered(sinks: Sinks, needs: Sequence[bool], results: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradients for autograd: None where one was added to a `main_grad`."""
    given = list(results)
    for place, (sink, need) in enumerate(zip(sinks, needs, strict=True)):
        if _adds(sink, need):
            sink.parameter.grad_added_to_main_grad = True  # type: ignore[union-attr]
            given[place] = None
    return tuple(given)


def refuse_graph(op: str, sinks: Sinks, needs: Sequence[bool]) -> None:
    """Refuse ``create_graph=True`` for a float32 gradient of a 16-bit parameter."""
    for sink, need in zip(sinks, needs, strict=True):
        if need and sink is not None:
            what = "grad_dtype" if sink.parameter is None else "main_grad"
            raise errors.UnsupportedError(
                f"{op}: a parameter with {what}: a gradient with a graph (create_graph=True), want one without"
            )


def _main_grad(op: str, parameter: Tensor, like: Tensor) -> Tensor:
    """The view of a parameter's `main_grad` that matches a view of the parameter."""
    target: Any = getattr(parameter, "main_grad", None)
    if not isinstance(target, Tensor) or target.dtype != torch.float32:
        given = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise errors.DTypeError(f"{op}: main_grad: {given}, want a float32 tensor")
    if target.shape != parameter.shape:
        raise errors.InvalidProblemError(
            f"{op}: main_grad: shape {list(target.shape)}, want the parameter's {list(parameter.shape)}"
        )
    if target.device != parameter.device:
        raise errors.DeviceMismatchError(
            f"{op}: main_grad: on {target.device}, want {parameter.device}, where the parameter is"
        )
    if target.layout != torch.strided or any(
        stride == 0 and size > 1 for stride, size in zip(target.stride(), target.shape, strict=True)
    ):
        raise errors.InvalidProblemError(f"{op}: main_grad: sparse or expanded, want memory for each element")
    if like is parameter:
        return target
    if target.stride() != parameter.stride():
        raise errors.UnsupportedError(
            f"{op}: main_grad: strides {list(target.stride())}, want {list(parameter.stride())} as the parameter has, "
            "since the call takes a view of it"
        )
    offset = target.storage_offset() + like.storage_offset() - parameter.storage_offset()
    return target.as_strided(like.shape, like.stride(), offset)
