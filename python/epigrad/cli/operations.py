"""The operations of `bench`: each by epigrad and composed of PyTorch's own, over sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from epigrad import functional
from epigrad._autograd import formulas
from epigrad._core import tables
from epigrad.cli.contest import Function, Pair, contest, paired
from epigrad.cli.report import Row, seconds_told, told_name
from epigrad.kinds import Activation, Gated

FORWARD, BOTH = "forward", "forward and backward"
DTYPES = tuple(tables.DTYPES)
# A row is skipped if one call of PyTorch's takes longer than this, on a CPU.
LIMIT = 0.5

Shapes = tuple[tuple[int, ...], ...]


# --- each by epigrad and by PyTorch ---------------------------------------------------------------


def eager_activation(name: str) -> Function:
    """PyTorch's own operator where it has one, else the formula."""
    if name == "gelu_tanh":
        return partial(torch_functional.gelu, approximate="tanh")
    own = getattr(torch_functional, name, None) or getattr(torch, name, None)
    return own if callable(own) else partial(formulas.composed, Activation(name))


def eager_product(kind: str) -> Function:
    """A gated kind of value and gate."""
    gated = Gated(kind)
    activation = tables.GATED_KINDS[gated.name].activation
    if not activation or gated != Gated(gated.name):
        return partial(formulas.gated_composed, gated)
    eager = eager_activation(activation)
    return lambda value, gate: value * eager(gate)


def eager_gated(kind: str) -> Function:
    """A gated kind of one tensor, whose second half is the gate."""
    eager = eager_product(kind)
    return torch_functional.glu if kind == "glu" else lambda x: eager(*x.chunk(2, -1))


def gated(kind: str) -> Pair:
    """A gated activation of one tensor."""
    return lambda x: functional.gated_activation(x, kind), eager_gated(kind)


def linear(name: str) -> Pair:
    """A layer of input, weight and bias."""
    eager = eager_activation(name)
    return (
        lambda x, weight, bias: functional.linear(x, weight, bias, name),
        lambda x, weight, bias: eager(torch_functional.linear(x, weight, bias)),
    )


def mlp(name: str, save: str = "auto") -> Pair:
    """A two-layer block without biases."""
    eager = eager_activation(name)
    return (
        lambda x, up, down: functional.mlp(x, up, None, down, None, name, save=save),
        lambda x, up, down: torch_functional.linear(eager(torch_functional.linear(x, up)), down),
    )


def gated_mlp(kind: str, save: str = "auto") -> Pair:
    """A gated two-layer block without biases."""
    eager = eager_gated(kind)
    return (
        lambda x, up, down: functional.gated_mlp(x, up, None, down, None, kind, save=save),
        lambda x, up, down: torch_functional.linear(eager(torch_functional.linear(x, up)), down),
    )


def experts(kind: str) -> Pair:
    """A mixture of experts without biases. PyTorch's sorts the tokens by experts and multiplies by
    its grouped_mm."""
    gate = eager_gated(kind)

    def ours(x: Tensor, scale: Tensor, w_in: Tensor, w_out: Tensor, index: Tensor) -> Tensor:
        return functional.experts(x, index, scale, w_in, None, w_out, None, kind)

    def eager(x: Tensor, scale: Tensor, w_in: Tensor, w_out: Tensor, index: Tensor) -> Tensor:
        order = index.flatten().argsort(stable=True)
        counts = (index.flatten()[:, None] == torch.arange(len(w_in), device=x.device)).sum(0)
        ends, token = counts.cumsum(0, dtype=torch.int32), order // index.shape[1]
        hidden = gate(torch_functional.grouped_mm(x[token], w_in.mT, offs=ends))
        out = torch_functional.grouped_mm(hidden, w_out.mT, offs=ends) * scale.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, token, out)

    return ours, eager


def rows_of(n: int) -> tuple[int, int]:
    """A shape of so many elements, a power of two."""
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
        make: from a kind, epigrad's function and PyTorch's.
        kind: what is measured unless another is asked for.
        shapes: from a size, the shapes of the inputs, all of which get a gradient. A size is rows,
            inputs and outputs of a layer, or hidden features of a block; or elements.
        sizes: of `bench`, by the kind of device.
    """

    name: str
    make: Callable[[str], Pair]
    kind: str
    shapes: Callable[..., Shapes]
    sizes: Sizes


OPERATIONS = (
    Operation("linear", linear, "gelu", lambda m, k, n: ((m, k), (n, k), (n,)), LAYERS),
    Operation("mlp", mlp, "gelu_tanh", lambda m, k, n: ((m, k), (n, k), (k, n)), LAYERS),
    Operation("gated_mlp", gated_mlp, "swiglu", lambda m, k, n: ((m, k), (2 * n, k), (k, n)), LAYERS),
    Operation("gated_activation", gated, "swiglu", lambda n: (rows_of(n),), ELEMENTS),
)


# --- what is timed --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """An operation of one size, on so many threads of a CPU, or on a GPU."""

    operation: Operation
    kind: str
    size: tuple[int, ...]
    dtype: str
    direction: str
    threads: int = 0

    @property
    def fields(self) -> Row:
        """What its row begins with."""
        names = {"case": self.operation.name, "kind": self.kind, "size": list(self.size)}
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
        functions = self.operation.make(self.kind)
        begin = time.perf_counter()
        with torch.no_grad():
            functions[1](*tensors)
        if device.type == "cpu" and (took := time.perf_counter() - begin) > limit:
            return {"skipped": f"PyTorch takes {seconds_told(took)}", "took": took}
        gradients = [x.requires_grad_() for x in tensors] if self.direction == BOTH else []
        return contest(paired(functions, tensors, gradients, compiled), device, seconds, wanted)


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
    return contest(paired(experts("swiglu"), [*tensors, index], tensors, compiled), device, seconds)
