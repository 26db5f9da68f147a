"""`experts`: a mixture whose experts are spread over a group of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from epigrad import errors, functional
from epigrad._core import loader
from epigrad._core.adapters import operands_of
from epigrad._core.call import GATE_NAMES, Call, call_of
from epigrad._core.checks import check_save, refuse_transforms, require_tensors
from epigrad._core.tables import ACTIVATIONS, GATED_KINDS, Argument, row_of
from epigrad._core.torch_state import any_autocast, as_experts, cast_dtype
from epigrad._core.values import LowRank
from epigrad.kinds import ActivationLike, Gated
from epigrad.ops.shapes import one_device
from epigrad.parallel.agreement import DEVICES, PARTS, Chunk, Fact, agree, facts_of
from epigrad.parallel.chunks import in_chunks, most_chunks
from epigrad.parallel.transport import Tokens

_OP = "parallel.experts"
_LOCAL = "experts"
"""What each process computes."""
_PARAMETERS = [
    f"parameter {place} of the kind"
    for place in range(max(len(row.parameters) for rows in (GATED_KINDS, ACTIVATIONS) for row in rows.values()))
]


def experts(
    input: Tensor,
    index: Tensor,
    scale: Tensor,
    weight_in: Tensor,
    bias_in: Tensor | None,
    weight_out: Tensor,
    bias_out: Tensor | None,
    kind: ActivationLike | Gated = "swiglu",
    *,
    gate: str = "second",
    save: str = "auto",
    adapter_in: LowRank | None = None,
    adapter_out: LowRank | None = None,
    group: dist.ProcessGroup | None = None,
    chunks: int | None = None,
) -> Tensor:
    """Compute a mixture of feed-forward experts, each of which one process of a group has.

    All processes of the group call it together, and all run backward, each with its own tokens. The
    result is that of `epigrad.experts` with the experts of all processes, but that what one process
    gives for a token is rounded once. A token's row is sent once to each process that has an expert
    of it, which returns the scaled sum of its experts. These parts are added in the order of ranks,
    in the accumulator's dtype: results are bitwise the same, run after run.

    A process holds the rows that come to it, which the routing decides: at worst those of all
    tokens of all processes. It forms hidden activations for the slots of its own experts only.

    Args:
        input: ``[T, K]``: this process's tokens. T may differ between processes and be 0.
        index: ``[T, k]``, int64: each token's experts among those of all processes, 0 to E-1. An
            index outside selects nothing, as in `epigrad.experts`.
        scale: ``[T, k]``: the weight of each; may be float32 beside half types.
        weight_in: ``[E/ranks, 2*H, K]``, or ``[E/ranks, H, K]`` without a gate: those of this
            process. Rank p of the group has the experts from ``p*E/ranks`` on.
        bias_in: ``[E/ranks, 2*H]`` or None.
        weight_out: ``[E/ranks, K, H]``.
        bias_out: ``[E/ranks, K]`` or None.
        kind, gate, save, adapter_in, adapter_out: as in `epigrad.experts`. Adapters are those of
            this process's experts.
        group: a process group, or None for all processes.
        chunks: in how many parts, 1 to 16, the tokens travel. On a GPU the rows of one are sent
            while others are multiplied. Each part has weight gradients of its own, which are then
            added, so that many parts cost time and, in half types, a rounding each. None is 1,
            unless rows of half types on GPUs travel longer than they are multiplied. Then it is one
            for each 16384 tokens of the process that has most, at most 4. Which takes longer is
            arithmetic: even routing, 450 GB/s among 8 GPUs of a host, 50 GB/s beyond, 550 TFLOP/s.

    Returns:
        A contiguous tensor ``[T, K]``. The host waits for the device once, for the numbers of rows;
        backward does not wait.

    Gradients:
        Those of `epigrad.experts`, to input, scale, weights, biases and adapters. Gradients of this
        process's experts are sums over the tokens of the whole group, not divided by anything.

    Raises:
        InvalidProblemError: (a ``ValueError``) wrong shapes, `save` or `chunks`, an unknown kind or
            gate, before anything is sent; and in all processes, where two of them differ in K, H,
            k, the number of their experts, dtypes, kind, gate, biases, adapters, `chunks`, batch
            invariance or what requires a gradient.
        DTypeError: (a ``TypeError``) a mix of dtypes, another dtype, not a tensor or not a group.
        UnsupportedError: (a ``NotImplementedError``) a DTensor; `torch.func`, forward mode, and
            backward with ``create_graph=True``.
        BackendUnavailableError: (a ``RuntimeError``) `torch.distributed` is not initialised.

    Source: Lepikhin et al. 2021, https://arxiv.org/abs/2006.16668.

    Examples:
        >>> import epigrad.parallel, torch
        >>> import torch.distributed as dist
        >>> # torchrun starts the processes; each has 2 of the 2 * ranks experts.
        >>> def layer(x, router, weight_in, weight_out):
        ...     scale, index = router(x).softmax(-1).topk(2)
        ...     return epigrad.parallel.experts(x, index, scale, weight_in, None, weight_out, None)
    """
    tensors = (input, index, scale, weight_in, bias_in, weight_out, bias_out)
    out: Tensor = _compute(tensors, kind, gate, save, (adapter_in, adapter_out), group, chunks)
    return out


Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor | None]
Adapters = tuple[LowRank | None, LowRank | None]


def _experts(
    tensors: Tensors,
    kind: ActivationLike | Gated,
    gate: str,
    save: str,
    adapters: Adapters,
    group: dist.ProcessGroup | None,
    chunks: int | None,
) -> Tensor:
    processes = _group_of(group)
    _check_chunks(chunks)
    check_save(_OP, save)
    call = call_of(_LOCAL, kind, 0, gate)
    operands = operands_of(_LOCAL, adapters)[0]
    _check(call, (*tensors, *operands))
    if dist.get_world_size(processes) == 1:
        options = {"gate": gate, "save": save, "adapter_in": adapters[0], "adapter_out": adapters[1]}
        return functional.experts(*tensors, kind, **options)  # type: ignore[arg-type]
    input, index, scale, *weights = tensors
    if any_autocast():  # what travels; experts cast the weights
        input, _, scale = as_experts(input, index, scale)
    local = tensors[3].shape[0]
    facts = _facts(call, (input, index, scale, *weights, *operands))
    tokens = Tokens(input, index, scale)
    columns = tensors[3].shape[1] + tensors[5].shape[2]
    most = most_chunks(processes.size(), index.shape[1], columns, input.dtype, input.device)
    parts = agree(tokens, local, facts, chunks, most, processes)

    def multiply(part: Chunk, rows: Tensor, own: Tensor, scales: Tensor) -> Tensor:
        operands = (rows, own, scales, *weights)
        slots = min(part.route.slots, own.numel())
        return functional.experts_in_rows(slots, operands, kind, save, gate, adapters)

    return in_chunks(parts, tokens, multiply)


_outside: Any = torch.compiler.disable
_compute = _outside(_experts, reason="epigrad.parallel.experts reads sizes on the host")


def _group_of(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    if not (dist.is_available() and dist.is_initialized()):
        raise errors.BackendUnavailableError(
            f"{_OP}: torch.distributed is not initialised, want a group of processes: call "
            "torch.distributed.init_process_group() in each, as in a program that torchrun starts"
        )
    found: Any = dist.group.WORLD if group is None else group
    if found == dist.GroupMember.NON_GROUP_MEMBER:
        raise errors.InvalidProblemError(f"{_OP}: group: this process is not in it, want a group that it is in")
    if not isinstance(found, dist.ProcessGroup):
        raise errors.DTypeError(f"{_OP}: group: {type(group).__name__}, want a torch.distributed.ProcessGroup or None")
    processes: dist.ProcessGroup = found
    return processes


def _check_chunks(chunks: object) -> None:
    if chunks is None:
        return
    if not isinstance(chunks, int) or isinstance(chunks, bool):
        raise errors.DTypeError(f"{_OP}: chunks: {type(chunks).__name__}, want an int or None")
    if not 1 <= chunks <= PARTS:
        raise errors.InvalidProblemError(f"{_OP}: chunks: got {chunks}, want 1 to {PARTS}, or None")


def _check(call: Call, tensors: Sequence[Tensor | None]) -> None:
    """Raise what `epigrad.experts` would for these arguments."""
    row = row_of(_LOCAL, len(tensors))
    require_tensors(_OP, **dict(zip(row.tensors, tensors, strict=True)))
    refuse_transforms(_OP, *tensors)
    for name, tensor in zip(row.tensors, tensors, strict=True):
        if isinstance(tensor, DTensor):
            raise errors.UnsupportedError(
                f"{_OP}: {name}: a DTensor, want this process's own as a plain tensor: to_local(), or "
                "epigrad.parallel.ExpertParallel for a module"
            )
    one_device(_OP, tensors)
    if (device := tensors[0].device.type) not in DEVICES:  # type: ignore[union-attr]
        raise errors.UnsupportedError(f"{_OP}: input: on {device}, want a tensor on {' or '.join(DEVICES)}")
    if any_autocast():
        tensors = [
            None if t is None else torch.empty_strided(t.shape, t.stride(), dtype=_dtype(argument, t), device="meta")
            for argument, t in zip(row.inputs, tensors, strict=True)
        ]
    loader.core().infer(call, tuple(tensors), (True, False))


def _dtype(argument: Argument, tensor: Tensor) -> torch.dtype:
    """The dtype in which a tensor is computed, under autocast too."""
    if tensor.dtype == torch.float32 and (argument.types == "wider" or argument.is_adapters):
        return tensor.dtype
    return cast_dtype(tensor)


def _facts(call: Call, tensors: Sequence[Tensor | None]) -> tuple[Fact, ...]:
    """What has to be the same in all processes."""
    input, index, scale, weight_in, bias_in, weight_out, bias_out, *operands = tensors
    assert input is not None and index is not None and scale is not None
    assert weight_in is not None and weight_out is not None
    ranks = [-1 if a is None else a.shape[1] for a in operands[::2]] or [-1, -1]
    records = torch.is_grad_enabled()
    values = {
        "device": input.device.type,
        "K": input.shape[1],
        "k, the experts of a token": index.shape[1],
        "experts of a process": weight_in.shape[0],
        "H": weight_out.shape[2],
        "input: dtype": input.dtype,
        "scale: dtype": scale.dtype,
        "kind": call.kind,
        **dict(zip(_PARAMETERS, (*call.parameters, *(0.0,) * len(_PARAMETERS)), strict=False)),
        "gate": GATE_NAMES[call.gate],
        "bias_in: given": bias_in is not None,
        "bias_out: given": bias_out is not None,
        "adapter_in: rank": ranks[0],
        "adapter_out: rank": ranks[1],
        "batch_invariant": call.batch_invariant,
        "input: requires grad": records and input.requires_grad,
        "scale: requires grad": records and scale.requires_grad,
        "any tensor: requires grad": records and any(t is not None and t.requires_grad for t in tensors),
    }
    return facts_of(tuple(values.items()))
