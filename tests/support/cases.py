"""The one list of cases: operation x activation or kind x dtype x shape x layout x what is saved x
device.

Activations, gated kinds and dtypes are read from the core's tables, so that a new row is tested
without touching this file. `make test` takes cases in which every pair of choices occurs;
EPIGRAD_TEST_FULL=1 takes every combination of the main choices.
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import pytest
import torch
from epigrad import Activation, Gated
from epigrad._core import tables
from torch import Tensor

from tests.support import oracle
from tests.support.devices import DEVICES, computes, memory_of, running_on
from tests.support.layouts import LAYOUTS, draw, laid_out
from tests.support.tiers import THIRD, commits, has_turn, thorough

FULL = os.environ.get("EPIGRAD_TEST_FULL", "") not in ("", "0")
SEED = int(os.environ.get("EPIGRAD_TEST_SEED") or 0)

Kind = TypeVar("Kind", Activation, Gated)


def parsed(kind: type[Kind], text: str) -> Kind:
    """The kind of a row of the oracle: ``leaky_relu(slope=-0.3)``."""
    call = ast.parse(text if "(" in text else f"{text}()", mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    return kind(call.func.id, **{str(word.arg): ast.literal_eval(word.value) for word in call.keywords})


NAMES: tuple[str, ...] = tuple(name for name, row in tables.ACTIVATIONS.items() if not row.default_is)
OTHERS = tuple(parsed(Activation, text) for text in oracle.ACTIVATIONS if "(" in text)
"""Activations whose parameters are not the defaults."""

ACTIVATIONS: tuple[str | Activation, ...] = (*NAMES, *OTHERS)
IN_PRODUCTS: tuple[str | Activation, ...] = (
    *("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2", "softplus"),
    *(activation for activation in OTHERS if activation.name in ("leaky_relu", "swish", "celu")),
)
"""Those that are tested with every shape and layout, also in products."""

BRIEFLY = tuple(activation for activation in ACTIVATIONS if activation not in IN_PRODUCTS)
"""The others, for which a few shapes do: their formulas are all that is new."""

FROM_OUTPUT: tuple[str, ...] = tuple(name for name, row in tables.ACTIVATIONS.items() if row.from_output)
GATED_NAMES: tuple[str, ...] = tuple(tables.GATED_KINDS)
GATED_OTHERS = tuple(parsed(Gated, text) for text in oracle.GATED if "(" in text)
GATED_KINDS: tuple[str | Gated, ...] = (*GATED_NAMES, *GATED_OTHERS)
GATED_IN_PRODUCTS: tuple[str | Gated, ...] = (
    *("glu", "reglu", "swiglu", "geglu", "geglu_tanh", "bilinear", "situ_glu", Gated("swiglu_oai")),
    *(kind for kind in GATED_OTHERS if kind == Gated("swiglu", limit_after=1.3)),
)
GATED_BRIEFLY = tuple(kind for kind in GATED_KINDS if kind not in GATED_IN_PRODUCTS)
GATES = ("second", "first", "odd", "even")
DTYPES: tuple[torch.dtype, ...] = tuple(tables.DTYPES.values())

SAVE_MODES = ("auto", "preactivation", "recompute")

GEMM_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "scalar": ((1, 1), (1, 1)),
    "small": ((3, 5), (5, 4)),
    "primes": ((13, 17), (17, 11)),
    "row": ((1, 31), (31, 37)),
    "column": ((37, 31), (31, 1)),
    "outer": ((19, 1), (1, 23)),
    "past_row_tile": ((65, 9), (9, 7)),
    "past_column_tile": ((5, 9), (9, 129)),
    "past_k_block": ((6, 257), (257, 5)),
    "vectors": ((7,), (7,)),
    "matrix_vector": ((5, 7), (7,)),
    "vector_matrix": ((7,), (7, 5)),
    "vector_batch": ((5,), (3, 5, 4)),
    "batch_vector": ((2, 3, 5), (5,)),
    "batched": ((3, 4, 5), (3, 5, 2)),
    "shared_b": ((2, 3, 4, 5), (5, 3)),
    "shared_a": ((4, 5), (3, 5, 6)),
    "broadcast_both": ((2, 1, 3, 4), (3, 4, 2)),
    "broadcast_ones": ((1, 3, 4), (2, 4, 3)),
    "no_rows": ((0, 4), (4, 3)),
    "no_columns": ((3, 4), (4, 0)),
    "no_k": ((3, 0), (0, 4)),
    "no_k_vectors": ((0,), (0,)),
    "no_batch": ((0, 3, 4), (0, 4, 5)),
    "no_batch_shared_b": ((0, 3, 4), (4, 5)),
    "no_batch_broadcast": ((0, 3, 4), (1, 4, 5)),
}

LINEAR_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "vector": ((7,), (7, 5)),
    "matrix": ((6, 7), (7, 5)),
    "primes": ((13, 17), (17, 11)),
    "tokens": ((2, 3, 5), (5, 4)),
    "rank_5": ((2, 1, 3, 1, 4), (4, 3)),
    "past_row_tile": ((5, 13, 9), (9, 7)),
    "past_column_tile": ((5, 9), (9, 129)),
    "past_k_block": ((2, 3, 257), (257, 5)),
    "one": ((1, 1), (1, 1)),
    "no_rows": ((2, 0, 4), (4, 3)),
    "no_columns": ((3, 4), (4, 0)),
    "no_k": ((3, 0), (0, 4)),
}
"""Here the second shape is that of the weight's transpose, [K, N]."""

