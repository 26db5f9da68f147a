"""torch.compile without graph breaks, torch.export and AOTInductor's package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, forward
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from tests.support.devices import needs, on_devices
from tests.support.features import feature
from tests.support.layouts import assert_same_bits
from tests.support.operators import FUNCTIONS, NAMES, each_function, each_in_turns
from tests.support.tiers import thorough


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Of Inductor's and Triton's own while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def assert_same_training(compiled: Callable[..., Tensor], plain: Callable[..., Tensor], tensors: list[Tensor]) -> None:
    out, want = compiled(*tensors), plain(*tensors)
    assert_same_bits(out.detach(), want.detach())
    grad = torch.randn_like(want)
    grads = torch.autograd.grad(out, tensors, grad)
    for one, other in zip(grads, torch.autograd.grad(want, tensors, grad), strict=True):
        assert_same_bits(one, other)


@feature("compile")
@on_devices
@each_in_turns
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_compiled_function_has_the_bits_of_the_plain_one(op: str, dynamic: bool, device: str) -> None:
    call = FUNCTIONS[op]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call.function, fullgraph=True, backend=counter, dynamic=dynamic)
    tensors = call.tensors(device)
    assert_same_training(compiled, call.function, tensors)
    with torch.no_grad():
        assert_same_bits(compiled(*tensors), call.function(*tensors))
    frames = counter.frame_count
    if not dynamic:
        assert frames == 2  # one that records, one that does not
        return
    for rows in (3, 11, 17):
        resized = [
            torch.randn(rows, *t.shape[1:], device=device).requires_grad_() if t.shape[0] == call.rows else t
            for t in tensors
        ]
        assert_same_training(compiled, call.function, resized)
    assert counter.frame_count == frames  # no recompilation for any number of rows


@on_devices
def test_inductor_compiles_a_network(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        epigrad.nn.Linear(4, 8, activation="gelu"),
        epigrad.nn.MLP(8, 16),
        epigrad.nn.GatedMLP(8, 6, kind="geglu"),
        epigrad.nn.Linear(8, 6),
        epigrad.nn.GatedActivation("glu"),
    ).to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (5, 9):
        x = torch.randn(rows, 4, device=device, requires_grad=True)
        grads = []
        for network in (model, compiled):
            out = network(x.sin()).cos()
            grads.append(torch.autograd.grad(out.sum(), [x, *model.parameters()]))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


def _of_masked_rows(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows, ends = x[mask], mask.view(3, -1).sum(1).cumsum(0)
    return epigrad.grouped_linear(rows, weight, bias, "gelu", offsets=ends)


def _of_a_number_of_rows(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    count: Any = mask.sum().item()
    ends = torch.stack([torch.zeros_like(mask.sum()), mask.sum() // 2, mask.sum()])
    return epigrad.grouped_linear(x.narrow(0, 0, count), weight, bias, "gelu", offsets=ends)


def _of_masked_tokens(x: Tensor, mask: Tensor, *layers: Tensor) -> Tensor:
    tokens = x[mask]
    index = torch.arange(2 * tokens.shape[0], device=x.device).reshape(-1, 2) % 3
    return epigrad.experts(tokens[:, :4], index, tokens[:, 4:].sigmoid(), *layers)


_GROUPS, _EXPERTS = ((3, 5, 6), (3, 5)), ((3, 16, 4), (3, 16), (3, 4, 8), (3, 4))


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
@on_devices
@pytest.mark.parametrize(
    ("function", "shapes"),
    [(_of_masked_rows, _GROUPS), (_of_a_number_of_rows, _GROUPS), (_of_masked_tokens, _EXPERTS)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_groups_of_rows_whose_number_is_data(function: Callable[..., Tensor], shapes: Any, device: str) -> None:
    """Sizes that no argument has, as of `x[mask]`: one graph serves them all, no rows included."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    tensors = [torch.randn(*shape, device=device).requires_grad_() for shape in ((9, 6), *shapes)]
    for mask in (torch.arange(9) % 2 == 0, torch.zeros(9), torch.ones(9), torch.arange(9) > 4):
        chosen = mask.to(device, torch.bool)
        assert_same_training(
            lambda x, *layers, chosen=chosen: compiled(x, chosen, *layers),
            lambda x, *layers, chosen=chosen: function(x, chosen, *layers),
            tensors,
        )
    assert counter.frame_count == 1


