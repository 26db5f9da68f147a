"""The experts of transformers' models by epigrad: what `eager` computes, for each class that takes
an experts implementation.
"""

from __future__ import annotations

import copy
import importlib
from types import SimpleNamespace
from typing import Any

import epigrad
import pytest
import torch
import torch.distributed as dist
import transformers
from epigrad.integrations import experts as integration
from epigrad.integrations.transformers import patch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers.integrations import moe, sonicmoe

from tests.models import mixtures
from tests.models.expert_parallel import CHECKS
from tests.models.experts_modules import EACH, EXACT, allowed, arguments, made_of, module, run
from tests.models.mixtures import SPECIAL
from tests.support.processes import run_together
from tests.support.tiers import thorough

pytestmark = pytest.mark.usefixtures("_one_thread", "_registered")


def test_the_classes_of_experts_are_found() -> None:
    known = mixtures.classes()
    assert len(known) > 60
    assert set(SPECIAL) <= set(known), "names that transformers no longer has"


@EACH
def test_logits_and_gradients_are_those_of_eager(name: str, calls: list[str]) -> None:
    """Logits, and the gradients of the input embeddings and of all parameters."""
    model = made_of(name, torch.float64)
    found = mixtures.experts_of(model, name)
    want = mixtures.results(model, mixtures.inputs())
    assert not calls and found
    model.set_experts_implementation("epigrad")
    try:
        got = mixtures.results(model, mixtures.inputs())
    finally:
        model.set_experts_implementation("eager")
    assert mixtures.error(got, want) <= allowed(name)
    first = "grouped_linear" if found[0].has_post_expert_norm else "experts"
    # two kinds of tokens have experts of their own in Ernie 4.5 VL: there are no images here
    assert calls.count(first) >= (1 if name == "Ernie4_5_VLMoeMoeExperts" else len(found))
    for weight in ("gate_up_proj" if found[0].has_gate else "up_proj", "down_proj"):
        assert any(key.endswith(weight) for key in got), "experts without gradients"


