"""What autograd offers around an operation: retained graphs, saved tensors, hooks, checkpoints,
modes, meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, errors
from epigrad._autograd import engine, functions
from epigrad._core import loader
from epigrad._core.tables import OPS
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.support.cases import ACTIVATIONS, FROM_OUTPUT, GATED_KINDS
from tests.support.layouts import assert_same_bits
from tests.support.operators import FUNCTIONS

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 13 * sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def problems() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    """Every function, with leaves for all of its tensors; layers with what they keep, too."""
    table = {op: (call.function, tuple(call.tensors(dtype=torch.float64))) for op, call in FUNCTIONS.items()}
    saves = (("gelu", "recompute"), ("tanh", "auto"), ("tanh", "preactivation"), ("none", "auto"))
    for kind, save in saves:
        function = partial(epigrad.linear, activation=kind, save=save)
        table[f"linear {kind} {save}"] = function, (leaf(3, 4), leaf(5, 4), leaf(5))
    function = partial(epigrad.gated_linear, save="recompute")
    table["gated_linear recompute"] = function, (leaf(3, 4), leaf(6, 4), leaf(6, 4, seed=1), leaf(6), leaf(6, seed=1))
    return table


EACH = pytest.mark.parametrize("name", problems())


@EACH
def test_a_gradient_is_the_same_with_and_without_create_graph(name: str) -> None:
    function, leaves = problems()[name]
    out = function(*leaves)
    grad = torch.randn_like(out)
    plain = torch.autograd.grad(out, leaves, grad, retain_graph=True)
    graphed = torch.autograd.grad(out, leaves, grad, create_graph=True)
    for one, two in zip(plain, graphed, strict=True):
        assert_same_bits(one, two)
    torch.autograd.grad(out, leaves, grad)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, leaves, grad)


class Watched:
    """A core that notes which outputs backward asks it for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own, self.needs = loader.core().launch, list[tuple[bool, ...]]()
        monkeypatch.setattr(loader.core(), "launch", self.launch)

    def launch(self, call: Any, inputs: Any, needs: tuple[bool, ...], *rest: Any) -> Any:
        if call.op.endswith("_backward"):
            self.needs.append(needs)
        return self.own(call, inputs, needs, *rest)