# Tensors with a size for each row of the input.
_BY_ROWS = {op: [t.shape[0] == FUNCTIONS[op].rows for t in FUNCTIONS[op].tensors()] for op in NAMES}
_BY_ROWS["matmul_bias_activation"][1:] = [False, False]


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
@each_in_turns
def test_no_function_guards_on_a_number_of_rows_that_is_data(op: str) -> None:
    call, tensors = FUNCTIONS[op], FUNCTIONS[op].tensors()

    def of_chosen(rows: Tensor, *tensors: Tensor) -> Tensor:
        chosen = rows.nonzero().squeeze(-1)
        return call.function(*[t[chosen] if by else t for t, by in zip(tensors, _BY_ROWS[op], strict=True)])

    rows = torch.tensor([1, 0, 1, 1, 0, 0])
    compiled = torch.compile(of_chosen, fullgraph=True, backend="aot_eager")
    assert_same_training(partial(compiled, rows), partial(of_chosen, rows), tensors)


LERPS = {
    "a vector is start": lambda rows, vector: epigrad.lerp(vector, rows, 0.25),
    "a vector is end": lambda rows, vector: epigrad.lerp(rows, vector, 0.25),
    "a row": lambda rows, vector: epigrad.lerp(rows, vector[None], 0.25),
    "a weight": lambda rows, vector: epigrad.lerp(rows, rows.sin(), vector),
    "all": lambda rows, vector: epigrad.lerp(vector, vector[:1], rows),
}


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize("operands", LERPS)
def test_lerp_broadcasts_to_a_number_of_rows_that_is_data(operands: str) -> None:
    def of_chosen(x: Tensor, vector: Tensor) -> Tensor:
        return LERPS[operands](x[(x[:, 0] > 0).nonzero().squeeze(-1)], vector)

    compiled = torch.compile(of_chosen, fullgraph=True, backend="aot_eager")
    assert_same_training(
        compiled, of_chosen, [torch.randn(9, 8, requires_grad=True), torch.randn(8, requires_grad=True)]
    )


@each_in_turns
def test_transforms_of_torch_func_are_traced(op: str) -> None:
    function, tensors = FUNCTIONS[op].function, [t.detach() for t in FUNCTIONS[op].tensors(dtype=torch.float64)]

    def loss(*tensors: Tensor) -> Tensor:
        return function(*tensors).sin().sum()

    def transformed(*tensors: Tensor) -> Any:
        samples = [torch.stack([t, t]) for t in tensors]
        return vmap(grad(loss))(*samples), jvp(loss, tensors, tensors), jacrev(function)(*tensors)

    with FakeTensorMode() as mode:
        fakes = tree_leaves(transformed(*map(mode.from_tensor, tensors)))
    reals = tree_leaves(transformed(*tensors))
    assert [(t.shape, t.stride(), t.dtype) for t in fakes] == [(t.shape, t.stride(), t.dtype) for t in reals]
    gradient = grad(loss)
    for traced in (torch.compile(gradient, fullgraph=True, backend="aot_eager"), make_fx(gradient)(*tensors)):
        torch.testing.assert_close(traced(*tensors), gradient(*tensors))


@feature("CUDA graph")
@needs("cuda")
@pytest.mark.parametrize("device", ["cuda"])
@each_function
def test_reduce_overhead_replays_cuda_graphs(op: str, device: str) -> None:
    function, tensors = FUNCTIONS[op].function, FUNCTIONS[op].tensors(device)
    compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):  # warm-up, recording, replay
        torch.compiler.cudagraph_mark_step_begin()
        grads = torch.autograd.grad(compiled(*tensors).sum(), tensors)
    for one, other in zip(grads, torch.autograd.grad(function(*tensors).sum(), tensors), strict=True):
        torch.testing.assert_close(one, other)


