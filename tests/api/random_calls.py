"""Random arguments for the fast path: a program whose argument is the seed (test_control.py runs
it).

Whatever is passed, the answer is a result or a Python exception that is no report of a defect.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import epigrad
import torch
from epigrad import errors
from epigrad._core import loader, tables
from epigrad._core.call import Call


class Subclass(torch.Tensor):
    """What the fast path must not take for a plain tensor."""


def tensors() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
    x, complex_x = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.complex64)
    plain = [x, torch.ones(3), torch.ones(()), torch.ones(0, 3), x.double(), x.t(), torch.ones(3).expand(2, 3)]
    odd = [x.int(), x.to("meta"), torch.nn.Parameter(x), torch.eye(3).to_sparse(), x.as_subclass(Subclass)]
    return [*plain, *odd, complex_x, complex_x.conj().imag, quantised, None, 3, "x", [1.0]]


def main(seed: int, calls: int = 4000) -> None:
    core = loader.core()
    rng = random.Random(seed)
    pool = tensors()
    ops = [*tables.OPS, *tables.OPS, "", "nope", None, 3, "x" * 1000]
    kinds = ["relu", "glu", None, "none", "x", 3]
    scalars = [None, True, 0, -1, 2**31, 2**63, -(2**63), 2**80, 0.5, float("nan"), "relu", b"x", (), [], object()]

    def odd(usual: Any) -> Any:
        return usual if rng.random() < 0.8 else rng.choice(scalars)

    def some(most: int) -> Any:
        return odd(tuple(rng.choice(pool) for _ in range(rng.randint(0, most))))

    def numbers() -> Any:
        return odd(tuple(rng.choice((0.5, -1, float("inf"))) for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 4, 5)))))

    def call() -> Any:
        made = Call(rng.choice(ops), rng.choice(kinds), numbers(), odd(0), odd(0), odd(False), odd(None))
        return odd(made if rng.random() < 0.95 else made[: rng.randint(0, 6)])

    def needs() -> Any:
        return odd((True,) * rng.randint(0, 7))

    def shapes() -> Any:
        sizes = ((), (2, 3), (3,), (0, 3), (2**40, 2**40), (1,) * 100, None, None)
        return odd(tuple(odd(rng.choice(sizes)) for _ in range(rng.randint(0, 11))))

    def described(most: int) -> Any:
        geometry = (odd(torch.float32), odd((2, 3)), odd(rng.choice((None, None, (3, 1), (1,) * 100))))
        return odd(tuple(odd(rng.choice((geometry, None))) for _ in range(rng.randint(0, most))))

    def device() -> Any:
        return odd((odd(rng.choice((1, 2, 15))), odd(0)))

    made = epigrad.plan.Plan.select("lerp", start=(2, 3), end=(2, 3), weight=0.5, dtype=torch.float32)._plan
    choices: list[Callable[[], Any]] = [
        lambda: core.infer(call(), some(11), needs()),
        lambda: core.launch(*(call(), some(11), needs(), odd(some(7)), shapes(), None)[: rng.randint(2, 6)]),
        lambda: core.recorded(*(odd(1), *rng.sample(pool, 5))[: rng.randint(0, 6)]),
        lambda: core.plan_create(call(), described(11), described(7), odd((False,) * 3), device(), odd(False)),
        lambda: core.plan_run(odd(made), some(11), some(7), odd(None), odd(0), odd(1), odd(False)),
        lambda: core.plan_check(odd(made), some(11), some(7), odd(None), odd(False)),
    ]
    for _ in range(calls):
        try:
            rng.choice(choices)()
        except (TypeError, ValueError, OverflowError, RuntimeError):
            continue
        except errors.EpigradError as refused:
            if type(refused) is errors.EpigradError:
                raise
    assert epigrad.lerp(torch.zeros(1), torch.ones(1), 0.5).item() == 0.5
    print("alive")


if __name__ == "__main__":
    main(int(sys.argv[1]))
