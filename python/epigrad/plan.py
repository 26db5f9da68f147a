"""Plans: select a kernel for a problem, ask what it will do, run it on your own buffers.

`select` validates the problem and chooses a kernel without touching data. `run` allocates nothing
on the device. Leading dimensions are in elements, the workspace is in bytes. `Plan` is for every
operation; the other classes describe three of them by sizes.
"""

from __future__ import annotations

import inspect
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from epigrad import errors, forward
from epigrad._core import invariance, loader, selection
from epigrad._core.call import Call, make_call
from epigrad._core.checks import finite, lerp_weight, refuse_graph, refuse_negative, refuse_zeros
from epigrad._core.stateless import mark_written
from epigrad._core.tables import DTYPES, OPS, row_with
from epigrad._core.torch_state import is_traced
from epigrad._core.values import LowRank, immutable
from epigrad.kinds import ActivationLike, Gated
from epigrad.webgpu import Array

__all__ = [
    "GatedActivation",
    "GatedActivationBackward",
    "GemmEpilogue",
    "GemmEpilogueBackward",
    "KernelSku",
    "Lerp",
    "LerpBackward",
    "Plan",
    "PrecisionGuarantee",
]

_OPTIONS = ("activation", "kind", "dim", "gate", "beta")
"""Arguments of functions, where they are no tensors of the operation."""
_DEVICE_TYPES = {"cpu": 1, "cuda": 2, "webgpu": 15}
"""DLDeviceType."""


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


_Matrix = tuple[tuple[int, ...], tuple[int, ...] | None]
"""A shape and strides; strides of None are contiguous."""
_Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...] | None]
"""A tensor without its memory."""


class _Problem(NamedTuple):
    """All that a plan follows from.

    Attributes:
        call: the operation and its options.
        tensors: by name; run needs exactly the strides of those in `exact`.
        exact: names of tensors.
        device: where the tensors will be.
        allow_tf32: whether float32 products may be computed in TF32.
    """

    call: Call
    tensors: dict[str, _Geometry]
    exact: frozenset[str]
    device: str
    allow_tf32: bool