@EACH
def test_a_backward_forms_only_the_gradients_that_it_is_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the input alone, say, though forward knew that the weights have gradients too."""
    core, (function, leaves) = Watched(monkeypatch), problems()[name]
    out = function(*leaves)
    ones = torch.ones_like(out)
    torch.autograd.grad(out, leaves[0], ones, retain_graph=True)
    assert sum(core.needs[-1]) == len(leaves)  # of so little work
    monkeypatch.setattr(engine, "CHEAP_ELEMENTS", (0, 0))
    monkeypatch.setattr(engine, "CHEAP_PRODUCT", (0, 0))
    all_of_them = torch.autograd.grad(out, leaves, ones, retain_graph=True)
    assert sum(core.needs[-1]) == len(leaves)
    for place, (leaf, want) in enumerate(zip(leaves, all_of_them, strict=True)):
        (got,) = torch.autograd.grad(out, leaf, ones, retain_graph=True)
        assert_same_bits(got, want)
        (graphed,) = torch.autograd.grad(out, leaf, ones, create_graph=True)
        assert_same_bits(graphed.detach(), want)
        out.backward(ones, inputs=[leaf], retain_graph=True)
        assert_same_bits(leaf.grad, want)
        assert core.needs[-3:] == [tuple(index == place for index in range(len(core.needs[0])))] * 3
    assert all(leaf.grad is not None for leaf in leaves)


class OfAnyDevice:
    """What the rule asks of a gradient."""

    def __init__(self, *shape: int, itemsize: int = 4, is_cuda: bool = False) -> None:
        self.shape, self.ndim, self.itemsize, self.is_cuda = torch.Size(shape), len(shape), itemsize, is_cuda

    def numel(self) -> int:
        return self.shape.numel()


@pytest.mark.parametrize(
    ("grad", "weight", "is_cheap"),
    [
        (OfAnyDevice(16, 64), (64, 64), True),
        (OfAnyDevice(1, 2048), (2048, 1024), False),  # the weight's gradient is 8 MB
        (OfAnyDevice(511, 64), (64, 64), True),
        (OfAnyDevice(512, 64), (64, 128), False),
        (OfAnyDevice(512, 64, is_cuda=True), (64, 128), True),
        (OfAnyDevice(2048, 3072, is_cuda=True), (3072, 768), False),
        (OfAnyDevice(2048, 3072, itemsize=2, is_cuda=True), (3072, 768), True),
        (OfAnyDevice(8, 16384, itemsize=2, is_cuda=True), (16384, 16384), False),
        (OfAnyDevice(), (64,), True),
        (OfAnyDevice(0, 0), (0, 64), True),
        (OfAnyDevice(512, 512), None, True),
        (OfAnyDevice(1024, 1024), None, False),
        (OfAnyDevice(1024, 1024, is_cuda=True), None, True),
        (OfAnyDevice(8192, 8192, is_cuda=True), None, False),
    ],
)
def test_which_gradients_are_formed_without_asking(grad: Any, weight: tuple[int, ...] | None, is_cheap: bool) -> None:
    with torch.no_grad():
        assert engine._is_cheap(grad, None if weight is None else torch.Size(weight)) is is_cheap
    assert not engine._is_cheap(grad, None)  # while a graph is recorded


def test_the_first_weight_of_a_layer() -> None:
    layers = {op: row.tensors[functions._first_weight(op)] for op, row in OPS.items() if row.multiplies and row.keeps}
    plain = {"linear": "weight", "matmul_bias_activation": "b", "grouped_linear": "weight"}
    blocks = {"gated_linear": "weight_value", "mlp": "weight1", "gated_mlp": "weight_in", "experts": "weight_in"}
    assert layers == plain | blocks


def test_the_gradients_of_tensors_between_leaves_and_a_function_are_formed() -> None:
    """A captured tensor that is no leaf, hooks, checkpoints, and nodes that a user calls."""
    x, weight = leaf(3, 4), leaf(5, 4)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return epigrad.linear(x, weight, None, "gelu")

    want = torch.autograd.grad(function(x, weight).sum(), (x, weight))
    inner, seen = x * 1, list[Tensor]()
    inner.register_hook(seen.append)
    out = function(inner, weight)
    assert_same_bits(torch.autograd.grad(out.sum(), inner, retain_graph=True)[0], want[0])
    assert_same_bits(torch.autograd.grad(out.sum(), x, retain_graph=True)[0], want[0])
    torch.autograd.grad(out.sum(), weight, retain_graph=True)
    assert len(seen) == 2
    assert_same_bits(
        torch.autograd.grad(checkpoint(function, x, weight, use_reentrant=False).sum(), weight)[0], want[1]
    )
    called = out.grad_fn.apply(torch.ones_like(out), None)
    called_in_a_hook = list[Any]()
    y = x.exp()
    y.register_hook(lambda grad: called_in_a_hook.extend(out.grad_fn.apply(torch.ones_like(out), None)))
    torch.autograd.grad(y.sum(), x)
    for results in (called, called_in_a_hook):
        for got, wanted in zip(results[3:], (*want, None), strict=True):
            assert got is wanted or bool((got == wanted).all())


@EACH
def test_saved_tensors_changed_in_place_are_found_out(name: str) -> None:
    function, leaves = problems()[name]
    # A hook takes the version check's place, so which inputs are saved is asked first, in a pass of
    # its own.
    saved: set[int] = set()
    inputs = [x * 1 for x in leaves]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.add(t.data_ptr()) or t, lambda t: t):
        function(*inputs)
    kept = [x.data_ptr() in saved for x in inputs]
    assert any(kept)
    for place, is_saved in enumerate(kept):
        inputs = [x * 1 for x in leaves]
        out = function(*inputs)
        inputs[place].add_(1)
        if is_saved:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                out.sum().backward()
        else:
            out.sum().backward()


@pytest.mark.parametrize("activation", FROM_OUTPUT)
def test_a_saved_output_changed_in_place_is_found_out(activation: str) -> None:
    out = epigrad.linear(leaf(3, 4), leaf(5, 4), None, activation)
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_writing_through_out_is_an_in_place_change() -> None:
    x, weight = leaf(3, 4), leaf(5, 4)
    hidden = x * 1
    out = epigrad.linear(hidden, weight)
    epigrad.forward.lerp(torch.zeros(3, 4).double(), torch.ones(3, 4).double(), 0.5, out=hidden.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Counter:
    """Counts what is saved for backward beyond a set of known tensors, in tensors by memory."""

    def __init__(self, *known: Tensor) -> None:
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.inputs: set[int] = set()

    def pack(self, tensor: Tensor) -> Tensor:
        pointer = tensor.untyped_storage().data_ptr()
        if pointer in self.known:
            self.inputs.add(pointer)
        else:
            self.shapes[pointer] = tuple(tensor.shape)
        return tensor

    def watch(self) -> AbstractContextManager[Any]:
        return torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t)

    def extra(self, *outputs: Tensor) -> list[tuple[int, ...]]:
        """Shapes of what was saved beyond the inputs and these outputs."""
        visible = {t.untyped_storage().data_ptr() for t in outputs}
        return [shape for pointer, shape in self.shapes.items() if pointer not in visible]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("save", ["auto", "preactivation", "recompute"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_what_each_save_mode_keeps(activation: str, save: str, dtype: torch.dtype) -> None:
    x, weight, bias = leaf(7, 4, dtype=dtype), leaf(5, 4, dtype=dtype), leaf(5, dtype=dtype)
    counter = Counter(x, weight, bias)
    with counter.watch():
        out = epigrad.linear(x, weight, bias, activation, save=save)
    saves_output = out.untyped_storage().data_ptr() in counter.shapes
    extra = counter.extra(out)
    if activation == "none" or save == "recompute":
        assert extra == [] and not saves_output
    elif save == "auto" and activation in FROM_OUTPUT:
        assert extra == [] and saves_output
    else:
        assert extra == [(7, 5)] and not saves_output
    out.sum().backward()


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ((True, False, False), {1}),
        ((False, True, False), {0}),
        ((False, False, True), set()),
        ((True, True, True), {0, 1}),
    ],
    ids=["input", "weight", "bias", "all"],
)
def test_only_what_the_requested_gradients_need_is_saved(wanted: tuple[bool, ...], kept: set[int]) -> None:
    tensors = [leaf(7, 4), leaf(5, 4), leaf(5)]
    for tensor, want in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(want)
    pointers = [t.untyped_storage().data_ptr() for t in tensors]
    for activation in ACTIVATIONS:
        counter = Counter(*tensors)
        with counter.watch():
            epigrad.linear(*tensors, activation)
        assert counter.inputs == {pointers[place] for place in kept}, activation


def test_elementwise_functions_save_inputs_only() -> None:
    cases: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (epigrad.gated_activation, (leaf(3, 6),)),
        (epigrad.gated_product, (leaf(3, 6), leaf(3, 6, seed=1))),
        (epigrad.lerp, (leaf(3, 6), leaf(3, 6, seed=1), leaf(3, 6, seed=2))),
    ]
    for function, tensors in cases:
        counter = Counter(*tensors)
        with counter.watch():
            out = function(*tensors)
        assert counter.extra() == [] and counter.inputs
        out.sum().backward()
    start, end = leaf(3, 6), leaf(3, 6, seed=1)
    counter = Counter(start, end)
    with counter.watch():
        epigrad.lerp(start, end, 0.5)
    assert counter.extra() == [] and not counter.inputs


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("gated", [False, True], ids=["mlp", "gated_mlp"])
def test_the_hidden_activation_of_a_block_is_never_saved(gated: bool, save: str) -> None:
    for activation in GATED_KINDS if gated else ACTIVATIONS:
        rows = 12 if gated else 6
        tensors = (leaf(7, 4), leaf(rows, 4), leaf(rows), leaf(2, 6), leaf(2))
        counter = Counter(*tensors)
        with counter.watch():
            out = (epigrad.gated_mlp if gated else epigrad.mlp)(*tensors, activation, save=save)
        assert counter.extra() == ([(7, rows)] if save == "auto" else []), activation
        out.sum().backward()


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("kind", GATED_KINDS, ids=str)
def test_a_gated_linear_layer_keeps_its_preactivation_alone(kind: str, save: str) -> None:
    tensors = (leaf(7, 4), leaf(6, 4), leaf(6, 4, seed=1), leaf(6), leaf(6, seed=1))
    counter = Counter(*tensors)
    with counter.watch():
        out = epigrad.gated_linear(*tensors, kind, save=save)
    assert counter.extra() == ([(7, 12)] if save == "auto" else [])
    out.sum().backward()


def test_saved_tensors_hooks_can_move_what_is_saved() -> None:
    for name, (function, leaves) in problems().items():
        plain = torch.autograd.grad(function(*leaves).sum(), leaves)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t.clone()):
            out = function(*leaves)
        for one, two in zip(torch.autograd.grad(out.sum(), leaves), plain, strict=True):
            assert_same_bits(one, two, name)
        with torch.autograd.graph.save_on_cpu():
            torch.autograd.grad(function(*leaves).sum(), leaves)


@pytest.mark.parametrize("reentrant", [False, True])
@EACH
def test_checkpoint(name: str, reentrant: bool) -> None:
    function, leaves = problems()[name]
    plain = torch.autograd.grad(function(*leaves).sum(), leaves)
    for tensor in leaves:
        tensor.grad = None
    checkpoint(function, *leaves, use_reentrant=reentrant).sum().backward()
    for tensor, want in zip(leaves, plain, strict=True):
        assert_same_bits(tensor.grad, want)


@EACH
def test_inference_mode_and_no_grad(name: str) -> None:
    function, leaves = problems()[name]
    recorded = function(*leaves)
    with torch.no_grad():
        plain = function(*leaves)
    assert not plain.requires_grad and plain.grad_fn is None
    with torch.inference_mode():
        inferred = function(*leaves)
        assert inferred.is_inference()
        again = function(*[x * 1 for x in leaves])
    assert not inferred.requires_grad
    for other in (plain, inferred, again):
        assert_same_bits(recorded.detach(), other)
    frozen = function(*[x.detach() for x in leaves])
    assert not frozen.requires_grad
    assert_same_bits(frozen, plain)


def test_inference_tensors_as_out_and_as_inputs() -> None:
    with torch.inference_mode():
        x, weight, out = torch.randn(3, 4), torch.randn(5, 4), torch.full((3, 5), float("nan"))
        epigrad.forward.linear(x, weight, out=out)
        assert_same_bits(out, epigrad.linear(x, weight))
    assert_same_bits(epigrad.linear(x, weight), out)
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        epigrad.linear(x, weight.clone().requires_grad_()).sum().backward()


@EACH
def test_anomaly_mode(name: str) -> None:
    function, leaves = problems()[name]
    with torch.autograd.set_detect_anomaly(True):
        function(*leaves).sum().backward()
    assert all(x.grad is not None for x in leaves)
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="backward"),
        pytest.raises(RuntimeError, match="nan"),
    ):
        (function(*leaves) * float("nan")).sum().backward()


@EACH
def test_hooks(name: str) -> None:
    function, leaves = problems()[name]
    seen: list[Tensor] = []
    inputs = [x * 1 for x in leaves]
    for tensor in inputs:
        tensor.retain_grad()
        tensor.register_hook(lambda g: seen.append(g) or g * 2)
    out = function(*inputs)
    out.register_hook(lambda g: g * 3)
    out.sum().backward()
    plain = torch.autograd.grad(function(*leaves), leaves, torch.full_like(out, 3.0))
    assert len(seen) == len(leaves)
    for tensor, want in zip(leaves, plain, strict=True):
        assert_same_bits(tensor.grad, 2 * want)


def test_gradients_of_some_inputs_of_an_empty_batch() -> None:
    x, weight, bias, down = leaf(0, 4).detach(), leaf(6, 4), leaf(6), leaf(4, 3)
    for out in (
        epigrad.linear(x, weight, bias, "gelu"),
        epigrad.gated_linear(x, weight, weight.detach(), bias, None),
        epigrad.gated_mlp(x, weight, bias, down.detach(), None),
    ):
        assert [g.count_nonzero() for g in torch.autograd.grad(out.sum(), (weight, bias))] == [0, 0]
    for function in (
        lambda t: epigrad.linear(t, weight.detach(), bias.detach(), "gelu"),
        lambda t: epigrad.gated_mlp(t, weight.detach(), bias.detach(), down.detach(), None),
        lambda t: epigrad.lerp(t, leaf(2, 1, 4).detach(), 0.5),
    ):
        t = leaf(0, 4)
        assert torch.autograd.grad(function(t).sum(), t)[0].shape == (0, 4)


@EACH
def test_meta_tensors_have_the_real_shapes_and_strides(name: str) -> None:
    function, leaves = problems()[name]
    out = function(*leaves)
    ghosts = [x.detach().to("meta").requires_grad_() for x in leaves]
    ghost = function(*ghosts)
    assert ghost.is_meta and ghost.requires_grad
    assert (ghost.shape, ghost.stride(), ghost.dtype) == (out.shape, out.stride(), out.dtype)
    out.sum().backward()
    ghost.sum().backward()
    for real, meta in zip(leaves, ghosts, strict=True):
        assert meta.grad.is_meta
        assert (meta.grad.shape, meta.grad.stride()) == (real.grad.shape, real.grad.stride())


def test_meta_tensors_of_the_stateless_functions() -> None:
    x, weight = torch.ones(3, 4, device="meta"), torch.ones(5, 4, device="meta")
    grads = backward.linear_backward(torch.ones(3, 5, device="meta"), x, weight, None, "relu", needs=(True, True, True))
    assert grads[0].is_meta and grads[0].shape == (3, 4) and grads[1].shape == (5, 4) and grads[2] is None
    with pytest.raises(errors.InvalidProblemError, match="grad_output"):
        backward.linear_backward(torch.ones(3, 6, device="meta"), x, weight)
    with pytest.raises(errors.InvalidProblemError):
        epigrad.linear(x, torch.ones(5, 3, device="meta"))


def test_expanded_and_undefined_gradients() -> None:
    x, weight = leaf(3, 4), leaf(5, 4)
    out = epigrad.linear(x, weight, None, "gelu")
    (expanded,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    (dense,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert_same_bits(expanded, dense)
    unused = epigrad.linear(x, weight)
    (gradient,) = torch.autograd.grad((unused * 0).sum() + x.sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))


def test_outputs_may_be_changed_in_place_where_nothing_of_them_is_saved() -> None:
    x, weight = leaf(3, 4), leaf(5, 4)
    out = epigrad.linear(x, weight, None, "gelu")
    torch.relu_(out)
    out.sum().backward()
    want = torch.autograd.grad(torch.relu(epigrad.linear(x, weight, None, "gelu")).sum(), x)[0]
    assert_same_bits(x.grad, want)