GATED_SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "pair": ((2,), 0),
    "vector": ((34,), -1),
    "rows": ((5, 14), -1),
    "first_dim": ((6, 7), 0),
    "middle_dim": ((3, 10, 4), 1),
    "negative_dim": ((4, 6, 5), -2),
    "rank_5": ((2, 1, 3, 4, 3), 3),
    "rank_8": ((2, 1, 2, 1, 3, 1, 2, 4), -1),
    "rank_8_first": ((4, 1, 2, 1, 3, 1, 2, 3), 0),
    "ones": ((1, 2, 1), 1),
    "past_block": ((7, 2 * 1031), -1),
    "no_rows": ((0, 4), -1),
    "no_columns": ((3, 0), -1),
    "no_batch": ((4, 0, 3), 0),
}

LERP_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | float]] = {
    "float": ((5, 7), (5, 7), 0.3),
    "float_third": ((4, 3), (4, 3), 1 / 3),
    "float_zero": ((5,), (5,), 0.0),
    "float_one": ((5,), (5,), 1.0),
    "float_outside": ((3, 4), (3, 4), -1.75),
    "float_broadcast": ((3, 1), (1, 4), 0.6),
    "zero_dim": ((5, 7), (5, 7), ()),
    "all_zero_dim": ((), (), ()),
    "columns": ((5, 7), (5, 7), (7,)),
    "rows": ((5, 7), (5, 7), (5, 1)),
    "full": ((5, 7), (5, 7), (5, 7)),
    "broadcast_start": ((7,), (5, 7), (5, 7)),
    "broadcast_end": ((5, 7), (5, 1), (1, 7)),
    "broadcast_all": ((3, 1, 1), (1, 4, 1), (1, 1, 5)),
    "weight_is_larger": ((4,), (4,), (2, 3, 4)),
    "rank_8": ((2, 1, 2, 1, 3, 1, 2, 4), (2, 1, 2, 1, 3, 1, 2, 4), (3, 1, 1, 4)),
    "past_block": ((3, 1031), (3, 1031), (1031,)),
    "long_sum": ((2053, 3), (2053, 3), (3,)),
    "no_rows": ((0, 4), (0, 4), (4,)),
    "no_columns": ((3, 0), (3, 0), (3, 1)),
    "empty_broadcast": ((0, 1), (1, 4), ()),
}

LEARNABLE_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "scalar": ((), (1,)),
    "scalar_by_scalar": ((), ()),
    "vector": ((34,), (1,)),
    "rows": ((5, 14), (1,)),
    "rows_by_scalar": ((5, 14), ()),
    "channels": ((5, 14), (14,)),
    "images": ((2, 3, 4, 5), (3,)),
    "signals": ((3, 10, 4), (10,)),
    "rank_8": ((2, 3, 2, 1, 3, 1, 2, 4), (3,)),
    "one_channel": ((2, 1, 5), (1,)),
    "past_block": ((7, 1031), (1031,)),
    "long_sum": ((2053, 3), (1,)),
    "long_sum_by_channels": ((2053, 3), (3,)),
    "no_rows": ((0, 4), (4,)),
    "no_channels": ((3, 0), (0,)),
    "no_columns": ((3, 2, 0), (1,)),
}
"""Shape of the input and of prelu's weight. xielu's alphas have one element: another shape counts
as [1]."""

