"""Kernels that ran on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch


def on_hopper() -> bool:
    return torch.cuda.get_device_capability() == (9, 0)


def kernels_of(run: Callable[[], object]) -> list[str]:
    """The names of all kernels that a function runs, each once."""
    with torch.profiler.profile(acc_events=True) as profiler:
        run()
        torch.cuda.synchronize()
    return [event.key for event in profiler.key_averages()]
