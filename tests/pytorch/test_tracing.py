"""What records programs and runs them elsewhere: torch.jit.trace, both ONNX exporters, torch.fx,
run_decompositions."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import epigrad
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from epigrad import backward, errors, forward
from torch import Tensor, nn

from tests.support.cases import ACTIVATIONS, GATED_KINDS
from tests.support.features import feature
from tests.support.layouts import assert_same_bits
from tests.support.models import MODELS
from tests.support.operators import FUNCTIONS, each_function, each_in_turns
from tests.support.tiers import thorough

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")

BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: epigrad.nn.Linear(8, 8, activation="silu"),
    "MLP": lambda: epigrad.nn.MLP(8, 12, "gelu"),
    "GatedMLP": lambda: epigrad.nn.GatedMLP(8, 12, "geglu", bias=True, gate="first"),
}
each_block = pytest.mark.parametrize("name", BLOCKS)


class Residual(nn.Module):
    """x + block(norm(x)): what a trace that keeps an output as a constant still runs on."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.block(self.norm(x))
        return out


def residual(name: str) -> Residual:
    torch.manual_seed(1)
    return Residual(BLOCKS[name]())


class Functional(nn.Module):
    """A function of `operators.FUNCTIONS` beside its first argument."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[op].function

    def forward(self, *tensors: Tensor) -> Tensor:
        return tensors[0].sum() + self.function(*tensors)


each_vit = pytest.mark.parametrize("name", ["vit", "timm"])


class Patched(nn.Module):
    """A small model of another library, patched, and its first output."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.model = MODELS[name].make(0.0)
        self.output = MODELS[name].output
        assert epigrad.integrations.transformers.patch(self.model).patched

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.model, x)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@each_block
def test_a_traced_block_with_a_residual_computes(name: str, grad: bool) -> None:
    """A1 of what a newcomer found: the block's output was a constant of the trace."""
    model = residual(name)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, torch.randn(3, 8))
    x = torch.randn(5, 8)
    assert_same_bits(traced(x).detach(), model(x).detach())
    # Of other sizes, and after a change of the parameters that the trace has by reference.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    x = torch.randn(2, 4, 8)
    assert_same_bits(traced(x).detach(), model(x).detach())


