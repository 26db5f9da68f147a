"""Each operation: its sizes, the shapes of its tensors, and what its results should be.

Accumulators are float32 (float64 for float64). A preactivation, a hidden layer, an expert's output
and the gradient of a preactivation may be rounded to the tensors' dtype once, and so may the first
part of a gradient that is a sum of two products. Nothing else is, but on CUDA a product before its
bias, and with it before its activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from epigrad._check import formulas
from epigrad._check.bounds import Bounded, chosen, product
from epigrad.kinds import Activation, Gated

if TYPE_CHECKING:
    from epigrad._check.problem import Problem

Shape = tuple[int, ...]
Shapes = dict[str, Shape | None]
Operands = Mapping[str, Bounded | None]
Expected = tuple[Bounded | None, ...]
FROM_OUTPUT = ("relu", "sigmoid", "tanh")


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


def _act(pre: Bounded, problem: Problem) -> Bounded:
    kind = problem.kind_object
    assert isinstance(kind, Activation)
    return pre.through(formulas.activation(kind))


def _slope(pre: Bounded, problem: Problem) -> Bounded:
    """The slope at what is kept: the preactivation, or for some kinds the output."""
    kind = problem.kind_object
    assert isinstance(kind, Activation)
    formula = formulas.activation(kind)
    slope = pre.slope(formula)
    if kind.name in FROM_OUTPUT[1:] and problem.save == "auto":
        slope = slope.plus(2 * pre.through(formula).stored().error)
    return slope


def _gate(value: Bounded, gate: Bounded, problem: Problem) -> Bounded:
    kind = problem.kind_object
    assert isinstance(kind, Gated)
    psi, phi = formulas.gated(kind)
    return value.through(psi) * gate.through(phi)


def _gate_gradients(grad: Bounded, value: Bounded, gate: Bounded, problem: Problem) -> tuple[Bounded, Bounded]:
    kind = problem.kind_object
    assert isinstance(kind, Gated)
    psi, phi = formulas.gated(kind)
    return product(grad, gate.through(phi), value.slope(psi)), product(grad, value.through(psi), gate.slope(phi))


def _halves(both: Bounded, dim: int, gate: str) -> tuple[Bounded, Bounded]:
    """The values and the gates."""
    half = both.value.shape[dim] // 2
    if gate in ("odd", "even"):
        turned = both.map(lambda x: x.movedim(dim, -1))
        first, second = turned.map(lambda x: x[..., ::2]), turned.map(lambda x: x[..., 1::2])
        first, second = (half.map(lambda x: x.movedim(-1, dim)) for half in (first, second))
    else:
        first, second = both.map(lambda x: x.narrow(dim, 0, half)), both.map(lambda x: x.narrow(dim, half, half))
    return (first, second) if gate in ("second", "odd") else (second, first)


def _joined(value: Bounded, gate: Bounded, dim: int, place: str) -> Bounded:
    first, second = (value, gate) if place in ("second", "odd") else (gate, value)

    def join(one: Tensor, other: Tensor) -> Tensor:
        if place in ("second", "first"):
            return torch.cat([one, other], dim)
        return torch.stack([one.movedim(dim, -1), other.movedim(dim, -1)], -1).flatten(-2).movedim(-1, dim)

    return replace(value, value=join(first.value, second.value), error=join(first.error, second.error))


def _dense(x: Bounded, weight: Bounded, bias: Bounded | None) -> Bounded:
    product = (x @ weight.turned).as_product()
    return product if bias is None else product + bias


def _dense_gradients(
    grad_pre: Bounded, x: Bounded, weight: Bounded, bias: Bounded | None
) -> tuple[Bounded, Bounded, Bounded | None]:
    """Of input, weight and bias."""
    rounded = grad_pre.stored()
    flat, inputs = (of.map(lambda t: t.reshape(t.shape[:-1].numel(), t.shape[-1])) for of in (rounded, x))
    summed = None if bias is None else grad_pre.sum_to(bias.value.shape)
    return rounded @ weight, flat.turned @ inputs, summed


# Products.

FORMS: tuple[Callable[[int, int, int, int], tuple[Shape, Shape]], ...] = (
    lambda b, m, n, k: ((m, k), (k, n)),
    lambda b, m, n, k: ((k,), (k, n)),
    lambda b, m, n, k: ((m, k), (k,)),
    lambda b, m, n, k: ((k,), (k,)),
    lambda b, m, n, k: ((b, m, k), (b, k, n)),
    lambda b, m, n, k: ((b, m, k), (k, n)),
    lambda b, m, n, k: ((m, k), (b, k, n)),
    lambda b, m, n, k: ((b, 1, m, k), (2, k, n)),
)
"""Shapes of a and b, by batch, rows, columns and depth."""
BATCH_OF_B = (6, 7)
"""Those in which b has a batch that a has not."""


def _matmul_shapes(problem: Problem) -> Shapes:
    form, *sizes = problem.sizes
    a, b = FORMS[form % len(FORMS)](*sizes)
    bias = b[-1:] if len(b) > 1 else ()
    return {"a": a, "b": b, "bias": bias if problem.bias else None}


def _matmul(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    a, b, bias = _present(given, "a"), _present(given, "b"), given["bias"]
    rows = a.map(lambda t: t.unsqueeze(0) if t.dim() == 1 else t)
    columns = b.map(lambda t: t.unsqueeze(1) if t.dim() == 1 else t)
    product = (rows @ columns).as_product()
    pre = product if bias is None else product + bias
    out = _act(pre.as_product(), problem).map(lambda t: t.reshape(grad.value.shape))
    shape = pre.value.shape
    grad_pre = grad.map(lambda t: t.reshape(shape)) * _slope(pre.stored(), problem)
    rounded = grad_pre.stored()
    of_a = (rounded @ columns.turned).sum_to(rows.value.shape).map(lambda t: t.reshape(a.value.shape))
    of_b = (rows.turned @ rounded).sum_to(columns.value.shape).map(lambda t: t.reshape(b.value.shape))
    return out, of_a, of_b, None if bias is None else grad_pre.sum_to(bias.value.shape)


def _present(given: Operands, name: str) -> Bounded:
    operand = given[name]
    assert operand is not None
    return operand


def _leading(problem: Problem) -> Shape:
    """The dimensions before the features: none, rows, or two."""
    lead, rows = problem.sizes[:2]
    return ((), (rows,), (2, rows), (rows, 1))[lead % 4]


def _linear_shapes(problem: Problem) -> Shapes:
    features, columns = problem.sizes[2:]
    return {
        "input": (*_leading(problem), features),
        "weight": (columns, features),
        "bias": (columns,) if problem.bias else None,
    }


def _linear(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight, bias = _present(given, "input"), _present(given, "weight"), given["bias"]
    pre = _dense(x, weight, bias)
    return _act(pre.as_product(), problem), *_dense_gradients(grad * _slope(pre.stored(), problem), x, weight, bias)


def _gated_linear_shapes(problem: Problem) -> Shapes:
    features, hidden = problem.sizes[2:]
    weight, bias = (hidden, features), (hidden,) if problem.bias else None
    return {
        "input": (*_leading(problem), features),
        "weight_value": weight,
        "weight_gate": weight,
        "bias_value": bias,
        "bias_gate": bias,
    }


def _gated_linear(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x = _present(given, "input")
    layers = [(_present(given, f"weight_{which}"), given[f"bias_{which}"]) for which in ("value", "gate")]
    value, gate = (_dense(x, *layer).stored() for layer in layers)
    grads = _gate_gradients(grad, value, gate, problem)
    of_value, of_gate = (_dense_gradients(one, x, *layer) for one, layer in zip(grads, layers, strict=True))
    return (
        _gate(value, gate, problem),
        of_value[0].stored() + of_gate[0],
        *(of_value[1], of_gate[1]),
        *(of_value[2], of_gate[2]),
    )


def _block_shapes(problem: Problem, names: tuple[str, ...]) -> Shapes:
    features, hidden, columns = problem.sizes[2:]
    inner = hidden * (1 + (problem.op == "gated_mlp"))
    shapes = ((inner, features), (inner,), (columns, hidden), (columns,))
    layers = {
        name: shape if problem.bias or "weight" in name else None for name, shape in zip(names, shapes, strict=True)
    }
    return {"input": (*_leading(problem), features), **layers}


def _hidden(problem: Problem, pre: Bounded) -> Bounded:
    if problem.is_gated:
        return _gate(*_halves(pre, -1, problem.gate), problem)
    return _act(pre, problem)


def _hidden_gradient(problem: Problem, grad: Bounded, pre: Bounded) -> Bounded:
    if problem.is_gated:
        return _joined(*_gate_gradients(grad, *_halves(pre, -1, problem.gate), problem), -1, problem.gate)
    return grad * _slope(pre, problem)


def _block(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight1, bias1, weight2, bias2 = given.values()
    assert x is not None and weight1 is not None and weight2 is not None
    pre = _dense(x, weight1, bias1).stored()
    hidden = _hidden(problem, pre).stored()
    grad_hidden, *second = _dense_gradients(grad, hidden, weight2, bias2)
    grad_pre = _hidden_gradient(problem, grad_hidden.stored(), pre)
    return _dense(hidden, weight2, bias2), *_dense_gradients(grad_pre, x, weight1, bias1), *second


# Groups of rows.


def _grouped_shapes(problem: Problem) -> Shapes:
    rows, features, columns, groups = problem.sizes
    return {
        "input": (rows, features),
        "weight": (groups, columns, features),
        "bias": (groups, columns) if problem.bias else None,
    }


def _offsets(problem: Problem) -> tuple[str, Tensor]:
    rows, _, _, groups = problem.sizes
    ends = torch.randint(0, rows + 1, (groups,), generator=problem.generator("offsets")).sort().values
    return "offsets", ends if problem.seed % 2 else ends.int()


def _grouped(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight, bias = _present(given, "input"), _present(given, "weight"), given["bias"]
    totals = [_zeros(grad), _zeros(x), _zeros(weight), None if bias is None else _zeros(bias)]
    first = 0
    for group, end in enumerate(_offsets(problem)[1].tolist()):
        rows, first = slice(first, end), end
        layer = _at(weight, group), None if bias is None else _at(bias, group)
        pre = _dense(_at(x, rows), *layer)
        grad_pre = _at(grad, rows) * _slope(pre.stored(), problem)
        found = (_act(pre.as_product(), problem), *_dense_gradients(grad_pre, _at(x, rows), *layer))
        for total, place, part in zip(totals, (rows, rows, group, group), found, strict=True):
            _put(total, place, part)
    return tuple(totals)


def _experts_shapes(problem: Problem) -> Shapes:
    tokens, features, hidden, experts, each = problem.sizes
    inner = hidden * (1 + problem.is_gated)
    return {
        "input": (tokens, features),
        "scale": (tokens, each),
        "weight_in": (experts, inner, features),
        "bias_in": (experts, inner) if problem.bias else None,
        "weight_out": (experts, features, hidden),
        "bias_out": (experts, features) if problem.bias else None,
    }


def _index(problem: Problem) -> tuple[str, Tensor]:
    tokens, _, _, experts, each = problem.sizes
    return "index", torch.randint(-1, experts + 1, (tokens, each), generator=problem.generator("index"))


def _experts(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, scale, weight_in, bias_in, weight_out, bias_out = given.values()
    assert x is not None and scale is not None and weight_in is not None and weight_out is not None
    totals = [None if one is None else _zeros(one) for one in (grad, *given.values())]
    index = _index(problem)[1]
    for expert in range(len(weight_in.value)):
        tokens, places = torch.where(index == expert)
        first = _at(weight_in, expert), None if bias_in is None else _at(bias_in, expert)
        second = _at(weight_out, expert), None if bias_out is None else _at(bias_out, expert)
        rows, grads = _at(x, tokens), _at(grad, tokens)
        scales = _at(scale, (tokens, places)).map(lambda t: t.unsqueeze(1))
        pre = _dense(rows, *first).stored()
        hidden = _hidden(problem, pre).stored()
        out = _dense(hidden, *second).stored()
        grad_hidden, _, of_bias = _dense_gradients((grads * scales).stored(), hidden, *second)
        unscaled = (grads @ second[0]).stored()
        grad_hidden = grad_hidden.stored().either((unscaled * scales).stored())
        of_second = grads.turned @ (hidden * scales).stored(), of_bias
        grad_pre = _hidden_gradient(problem, grad_hidden, pre)
        grad_x, *of_first = _dense_gradients(grad_pre, rows, *first)
        grad_scale = (grads * out).sum_to((len(tokens), 1)).either(_by_hidden(grads, unscaled, hidden, second[1]))
        grad_scale = grad_scale.map(lambda t: t.squeeze(1))
        found = (scales * out, grad_x.stored(), grad_scale, *of_first, *of_second)
        where = (tokens, tokens, (tokens, places), *(expert,) * 4)
        for total, place, part in zip(totals, where, found, strict=True):
            _put(total, place, part)
    return tuple(totals)


def _by_hidden(grads: Bounded, unscaled: Bounded, hidden: Bounded, bias: Bounded | None) -> Bounded:
    """The gradients of scales as sums over hidden features."""
    shape = len(grads.value), 1
    by_hidden = (unscaled * hidden).sum_to(shape)
    return by_hidden if bias is None else by_hidden + (grads * bias).sum_to(shape)


def _zeros(like: Bounded) -> Bounded:
    return like.map(torch.zeros_like)


def _at(of: Bounded, place: Any) -> Bounded:
    return of.map(lambda t: t[place])


def _put(total: Bounded | None, place: Any, part: Bounded | None) -> None:
    """Add in place; a place may occur more than once. A slot's part is rounded at most eight times
    when a token's are added up."""
    if total is None or part is None:
        return
    if isinstance(place, slice | int):
        total.value[place] += part.value
        total.error[place] += part.error
        return
    place = place if isinstance(place, tuple) else (place,)
    total.value.index_put_(place, part.value, accumulate=True)
    total.error.index_put_(place, part.error + 8 * part.unit * part.size, accumulate=True)


