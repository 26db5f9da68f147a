"""Mixtures of experts in which most slots select nothing. In expert parallelism a process gets all
slots of a token, but has only some of their experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from epigrad._core.call import Call
from epigrad._core.launcher import Launcher, Tensors
from epigrad._core.tables import OPS

SPREAD = "epigrad_experts_spread"
"""The attribute of transformers' experts whose parameters are those of a process."""


@dataclass(frozen=True, slots=True)
class InRows:
    """A launcher of mixtures in which at most `rows` slots select an expert. It gives the core a
    preactivation of `rows` rows, so that the core makes no tensor with more."""

    core: Launcher
    rows: int

    def launch(
        self,
        call: Call,
        inputs: Tensors,
        needs: tuple[bool, ...],
        outputs: Tensors | None = None,
        shapes: Any = None,
    ) -> Tensors:
        row = OPS[call.op]
        if not row.is_backward:
            return self._forward(call, inputs, needs)
        place = row.tensors.index("preactivation")
        if inputs[place] is None and inputs[row.tensors.index("weight_in")] is not None:
            # Formed again, if it is read at all.
            forward = call._replace(op=row.forward, accumulate=False)
            _, kept = self._forward(forward, inputs[1:place] + inputs[place + 1 :], (False, True))
            inputs = (*inputs[:place], kept, *inputs[place + 1 :])
        return self.core.launch(call, inputs, needs, outputs, shapes)

    def _forward(self, call: Call, inputs: Tensors, needs: tuple[bool, ...]) -> Tensors:
        input, weight = inputs[0], inputs[OPS[call.op].tensors.index("weight_in")]
        assert input is not None and weight is not None
        kept = input.new_empty(self.rows, weight.shape[1])
        out, _ = self.core.launch(call, inputs, (needs[0], True), (None, kept))
        return out, kept if needs[1] else None
