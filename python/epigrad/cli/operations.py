"""The operations of `bench`: each by epigrad and composed of PyTorch's own, over sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from epigrad import functional
from epigrad._core import tables
from epigrad.cli.contest import Function, Pair, contest, paired
from epigrad.cli.report import Row, seconds_told, told_name

FORWARD, BOTH = "forward", "forward and backward"
DTYPES = tuple(tables.DTYPES)
# A row is skipped if one call of PyTorch's takes longer than this, on a CPU.
LIMIT = 0.5

Shapes = tuple[tuple[int, ...], ...]


# --- each by epigrad and by PyTorch ---------------------------------------------------------------


def swiglu(x: Tensor) -> Tensor:
    """PyTorch's, of one tensor, whose second half is the gate."""
    value, gate = x.chunk(2, -1)
    return value * torch_functional.silu(gate)


def linear(name: str, eager: Function) -> Pair:
    """A layer of input, weight and bias; `eager` is PyTorch's activation."""
    return (
        lambda x, weight, bias: functional.linear(x, weight, bias, name),
        lambda x, weight, bias: eager(torch_functional.linear(x, weight, bias)),
    )


def block(function: Callable[..., Tensor], kind: str, eager: Function) -> Pair:
    """A block of two layers without biases, which is a function of epigrad's."""
    return (
        lambda x, up, down: function(x, up, None, down, None, kind),
        lambda x, up, down: torch_functional.linear(eager(torch_functional.linear(x, up)), down),
    )


def _experts(x: Tensor, scale: Tensor, w_in: Tensor, w_out: Tensor, index: Tensor) -> Tensor:
    """A mixture of experts without biases."""
    return functional.experts(x, index, scale, w_in, None, w_out, None, "swiglu")


def _grouped(x: Tensor, scale: Tensor, w_in: Tensor, w_out: Tensor, index: Tensor) -> Tensor:
    """The same by PyTorch: tokens sorted by experts, multiplied by its grouped_mm."""
    order = index.flatten().argsort(stable=True)
    counts = (index.flatten()[:, None] == torch.arange(len(w_in), device=x.device)).sum(0)
    ends, token = counts.cumsum(0, dtype=torch.int32), order // index.shape[1]
    hidden = swiglu(torch_functional.grouped_mm(x[token], w_in.mT, offs=ends))
    out = torch_functional.grouped_mm(hidden, w_out.mT, offs=ends) * scale.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, token, out)


def rows_of(n: int) -> tuple[int, int]:
    """A shape of `n` elements, a power of two."""
    return max(1, n // 1024), min(n, 1024)


Sizes = Mapping[str, tuple[tuple[int, ...], ...]]
LAYERS: Sizes = {
    "cpu": ((1, 64, 256), (64, 256, 1024), (256, 768, 3072)),
    "cuda": ((64, 768, 3072), (2048, 768, 3072), (8192, 4096, 14336)),
}
ELEMENTS: Sizes = {"cpu": ((1 << 10,), (1 << 18,), (1 << 22,)), "cuda": ((1 << 18,), (1 << 22,), (1 << 27,))}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation over sizes.

    Attributes:
        name: what is printed.
        kind: its activation or gated kind.
        pair: epigrad's function and PyTorch's.
        shapes: from a size, the shapes of the inputs, all of which get a gradient. A size is rows,
            inputs and outputs of a layer, or hidden features of a block; or elements.
        sizes: of `bench`, by the kind of device.
    """

    name: str
    kind: str
    pair: Pair
    shapes: Callable[..., Shapes]
    sizes: Sizes = field(default_factory=dict)


_gelu_tanh = partial(torch_functional.gelu, approximate="tanh")
_gated_activation = partial(functional.gated_activation, kind="swiglu")
OPERATIONS = (
    Operation("linear", "gelu", linear("gelu", torch_functional.gelu), lambda m, k, n: ((m, k), (n, k), (n,)), LAYERS),
    Operation(
        "mlp",
        "gelu_tanh",
        block(functional.mlp, "gelu_tanh", _gelu_tanh),
        lambda m, k, n: ((m, k), (n, k), (k, n)),
        LAYERS,
    ),
    Operation(
        "gated_mlp",
        "swiglu",
        block(functional.gated_mlp, "swiglu", swiglu),
        lambda m, k, n: ((m, k), (2 * n, k), (k, n)),
        LAYERS,
    ),
    Operation("gated_activation", "swiglu", (_gated_activation, swiglu), lambda n: (rows_of(n),), ELEMENTS),
)


# --- what is timed --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """An operation of one size, on some threads of a CPU, or on a GPU."""

    operation: Operation
    size: tuple[int, ...]
    dtype: str
    direction: str
    threads: int = 0

    @property
    def fields(self) -> Row:
        """What its row begins with."""
        names = {"case": self.operation.name, "kind": self.operation.kind, "size": list(self.size)}
        threads = {"threads": self.threads} if self.threads else {}
        return {**names, "dtype": self.dtype, "direction": self.direction, **threads}

    @property
    def label(self) -> str:
        """What ``--rows`` searches."""
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return " ".join(map(told_name, [*self.fields.values()][:5])) + threads

    def operands(self, generator: torch.Generator) -> list[Tensor]:
        """The inputs. A layer's weights are such that preactivations have the standard deviation 1,
        where activations are bent."""
        tensors = []
        for place, shape in enumerate(self.operation.shapes(*self.size)):
            tensor = torch.randn(shape, generator=generator, device=generator.device)
            if place > 0 and len(self.size) == 3 and len(shape) == 2:
                tensor /= shape[-1] ** 0.5
            tensors.append(tensor.to(tables.DTYPES[self.dtype]))
        return tensors

    def measure(
        self, device: torch.device, compiled: bool, seconds: float, limit: float = LIMIT, wanted: int = 0
    ) -> Row:
        """Its row: timings by name, and ratios; or why it was skipped."""
        if self.threads:
            torch.set_num_threads(self.threads)
        tensors = self.operands(torch.Generator(device).manual_seed(0))
        begin = time.perf_counter()
        with torch.no_grad():
            self.operation.pair[1](*tensors)
        if device.type == "cpu" and (took := time.perf_counter() - begin) > limit:
            return {"skipped": f"PyTorch takes {seconds_told(took)}", "took": took}
        gradients = [x.requires_grad_() for x in tensors] if self.direction == BOTH else []
        return contest(paired(self.operation.pair, tensors, gradients, compiled), device, seconds, wanted)


def measure_experts(
    sizes: tuple[int, int, int, int, int], dtype: str, device: torch.device, compiled: bool, seconds: float
) -> Row:
    """A mixture's row: experts, features, hidden features, tokens and a token's experts, which are
    drawn without repetition, all alike."""
    count, features, hidden, tokens, each = sizes
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        tensor: Tensor = torch.randn(shape, generator=generator, device=device) / shape[-1] ** 0.5
        return tensor.to(tables.DTYPES[dtype]).requires_grad_()

    index = torch.rand(tokens, count, generator=generator, device=device).topk(each).indices
    shapes = ((tokens, features), (tokens, each), (count, 2 * hidden, features), (count, features, hidden))
    tensors = [drawn(*shape) for shape in shapes]
    return contest(paired((_experts, _grouped), [*tensors, index], tensors, compiled), device, seconds)