def test_a_backend_is_part_of_what_is_compiled() -> None:
    if not any(info.name == "webgpu" and info.available for info in epigrad.backends()):
        pytest.skip("there is no second backend for CPU tensors")
    x, weight, bias = FUNCTIONS["linear"].tensors()
    compiled = torch.compile(epigrad.linear, fullgraph=True, backend="aot_eager")
    plain = compiled(x, weight, bias, "gelu")
    with epigrad.use_backend("webgpu"):
        there = compiled(x, weight, bias, "gelu")
        assert_same_bits(there.detach(), epigrad.linear(x, weight, bias, "gelu").detach())
        want = torch.autograd.grad(epigrad.linear(x, weight, bias, "gelu").sum(), weight)
    # Backward runs where forward did, outside of the block too.
    assert_same_bits(torch.autograd.grad(there.sum(), weight)[0], want[0])
    assert_same_bits(compiled(x, weight, bias, "gelu").detach(), plain.detach())


def test_a_backend_is_chosen_inside_of_what_is_compiled() -> None:
    def call(x: Tensor, weight: Tensor) -> Tensor:
        with epigrad.use_backend("cpu"):
            return epigrad.linear(x, weight)

    x, weight, _ = FUNCTIONS["linear"].tensors()
    assert_same_bits(torch.compile(call, fullgraph=True, backend="aot_eager")(x, weight), call(x, weight))


def test_wrong_calls_are_told_while_compiling() -> None:
    compiled = torch.compile(epigrad.linear, fullgraph=True, backend="aot_eager")
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    for arguments, text in (
        ((x, torch.randn(5, 3)), "linear"),
        ((x, weight, None, "swash"), "activation: 'swash'" if torch.__version__ >= "2.11" else "activation_of"),
        ((x, weight.double()), "float64"),
    ):
        with pytest.raises(Exception, match=text):
            compiled(*arguments)


class WithModule(nn.Module):
    """A layer whose activation is a module, a function, and a text with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = epigrad.linear(x, x, None, self.act) + epigrad.activation(x, torch.tanh)
        return y + epigrad.activation(x, "leaky_relu(slope=0.5)") * epigrad.activation(
            x, epigrad.Activation("softplus(beta=2)")
        )


def test_modules_functions_and_texts_are_activations_while_compiling() -> None:
    model, x = WithModule(), torch.linspace(-2, 2, 16).reshape(4, 4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(x), model(x))
    model.act.negative_slope = 0.7
    assert_same_bits(compiled(x), model(x))
    traced = torch.fx.symbolic_trace(model)
    assert_same_bits(traced(x), model(x))
    with pytest.raises(Exception, match="the function sin, want one of"):
        torch.compile(lambda x: epigrad.activation(x, torch.sin), fullgraph=True, backend="aot_eager")(x)


class LinearGELU(torch.autograd.Function):
    """A function of the user's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out, preactivation = forward.linear(x, weight, bias, "gelu", return_preactivation=True)
        ctx.save_for_backward(x, weight, bias, preactivation)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias, pre = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return backward.linear_backward(grad, x, weight, bias, "gelu", preactivation=pre, needs=needs)


