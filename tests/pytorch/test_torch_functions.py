"""PyTorch's own products inside ``batch_invariant(torch_functions=True)``: which are epigrad's, and
what stays PyTorch's. And which of PyTorch's other functions keep rows apart by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import epigrad
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.support.cases import DTYPES
from tests.support.devices import on_devices
from tests.support.layouts import assert_same_bits

Form = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A product of rows ``x [M, K]``, ``weight [N, K]`` and ``bias [N]``, as one writes it."""


def _module(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    layer = torch.nn.Linear(*weight.shape[::-1], device="meta")
    return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))


FORMS: dict[str, Form] = {
    "linear": functional.linear,
    "linear without bias": lambda x, w, b: functional.linear(x, weight=w),
    "nn.Linear": _module,
    "@": lambda x, w, b: x @ w.T,
    "matmul": lambda x, w, b: torch.matmul(x, other=w.mT),
    "linalg.matmul": lambda x, w, b: torch.linalg.matmul(x, w.mT),
    "Tensor.matmul": lambda x, w, b: x.matmul(w.T),
    "matmul of a vector": lambda x, w, b: torch.stack([row @ w.T for row in x]),
    "matmul that broadcasts": lambda x, w, b: (x.expand(2, 1, *x.shape) @ w.T.expand(3, *w.T.shape))[1, 2],
    "mm": lambda x, w, b: torch.mm(x, w.T),
    "Tensor.mm": lambda x, w, b: x.mm(mat2=w.T),
    "addmm": lambda x, w, b: torch.addmm(b, x, w.T),
    "addmm of factors": lambda x, w, b: torch.addmm(b, x, w.T, beta=0.5, alpha=3),
    "Tensor.addmm": lambda x, w, b: b.expand(len(x), -1).addmm(x, w.T),
    "bmm": lambda x, w, b: torch.bmm(x.expand(2, *x.shape), w.T.expand(2, *w.T.shape))[1],
    "Tensor.bmm": lambda x, w, b: x[None].bmm(w.T[None])[0],
    "baddbmm": lambda x, w, b: torch.baddbmm(b, x[None], w.T[None])[0],
    "Tensor.baddbmm": lambda x, w, b: b.expand(1, len(x), -1).baddbmm(x[None], w.T[None], alpha=0.5)[0],
}
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.linear", "aten.matmul", "aten.mv", "aten.dot")
ROWS, FEATURES, WIDE = 40, 520, 24


def inside() -> AbstractContextManager[None]:
    return epigrad.batch_invariant(torch_functions=True)


def drawn(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))
    return (values / shape[-1] ** 0.5).to(device, dtype)


