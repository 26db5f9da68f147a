"""What computes: names and facts for the head of a record."""

from __future__ import annotations

import pathlib
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from epigrad._core import selection


def backend(name: str) -> str | None:
    """What a backend says of itself: the engine on a CPU, the device on a GPU."""
    return next((info.detail for info in selection.backends() if info.name == name), None)


def cpu_name() -> str:
    """The processor's model, where the system tells."""
    try:
        match = re.search(r"^model name\s*: (.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def cuda_facts(device: torch.device) -> dict[str, Any]:
    """A GPU, its driver, and the commit of epigrad."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "memory": properties.total_memory,
        "capability": list(torch.cuda.get_device_capability(device)),
        "processors": properties.multi_processor_count,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "backend": backend("cuda"),
        "commit": commit(),
    }


def memory(forward: Callable[[], Tensor], backward: Callable[[Tensor], Sequence[Tensor]]) -> dict[str, int]:
    """Bytes on a GPU: those kept between forward and backward beside the output, and the most that
    both take, beside what was there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = forward()
    kept = torch.cuda.memory_allocated() - before - out.nbytes
    gradients = backward(out)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del gradients
    return {"kept": kept, "peak": peak}


def facts(device: torch.device) -> dict[str, Any]:
    """What a record says of a CPU or a GPU."""
    if device.type == "cuda":
        return cuda_facts(device)
    return {"threads": torch.get_num_threads(), "backend": backend("cpu"), "commit": commit()}


def name(device: torch.device) -> str:
    """A GPU's name, or the processor's model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def commit() -> str | None:
    """The commit of the repository that this package is used from, marked where the tree differs
    from it."""
    asked = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty", "--match", "v*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _driver() -> str | None:
    """The driver's version, where the system tells."""
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            text = f" {subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout} "
        except (OSError, subprocess.SubprocessError):
            return None
    match = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return match[1] if match else None
