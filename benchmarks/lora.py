"""Blocks and experts of transformers with LoRA: patched, as PEFT computes them, and patched without
adapters, which is the least that they could cost.

A row is forward and backward to the input and to the adapters. Weights are frozen, and adapters are
PEFT's: float32, also beside bfloat16.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from epigrad.cli import machine
from epigrad.cli.contest import Candidate, contest
from epigrad.cli.report import Row, told
from epigrad.cli.runner import Bar, Subject, Task
from epigrad.integrations.transformers import patch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Case:
    """A block with adapters.

    Attributes:
        name: what it is.
        tokens, features, hidden: its sizes.
        rank: of all adapters.
        experts, each: how many, and those of a token; a Llama's MLP has none.
        goal: the most that the ratio to PEFT's own may be, or that to frozen experts.
    """

    name: str
    tokens: int
    features: int
    hidden: int
    rank: int = 16
    experts: int = 0
    each: int = 0
    goal: float = 0.90

    @property
    def fields(self) -> Row:
        """What its row begins with."""
        sizes = [self.tokens, self.features, self.hidden, *([self.experts, self.each] if self.experts else [])]
        return {"case": self.name, "size": sizes, "rank": self.rank}

    def model(self) -> Any:
        """A model of one layer."""
        import transformers

        sizes: dict[str, Any] = {
            "hidden_size": self.features,
            "num_hidden_layers": 1,
            "vocab_size": 16,
            "num_attention_heads": 4,
        }
        if not self.experts:
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=self.hidden))
        sizes |= {"moe_intermediate_size": self.hidden, "num_experts": self.experts, "num_experts_per_tok": self.each}
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, num_key_value_heads=4))

    def blocks(self, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Module]:
        """The contenders, with the same weights."""
        import peft

        targets: dict[str, Any] = {"target_modules": ["up_proj", "gate_proj", "down_proj"]}
        if self.experts:
            targets = {"target_modules": [], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
        torch.manual_seed(0)
        with device:
            model = self.model().to(dtype)
            frozen = copy.deepcopy(model).requires_grad_(False)
            theirs = peft.get_peft_model(model, peft.LoraConfig(r=self.rank, init_lora_weights=False, **targets))
        ours = copy.deepcopy(theirs)
        patch(ours)
        patch(frozen)
        models = {"epigrad": ours.get_base_model(), "eager": theirs.get_base_model(), "frozen": frozen}
        return {name: each.model.layers[0].mlp for name, each in models.items()}


CASES = {
    "cpu": (
        *(Case("llama", *sizes) for sizes in ((64, 256, 704), (256, 256, 704), (256, 1024, 2816), (1024, 1024, 2816))),
        Case("experts", 256, 256, 128, experts=32, each=4),
        Case("experts", 1024, 256, 128, experts=32, each=4),
    ),
    "cuda": (
        Case("llama", 8192, 4096, 14336),
        Case("qwen3-30b-a3b", 8192, 2048, 768, experts=128, each=8, goal=1.10),
        Case("qwen3-30b-a3b", 8192, 2048, 768, rank=64, experts=128, each=8, goal=1.25),
    ),
}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


def measure(case: Case, device: torch.device, seconds: float) -> Row:
    """A case's row."""
    dtype = DTYPES[device.type]
    x = torch.randn(1, case.tokens, case.features, device=device, dtype=dtype, requires_grad=True)
    candidates = {}
    for name, block in case.blocks(device, dtype).items():
        learning: list[Tensor] = [parameter for parameter in block.parameters() if parameter.requires_grad]
        candidates[name] = Candidate(partial(block, x), [x, *learning])
    row = contest(candidates, device, seconds)
    statistic = "median" if device.type == "cuda" else "fastest"
    row["ratio_to_frozen"] = row["epigrad"][statistic] / row["frozen"][statistic]
    return row | {"goal": case.goal}


def _bars(rows: Any) -> list[Bar]:
    return [(f"{row['case']} {row['size']}", row["ratio"], None) for row in rows if "ratio" in row]


def subject(args: argparse.Namespace) -> Subject:
    """The table of blocks."""
    device = torch.device(args.device)
    tasks = []
    for case in CASES[args.device]:
        label = " ".join(map(str, case.fields.values()))
        tasks.append(Task(label, case.fields, partial(measure, case, device)))
    return Subject(
        slug="lora",
        device=machine.name(device),
        unit="seconds of one call: median, quartiles, fastest; ratio: epigrad's over PEFT's own; ratio_to_frozen: over "
        "the patched block without adapters",
        title="LoRA inside of products, forward and backward, beside PEFT's own",
        tasks=tasks,
        names={"case": "case", "size": "size", "rank": "rank"},
        columns={
            "epigrad": ("epigrad", told),
            "eager": ("PEFT", told),
            "ratio": ("ratio", "{:.2f}".format),
            "ratio_to_frozen": ("to frozen", "{:.2f}".format),
        },
        seconds=20.0,
        facts=machine.facts(device),
        bars=_bars,
    )
