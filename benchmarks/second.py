"""Gradients of gradients: a step of a network that learns from its gradient, as potentials do.

The loss is the mean square of the gradient to the input. A row is the step: the output, the
gradient with a graph, and the loss's gradients to all weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import epigrad
import torch
from epigrad.cli import machine
from epigrad.cli.contest import Candidate, contest
from epigrad.cli.report import Row, told
from epigrad.cli.runner import Bar, Subject, Task
from epigrad.instruments import kept_bytes
from torch import Tensor
from torch.nn import functional

Layer = Callable[..., Tensor]
EAGER: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
}
SIZES = {"cpu": ((2_000, 64, 256, 256, 1), (100_000, 64, 256, 256, 1)), "cuda": ((100_000, 64, 256, 256, 1),)}
"""Rows, and the features of each layer."""
GOALS = {"cpu": 0.75, "cuda": 0.60}


@dataclass(frozen=True, slots=True)
class Network:
    """Layers with an activation after each but the last.

    Attributes:
        layer: of input, weight, bias and a kind.
        kind: the activation.
        weights, biases: of each layer.
    """

    layer: Layer
    kind: str
    weights: list[Tensor]
    biases: list[Tensor]

    def loss(self, x: Tensor) -> Tensor:
        """The mean square of the gradient to the input, with a graph."""
        with torch.enable_grad():
            hidden = x
            for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
                hidden = self.layer(hidden, weight, bias, self.kind)
            out = functional.linear(hidden, self.weights[-1], self.biases[-1])
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return gradient.square().mean()


def _eager(x: Tensor, weight: Tensor, bias: Tensor, kind: str) -> Tensor:
    return EAGER[kind](functional.linear(x, weight, bias))


def measure(kind: str, dtype: torch.dtype, size: tuple[int, ...], device: torch.device, seconds: float) -> Row:
    """A network's row."""
    rows, *features = size
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    torch.manual_seed(0)
    x = torch.randn(rows, features[0], **options, requires_grad=True)
    weights = [(torch.randn(n, k, **options) / k**0.5).requires_grad_() for k, n in pairwise(features)]
    biases = [torch.zeros(n, **options, requires_grad=True) for n in features[1:]]
    networks = {
        name: Network(layer, kind, weights, biases) for name, layer in (("epigrad", epigrad.linear), ("eager", _eager))
    }
    wanted = [*weights, *biases[:-1]]
    losses = {name: partial(network.loss, x) for name, network in networks.items()}
    row = contest({name: Candidate(loss, wanted) for name, loss in losses.items()}, device, seconds)
    row["kept"] = {name: kept_bytes(loss, [x, *weights, *biases]) for name, loss in losses.items()}
    return row | {"goal": GOALS[device.type]}


def _bars(rows: Any) -> list[Bar]:
    return [(f"{row['kind']} {row['dtype']} {row['size'][0]}", row["ratio"], None) for row in rows if "ratio" in row]


def subject(args: argparse.Namespace) -> Subject:
    """The table of networks."""
    device = torch.device(args.device)
    tasks = []
    for size, dtype, kind in product(SIZES[args.device], (torch.float32, torch.float64), EAGER):
        fields = {"kind": kind, "size": list(size), "dtype": str(dtype).removeprefix("torch.")}
        label = " ".join(map(str, fields.values()))
        tasks.append(Task(label, fields, partial(measure, kind, dtype, size, device)))
    return Subject(
        slug="second",
        device=machine.name(device),
        unit="seconds of one step: median, quartiles, fastest; kept: bytes between the two backwards",
        title="Gradients of gradients: a step of a network that learns from its gradient",
        tasks=tasks,
        names={"kind": "kind", "size": "size", "dtype": "dtype"},
        columns={"epigrad": ("epigrad", told), "eager": ("eager", told), "ratio": ("ratio", "{:.2f}".format)},
        seconds=30.0,
        facts=machine.facts(device),
        bars=_bars,
    )