def operands(device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (ROWS, FEATURES), (WIDE, FEATURES), (WIDE,)
    x, weight, bias = (drawn(*shape, device=device, dtype=dtype, seed=9) for shape in shapes)
    return x, weight, bias


class Recorder(TorchDispatchMode):
    """Notes functions of PyTorch, and epigrad's with their mode, that run."""

    def __init__(self, noted: Sequence[str]) -> None:
        super().__init__()
        self.noted = noted
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(function).rpartition(".")[0]
        if name in self.noted:
            self.names.append(name)
        elif name.startswith("epigrad."):
            self.names.append(f"epigrad{', invariant' * (kwargs or {}).get('batch_invariant', False)}")
        return function(*args, **(kwargs or {}))


def products(call: Callable[[], Any], noted: Sequence[str] = PRODUCTS) -> set[str]:
    with Recorder(noted) as recorder:
        call()
    return set(recorder.names)


OURS = {"epigrad, invariant"}


def forward_and_backward(form: Form, x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the gradient to x; backward runs outside of the block."""
    leaf = x.clone().requires_grad_()
    with inside():
        out = form(leaf, weight, bias)
    (grad_input,) = torch.autograd.grad(out, leaf, grad)
    return out.detach(), grad_input


@on_devices
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_alone(dtype: torch.dtype, device: str) -> None:
    x, weight, bias = operands(device, dtype)
    grad = drawn(ROWS, WIDE, device=device, dtype=dtype, seed=4)
    for name, form in FORMS.items():
        whole = forward_and_backward(form, x, weight, bias, grad)
        for count in (1, 2, 7, 33):
            rows = slice(5, 5 + count)
            alone = forward_and_backward(form, x[rows], weight, bias, grad[rows])
            for what, one, all_rows in zip(("output", "grad_input"), alone, whole, strict=True):
                assert_same_bits(one, all_rows[rows], f"{name}: {what} of {count} rows")


OF_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "torch.sum": lambda x: torch.sum(x, dim=[1], keepdim=True),
    "mean": lambda x: x.mean(1),
    "torch.mean": lambda x: torch.mean(x, (-1,), True),
    "axis": lambda x: x.mean(axis=-1),
    "mean in float64": lambda x: x.mean(-1, dtype=torch.float64),
    "norm": lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt(),
    "centred": lambda x: torch.sub(x, x.mean(-1, keepdim=True)),
}


@pytest.fixture
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@on_devices
@pytest.mark.usefixtures("_tf32")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", OF_ROWS.values(), ids=OF_ROWS)
def test_sums_of_rows(function: Callable[[Tensor], Tensor], dtype: torch.dtype, device: str) -> None:
    """Their rows are the same alone, forward and backward, and they are what PyTorch computes, also
    where it may multiply in TF32."""
    x = drawn(150, 2048, device=device, dtype=dtype).requires_grad_()
    with inside():
        assert not rows_differ(function, x.detach())
        out, alone = function(x), function(x[7:9])
        assert products(lambda: function(x)) == OURS
    want = function(x.detach().double().requires_grad_())
    torch.testing.assert_close(out, want.to(out.dtype))
    gradients: list[Tensor] = []

    def backward() -> None:
        gradients.extend(torch.autograd.grad(one, x, one.detach())[0][7:9] for one in (out, alone))

    assert products(backward, (*PRODUCTS, "aten.sum")) <= OURS
    assert_same_bits(*gradients)


@pytest.mark.parametrize(
    "function",
    [torch.sum, torch.mean, lambda x: x.mean(0), lambda x: x.sum((0, 1)), lambda x: (x > 0).sum(-1), Tensor.std],
)
def test_other_sums_stay_pytorchs(function: Callable[[Tensor], Tensor]) -> None:
    x = drawn(3, 40)
    with inside():
        assert not products(lambda: function(x))


def test_pytorchs_own_rows_differ() -> None:
    """Else the test above shows nothing."""
    given = operands()
    for name in ("linear", "nn.Linear", "@", "mm", "addmm", "bmm"):
        assert rows_differ(partial(apply, FORMS[name], given[1:]), given[0]), name


def apply(form: Form, others: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return form(x, *others)


def rows_differ(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether rows have other bits alone, or few at a time."""
    whole = function(x)
    return any(
        not torch.equal(function(x[begin : begin + count]), whole[begin : begin + count])
        for count in (1, 2, 7, 33)
        for begin in range(0, len(x) - count + 1, count)
    )


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_all_products_are_epigrads(form: Form) -> None:
    """Forward, and backward outside of the block. They compute what PyTorch computes."""
    given = [each.double().requires_grad_() for each in operands()]
    outs: list[Tensor] = []

    def forward() -> None:
        with inside():
            outs.append(form(*given))

    assert products(forward) == OURS
    want = form(*given)
    used = [
        each
        for each in given
        if torch.autograd.grad(want.sum(), each, retain_graph=True, allow_unused=True)[0] is not None
    ]
    grad = drawn(ROWS, WIDE, dtype=torch.float64)
    gradients: list[Any] = []
    assert products(lambda: gradients.extend(torch.autograd.grad(outs[0], used, grad, retain_graph=True))) == OURS
    torch.testing.assert_close(outs[0], want)
    torch.testing.assert_close(gradients, list(torch.autograd.grad(want, used, grad)))


@pytest.mark.parametrize("name", ["linear", "addmm of factors", "matmul that broadcasts", "baddbmm"])
def test_gradients_of_gradients(name: str) -> None:
    def call(*given: Tensor) -> Tensor:
        with inside():
            return FORMS[name](*given)

    given = [drawn(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 4), (2, 4), (2,))]
    assert torch.autograd.gradcheck(call, given)
    with inside():  # also where backward runs inside
        assert torch.autograd.gradgradcheck(call, given)


class Own(Tensor):
    """A subclass, as DTensor is one."""


def _square(**options: Any) -> Tensor:
    return torch.arange(9).to(**options).reshape(3, 3)


LEFT: dict[str, Callable[[], Tensor]] = {
    "integers": lambda: _square(dtype=torch.int64) @ _square(dtype=torch.int64),
    "complex": lambda: _square(dtype=torch.complex64) @ _square(dtype=torch.complex64),
    "sparse": lambda: _square(dtype=torch.float32).to_sparse() @ _square(dtype=torch.float32),
    "a subclass": lambda: _square(dtype=torch.float32).as_subclass(Own) @ _square(dtype=torch.float32),
    "out": lambda: torch.mm(_square(dtype=torch.float32), torch.eye(3), out=torch.empty(3, 3)),
    "in place": lambda: _square(dtype=torch.float32).addmm_(torch.eye(3), torch.eye(3)),
    "einsum": lambda: torch.einsum("ij,jk->ik", torch.eye(3), torch.eye(3)),
    "mv": lambda: torch.mv(torch.eye(3), torch.ones(3)),
    "a bias for each row": lambda: functional.linear(torch.eye(3), torch.eye(3), torch.ones(3, 3)),
    "a nested tensor": lambda: functional.linear(
        torch.nested.nested_tensor([torch.eye(3), torch.eye(3)]), torch.eye(3)
    ).to_padded_tensor(0.0),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_what_stays_pytorchs(call: Callable[[], Tensor]) -> None:
    with inside():
        assert not any("epigrad" in name for name in products(call))
        out = call()
    want = call()
    assert type(out) is type(want) and out.dtype == want.dtype
    assert torch.equal(out.to_dense(), want.to_dense())


REFUSED: dict[str, Callable[[], Tensor]] = {
    "mm of three dimensions": lambda: torch.mm(torch.ones(2, 2, 2), torch.ones(2, 2)),
    "bmm of other batches": lambda: torch.bmm(torch.ones(1, 2, 2), torch.ones(3, 2, 2)),
    "depths": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
    "batches": lambda: torch.ones(2, 3, 3) @ torch.ones(4, 3, 3),
    "a scalar": lambda: torch.ones(()) @ torch.ones(3),
    "dtypes": lambda: torch.ones(3) @ torch.ones(3).double(),
    "what is added": lambda: torch.addmm(torch.ones(5), torch.ones(2, 2), torch.ones(2, 2)),
    "linear": lambda: functional.linear(torch.ones(2, 3), torch.ones(2, 4)),
    "no tensor": lambda: torch.mm(torch.ones(2, 2), None),  # type: ignore[arg-type]
    "an unknown argument": lambda: torch.mm(torch.ones(2, 2), torch.ones(2, 2), color=1),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_pytorch_refuses_it_still_does(call: Callable[[], Tensor]) -> None:
    with pytest.raises((RuntimeError, TypeError)) as want:
        call()
    with inside(), pytest.raises(want.type) as found:
        call()
    assert not isinstance(found.value, epigrad.errors.EpigradError)


def test_what_is_ignored_stays_so() -> None:
    eye = torch.eye(2)
    with inside():
        assert torch.ones(1, requires_grad=True) * torch.ones(()) == 1
        assert torch.equal(torch.add(input=eye, other=eye, alpha=2), 3 * eye)
        ignored = torch.full((2,), torch.nan, requires_grad=True)
        out = torch.addmm(ignored, eye, eye, beta=0)
        assert torch.equal(out, eye)
        assert torch.equal(torch.autograd.grad(out.sum(), ignored)[0], torch.zeros(2))
        assert torch.equal(torch.ones(2, 0) @ torch.ones(0, 3), torch.zeros(2, 3))
        assert (torch.ones(0, 3) @ torch.ones(3, 2)).shape == (0, 2)


def test_blocks_nest_and_are_a_threads_own() -> None:
    def mode() -> bool:
        found = products(lambda: torch.eye(2) @ torch.eye(2))
        assert found == OURS or not any("epigrad" in name for name in found)
        return found == OURS

    block = inside()
    with block:
        assert mode()
        with epigrad.batch_invariant():  # says nothing of PyTorch's functions
            assert mode()
        with epigrad.batch_invariant(False):
            assert not mode()
            with block:
                assert mode()
        with epigrad.batch_invariant(False, torch_functions=True):
            assert not mode()
        assert mode()
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(mode()))
        thread.start()
        thread.join()
        assert found == [False]
    with pytest.raises(KeyError), block:
        raise KeyError
    assert not mode()
    with epigrad.batch_invariant():
        assert not mode()


def test_without_a_graph() -> None:
    x, weight, bias = operands()
    want = forward_and_backward(functional.linear, x, weight, bias, torch.ones(ROWS, WIDE))[0]
    for switch in (torch.no_grad, torch.inference_mode):
        with inside(), switch():
            assert_same_bits(functional.linear(x, weight, bias), want)
    with inside():
        assert functional.linear(x.to("meta"), weight.to("meta")).shape == (ROWS, WIDE)


@pytest.mark.parametrize("name", ["linear", "@", "addmm", "addmm of factors", "baddbmm"])
def test_autocast(name: str) -> None:
    given = operands()
    with inside(), torch.autocast("cpu", torch.bfloat16):
        out = FORMS[name](*given)
        assert products(lambda: FORMS[name](*given)) == OURS
    with torch.autocast("cpu", torch.bfloat16):
        want = FORMS[name](*given)
    assert out.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(out / want.abs().max(), want / want.abs().max(), rtol=0, atol=2**-7)


def test_transforms() -> None:
    """`torch.vmap` has epigrad's products; under `torch.func.vjp` they are PyTorch's."""
    x, weight, bias = operands()
    with inside():
        mapped = torch.vmap(lambda row: functional.linear(row, weight, bias))(x)
        assert_same_bits(mapped, functional.linear(x, weight, bias))
        assert products(lambda: torch.func.vjp(lambda x: x @ weight.T, x)) == {"aten.mm"}


def test_a_checkpoint_that_computes_again_inside() -> None:
    x, weight, bias = operands()
    x.requires_grad_()
    with inside():
        out = checkpoint(
            lambda x: functional.linear(x, weight, bias).tanh(),
            x,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), inside()),
        )
    assert products(lambda: out.sum().backward()) == OURS


