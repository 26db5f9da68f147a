"""Modules of experts by themselves: empty slots, dtypes, compiled, exported, with adapters."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from epigrad.integrations import experts as integration
from epigrad.integrations.transformers import patch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import parametrize

from tests.models import mixtures
from tests.models.experts_modules import EACH, FORMS, NAMES, allowed, arguments, module, run
from tests.models.mixtures import EXPERTS
from tests.support.repository import ROOT
from tests.support.tiers import in_turns, thorough

pytestmark = pytest.mark.usefixtures("_one_thread", "_registered")
UP = "gate_up_proj", "up_proj"
"""What classes call the weight of their first products."""


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
