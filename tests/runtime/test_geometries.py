"""What the extension remembers of geometries: a call like one before asks Go for nothing but its work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from epigrad import _native, library
from epigrad.call import Call

# In a process of its own, which remembers nothing of other tests. When each geometry had one place of 512, every round
# forgot 24 of the 100.
PROGRAM = """
import torch, epigrad
from epigrad import _native, forward
whole = torch.ones(120, 8)
epigrad.backends()
def asked(rows):
    before = _native.inferred()
    for count in range(1, rows + 1):
        out = forward.lerp(whole[:count], whole[:count], 0.5)
        assert out.shape == (count, 8)
    return _native.inferred() - before
print(asked(50), asked(50), asked(100), asked(100), asked(100))
"""


def test_geometries_that_share_a_place_do_not_drive_each_other_out() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-5:] == ["50", "0", "50", "0", "0"]


SQUARE = torch.ones(2, 2)
LINEAR, LEAKY = Call("linear", "silu"), Call("linear", "leaky_relu", (0.25,))
GATED = Call("gated_activation", "glu", dim=1)
CHANGES: dict[str, tuple[Call, Call, tuple[torch.Tensor, ...], tuple[bool, ...]]] = {
    "op": (LINEAR, LINEAR._replace(op="matmul_bias_activation"), (SQUARE, SQUARE), (True,)),
    "kind": (LINEAR, LINEAR._replace(kind="tanh"), (SQUARE, SQUARE), (True,)),
    "parameters": (LEAKY, LEAKY._replace(parameters=(0.5,)), (SQUARE, SQUARE), (True,)),
    "dim": (GATED, GATED._replace(dim=0), (SQUARE,), (True,)),
    "gate": (GATED, GATED._replace(gate=1), (SQUARE,), (True,)),
    "accumulate": (
        Call("linear_backward"),
        Call("linear_backward", accumulate=True),
        (SQUARE, SQUARE, SQUARE),
        (False, True, False),
    ),
    "backend": (LINEAR, LINEAR._replace(backend="cpu"), (SQUARE, SQUARE), (True,)),
}


def asked(call: Callable[[], object]) -> int:
    """How often Go is asked for outputs."""
    before = _native.inferred()
    call()
    return _native.inferred() - before


@pytest.mark.parametrize("field", Call._fields)
def test_every_field_of_a_call_is_in_the_key(field: str) -> None:
    one, other, inputs, needs = CHANGES[field]
    assert [a == b for a, b in zip(one, other, strict=True)].count(False) == 1
    infer = library.core().infer
    infer(one, inputs, needs)
    asked_again = asked(lambda: infer(one, inputs, needs))
    assert (asked_again, asked(lambda: infer(other, inputs, needs))) == (0, 1)
    assert asked(lambda: infer(other, inputs, needs)) == 0


def test_parameters_are_checked_though_the_geometry_is_known() -> None:
    core = library.core()
    core.launch(LEAKY, (SQUARE, SQUARE), (True,))
    with pytest.raises(ValueError, match="slope: got NaN"):
        core.launch(LEAKY._replace(parameters=(float("nan"),)), (SQUARE, SQUARE), (True,))


def test_any_number_of_lerp_has_one_entry() -> None:
    core = library.core()
    core.launch(Call("lerp", None, (0.5,)), (SQUARE, SQUARE), (True,))
    for weight in (0.25, -3.0, float("inf")):
        call = Call("lerp", None, (weight,))
        assert asked(lambda call=call: core.launch(call, (SQUARE, SQUARE), (True,))) == 0
