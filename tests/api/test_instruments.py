"""What epigrad.instruments measures, on a clock of the tests' own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from epigrad import instruments


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Processor seconds, which calls add to."""
    now = [0.0]
    monkeypatch.setattr(instruments.time, "process_time", lambda: now[0])
    return now


def taking(clock: list[float], *seconds: float) -> Callable[[], None]:
    """A call that takes so many processor seconds, in one round after the other."""
    rounds = iter(seconds)

    def call() -> None:
        clock[0] += next(rounds)

    return call


def test_times_are_the_fewest_processor_seconds_after_the_first_round(clock: list[float]) -> None:
    calls = {"a": taking(clock, 1, 5, 3, 4, 9, 8), "b": taking(clock, 9, 9, 9, 9, 9, 7)}
    assert instruments.times(calls, seconds=0) == {"a": 3, "b": 7}


def test_times_are_of_one_thread_and_leave_their_number_as_it_was() -> None:
    before = torch.get_num_threads()
    seen = set()

    def fails() -> None:
        raise RuntimeError("a call's own")

    torch.set_num_threads(2)
    try:
        instruments.times({"a": lambda: seen.add(torch.get_num_threads())}, seconds=0)
        assert (seen, torch.get_num_threads()) == ({1}, 2)
        with pytest.raises(RuntimeError, match="a call's own"):
            instruments.times({"a": fails}, seconds=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
