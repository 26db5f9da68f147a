"""The rows on a GPU, each with what it is to reach.

Goals are parts of PyTorch eager's time and of torch.compile's in the same run (at most), and of the
ceiling (at least): the bandwidth of ``copy_`` for what moves memory, the products alone for what
multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from epigrad.cli.contest import Function, Pair
from torch import Tensor

from benchmarks import operations
from benchmarks.operations import Backward

__all__ = ["BACKWARD", "BOTH", "FORWARD", "Case", "cases", "sets_needed", "traffic"]

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward + backward"

Shape = tuple[int, ...]
Goals = Mapping[str, float]
Products = Callable[[Sequence[Tensor], Tensor], list[tuple[Tensor, Tensor]]]

DTYPES = ("bfloat16", "float16", "float32", "float64")

# Rows and columns of the elementwise problems: a hidden layer of 8192 tokens.
ROWS, COLUMNS = 8192, 14336

_EVEN: Goals = {"eager": 1.0, "compile": 1.0}


@dataclass(frozen=True, slots=True)
class Case:
    """One problem; it gives a row for each of its directions.

    Attributes:
        op: what is measured.
        kind: activation, gated kind, or what the weight of lerp is.
        size: how the problem's size is printed.
        dtype: of all tensors.
        inputs: shapes of the tensors that the operation takes.
        eager: the operation by PyTorch.
        directions: what is timed, with the goals of each.
        ours: the operation by epigrad.
        variants: other ways to call it, by name.
        ours_backward: epigrad's backward where it is no part of a differentiable operation of its
            own.
        gradients: which inputs get a gradient.
        reads: which inputs backward reads.
        products: the pairs of matrices that forward and backward have to multiply; without them the
            ceiling is memory.
        clock: ``"device"``, ``"wall"`` for what the host has to do, ``"graph"`` for replays of a
            CUDA graph.
        memory: whether what is kept for backward and the peak are measured too.
        compiled: whether torch.compile is measured.
    """

    op: str
    kind: str
    size: str
    dtype: str
    inputs: tuple[Shape, ...]
    eager: Function
    directions: Mapping[str, Goals]
    ours: Function | None = None
    variants: Mapping[str, Function] = field(default_factory=dict)
    ours_backward: Backward | None = None
    gradients: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    products: Mapping[str, Products] = field(default_factory=dict)
    clock: str = "device"
    memory: bool = False
    compiled: bool = True

    def label(self, direction: str) -> str:
        """What ``--rows`` is matched with, and how progress tells the row."""
        clock = "" if self.clock == "device" else f", {self.clock}"
        return f"{self.op} {self.kind} {self.size} {self.dtype} {direction}{clock}"

    def make_inputs(self, device: torch.device) -> list[Tensor]:
        """Random tensors; matrices are scaled to keep the size of what they are multiplied with."""
        dtype = getattr(torch, self.dtype)
        tensors = []
        for index, shape in enumerate(self.inputs):
            spread = 1.0
            if self.ours_backward is not None and len(shape) == 1:
                spread = 0.0  # what it is added to is then the preactivation that epigrad is given
            elif self.op in ("linear", "gated_linear", "mlp", "gated_mlp") and index > 0 and len(shape) == 2:
                spread = shape[1] ** -0.5
            tensors.append(torch.empty(shape, dtype=dtype, device=device).normal_(0, spread))
        return [x.requires_grad_(index in self.gradients) for index, x in enumerate(tensors)]


def cases(quick: bool = False) -> list[Case]:
    """All of them, in the order in which they are measured: what matters most comes first, should
    time run out."""
    dtypes = DTYPES[:1] if quick else DTYPES
    elementwise = [
        *(_gated(kind, dtype) for dtype in dtypes for kind in operations.gated_kinds()),
        *(_gated("swiglu_oai", dtype, gate) for dtype in dtypes for gate in ("second", "even")),
        *(_lerp(weight, dtype) for dtype in dtypes for weight in _LERP_WEIGHTS),
    ]
    return [
        *(case for case in elementwise if case.dtype == "bfloat16"),
        *(_linear(name, (8192, 4096, 14336), "bfloat16", 0.97, 0.95) for name in _compared_activations()),
        _linear("gelu", (4096, 4096, 4096), "bfloat16", 0.96, None),
        *(_block("mlp", name, operations.mlp) for name in ("gelu", "gelu_tanh")),
        *(_block("gated_mlp", kind, operations.gated_mlp) for kind in ("swiglu", "geglu")),
        _gated_linear("swiglu"),
        _accumulated("bfloat16"),
        *_host_bound(),
        *_graphs(),
        *(case for case in elementwise if case.dtype != "bfloat16"),
        *(_gated_bias(kind, dtype) for dtype in dtypes for kind in ("swiglu", "geglu") if dtype != "float64"),
        *(_bias_sums(name, "bfloat16") for name in operations.activations()),
        *([] if quick else [_bias_sums("gelu", "float32")]),
        *(_linear("gelu", (m, k, n), "bfloat16", 1.0, None, compiled=False) for m, k, n in _grid()),
        *(_activation(name, dtype) for dtype in dtypes for name in operations.activations() if name != "none"),
        *(_learnable("prelu", ((COLUMNS,),), dtype) for dtype in dtypes),
        *(_learnable("xielu", ((1,), (1,)), dtype) for dtype in dtypes),
        _gated_product("swiglu", "bfloat16"),
        *(_linear("gelu", (4096, 4096, 4096), dtype, 1.0, None, compiled=False) for dtype in dtypes[1:]),
    ]


def _grid() -> list[tuple[int, int, int]]:
    sizes = [(m, k, n) for m in (64, 512, 4096, 8192) for k in (768, 4096) for n in (3072, 14336)]
    sizes.remove((8192, 4096, 14336))
    return sizes


def _compared_activations() -> tuple[str, ...]:
    first = ("gelu", "gelu_tanh", "relu")
    return (*first, *(name for name in operations.activations() if name not in first))


def _share(part: float, dtype: str) -> dict[str, float]:
    return {**_EVEN, "share": min(part, 0.9) if dtype == "float64" else part}


# --- what moves memory ----------------------------------------------------------------------------


def _elementwise(op: str, kind: str, pair: Pair, shapes: tuple[Shape, ...], dtype: str) -> Case:
    """An operation whose backward reads its inputs, and gives a gradient to each."""
    ours, eager = pair
    goals, places = _share(1.0, dtype), tuple(range(len(shapes)))
    return Case(
        op,
        kind,
        _told(shapes[0]),
        dtype,
        shapes,
        eager,
        {FORWARD: goals, BACKWARD: goals},
        ours,
        gradients=places,
        reads=places,
    )


def _gated(kind: str, dtype: str, gate: str = "second") -> Case:
    name = kind if gate == "second" else f"{kind}, gate {gate}"
    return _elementwise("gated", name, operations.gated(kind, gate), ((ROWS, 2 * COLUMNS),), dtype)


def _gated_product(kind: str, dtype: str) -> Case:
    return _elementwise("gated_product", kind, operations.gated_product(kind), ((ROWS, COLUMNS),) * 2, dtype)


def _activation(name: str, dtype: str) -> Case:
    return _elementwise("activation", name, operations.activation(name), ((ROWS, COLUMNS),), dtype)


def _learnable(name: str, parameters: tuple[Shape, ...], dtype: str) -> Case:
    return _elementwise(name, "tensor", operations.learnable(name), ((ROWS, COLUMNS), *parameters), dtype)


_LERP_WEIGHTS: dict[str, Shape | None] = {
    "number": None,
    "tensor": (ROWS, COLUMNS),
    "columns": (COLUMNS,),
    "rows": (ROWS, 1),
}


def _lerp(weight: str, dtype: str) -> Case:
    shape, weight_shape = (ROWS, COLUMNS), _LERP_WEIGHTS[weight]
    ours, eager = operations.lerp("number" if weight_shape is None else "tensor")
    inputs = (shape, shape) if weight_shape is None else (shape, shape, weight_shape)
    goals = _share(0.9 if weight in ("columns", "rows") else 1.0, dtype)
    places = tuple(range(len(inputs)))
    return Case(
        "lerp",
        weight,
        _told(shape),
        dtype,
        inputs,
        eager,
        # torch.compile's forward writes the difference that its backward reads: only the sum of
        # both can be compared.
        {FORWARD: goals, BACKWARD: goals, BOTH: _EVEN},
        ours,
        gradients=places,
        reads=() if weight_shape is None else places,
    )


def _bias_sums(name: str, dtype: str) -> Case:
    """The bias gradient alone: two tensors are read and nothing of their size is written."""
    return Case(
        "bias gradient",
        name,
        _told((ROWS, COLUMNS)),
        dtype,
        ((ROWS, COLUMNS), (COLUMNS,)),
        operations.biased(name),
        {BACKWARD: _share(0.95, dtype)},
        ours_backward=operations.bias_gradient(name),
        gradients=(1,),
        reads=() if name == "none" else (0,),
    )


def _gated_bias(kind: str, dtype: str) -> Case:
    """With the gradient of a bias in the gated input, summed in the same pass."""
    shape = (ROWS, 2 * COLUMNS)
    return Case(
        "gated + bias gradient",
        kind,
        _told(shape),
        dtype,
        (shape, shape[1:]),
        operations.biased_gated(kind),
        {BACKWARD: _share(0.95, dtype)},
        ours_backward=operations.gated_and_bias_gradient(kind),
        gradients=(0, 1),
        reads=(0,),
    )


# --- what multiplies ------------------------------------------------------------------------------


_SHAPES: dict[str, Callable[[int, int, int], tuple[Shape, ...]]] = {
    "linear": lambda m, k, n: ((m, k), (n, k), (n,)),
    "gated_linear": lambda m, k, n: ((m, k), (n, k), (n, k)),
    "mlp": lambda m, k, n: ((m, k), (n, k), (k, n)),
    "gated_mlp": lambda m, k, n: ((m, k), (2 * n, k), (k, n)),
}


def _layer(
    op: str, kind: str, pair: Pair, size: tuple[int, int, int], dtype: str, directions: Mapping[str, Goals], **rest: Any
) -> Case:
    """A layer or a block, with gradients to all of its inputs."""
    ours, eager = pair
    told = "x".join(map(str, size))
    return Case(op, kind, told, dtype, _SHAPES[op](*size), eager, directions, ours, gradients=(0, 1, 2), **rest)


def _linear(
    name: str,
    size: tuple[int, int, int],
    dtype: str,
    eager_part: float,
    compile_part: float | None,
    compiled: bool = True,
) -> Case:
    goals: dict[str, float] = {"eager": 1.0 if name == "none" else eager_part}
    if compile_part is not None:
        goals["compile"] = 1.0 if name in ("relu", "none") else compile_part
    products: Mapping[str, Products] = {
        FORWARD: lambda inputs, grad: [(inputs[0], inputs[1].T)],
        BACKWARD: lambda inputs, grad: [(grad, inputs[1]), (grad.T, inputs[0])],
    }
    directions = {FORWARD: {}, BACKWARD: goals}
    return _layer(
        "linear", name, operations.linear(name), size, dtype, directions, products=products, compiled=compiled
    )


def _block(op: str, kind: str, make: Callable[..., Pair]) -> Case:
    """A block of two layers."""

    def backward(inputs: Sequence[Tensor], grad: Tensor) -> list[tuple[Tensor, Tensor]]:
        x, up, down = inputs
        hidden, pre = (grad.new_empty(x.shape[0], columns).normal_() for columns in (down.shape[1], up.shape[0]))
        return [(grad, down), (grad.T, hidden), (pre, up), (pre.T, x)]

    return _layer(
        op,
        kind,
        make(kind),
        (8192, 4096, 14336),
        "bfloat16",
        {BACKWARD: {"eager": 0.97}, BOTH: {"eager": 1.0, "compile": 1.0}},
        variants={"epigrad_recompute": make(kind, "recompute")[0]},
        products={BACKWARD: backward},
        memory=True,
    )


def _gated_linear(kind: str) -> Case:
    def backward(inputs: Sequence[Tensor], grad: Tensor) -> list[tuple[Tensor, Tensor]]:
        x, value, gate = inputs
        return [(grad, value), (grad, gate), (grad.T, x), (grad.T, x)]

    return _layer(
        "gated_linear",
        kind,
        operations.gated_linear(kind),
        (8192, 4096, 14336),
        "bfloat16",
        {FORWARD: {}, BACKWARD: {"eager": 0.97}, BOTH: _EVEN},
        variants={"epigrad_recompute": operations.gated_linear(kind, "recompute")[0]},
        products={
            FORWARD: lambda inputs, grad: [(inputs[0], inputs[1].T), (inputs[0], inputs[2].T)],
            BACKWARD: backward,
        },
        memory=True,
    )


def _accumulated(dtype: str) -> Case:
    """A weight gradient that is added to one in float32."""
    m, k, n = 8192, 4096, 14336
    ours, eager = operations.accumulated_weight_gradient()
    return Case(
        "weight gradient",
        "added to float32",
        f"{m}x{k}x{n}",
        dtype,
        ((m, n), (m, k)),
        eager,
        {FORWARD: {"eager": 0.90, "share": 0.96}},
        ours,
        products={FORWARD: lambda inputs, grad: [(inputs[0].T, inputs[1])]},
        compiled=False,
    )


def _host_bound() -> list[Case]:
    """So small that the host's part is all there is."""
    size, goals, layer = (32, 64, 64), {BOTH: {"eager": 0.7}}, operations.linear("gelu")
    return [_layer("linear", "gelu", layer, size, dtype, goals, clock="wall") for dtype in ("float32", "bfloat16")]


def _graphs() -> list[Case]:
    """In a CUDA graph, where the host has no part."""
    made = (
        ("linear", "gelu", operations.linear),
        ("mlp", "gelu_tanh", operations.mlp),
        ("gated_mlp", "swiglu", operations.gated_mlp),
    )
    size = (2048, 768, 3072)
    return [_layer(op, kind, make(kind), size, "bfloat16", {BOTH: _EVEN}, clock="graph") for op, kind, make in made]


def _told(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def traffic(case: Case, direction: str, inputs: Sequence[Tensor], out: Tensor) -> int:
    """Bytes that have to be read and written."""
    if direction == FORWARD:
        return out.nbytes + sum(x.nbytes for x in inputs)
    read = out.nbytes + sum(inputs[index].nbytes for index in case.reads)
    return read + sum(inputs[index].nbytes for index in case.gradients)


def sets_needed(inputs: Sequence[Tensor], beyond: int = 180 << 20, most: int = 16) -> int:
    """How many sets of inputs are taken in turns, so that none is still in a cache: well beyond any
    GPU's."""
    return max(2, min(most, math.ceil(beyond / max(1, sum(x.nbytes for x in inputs)))))
