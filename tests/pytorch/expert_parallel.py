"""One of the processes of test_expert_parallel.py: experts spread over processes, each check beside
one process that has them all.

    python -m tests.pytorch.expert_parallel RANK WORLD PORT DEVICE [CHECK ...]

Prints a line ``ok CHECK`` for each check that passed, and ends with the first failure's traceback.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.pytorch.spread import agreement, modes, modules, results

CHECKS: dict[str, Callable[[str], None]] = {
    "equality": results.equality,
    "bits": results.bits,
    "chosen chunks": results.chosen_chunks,
    "batch invariance": results.batch_invariance,
    "adapters": results.adapters,
    "wide gradients": results.wide_gradients,
    "some gradients": results.some_gradients,
    "strides": results.strides,
    "autocast": modes.under_autocast,
    "checkpoint": modes.under_checkpoint,
    "compile": modes.compiled,
    "watched": modes.watched,
    "groups": agreement.groups,
    "disagreement": agreement.disagreement,
    "bad arguments": agreement.bad_arguments,
    "memory": results.memory,
    "style": modules.style,
    "DDP": modules.with_ddp,
}
OF_FOUR: dict[str, Callable[[str], None]] = {"FSDP2": modules.with_fsdp, "FSDP2 over all": modules.with_fsdp_over_all}
"""Checks of four processes or more."""


def main(rank: int, world: int, port: int, device: str, names: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    timeout = timedelta(seconds=20 if "death" in names else 120)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timeout)
    for name in names or CHECKS:
        try:
            (CHECKS | OF_FOUR | {"death": agreement.death})[name](device)
        except Exception as error:
            raise AssertionError(name) from error
        print("ok", name, flush=True)
    # As distributed.py: Gloo's threads may hold tensors still.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
