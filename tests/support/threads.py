"""Runs work in several threads that start together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

WORKERS = 8


def at_once(work: Callable[[int], None], workers: int = WORKERS) -> None:
    """Runs `work` in several threads that start together; the first failure is raised here."""
    gate = threading.Barrier(workers)

    def started(number: int) -> None:
        gate.wait(30)
        work(number)

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(started, number) for number in range(workers)]:
            done.result(120)
