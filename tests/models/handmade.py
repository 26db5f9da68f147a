"""Blocks written by hand, one for each form that `patch` recognises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (as models call it)

SIZE = 8


class Block(nn.Module):
    """All layers that the blocks below use."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.packed = nn.Linear(SIZE, 2 * SIZE)
        self.act, self.norm, self.drop = nn.SiLU(), nn.LayerNorm(SIZE), nn.Dropout(0.4)
        self.p, self.limit, self.alpha, self.first, self.extra = 0.3, 0.7, 1.702, True, None
        self.scale = nn.Parameter(torch.ones(SIZE))
        self.function = F.gelu


class Llama(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class ValueFirst(Block):
    def forward(self, x: Tensor) -> Tensor:
        value = self.up(x)
        gate = F.relu(self.gate(x))
        return self.down(self.drop(value * gate))


class Packed(Block):
    def forward(self, hidden: Tensor, unused: Any = None) -> Tensor:
        """The documentation of a forward.

        It is no statement.
        """
        gate, value = self.packed(hidden).chunk(2, dim=-1)
        return self.down(value * self.act(gate))


class SwappedHalves(Block):
    def forward(self, hidden: Tensor) -> Tensor:
        halves = torch.chunk(self.packed(hidden), 2, dim=-1)
        return self.down(halves[0] * self.act(halves[1]))


class Interleaved(Block):
    def forward(self, x: Tensor) -> Tensor:
        both = self.packed(x)
        gate, up = both[..., ::2], both[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return self.down((up + 1) * (gate * torch.sigmoid(gate * self.alpha)))


class Limited(Block):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.act(self.gate(x)).clamp(max=self.limit)
        up: Tensor = self.up(x).clamp(-self.limit, self.limit)
        return self.down(gate * up)


class PlainBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.up(x), approximate="tanh")
        x = F.dropout(x, p=self.p, training=self.training)
        x = self.down(x)
        return F.dropout(x, self.p, self.training)


class Normed(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(self.norm(self.act(self.up(self.norm(x))))))


class Pair(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.up(x))


class Guarded(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.up(x))
        if (
            isinstance(self.down.weight, torch.Tensor)
            and x.dtype != self.down.weight.dtype
            and (self.down.weight.dtype != torch.int8 and self.down.weight.dtype != torch.uint8)
        ):
            x = x.to(self.down.weight.dtype)
        return self.down(x)


class Conditional(Block):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.packed(x).chunk(2, dim=-1)
        x = self.act(a) * b if self.first else a * self.act(b)
        if self.extra is not None and self.limit > 0:
            x = self.extra(x)
        return self.down(x)


KNOWN = {
    Llama: "gated_linear swiglu",
    ValueFirst: "gated_linear reglu",
    Packed: "gated_mlp swiglu",
    SwappedHalves: "gated_mlp swiglu",
    Interleaved: "gated_mlp swiglu(limit=0.7, offset=1, alpha=1.702)",
    Limited: "gated_linear swiglu(limit_after=0.7)",
    PlainBlock: "linear gelu_tanh, since dropout by p is at work",
    Normed: "linear silu, since norm is at work",
    Pair: "linear gelu",
    Guarded: "mlp silu",
    Conditional: "gated_mlp swiglu",
}


def results(block: nn.Module, shape: tuple[int, ...] = (4, SIZE)) -> dict[str, Tensor]:
    """Output and gradients, with the same dropout each time."""
    torch.manual_seed(3)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = block(x)
    leaves = {"input": x, **dict(block.named_parameters())}
    grads = torch.autograd.grad(out.square().sum(), list(leaves.values()), materialize_grads=True)
    return {"output": out.detach(), **dict(zip(leaves, grads, strict=True))}


def assert_same(block: nn.Module, want: dict[str, Tensor]) -> None:
    for name, value in results(block).items():
        torch.testing.assert_close(value, want[name], rtol=1e-11, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")


def made(cls: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return cls().double()
