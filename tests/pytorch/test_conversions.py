"""What wraps, converts, hooks or replaces the layers inside of epigrad's modules: LoRA,
quantisation, pruning."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import epigrad
import peft
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrizations, prune
from transformers.pytorch_utils import Conv1D

from tests.support.layouts import assert_same_bits
from tests.support.repository import ROOT

FEATURES, HIDDEN = 8, 16

BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: epigrad.nn.MLP(FEATURES, HIDDEN, "gelu"),
    "GatedMLP": lambda: epigrad.nn.GatedMLP(FEATURES, HIDDEN, "swiglu", bias=True),
    "square": lambda: epigrad.nn.MLP(FEATURES, FEATURES, "gelu"),
}
each_block = pytest.mark.parametrize("name", BLOCKS)


class Model(nn.Module):
    """A block and a layer with an activation, with a plain layer before them."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.block = block
        self.last = epigrad.nn.Linear(FEATURES, FEATURES, activation="silu")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.block(self.first(x))
        out: Tensor = self.last(x)
        return out


def model(name: str) -> Model:
    torch.manual_seed(1)
    return Model(BLOCKS[name]())


def composed(block: Any, x: Tensor) -> Tensor:
    """A block by its layers as modules, whatever they are now, and PyTorch's own operations."""
    hidden = block.up(x)
    if isinstance(block, epigrad.nn.MLP):
        hidden = nn.functional.gelu(hidden)
    else:
        value, gate = hidden.chunk(2, -1)
        hidden = value * nn.functional.silu(gate)
    out: Tensor = block.down(hidden)
    return out


# --- LoRA -----------------------------------------------------------------------------------------


def with_lora(made: nn.Module, targets: Any) -> Any:
    torch.manual_seed(2)
    config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    return peft.get_peft_model(made, config)


@pytest.mark.parametrize("targets", ["all-linear", ["up"], ["down"], ["up", "down"]], ids=str)
@each_block
def test_lora_merges_and_unmerges_to_equal_results(name: str, targets: Any) -> None:
    """A2 of what a newcomer found: merged, the model computed something else."""
    plain, x = model(name), torch.randn(5, FEATURES)
    before = plain(x).detach()
    adapted = with_lora(copy.deepcopy(plain), targets).eval()
    want = adapted(x).detach()
    assert (want - before).abs().max() > 0.01, "the adapter changes nothing"
    adapted.merge_adapter()
    torch.testing.assert_close(adapted(x).detach(), want, rtol=1e-5, atol=1e-5)
    adapted.unmerge_adapter()
    torch.testing.assert_close(adapted(x).detach(), want, rtol=1e-5, atol=1e-5)
    with adapted.disable_adapter():
        torch.testing.assert_close(adapted(x).detach(), before, rtol=1e-5, atol=1e-5)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(x).detach(), want, rtol=1e-5, atol=1e-5)
    assert type(merged.block.up) is nn.Linear and type(merged.last) is epigrad.nn.Linear


@each_block
def test_all_linear_takes_what_is_linear(name: str) -> None:
    adapted = with_lora(model(name), "all-linear")
    wrapped = {
        key for key, layer in adapted.base_model.model.named_modules() if isinstance(layer, peft.tuners.lora.Linear)
    }
    assert wrapped == {"first", "block.up", "block.down"}


def test_lora_on_a_layer_with_an_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="not supported"):
        with_lora(model("MLP"), ["last"])


@pytest.mark.parametrize("targets", [["up"], ["down"]], ids=str)
@each_block
def test_adapters_inside_of_a_block_are_trained(name: str, targets: list[str]) -> None:
    adapted = with_lora(model(name), targets)
    x = torch.randn(5, FEATURES, requires_grad=True)
    block = adapted.base_model.model.block
    ours = torch.autograd.grad(block(x).square().sum(), [x, *(p for p in block.parameters() if p.requires_grad)])
    want = composed(block, x).square().sum()
    theirs = torch.autograd.grad(want, [x, *(p for p in block.parameters() if p.requires_grad)])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# --- quantisation ---------------------------------------------------------------------------------


