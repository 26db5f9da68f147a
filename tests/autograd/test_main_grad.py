"""Weight gradients in float32 beside operands of 16 bits: `out`, `accumulate_main_grad` and
`grad_dtype`."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward, functional
from epigrad._core.wide import any_switched
from torch import Tensor, nn

from tests.support.devices import needs, on_devices
from tests.support.layouts import LAYOUTS, Guarded, assert_same_bits

HALF = (torch.bfloat16, torch.float16)
half = pytest.mark.parametrize("dtype", HALF, ids=str)


def drawn(device: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def _linear(device: str, dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], int]:
    return (
        lambda *tensors, **options: backward.linear_backward(*tensors, "gelu", **options),
        drawn(device, dtype, (90, 33), (90, 40), (33, 40), (33,)),
        1,
    )


def _matmul(device: str, dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], int]:
    tensors = drawn(device, dtype, (2, 9, 7), (2, 9, 5), (2, 5, 7), (7,))
    return lambda *given, **options: backward.matmul_bias_activation_backward(*given, "silu", **options), tensors, 1


def _mlp(device: str, dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], int]:
    return backward.mlp_backward, drawn(device, dtype, (20, 8), (20, 8), (16, 8), (16,), (8, 16), (8,)), 1


def _gated_mlp(device: str, dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], int]:
    return backward.gated_mlp_backward, drawn(device, dtype, (20, 8), (20, 8), (32, 8), (32,), (8, 16), (8,)), 1


def _gated_linear(device: str, dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], int]:
    return backward.gated_linear_backward, drawn(device, dtype, (20, 9), (20, 8), (9, 8), (9, 8), (9,), (9,)), 1


def _grouped_linear(device: str, dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], int]:
    ends, function = torch.tensor([4, 4, 17], device=device), backward.grouped_linear_backward
    tensors = drawn(device, dtype, (20, 9), (20, 8), (3, 9, 8), (3, 9))
    return lambda *given, **options: function(*given, "silu", offsets=ends, **options), tensors, 1


def _experts(device: str, dtype: torch.dtype) -> tuple[Callable[..., Any], list[Any], int]:
    index = torch.arange(40, device=device).reshape(20, 2) * 3 % 4
    grad, x, scale, *layers = drawn(device, dtype, (20, 8), (20, 8), (20, 2), (3, 32, 8), (3, 32), (3, 8, 16), (3, 8))
    return backward.experts_backward, [grad, x, index, scale, *layers], 2


CALLS = {
    "linear": _linear,
    "matmul_bias_activation": _matmul,
    "mlp": _mlp,
    "gated_mlp": _gated_mlp,
    "gated_linear": _gated_linear,
    "grouped_linear": _grouped_linear,
    "experts": _experts,
}
each_call = pytest.mark.parametrize("op", CALLS)


def assert_same_sum(got: Tensor, want: Tensor) -> None:
    """The bits on a CPU; on a GPU sums in float32 of another order, far nearer than 16 bits are."""
    if got.device.type == "cpu":
        assert_same_bits(got, want)
    assert got.dtype == want.dtype == torch.float32
    assert torch.linalg.vector_norm(got - want) <= 2.0**-14 * torch.linalg.vector_norm(want)


@half
@each_call
@on_devices
def test_a_float32_out_is_what_the_other_one_rounds(op: str, dtype: torch.dtype, device: str) -> None:
    function, tensors, first = CALLS[op](device, dtype)
    want = function(*tensors)
    for turn, layout in enumerate(LAYOUTS):
        if layout.startswith("expanded"):
            continue
        guarded = [Guarded.empty(g.shape, torch.float32, layout, device) for g in want[first:]]
        got = function(*tensors, out=(*(None,) * first, *(guard.tensor for guard in guarded)))
        for guard, one, other in zip(guarded, got[first:], want[first:], strict=True):
            guard.check()
            assert one is guard.tensor and one.dtype == torch.float32
            if device == "cpu":
                assert_same_bits(one.to(dtype), other)
            apart = torch.linalg.vector_norm(one - other.float()) / torch.linalg.vector_norm(one)
            assert apart <= torch.finfo(dtype).eps / 2, "rounding is all that is between them"
            assert turn or bool((one != other.float()).any()), "something was rounded"


@half
@each_call
@on_devices
def test_a_float32_out_is_added_to(op: str, dtype: torch.dtype, device: str) -> None:
    function, tensors, first = CALLS[op](device, dtype)
    want = function(*tensors)
    alone = [torch.empty(g.shape, device=device) for g in want[first:]]
    function(*tensors, out=(*(None,) * first, *alone))
    before = [torch.randn(g.shape, device=device) for g in want[first:]]
    added = [tensor.clone() for tensor in before]
    function(*tensors, out=(*(None,) * first, *added), accumulate=True)
    for total, start, one in zip(added, before, alone, strict=True):
        # A sum in the accumulator: at most two roundings to float32.
        slack = 2.0**-22 * (start.abs() + one.abs())
        assert bool(((total - (start.double() + one.double())).abs() <= slack).all())


@half
def test_only_weights_and_biases_may_be_wider(dtype: torch.dtype) -> None:
    function, tensors, _ = CALLS["linear"]("cpu", dtype)
    wide = torch.full((90, 40), torch.nan)
    with pytest.raises(errors.DTypeError, match="linear_backward: grad_input: dtype float32, want"):
        function(*tensors, out=(wide, None, None))
    assert wide.isnan().all()
    with pytest.raises(errors.DTypeError, match=r"grad_weight: dtype float64, want .*16 or float32"):
        function(*tensors, out=(None, torch.empty(33, 40, dtype=torch.float64), None))
    with pytest.raises(errors.DTypeError, match="grad_weight: dtype float32, want float64"):
        function(*[tensor.double() for tensor in tensors], out=(None, torch.empty(33, 40), None))


def network(device: str, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(1)
    layers = (epigrad.nn.Linear(8, 16, activation="gelu"), epigrad.nn.GatedMLP(16, 12, bias=True))
    return nn.Sequential(*layers, epigrad.nn.MLP(16, 8)).to(device, dtype)


HAS_WIDE_VIEWS = hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype")


def switched_on(model: nn.Module) -> Any:
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    return epigrad.accumulate_main_grad(model)


@half
@on_devices
def test_a_training_loop_as_megatrons(dtype: torch.dtype, device: str) -> None:
    """Gradients of several batches are added in float32; a loop then steps from main_grad."""
    model, plain = network(device, dtype), network(device, dtype)
    plain.double()
    handle = switched_on(model)
    optimizer = torch.optim.SGD([parameter.main_grad for parameter in model.parameters()], lr=0.0)
    for batch in range(3):
        x = torch.randn(30, 8, generator=torch.Generator().manual_seed(batch)).to(device, dtype)
        model(x).float().square().mean().backward()
        plain(x.double()).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None and parameter.grad_added_to_main_grad is True, name
        want = plain.get_parameter(name).grad
        assert want is not None
        # Activations between the layers are rounded, so gradients differ by a few units of theirs.
        assert torch.linalg.vector_norm(parameter.main_grad - want) <= 0.02 * torch.linalg.vector_norm(want), name
    optimizer.zero_grad()
    handle.remove()
    handle.remove()
    model(x).float().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.dtype == dtype for parameter in model.parameters())


@on_devices
def test_a_loop_over_layers_of_which_some_are_not_epigrads(device: str) -> None:
    """The hook of docs/pytorch.md adds what is in .grad: of PyTorch's layers, of the PReLU, and
    PyTorch's part of a weight that both use.
    """

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.norm, self.mlp, self.act = nn.LayerNorm(8), epigrad.nn.MLP(8, 16), epigrad.nn.PReLU(8)
            self.plain = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.act(self.mlp(self.norm(x)))
            return self.plain(hidden) + epigrad.linear(hidden, self.plain.weight, None, "gelu")  # type: ignore[no-any-return]

    def add_to_main_grad(parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.main_grad += parameter.grad  # type: ignore[attr-defined]
            parameter.grad = None

    model = Network().to(device, torch.bfloat16)
    plain = copy.deepcopy(model).double()
    handle = switched_on(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(add_to_main_grad)
    for x in torch.randn(3, 30, 8, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16):
        model(x).float().square().mean().backward()
        plain(x.double()).square().mean().backward()
    for name, parameter in model.named_parameters():
        want = plain.get_parameter(name).grad
        assert parameter.grad is None and want is not None
        assert torch.linalg.vector_norm(parameter.main_grad - want) <= 0.02 * torch.linalg.vector_norm(want), name
    handle.remove()


def _stored_transposed(weight: Tensor) -> Tensor:
    return weight.transpose(1, 2).contiguous()


@on_devices
@pytest.mark.parametrize("transposed", [False, True], ids=["as they are", "transposed"])
@pytest.mark.parametrize("way", ["main_grad", "grad_dtype"])
def test_experts_have_unrounded_gradients(way: str, transposed: bool, device: str) -> None:
    """As `experts_backward` writes into float32; weights may be stored transposed, as gpt-oss's."""
    if way == "grad_dtype" and transposed and not HAS_WIDE_VIEWS:
        pytest.skip("PyTorch has it for views from 2.15 on")
    _, (grad, x, index, scale, *operands), _ = CALLS["experts"](device, torch.bfloat16)
    stored = [_stored_transposed(t) if transposed and t.dim() == 3 else t.clone() for t in operands]
    for leaf in stored:
        leaf.requires_grad_()
        if way == "grad_dtype":
            leaf.grad_dtype = torch.float32
        else:
            leaf.main_grad = torch.zeros_like(leaf, dtype=torch.float32)
    handle = epigrad.accumulate_main_grad(stored) if way == "main_grad" else None
    layers = [leaf.transpose(1, 2) if transposed and leaf.dim() == 3 else leaf for leaf in stored]
    leaf_x, leaf_scale = x.clone().requires_grad_(), scale.float().requires_grad_()
    epigrad.experts(leaf_x, index, leaf_scale, *layers).backward(grad)
    laid = [layer.detach() for layer in layers]  # on a GPU another layout may have other kernels
    _, pre = forward.experts(x, index, scale.float(), *laid, return_preactivation=True)
    wide = [torch.empty(t.shape, device=device) for t in operands]
    found = backward.experts_backward(grad, x, index, scale.float(), *laid, preactivation=pre, out=(None, None, *wide))
    for leaf, want in zip(stored, wide, strict=True):
        got: Any = leaf.grad if way == "grad_dtype" else leaf.main_grad
        assert (leaf.grad is None) == (way == "main_grad")
        assert_same_sum(got.transpose(1, 2) if transposed and leaf.dim() == 3 else got, want)
        assert not torch.equal(want, want.bfloat16().float()), "nothing is there to round"
    assert leaf_x.grad is not None and leaf_x.grad.dtype == torch.bfloat16
    assert leaf_scale.grad is not None and leaf_scale.grad.dtype == torch.float32
    assert_same_bits(leaf_x.grad, found[0])
    if handle is not None:
        handle.remove()


