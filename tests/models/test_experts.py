"""The experts of transformers' models by epigrad: what `eager` computes, for each class that takes
an experts implementation, and an error for each gate that is none of those known.
"""

from __future__ import annotations

import copy
import functools
import importlib
import pickle
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import epigrad
import peft
import pytest
import torch
import torch.distributed as dist
import transformers
from epigrad import errors
from epigrad.integrations import experts as integration
from epigrad.integrations.transformers import patch, register_experts, unpatch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize
from transformers.integrations import moe, sonicmoe

from tests.models import mixtures
from tests.models.expert_parallel import CHECKS
from tests.models.mixtures import EXPERTS, SPECIAL, Mixture
from tests.support.processes import run_script, run_together
from tests.support.repository import ROOT
from tests.support.tiers import in_turns, thorough

pytestmark = pytest.mark.usefixtures("_one_thread", "_registered")
EACH = pytest.mark.parametrize("name", in_turns(sorted(mixtures.classes()), 4, thorough))
# One of each: plain, interleaved with limits and biases, without a gate, a function as activation,
# caps, a norm after each expert.
NAMES = ["MixtralExperts", "GptOssExperts", "NemotronHExperts", "Lfm2MoeExperts", "Inkling2Experts", "MuseSparkExperts"]
FORMS = pytest.mark.parametrize("name", NAMES)
UP = "gate_up_proj", "up_proj"
"""What classes call the weight of their first products."""
EXACT, ROUNDED = 1e-13, 5e-6
"""Errors allowed in float64, where `eager` computes in float64 and where it rounds to float32."""


@pytest.fixture
def _registered() -> None:
    register_experts()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of epigrad's functions that experts call."""
    seen: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        own = getattr(epigrad.functional, name)

        @functools.wraps(own)
        def call(*arguments: Any, **options: Any) -> Any:
            seen.append(name)
            return own(*arguments, **options)

        return call

    functions = {name: watched(name) for name in ("experts", "grouped_linear", "gated_activation")}
    monkeypatch.setattr(integration, "functional", SimpleNamespace(**functions))
    return seen


def allowed(name: str) -> float:
    return EXACT if SPECIAL.get(name, Mixture()).exact else ROUNDED


@functools.cache
def _made(name: str, dtype: torch.dtype) -> Any:
    return mixtures.make(name, dtype)


def module(name: str, dtype: torch.dtype = torch.float64, implementation: str = "epigrad") -> Any:
    """A module of experts by itself."""
    made = copy.deepcopy(mixtures.experts_of(_made(name, dtype), name)[0])
    made.config._experts_implementation_internal = implementation
    return made