@each_block
def test_torchaos_weight_only_quantisation(name: str) -> None:
    """C4: quantised weights met an operator that does not know them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        made = model(name).eval()
        quantize_(made, Int8WeightOnlyConfig())
    assert type(made.block.up.weight) is not nn.Parameter, "nothing was quantised"
    x = torch.randn(5, FEATURES)
    with torch.no_grad():
        assert_same_bits(made.last(x), epigrad.linear(x, made.last.weight, made.last.bias, "silu"))
        torch.testing.assert_close(made.block(x), composed(made.block, x))


@each_block
def test_dynamic_quantisation(name: str) -> None:
    made, x = model(name).eval(), torch.randn(5, FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
        quantised = torch.ao.quantization.quantize_dynamic(made, {nn.Linear}, torch.qint8)
    assert type(quantised.block.up) is not nn.Linear and type(quantised.last) is epigrad.nn.Linear
    with torch.no_grad():
        torch.testing.assert_close(quantised.block(x), composed(quantised.block, x))
        assert (quantised(x) - made(x)).abs().max() < 0.2


@each_block
def test_quantisation_aware_training(name: str) -> None:
    made, x = model(name).train(), torch.randn(5, FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")  # type: ignore[assignment]
        prepared = torch.ao.quantization.prepare_qat(made)
        prepared(x).sum().backward()
        for module in prepared.modules():  # observers would see other data in the second call
            if isinstance(module, torch.ao.quantization.FakeQuantizeBase):
                module.disable_observer()
        assert type(prepared.block.up) is not nn.Linear
        torch.testing.assert_close(prepared.block(x), composed(prepared.block, x))


# --- hooks and parametrisations -------------------------------------------------------------------


@each_block
def test_hooks_on_all_modules_see_the_layers_inside(name: str) -> None:
    """C5: only the block fired."""
    block, x = BLOCKS[name](), torch.randn(5, FEATURES)
    want = block(x)
    seen: list[nn.Module] = []
    for register in (register_module_forward_hook, register_module_forward_pre_hook):
        seen.clear()
        handle = register(lambda module, *rest: seen.append(module))
        try:
            torch.testing.assert_close(block(x), want)
        finally:
            handle.remove()
        assert {block, block.up, block.down} <= set(seen)
    assert_same_bits(block(x).detach(), want.detach())


@pytest.mark.parametrize("layer", ["up", "down"])
@each_block
def test_what_changes_a_layer_keeps_its_part(name: str, layer: str) -> None:
    x = torch.randn(5, FEATURES)

    def weight_norm(block: nn.Module) -> None:
        parametrizations.weight_norm(block.get_submodule(layer))

    def pruned(block: nn.Module) -> None:
        prune.random_unstructured(block.get_submodule(layer), "weight", 0.5)

    def forward_of_the_instance(block: nn.Module) -> None:
        part = block.get_submodule(layer)
        own = part.forward
        part.forward = lambda input: own(input) * 2

    def other_layer(block: nn.Module) -> None:
        part = block.get_submodule(layer)
        setattr(block, layer, nn.Sequential(part, nn.Hardtanh()))

    def hooked(block: nn.Module) -> None:
        block.get_submodule(layer).register_forward_hook(lambda module, inputs, output: output + 1)

    def transposed(block: nn.Module) -> None:
        """The layer of GPT-2, whose weight is [K, N]."""
        part = block.get_submodule(layer)
        other = Conv1D(part.out_features, part.in_features)
        nn.init.normal_(other.weight)
        setattr(block, layer, other)

    for change in (weight_norm, pruned, forward_of_the_instance, other_layer, hooked, transposed):
        block = BLOCKS[name]()
        change(block)
        out = block(x)
        torch.testing.assert_close(out, composed(block, x), msg=change.__name__)
        out.sum().backward()


@each_block
def test_plain_layers_are_computed_as_one(name: str) -> None:
    """The hidden activation is not kept: nothing but the inputs, the weights and the preactivation
    is."""
    block, x = BLOCKS[name](), torch.randn(5, FEATURES)
    known = {t.data_ptr() for t in (x, *block.parameters())}
    saved: dict[int, Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        block(x)
    kept = [tuple(t.shape) for place, t in saved.items() if place not in known]
    assert kept == [(5, block.up.out_features)]


def test_exported_without_dynamo_a_block_stays_one_operator() -> None:
    for name, op in (("MLP", "mlp"), ("GatedMLP", "gated_mlp")):
        for strict in (False, True):
            program = torch.export.export(BLOCKS[name](), (torch.randn(3, FEATURES),), strict=strict)
            assert f"epigrad.{op}.default" in {str(node.target) for node in program.graph.nodes}


# --- older versions -------------------------------------------------------------------------------


def test_state_dicts_saved_by_version_0_1_load() -> None:
    """The keys and shapes that 0.1's modules had, and what they computed."""
    shapes = {
        "block.up.weight": (16, 8),
        "block.up.bias": (16,),
        "block.down.weight": (8, 16),
        "block.down.bias": (8,),
        "last.weight": (8, 8),
        "last.bias": (8,),
        "first.weight": (8, 8),
        "first.bias": (8,),
    }
    saved = {key: torch.randn(shape) for key, shape in shapes.items()}
    made, x = model("MLP"), torch.randn(5, 8)
    made.load_state_dict(saved, strict=True)
    hidden = nn.functional.gelu(x @ saved["block.up.weight"].T + saved["block.up.bias"])
    want = hidden @ saved["block.down.weight"].T + saved["block.down.bias"]
    torch.testing.assert_close(made.block(x).detach(), want, rtol=1e-5, atol=1e-5)
    gated, up, down = epigrad.nn.GatedMLP(8, 16), torch.randn(32, 8), torch.randn(8, 16)
    gated.load_state_dict({"up.weight": up, "down.weight": down}, strict=True)
    value, gate = (x @ up.T).chunk(2, -1)
    torch.testing.assert_close(gated(x).detach(), (value * nn.functional.silu(gate)) @ down.T, rtol=1e-5, atol=1e-5)