class Plan:
    """One problem of any operation, validated, with its kernel chosen.

    Examples:
        >>> import torch
        >>> from epigrad.plan import Plan
        >>> shapes = dict(input=(2, 3), weight1=(8, 3), weight2=(3, 8))
        >>> plan = Plan.select("mlp", **shapes, activation="relu", dtype=torch.float32)
        >>> workspace = torch.empty(plan.workspace_size + 256, dtype=torch.uint8)
        >>> start = -workspace.data_ptr() % 256
        >>> tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
        >>> out = torch.empty(2, 3)
        >>> plan.run(**tensors, out=out, workspace=workspace[start : start + plan.workspace_size])
        >>> out[0, 0].item()
        24.0
    """

    _op: ClassVar[str] = ""
    """The operation of a class that has only one."""
    _argument_names: ClassVar[dict[str, str]] = {}
    """What such a class calls the operation's arguments in `select`."""

    workspace_size: int
    """Bytes of workspace that `run` needs."""
    sku: KernelSku
    """What will really run."""
    precision_guarantee: PrecisionGuarantee
    """What holds of the results, for this dtype and this kernel."""

    def __init__(self, problem: _Problem) -> None:
        core = loader.core()
        row = row_with(problem.call.op, problem.tensors)
        self._problem = problem
        self._inputs: tuple[str, ...] = tuple(row.tensors)
        self._outputs: tuple[str, ...] = tuple(row.results)
        self._names = frozenset(self._inputs + self._outputs)
        tensors = problem.tensors
        inputs, outputs = (tuple([tensors.get(name) for name in names]) for names in (self._inputs, self._outputs))
        exact = tuple([name in problem.exact for name in self._inputs + self._outputs])
        place = _place(problem.call.op, problem.device)
        self._plan = core.plan_create(problem.call, inputs, outputs, exact, place, problem.allow_tf32)
        self.workspace_size, sku, precision = core.plan_facts(self._plan)
        self.sku, self.precision_guarantee = KernelSku(*sku), PrecisionGuarantee(*precision)

    @classmethod
    def select(
        cls,
        op: str,
        /,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        **arguments: Any,
    ) -> Self:
        """Choose a kernel for an operation.

        Args:
            op: a function of `epigrad.forward` or `epigrad.backward`, by its name.
            dtype: of what is given by its shape; None is that of the first tensor.
            device: where the tensors will be; None is where those of `arguments` are that are no
                meta tensors, or else the CPU.
            arguments: the function's, by name. Of a tensor only the shape, strides and dtype
                count, so a meta tensor will do, and so will a shape. Give what `run` will get.
                Outputs may be given too, such as float32 gradients of bfloat16 weights. An adapter
                is a `LowRank` of such tensors or shapes, with scale 1 and in the call's dtype.

        Raises:
            TypeError: an unknown argument; the message lists the valid ones.
            InvalidProblemError: (a ``ValueError``) an unknown operation, or wrong shapes or kinds.
            DTypeError: (a ``TypeError``) a mix of dtypes, or another dtype.
            EpigradError: another class of `epigrad.errors`, of devices and backends.
        """
        if not isinstance(op, str) or op not in OPS:
            known = ", ".join(map(repr, OPS))
            raise errors.InvalidProblemError(f"Plan: op: {op!r}, want one of {known}{errors.proposal(str(op), OPS)}")
        row = OPS[op].adapted or OPS[op]
        names = (*row.tensors, *row.results)
        arguments = _spread(op, arguments)
        options = {name: value for name, value in arguments.items() if name not in names}
        given = {name: value for name, value in arguments.items() if name in names and value is not None}
        examples = {name: value for name, value in given.items() if isinstance(value, Tensor | Array)}
        if dtype is None:
            dtype = next((value.dtype for value in examples.values() if value.dtype.is_floating_point), None)
        if device is None:
            device = _device_of(op, examples)
        call = _call(op, options, given)
        return cls._of(call, {name: _geometry(op, name, value, dtype) for name, value in given.items()}, device)

    @classmethod
    def _of(
        cls, call: Call, tensors: dict[str, _Geometry], device: str | torch.device, exact: Iterable[str] = ()
    ) -> Self:
        """The plan of a call, in the modes that this thread is in."""
        name = str(device)
        if name == "cuda" and torch.cuda.is_available():  # the current one, as for PyTorch's functions
            name = f"cuda:{torch.cuda.current_device()}"
        # The functions make the same choice for CPU tensors, and a plan keeps it.
        call = call._replace(backend=selection.current() if name.partition(":")[0] == "cpu" else None)
        call = call.as_batch_invariant if invariance.is_on() else call
        return cls(_Problem(call, tensors, frozenset(exact), name, loader.allows_tf32()))

    @classmethod
    def _of_sizes(
        cls, shapes: Mapping[str, _Matrix], dtype: torch.dtype, device: str | torch.device, make: Callable[[str], Call]
    ) -> Self:
        """The plan of a class of one operation, which errors name with its own arguments."""
        name = cls.__name__
        tensors = {argument: (_require_dtype(name, dtype), *shape) for argument, shape in shapes.items()}
        exact = [argument for argument, (_, strides) in shapes.items() if strides is not None]
        try:
            return cls._of(make(cls._op), tensors, device, exact)
        except errors.InvalidProblemError as error:
            raise errors.renamed(error, name, cls._argument_names) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._problem,)

    def __repr__(self) -> str:
        sku = self.sku
        return f"{type(self).__name__}({sku.op}, {sku.kind}, {sku.dtype}, {sku.backend}: {sku.kernel})"

    def can_implement(
        self, *, stream: object = None, accumulate: bool = False, **tensors: Tensor | LowRank | None
    ) -> None:
        """Raise the error that `run` would raise for these tensors, without computing anything.

        A `workspace` may be given among the tensors; without one, a large enough one is assumed.

        Args:
            stream: as for `run`.
            accumulate: as for `run`.
            tensors: as for `run`.
        """
        workspace = tensors.pop("workspace", None)
        self._stream_handle(stream)
        self._use(loader.core().plan_check, tensors, workspace, bool(accumulate))

    def run(
        self,
        *,
        workspace: Tensor | None = None,
        stream: object = None,
        accumulate: bool = False,
        **tensors: Tensor | LowRank | None,
    ) -> None:
        """Compute the outputs that are given, writing into them.

        Args:
            workspace: contiguous uint8 of at least `workspace_size` bytes, aligned to 256 bytes;
                None for 0 bytes.
            stream: a `torch.cuda.Stream` of the plan's device, or the driver's handle of one. None
                is PyTorch's current one. Where there are no streams it is None or 0.
            accumulate: add into the weight and bias gradients in place of overwriting them.
            tensors: the inputs and outputs, by name; an output that is left out is not computed.
                An adapter is a `LowRank` with scale 1; its gradients are ``grad_adapter_a`` and
                ``grad_adapter_b``, and likewise of another name.

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
        handle = self._stream_handle(stream)
        run = loader.core().plan_run
        outputs = self._use(run, tensors, workspace, handle, torch.get_num_threads(), bool(accumulate))
        mark_written([output for output in outputs if output is not None])

    def _stream_handle(self, stream: object) -> int | None:
        """The driver's handle of a stream; None is the current one."""
        if stream is None:
            return None
        handle = getattr(stream, "cuda_stream", stream)
        has_streams = self.sku.backend == "cuda"
        if not isinstance(handle, int) or not 0 <= handle < (2**64 if has_streams else 1):
            wanted = "a stream, its handle or None" if has_streams else f"None or 0: {self.sku.backend} has no streams"
            raise errors.InvalidProblemError(f"{self.sku.op}: stream: {stream!r}, want {wanted}")
        # The default streams of all devices have one handle, so the driver cannot find the mistake.
        device = getattr(stream, "device", None)
        if isinstance(device, torch.device) and str(device) != self._problem.device:
            raise errors.DeviceMismatchError(f"{self.sku.op}: stream: on {device}, want {self._problem.device}")
        return handle

    def _use(
        self, function: Callable[..., None], given: dict[str, Tensor | LowRank | None], *arguments: object
    ) -> tuple[Tensor | None, ...]:
        """Call a function of the core on the plan's tensors; returns the outputs."""
        op = self.sku.op
        tensors: dict[str, Tensor | None] = _spread(op, given)
        if is_traced():
            raise errors.UnsupportedError(
                f"{op}: plan.run writes into its arguments and cannot be traced: call a function of epigrad instead"
            )
        if not self._names.issuperset(tensors):
            for name in sorted(given.keys() - self._names):
                if isinstance(given[name], LowRank):
                    raise TypeError(
                        f"{type(self).__name__}.run: {name}: selected without it: give it to select as well"
                    )
            unknown = ", ".join(sorted(set(tensors) - self._names))
            valid = ", ".join(self._inputs + self._outputs)
            raise TypeError(f"{type(self).__name__}.run: unknown tensor {unknown}, want names among {valid}")
        for name, tensor in tensors.items():
            if tensor is not None:
                refuse_negative(op, name, tensor)
                if name in self._outputs:
                    refuse_graph(op, name, tensor)
        get = tensors.get
        outputs = tuple([get(name) for name in self._outputs])
        try:
            function(self._plan, tuple([get(name) for name in self._inputs]), outputs, *arguments)
        except errors.InvalidProblemError:
            # whose missing memory is the error, and has a name here
            refuse_zeros(op, tensors)
            raise
        return outputs


