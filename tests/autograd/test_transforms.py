"""torch.func: vmap, grad, jacrev, hessian, forward mode, functional_call; and autograd's own
batches of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import epigrad
import pytest
import torch
from epigrad import errors
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.utils._pytree import tree_leaves

from tests.support.devices import needs, on_devices
from tests.support.features import feature
from tests.support.operators import FUNCTIONS, NAMES, each_function


def doubles(op: str, device: str) -> list[Tensor]:
    return [t.detach() for t in FUNCTIONS[op].tensors(device, torch.float64)]


def assert_close(got: Any, want: Any) -> None:
    for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(one, other)


def batches(op: str, count: int) -> list[tuple[int | None, ...]]:
    """Which operands have a batch, and where: each alone, in front and behind, and all."""
    alone = [tuple(dim if place == own else None for place in range(count)) for own in range(count) for dim in (0, -1)]
    return [*alone, (0,) * count]


@feature("vmap")
@on_devices
@each_function
def test_vmap_is_a_call_for_each_slice(op: str, device: str) -> None:
    function, tensors = FUNCTIONS[op].function, doubles(op, device)
    for dims in batches(op, len(tensors)):
        stacked = [
            t if dim is None else torch.stack([t, t.sin(), 2 * t], dim).requires_grad_()
            for t, dim in zip(tensors, dims, strict=True)
        ]
        slices = [
            [t if dim is None else t.select(dim, index) for t, dim in zip(stacked, dims, strict=True)]
            for index in range(3)
        ]
        got, want = vmap(function, dims)(*stacked), torch.stack([function(*each) for each in slices])
        torch.testing.assert_close(got, want)
        leaves = [t for t in stacked if t.requires_grad]
        assert_close(torch.autograd.grad(got.sin().sum(), leaves), torch.autograd.grad(want.sin().sum(), leaves))


def test_vmap_of_products_in_all_ranks() -> None:
    shapes = [((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4))]
    for a_shape, b_shape in [*shapes, ((5, 1, 2, 3), (6, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,))]:
        bias = torch.randn(b_shape[-1] if len(b_shape) > 1 else (), dtype=torch.float64)
        for dims in ((0, None, None), (None, 0, None), (0, 0, None), (1, 0, None)):
            if dims[0] == 1 and len(a_shape) < 1:
                continue
            a, b = (
                torch.randn(shape if dim is None else (*shape[:dim], 7, *shape[dim:]), dtype=torch.float64)
                for shape, dim in zip((a_shape, b_shape), dims, strict=False)
            )

            def call(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
                return epigrad.matmul_bias_activation(a, b, bias, "tanh")

            def eager(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
                return torch.tanh(a @ b + bias)

            torch.testing.assert_close(vmap(call, dims)(a, b, bias), vmap(eager, dims)(a, b, bias))


def test_a_batch_does_not_become_the_channels_of_prelu() -> None:
    x, weight = torch.randn(3, 5), torch.rand(3)
    with pytest.raises(errors.InvalidProblemError, match="prelu: weight: shape"):
        vmap(lambda sample: epigrad.prelu(sample, weight))(x)
    want = torch.nn.functional.prelu(x, weight[:1])
    torch.testing.assert_close(vmap(lambda sample: epigrad.prelu(sample, weight[:1]))(x), want)


def test_what_the_kernels_refuse_is_refused_under_transforms() -> None:
    x, one = torch.randn(4, 5), torch.ones(1)
    for function, error, text in (
        (lambda t: epigrad.xielu(t, torch.ones(5), one), errors.InvalidProblemError, "xielu: alpha_p: shape"),
        (lambda t: epigrad.xielu(t, one.double(), one), errors.DTypeError, "xielu: .*float64"),
        (lambda t: epigrad.gated_product(t, torch.ones(5)), errors.InvalidProblemError, "gated_product: gate: shape"),
        (lambda t: epigrad.linear(t, x, one), errors.InvalidProblemError, "linear: bias: shape"),
    ):
        with pytest.raises(error, match=text):
            grad(lambda t, call=function: call(t).sum())(x)


class Groups(torch.nn.Module):
    def forward(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return epigrad.grouped_linear(x, weight, activation="gelu", offsets=ends)


def _loss(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return Groups()(x, weight, ends).sin().sum()  # type: ignore[no-any-return]


WRONG_OFFSETS = pytest.mark.parametrize("offsets", [[4, 2, 6], [-1, 2, 5], [1, 2, 9]], ids=str)


@WRONG_OFFSETS
def test_offsets_that_make_no_sense_are_refused_on_a_cpu(offsets: list[int]) -> None:
    """By the formulas as by the kernels, wherever there is data to look at."""
    x, weight, ends = torch.randn(6, 3), torch.randn(3, 4, 3), torch.tensor(offsets)

    def run(weight: Tensor, ends: Tensor = ends) -> Tensor:
        return _loss(x, weight, ends)

    def of_dual() -> Tensor:
        with forward_ad.dual_level():
            return run(forward_ad.make_dual(weight, weight))  # type: ignore[no-untyped-call]

    def of_backward() -> Any:
        gradients = torch.ops.epigrad.grouped_linear_backward
        return grad(lambda g: gradients(g, x, weight, None, ends, "gelu")[1].sum())(torch.ones(6, 4))

    calls: list[Callable[[], Any]] = [
        lambda: grad(run)(weight),
        lambda: grad(run)(weight, ends),
        lambda: torch.func.functionalize(grad(run))(weight, ends),
        lambda: jacrev(run)(weight),
        lambda: jvp(run, (weight,), (weight,)),
        lambda: hessian(run)(weight),
        lambda: vmap(grad(run))(torch.stack([weight, weight])),
        lambda: vmap(run, (None, 0))(weight, torch.stack([ends, ends])),
        of_dual,
        of_backward,
    ]
    for call in calls:
        with pytest.raises(errors.InvalidProblemError, match=r"grouped_linear\w*: offsets: offsets\[\d\] is"):
            call()


@WRONG_OFFSETS
def test_the_formulas_clamp_offsets_that_they_cannot_see(offsets: list[int]) -> None:
    """As the kernels of a GPU do: each group begins where the one before ended."""
    x, weight = torch.randn(6, 3, dtype=torch.float64), torch.randn(3, 4, 3, dtype=torch.float64)
    ends = torch.tensor(offsets)
    sensible = ends.clamp(0, 6).cummax(0).values

    gradients = grad(_loss, (0, 1))
    assert_close(
        vmap(gradients, (None, None, 0))(x, weight, ends[None]), [g[None] for g in gradients(x, weight, sensible)]
    )
    program = torch.export.export(Groups(), (x, weight, torch.tensor([1, 2, 6]))).run_decompositions()
    assert_close(program.module()(x, weight, ends), Groups()(x, weight, sensible))


@needs("cuda")
@WRONG_OFFSETS
def test_a_gpu_clamps_offsets_in_the_formulas_too(offsets: list[int]) -> None:
    x, weight = (torch.randn(*shape, dtype=torch.float64, device="cuda") for shape in ((6, 3), (3, 4, 3)))
    ends = torch.tensor(offsets, device="cuda")
    sensible = ends.clamp(0, 6).cummax(0).values

    def second(ends: Tensor) -> tuple[Tensor, ...]:
        """A gradient with a graph, and its own gradients."""
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        first = torch.autograd.grad(_loss(*leaves, ends), leaves, create_graph=True)
        return *first, *torch.autograd.grad(sum(part.square().sum() for part in first), leaves)

    gradients = grad(_loss, (0, 1))
    assert_close(gradients(x, weight, ends), gradients(x, weight, sensible))
    assert_close(second(ends), second(sensible))
    assert_close(second(ends)[:2], gradients(x, weight, ends))


def test_vmap_of_an_empty_batch_and_of_halves_along_another_dim() -> None:
    x = torch.randn(0, 3, 4)
    for function, shape in (
        (lambda x: epigrad.linear(x, torch.ones(5, 4)), (0, 3, 5)),
        (lambda x: epigrad.linear(x[0], torch.ones(5, 4), x[0, 0].expand(5)), (0, 5)),
        (epigrad.gated_activation, (0, 3, 2)),
    ):
        assert vmap(function)(x).shape == shape
    x = torch.randn(5, 6, 3)
    want = torch.stack([epigrad.gated_activation(each, dim=0) for each in x])
    torch.testing.assert_close(vmap(lambda x: epigrad.gated_activation(x, dim=0))(x), want)
    nested = vmap(vmap(epigrad.gated_activation))(torch.randn(2, 3, 4))
    assert nested.shape == (2, 3, 2)


@feature("func.grad")
@on_devices
@each_function
@pytest.mark.parametrize("transform", [grad, jacrev, hessian], ids=lambda t: t.__name__)
def test_gradients_of_torch_func(op: str, transform: Callable[..., Any], device: str) -> None:
    call, tensors = FUNCTIONS[op], doubles(op, device)
    places = tuple(range(len(tensors)))

    def scalar(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *arguments: function(*arguments).sin().sum()

    assert_close(
        transform(scalar(call.function), places)(*tensors),
        transform(scalar(call.eager), places)(*tensors),
    )
    if transform is grad:  # a gradient for each sample
        dims = (0, *[None] * (len(tensors) - 1))
        samples = [torch.stack([tensors[0], 2 * tensors[0]]), *tensors[1:]]
        assert_close(
            vmap(grad(scalar(call.function), places), dims)(*samples),
            vmap(grad(scalar(call.eager), places), dims)(*samples),
        )


@feature("jvp")
@on_devices
@each_function
def test_forward_mode(op: str, device: str) -> None:
    call, tensors = FUNCTIONS[op], doubles(op, device)
    tangents = tuple(torch.cos(t) for t in tensors)
    assert_close(jvp(call.function, tuple(tensors), tangents), jvp(call.eager, tuple(tensors), tangents))
    places = tuple(range(len(tensors)))
    assert_close(jacfwd(call.function, places)(*tensors), jacfwd(call.eager, places)(*tensors))
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, tangent) for t, tangent in zip(tensors, tangents, strict=True)]
        got, want = (forward_ad.unpack_dual(function(*duals)) for function in (call.function, call.eager))
        assert_close((got.primal, got.tangent), (want.primal, want.tangent))


@feature("func.grad")
@on_devices
@each_function
def test_second_derivatives_along_a_direction(op: str, device: str) -> None:
    """By each composition of two transforms, by autograd, by dual tensors over autograd, and by
    autograd's own batches."""
    call, tensors = FUNCTIONS[op], tuple(doubles(op, device))
    places, tangents = tuple(range(len(tensors))), tuple(torch.cos(t) for t in tensors)

    def results(function: Callable[..., Tensor]) -> list[Any]:
        def scalar(*arguments: Tensor) -> Tensor:
            return function(*arguments).sin().sum()

        def of_autograd(*arguments: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(scalar(*arguments), arguments, create_graph=True)

        def forward_over_reverse(*tangents: Tensor) -> Any:
            return jvp(grad(scalar, places), tensors, tangents)[1]

        leaves = tuple(t.clone().requires_grad_() for t in tensors)
        first = of_autograd(*leaves)
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, tangent) for t, tangent in zip(leaves, tangents, strict=True)]
            of_duals = [forward_ad.unpack_dual(each).tangent for each in of_autograd(*duals)]
        return [
            forward_over_reverse(*tangents),
            vmap(forward_over_reverse)(*[torch.stack([t, -2 * t]) for t in tangents]),
            grad(lambda *given: jvp(scalar, given, tangents)[1], places)(*tensors),
            vjp(grad(scalar, places), *tensors)[1](tangents),
            torch.autograd.grad(first, leaves, tangents, retain_graph=True),
            torch.autograd.grad(
                first, leaves, tuple(torch.stack([t, -2 * t]) for t in tangents), is_grads_batched=True
            ),
            of_duals,
        ]

    for got, want in zip(results(call.function), results(call.eager), strict=True):
        assert_close(got, want)


