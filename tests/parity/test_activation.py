"""The bare activation: values, gradients and the stateless functions, by the tolerance rule."""

from __future__ import annotations

from collections.abc import Sequence

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward
from torch import Tensor

from tests.support.cases import (
    BRIEFLY,
    DTYPES,
    GATED_SHAPES,
    IN_PRODUCTS,
    SCALES,
    Case,
    cases,
    named,
    parity,
)
from tests.support.compositions import in_float64, leaves, with_gradients
from tests.support.layouts import LAYOUTS, assert_same_bits, laid_out, unchanged
from tests.support.oracle import Sized
from tests.support.parity import Wanted, assert_parity


def _cases(op: str) -> list[Case]:
    def of(kinds: Sequence[object], shapes: Sequence[str]) -> list[Case]:
        axes = {"op": [op], "kind": kinds, "dtype": DTYPES, "shape": shapes, "layout": LAYOUTS}
        return cases(axes, {"scale": list(SCALES)})

    return of(IN_PRODUCTS, list(GATED_SHAPES)) + of(BRIEFLY, ("vector", "middle_dim", "past_block"))


def operands(case: Case) -> tuple[Tensor, Tensor]:
    generator = case.generator
    # PyTorch's worst error is looked for over further draws: nothing is summed here, so these may
    # be longer.
    shape = (257,) if case.draw else named(GATED_SHAPES, case.shape)[0]
    return case.tensor(shape, generator, 0, SCALES[case.scale]), case.tensor(shape, generator, 1)


def wanted(case: Case) -> Wanted:
    input, grad_output = operands(case)
    out, gradients = with_gradients(case.row.eager, [input], grad_output)
    out64, gradients64 = in_float64(case.row.value, [input], grad_output)
    x, grad = Sized.of(input, case.dtype), Sized.of(grad_output, case.dtype)
    reference = (x.through(case.row), grad * x.through(case.row, 1))
    return Wanted(reference, (out, *gradients), (out64, *gradients64))


@parity(_cases("activation"))
def test_activation(case: Case) -> None:
    input, grad_output = operands(case)
    (leaf,) = leaves([input])
    with unchanged(input, grad_output):
        out = epigrad.activation(leaf, case.kind)
        (gradient,) = torch.autograd.grad(out, [leaf], grad_output, retain_graph=True)
        (again,) = torch.autograd.grad(out, [leaf], grad_output)
        assert_same_bits(forward.activation(input, case.kind), out.detach())
        assert_same_bits(backward.activation_backward(grad_output, input, case.kind), gradient)
    assert out.is_contiguous(), "functional outputs are contiguous"
    assert_same_bits(gradient, again, "second backward under retain_graph")
    assert_parity(("out", "grad_input"), (out.detach(), gradient), case, wanted)


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