@EACH
def test_gates_are_what_the_modules_compute(name: str) -> None:
    """`_apply_gate` itself beside the kind that is taken for it, beyond all limits."""
    made = module(name)
    kind, gate = integration._kind(made)
    generator = torch.Generator().manual_seed(1)
    x = (4 * torch.randn(64, 48, generator=generator, dtype=torch.float64)).requires_grad_()
    if made.has_gate:
        got, want = epigrad.gated_activation(x, kind, gate=gate), made._apply_gate(x)  # type: ignore[arg-type]
    else:
        got, want = epigrad.activation(x, kind), made.act_fn(x)  # type: ignore[arg-type]
    grad = torch.randn(want.shape, generator=generator, dtype=torch.float64)
    tolerance = EXACT if allowed(name) == EXACT or name in ("MuseSparkExperts", "NemotronHExperts") else 1e-6
    for ours, theirs in ((got, want), *zip(*(torch.autograd.grad(y, x, grad) for y in (got, want)), strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


SONIC_MOE = {"SWIGLU": "silu", "GEGLU": "gelu_tanh", "REGLU": "relu"}
"""The activations of the gates that SonicMoE has, whose geglu is that of tanh."""
OTHER_GATES = {
    *("DeepseekV4Experts", "Glm5NextTextExperts", "HYV4Experts", "HYV4VLExperts"),  # limits
    *("GptOssExperts", "MiniMaxM3VLExperts", "OpenAIPrivacyFilterExperts"),  # swiglu_oai
    *("Inkling2Experts", "Inkling2LoopExperts"),  # caps
    *("DiffusionGemmaTextExperts", "Gemma4TextExperts"),  # whose activation has another name
}
"""Classes whose gate transformers' `sonicmoe` takes for another one (docs/experts.md)."""


def _sonic_moe(
    x: Tensor, scales: Tensor, tokens: Tensor, chosen: Tensor, *layers: Tensor | None, **options: Any
) -> Any:
    """What transformers asks of SonicMoE, in PyTorch: weights are [rows, columns, experts]."""
    w_in, b_in, w_out, b_out = layers
    assert w_in is not None and w_out is not None
    out = torch.zeros_like(x)
    for slot, expert in enumerate(chosen.tolist()):
        pre = w_in[..., expert] @ x[tokens[slot]] + (0 if b_in is None else b_in[expert])
        gate, value = pre.chunk(2) if options["concat_layout"] else (pre[::2], pre[1::2])
        hidden = value * epigrad.activation(gate, options["activation_type"])
        out[tokens[slot]] += scales[slot] * (w_out[..., expert] @ hidden + (0 if b_out is None else b_out[expert]))
    return out, None


@EACH
def test_the_gates_of_transformers_sonicmoe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for the gate of `hidden_act`, not for that of `_apply_gate`, and says nothing."""
    kernels = SimpleNamespace(activation_type_enum=SimpleNamespace(**SONIC_MOE), moe_general_routing_inputs=_sonic_moe)
    monkeypatch.setattr(sonicmoe, "load_sonicmoe_kernel", lambda: kernels)
    made = module(name, implementation="eager")
    x, index, scale = arguments(made)
    with torch.no_grad():
        if name in ("MuseSparkExperts", "NemotronHExperts"):  # a norm after each expert; no gate
            with pytest.raises(ValueError, match="sonicmoe"):
                sonicmoe.sonicmoe_experts_forward(made, x, index, scale)
            return
        theirs, want = sonicmoe.sonicmoe_experts_forward(made, x, index, scale), made(x, index, scale)
    error = (theirs - want).abs().max() / want.abs().max()
    assert error > 0.05 if name in OTHER_GATES else error < 1e-6


def test_the_gate_of_step_3_7() -> None:
    """Its class takes no implementation in this release, and its gate is of its own."""
    module_of = importlib.import_module("transformers.models.step3p7.modeling_step3p7")
    own: Any = module_of.Step3p7Experts
    cls: Any = own
    if own.__name__ not in mixtures.classes():
        cls = moe.use_experts_implementation(type("Step3p7Experts", (own,), {}))
    config: Any = transformers.PreTrainedConfig()
    for key, value in {"num_local_experts": 4, "hidden_size": 16, "moe_intermediate_size": 12}.items():
        setattr(config, key, value)
    config.hidden_act = "silu"
    for limit in (None, 0.3):
        made = cls(config, limit).double()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(2))
        results = []
        for implementation in ("eager", "epigrad"):
            config._experts_implementation_internal = implementation
            results.append(run(made, *arguments(made)))
        assert mixtures.error(results[1], results[0]) <= EXACT
    model = nn.ModuleList([own(config)])
    if own.__name__ not in mixtures.classes():
        assert patch(model).left == {"0": "Step3p7Experts: a class that takes no experts implementation"}


@pytest.mark.parametrize("name", ["Qwen3MoeExperts", "GptOssExperts"])
def test_a_model_in_bfloat16_is_as_exact_as_its_own(name: str) -> None:
    """The rule of tests/models/test_patching.py: root mean square errors against float64."""
    model = mixtures.make(name, torch.bfloat16)
    reference = copy.deepcopy(model).double()
    errors_of = {}
    for implementation in ("eager", "epigrad"):
        model.set_experts_implementation(implementation)
        total = 0.0
        for seed in range(4):
            x = mixtures.inputs(seed, torch.bfloat16)
            want = mixtures.results(reference, x.detach().double().requires_grad_())
            total += mixtures.root_mean_square_error(mixtures.results(model, x), want) ** 2
        errors_of[implementation] = total**0.5
    assert errors_of["epigrad"] <= 1.5 * errors_of["eager"]


def test_loading_with_the_implementation(tmp_path: Any, calls: list[str]) -> None:
    mixtures.make("MixtralExperts").save_pretrained(tmp_path)
    model = transformers.MixtralForCausalLM.from_pretrained(tmp_path, experts_implementation="epigrad")
    assert model.get_experts_implementation() == {"": "epigrad"}
    mixtures.output(model, mixtures.inputs(dtype=next(model.parameters()).dtype))
    assert calls == ["experts", "experts"]


def test_generation() -> None:
    model = mixtures.make("Qwen3MoeExperts").eval()
    tokens = torch.tensor([[2, 3, 4]])
    want = model.generate(tokens, max_new_tokens=5, do_sample=False)
    patch(model)
    assert torch.equal(model.generate(tokens, max_new_tokens=5, do_sample=False), want)


def test_activation_checkpointing() -> None:
    model = mixtures.make("Qwen3MoeExperts")
    model.set_experts_implementation("epigrad")
    want = mixtures.results(model, mixtures.inputs())
    # the name before and since transformers 5.21 or so
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    got = mixtures.results(model, mixtures.inputs())
    assert all(torch.equal(got[key], value) for key, value in want.items())


# --- parallel training ----------------------------------------------------------------------------


def test_fully_sharded_experts() -> None:
    """FSDP2 in a group of one process, as tests/models/test_parallel.py."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = mixtures.make("GptOssExperts")
        want = mixtures.results(model, mixtures.inputs())
        assert len(patch(model).patched) == 2
        mesh = init_device_mesh("cpu", (1,))
        for part in (*mixtures.experts_of(model, "GptOssExperts"), model):
            fully_shard(part, mesh=mesh)
        assert "FSDP" in type(model.get_submodule("model.layers.0.mlp.experts")).__name__
        out = mixtures.output(model, mixtures.inputs())
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        out.backward(grad)
        got = {"output": out.detach()}
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                assert isinstance(parameter.grad, DTensor)
                got[key] = parameter.grad.full_tensor()
        del want["embeddings"]
        assert mixtures.error(got, want) <= EXACT
    finally:
        dist.destroy_process_group()


@thorough
def test_two_processes_with_half_of_the_weights_each() -> None:
    """transformers' own expert parallelism, and tensor parallelism of the experts."""
    for output in run_together("tests.models.expert_parallel"):
        passed = [line for line in output.splitlines() if line.startswith("ok ")]
        assert passed == [f"ok {name} {way}" for name, way in CHECKS]