XIELU_BETAS = {"xielu": 0.5, "xielu(beta=-0.25)": -0.25}
LEARNABLE = ("prelu", *XIELU_BETAS)
"""The kinds of cases of operations whose parameters have gradients."""

MLP_SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "vector": ((5,), 6),
    "matrix": ((4, 7), 5),
    "tokens": ((2, 3, 5), 8),
    "past_row_tile": ((67, 9), 5),
    "past_column_tile": ((3, 9), 131),
    "one": ((1, 1), 1),
    "no_rows": ((0, 3), 4),
    "no_hidden": ((2, 3), 0),
    "no_batch": ((2, 0, 3), 4),
}
"""Shape of the input and hidden features."""

GROUPED_SHAPES: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "groups": (13, 5, 6, (4, 4, 7, 11)),
    "all_rows": (9, 7, 3, (2, 9)),
    "one_group": (6, 5, 4, (6,)),
    "past_row_tiles": (150, 67, 5, (1, 140, 140, 149)),
    "past_column_tile": (9, 67, 131, (1, 4, 4, 8)),
    "by_boxes": (60, 24, 40, (3, 3, 30, 59)),
    "no_rows": (0, 3, 4, (0, 0)),
    "nobody": (4, 3, 5, (0, 0, 0)),
}
"""Rows, features, columns and offsets."""

EXPERTS_SHAPES: dict[str, tuple[int, int, int, int, int]] = {
    "tokens": (9, 5, 4, 4, 2),
    "one": (1, 1, 1, 1, 1),
    "many": (40, 9, 7, 11, 3),
    "past_tiles": (70, 67, 66, 3, 2),
    "by_boxes": (40, 24, 16, 3, 2),
    "no_tokens": (0, 3, 2, 3, 2),
    "no_slots": (4, 3, 2, 3, 0),
    "no_hidden": (5, 3, 0, 2, 2),
}
"""Tokens, features, hidden features, experts, and experts of a token."""

SCALES = {"unit": 1.0, "wide": 6.0}
"""Standard deviation of what goes into the activation: around the bend, and into the tails."""

FAR = 32.0
"""That of the scale "far": slopes are denormal numbers there too, and zeros."""


def named(shapes: Mapping[str, Any], name: str) -> Any:
    """What a case's shape stands for: a row of a table here, or, where hypothesis made it up,
    itself as a literal."""
    return shapes[name] if name in shapes else ast.literal_eval(name)


@dataclass(frozen=True)
class Case:
    """One choice along every axis; fields that an operation has no use for do not exist in its
    list."""

    op: str
    kind: str | Activation | Gated
    dtype: torch.dtype
    shape: str
    layout: str
    scale: str = "unit"
    save: str = "auto"
    bias: bool = True
    gate: str = "second"
    source: str = "inputs"
    accumulate: bool = False
    draw: int = 0
    """Which random values: PyTorch's error on a small problem is measured over several draws."""
    device: str = "cpu"
    """Where the operands are; their values are the same everywhere."""

    def __str__(self) -> str:
        values = (getattr(self, field.name) for field in fields(self) if field.name not in ("draw", "device"))
        return "-".join(str(value).removeprefix("torch.") for value in values)

    @property
    def generator(self) -> torch.Generator:
        """Random numbers of this case's own."""
        return torch.Generator().manual_seed(zlib.crc32(f"{self}#{self.draw}".encode()) + SEED)

    @property
    def scale_of_preactivation(self) -> float:
        return FAR if self.scale == "far" else SCALES[self.scale]

    @property
    def row(self) -> oracle.Row:
        """Of an activation."""
        row: oracle.Row = oracle.ACTIVATIONS[self.kind]
        return row

    @property
    def gated(self) -> oracle.GatedRow:
        """Of a gated kind."""
        row: oracle.GatedRow = oracle.GATED[self.kind]
        return row

    @property
    def is_gated(self) -> bool:
        return isinstance(self.kind, Gated) or self.kind in tables.GATED_KINDS

    @property
    def kinks(self) -> tuple[float, ...]:
        return (self.gated if self.is_gated else self.row).kinks

    @property
    def memory(self) -> str:
        """PyTorch's device."""
        return memory_of(self.device)

    def layout_after(self, steps: int) -> str:
        """Another layout for the next operand, so that operands of one case differ."""
        return LAYOUTS[(LAYOUTS.index(self.layout) + steps) % len(LAYOUTS)]

    def tensor(self, shape: Sequence[int], generator: torch.Generator, step: int = 0, scale: float = 1.0) -> Tensor:
        """A random operand of the case's dtype in the `step`-th layout after the case's own."""
        return self.holding(draw(shape, generator, scale), step)

    def holding(self, values: Tensor, step: int = 0) -> Tensor:
        """An operand of these values, likewise."""
        return laid_out(values, self.dtype, self.layout_after(step), self.memory)