# Elementwise.


def _activation(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x = _present(given, "input")
    kind = problem.kind_object
    assert isinstance(kind, Activation)
    return _act(x, problem), grad * x.slope(formulas.activation(kind))


SPLITS: tuple[tuple[str, ...], ...] = (
    ("outer", "split", "inner"),
    ("split",),
    ("outer", "split"),
    ("split", "inner"),
    ("split", "outer", "inner"),
    ("outer", "inner", "split"),
    ("outer", "two", "split", "inner"),
    ("two", "one", "outer", "inner", "split"),
)
"""Dimensions of gated_activation's input, of which one is split."""


def _split(problem: Problem) -> tuple[Shape, int]:
    """The output's shape, and the dimension that is split."""
    form, outer, half, inner = problem.sizes
    names = SPLITS[form % len(SPLITS)]
    sizes = {"outer": outer, "split": half, "inner": inner, "one": 1, "two": 2}
    return tuple([sizes[name] for name in names]), names.index("split")


def _gated_shapes(problem: Problem) -> Shapes:
    shape, dim = _split(problem)
    return {"input": (*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])}


def _gated_dim(problem: Problem) -> int:
    """The dimension that is split, counted from either end."""
    shape, dim = _split(problem)
    return dim - len(shape) * (problem.seed % 2)


