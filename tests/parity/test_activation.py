"""The bare activation: outputs in any layout, and what is refused."""

from __future__ import annotations

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward

from tests.support.layouts import LAYOUTS, assert_same_bits, laid_out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_takes_any_layout(layout: str) -> None:
    x, grad = torch.randn(4, 6), torch.randn(4, 6)
    for want, run in (
        (forward.activation(x, "gelu"), lambda out: forward.activation(x, "gelu", out=out)),
        (
            backward.activation_backward(grad, x, "silu"),
            lambda out: backward.activation_backward(grad, x, "silu", out=out),
        ),
    ):
        out = laid_out(torch.full((4, 6), torch.nan), torch.float32, layout)
        if any(stride == 0 for stride in out.stride()):
            with pytest.raises(errors.InvalidProblemError, match="overlap"):
                run(out)
        else:
            assert run(out) is out
            assert_same_bits(out.contiguous(), want)


def test_errors() -> None:
    x = torch.ones(2, 3)
    for call, error, text in (
        (lambda: epigrad.activation(x, "swash"), errors.InvalidProblemError, "activation: activation: 'swash'"),
        (lambda: epigrad.activation(x.int(), "relu"), errors.DTypeError, "activation: input: "),
        (lambda: epigrad.activation([1.0], "relu"), errors.DTypeError, "activation: input: "),
        (lambda: forward.activation(x, "relu", out=x), errors.InvalidProblemError, "activation: out: "),
        (
            lambda: backward.activation_backward(x[:1], x, "relu"),
            errors.InvalidProblemError,
            "activation_backward: grad_output: ",
        ),
    ):
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value).startswith(text)
