"""Layers over several processes: experts, each of which one process has, and gated layers under
tensor parallelism. Every other layer takes PyTorch's own styles. In reading order:

    mixture     `experts`: a mixture whose experts are spread over a group of processes
    agreement   what goes where, and whether all processes mean the same mixture
    chunks      parts of the tokens one after the other, or side by side on a GPU
    transport   rows on their way to the processes that have their experts, and back
    styles      `ExpertParallel` and `GatedColwiseParallel`, for `parallelize_module`

Importing it imports `torch.distributed.tensor`.
"""

from __future__ import annotations

from epigrad.parallel.mixture import experts
from epigrad.parallel.styles import ExpertParallel, GatedColwiseParallel

__all__ = ["ExpertParallel", "GatedColwiseParallel", "experts"]
