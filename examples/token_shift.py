"""Token shift as RWKV has it: every channel mixes a token with the one before it, by a weight of
its own, learnt.

    python examples/token_shift.py

``epigrad.lerp(previous, current, mix)`` is the whole of it, forward and backward in one kernel
each, the sum over all tokens that is mix's gradient included. Here a small network has to say which
token came *before* each one. It sees one token at a time, so without the shift it can only guess;
with it, the weights learn where to look.

Peng et al. 2023, RWKV, section 3.1, https://arxiv.org/abs/2305.13048.
"""

from __future__ import annotations

import epigrad
import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS, FEATURES, LENGTH, BATCH, STEPS = 12, 24, 16, 16, 80


class TokenShift(nn.Module):
    """``mix * current + (1 - mix) * previous`` for inputs [batch, time, features]; the first
    token's previous is 0."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.full((features,), 0.5))

    def forward(self, input: Tensor) -> Tensor:
        previous = functional.pad(input, (0, 0, 1, -1))  # one step later in time
        return epigrad.lerp(previous, input, self.mix)


class ChannelMix(nn.Module):
    """RWKV's second block: what is read passes a gate, both from shifted tokens."""

    def __init__(self, features: int, shifted: bool) -> None:
        super().__init__()
        self.shift_key, self.shift_gate = (TokenShift(features) if shifted else nn.Identity() for _ in range(2))
        self.key = epigrad.nn.Linear(features, 2 * features, bias=False, activation="relu")
        self.gate = epigrad.nn.Linear(features, features, bias=False)
        self.value = epigrad.nn.Linear(2 * features, features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        key = self.key(self.shift_key(input)).square()
        return epigrad.gated_product(self.value(key), self.gate(self.shift_gate(input)), "glu")


def train(shifted: bool) -> tuple[float, nn.Module]:
    """The share of tokens whose predecessor is named rightly, and the trained block."""
    torch.manual_seed(0)
    block = ChannelMix(FEATURES, shifted)
    network = nn.Sequential(nn.Embedding(TOKENS, FEATURES), nn.LayerNorm(FEATURES), block, nn.Linear(FEATURES, TOKENS))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
    for _ in range(STEPS):
        tokens = torch.randint(TOKENS, (BATCH, LENGTH))
        logits = network(tokens)[:, 1:]
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens = torch.randint(TOKENS, (BATCH, LENGTH))
    with torch.no_grad():
        right = network(tokens)[:, 1:].argmax(-1) == tokens[:, :-1]
    return float(right.float().mean()), block


def main() -> None:
    without, _ = train(shifted=False)
    accuracy, block = train(shifted=True)
    print(f"which token came before? {accuracy:.0%} right; without the shift {without:.0%}, guessing {1 / TOKENS:.0%}")
    for name in ("shift_key", "shift_gate"):
        mix = block.get_submodule(name).mix
        print(f"{name}: {(mix < 0.5).float().mean():.0%} of the channels have turned to the token before")


if __name__ == "__main__":
    main()