@on_devices
def test_main_grad_has_the_unrounded_gradient(device: str) -> None:
    layer = epigrad.nn.Linear(40, 33, activation="silu", dtype=torch.bfloat16, device=device)
    x, grad = drawn(device, torch.bfloat16, (90, 40), (90, 33))
    _, pre = forward.linear(x, layer.weight, layer.bias, "silu", return_preactivation=True)
    handle = switched_on(layer)
    layer(x).backward(grad)
    wide = [torch.empty(33, 40, device=device), torch.empty(33, device=device)]
    backward.linear_backward(grad, x, layer.weight, layer.bias, "silu", preactivation=pre, out=(None, *wide))
    assert_same_sum(layer.weight.main_grad, wide[0])
    assert_same_sum(layer.bias.main_grad, wide[1])
    handle.remove()


def test_who_gets_what() -> None:
    """Without main_grad .grad is as ever, frozen parameters get nothing, shared ones both parts."""
    x = torch.ones(3, 4, dtype=torch.bfloat16)
    layer = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)
    layer.weight.main_grad = torch.zeros(4, 4)
    handle = epigrad.accumulate_main_grad(layer.parameters())
    layer(x).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad.tolist() == [3.0] * 4
    layer.weight.requires_grad_(False)
    layer.weight.main_grad.zero_()
    layer(x).sum().backward()
    assert layer.weight.main_grad.eq(0).all() and layer.weight.grad is None
    layer.weight.requires_grad_(True)
    (layer(x) + layer(2 * x)).sum().backward()
    assert layer.weight.main_grad.eq(9).all()
    handle.remove()
    other = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)
    other.weight.main_grad = torch.zeros(4, 4)
    other(x).sum().backward()
    assert other.weight.grad is not None and other.weight.main_grad.eq(0).all()