def pairs(axes: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """A short list of choices in which every pair of values of two axes occurs.

    Greedy: of some random rows that contain a pair not seen yet, the one with most such pairs
    (Cohen et al. 1997, the AETG system).
    """
    rng = random.Random(seed + SEED)
    names = list(axes)
    missing = {
        ((i, x), (j, y))
        for (i, first), (j, second) in itertools.combinations(enumerate(names), 2)
        for x in range(len(axes[first]))
        for y in range(len(axes[second]))
    }
    rows = []

    def covered(row: Sequence[int]) -> set[Any]:
        return missing.intersection(itertools.combinations(enumerate(row), 2))

    while missing:
        (i, x), (j, y) = min(missing)
        candidates = [[rng.randrange(len(axes[name])) for name in names] for _ in range(24)]
        for candidate in candidates:
            candidate[i], candidate[j] = x, y
        best = max(candidates, key=lambda row: len(covered(row)))
        missing -= covered(best)
        rows.append({name: axes[name][index] for name, index in zip(names, best, strict=True)})
    return rows


def product(axes: Mapping[str, Sequence[Any]], cycled: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the axes; the cycled ones take random values from row to row."""
    rows = []
    turns = {
        name: itertools.cycle(random.Random(f"{name}{SEED or ''}").choices(values, k=997))
        for name, values in cycled.items()
    }
    for choice in itertools.product(*axes.values()):
        row = dict(zip(axes, choice, strict=True))
        rows.append(row | {name: next(turn) for name, turn in turns.items()})
    return rows


def cases(axes: Mapping[str, Sequence[Any]], cycled: Mapping[str, Sequence[Any]] | None = None) -> list[Case]:
    """Cases from the axes: pairs of all of them, or, in a full run, the product of `axes` with the
    `cycled` in turn."""
    cycled = cycled or {}
    rows = product(axes, cycled) if FULL else pairs({**axes, **cycled})
    return list(dict.fromkeys(Case(**row) for row in rows))


def cases_of(op: str, kinds: Sequence[Any], shapes: Iterable[str], **cycled: Sequence[Any]) -> list[Case]:
    """Cases of an operation in every dtype and layout."""
    axes = {"op": [op], "kind": kinds, "dtype": DTYPES, "shape": list(shapes), "layout": LAYOUTS}
    return cases(axes, cycled)


def quick_of(everywhere: Sequence[Case]) -> set[Case]:
    """The cases that `make test` takes: on each device each value that a field ever has meets the
    operation, and the commit says which cases come first.

    Where a case needs no kernel of its own to be compiled, half of the others are taken too, and of
    the kinds that are tested briefly a third.
    """
    brief = [*BRIEFLY, *GATED_BRIEFLY]
    quick = {
        case
        for i, case in enumerate(everywhere)
        if case.device != "webgpu"
        and (has_turn(brief.index(case.kind), THIRD) if case.kind in brief else has_turn(i, 2))
    }
    seen = set[object]()
    start = commits() * 7 % max(len(everywhere), 1)
    for case in (*everywhere[start:], *everywhere[:start]):
        met = {(case.device, case.op, field.name, str(getattr(case, field.name))) for field in fields(case)}
        if not met <= seen:
            seen |= met
            quick.add(case)
    return quick


Test = TypeVar("Test", bound=Callable[..., Any])


def parity(chosen: Sequence[Case]) -> Callable[[Test], Test]:
    """Runs a test for every case on every device, and counts the cases in the summary of the
    run."""
    everywhere = [replace(case, device=device) for device in DEVICES for case in chosen if computes(device, case.dtype)]

    quick = quick_of(everywhere)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def on_its_device(case: Case, **rest: Any) -> None:
            with running_on(case.device):
                test(case=case, **rest)

        parameters = [
            pytest.param(case, id=f"{case.device}-{case}", marks=() if case in quick else thorough)
            for case in everywhere
        ]
        parametrized = pytest.mark.parametrize("case", parameters)(on_its_device)
        marked: Test = pytest.mark.parity(parametrized)
        return marked

    return decorate
