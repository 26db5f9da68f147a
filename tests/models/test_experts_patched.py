"""`patch` and `unpatch` of experts, and what is refused or left alone."""

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

import pytest
import torch
import transformers
from epigrad import errors
from epigrad.integrations import experts as integration
from epigrad.integrations.transformers import patch, register_experts, unpatch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from transformers.integrations import moe

from tests.models import mixtures
from tests.models.experts_modules import EXACT, arguments, module
from tests.support.processes import run_script
from tests.support.tiers import thorough

pytestmark = pytest.mark.usefixtures("_one_thread", "_registered")


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
