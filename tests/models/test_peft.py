"""PEFT's LoRA inside of what epigrad computes: which adapters go into the products, which stay
PEFT's and why, and that training with them is PEFT's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import torch.distributed as dist
import transformers
from epigrad.integrations.transformers import patch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.tiers import thorough

# PEFT asks by names that transformers has given up.
pytestmark = [
    pytest.mark.usefixtures("_one_thread"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


def llama(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, intermediate_size=48, mlp_bias=True)).to(
        dtype
    )


def mixture(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48}
    config = transformers.GptOssConfig(**sizes, num_local_experts=8, num_experts_per_tok=2)
    model = transformers.GptOssForCausalLM(config).to(dtype)
    model.set_experts_implementation("eager")
    return model


EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
PROJECTIONS = ["up_proj", "gate_proj", "down_proj"]


def adapted(model: Any, **options: Any) -> Any:
    torch.manual_seed(2)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **options))


def told(model: Any) -> set[str]:
    """What computes each block or module of experts, without its class."""
    return {text.partition(" by ")[2] for text in patch(model).patched.values()}


def logits(model: Any) -> Tensor:
    out: Tensor = model(torch.arange(12).reshape(2, 6)).logits
    return out.detach()


# --- which adapters go into the products ----------------------------------------------------------


def _two_active(model: Any) -> None:
    torch.manual_seed(3)
    model.add_adapter("other", peft.LoraConfig(r=3, target_modules=["up_proj"], init_lora_weights=False))
    model.base_model.set_adapter(["default", "other"])


STAY: dict[str, tuple[dict[str, Any], Callable[[Any], object] | None]] = {
    "has the adapter default with dropout while it trains": ({"lora_dropout": 0.5}, None),
    "has the adapter default of DoRA": ({"use_dora": True}, None),
    "has the adapter default with a bias": ({"lora_bias": True}, None),
    "has several active adapters, default, other": ({}, _two_active),
    "has the merged adapter default": ({}, lambda model: model.merge_adapter()),
}
"""Reasons, with what PEFT's configuration says and what then happens to the model."""


@pytest.mark.parametrize("reason", STAY)
def test_an_adapter_that_stays_with_peft_is_named_with_the_reason(reason: str) -> None:
    options, then = STAY[reason]
    own = adapted(llama(), target_modules=["up_proj"], **options)
    if then:
        then(own)
    model = copy.deepcopy(own)
    assert told(model) == {f"gated_product swiglu, since up_proj {reason}"}
    torch.manual_seed(5)
    want = logits(own)
    torch.manual_seed(5)
    torch.testing.assert_close(logits(model), want)


def _torchao(layer: nn.Linear, bits: int) -> nn.Linear:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(layer, Int8WeightOnlyConfig())
    return layer


def _bitsandbytes(layer: nn.Linear, bits: int) -> nn.Linear:
    library = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    name, parameter = {4: ("Linear4bit", "Params4bit"), 8: ("Linear8bitLt", "Int8Params")}[bits]
    options = {8: {"has_fp16_weights": False}}.get(bits, {})
    sizes = layer.in_features, layer.out_features
    quantized: nn.Linear = getattr(library.nn, name)(*sizes, bias=layer.bias is not None, **options)
    quantized.weight = getattr(library.nn, parameter)(layer.weight.data, requires_grad=False, **options)
    quantized.bias = layer.bias
    return quantized.to("cpu")  # which packs the weight


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("quantized", "bits", "wrapper"),
    [
        (_torchao, 8, "torchao.TorchaoLoraLinear"),
        (_bitsandbytes, 4, "bnb.Linear4bit"),
        (_bitsandbytes, 8, "bnb.Linear8bitLt"),
    ],
    ids=["torchao", "bitsandbytes, 4", "bitsandbytes, 8"],
)
def test_adapters_of_quantised_layers_stay_with_peft(quantized: Any, bits: int, wrapper: str) -> None:
    """QLoRA: the layers are called, and epigrad computes the gate between them."""

    def made() -> Any:
        base = llama()
        for layer in base.model.layers:
            for name in PROJECTIONS:
                setattr(layer.mlp, name, quantized(getattr(layer.mlp, name), bits))
        setattr(base, f"is_loaded_in_{bits}bit", quantized is _bitsandbytes)  # PEFT asks by this name
        return adapted(base, target_modules=PROJECTIONS)

    model = made()
    assert told(model) == {f"gated_product swiglu, since up_proj is a peft.tuners.lora.{wrapper}"}
    assert losses(model, 3) == pytest.approx(losses(made(), 3), rel=1e-4)


def test_dropout_goes_into_the_product_once_it_no_longer_drops() -> None:
    own = adapted(llama(), target_modules=["up_proj"], lora_dropout=0.5).eval()
    model = copy.deepcopy(own)
    assert told(model) == {"gated_linear swiglu"}
    torch.testing.assert_close(logits(model), logits(own))


