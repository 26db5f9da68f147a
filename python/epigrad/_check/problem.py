"""A problem: an operation and its tensors. A seed or a text determines it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import zlib
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

import epigrad
from epigrad import errors
from epigrad._check.layouts import LAYOUTS, UNALIGNED, laid_out
from epigrad._check.operations import OPERATIONS, Operation
from epigrad._check.values import VALUES, with_special
from epigrad._core import tables
from epigrad.kinds import Activation, Gated

DTYPES = tuple(str(row["name"]) for row in tables.DTYPES)
WAYS = (*LAYOUTS, UNALIGNED)
"""To lay out a tensor."""
SAVES = ("auto", "preactivation", "recompute")
GATES = ("second", "first", "odd", "even")
ENTRIES = ("autograd", "dispatcher", "stateless", "c", "plan", "module")
ARRAY = "array"
"""One way more, of the webgpu backend."""
INTO = ("stateless", "c", "plan")
"""Those that write into given tensors."""
GRADS = ("fresh", "added", "float32", "float32_added")
EXTENTS = ("rows", "columns", "depth", "features", "hidden", "tokens", "outer", "channels", "half", "inner")
"""Sizes that may be large."""
WITHOUT_MODULE = ("matmul_bias_activation", "gated_linear", "grouped_linear", "gated_product")
SCALES = (1.0, 6.0, 40.0, 1e-3)
EXAMPLE = (1, 3, 5, 4, 2)
"""Sizes that make sense for every operation, which takes the first few."""


@dataclass(frozen=True)
class Problem:
    """One choice along every axis.

    Attributes:
        op: the operation.
        kind: an activation or a gated kind with its parameters, or nothing.
        dtype: of all tensors.
        sizes: of the operation's names.
        layouts: of the tensors in the order of the arguments, then of the output's gradient; they
            are taken in turns.
        scale: of what goes into the activation.
        bias: whether there are biases.
        gate: where the gate is.
        save: the `save` of the call.
        entry: how it is called: a function with autograd, the same as an operator of PyTorch's
            dispatcher, functions without a graph that write into given tensors, the C interface,
            plans, a module of epigrad.nn, or functions without a graph on arrays of an adapter.
        needs: flags of the gradients to compute, used in turns.
        seed: of the values.
        values: what they are, beside normal numbers.
        grads: how gradients of weights and biases come into given tensors: written or added, in the
            tensors' dtype or beside 16 bits in float32.
        wide_scale: whether experts' scales are float32 beside 16 bits.
    """

    op: str
    kind: str = ""
    dtype: str = "float32"
    sizes: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ("contiguous",)
    scale: float = 1.0
    bias: bool = True
    gate: str = "second"
    save: str = "auto"
    entry: str = "autograd"
    needs: tuple[bool, ...] = (True,)
    seed: int = 0
    values: str = "normal"
    grads: str = "fresh"
    wide_scale: bool = False

    def __str__(self) -> str:
        rest = [
            f"{field.name}={_text(getattr(self, field.name))}"
            for field in fields(self)
            if field.name != "op" and getattr(self, field.name) != field.default
        ]
        return " ".join([self.op, *rest])

    @classmethod
    def read(cls, text: str) -> Problem:
        """The problem of a text.

        Raises:
            InvalidProblemError: (a ``ValueError``) a text that says no problem.
        """
        op, *words = text.split() or [""]
        known = [field.name for field in fields(cls) if field.name != "op"]
        given: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name not in known:
                raise errors.InvalidProblemError(
                    f"check: problem: {word!r}, want NAME=VALUE, with a name out of {', '.join(known)}"
                )
            given[name] = _value(name, value)
        if op not in OPERATIONS:
            raise errors.InvalidProblemError(
                f"check: problem: operation {op!r}, want one of {', '.join(OPERATIONS)}, then NAME=VALUE words"
                f"{errors.proposal(op, OPERATIONS)}"
            )
        names = OPERATIONS[op].sizes
        sizes = given.get("sizes", ())
        if len(sizes) != len(names):
            raise errors.InvalidProblemError(
                f"check: problem: {op}: sizes={_text(sizes)}, want {'x'.join(name.upper() for name in names)}, such as "
                f"sizes={_text(EXAMPLE[: len(names)])}"
            )
        takes = OPERATIONS[op].takes
        if takes and "kind" not in given:
            default = inspect.signature(getattr(epigrad, op)).parameters[
                "activation" if takes == "activation" else "kind"
            ]
            given["kind"] = "" if default.default is default.empty else default.default
        problem = cls(op, **given)
        wanted: Any = {"activation": Activation, "gated": Gated, "either": (Activation, Gated), "": type(None)}[takes]
        if not isinstance(problem.kind_object, wanted):
            what = {"activation": "an activation", "gated": "a gated kind", "either": "an activation or a gated kind"}
            raise errors.InvalidProblemError(
                f"check: problem: {op}: kind={problem.kind}, want {what.get(takes, 'no kind')}"
            )
        entries = (*problem.entries, ARRAY) if OPERATIONS[op].integers is None else problem.entries
        if problem.entry not in entries:
            raise errors.InvalidProblemError(
                f"check: problem: {op}: entry={problem.entry}, want one of {', '.join(entries)}"
            )
        return problem

    @property
    def entries(self) -> tuple[str, ...]:
        """The ways to call this operation with these sizes."""
        return tuple([entry for entry in ENTRIES if entry != "module" or self.op not in WITHOUT_MODULE])

    def is_added(self, name: str) -> bool:
        """Whether the gradient of an operand is added to what its tensor holds."""
        return self.grads.endswith("added") and self._is_layer(name)

    def dtype_of(self, name: str) -> torch.dtype:
        """Of an operand."""
        is_wide = name == "scale" and self.wide_scale and self.torch_dtype.itemsize == 2
        return torch.float32 if is_wide else self.torch_dtype

    def dtype_of_gradient(self, name: str) -> torch.dtype:
        """Of the gradient to an operand."""
        is_wide = self.grads.startswith("float32") and self.torch_dtype.itemsize == 2 and self._is_layer(name)
        return torch.float32 if is_wide else self.dtype_of(name)

    def _is_layer(self, name: str) -> bool:
        """Whether an operand is a weight or a bias of a layer, and its gradient has a tensor."""
        return self.entry in INTO and self.operation.products and name not in ("input", "a", "scale")

    def held(self, name: str) -> Tensor:
        """What a tensor holds, to which a gradient is added."""
        values = torch.randn(self.shapes[name] or (), generator=self.generator(f"held {name}"), dtype=torch.float64)
        return values.to(self.dtype_of_gradient(name))

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.op]

    @functools.cached_property
    def kind_object(self) -> Activation | Gated | None:
        """The kind with its parameters."""
        return _kind(self.kind) if self.kind else None

    @property
    def is_gated(self) -> bool:
        return isinstance(self.kind_object, Gated)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def generator(self, what: str) -> torch.Generator:
        """Random numbers for one tensor, whatever the others are."""
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {what}".encode()))

    @property
    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """Of the tensors that have gradients."""
        return self.operation.shapes(self)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.operation.out(self, self.shapes)

    @property
    def row_dims(self) -> tuple[int, int] | None:
        """Which dimension of the first operand and of the output has rows that depend on no other,
        if there are rows."""
        if self.op in ("grouped_linear", "experts"):
            return 0, 0
        if self.op != "matmul_bias_activation":
            dim = (None, 0, 1, 0)[self.sizes[0] % 4] if self.operation.products else None
            return None if dim is None else (dim, dim)
        a, b = len(self.shapes["a"] or ()), len(self.shapes["b"] or ())
        return None if a == 1 else (a - 2, len(self.out_shape) - min(b, 2))

    def asked(self) -> tuple[bool, ...]:
        """For each of those tensors, whether its gradient is asked for."""
        return tuple(
            [
                shape is not None and self.needs[place % len(self.needs)]
                for place, shape in enumerate(self.shapes.values())
            ]
        )

    def tensors(self, device: str = "cpu") -> tuple[dict[str, Tensor | None], Tensor]:
        """The tensors that have gradients, and the output's gradient."""
        given = {
            name: None if shape is None else self._tensor(name, shape, place, device)
            for place, (name, shape) in enumerate(self.shapes.items())
        }
        return given, self._tensor("grad", self.out_shape, len(given), device)

    def _tensor(self, name: str, shape: tuple[int, ...], place: int, device: str) -> Tensor:
        generator = self.generator(name)
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * self._spread(name, shape)
        # PyTorch's slope of softplus at an infinite alpha is NaN where no bend is
        if self.values != "normal" and not name.startswith("alpha"):
            values = with_special(values, self.values, self.torch_dtype, generator)
        return laid_out(values, self.dtype_of(name), self.layout(place), device)

    def layout(self, place: int) -> str:
        """Of a tensor by its place."""
        return self.layouts[place % len(self.layouts)]

    def _spread(self, name: str, shape: tuple[int, ...]) -> float:
        if name == "grad":
            return 1.0
        if not self.operation.products:
            return self.scale if name in ("input", "value", "gate", "start", "end") else 1.0
        if name.startswith("weight") or name == "b":
            depth = shape[-1] if name != "b" or len(shape) == 1 else shape[-2]
            first = name not in ("weight2", "weight_out")
            return (self.scale if first else 1.0) / math.sqrt(max(depth, 1))
        return 1.0

    def simpler(self) -> list[Problem]:
        """Problems that differ in one field, which is smaller or plainer."""
        found = []
        for place, size in enumerate(self.sizes):
            before, after = self.sizes[:place], self.sizes[place + 1 :]
            found += [self._with(sizes=(*before, less, *after)) for less in _smaller(self.operation.sizes[place], size)]
        plain = Problem(self.op)
        names = (
            *("layouts", "scale", "bias", "gate", "save", "entry", "needs", "seed"),
            *("values", "grads", "wide_scale"),
        )
        changed = [name for name in names if getattr(self, name) != getattr(plain, name)]
        found += [self._with(**{name: getattr(plain, name)}) for name in changed]
        if "(" in self.kind:
            found.append(self._with(kind=self.kind.partition("(")[0]))
        if len(self.layouts) > 1:
            found += [self._with(layouts=(layout,)) for layout in dict.fromkeys(self.layouts)]
        return [simpler for simpler in found if simpler.entry in (*simpler.entries, ARRAY)]

    def _with(self, **changes: Any) -> Problem:
        return dataclasses.replace(self, **changes)


