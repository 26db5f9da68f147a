"""prelu and xielu: special values, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward
from torch.nn import functional

from tests.support.cases import DTYPES
from tests.support.compositions import leaves, xielu
from tests.support.devices import on_devices
from tests.support.layouts import assert_same_bits


def _kind_of(x: float) -> str:
    return "nan" if math.isnan(x) else "finite" if math.isfinite(x) else str(x)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["prelu", "xielu"])
def test_special_values(op: str, dtype: torch.dtype, device: str) -> None:
    """Zeros, NaN and infinities, among the parameters too: as PyTorch, and nothing of the side that
    is not taken comes through."""
    specials = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan]
    # PyTorch's derivative of an infinite alpha times expm1 is inf - inf
    for parameter in (0.25, 0.0, -1.5, math.nan, *([math.inf] if op == "prelu" else [])):
        for special in specials:
            x = torch.tensor([special], dtype=dtype, device=device)
            tensors = [x, *[torch.tensor([parameter], dtype=dtype, device=device)] * (1 if op == "prelu" else 2)]
            ours, theirs = leaves(tensors), leaves(tensors)
            out = getattr(epigrad, op)(*ours)
            if op == "prelu":
                want = functional.prelu(*theirs)
            else:
                a_p, a_n = functional.softplus(theirs[1]), 0.5 + functional.softplus(theirs[2])
                above = special > 0
                want = a_p * theirs[0].square() if above else a_n * (torch.expm1(theirs[0]) - theirs[0])
                want = want + 0.5 * theirs[0]
            assert _kind_of(out.item()) == _kind_of(want.item()), (parameter, special)
            grads = torch.autograd.grad(out, ours, torch.ones_like(out))
            wanted = torch.autograd.grad(want, theirs, torch.ones_like(out), allow_unused=True)
            for index, (one, other) in enumerate(zip(grads, wanted, strict=True)):
                expected = 0.0 if other is None else other.item()
                assert _kind_of(one.item()) == _kind_of(expected), (parameter, special, index)


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slopes_at_zero(dtype: torch.dtype, device: str) -> None:
    zeros, ones = torch.tensor([0.0, -0.0], dtype=dtype, device=device), torch.ones(2, dtype=dtype, device=device)
    weight = torch.tensor([0.375], dtype=dtype, device=device)
    assert backward.prelu_backward(ones, zeros, weight)[0].tolist() == [0.375] * 2
    assert backward.xielu_backward(ones, zeros, weight, weight, 0.25)[0].tolist() == [0.25] * 2


def test_small_negative_inputs_keep_their_digits() -> None:
    """exp(x) - 1 - x cancels near 0."""
    x = -torch.logspace(-6, 0, 200, dtype=torch.float64)
    alpha = torch.tensor([0.3], dtype=torch.float64)
    exact = sum(x**n / float(math.factorial(n)) for n in range(2, 24))
    got = forward.xielu(x, alpha, alpha, 0.0) / functional.softplus(alpha)
    torch.testing.assert_close(got, torch.as_tensor(exact), rtol=1e-14, atol=0)


def test_as_transformers() -> None:
    """But for its -1e-6, which differs by that times a_n."""
    activations = pytest.importorskip("transformers.activations")
    theirs = activations.XIELUActivation(dtype=torch.float64)
    x = torch.linspace(-4, 4, 401, dtype=torch.float64)
    ours = epigrad.xielu(x, theirs.alpha_p, theirs.alpha_n, 0.5)
    torch.testing.assert_close(ours, theirs(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(ours, xielu(x, theirs.alpha_p, theirs.alpha_n))


X, ONE = torch.ones(2, 3), torch.ones(1)
MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: epigrad.prelu(X, torch.ones(2)), errors.InvalidProblemError, r"prelu: weight: shape \[2\]"),
    (lambda: epigrad.prelu(X, torch.ones(1, 3)), errors.InvalidProblemError, "prelu: weight: "),
    (lambda: epigrad.prelu(torch.ones(3), torch.ones(3)), errors.InvalidProblemError, "prelu: weight: "),
    (lambda: epigrad.prelu(X, torch.ones(0)), errors.InvalidProblemError, "prelu: weight: "),
    (lambda: epigrad.xielu(X, torch.ones(3), ONE), errors.InvalidProblemError, "xielu: alpha_p: .*one element"),
    (lambda: epigrad.xielu(X, ONE, torch.ones(1, 1)), errors.InvalidProblemError, "xielu: alpha_n: .*one element"),
    (lambda: forward.prelu(X, X[0], out=X), errors.InvalidProblemError, "prelu: out: "),
    (lambda: backward.prelu_backward(X, X, ONE, needs=(True,)), errors.InvalidProblemError, "prelu_backward: needs: "),
    (
        lambda: backward.xielu_backward(X, X, ONE, ONE, out=(None, X, None)),
        errors.InvalidProblemError,
        "xielu_backward: grad_alpha_p: ",
    ),
]


@pytest.mark.parametrize("mistake", range(len(MISTAKES)))
def test_errors(mistake: int) -> None:
    call, error, text = MISTAKES[mistake]
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(
    ("beta", "error"),
    [
        *[(value, errors.DTypeError) for value in (True, "0.5", None, 1j, ONE)],
        *[(value, errors.InvalidProblemError) for value in (math.inf, -math.inf, math.nan, 10**400)],
    ],
    ids=str,
)
def test_beta_is_a_finite_number(beta: Any, error: type[Exception]) -> None:
    for call, name in (
        (lambda: epigrad.xielu(X, ONE, ONE, beta), "xielu"),
        (lambda: forward.xielu(X, ONE, ONE, beta), "xielu"),
        (lambda: backward.xielu_backward(X, X, ONE, ONE, beta), "xielu_backward"),
        (lambda: epigrad.nn.XIELU(beta), "XIELU"),
    ):
        with pytest.raises(error, match=f"^{name}: beta: "):
            call()


def test_beta_is_checked_by_the_core_too() -> None:
    """Also where a call of the same geometry was right."""
    for op in (torch.ops.epigrad.xielu, torch.ops.epigrad._xielu):
        op(X, ONE, ONE, 0.5)
        with pytest.raises((errors.InvalidProblemError, RuntimeError), match="beta: got NaN"):
            op(X, ONE, ONE, math.nan)
    assert_same_bits(forward.xielu(X, ONE, ONE, 2), forward.xielu(X, ONE, ONE, 2.0))
