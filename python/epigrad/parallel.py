"""Tensor parallelism for gated layers: how the ``up`` of `epigrad.nn.GatedMLP` is sharded.

Every other layer takes PyTorch's own styles. This module imports `torch.distributed.tensor`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel
from torch.distributed.tensor.placement_types import _StridedShard

from epigrad import errors

__all__ = ["GatedColwiseParallel"]


class GatedColwiseParallel(ColwiseParallel):
    """Shard a `Linear` of ``2*H`` rows so that each device has its part of the values and the same
    part of the gates.

    `ColwiseParallel` would give the values to some devices and the gates to the others. Here the
    local output ``[..., 2*H/n]`` has halves of its own, so that the gated activation needs no
    communication, and its result is what `RowwiseParallel` takes. The parameters are DTensors as
    ever: ``full_tensor`` has the rows in their order. A layer whose values and gates take turns
    (``gate="odd"`` or ``"even"``) takes PyTorch's `ColwiseParallel`.

    Args:
        input_layouts: how the input lies, as in `ColwiseParallel`.
        use_local_output: give a plain tensor; False gives a DTensor.

    Raises:
        UnsupportedError: (a ``NotImplementedError``) when a layer is sharded with PyTorch before
            2.12, which cannot gather such shards.

    Examples:
        >>> from torch.distributed.tensor.parallel import RowwiseParallel
        >>> from epigrad.parallel import GatedColwiseParallel
        >>> # parallelize_module of a GatedMLP takes this plan.
        >>> plan = {"up": GatedColwiseParallel(), "down": RowwiseParallel()}
    """

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        if torch.__version__ < "2.12":
            raise errors.UnsupportedError(
                f"GatedColwiseParallel: torch: got {torch.__version__}, want 2.12 or newer, which gathers such shards"
            )
        for key, parameter in module.named_parameters(recurse=False):
            sharded = distribute_tensor(
                parameter, device_mesh, [_StridedShard(0, split_factor=2)], src_data_rank=self.src_data_rank
            )
            module.register_parameter(key, nn.Parameter(sharded, requires_grad=parameter.requires_grad))

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: nn.Module, outputs: DTensor, device_mesh: DeviceMesh
    ) -> Any:
        # The output lies as the rows of the weight do, which no public placement says.
        return outputs.to_local() if use_local_output else outputs