class _Gemm(Plan):
    _result: ClassVar[str]

    @classmethod
    def select(  # type: ignore[override]  # by sizes
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
        name = cls.__name__
        m, n, k = (_extent(name, argument, size) for argument, size in (("m", m), ("n", n), ("k", k)))
        items = _sizes(name, "batch", batch if isinstance(batch, Iterable) else (batch,))
        of_b = items if b_batched else ()
        matrices = {
            "a": _matrix(name, "a", (*items, m, k), "lda", lda),
            "b": _matrix(name, "b", (*of_b, k, n), "ldb", ldb),
            cls._result: _matrix(name, cls._result, (*items, m, n), "ld_grad", ld_grad),
            "bias": ((n,), None),
            "preactivation": ((*items, m, n), None),
        }
        return cls._of_sizes(matrices, dtype, device, lambda op: make_call(op, activation, 0, "second", None))


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

    _op = "matmul_bias_activation"
    _result = "out"


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

    _op = "matmul_bias_activation_backward"
    _result = "grad_output"


class _Gated(Plan):
    _argument_names: ClassVar[dict[str, str]] = {"input": "input_shape", "dim": "split_dim"}

    @classmethod
    def select(  # type: ignore[override]  # by sizes
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
        name = cls.__name__
        shape, dim = _sizes(name, "input_shape", input_shape), _size(name, "split_dim", split_dim)
        halved = list(shape)
        if -len(shape) <= dim < len(shape):  # the core refuses others, and odd sizes
            halved[dim] //= 2
        matrices = {"input": (shape, None), "grad_output": (tuple(halved), None)}
        return cls._of_sizes(matrices, dtype, device, lambda op: make_call(op, kind, dim, gate, None))


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

    _op = "gated_activation"


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

    _op = "gated_activation_backward"


class _Interpolation(Plan):
    @classmethod
    def select(  # type: ignore[override]  # by sizes
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
        name = cls.__name__
        parameters: tuple[float, ...] = ()
        if weight is not None:
            parameters, tensor = lerp_weight(name, weight)
            if tensor is not None:
                raise errors.DTypeError(f"{name}: weight: a tensor, want a number, or None for a tensor given to run")
        operands = ("grad_output", "start", "end", *(() if parameters else ("weight",)))
        matrices = dict.fromkeys(operands, (_sizes(name, "shape", shape), None))
        return cls._of_sizes(matrices, dtype, device, lambda op: Call(op, parameters=parameters))


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

    _op = "lerp"


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

    _op = "lerp_backward"


def _spread(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, with two tensors in the place of each adapter."""
    row = OPS[op].adapted
    if row is None or arguments.keys().isdisjoint(row.adapters):
        return arguments
    spread = {name: value for name, value in arguments.items() if name not in row.adapters}
    for name in row.adapters:
        adapter = arguments.get(name)
        if adapter is None:
            continue
        if not isinstance(adapter, LowRank):
            raise errors.DTypeError(f"{op}: {name}: {type(adapter).__name__}, want an epigrad.LowRank or None")
        if adapter.scale != 1:
            raise errors.InvalidProblemError(
                f"{op}: {name}.scale: {adapter.scale!r}, want 1: multiply a with it before, and a's gradient after it"
            )
        for part in "ab":
            if f"{name}_{part}" in spread:
                raise errors.InvalidProblemError(f"{op}: {name}_{part}: given beside {name}, want one of both")
        spread[f"{name}_a"], spread[f"{name}_b"] = adapter.a, adapter.b
    return spread


def _call(op: str, options: dict[str, Any], given: dict[str, Any]) -> Call:
    """The call of an operation with a function's arguments that are not tensors; a number among the
    tensors becomes a parameter, if the operation has no kind.
    """
    row = OPS[op]
    arguments = inspect.signature(getattr(forward, row.forward)).parameters
    defaults = {name: arguments[name].default for name in _OPTIONS if name in arguments and name not in row.tensors}
    if unknown := options.keys() - defaults:
        adapters = row.adapted.adapters if row.adapted else ()
        valid = ", ".join((*row.tensors, *defaults, *adapters, *row.results))
        raise TypeError(f"Plan.select: {op}: unknown argument {', '.join(sorted(unknown))}, want names among {valid}")
    chosen = defaults | options
    for name, value in chosen.items():
        if value is inspect.Parameter.empty:
            raise TypeError(f"Plan.select: {op}: {name} is missing")
    if row.kinds:
        kind = chosen.get("kind", chosen.get("activation"))
        return make_call(op, kind, chosen.get("dim", 0), chosen.get("gate", "second"), None)
    weights = [given.pop(name) for name, value in tuple(given.items()) if isinstance(value, numbers.Real)]
    parameters = [lerp_weight(op, weight)[0][0] for weight in weights]
    return Call(op, parameters=(*parameters, *[finite(op, *number) for number in chosen.items()]))


def _geometry(op: str, name: str, given: Any, dtype: torch.dtype | None) -> _Geometry:
    if not isinstance(given, Tensor | Array):
        return _require_dtype(op, dtype), _sizes(op, name, given), None
    if isinstance(given, Tensor) and given.layout is not torch.strided:
        raise errors.UnsupportedError(f"{op}: {name}: a tensor of layout {given.layout}, want a strided one")
    return given.dtype, tuple(given.shape), tuple(given.stride())


def _device_of(op: str, examples: dict[str, Any]) -> str:
    """The device of those that have memory."""
    found = {name: "webgpu" if isinstance(x, Array) else str(x.device) for name, x in examples.items()}
    real = {name: device for name, device in found.items() if device != "meta"}
    first, device = next(iter(real.items()), ("", "cpu"))
    for name, other in real.items():
        if other != device:
            raise errors.DeviceMismatchError(
                f"{op}: {name}: on {other}, want {device} where {first} is: one device per call"
            )
    return device


def _place(op: str, device: str) -> tuple[int, int]:
    kind, colon, index = device.partition(":")
    if kind not in _DEVICE_TYPES:
        raise errors.InvalidProblemError(f"{op}: device: got {device!r}, want cpu, cuda, cuda:N or webgpu")
    if colon and not (index.isascii() and index.isdecimal() and int(index) < 2**31):
        raise errors.InvalidProblemError(f"{op}: device: got {device!r}, want an index of 0 or more after the colon")
    return _DEVICE_TYPES[kind], 0 if kind == "cpu" else int(index or 0)


def _matrix(op: str, argument: str, shape: tuple[int, ...], ld_name: str, ld: int | None) -> _Matrix:
    """The shape and the strides of matrices with a leading dimension, if there is one."""
    if ld is None:
        return shape, None
    *batch, rows, columns = shape
    if _size(op, ld_name, ld) < max(1, columns):
        raise errors.InvalidProblemError(
            f"{op}: {ld_name}: got {ld}, want at least {max(1, columns)}, the columns of {argument}"
        )
    strides = [1, operator.index(ld)]
    for size in reversed((*batch, rows)):
        strides.append(strides[-1] * max(size, 1))
    if strides.pop() >= 2**63:
        raise errors.InvalidProblemError(
            f"{op}: {argument}: shape {list(shape)} with leading dimension {ld} reaches beyond 64 bits"
        )
    return shape, tuple(reversed(strides))


def _require_dtype(op: str, dtype: object) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES.values():
        raise errors.DTypeError(f"{op}: dtype: got {dtype!r}, want a torch.dtype out of {', '.join(DTYPES)}")
    return dtype


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


def _sizes(name: str, argument: str, values: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise errors.InvalidProblemError(f"{name}: {argument}: {type(values).__name__}, want a sequence of ints")
    return tuple([_extent(name, argument, value) for value in values])