def test_float32_parameters_under_autocast_and_alone() -> None:
    layer = epigrad.nn.Linear(4, 4)
    handle = switched_on(layer)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.ones(3, 4))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    layer(torch.ones(3, 4)).sum().backward()
    assert layer.weight.grad is None and layer.weight.main_grad.eq(6).all()
    handle.remove()


def test_views_of_a_parameter() -> None:
    """Transposed experts, as gpt-oss's, and halves of one weight."""
    stored = nn.Parameter(torch.randn(2, 4, 6, dtype=torch.bfloat16))
    stored.main_grad = torch.zeros(2, 4, 6)
    handle = epigrad.accumulate_main_grad([stored])
    rows, ends = torch.ones(5, 4, dtype=torch.bfloat16), torch.tensor([2, 5])
    epigrad.grouped_linear(rows, stored.transpose(1, 2), offsets=ends).sum().backward()
    assert stored.grad is None and stored.main_grad[0].eq(2).all() and stored.main_grad[1].eq(3).all()
    stored.main_grad.zero_()
    epigrad.gated_linear(rows, stored[0].t()[:3], stored[0].t()[3:], kind="bilinear").sum().backward()
    assert stored.grad is None and stored.main_grad[0].ne(0).all() and stored.main_grad[1].eq(0).all()
    handle.remove()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_main_grad_of_another_dtype_or_shape(dtype: torch.dtype) -> None:
    layer = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)
    handle = epigrad.accumulate_main_grad(layer)
    layer.weight.main_grad = torch.zeros(4, 4, dtype=dtype)
    with pytest.raises(errors.DTypeError, match=r"main_grad: torch.*, want a float32 tensor"):
        layer(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    layer.weight.main_grad = torch.zeros(4, 5)
    with pytest.raises(errors.InvalidProblemError, match=r"main_grad: shape \[4, 5\], want the parameter's \[4, 4\]"):
        layer(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    handle.remove()


@pytest.mark.parametrize(
    ("main_grad", "error", "text"),
    [
        (torch.zeros(4, 4, device="meta"), errors.DeviceMismatchError, "on meta, want cpu, where the parameter is"),
        (torch.zeros(4, 1).expand(4, 4), errors.InvalidProblemError, "sparse or expanded, want memory for each"),
        (torch.zeros(4, 4).to_sparse(), errors.InvalidProblemError, "sparse or expanded, want memory for each"),
        ([0.0], errors.DTypeError, "list, want a float32 tensor"),
    ],
    ids=["device", "expanded", "sparse", "list"],
)
def test_a_main_grad_that_cannot_be_added_to_is_named(main_grad: Any, error: Any, text: str) -> None:
    layer, x = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16), torch.ones(2, 4, dtype=torch.bfloat16)
    layer.weight.main_grad = main_grad
    handle = epigrad.accumulate_main_grad(layer)
    with pytest.raises(error, match=f"linear_backward: main_grad: {text}"):
        layer(x).sum().backward()
    handle.remove()


def test_handles_tell_what_they_are() -> None:
    layer = epigrad.nn.Linear(4, 4)
    for given, told in ((layer, "2 parameters"), (layer.weight, "1 parameter")):
        handle = epigrad.accumulate_main_grad(given)
        assert repr(handle) == f"<accumulate_main_grad: {told}>"
        handle.remove()
        assert repr(handle) == "<accumulate_main_grad: removed>"


def test_what_autograd_is_not_asked_for_is_not_added() -> None:
    layer, x = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16), torch.ones(3, 4, dtype=torch.bfloat16).requires_grad_()
    handle = switched_on(layer)
    torch.autograd.grad(layer(x).sum(), x)
    layer(x).sum().backward(inputs=[x])
    (returned,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    assert returned.eq(3).all() and layer.weight.main_grad.eq(0).all() and layer.weight.grad is None
    assert not hasattr(layer.weight, "grad_added_to_main_grad")
    layer(x).sum().backward(inputs=[layer.bias])
    assert layer.bias.main_grad.eq(3).all() and layer.weight.main_grad.eq(0).all()
    handle.remove()


def test_copies_are_not_switched_on_and_parts_may_change() -> None:
    """A module with a handle is copied, pickled, extended and called with other parameters."""
    model, x = nn.Sequential(epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)), torch.ones(3, 4, dtype=torch.bfloat16)
    handle = switched_on(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(x).sum().backward()
        assert other[0].weight.grad.eq(3).all()
    others = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    torch.func.functional_call(model, others, x).sum().backward()
    assert others["0.weight"].grad is not None
    model.append(epigrad.nn.Linear(4, 4, dtype=torch.bfloat16))
    model(x).sum().backward()
    assert model[0].weight.grad is None and model[0].weight.main_grad.ne(0).any() and model[1].weight.grad is not None
    handle.remove()


def test_a_parameter_with_a_tensor_hook_gets_grad_as_the_hook_changes_it() -> None:
    """Masks of gradients are such hooks; its bias, without one, has main_grad."""
    layer, x = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16), torch.ones(3, 4, dtype=torch.bfloat16)
    handle = switched_on(layer)
    loss = layer(x).sum()
    hook = layer.weight.register_hook(lambda grad: grad * 2)  # after forward: backward calls it all the same
    loss.backward()
    assert layer.weight.grad.eq(6).all() and layer.weight.main_grad.eq(0).all()
    assert not hasattr(layer.weight, "grad_added_to_main_grad")
    assert layer.bias.grad is None and layer.bias.main_grad.eq(3).all()
    hook.remove()
    layer(x).sum().backward()
    assert layer.weight.grad.eq(6).all() and layer.weight.main_grad.eq(3).all()
    handle.remove()


