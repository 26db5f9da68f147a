"""A problem: an operation and its tensors. A seed or a text determines it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import zlib
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from epigrad import errors
from epigrad._check.layouts import LAYOUTS, UNALIGNED, laid_out
from epigrad._check.operations import COUNTS, NUMBER, OPERATIONS, Shape, Shapes, shapes, split_of, spread
from epigrad._check.values import VALUES, with_special
from epigrad._core import tables
from epigrad._core.call import GATE_NAMES
from epigrad._core.checks import SAVES
from epigrad.kinds import LEARNED, Activation, Gated

DTYPES = tuple(tables.DTYPES)
WAYS = (*LAYOUTS, UNALIGNED)
"""To lay out a tensor."""
ENTRIES = ("autograd", "dispatcher", "stateless", "c", "plan", "module", "second")
ARRAY = "array"
"""One way more, of the webgpu backend."""
INTO = ("stateless", "c", "plan")
"""Those that write into given tensors."""
GRADS = ("fresh", "added", "float32", "float32_added")
MODULES = {"linear": "Linear", "mlp": "MLP", "gated_mlp": "GatedMLP", "experts": "Experts", "activation": "Activation"}
MODULES |= {"gated_activation": "GatedActivation", "lerp": "Lerp", **LEARNED}
"""The operations that have a class of epigrad.nn."""
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
            plans, a module of epigrad.nn, the function and the gradients of its gradients, or
            functions without a graph on arrays of an adapter.
        needs: flags of the gradients to compute, used in turns.
        seed: of the values.
        values: what they are, beside normal numbers.
        grads: how gradients of weights and biases come into given tensors: written or added, in the
            tensors' dtype or beside 16 bits in float32.
        wide: whether experts' scales, and adapters, are float32 beside 16 bits.
        ranks: of the adapters that are given, the first ones of the operation.
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
    wide: bool = False
    ranks: tuple[int, ...] = ()

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
        names, row = OPERATIONS[op], tables.OPS[op]
        sizes = given.get("sizes", ())
        if len(sizes) != len(names):
            raise errors.InvalidProblemError(
                f"check: problem: {op}: sizes={_text(sizes)}, want {'x'.join(name.upper() for name in names)}, such as "
                f"sizes={_text(EXAMPLE[: len(names)])}"
            )
        problem = cls(op, **{"kind": row.default_kind} | given)
        if len(problem.ranks) > (most := len(row.adapted.adapters) if row.adapted else 0):
            raise errors.InvalidProblemError(f"check: problem: {op}: ranks={_text(problem.ranks)}, want at most {most}")
        wanted, what = _KINDS[row.kinds]
        if not isinstance(problem.kind_object, wanted):
            raise errors.InvalidProblemError(f"check: problem: {op}: kind={problem.kind}, want {what}")
        entries = (*problem.entries, ARRAY) if problem.takes_arrays else problem.entries
        if problem.entry not in entries:
            raise errors.InvalidProblemError(
                f"check: problem: {op}: entry={problem.entry}, want one of {', '.join(entries)}"
            )
        return problem

    @property
    def entries(self) -> tuple[str, ...]:
        """The ways to call this operation with these sizes."""
        without = {"module": self.op not in MODULES, "second": f"{self.op}_backward_backward" not in tables.OPS}
        return tuple([entry for entry in ENTRIES if not without.get(entry)])

    @property
    def takes_arrays(self) -> bool:
        """Whether it can be called with arrays of an adapter, which has no integers."""
        return all(argument.types in _NUMBERS for argument in self.row.inputs)

    def is_added(self, name: str) -> bool:
        """Whether the gradient of an operand is added to what its tensor holds."""
        return self.grads.endswith("added") and self._is_layer(name)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that are given; modules take none."""
        adapted = self.row.adapted
        return adapted.adapters[: len(self.ranks)] if adapted and self.entry != "module" else ()

    @property
    def adapter_scale(self) -> float:
        """The scale of all adapters, where they have one."""
        return 0.75 if self.seed % 2 and self.entry in _WITH_LOW_RANK else 1.0

    def is_wide(self, name: str) -> bool:
        """Whether a tensor is float32 beside 16 bits."""
        may_be = name == "scale" or (name.startswith("adapter") and self.entry in _WITH_LOW_RANK)
        return self.wide and may_be and tables.is_half(self.torch_dtype)

    def dtype_of(self, name: str) -> torch.dtype:
        return torch.float32 if self.is_wide(name) else self.torch_dtype

    def dtype_of_gradient(self, name: str) -> torch.dtype:
        is_wide = self.grads.startswith("float32") and tables.is_half(self.torch_dtype) and self._is_layer(name)
        return torch.float32 if is_wide else self.dtype_of(name)

    def _is_layer(self, name: str) -> bool:
        """Whether an operand is a weight or a bias of a layer, and its gradient has a tensor."""
        row = tables.row_with(f"{self.op}_backward", self.shapes)
        return self.entry in INTO and row.outputs[row.results.index(f"grad_{name}")].is_added_to

    def held(self, name: str) -> Tensor:
        """What a tensor holds, to which a gradient is added."""
        values = torch.randn(self.shapes[name] or (), generator=self.generator(f"held {name}"), dtype=torch.float64)
        return values.to(self.dtype_of_gradient(name))

    @property
    def row(self) -> tables.Operation:
        return tables.OPS[self.op]

    @functools.cached_property
    def kind_object(self) -> Activation | Gated | None:
        return _kind(self.kind) if self.kind else None

    @property
    def activation(self) -> Activation:
        assert isinstance(self.kind_object, Activation)
        return self.kind_object

    @property
    def gated(self) -> Gated:
        assert isinstance(self.kind_object, Gated)
        return self.kind_object

    @property
    def is_gated(self) -> bool:
        return isinstance(self.kind_object, Gated)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a call that are no tensors, by name."""
        row = self.row
        options: dict[str, Any] = {row.kind_argument: self.kind_object} if row.kinds else {}
        if row.halves and self.is_gated:
            options["gate"] = self.gate
        if row.splits:  # a dimension counted from either end
            names = split_of(self.sizes[0])
            options["dim"] = names.index("half") - len(names) * (self.seed % 2)
        return options

    @property
    def torch_dtype(self) -> torch.dtype:
        return tables.DTYPES[self.dtype]

    def generator(self, what: str) -> torch.Generator:
        """Random numbers for one tensor, whatever the others are."""
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {what}".encode()))

    @functools.cached_property
    def every_shape(self) -> Shapes:
        """The shapes of all tensors and results by name; None for what is left out."""
        every = shapes(self.op, self.sizes, self.seed % 2, self.is_gated, self.ranks[: len(self.adapters)])
        return {name: None if name.startswith("bias") and not self.bias else shape for name, shape in every.items()}

    @functools.cached_property
    def shapes(self) -> Shapes:
        """Of the tensors that have gradients, in the order of the arguments."""
        own = [each.name for each in self.row.inputs if each.types in _NUMBERS]
        names = own + [f"{adapter}_{part}" for adapter in self.adapters for part in "ab"]
        return {name: self.every_shape[name] for name in names}

    @property
    def out_shape(self) -> Shape:
        shape = self.every_shape["out"]
        assert shape is not None
        return shape

    @property
    def row_dims(self) -> tuple[int, int] | None:
        """Which dimension of the first operand and of the output has rows that depend on no other,
        if there are rows."""
        if not self.row.multiplies:
            return None
        match OPERATIONS[self.op][0]:
            case "lead":
                dim = (None, 0, 1, 0)[self.sizes[0] % 4]
                return None if dim is None else (dim, dim)
            case "form":
                a, b = (len(shape or ()) for shape in (self.shapes["a"], self.shapes["b"]))
                return None if a == 1 else (a - 2, len(self.out_shape) - min(b, 2))
            case _:
                return 0, 0

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

    def integers(self, device: str = "cpu") -> dict[str, Tensor]:
        """Offsets or index, by name."""
        found: dict[str, Tensor] = {}
        sizes = dict(zip(OPERATIONS[self.op], self.sizes, strict=True))
        for each in self.row.inputs:
            shape, generator = self.every_shape[each.name] or (), self.generator(each.name)
            if each.types == "offsets":
                ends = torch.randint(0, sizes["rows"] + 1, shape, generator=generator).sort().values
                found[each.name] = (ends if self.seed % 2 else ends.int()).to(device)
            elif each.types == "index":  # two values select no expert
                found[each.name] = torch.randint(-1, sizes["groups"] + 1, shape, generator=generator).to(device)
        return found

    @property
    def numbers(self) -> dict[str, float]:
        """A number in place of a tensor, by its name."""
        name = self.row.tensors[-1]
        return {name: NUMBER} if self.row.takes_number and self.every_shape[name] is None else {}

    def _tensor(self, name: str, shape: tuple[int, ...], place: int, device: str) -> Tensor:
        generator = self.generator(name)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        values *= 1.0 if name == "grad" else spread(self.op, name, shape, self.scale)
        # PyTorch's slope of softplus at an infinite alpha is NaN where no bend is
        if self.values != "normal" and not name.startswith("alpha"):
            values = with_special(values, self.values, self.torch_dtype, generator)
        return laid_out(values, self.dtype_of(name), self.layout(place), device)

    def layout(self, place: int) -> str:
        return self.layouts[place % len(self.layouts)]

    def simpler(self) -> list[Problem]:
        """Problems that differ in one field, which is smaller or plainer."""
        found = []
        for place, size in enumerate(self.sizes):
            before, after = self.sizes[:place], self.sizes[place + 1 :]
            found += [self._with(sizes=(*before, less, *after)) for less in _smaller(OPERATIONS[self.op][place], size)]
        for place, rank in enumerate(self.ranks):
            before, after = self.ranks[:place], self.ranks[place + 1 :]
            found += [self._with(ranks=(*before, less, *after)) for less in _smaller("rank", rank)]
        plain = {
            field.name: field.default for field in fields(self) if field.name not in ("op", "kind", "dtype", "sizes")
        }
        found += [self._with(**{name: value}) for name, value in plain.items() if getattr(self, name) != value]
        if "(" in self.kind:
            found.append(self._with(kind=self.kind.partition("(")[0]))
        if len(self.layouts) > 1:
            found += [self._with(layouts=(layout,)) for layout in dict.fromkeys(self.layouts)]
        return [simpler for simpler in found if simpler.entry in (*simpler.entries, ARRAY)]

    def _with(self, **changes: Any) -> Problem:
        return dataclasses.replace(self, **changes)


_NUMBERS = ("call", "wider")
"""The types of tensors that have gradients."""
_WITH_LOW_RANK = ("autograd", "dispatcher", "stateless")
"""Entries that take adapters with a scale, and float32 ones beside 16 bits."""
_KINDS: dict[str, tuple[Any, str]] = {
    "activation": (Activation, "an activation"),
    "gated": (Gated, "a gated kind"),
    "either": (Activation | Gated, "an activation or a gated kind"),
    "": (type(None), "no kind"),
}
"""What each operation takes, and the words for it."""


def _smaller(name: str, size: int) -> list[int]:
    least = 1 if name in COUNTS else 0
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
            case "sizes" | "ranks":
                if not all(size.isdigit() for size in text.split("x")):
                    raise ValueError("want numbers with x between")
                return tuple([int(size) for size in text.split("x")])
            case "layouts":
                for layout in text.split(","):
                    WAYS.index(layout)
                return tuple(text.split(","))
            case "needs":
                return tuple([_bit(digit) for digit in text or " "])
            case "bias" | "wide":
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


_CHOICES = {
    "dtype": DTYPES,
    "gate": GATE_NAMES,
    "save": SAVES,
    "entry": (*ENTRIES, ARRAY),
    "values": VALUES,
    "grads": GRADS,
}


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