@each_block
def test_a_trace_has_gradients(name: str) -> None:
    model = residual(name)
    other = copy.deepcopy(model)
    traced = torch.jit.trace(model, torch.randn(3, 8))
    x = torch.randn(5, 8)
    traced(x).square().sum().backward()
    other(x).square().sum().backward()
    for (parameter_name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert_same_bits(ours.grad, theirs.grad, parameter_name)


@each_block
def test_a_saved_trace_runs(name: str) -> None:
    model, x, file = residual(name), torch.randn(5, 8), io.BytesIO()
    torch.jit.save(torch.jit.trace(model, torch.randn(3, 8)), file)
    file.seek(0)
    assert_same_bits(torch.jit.load(file)(x).detach(), model(x).detach())


@feature("jit.trace")
@each_function
def test_traced_functions(op: str) -> None:
    call = FUNCTIONS[op]
    example, tensors = (call.tensors(seed=seed) for seed in (0, 1))
    traced = torch.jit.trace(Functional(op), tuple(t.detach() for t in example))
    want = Functional(op)(*tensors)
    got = traced(*tensors)
    assert_same_bits(got.detach(), want.detach())
    for ours, theirs in zip(
        torch.autograd.grad(got.square().sum(), tensors), torch.autograd.grad(want.square().sum(), tensors), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@each_vit
def test_a_traced_patched_vit_computes(name: str) -> None:
    model, inputs = Patched(name).eval(), MODELS[name].inputs
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the models' own: sizes that they check
        traced = torch.jit.trace(model, inputs())
        x = torch.randn_like(inputs())
        torch.testing.assert_close(traced(x), model(x))
    assert any("epigrad" in node.kind() for node in traced.inlined_graph.nodes())


def test_stateless_forward_functions_are_traced() -> None:
    def hidden(x: Tensor, weight: Tensor) -> Tensor:
        out, pre = forward.linear(x, weight, None, "gelu", return_preactivation=True)
        return x + out + forward.activation(pre, "tanh")

    tensors = [(torch.randn(3, 4), torch.randn(4, 4)) for _ in range(2)]
    assert_same_bits(torch.jit.trace(hidden, tensors[0])(*tensors[1]), hidden(*tensors[1]))


def test_gradients_inside_of_a_trace() -> None:
    """A trace has no place for a backward's list of `needs`."""
    weight = torch.randn(4, 4)

    def stateless(x: Tensor) -> Tensor:
        grad_input, _, _ = backward.linear_backward(x, x, weight, None, "gelu", needs=(True, False, False))
        assert grad_input is not None
        return x + grad_input

    def by_autograd(x: Tensor) -> Tensor:
        with torch.enable_grad():  # the trace is checked without
            leaf = x.detach().requires_grad_()
            out = epigrad.lerp(epigrad.linear(leaf, weight, None, "gelu"), leaf, 0.3)
            (gradient,) = torch.autograd.grad(out.square().sum(), leaf)
        return x + gradient

    for function in (stateless, by_autograd):
        with warnings.catch_warnings():
            # autograd's own: it asks whether the output has one element
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(function, torch.randn(3, 4))
        x = torch.randn(3, 4)  # sum's gradient has the size of the trace, in PyTorch too
        torch.testing.assert_close(traced(x), function(x))


def test_what_a_trace_cannot_hold_is_refused() -> None:
    """A plan, and an `out`, write into memory that the trace does not know."""
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    plan = epigrad.plan.GemmEpilogue.select(m=3, n=5, k=4, activation="relu", dtype=torch.float32)

    def by_plan(x: Tensor) -> Tensor:
        out = torch.empty(3, 5)
        plan.run(a=x, b=weight.T, out=out)
        return out

    def by_out(x: Tensor) -> Tensor:
        return forward.linear(x, weight, out=torch.empty(3, 5))

    for function in (by_plan, by_out):
        with pytest.raises(errors.UnsupportedError, match="traced"):
            torch.jit.trace(function, x)


def onnx_session(program: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])


def exported(model: nn.Module | torch.export.ExportedProgram, inputs: tuple[Tensor, ...], dynamo: bool) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's and onnxscript's own, of their versions
        torch.onnx.export(model, inputs, file, dynamo=dynamo, **({"verbose": False} if dynamo else {}))
    return file.getvalue()


def assert_onnx_computes(program: bytes, want: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    assert all(node.domain in ("", "pkg.onnxscript.torch_lib") for node in onnx.load_from_string(program).graph.node)
    session = onnx_session(program)
    names = [argument.name for argument in session.get_inputs()]
    feeds = {name: tensor.detach().numpy() for name, tensor in zip(names, inputs, strict=True)}
    (got,) = session.run(None, feeds)
    wanted = want(*inputs).detach()
    assert np.asarray(got).shape == tuple(wanted.shape)
    torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@feature("ONNX")
@each_in_turns
def test_onnx_of_functions(op: str, dynamo: bool) -> None:
    tensors = tuple(t.detach() for t in FUNCTIONS[op].tensors())
    others = tuple(t.detach() for t in FUNCTIONS[op].tensors(seed=1))
    model = Functional(op).eval()
    assert_onnx_computes(exported(model, tensors, dynamo), model, others)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@each_block
def test_onnx_of_a_block_with_a_residual(name: str, dynamo: bool) -> None:
    """C1 and A1: the exporter knew no decomposition, and the older one kept the output as a
    constant."""
    model = residual(name).eval()
    assert_onnx_computes(exported(model, (torch.randn(3, 8),), dynamo), model, (torch.randn(3, 8),))


@thorough
def test_onnx_of_a_half_type_and_of_any_number_of_rows() -> None:
    model, x = residual("GatedMLP").eval(), torch.randn(3, 8)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = {0: torch.export.Dim("rows")}
        torch.onnx.export(model, (x,), file, dynamo=True, verbose=False, dynamic_shapes=(rows,))
    assert_onnx_computes(file.getvalue(), model, (torch.randn(7, 8),))
    half = residual("MLP").half().eval()
    program = exported(half, (x.half(),), True)
    session = onnx_session(program)
    (got,) = session.run(None, {session.get_inputs()[0].name: x.half().numpy()})
    torch.testing.assert_close(torch.from_numpy(got), half(x.half()).detach(), rtol=5e-3, atol=5e-3)


def test_stateless_functions_in_both_exporters() -> None:
    class Hidden(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out, pre = forward.linear(x, x, None, "gelu", return_preactivation=True)
            return x.sum() + out + pre

    for dynamo in (True, False):
        program = exported(Hidden(), (torch.randn(3, 4),), dynamo)
        assert_onnx_computes(program, Hidden(), (torch.randn(3, 4),))


def test_onnx_of_a_program_that_was_exported_before() -> None:
    model = residual("GatedMLP").eval()
    program = torch.export.export(model, (torch.randn(3, 8),))
    assert_onnx_computes(exported(program, (), True), model, (torch.randn(3, 8),))


class SideBySide(nn.Module):
    """The outputs of several modules for one input: an export of all takes little longer than that
    of one."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x) for branch in self.branches])


def test_onnx_of_every_activation() -> None:
    model = SideBySide(epigrad.nn.Linear(4, 5, activation=activation) for activation in ACTIVATIONS).eval()
    assert_onnx_computes(exported(model, (torch.randn(3, 4),), True), model, (3 * torch.randn(3, 4),))


def test_onnx_of_every_gated_kind() -> None:
    model = SideBySide(epigrad.nn.GatedActivation(kind, 0) for kind in GATED_KINDS)
    assert_onnx_computes(exported(model, (torch.randn(4, 3),), True), model, (3 * torch.randn(4, 3),))


@each_vit
@thorough
def test_onnx_of_a_patched_vit(name: str) -> None:
    model, x = Patched(name).eval(), MODELS[name].inputs()
    assert_onnx_computes(exported(model, (x,), True), model, (torch.randn_like(x),))


def ours(program: Any) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if "epigrad" in str(node.target)}


@each_in_turns
def test_run_decompositions_leaves_pytorchs_operations(op: str) -> None:
    """C1: `run_decompositions` kept epigrad's operators."""
    tensors = tuple(t.detach() for t in FUNCTIONS[op].tensors())
    program = torch.export.export(Functional(op), tensors)
    assert ours(program) == {f"epigrad.{op}.default"}
    lowered = program.run_decompositions()
    assert not ours(lowered)
    others = tuple(t.detach() for t in FUNCTIONS[op].tensors(seed=1))
    torch.testing.assert_close(lowered.module()(*others), Functional(op)(*others))


def test_a_given_table_of_decompositions_is_used_as_it_is() -> None:
    tensors = tuple(t.detach() for t in FUNCTIONS["linear"].tensors())
    program = torch.export.export(Functional("linear"), tensors)
    assert ours(program.run_decompositions({}))
    table = torch.export.default_decompositions()
    assert ours(program.run_decompositions(table))
    table.update(epigrad.ops.decompositions())
    assert not ours(program.run_decompositions(table))


def test_inductor_keeps_the_operators() -> None:
    """Its table of decompositions starts from that of exported programs."""
    from torch._inductor.decomposition import decompositions

    assert decompositions
    assert not [operator for operator in decompositions if "epigrad" in str(operator)]


@feature("fx")
@each_function
def test_fx_sees_functions_as_leaves(op: str) -> None:
    """C2: a proxy was refused as no tensor."""
    function = FUNCTIONS[op].function
    example = FUNCTIONS[op].tensors()
    names = ", ".join(f"x{i}" for i in range(len(example)))
    graph = torch.fx.symbolic_trace(eval(f"lambda {names}: function({names}) * 2", {"function": function}))
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and "epigrad" in node.target.__module__]
    assert [node.target for node in calls] == [getattr(epigrad, op)]
    assert_same_bits(graph(*example).detach(), (function(*example) * 2).detach())


@each_block
def test_fx_of_modules(name: str) -> None:
    model, x = residual(name), torch.randn(5, 8)
    graph = torch.fx.symbolic_trace(model)
    assert "epigrad" in graph.code
    assert_same_bits(graph(x).detach(), model(x).detach())
    graph(x).sum().backward()
    again = copy.deepcopy(graph)  # by the code that fx writes
    assert_same_bits(again(x).detach(), model(x).detach())


@pytest.mark.parametrize("name", ["MLP", "GatedMLP"])
def test_fx_of_a_block_with_a_hook_inside(name: str) -> None:
    model, x = residual(name), torch.randn(5, 8)
    model.block.up.register_forward_hook(lambda module, inputs, output: output * 2)
    assert_same_bits(torch.fx.symbolic_trace(model)(x).detach(), model(x).detach())


def test_fx_of_a_weight_of_lerp() -> None:
    graph = torch.fx.symbolic_trace(lambda x, y, w: epigrad.lerp(x, y, w))
    tensors = [torch.randn(3) for _ in range(3)]
    assert_same_bits(graph(*tensors), epigrad.lerp(*tensors))


def test_scripting_is_refused_by_pytorch() -> None:
    """C3: docs/exporting.md says so."""
    with pytest.raises(RuntimeError):
        torch.jit.script(epigrad.nn.MLP(4, 6))