def test_a_view_with_a_tensor_hook_gets_its_gradient() -> None:
    layer, x, seen = epigrad.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16), torch.ones(3, 4).bfloat16(), list[Any]()
    handle = switched_on(layer)
    view = layer.weight.t()
    view.register_hook(seen.append)
    epigrad.matmul_bias_activation(x, view).sum().backward()
    assert seen[0].eq(3).all() and layer.weight.grad.eq(3).all() and layer.weight.main_grad.eq(0).all()
    (of_view,) = torch.autograd.grad(epigrad.matmul_bias_activation(x, view).sum(), view)
    assert of_view.eq(3).all() and layer.weight.main_grad.eq(0).all()
    handle.remove()


def test_what_is_refused() -> None:
    for given in ([3], 3):
        with pytest.raises(errors.DTypeError, match="accumulate_main_grad: int, want a module or"):
            epigrad.accumulate_main_grad(given)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidProblemError, match="accumulate_main_grad: a tensor that is not a leaf"):
        epigrad.accumulate_main_grad([torch.ones(2, requires_grad=True) * 2])
    layer = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)
    handle = switched_on(layer)
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    with pytest.raises(errors.UnsupportedError, match="create_graph"):
        layer(x).sum().backward(create_graph=True)
    with pytest.raises(errors.UnsupportedError, match=r"under torch\.compile, torch\.func"):
        torch.func.grad(lambda y: layer(y).sum().float())(x)
    assert layer.weight.main_grad.eq(0).all() and layer.weight.grad is None
    handle.remove()
    assert not torch.autograd.grad(layer(x).sum(), layer.weight)[0].eq(0).any()


