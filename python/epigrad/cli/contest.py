"""Candidates for one result, measured against each other.

What they return is allocated in the time that is measured. On a CPU a ratio is that of their
fastest rounds: others of the machine can only make a round slower. On a GPU it is that of medians.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from epigrad.cli.machine import memory
from epigrad.cli.report import Row, failure
from epigrad.cli.timing import in_turns

Function = Callable[..., Tensor]
Pair = tuple[Function, Function]
"""epigrad's function and PyTorch's."""

# Fields of a row, each a candidate's time over another's.
RATIOS = (
    ("ratio", "epigrad", "eager"),
    ("ratio_to_compile", "epigrad", "compile"),
    ("ratio_compiled", "epigrad compile", "compile"),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to compute: a call, and the tensors that get a gradient, if any do."""

    forward: Function
    wanted: Sequence[Tensor] = ()

    def backward(self, grad: Tensor | None, out: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(out, self.wanted, grad, allow_unused=True) if self.wanted else ()
        return [gradient for gradient in found if gradient is not None]

    def step(self, grad: Tensor | None) -> list[Tensor]:
        out = self.forward()
        return [out.detach(), *self.backward(grad, out)]


def contest(
    candidates: Mapping[str, Candidate], device: torch.device, seconds: float, wanted: int = 0, host: bool = False
) -> Row:
    """A row of candidates that take turns: times by the device's clock or the host's, ratios, how
    far epigrad's results lie from eager's, and on a GPU the memory. `wanted` rounds are worth up to
    ten times the seconds. A candidate that only `torch.compile` makes may fail."""
    on_cuda = device.type == "cuda"
    with torch.no_grad():
        out = candidates["eager"].forward()
    grad = torch.randn_like(out) if out.ndim else None
    row: Row = {}
    results = {}
    for name, candidate in candidates.items():
        try:
            results[name] = candidate.step(grad)
        except Exception as error:  # whatever a compiler may raise: the row says so
            if "compile" not in name:
                raise
            row["compile_error"] = failure(error)
    steps: dict[str, Callable[[], object]] = {name: partial(candidates[name].step, grad) for name in results}
    row["difference"] = distance(results["epigrad"], results["eager"])
    del results
    if on_cuda and candidates["epigrad"].wanted:
        row["memory"] = {n: memory(candidates[n].forward, partial(candidates[n].backward, grad)) for n in steps}
    if on_cuda and host:
        steps = {name: partial(_finished, step) for name, step in steps.items()}
    timings = in_turns(steps, torch.device("cpu") if host else device, seconds, wanted)
    row |= {name: asdict(timing) for name, timing in timings.items()}
    for field, ours, other in RATIOS:
        if ours in timings and other in timings:
            pair = (timings[name].median if on_cuda else timings[name].fastest for name in (ours, other))
            row[field] = next(pair) / next(pair)
    return row


def _finished(step: Callable[[], object]) -> None:
    step()
    torch.cuda.synchronize()


def distance(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The 2-norm of the difference of two lists of tensors, each as one vector, over the norm of
    the second."""
    differences = [(a.to(b) - b).norm(dtype=torch.float64).item() for a, b in zip(got, wanted, strict=True)]
    return math.hypot(*differences) / math.hypot(*(b.norm(dtype=torch.float64).item() for b in wanted))


def paired(pair: Pair, tensors: Sequence[Tensor], gradients: Sequence[Tensor], compiled: bool) -> dict[str, Candidate]:
    """Both functions of a pair, and PyTorch's compiled."""
    functions = dict(zip(("epigrad", "eager"), pair, strict=True))
    if compiled:
        torch._dynamo.reset()  # far from its limit of recompilations
        functions["compile"] = torch.compile(pair[1], dynamic=False)
    return {name: Candidate(partial(function, *tensors), gradients) for name, function in functions.items()}