def test_the_active_adapter_of_several_is_the_one_that_counts() -> None:
    own = adapted(llama(), target_modules=PROJECTIONS)
    torch.manual_seed(3)
    config = peft.LoraConfig(r=3, target_modules=["gate_proj"], init_lora_weights=False, use_rslora=True)
    own.add_adapter("other", config)
    model = copy.deepcopy(own)
    assert told(model) == {"gated_linear swiglu"}
    seen = []
    for name in ("default", "other"):
        own.set_adapter(name)
        model.set_adapter(name)
        seen.append(logits(model))
        torch.testing.assert_close(seen[-1], logits(own))
    assert not torch.allclose(*seen, atol=1e-3)


def test_a_hook_on_an_adapter_sees_it() -> None:
    model = adapted(llama(), target_modules=["up_proj"])
    patch(model)
    low = model.base_model.model.model.layers[0].mlp.up_proj.lora_A["default"]
    seen: list[Any] = []
    low.register_forward_hook(lambda *_: seen.append(1))
    logits(model)
    assert len(seen) == 1


# --- training is PEFT's own -----------------------------------------------------------------------


def losses(model: Any, steps: int = 20) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens, found = torch.arange(24).reshape(3, 8) % 50, []
    for _ in range(steps):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


CURVES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "blocks": (
        llama,
        {"target_modules": PROJECTIONS, "rank_pattern": {"up_proj": 5}, "alpha_pattern": {"gate_proj": 9}},
    ),
    "experts": (mixture, {"target_modules": [], "target_parameters": EXPERTS, "use_rslora": True}),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", CURVES)
def test_losses_are_those_of_peft(name: str, when: str) -> None:
    """`patch` before or after PEFT; ranks and scales by patterns and by rank."""
    make, options = CURVES[name]
    want = losses(adapted(make(torch.float64), **options))
    model = make(torch.float64)
    if when == "before":
        patch(model)
    model = adapted(model, **options)
    if when == "after":
        patch(model)
    assert want[-1] < want[0] - 0.1 and losses(model) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("name", CURVES)
def test_float32_adapters_beside_16_bits(name: str) -> None:
    """PEFT's default for models in bfloat16: gradients of adapters stay float32."""
    make, options = CURVES[name]
    own = adapted(make(torch.bfloat16), **options)
    for key, parameter in own.named_parameters():
        if "lora_" in key:
            parameter.data = parameter.data.float()
    exact = copy.deepcopy(own).double()
    model = copy.deepcopy(own)
    patch(model)
    tokens = torch.arange(24).reshape(3, 8) % 50
    for each in (own, exact, model):
        each(tokens, labels=tokens).loss.backward()
    for (key, got), want, theirs in zip(model.named_parameters(), exact.parameters(), own.parameters(), strict=True):
        if got.grad is not None:
            assert got.grad.dtype == got.dtype == torch.float32, key
            error, other = ((each.double() - want.grad).norm() for each in (got.grad, theirs.grad))
            assert error <= 1.5 * other + 2**-8 * want.grad.norm(), key


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(name: str, reentrant: bool) -> None:
    """A layer that runs again in backward has its adapters again."""
    make, options = CURVES[name]
    own = adapted(make(torch.float64), **options)
    model = copy.deepcopy(own)
    patch(model)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert losses(model, 3) == pytest.approx(losses(own, 3), rel=1e-9)


@pytest.mark.parametrize("name", CURVES)
def test_fully_shard(name: str) -> None:
    """FSDP2, in a group of one process, which has the same hooks as one of many."""
    make, options = CURVES[name]
    own = adapted(make(torch.float64), **options)
    model = copy.deepcopy(own)
    patch(model)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for module in (*model.get_base_model().model.layers, model):
            fully_shard(module, mesh=mesh)
        found = losses(model, 3)
    finally:
        dist.destroy_process_group()
    assert found == pytest.approx(losses(own, 3), rel=1e-9)


@pytest.mark.parametrize("name", [pytest.param("blocks", marks=thorough), "experts"])
def test_compiled_with_adapters(name: str) -> None:
    """In one graph, which PEFT's own way with experts breaks."""
    make, options = CURVES[name]
    own = adapted(make(), **options)
    model = copy.deepcopy(own)
    patch(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert losses(compiled, 3) == pytest.approx(losses(own, 3), rel=1e-5)


# --- memory ---------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operator makes."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if not any(result.alias_info for result in function._schema.returns):
            made = out if isinstance(out, tuple | list) else (out,)
            self.numel = max([self.numel, *(each.numel() for each in made if isinstance(each, Tensor))])
        return out


def test_no_tensor_of_a_weights_size_is_made() -> None:
    """Forward and backward with frozen experts, whose weights are larger than all else here. PEFT's
    own way makes such tensors, so the watch would see them."""
    sizes = {}
    for patched in (False, True):
        model = adapted(mixture(), target_modules=[], target_parameters=EXPERTS)
        if patched:
            patch(model)
        experts = model.get_base_model().model.layers[0].mlp.experts
        weight = min(each.numel() for key, each in experts.named_parameters() if key.endswith("_proj"))
        with Largest() as largest:
            model(torch.arange(4)[None]).logits.sum().backward()
        sizes[patched] = largest.numel / weight
    assert sizes[False] >= 1 > sizes[True]