TRACED = ("linear", "@", "Tensor.matmul", "mm", "addmm", "addmm of factors", "Tensor.bmm", "baddbmm")


def test_compiled_code_has_the_mode_of_its_calls() -> None:
    torch.compiler.reset()
    given = operands()

    def everything(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.stack([form(x, weight, bias) for form in map(FORMS.__getitem__, TRACED)])

    def with_a_block(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with inside():
            return everything(x, weight, bias)

    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    without = compiled(*given)
    with inside():
        want = everything(*given)
        assert not torch.equal(want, without)
        assert_same_bits(compiled(*given), want)
    assert_same_bits(torch.compile(with_a_block, fullgraph=True, backend="aot_eager")(*given), want)
    assert_same_bits(compiled(*given), without)


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool) -> None:
    layer, x = torch.nn.Linear(FEATURES, WIDE), operands()[0]
    with inside(), torch.no_grad():
        program = torch.export.export(layer, (x,), strict=strict)
        want = layer(x)
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "epigrad.linear.default" in targets and "aten.linear.default" not in targets
    assert_same_bits(program.module()(x), want)


APART: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax in float32": lambda x: x.softmax(-1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:], x.new_ones(x.shape[-1])),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:], x.new_ones(x.shape[-1])),
    "mean": lambda x: x.square().mean(-1),
    "sum": lambda x: x.sum(-1),
    "exp": torch.exp,
    "tanh": torch.tanh,
    "cos": torch.cos,
}
"""PyTorch's functions of a CPU that keep rows apart, where one thread computes a row."""


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_rows_that_pytorch_keeps_apart_by_itself(function: Callable[[Tensor], Tensor]) -> None:
    for dtype in DTYPES:
        for features in (1, 7, 31, 128, 1000):
            assert not rows_differ(function, drawn(70, features, dtype=dtype)), f"{dtype}, {features} features"


def test_rows_that_pytorch_does_not_keep_apart() -> None:
    """So the how-to for RL patches the blocks of a model, and has eager attention over one length.
    If this fails, PyTorch has become better, and the page may say so."""
    x = drawn(300, 31)
    assert rows_differ(functional.silu, x)
    assert not rows_differ(lambda x: epigrad.activation(x, "silu"), x)
    short = x[:, :7]
    masked = torch.cat([short, torch.full((300, 32), -torch.inf)], 1)
    assert not torch.equal(masked.softmax(-1)[:, :7], short.softmax(-1))


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], ids=lambda backend: backend.name)
def test_attention_of_pytorch_follows_the_number_of_queries(backend: SDPBackend) -> None:
    query, key = drawn(3, 4, 100, 64), drawn(3, 4, 100, 64, seed=1)
    attention = functional.scaled_dot_product_attention
    with inside(), sdpa_kernel(backend):
        assert rows_differ(lambda query: attention(query.movedim(0, 2), key, key).movedim(2, 0), query.movedim(2, 0))
        assert not rows_differ(lambda each: attention(*each.unbind(1)), torch.stack([query, key, key], 1))
