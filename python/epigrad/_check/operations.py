"""Each operation: its sizes, the shapes of its tensors, and what its results should be.

Accumulators are float32 (float64 for float64). A preactivation, a hidden layer, an expert's output
and the gradient of a preactivation may be rounded to the tensors' dtype once, and so may the first
part of a gradient that is a sum of two products. Nothing else is, but on CUDA a product before its
bias, and with it before its activation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from epigrad._check import elementwise, products
from epigrad._check.bounds import Bounded
from epigrad._check.parts import Expected, Operands, Shape, Shapes

if TYPE_CHECKING:
    from epigrad._check.problem import Problem


@dataclass(frozen=True)
class Operation:
    """What `check` knows of an operation.

    Attributes:
        takes: ``"activation"``, ``"gated"``, ``"either"`` or nothing.
        sizes: the names of its sizes.
        shapes: of the tensors that have gradients, by name in the order of the arguments; None for
            a bias that is left out.
        out: the output's shape, given those.
        expected: output and gradients, given those tensors and the output's gradient.
        options: further arguments, by keyword.
        integers: offsets or index, whose name is that of an argument.
        products: whether it multiplies matrices.
    """

    takes: str
    sizes: tuple[str, ...]
    shapes: Callable[[Problem], Shapes]
    out: Callable[[Problem, Shapes], Shape]
    expected: Callable[[Problem, Operands, Bounded], Expected]
    options: Callable[[Problem], dict[str, Any]] = lambda problem: {}
    integers: Callable[[Problem], tuple[str, Tensor]] | None = None
    products: bool = True


_LAYER = ("lead", "rows", "features", "columns")


def _kind(problem: Problem) -> dict[str, Any]:
    return {"kind": problem.kind_object}


def _activation_option(problem: Problem) -> dict[str, Any]:
    return {"activation": problem.kind_object}


def _kind_and_gate(problem: Problem) -> dict[str, Any]:
    return {"kind": problem.kind_object, **({"gate": problem.gate} if problem.is_gated else {})}


def _of_input(problem: Problem, shapes: Shapes) -> Shape:
    return next(shape for shape in shapes.values() if shape is not None)


def _of_layer(problem: Problem, shapes: Shapes) -> Shape:
    return (*_of_input(problem, shapes)[:-1], problem.sizes[-1])


def _of_broadcast(problem: Problem, shapes: Shapes) -> Shape:
    total: Any = sum(torch.empty(shape, device="meta") for shape in shapes.values() if shape is not None)
    return tuple(total.shape)


def _of_product(problem: Problem, shapes: Shapes) -> Shape:
    a, b = (torch.empty(shapes[name] or (), device="meta") for name in ("a", "b"))
    return tuple(torch.matmul(a, b).shape)


OPERATIONS: dict[str, Operation] = {
    "matmul_bias_activation": Operation(
        "activation",
        ("form", "batch", "rows", "columns", "depth"),
        products.matmul_shapes,
        _of_product,
        products.matmul,
        _activation_option,
    ),
    "linear": Operation("activation", _LAYER, products.linear_shapes, _of_layer, products.linear, _activation_option),
    "gated_linear": Operation("gated", _LAYER, products.gated_linear_shapes, _of_layer, products.gated_linear, _kind),
    "mlp": Operation(
        "activation",
        (*_LAYER[:3], "hidden", "columns"),
        lambda problem: products.block_shapes(problem, ("weight1", "bias1", "weight2", "bias2")),
        _of_layer,
        products.block,
        _activation_option,
    ),
    "gated_mlp": Operation(
        "gated",
        (*_LAYER[:3], "hidden", "columns"),
        lambda problem: products.block_shapes(problem, ("weight_in", "bias_in", "weight_out", "bias_out")),
        _of_layer,
        products.block,
        _kind_and_gate,
    ),
    "grouped_linear": Operation(
        "activation",
        ("rows", "features", "columns", "groups"),
        products.grouped_shapes,
        lambda problem, shapes: (problem.sizes[0], problem.sizes[2]),
        products.grouped,
        _activation_option,
        products.offsets,
    ),
    "experts": Operation(
        "either",
        ("tokens", "features", "hidden", "experts", "each"),
        products.experts_shapes,
        _of_input,
        products.experts,
        _kind_and_gate,
        products.index,
    ),
    "activation": Operation(
        "activation",
        ("outer", "channels", "inner"),
        lambda problem: {"input": elementwise.learnable_shape(problem)},
        _of_input,
        elementwise.activation,
        _activation_option,
        products=False,
    ),
    "gated_activation": Operation(
        "gated",
        ("split", "outer", "half", "inner"),
        elementwise.gated_shapes,
        lambda problem, shapes: elementwise.split(problem)[0],
        elementwise.gated_activation,
        lambda problem: {**_kind_and_gate(problem), "dim": elementwise.gated_dim(problem)},
        products=False,
    ),
    "gated_product": Operation(
        "gated",
        ("outer", "channels", "inner"),
        lambda problem: dict.fromkeys(("value", "gate"), elementwise.learnable_shape(problem)),
        _of_input,
        elementwise.gated_product,
        _kind,
        products=False,
    ),
    "lerp": Operation(
        "",
        ("rows", "columns", "mask"),
        elementwise.lerp_shapes,
        _of_broadcast,
        elementwise.lerp,
        products=False,
    ),
    "prelu": Operation(
        "", ("outer", "channels", "inner"), elementwise.prelu_shapes, _of_input, elementwise.prelu, products=False
    ),
    "xielu": Operation(
        "",
        ("outer", "channels", "inner"),
        lambda problem: {"input": elementwise.learnable_shape(problem), "alpha_p": (1,), "alpha_n": (1,)},
        _of_input,
        elementwise.xielu,
        products=False,
    ),
}
