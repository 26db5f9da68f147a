"""Plans: select a kernel for a problem, ask what it will do, run it on your own buffers.

`select` validates the problem and chooses a kernel without touching data. `run` allocates nothing
on the device. Leading dimensions are in elements, the workspace is in bytes.
"""

from __future__ import annotations

import json
import operator
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from epigrad import errors
from epigrad._core import invariance, loader, selection
from epigrad._core.call import gate_place
from epigrad._core.checks import check_tensors, lerp_weight, refuse_graph, refuse_negative, refuse_zeros
from epigrad._core.stateless import mark_written
from epigrad._core.torch_state import is_traced
from epigrad._core.values import immutable
from epigrad.kinds import ActivationLike, Gated, activation_of, arguments_of, gated_of

__all__ = [
    "GatedActivation",
    "GatedActivationBackward",
    "GemmEpilogue",
    "GemmEpilogueBackward",
    "KernelSku",
    "Lerp",
    "LerpBackward",
    "PrecisionGuarantee",
]


@immutable
@dataclass(frozen=True, slots=True)
class KernelSku:
    """What will really run."""

    op: str
    kind: str
    dtype: str
    accumulator: str
    backend: str
    arch: str
    kernel: str
    layout: str
    vector_width: int


@immutable
@dataclass(frozen=True, slots=True)
class PrecisionGuarantee:
    """What holds of the results, for this dtype and this kernel."""

    math_precision: str
    accumulator: str
    deterministic: bool
    bit_stable_on_same_hardware: bool
    batch_invariant: bool


def _close(control_plan: loader.ControlPlan) -> None:
    # After a fork the handle belongs to the parent: its core must not be entered here.
    if loader.is_loaded():
        control_plan.Close()