def _gated_activation(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    dim = _split(problem)[1]
    value, gate = _halves(_present(given, "input"), dim, problem.gate)
    grads = _gate_gradients(grad, value, gate, problem)
    return _gate(value, gate, problem), _joined(*grads, dim, problem.gate)


def _gated_product(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    value, gate = _present(given, "value"), _present(given, "gate")
    return _gate(value, gate, problem), *_gate_gradients(grad, value, gate, problem)


def _lerp_shapes(problem: Problem) -> Shapes:
    rows, columns, mask = problem.sizes
    full = rows, columns

    def shape(bits: int) -> Shape:
        return tuple(1 if bits >> dim & 1 else size for dim, size in enumerate(full))[bits >> 2 & 1 :]

    weight = None if mask >> 9 & 1 else shape(mask >> 6)
    return {"start": shape(mask), "end": shape(mask >> 3), "weight": weight}


def _lerp(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    start, end, weight = _present(given, "start"), _present(given, "end"), given["weight"]
    by = _number(LERP_WEIGHT, grad) if weight is None else weight
    one = replace(by, value=torch.ones_like(by.value), error=torch.zeros_like(by.value))
    from_start, from_end = start + by * (end - start), end + (by - one) * (end - start)
    is_near_start = by.value.abs() < 0.5
    return (
        chosen(is_near_start, from_start, from_end),
        (grad * (one - by)).sum_to(start.value.shape),
        (grad * by).sum_to(end.value.shape),
        None if weight is None else (grad * (end - start)).sum_to(weight.value.shape),
    )


LERP_WEIGHT = 0.3


def _number(value: float, like: Bounded) -> Bounded:
    """A Python number, which kernels get in the accumulator's precision."""
    number = torch.tensor(value, dtype=torch.float64)
    return replace(like, value=number, error=number.abs() * like.unit)


def _learnable_shape(problem: Problem) -> Shape:
    outer, channels, inner = problem.sizes
    return (outer, channels, inner) if inner else (outer, channels)


def _prelu_shapes(problem: Problem) -> Shapes:
    return {"input": _learnable_shape(problem), "weight": (problem.sizes[1],) if problem.seed % 2 else (1,)}


def _prelu(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, weight = _present(given, "input"), _present(given, "weight")
    above = x.value > 0
    wide = weight.map(lambda t: t.reshape(-1, *(1,) * (x.value.dim() - 2)))
    of_weight = chosen(above, _zeros(x), grad * x)
    of_weight = of_weight.sum_to(wide.value.shape).map(lambda t: t.reshape(weight.value.shape))
    return chosen(above, x, wide * x), chosen(above, grad, grad * wide), of_weight


def _bent(x: Tensor) -> Tensor:
    """expm1(x) - x, by its series where that cancels."""
    near = torch.where(x.abs() < 0.5, x, 0.0)
    series = torch.ones_like(x)
    for term in range(20, 2, -1):
        series = 1 + near * series / term
    return torch.where(x.abs() < 0.5, near * near / 2 * series, x.expm1() - x)


def _xielu(problem: Problem, given: Operands, grad: Bounded) -> Expected:
    x, alpha_p, alpha_n = _present(given, "input"), _present(given, "alpha_p"), _present(given, "alpha_n")
    above = x.value > 0
    below = chosen(above, _zeros(x), x)
    beta = _number(0.5, x)

    def plus(t: Tensor) -> Tensor:
        return formulas.softplus(t, 1.0, 20.0)

    a_p, a_n = alpha_p.through(plus), beta + alpha_n.through(plus)
    bend = below.through(_bent)
    return (
        chosen(above, product(a_p, x, x), a_n * bend) + beta * x,
        grad * (chosen(above, a_p * x + a_p * x, a_n * below.slope(_bent)) + beta),
        chosen(above, product(grad, x, x), _zeros(x)).sum_to((1,)) * alpha_p.slope(plus),
        chosen(above, _zeros(x), grad * bend).sum_to((1,)) * alpha_n.slope(plus),
    )


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
        _matmul_shapes,
        _of_product,
        _matmul,
        _activation_option,
    ),
    "linear": Operation("activation", _LAYER, _linear_shapes, _of_layer, _linear, _activation_option),
    "gated_linear": Operation("gated", _LAYER, _gated_linear_shapes, _of_layer, _gated_linear, _kind),
    "mlp": Operation(
        "activation",
        (*_LAYER[:3], "hidden", "columns"),
        lambda problem: _block_shapes(problem, ("weight1", "bias1", "weight2", "bias2")),
        _of_layer,
        _block,
        _activation_option,
    ),
    "gated_mlp": Operation(
        "gated",
        (*_LAYER[:3], "hidden", "columns"),
        lambda problem: _block_shapes(problem, ("weight_in", "bias_in", "weight_out", "bias_out")),
        _of_layer,
        _block,
        _kind_and_gate,
    ),
    "grouped_linear": Operation(
        "activation",
        ("rows", "features", "columns", "groups"),
        _grouped_shapes,
        lambda problem, shapes: (problem.sizes[0], problem.sizes[2]),
        _grouped,
        _activation_option,
        _offsets,
    ),
    "experts": Operation(
        "either",
        ("tokens", "features", "hidden", "experts", "each"),
        _experts_shapes,
        _of_input,
        _experts,
        _kind_and_gate,
        _index,
    ),
    "activation": Operation(
        "activation",
        ("outer", "channels", "inner"),
        lambda problem: {"input": _learnable_shape(problem)},
        _of_input,
        _activation,
        _activation_option,
        products=False,
    ),
    "gated_activation": Operation(
        "gated",
        ("split", "outer", "half", "inner"),
        _gated_shapes,
        lambda problem, shapes: _split(problem)[0],
        _gated_activation,
        lambda problem: {**_kind_and_gate(problem), "dim": _gated_dim(problem)},
        products=False,
    ),
    "gated_product": Operation(
        "gated",
        ("outer", "channels", "inner"),
        lambda problem: dict.fromkeys(("value", "gate"), _learnable_shape(problem)),
        _of_input,
        _gated_product,
        _kind,
        products=False,
    ),
    "lerp": Operation(
        "",
        ("rows", "columns", "mask"),
        _lerp_shapes,
        _of_broadcast,
        _lerp,
        products=False,
    ),
    "prelu": Operation("", ("outer", "channels", "inner"), _prelu_shapes, _of_input, _prelu, products=False),
    "xielu": Operation(
        "",
        ("outer", "channels", "inner"),
        lambda problem: {"input": _learnable_shape(problem), "alpha_p": (1,), "alpha_n": (1,)},
        _of_input,
        _xielu,
        products=False,
    ),
}
