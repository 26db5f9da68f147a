"""Layers of epigrad in a model of transformers whose checkpoint lacks their weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import epigrad
import torch
from torch import nn
from transformers import BertConfig, BertModel

from tests.support.repository import ROOT

SIZE = 64


def model_of_the_page() -> Any:
    """The class that docs/howto/transformers.md gives."""
    page = (ROOT / "docs" / "howto" / "transformers.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "_init_weights" in block]
    names: dict[str, Any] = {"__name__": __name__}
    exec(code, names)
    return names["WithHead"]


def test_from_pretrained_initialises_the_layers_that_the_checkpoint_lacks(tmp_path: Path) -> None:
    class Model(model_of_the_page()):  # type: ignore[misc]
        def __init__(self, config: BertConfig) -> None:
            super().__init__(config)
            self.experts = epigrad.nn.Experts(SIZE, SIZE, 2, bias=True)
            self.prelu = epigrad.nn.PReLU()
            self.xielu = epigrad.nn.XIELU()
            self.post_init()

    sizes = {"hidden_size": SIZE, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=SIZE, vocab_size=50)
    BertModel(config).save_pretrained(tmp_path / "without")
    # memory that is given back, for parameters that nobody writes to
    for _ in range(2):
        _ = [torch.full((SIZE, SIZE), float("nan")) for _ in range(200)]
    model = Model.from_pretrained(tmp_path / "without")
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    wanted = nn.Linear(SIZE, SIZE).weight.std().item()
    for weight in (model.head.weight, model.experts.weight_in, model.experts.weight_out):
        assert abs(weight.std().item() / wanted - 1) < 0.1 and weight.abs().max() <= SIZE**-0.5
    assert model.prelu.weight.item() == 0.25
    assert torch.equal(model.xielu.alpha_n, epigrad.nn.XIELU().alpha_n)

    nn.init.constant_(model.head.weight, 3.0)
    model.save_pretrained(tmp_path / "with")
    again = Model.from_pretrained(tmp_path / "with")
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