def _smaller(name: str, size: int) -> list[int]:
    least = 1 if name in ("experts", "each", "groups") else 0
    return [less for less in dict.fromkeys((least, 1, size // 2, size - 1)) if least <= less < size]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        first = value[0] if value else None
        if isinstance(first, bool):
            return "".join(str(int(each)) for each in value)
        return ("x" if isinstance(first, int) else ",").join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value).replace(" ", "")


def _value(name: str, text: str) -> Any:
    try:
        match name:
            case "sizes":
                if not all(size.isdigit() for size in text.split("x")):
                    raise ValueError("want numbers with x between")
                return tuple([int(size) for size in text.split("x")])
            case "layouts":
                for layout in text.split(","):
                    WAYS.index(layout)
                return tuple(text.split(","))
            case "needs":
                return tuple([_bit(digit) for digit in text or " "])
            case "bias" | "wide_scale":
                return _bit(text)
            case "scale":
                if not 0 < float(text) < math.inf:
                    raise ValueError("want a number > 0")
                return float(text)
            case "seed":
                return int(text)
            case "kind":
                _kind(text)
            case _:
                if text not in (choices := _CHOICES[name]):
                    raise ValueError(f"want one of {', '.join(choices)}")
    except (ValueError, SyntaxError) as error:
        raise errors.InvalidProblemError(f"check: problem: {name}={text}: {error}") from None
    return text


_CHOICES = {"dtype": DTYPES, "gate": GATES, "save": SAVES, "entry": (*ENTRIES, ARRAY), "values": VALUES, "grads": GRADS}


def _bit(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("want 0 or 1")
    return text == "1"


@functools.cache
def _kind(text: str) -> Activation | Gated:
    """The kind of a text like ``leaky_relu(slope=-0.3)``."""
    call = ast.parse(text if "(" in text else f"{text}()", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise errors.InvalidProblemError(f"check: kind: {text!r}, want a name and its parameters")
    parameters = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    kind = Activation if call.func.id in tables.ACTIVATIONS else Gated
    return kind(call.func.id, **parameters)