def test_the_stateless_functions_are_operators_in_a_graph() -> None:
    epigrad.backends()  # loads the core, which a trace cannot
    compiled = torch.compile(lambda *t: LinearGELU.apply(*t), fullgraph=True, backend="aot_eager")
    assert_same_training(compiled, LinearGELU.apply, FUNCTIONS["linear"].tensors())
    x = torch.randn(6, 8)

    def others(x: Tensor) -> list[Tensor | None]:
        return [
            forward.gated_activation(x, "geglu"),
            forward.gated_product(x, x),
            forward.lerp(x, 2 * x, 0.3),
            backward.gated_activation_backward(x[:, :4], x),
            *backward.gated_product_backward(x, x, x, needs=(True, False)),
            *backward.lerp_backward(x, x, x, 0.5),
        ]

    for one, other in zip(torch.compile(others, fullgraph=True, backend="aot_eager")(x), others(x), strict=True):
        assert_same_bits(one, other)
    with pytest.raises(Exception, match="out: given in a compiled or traced region"):
        torch.compile(forward.lerp, fullgraph=True, backend="aot_eager")(x, x, 0.5, out=torch.empty_like(x))


class Network(nn.Module):
    """A module around one function, whose parameters are all its tensors but the first."""

    def __init__(self, op: str, device: str) -> None:
        super().__init__()
        _, *rest = FUNCTIONS[op].tensors(device)
        self.function = FUNCTIONS[op].function
        self.rest = nn.ParameterList(rest)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.rest)


@feature("export")
@on_devices
@each_function
def test_export(op: str, device: str, tmp_path: Path) -> None:
    network, x = Network(op, device).eval(), FUNCTIONS[op].tensors(device)[0].detach()
    fixed = op in ("gated_product", "lerp", "experts")  # whose parameters have as many rows as the input
    shapes = None if fixed else ({0: torch.export.Dim("rows", min=2, max=64)},)
    with torch.no_grad():
        program = torch.export.export(network, (x,), dynamic_shapes=shapes)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert f"epigrad.{op}.default" in names
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    loaded: Any = torch.export.load(path).module()
    for input in (x,) if fixed else (x, torch.cat([x, x])):
        assert_same_bits(loaded(input).detach(), network(input).detach())


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="PyTorch traces no inner gradient")
@on_devices
@pytest.mark.parametrize("kind", ["silu", "tanh", "swiglu"])
def test_an_inner_gradient_is_traced_or_refused(kind: str, device: str) -> None:
    gated = kind == "swiglu"
    tensors = [
        torch.randn(shape, device=device, requires_grad=True) for shape in ((5, 4), (8, 4), (3, 4 if gated else 8))
    ]

    def loss(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        out = epigrad.gated_mlp(x, v, None, w, None) if gated else epigrad.linear(epigrad.linear(x, v, None, kind), w)
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return first.square().sum() + out.sum()

    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    want = torch.autograd.grad(loss(*tensors), tensors)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(loss, fullgraph=True, backend=aot_autograd(fw_compiler=backend))
        torch.testing.assert_close(torch.autograd.grad(compiled(*tensors), tensors), want)
    assert any("backward_backward" in name for name in names)
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match="trace_autograd_ops"):
        torch.compile(loss, fullgraph=True, backend="aot_eager")(*tensors)
    with pytest.raises(RuntimeError, match="aot_autograd does not currently support double backward"):
        torch.autograd.grad(torch.compile(loss, backend="aot_eager")(*tensors), tensors)


class Everything(nn.Module):
    """All functions, so that one package shows them all: compiling C++ takes long."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.networks = nn.ModuleDict({op: Network(op, device) for op in NAMES})

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {op: network(inputs[op]) for op, network in self.networks.items()}


@feature("AOTInductor")
@on_devices
# for one package: longer than the package
@torch._inductor.config.patch({"aot_inductor.precompile_headers": False})
@thorough
def test_aotinductor_packages_run(device: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.__version__ < "2.12":
        pytest.skip("PyTorch 2.11 crashes on CUDA (an H200) as it loads any package, one without epigrad too")
    network = Everything(device).eval()
    inputs = {op: FUNCTIONS[op].tensors(device)[0].detach() for op in NAMES}
    with torch.no_grad():
        program = torch.export.export(network, (inputs,))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "network.pt2"))
        results = torch._inductor.aoti_load_package(package)(inputs)
        for op, want in network(inputs).items():
            assert_same_bits(results[op], want)
