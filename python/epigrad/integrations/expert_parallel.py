"""``"epigrad"`` as a transport of transformers' expert parallelism.

transformers 5.24 has a registry of transports: classes that bring tokens to the processes of their
experts. Importing this registers one, for experts that epigrad computes, once that part of
transformers is imported.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from epigrad._core.mixtures import SPREAD
from epigrad.integrations.experts import NAME, computed
from epigrad.ops.import_hook import after_import

_ROOM = "transformers.distributed.expert_parallel"


def transport(base: Any) -> Any:
    """The class that transformers makes one of for each module of experts."""

    class EpigradEP(base):  # type: ignore[misc]
        """Tokens travel by `epigrad.parallel.experts`. Processes of a mesh of tensor parallelism
        have the same tokens: each sends a part of them, and gets the output of all."""

        def __init__(self, experts: Any, ep_mesh: Any, tp_mesh: Any) -> None:
            super().__init__(experts, ep_mesh, tp_mesh)
            self.experts = experts
            experts.__dict__[SPREAD] = True

        def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
            given = (hidden_states, top_k_index, top_k_weights)
            group = self.ep_mesh.get_group()
            if self.tp_mesh.size() == 1:
                return computed(self.experts, *given, group)
            from torch.distributed.tensor import DTensor, Replicate, Shard

            def own(tensor: Tensor) -> Any:
                whole = DTensor.from_local(tensor, self.tp_mesh, [Replicate()], run_check=False)
                return whole.redistribute(self.tp_mesh, [Shard(0)]).to_local()

            tokens, index, weights = map(own, given)
            out = computed(self.experts, tokens, index, weights, group, self.tp_mesh)
            shape = hidden_states.shape
            parts = DTensor.from_local(
                out.contiguous(), self.tp_mesh, [Shard(0)], run_check=False, shape=shape, stride=(shape[1], 1)
            )
            gathered: Tensor = parts.full_tensor()
            return gathered

    return EpigradEP


def _at_import() -> None:
    room = sys.modules[_ROOM]
    interface = getattr(room, "EPImplementationInterface", None)
    if interface is not None:
        interface.register(NAME, transport(room.EPImplementation))


after_import(_ROOM, _at_import)