def arguments(made: Any, tokens: int = 11, chosen: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and experts chosen for them; the last expert gets none."""
    generator = torch.Generator().manual_seed(7)
    weight = made.down_proj
    features = weight.shape[2 if made.is_transposed else 1]
    x = torch.randn(tokens, features, generator=generator, dtype=torch.float64).to(weight.dtype)
    index = torch.stack([torch.randperm(EXPERTS - 1, generator=generator)[:chosen] for _ in range(tokens)])
    scale = torch.rand(tokens, chosen, generator=generator, dtype=torch.float64).to(weight.dtype)
    return x.requires_grad_(), index, scale.requires_grad_()


def run(made: Any, x: Tensor, index: Tensor, scale: Tensor) -> dict[str, Tensor]:
    out = made(x, index, scale)
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    wanted = {"input": x, "scale": scale} | dict(made.named_parameters())
    grads = torch.autograd.grad(out, list(wanted.values()), grad, allow_unused=True)
    return {"output": out.detach()} | {n: g for n, g in zip(wanted, grads, strict=True) if g is not None}


# --- whole models ---------------------------------------------------------------------------------


def test_the_classes_of_experts_are_found() -> None:
    known = mixtures.classes()
    assert len(known) > 60
    assert set(SPECIAL) <= set(known), "names that transformers no longer has"


@EACH
def test_logits_and_gradients_are_those_of_eager(name: str, calls: list[str]) -> None:
    """Logits, and the gradients of the input embeddings and of all parameters."""
    model = _made(name, torch.float64)
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


# --- patch and unpatch ----------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["eager", "batched_mm"])
def test_patch_switches_and_unpatch_restores(before: str) -> None:
    model = mixtures.make("Qwen3MoeExperts")
    model.set_experts_implementation(before)
    keys = {key: set(part.__dict__) for key, part in model.named_modules()}
    want = mixtures.results(model, mixtures.inputs())
    report = patch(model)
    names = tuple(f"model.layers.{layer}.mlp.experts" for layer in range(2))
    assert report.patched == dict.fromkeys(names, "Qwen3MoeExperts by experts swiglu") and not report.left
    assert patch(model) == report
    assert model.get_experts_implementation() == {"": "epigrad"}
    assert mixtures.error(mixtures.results(model, mixtures.inputs()), want) <= EXACT
    assert "epigrad" not in str(model.config.to_dict())
    assert unpatch(model) == names and unpatch(model) == ()
    assert model.get_experts_implementation() == {"": before}
    assert {key: set(part.__dict__) for key, part in model.named_modules()} == keys


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_switched_and_their_own(how: Callable[[Any], Any]) -> None:
    model = mixtures.make("MixtralExperts")
    patch(model)
    double = how(model)
    assert double.get_experts_implementation() == {"": "epigrad"} and len(unpatch(double)) == 2
    assert double.get_experts_implementation() == {"": "eager"}
    assert model.get_experts_implementation() == {"": "epigrad"}


@pytest.mark.parametrize("how", ["patched", "chosen"])
def test_what_epigrad_computes_is_unpickled_where_nothing_was_registered(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that has not imported epigrad: the pickle has to name it."""
    model = mixtures.make("MixtralExperts")
    if how == "patched":
        patch(model)
    else:
        model.set_experts_implementation("epigrad")
        model(torch.ones(1, 4, dtype=torch.long))
    data = pickle.dumps(model)
    monkeypatch.delitem(moe.ALL_EXPERTS_FUNCTIONS._global_mapping, "epigrad")
    double = pickle.loads(data)
    assert double.get_experts_implementation() == {"": "epigrad"} and b"epigrad.integrations.experts" in data
    double(torch.ones(1, 4, dtype=torch.long))


@pytest.mark.parametrize("first", ["epigrad", "transformers"])
@thorough
def test_importing_epigrad_registers_the_implementation(first: str) -> None:
    second = {"epigrad": "transformers", "transformers": "epigrad"}[first]
    script = f"""if True:
        import sys, {first}
        if {first!r} == "transformers":
            import transformers.integrations.moe
        assert ("transformers" in sys.modules) == ({first!r} == "transformers")
        import {second}
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        print("epigrad" in ALL_EXPERTS_FUNCTIONS.valid_keys())
    """
    assert run_script(script, timeout=300) == "True"


def test_a_part_of_a_model_says_that_its_configuration_is_shared() -> None:
    model = mixtures.make("MixtralExperts")
    (told,) = patch(model.model.layers[0]).patched.values()
    assert told == "MixtralExperts by experts swiglu, as are now all experts with its configuration"
    assert model.get_experts_implementation() == {"": "epigrad"}


def test_unpatch_keeps_what_was_chosen_otherwise() -> None:
    model = mixtures.make("MixtralExperts")
    model.set_experts_implementation("epigrad")
    assert len(patch(model).patched) == 2 and unpatch(model) == ()
    assert model.get_experts_implementation() == {"": "epigrad"}
    model.set_experts_implementation("eager")
    patch(model)
    model.set_experts_implementation("grouped_mm")
    assert len(unpatch(model)) == 2
    assert model.get_experts_implementation() == {"": "grouped_mm"}


def test_experts_beside_blocks_and_parts_of_other_configurations() -> None:
    """The text model of a larger one has a configuration of its own."""
    text = mixtures.make("Qwen3VLMoeTextExperts")
    whole = nn.ModuleDict({"text": text, "gpt": mixtures.make("GptOssExperts")})
    report = patch(whole)
    assert {line.split(" by ")[0] for line in report.patched.values()} == {"Qwen3VLMoeTextExperts", "GptOssExperts"}
    assert len(report.patched) == 4 and not report.left
    assert len(unpatch(whole)) == 4


def test_registering_again_changes_nothing() -> None:
    register_experts()
    assert moe.ALL_EXPERTS_FUNCTIONS["epigrad"] is integration.forward


def test_a_release_without_implementations_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(moe, "ALL_EXPERTS_FUNCTIONS")
    with pytest.raises(errors.UnsupportedError, match=r"register_experts: transformers: got version 5.*, want 5.0 or"):
        register_experts()
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", None)
    with pytest.raises(errors.UnsupportedError, match="which has experts implementations"):
        register_experts()


# --- what is refused ------------------------------------------------------------------------------


def _own_gate(self: Any, gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return self.act_fn(gate) * up * 2


def _looks_known(self: Any, gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return self.act_fn(gate) * up


@functools.wraps(_looks_known)
def _wrapped(self: Any, gate_up: Tensor) -> Tensor:
    return 2 * _looks_known(self, gate_up)


def _other_name(self: Any, halves: Tensor) -> Tensor:
    """A known gate, whatever its argument and its own name are."""
    gate, up = halves.chunk(2, dim=-1)
    return self.act_fn(gate) * up


def _subclassed(gate: Any) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        made.__class__ = type("Mine", (type(made),), {"_apply_gate": gate})

    return change


def _on_the_instance(made: Any) -> None:
    made._apply_gate = functools.partial(_own_gate, made)


def _compiled(made: Any) -> None:
    """A gate without a source."""
    scope: dict[str, Any] = {}
    exec("def _apply_gate(self, gate_up):\n    return gate_up[..., ::2]", scope)
    _subclassed(scope["_apply_gate"])(made)


def _other_f(made: Any) -> None:
    """The source of HY-V4's gate, where F is not torch.nn.functional."""
    from transformers.models.hy_v4.modeling_hy_v4 import HYV4Experts

    own: Any = HYV4Experts._apply_gate
    scope = {**own.__globals__, "F": SimpleNamespace(silu=torch.sigmoid)}
    made.swiglu_limit = 1.0
    _subclassed(type(own)(own.__code__, scope))(made)


def _activation(act: Any) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        made.act_fn = act

    return change


def _hooked(made: Any) -> None:
    made.act_fn.register_forward_hook(lambda module, inputs, out: 2 * out)


def _flag(name: str, value: Any) -> Callable[[Any], None]:
    return lambda made: setattr(made, name, value)


REFUSED: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "own gate": ("MixtralExperts", _subclassed(_own_gate), "_apply_gate is none of those"),
    "wrapped": ("MixtralExperts", _subclassed(_wrapped), "_apply_gate is none of those"),
    "static": ("MixtralExperts", _subclassed(staticmethod(_looks_known)), "_apply_gate is none of those"),
    "no source": ("MixtralExperts", _compiled, "_apply_gate is none of those"),
    "another F": ("MixtralExperts", _other_f, "_apply_gate is none of those"),
    "on the instance": ("MixtralExperts", _on_the_instance, "_apply_gate is none of those"),
    "laplace": ("MixtralExperts", _activation(transformers.activations.ACT2FN["laplace"]), "act_fn is a .*Laplace"),
    "no gated kind": ("MixtralExperts", _activation(nn.Softplus()), "act_fn is a .*Softplus, which no gated kind"),
    "a function": ("Lfm2MoeExperts", _activation(torch.sin), "act_fn is <built-in method sin"),
    "hooked": ("MixtralExperts", _hooked, "act_fn has hooks"),
    "caps of another class": ("Inkling2Experts", _activation(nn.SiLU()), "act_fn is a torch.*SiLU"),
    "limit": ("DeepseekV4Experts", _flag("limit", -1.0), "limit is -1.0"),
    "layout": ("GptOssExperts", _flag("is_concatenated", True), "is_concatenated is True"),
    "layout 2": ("MixtralExperts", _flag("is_concatenated", False), "is_concatenated is False"),
    "no gate": ("NemotronHExperts", _activation(nn.PReLU()), "act_fn is a .*PReLU"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_recognised_is_refused(case: str, calls: list[str]) -> None:
    name, change, reason = REFUSED[case]
    made = module(name)
    x, index, scale = arguments(made)
    made(x, index, scale)
    calls.clear()
    change(made)
    with pytest.raises(errors.UnsupportedError, match=reason) as raised:
        made(x, index, scale)
    assert not calls
    text = str(raised.value)
    assert text.startswith(f"experts: {type(made).__name__}: ") and 'set_experts_implementation("eager")' in text


@pytest.mark.parametrize("case", REFUSED)
def test_patch_leaves_what_is_not_recognised_and_says_so(case: str) -> None:
    name, change, reason = REFUSED[case]
    made = module(name, implementation="eager")
    change(made)
    other = module(name, implementation="eager")
    report = patch(nn.ModuleList([made, other]))
    assert list(report.patched) == ["1"] and re.search(reason, report.left["0"])
    assert made.config._experts_implementation == "eager"


def test_one_configuration_is_switched_for_all_or_for_none() -> None:
    model = mixtures.make("MixtralExperts")
    _subclassed(_own_gate)(mixtures.experts_of(model, "MixtralExperts")[1])
    report = patch(model)
    assert not report.patched and model.get_experts_implementation() == {"": "eager"}
    assert report.left == {
        "model.layers.0.mlp.experts": "MixtralExperts: its configuration is that of model.layers.1.mlp.experts too, "
        "which is left alone",
        "model.layers.1.mlp.experts": "Mine: its _apply_gate is none of those that epigrad recognises",
    }


def test_a_known_gate_of_another_name_is_recognised(calls: list[str]) -> None:
    made = module("MixtralExperts")
    _subclassed(_other_name)(made)
    made(*arguments(made))
    assert calls == ["experts"]


def test_flags_of_later_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def decorator(experts_class: Any = None, *, is_transposed: bool = False, has_novelty: bool = False) -> None: ...

    monkeypatch.setattr(moe, "use_experts_implementation", decorator)
    monkeypatch.setattr(integration, "_flags", [])
    made = module("MixtralExperts")
    made(*arguments(made))
    made.has_novelty = True
    with pytest.raises(errors.UnsupportedError, match="MixtralExperts: has_novelty is True, which epigrad does not"):
        made(*arguments(made))


def test_experts_in_other_dtypes_are_left_alone() -> None:
    made = module("MixtralExperts", implementation="eager")
    for key in ("gate_up_proj", "down_proj"):
        setattr(made, key, nn.Parameter(getattr(made, key).detach().to(torch.float8_e4m3fn), requires_grad=False))
    assert patch(nn.ModuleList([made])).left == {"0": "MixtralExperts: a parameter is of torch.float8_e4m3fn"}


# With sizes in place of 12, the half of a mixture's.
FAST = {"hidden_size": 16, "moe_intermediate_size": 24, "num_experts": 4}


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (torch.bfloat16, ""),
        (torch.float16, ""),
        (torch.float32, "parameters of torch.float32 on a GPU"),
        (torch.float64, "parameters of torch.float64 on a GPU"),
    ],
    ids=str,
)
def test_patch_leaves_experts_without_fast_kernels(dtype: torch.dtype, reason: str) -> None:
    """On a GPU; who chooses the implementation by its name gets it everywhere."""
    config = transformers.Qwen3MoeConfig(**FAST, experts_implementation="eager")
    own: Any = importlib.import_module(mixtures.classes()["Qwen3MoeExperts"])
    with FakeTensorMode(), torch.device("cuda"):
        made = own.Qwen3MoeExperts(config)
        for name, parameter in made.named_parameters():
            setattr(made, name, nn.Parameter(parameter.detach().to(dtype)))
    model = nn.ModuleList([made])
    slow = f'{reason}, where epigrad is slow: set_experts_implementation("epigrad") takes it anyway'
    assert patch(model).left == ({"0": f"Qwen3MoeExperts: {slow}"} if reason else {})
    assert config._experts_implementation == ("eager" if reason else "epigrad")
    config._experts_implementation = "epigrad"
    told = "Qwen3MoeExperts by experts swiglu, as are now all experts with its configuration"
    assert patch(model).patched == {"0": told}


# --- modules by themselves ------------------------------------------------------------------------


@FORMS
def test_sentinels_select_nothing(name: str) -> None:
    """As `batched_mm`, for an index of the number of experts; a negative one as well."""
    made = module(name)
    x, index, scale = arguments(made)
    index[::3, 1] = EXPERTS
    index[4] = EXPERTS
    made.config._experts_implementation_internal = "batched_mm"
    made._is_expert_parallel = True
    want = run(made, x, index, scale)
    made.config._experts_implementation_internal = "epigrad"
    got = run(made, x, index, scale)
    assert mixtures.error(got, want) <= allowed(name)
    assert got["output"][4].count_nonzero() == 0 and got["scale"][index == EXPERTS].count_nonzero() == 0
    negative = run(made, x, torch.where(index == EXPERTS, -1, index), scale)
    assert all(torch.equal(negative[key], value) for key, value in got.items())


@FORMS
def test_no_tokens_and_no_choice(name: str) -> None:
    made = module(name)
    x, index, scale = arguments(made, 3, 1)
    found = {}
    for implementation in ("eager", "epigrad"):
        made.config._experts_implementation_internal = implementation
        found[implementation] = run(made, x, index, scale)
    assert mixtures.error(found["epigrad"], found["eager"]) <= allowed(name)
    out = made(x[:0], index[:0], scale[:0])
    assert out.shape == x[:0].shape
    assert all(grad.count_nonzero() == 0 for grad in torch.autograd.grad(out.sum(), list(made.parameters())))
    assert made(x, torch.full_like(index, EXPERTS), scale).count_nonzero() == 0


@pytest.mark.parametrize("name", ["MixtralExperts", "MuseSparkExperts"])
def test_leading_dimensions_and_dtypes_of_the_routing(name: str) -> None:
    made = module(name, torch.bfloat16)
    x, index, scale = arguments(made, 12)
    want = made(x, index, scale.float())
    assert want.dtype == torch.bfloat16
    split = made(x.unflatten(0, (3, 4)), index.int().unflatten(0, (3, 4)), scale.float().unflatten(0, (3, 4)))
    assert torch.equal(split.flatten(0, 1), want)
    # a norm before the experts may give float32
    assert made(x.float(), index, scale.float()).dtype == torch.float32


def test_weights_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MixtralExperts", "GptOssExperts", "NemotronHExperts"):
        made = module(name)
        parameters = {parameter.data_ptr(): parameter for parameter in made.parameters()}
        seen: list[Tensor] = []

        def look(*tensors: Any, seen: list[Tensor] = seen, **options: Any) -> Any:
            seen += [tensor for tensor in tensors[3:] if isinstance(tensor, Tensor)]
            return torch.zeros_like(tensors[0])

        monkeypatch.setattr(integration, "functional", SimpleNamespace(experts=look))
        made(*arguments(made))
        assert sorted(tensor.data_ptr() for tensor in seen) == sorted(parameters)


@pytest.mark.parametrize("name", in_turns(NAMES, len(NAMES), thorough))
def test_modules_compile_without_graph_breaks(name: str) -> None:
    torch._dynamo.reset()
    made = module(name)
    compiled: Any = torch.compile(made, fullgraph=True, backend="aot_eager")
    for tokens in (5, 6, 7):
        x, index, scale = arguments(made, tokens)
        want = made(x, index, scale)
        got = compiled(x, index, scale)
        torch.testing.assert_close(got, want)
        wanted = [x, scale, *made.parameters()]
        for ours, theirs in zip(*(torch.autograd.grad(y.square().sum(), wanted) for y in (got, want)), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_what_changes_after_compiling_is_not_passed_over() -> None:
    """Modules with limits of their own share what was compiled, as far as it is right for them."""
    torch._dynamo.reset()
    made = module("DeepseekV4Experts")
    compiled: Any = torch.compile(made, fullgraph=True, backend="aot_eager")
    given = arguments(made)
    seen: list[Tensor] = [compiled(*given)]
    for limit in (0.1, 0.2, 1, float("inf")):
        made.limit = limit
        torch.testing.assert_close(compiled(*given), made(*given))
        assert not any(torch.allclose(made(*given), other) for other in seen)
        seen.append(made(*given))
    made.act_fn = nn.Sigmoid()
    torch.testing.assert_close(compiled(*given), made(*given))
    assert not torch.allclose(made(*given), seen[-1])


@thorough
def test_a_whole_model_compiles() -> None:
    torch._dynamo.reset()
    model = mixtures.make("Qwen3MoeExperts")
    want = mixtures.results(model, mixtures.inputs())
    patch(model)
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = mixtures.inputs()
    out = mixtures.output(compiled, x)
    torch.testing.assert_close(out, want["output"])
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (got,) = torch.autograd.grad(out, x, grad)
    torch.testing.assert_close(got, want["embeddings"])


@FORMS
def test_modules_are_exported(name: str) -> None:
    made = module(name)
    tokens = torch.export.Dim("tokens", min=2, max=64)
    given = [tensor.detach() for tensor in arguments(made, 5)]
    program = torch.export.export(made, tuple(given), dynamic_shapes=({0: tokens},) * 3)
    given = [tensor.detach() for tensor in arguments(made, 9)]
    torch.testing.assert_close(program.module()(*given), made(*given))


def test_fake_and_meta_tensors() -> None:
    made = module("GptOssExperts").to("meta")
    x, index, scale = arguments(module("GptOssExperts"))
    out = made(x.to("meta"), index.to("meta"), scale.to("meta"))
    assert out.device.type == "meta" and out.shape == x.shape


# PEFT asks by a name that transformers has given up.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@EACH
def test_adapters_on_the_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT's LoRA on parameters goes into the products: no sum of both is formed."""
    results = []
    for implementation in ("eager", "epigrad"):
        made = mixtures.make(name)
        modules = [path for path, each in made.named_modules() if type(each).__name__ == name]
        targets = [f"{path}.{each}" for path in modules for each in (*UP, "down_proj")]
        torch.manual_seed(4)
        config = peft.LoraConfig(r=2, init_lora_weights=False, target_modules=[], target_parameters=targets)
        model: Any = peft.get_peft_model(made, config)
        if implementation == "epigrad":
            model.set_experts_implementation("epigrad")
            monkeypatch.setattr(parametrize, "register_parametrization", None)
        results.append(mixtures.results(model, mixtures.inputs()))
    assert sum("lora_A" in key for key in results[0]) >= 2
    assert mixtures.error(results[1], results[0]) <= allowed(name)


@FORMS
def test_autocast_gives_what_batched_mm_gives(name: str) -> None:
    """The dtypes are the same, and the error against float64 is no larger. Under autocast other
    implementations than `batched_mm` compute part of it in float32.
    """
    made = module(name, torch.float32)
    reference = module(name, torch.float32, "eager").double()
    x, index, scale = arguments(made, 64)
    want = run(reference, x.detach().double().requires_grad_(), index, scale.detach().double().requires_grad_())
    results = {}
    for implementation in ("batched_mm", "epigrad"):
        made.config._experts_implementation_internal = implementation
        with torch.autocast("cpu", torch.bfloat16):
            results[implementation] = run(made, x, index, scale)
    got, theirs = results["epigrad"], results["batched_mm"]
    assert {key: value.dtype for key, value in got.items()} == {key: value.dtype for key, value in theirs.items()}

    assert mixtures.root_mean_square_error(got, want) <= 1.5 * mixtures.root_mean_square_error(theirs, want)


def _kept(made: Any, implementation: str) -> float:
    """Numbers that backward keeps for each token and expert, beside arguments and parameters."""
    made.config._experts_implementation_internal = implementation
    x, index, scale = arguments(made, 64)
    memory: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        memory[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        kept.append(tensor)  # its memory is not to be another's
        return tensor

    kept: list[Tensor] = []
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = made(x, index, scale)
    for tensor in (x, index, scale, out, *made.parameters()):
        memory.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(memory.values()) / x.element_size() / index.numel()


@pytest.mark.parametrize("name", ["MixtralExperts", "GptOssExperts", "NemotronHExperts"])
def test_what_is_kept_for_backward_is_what_the_page_says(name: str) -> None:
    made = module(name, torch.float32)
    shape = made.down_proj.shape[1:]
    features, hidden = shape[::-1] if made.is_transposed else shape
    page = (ROOT / "docs" / "howto" / "mixtures.md").read_text()
    (line,) = re.findall(rf"^\| `{name}`.*H \|$", page, re.MULTILINE)
    sizes = {"H": hidden, "K": features}
    counts = [
        sum(int(count or 1) * sizes[what] for count, what in re.findall(r"(\d*) ?([HK])\b", cell))
        for cell in line.strip("| ").split("|")[1:]
    ]
    # indices, permutations and masks beside
    assert 0 <= _kept(made, "grouped_mm") - counts[0] <= 12
    assert _kept(made, "epigrad") == counts[1]


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