@each_block
def test_blocks_that_version_0_1_pickled_whole_load(name: str) -> None:
    """There, both layers were `epigrad.nn.Linear`, and MLP's activation was that of `up`."""
    block, x = BLOCKS[name](), torch.randn(5, FEATURES)
    old = copy.deepcopy(block)
    for layer, activation in (("up", "none" if name == "GatedMLP" else "gelu"), ("down", "none")):
        plain = block.get_submodule(layer)
        theirs = epigrad.nn.Linear(plain.in_features, plain.out_features, activation=activation)
        theirs.load_state_dict(plain.state_dict())
        setattr(old, layer, theirs)
    old.__dict__.pop("activation", None)
    loaded = pickle.loads(pickle.dumps(old))
    assert type(loaded.up) is nn.Linear and type(loaded.down) is nn.Linear
    assert repr(loaded) == repr(block)
    assert_same_bits(loaded(x).detach(), block(x).detach())


def arguments(schema: Any) -> dict[str, tuple[str, str, bool, bool]]:
    """An operator's arguments by name: type, default, and whether it is given by keyword."""
    return {
        each.name: (str(each.type), repr(each.default_value), each.has_default_value(), each.kwarg_only)
        for each in schema.arguments
    }


def test_kinds_that_version_0_2_pickled_load() -> None:
    parameters = b"}q\x03X\x05\x00\x00\x00slopeq\x04G?\xd3333333s"
    pickled = b"\x80\x02cepigrad.kinds\n_made\nq\x00cepigrad.kinds\nActivation\nq\x01X\n\x00\x00\x00leaky_reluq\x02"
    assert pickle.loads(pickled + parameters + b"\x87q\x05Rq\x06.") == epigrad.Activation("leaky_relu", slope=0.3)


OLD_OPERATORS = [(ROOT / f"tests/pytorch/operators_{version}.txt").read_text() for version in ("0_1", "0_2")]


@pytest.mark.parametrize("line", "".join(OLD_OPERATORS).splitlines())
def test_operators_take_the_arguments_of_older_versions(line: str) -> None:
    """Exported programs and packages of AOTInductor name those by keyword."""
    schema = torch._C.parse_schema(line)
    now = getattr(torch.ops.epigrad, schema.name.removeprefix("epigrad::")).default._schema
    old, new = arguments(schema), arguments(now)
    assert {name: new.get(name) for name in old} == old
    positional = [name for name, (*_, by_keyword) in old.items() if not by_keyword]
    assert list(new)[: len(positional)] == positional
    assert all(has_default for name, (*_, has_default, _) in new.items() if name not in old)
    assert [str(each.type) for each in now.returns] == [str(each.type) for each in schema.returns]


@each_block
def test_a_layer_with_an_activation_in_a_block_survives_a_copy(name: str) -> None:
    block, x = BLOCKS[name](), torch.randn(5, FEATURES)
    block.down = epigrad.nn.Linear(block.down.in_features, FEATURES, activation="tanh")
    for double in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert_same_bits(double(x).detach(), block(x).detach())


def test_linear_is_no_torch_linear() -> None:
    assert not isinstance(epigrad.nn.Linear(2, 3), nn.Linear)