class _Plan:
    """What the six classes share; made by `select`."""

    _spec_class: ClassVar[str] = ""
    _spec_names: ClassVar[dict[str, str]] = {}
    """What `select` calls the arguments of the operation."""

    def __init__(self, spec: dict[str, Any]) -> None:
        core = loader.core()
        # The functions make the same choice for CPU tensors, and a plan keeps it.
        if "backend" not in spec:
            spec |= {"backend": selection.current() or "" if spec["device"].partition(":")[0] == "cpu" else ""}
        self._spec = spec
        try:
            self._control_plan: loader.ControlPlan = loader.control_call(core.control.SelectPlan, json.dumps(spec))
        except errors.InvalidProblemError as error:
            raise errors.renamed(error, self._spec_class, self._spec_names) from None
        finalizer = weakref.finalize(self, _close, self._control_plan)
        finalizer.atexit = False
        self._handle = self._control_plan.Handle()
        facts = json.loads(self._control_plan.Describe())
        self._inputs: tuple[str, ...] = tuple(facts["inputs"])
        self._outputs: tuple[str, ...] = tuple(facts["outputs"])
        self._names = frozenset(self._inputs + self._outputs)
        self._workspace_size: int = facts["workspace_size"]
        self._sku = KernelSku(**facts["sku"])
        self._precision_guarantee = PrecisionGuarantee(**facts["precision_guarantee"])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._spec,)

    def __repr__(self) -> str:
        sku = self._sku
        return f"{type(self).__name__}({sku.op}, {sku.kind}, {sku.dtype}, {sku.backend}: {sku.kernel})"

    @property
    def workspace_size(self) -> int:
        """Bytes of workspace that `run` needs."""
        return self._workspace_size

    @property
    def sku(self) -> KernelSku:
        """What will really run."""
        return self._sku

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        """What holds of the results, for this dtype and this kernel."""
        return self._precision_guarantee

    def can_implement(self, *, stream: object = None, accumulate: bool = False, **tensors: Tensor | None) -> None:
        """Raise the error that `run` would raise for these tensors, without computing anything.

        A `workspace` may be given among the tensors; without one, a large enough one is assumed.

        Args:
            stream: as for `run`.
            accumulate: as for `run`.
            tensors: as for `run`.
        """
        workspace = tensors.pop("workspace", None)
        inputs, outputs = self._arranged(tensors)
        self._stream_handle(stream)
        try:
            loader.core().plan_check(self._handle, inputs, outputs, workspace, bool(accumulate))
        except errors.InvalidProblemError:
            # whose missing memory is the error, and has a name here
            refuse_zeros(self._sku.op, tensors)
            raise

    def run(
        self,
        *,
        workspace: Tensor | None = None,
        stream: object = None,
        accumulate: bool = False,
        **tensors: Tensor | None,
    ) -> None:
        """Compute the outputs that are given, writing into them.

        Args:
            workspace: contiguous uint8 of at least `workspace_size` bytes, aligned to 256 bytes;
                None for 0 bytes.
            stream: a `torch.cuda.Stream` of the plan's device, or the driver's handle of one. None
                is PyTorch's current one. Where there are no streams it is None or 0.
            accumulate: add into the weight and bias gradients in place of overwriting them.
            tensors: the inputs and outputs, by name; an output that is left out is not computed.

        Raises:
            TypeError: an unknown tensor name; the message lists the valid ones.
            InvalidProblemError: (a ``ValueError``) a missing input, overlap, or a tensor that the
                plan was not selected for.
            DTypeError: (a ``TypeError``) another dtype, or something that is not a tensor.
            UnsupportedError: (a ``NotImplementedError``) a tensor that negates on reading or has no
                memory, or a call while `torch.jit.trace` records.
            DeviceMismatchError: (a ``ValueError``) a tensor or a stream on another device.
            MisalignedOperandError: (a ``ValueError``) a buffer that is not aligned to its element.
            WorkspaceTooSmallError: (a ``ValueError``) too small a workspace.
            DeviceError: (a ``RuntimeError``) a failure of the driver, with its `code` and `name`.
        """
        inputs, outputs = self._arranged(tensors)
        handle = self._stream_handle(stream)
        try:
            loader.core().plan_run(
                self._handle, inputs, outputs, workspace, handle, torch.get_num_threads(), bool(accumulate)
            )
        except errors.InvalidProblemError:
            refuse_zeros(self._sku.op, tensors)
            raise
        mark_written([output for output in outputs if output is not None])

    def _stream_handle(self, stream: object) -> int | None:
        """The driver's handle of a stream; None is the current one."""
        if stream is None:
            return None
        handle = getattr(stream, "cuda_stream", stream)
        has_streams = self._sku.backend == "cuda"
        if not isinstance(handle, int) or not 0 <= handle < (2**64 if has_streams else 1):
            wanted = "a stream, its handle or None" if has_streams else f"None or 0: {self._sku.backend} has no streams"
            raise errors.InvalidProblemError(f"{self._sku.op}: stream: {stream!r}, want {wanted}")
        # The default streams of all devices have one handle, so the driver cannot find the mistake.
        device = getattr(stream, "device", None)
        if isinstance(device, torch.device) and str(device) != self._spec["device"]:
            raise errors.DeviceMismatchError(f"{self._sku.op}: stream: on {device}, want {self._spec['device']}")
        return handle

    def _arranged(
        self, tensors: dict[str, Tensor | None]
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
        if is_traced():
            raise errors.UnsupportedError(
                f"{self._sku.op}: plan.run writes into its arguments and cannot be traced: call a function "
                "of epigrad instead"
            )
        if not self._names.issuperset(tensors):
            unknown = ", ".join(sorted(set(tensors) - self._names))
            valid = ", ".join(self._inputs + self._outputs)
            raise TypeError(f"{type(self).__name__}.run: unknown tensor {unknown}, want names among {valid}")
        for name, tensor in tensors.items():
            if tensor is not None:
                check_tensors(self._sku.op, **{name: tensor})
                refuse_negative(self._sku.op, name, tensor)
                if name in self._outputs:
                    refuse_graph(self._sku.op, name, tensor)
        get = tensors.get
        return tuple([get(name) for name in self._inputs]), tuple([get(name) for name in self._outputs])


def _device_name(device: str | torch.device) -> str:
    """The word for a device; "cuda" alone is the current one, as for PyTorch's functions."""
    name = str(device)
    return f"cuda:{torch.cuda.current_device()}" if name == "cuda" and torch.cuda.is_available() else name


class _Gemm(_Plan):
    @classmethod
    def select(
        cls,
        *,
        m: int,
        n: int,
        k: int,
        batch: int | Sequence[int] = (),
        b_batched: bool = False,
        activation: ActivationLike = "none",
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
        lda: int | None = None,
        ldb: int | None = None,
        ld_grad: int | None = None,
    ) -> Self:
        """Choose a kernel for ``act(a @ b + bias)``.

        a is ``[*batch, m, k]``; b is ``[k, n]`` or ``[*batch, k, n]``.

        Args:
            m: rows of a.
            n: columns of b.
            k: columns of a, rows of b.
            batch: batch dimensions, an int or several.
            b_batched: whether b has the batch dimensions too.
            activation: an activation of `epigrad.linear`.
            dtype: float32, float64, bfloat16 or float16.
            device: where the tensors will be.
            lda: elements from one row of a to the next; batch items are ``rows * lda`` apart.
            ldb: the same for b.
            ld_grad: the same for the output's gradient (for the output, in the forward class).

        Raises:
            InvalidProblemError: (a ``ValueError``) wrong sizes, or an unknown activation.
            DTypeError: (a ``TypeError``) another dtype.
            EpigradError: another class of `epigrad.errors`, of devices and backends.
        """
        name = cls._spec_class
        act = activation_of(name, activation)
        return cls(
            {
                "class": name,
                "m": _extent(name, "m", m),
                "n": _extent(name, "n", n),
                "k": _extent(name, "k", k),
                "batch": _sizes(name, "batch", batch if isinstance(batch, Iterable) else (batch,)),
                "b_batched": bool(b_batched),
                "activation": act.name,
                "parameters": _numbers(arguments_of(act)),
                "dtype": _dtype_name(name, dtype),
                "device": _device_name(device),
                "lda": None if lda is None else _size(name, "lda", lda),
                "ldb": None if ldb is None else _size(name, "ldb", ldb),
                "ld_grad": None if ld_grad is None else _size(name, "ld_grad", ld_grad),
                "allow_tf32": loader.allows_tf32(),
                "batch_invariant": invariance.is_on(),
            }
        )


class GemmEpilogue(_Gemm):
    """``out = act(a @ b + bias)``; tensors of `run`: a, b, bias, out, preactivation (an output).

    Examples:
        >>> import torch
        >>> from epigrad.plan import GemmEpilogue
        >>> plan = GemmEpilogue.select(m=2, n=4, k=3, activation="relu", dtype=torch.float32)
        >>> out, size = torch.empty(2, 4), plan.workspace_size
        >>> workspace = torch.empty(size, dtype=torch.uint8) if size else None
        >>> plan.run(a=torch.ones(2, 3), b=torch.ones(3, 4), out=out, workspace=workspace)
        >>> out[0, 0].item()
        3.0
    """

    _spec_class = "GemmEpilogue"


class GemmEpilogueBackward(_Gemm):
    """Gradients of ``act(a @ b + bias)``.

    Tensors of `run`: grad_output, a, b, bias, preactivation, grad_a, grad_b, grad_bias. For relu,
    sigmoid and tanh, output (the forward's) may take the place of preactivation.

    Examples:
        >>> import torch
        >>> from epigrad.plan import GemmEpilogueBackward
        >>> plan = GemmEpilogueBackward.select(m=2, n=4, k=3, dtype=torch.float32)
        >>> plan.sku.op, plan.sku.dtype, plan.sku.backend
        ('matmul_bias_activation_backward', 'float32', 'cpu')
        >>> plan.precision_guarantee.deterministic
        True
    """

    _spec_class = "GemmEpilogueBackward"


class _Gated(_Plan):
    _spec_names: ClassVar[dict[str, str]] = {"input": "input_shape", "dim": "split_dim"}

    @classmethod
    def select(
        cls,
        *,
        input_shape: Sequence[int],
        split_dim: int = -1,
        kind: str | Gated = "swiglu",
        gate: str = "second",
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Choose a kernel for ``value * act(gate)``, both of them in the input, along `split_dim`.

        Args:
            input_shape: shape of the input.
            split_dim: the dimension that is split; its size is even.
            kind: a gated kind of `epigrad.gated_activation`.
            gate: where the gates are along it: the ``"second"`` or the ``"first"`` half, or the
                ``"odd"`` or the ``"even"`` places.
            dtype: float32, float64, bfloat16 or float16.
            device: where the tensors will be.

        Raises:
            InvalidProblemError: (a ``ValueError``) wrong sizes, or an unknown kind or gate.
            DTypeError: (a ``TypeError``) another dtype.
            EpigradError: another class of `epigrad.errors`, of devices and backends.
        """
        name = cls._spec_class
        gated = gated_of(name, kind)
        gate_place(name, gate)
        return cls(
            {
                "class": name,
                "input_shape": _sizes(name, "input_shape", input_shape),
                "split_dim": _size(name, "split_dim", split_dim),
                "kind": gated.name,
                "parameters": _numbers(arguments_of(gated)),
                "gate": gate,
                "dtype": _dtype_name(name, dtype),
                "device": _device_name(device),
            }
        )


class GatedActivation(_Gated):
    """``out = value * act(gate)``; tensors of `run`: input, out.

    Examples:
        >>> import torch
        >>> from epigrad.plan import GatedActivation
        >>> plan = GatedActivation.select(input_shape=(2,), kind="bilinear", dtype=torch.float32)
        >>> out = torch.empty(1)
        >>> plan.run(input=torch.tensor([2.0, 3.0]), out=out)
        >>> out
        tensor([6.])
    """

    _spec_class = "GatedActivation"


class GatedActivationBackward(_Gated):
    """Gradient of ``value * act(gate)``.

    Tensors of `run`: grad_output, input, and as outputs grad_input and grad_bias.
    `grad_bias` is the unrounded `grad_input`, summed over all dimensions but the split one: the
    gradient of a bias that a linear layer added to the input.

    Examples:
        >>> import torch
        >>> from epigrad.plan import GatedActivationBackward
        >>> problem = dict(input_shape=(2,), kind="bilinear", dtype=torch.float32)
        >>> plan, grad_input = GatedActivationBackward.select(**problem), torch.empty(2)
        >>> input = torch.tensor([2.0, 3.0])
        >>> plan.run(grad_output=torch.ones(1), input=input, grad_input=grad_input)
        >>> grad_input
        tensor([3., 2.])
    """

    _spec_class = "GatedActivationBackward"


class _Interpolation(_Plan):
    @classmethod
    def select(
        cls,
        *,
        shape: Sequence[int],
        weight: float | None = None,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Choose a kernel for ``start + weight * (end - start)`` on tensors of one shape.

        Args:
            shape: shape of the tensors.
            weight: a number, or None for a tensor that is given to `run`.
            dtype: float32, float64, bfloat16 or float16.
            device: where the tensors will be.

        Raises:
            InvalidProblemError: (a ``ValueError``) wrong sizes.
            DTypeError: (a ``TypeError``) another dtype, or a weight that is not a number.
            EpigradError: another class of `epigrad.errors`, of devices and backends.
        """
        name = cls._spec_class
        numbers: tuple[float, ...] = ()
        if weight is not None:
            numbers, tensor = lerp_weight(name, weight)
            if tensor is not None:
                raise errors.DTypeError(f"{name}: weight: a tensor, want a number, or None for a tensor given to run")
        return cls(
            {
                "class": name,
                "shape": _sizes(name, "shape", shape),
                "parameters": _numbers(numbers),
                "dtype": _dtype_name(name, dtype),
                "device": _device_name(device),
            }
        )


class Lerp(_Interpolation):
    """``out = start + weight * (end - start)``; tensors of `run`: start, end, weight, out.

    Examples:
        >>> import torch
        >>> from epigrad.plan import Lerp
        >>> plan, out = Lerp.select(shape=(2,), weight=0.25, dtype=torch.float32), torch.empty(2)
        >>> plan.run(start=torch.zeros(2), end=torch.ones(2), out=out)
        >>> out
        tensor([0.2500, 0.2500])
    """

    _spec_class = "Lerp"


class LerpBackward(_Interpolation):
    """Gradients of ``start + weight * (end - start)``.

    Tensors of `run`: grad_output, start, end, weight, grad_start, grad_end, grad_weight; start and
    end are needed for grad_weight only.

    Examples:
        >>> import torch
        >>> from epigrad.plan import LerpBackward
        >>> plan = LerpBackward.select(shape=(2,), weight=0.25, dtype=torch.float32)
        >>> grad_end = torch.empty(2)
        >>> plan.run(grad_output=torch.ones(2), grad_end=grad_end)
        >>> grad_end
        tensor([0.2500, 0.2500])
    """

    _spec_class = "LerpBackward"


def _numbers(values: Iterable[float]) -> list[str]:
    """Parameters as text, since JSON has no NaN and no infinity."""
    return [repr(value) for value in values]


def _size(name: str, argument: str, value: int) -> int:
    if isinstance(value, bool):
        raise errors.InvalidProblemError(f"{name}: {argument}: {value}, want an int")
    try:
        size = operator.index(value)
    except TypeError:
        raise errors.InvalidProblemError(f"{name}: {argument}: {type(value).__name__}, want an int") from None
    if not -(2**63) <= size < 2**63:
        raise errors.InvalidProblemError(f"{name}: {argument}: {size.bit_length()} bits, want an int of 64 bits")
    return size


def _extent(name: str, argument: str, value: int) -> int:
    size = _size(name, argument, value)
    if size < 0:
        raise errors.InvalidProblemError(f"{name}: {argument}: got {size}, want a size >= 0")
    return size


def _sizes(name: str, argument: str, values: Iterable[int]) -> list[int]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise errors.InvalidProblemError(f"{name}: {argument}: {type(values).__name__}, want a sequence of ints")
    return [_extent(name, argument, value) for value in values]


def _dtype_name(name: str, dtype: torch.dtype) -> str:
    if not isinstance(dtype, torch.dtype):
        raise errors.DTypeError(f"{name}: dtype: {dtype!r}, want a torch.dtype")
    return str(dtype).removeprefix("torch.")
