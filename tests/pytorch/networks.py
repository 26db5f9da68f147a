"""Small networks, one of each function, that the checks of distributed.py train."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import epigrad
import torch
from epigrad import LowRank
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support import adapters

FEATURES = 6


class Product(nn.Module):
    """Parameters of its own for a product."""

    def __init__(self, activation: str = "silu") -> None:
        super().__init__()
        self.activation = activation
        self.weight = nn.Parameter(torch.randn(FEATURES, FEATURES))
        self.bias = nn.Parameter(torch.randn(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.matmul_bias_activation(x, self.weight, self.bias, self.activation)


class Gate(nn.Module):
    """Value and gate by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8)
        self.down = nn.Linear(8, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(epigrad.gated_product(self.value(x), self.gate(x)))
        return out


class GatedLayer(nn.Module):
    """A gated linear layer with parameters of its own."""

    def __init__(self, kind: str = "swiglu") -> None:
        super().__init__()
        self.kind = kind
        self.value, self.gate = (nn.Parameter(torch.randn(8, FEATURES)) for _ in range(2))
        self.value_bias, self.gate_bias = (nn.Parameter(torch.randn(8)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.gated_linear(x, self.value, self.gate, self.value_bias, self.gate_bias, self.kind)


def grouped(x: Tensor) -> tuple[Tensor, Tensor]:
    """An order of rows by their first feature, and the ends of three groups in it: the second has
    none."""
    first, order = x[:, 0].detach().sort()
    low = (first < 0.5).sum()
    return order, torch.stack([low, low, torch.tensor(len(x), device=x.device)])


class GroupedLayer(nn.Module):
    """A linear layer with a weight for each group of rows."""

    def __init__(self, activation: str = "gelu") -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 8, FEATURES)), nn.Parameter(torch.randn(3, 8))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        order, ends = grouped(x)
        return epigrad.grouped_linear(x[order], self.weight, self.bias, self.activation, offsets=ends)[order.argsort()]


class Mixture(nn.Module):
    """Experts and their router."""

    def __init__(self, gate: str = "second") -> None:
        super().__init__()
        self.experts = epigrad.nn.Experts(FEATURES, 8, 3, bias=True, gate=gate)
        self.router = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        scale, index = self.router(x).softmax(-1).topk(2)
        out: Tensor = self.experts(x, index, scale)
        return out


class Adapted(nn.Module):
    """A frozen layer with low-rank updates that learn."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op, own = op, len(adapters.CALLS[op][1])
        tensors = adapters.drawn(op, torch.float64, torch.float64)
        for place, name in list(enumerate(adapters.names(op)))[2 if op == "experts" else 1 :]:
            self.register_parameter(name, nn.Parameter(tensors[place], requires_grad=False))
        for name, a, b in zip(adapters.row(op).adapters, tensors[own::2], tensors[own + 1 :: 2], strict=True):
            self.register_parameter(f"{name}_a", nn.Parameter(a))
            self.register_parameter(f"{name}_b", nn.Parameter(b))

    def forward(self, x: Tensor) -> Tensor:
        options: dict[str, Any] = {"gate": "odd"} if self.op in ("gated_mlp", "experts") else {}
        scales: tuple[Tensor, ...] = ()
        if self.op == "grouped_linear":
            order, options["offsets"] = grouped(x)
            x = x[order]
        elif self.op == "experts":
            scale, options["index"] = x[:, :3].softmax(-1).topk(2)
            scales = (scale,)
        out: Tensor = adapters.call(self.op, x[:, :5], *scales, *self.parameters(), **options)
        return out


class Again(nn.Module):
    """A network whose activations are computed again in backward."""

    def __init__(self, network: nn.Module, reentrant: bool = False) -> None:
        super().__init__()
        self.network, self.reentrant = network, reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.network, x, use_reentrant=self.reentrant)
        return out


class Pointwise(nn.Module):
    """An activation by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.activation(x, "gelu")


class Mix(nn.Module):
    """A learned interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.lerp(x, x.square(), self.weight)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "matmul_bias_activation": Product,
    "linear": lambda: epigrad.nn.Linear(FEATURES, FEATURES, activation="gelu"),
    "activation": lambda: nn.Sequential(epigrad.nn.Linear(FEATURES, FEATURES), Pointwise()),
    "gated_activation": lambda: nn.Sequential(epigrad.nn.Linear(FEATURES, 12), epigrad.nn.GatedActivation()),
    "gated_product": Gate,
    "lerp": Mix,
    "prelu": lambda: epigrad.nn.PReLU(FEATURES),
    "xielu": epigrad.nn.XIELU,
    "gated_linear": GatedLayer,
    "mlp": lambda: epigrad.nn.MLP(FEATURES, 8),
    "gated_mlp": lambda: epigrad.nn.GatedMLP(FEATURES, 8, bias=True),
    "grouped_linear": GroupedLayer,
    "experts": Mixture,
    **{row: partial(Adapted, op) for op, row in adapters.ADAPTED.items()},
}


def chosen(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two of three experts for each token by its first feature, and scales of 1."""
    first = x[:, 0].detach().abs().long()
    index = torch.stack([first % 3, (first + 1) % 3], 1)
    return index, torch.ones_like(index, dtype=x.dtype)


class Routed(nn.Module):
    """Experts without a router that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = epigrad.nn.Experts(FEATURES, 8, 3, "reglu", bias=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.experts(x, *chosen(x))
        return out


class Tuned(nn.Module):
    """Frozen experts with low-rank updates that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = epigrad.nn.Experts(FEATURES, 8, 3, "relu").requires_grad_(False)
        shapes = (3, 2, FEATURES), (3, 8, 2), (3, 2, 8), (3, FEATURES, 2)
        self.a_in, self.b_in, self.a_out, self.b_out = (nn.Parameter(torch.empty(shape)) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.experts.weight_in, None, self.experts.weight_out, None)
        updates = {"adapter_in": LowRank(self.a_in, self.b_in), "adapter_out": LowRank(self.a_out, self.b_out)}
        return epigrad.experts(x, *chosen(x), *weights, "relu", **updates)  # type: ignore[arg-type]


class TunedLayer(nn.Module):
    """A frozen layer with a low-rank update that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.empty(2, FEATURES)), nn.Parameter(torch.empty(FEATURES, 2))

    def forward(self, x: Tensor) -> Tensor:
        return epigrad.linear(x, self.layer.weight, self.layer.bias, "relu", adapter=LowRank(self.a, self.b))


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "matmul_bias_activation": lambda: Product("relu"),
    "linear": lambda: epigrad.nn.Linear(FEATURES, FEATURES, activation="relu"),
    "gated_linear": lambda: GatedLayer("reglu"),
    "mlp": lambda: epigrad.nn.MLP(FEATURES, 8, "relu"),
    "gated_mlp": lambda: epigrad.nn.GatedMLP(FEATURES, 8, "reglu", bias=True),
    "grouped_linear": lambda: GroupedLayer("relu"),
    "experts": Routed,
    "linear + LowRank": TunedLayer,
    "experts + LowRank": Tuned,
}
"""Networks whose values are whole numbers if inputs and parameters are."""
