"""What `torch.distributed.tensor.parallel.parallelize_module` does with experts, and with the
``up`` of `epigrad.nn.GatedMLP`. Every other layer takes PyTorch's own styles.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle
from torch.distributed.tensor.placement_types import _StridedShard

from epigrad import errors
from epigrad._core.mixtures import SPREAD
from epigrad._core.tables import is_half
from epigrad._core.wide import DECLARES
from epigrad.nn import Experts
from epigrad.parallel.mixture import experts


class ExpertParallel(ParallelStyle):
    """Spread the experts of a module over the processes of a mesh: each has as many of them, whole,
    and tokens travel to them by `epigrad.parallel.experts`.

    The module is an `epigrad.nn.Experts`, or experts of transformers that epigrad computes
    (`epigrad.integrations.transformers.patch`, or ``set_experts_implementation("epigrad")``). Its
    parameters become DTensors that are sharded by experts, so that state dicts and
    `torch.distributed.checkpoint` hold all of them. It is called as before, in all processes
    together, each with its own tokens and with the numbers of experts among all. The gradient of a
    parameter is the sum over the tokens of all processes, not divided by anything.

    PEFT's adapters of experts (``target_parameters``) stay whole in each process, which uses those
    of its own experts. So its gradients of adapters are a part, whose sum over processes counts.

    Raises:
        InvalidProblemError: (a ``ValueError``) when a module is sharded whose experts are no
            multiple of the processes, or a mesh of several dimensions.
        UnsupportedError: (a ``NotImplementedError``) when another module is; in a call, a parameter
            with ``grad_dtype`` float32 before PyTorch 2.15, or adapters that PEFT would compute.

    Examples:
        >>> from torch.distributed.tensor.parallel import parallelize_module
        >>> from epigrad.parallel import ExpertParallel
        >>> plan = {"layers.*.experts": ExpertParallel()}
        >>> # parallelize_module(model, mesh["ep"], plan)
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        wrapped: Any = getattr(module, "get_base_layer", None)  # of PEFT's wrapper of a parameter
        if wrapped is not None:
            self._apply(wrapped(), device_mesh)
            return module
        is_own = isinstance(module, Experts)
        if not is_own and getattr(getattr(module, "config", None), "_experts_implementation", None) != "epigrad":
            raise errors.UnsupportedError(
                f"ExpertParallel: {type(module).__name__}, want an epigrad.nn.Experts, or transformers' experts after "
                "epigrad.integrations.transformers.patch(model)"
            )
        if device_mesh.ndim != 1:
            raise errors.InvalidProblemError(
                f'ExpertParallel: a mesh of {device_mesh.ndim} dimensions, want one of them: mesh["ep"]'
            )
        parameters = list(module.named_parameters(recurse=False))
        for name, parameter in parameters:
            if parameter.shape[0] % device_mesh.size():
                raise errors.InvalidProblemError(
                    f"ExpertParallel: {name}: {parameter.shape[0]} experts, want a multiple of the mesh's "
                    f"{device_mesh.size()} processes"
                )
        for name, parameter in parameters:
            sharded = distribute_tensor(parameter, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank)
            module.register_parameter(name, nn.Parameter(sharded, requires_grad=parameter.requires_grad))
        if is_own:
            module.forward = types.MethodType(_forward, module)
        else:
            module.__dict__[SPREAD] = True
        return module


def _forward(module: Experts, input: Tensor, index: Tensor, scale: Tensor) -> Tensor:
    """`Experts.forward` with sharded parameters."""
    whole: Any = (module.weight_in, module.bias_in, module.weight_out, module.bias_out)
    group = whole[0].device_mesh.get_group()
    weight_in, bias_in, weight_out, bias_out = [local(parameter) for parameter in whole]
    options: Any = {"gate": module.gate, "save": module.save, "group": group}
    return experts(input, index, scale, weight_in, bias_in, weight_out, bias_out, module.kind, **options)


def local(parameter: Any, transposed: bool = False) -> Any:
    """This process's part of a parameter, which may be None; or of its transpose."""
    if isinstance(parameter, DTensor):
        if is_half(parameter.dtype) and getattr(parameter, "grad_dtype", None) is torch.float32:
            if not DECLARES:
                raise errors.UnsupportedError(
                    f"ExpertParallel: a parameter whose grad_dtype is float32: PyTorch {torch.__version__} rounds its "
                    "gradient to 16 bits: want PyTorch 2.15 or newer"
                )
            return _Local.apply(parameter, transposed)
        parameter = parameter.to_local()
    return parameter.mT if transposed else parameter


class _Local(Function):
    """`DTensor.to_local`, and a transpose, whose gradients stay float32. PyTorch would round them
    to the dtype of the part."""

    @staticmethod
    def forward(ctx: Any, parameter: DTensor, transposed: bool) -> Tensor:
        ctx.set_output_grad_dtype(torch.float32)
        ctx.mesh, ctx.placements, ctx.transposed = parameter.device_mesh, parameter.placements, transposed
        part: Tensor = parameter.to_local().detach()
        return part.mT if transposed else part

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        part = grad.mT if ctx.transposed else grad
        return DTensor.from_local(part, ctx.mesh, ctx.placements, run_check=False), None


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
            2.12, which cannot gather such shards; for ``state_dict``, where FSDP2 has sharded the
            same rows.

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
        module.register_state_dict_pre_hook(_refuse_rows_sharded_twice)  # type: ignore[no-untyped-call]

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, mod: nn.Module, outputs: DTensor, device_mesh: DeviceMesh
    ) -> Any:
        # The output lies as the rows of the weight do, which no public placement says.
        return outputs.to_local() if use_local_output else outputs


def _refuse_rows_sharded_twice(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """A state-dict hook. FSDP2 takes the rows of a device for those of one block, and says so of
    its shards: ``full_tensor`` and checkpoints would have values and gates in a wrong order.
    """
    for key, parameter in module.named_parameters(recurse=False):
        if not isinstance(parameter, DTensor):
            continue
        ways = zip(parameter.placements, parameter.device_mesh.shape, strict=True)
        if sum(isinstance(way, Shard | _StridedShard) and way.dim == 0 and size > 1 for way, size in ways) > 1:
            raise errors.UnsupportedError(
                f"GatedColwiseParallel: {prefix}{key}: FSDP2 has sharded its rows, want fully_shard with a "
                "shard_placement_fn that shards columns, and no bias"
            )