@each_function
def test_batches_of_gradients(op: str) -> None:
    call, tensors = FUNCTIONS[op], tuple(FUNCTIONS[op].tensors(dtype=torch.float64))
    jacobian = torch.autograd.functional.jacobian
    got, want = (jacobian(function, tensors, vectorize=True) for function in (call.function, call.eager))
    assert_close(got, want)


def test_batches_of_gradients_of_interleaved_gates() -> None:
    def call(x: Tensor) -> Tensor:
        return epigrad.gated_activation(x, dim=0, gate="even")

    x = torch.randn(4, 3, dtype=torch.float64)
    one_by_one, batched = (torch.autograd.functional.jacobian(call, x, vectorize=v) for v in (False, True))
    torch.testing.assert_close(batched, one_by_one)


def test_a_stack_of_models() -> None:
    models = [epigrad.nn.MLP(4, 8) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(5, 4)

    def call(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        out: Tensor = functional_call(models[0], (parameters, buffers), (x,))
        return out

    got = vmap(call, (0, 0, None))(parameters, buffers, x)
    torch.testing.assert_close(got, torch.stack([model(x) for model in models]))
    loss = vmap(grad(lambda p, b, x: call(p, b, x).square().sum()), (0, 0, None))(parameters, buffers, x)
    for index, model in enumerate(models):
        model.zero_grad()
        model(x).square().sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(loss[name][index], parameter.grad)


def test_operators_are_differentiable_under_transforms_too() -> None:
    assert set(NAMES) <= set(dir(epigrad))
    x, weight, _ = doubles("linear", "cpu")
    direct = grad(lambda x: torch.ops.epigrad.linear(x, weight, None, "gelu")[0].sum())(x)
    torch.testing.assert_close(direct, grad(lambda x: epigrad.linear(x, weight, None, "gelu").sum())(x))
    ones = torch.ones(6, 5, dtype=torch.float64)
    second = grad(lambda x: torch.ops.epigrad.linear_backward(ones, x, weight, None, "gelu")[0].sum())(x)
    want = grad(lambda x: grad(lambda x: torch.nn.functional.gelu(x @ weight.T).sum())(x).sum())(x)
    torch.testing.assert_close(second, want)


def test_what_outlived_a_transform_is_differentiated() -> None:
    outlived = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        outlived.append(x * 2)
        return (x * x).sum()

    x, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    torch.func.grad(loss)(x)
    (got,) = torch.autograd.grad(epigrad.linear(outlived[0], weight, None, "gelu").sum(), weight)
    (want,) = torch.autograd.grad(epigrad.linear(x * 2, weight, None, "gelu").sum(), weight)
    assert torch.equal(got, want)