@needs("webgpu")
def test_webgpu_refuses_main_grad() -> None:
    layer = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)
    handle = switched_on(layer)
    with epigrad.use_backend("webgpu"), pytest.raises(errors.UnsupportedError, match="webgpu"):
        layer(torch.ones(2, 4, dtype=torch.bfloat16))
    assert layer.weight.main_grad.eq(0).all() and layer.weight.grad is None
    handle.remove()


def test_a_parameter_that_is_gone_is_switched_off() -> None:
    gc.freeze()  # all that other tests have loaded would be walked 20 times
    try:
        for _ in range(20):
            layer = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)
            layer.weight.main_grad = torch.zeros(4, 4)
            epigrad.accumulate_main_grad([layer.weight])
            del layer
            gc.collect()
            other = epigrad.nn.Linear(4, 4, dtype=torch.bfloat16)
            other.weight.main_grad = torch.zeros(4, 4)
            other(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
            assert other.weight.grad is not None
    finally:
        gc.unfreeze()
    assert not any_switched()


def test_other_modules_compile_once_for_all_lengths() -> None:
    """What is switched on for one module costs another, compiled one no new graphs."""
    handle = switched_on(epigrad.nn.Linear(4, 4, dtype=torch.bfloat16))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    other: Any = torch.compile(epigrad.nn.Linear(4, 4, activation="gelu"), fullgraph=True, backend="aot_eager")
    for rows in (5, 6, 7, 8):
        other(torch.ones(rows, 4, requires_grad=True)).sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # a static one, then a dynamic one
    handle.remove()


@half
@on_devices
def test_a_leaf_that_asks_for_float32(dtype: torch.dtype, device: str) -> None:
    weights = drawn(device, dtype, (33, 40), (33,))
    x, grad = drawn(device, dtype, (90, 40), (90, 33))
    for weight in weights:
        weight.requires_grad_().grad_dtype = torch.float32
    _, pre = forward.linear(x, *weights, "gelu", return_preactivation=True)
    epigrad.linear(x, *weights, "gelu").backward(grad)
    wide = [torch.empty(33, 40, device=device), torch.empty(33, device=device)]
    backward.linear_backward(grad, x, *weights, "gelu", preactivation=pre, out=(None, *wide))
    for weight, want in zip(weights, wide, strict=True):
        assert weight.grad is not None
        assert_same_sum(weight.grad, want)
    epigrad.linear(x, *weights, "gelu").backward(grad)
    assert_same_sum(weights[0].grad, 2 * wide[0])


@pytest.mark.skipif(not HAS_WIDE_VIEWS, reason="PyTorch has it from 2.15 on")
def test_views_of_a_leaf_that_asks_for_float32() -> None:
    """gpt-oss's transposed experts, and halves of a weight: nothing is rounded."""
    generator = torch.Generator().manual_seed(0)
    x, stored = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((9, 6), (2, 4, 6)))
    ends = torch.tensor([4, 9])
    plain, leaf = (stored.clone().requires_grad_() for _ in range(2))
    turned = stored.transpose(1, 2).contiguous().requires_grad_()
    for each in (plain, leaf, turned):
        each.grad_dtype = torch.float32
    epigrad.grouped_linear(x, plain, offsets=ends).float().square().sum().backward()
    epigrad.grouped_linear(x, turned.transpose(1, 2), offsets=ends).float().square().sum().backward()
    assert plain.grad is not None and turned.grad is not None
    assert_same_bits(turned.grad.transpose(1, 2), plain.grad)
    assert not torch.equal(plain.grad, plain.grad.bfloat16().float())
    epigrad.gated_linear(x, leaf[1, :2], leaf[1, 2:], kind="bilinear").float().square().sum().backward()
    assert leaf.grad is not None and leaf.grad[0].eq(0).all()
    assert not torch.equal(leaf.grad, leaf.grad.bfloat16().float())
    # windows that overlap, and one row over and over
    for shared in (leaf[0, 0].unfold(0, 3, 1), leaf[0, :1].expand(4, 6)):
        with pytest.raises(errors.UnsupportedError, match="a view, whose elements share memory"):
            epigrad.linear(torch.ones(2, shared.shape[1], dtype=torch.bfloat16), shared)
    out = epigrad.activation(leaf.transpose(1, 2), "gelu")  # no layer: PyTorch rounds it
    assert torch.autograd.grad(out.sum(), leaf)[0].dtype == torch.float32


def test_a_gradient_of_a_gradient_in_float32_is_refused() -> None:
    leaf = torch.ones(4, 4, dtype=torch.bfloat16, requires_grad=True)
    leaf.grad_dtype = torch.float32
    out = epigrad.linear(torch.ones(2, 4, dtype=torch.bfloat16), leaf, activation="gelu")
    with pytest.raises(errors.UnsupportedError, match="a parameter with grad_dtype: a gradient with a graph"):
        torch.autograd.grad(out.sum(), leaf, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_call_without_main_grad_does_not_look_for_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("refuse_tracing", "with_wide_views", "sinks_of"):
        monkeypatch.delattr(functional, name)
    layer = epigrad.nn.Linear(4, 4, activation="gelu", dtype=dtype)
    layer(torch.ones(2, 4, dtype=dtype)).sum().backward()
    assert layer.weight.grad is not None
    assert torch.func.vmap(layer)(torch.ones(2, 4, dtype=dtype)).isfinite().all()
