"""A model's logits have the same bits alone, in a batch, in generation and in training, inside
``batch_invariant(torch_functions=True)``."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import epigrad
import pytest
import torch
import transformers
from epigrad.integrations.transformers import patch
from torch import Tensor

from tests.support.layouts import assert_same_bits
from tests.support.tiers import thorough

pytestmark = pytest.mark.usefixtures("_one_thread")

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 50,
    "attn_implementation": "eager",
}
MIXTURE = SIZES | {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
PROMPT, NEW, BATCH = 5, 20, 3


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def qwen3_moe() -> Any:
    config = transformers.Qwen3MoeConfig(**MIXTURE, experts_implementation="eager")
    return transformers.Qwen3MoeForCausalLM(config)


def made(make: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A model of random weights, large enough that tokens change its logits."""
    torch.manual_seed(0)
    model = make().to(dtype)
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)
    return model


class Run(NamedTuple):
    """Logits of each way to compute them [B, PROMPT + NEW - 1, V], but that generation has none
    of the prompt before its last token; and gradients to the embeddings of a batch and of one."""

    generated: Tensor
    forward: Tensor
    training: Tensor
    alone: Tensor
    gradient: Tensor
    gradient_alone: Tensor


def run(model: Any, mask: Tensor, ours: bool) -> Run:
    """Everything of a batch of prompts, of which `mask` leaves out padding on the left."""
    prompt = torch.randint(1, 50, mask.shape, generator=torch.Generator().manual_seed(1))
    with epigrad.batch_invariant(torch_functions=True) if ours else contextlib.nullcontext():
        found = model.eval().generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        # The static cache has no place for the last token, and its length is what attention sums.
        tokens = found.sequences[:, :-1]
        mask = torch.cat([mask, mask.new_ones(BATCH, NEW - 1)], 1)
        positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)

        def logits(rows: slice, embedded: Tensor) -> Tensor:
            options = {"attention_mask": mask[rows], "position_ids": positions[rows], "use_cache": False}
            out: Tensor = model(inputs_embeds=embedded, **options).logits
            return out

        embedded = model.get_input_embeddings()(tokens).detach()
        with torch.no_grad():
            forward = logits(slice(None), embedded)
        model.train()
        batch, one = embedded.clone().requires_grad_(), embedded[1:2].clone().requires_grad_()
        training, alone = logits(slice(None), batch), logits(slice(1, 2), one)
    gradients = [torch.autograd.grad(loss(out), each)[0] for out, each in ((training, batch), (alone, one))]
    return Run(torch.stack(found.logits, 1), forward, training.detach(), alone.detach(), *gradients)


def loss(logits: Tensor) -> Tensor:
    """A sum over sequences."""
    return logits.float().log_softmax(-1)[..., :5].sum()


def assert_one_result(found: Run) -> None:
    generated = found.training[:, PROMPT - 1 :]
    assert_same_bits(found.generated.to(generated.dtype), generated, "generation")
    assert_same_bits(found.forward, found.training, "forward without a graph")
    assert_same_bits(found.alone, found.training[1:2], "a sequence alone")
    assert_same_bits(found.gradient_alone, found.gradient[1:2], "the gradient of a sequence alone")
    policy, trained = found.generated.float().log_softmax(-1), generated.float().log_softmax(-1)
    assert (policy.exp() * (policy - trained)).sum() == 0  # the Kullback-Leibler divergence
    assert policy.exp().amax(-1).mean() < 0.99  # which has something to tell apart


NO_PADDING = torch.ones(BATCH, PROMPT, dtype=torch.int64)
PADDED = torch.tensor([[1] * 5, [0] * 2 + [1] * 3, [0] * 4 + [1]])


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=thorough)], ids=str)
@pytest.mark.parametrize("make", [llama, qwen3_moe])
def test_generation_and_training_have_the_same_bits(make: Any, dtype: torch.dtype) -> None:
    assert_one_result(run(made(make, dtype), NO_PADDING, ours=True))


@pytest.mark.parametrize("make", [llama, qwen3_moe])
def test_pytorchs_own_bits_differ(make: Any) -> None:
    """Else the test above shows nothing."""
    found = run(made(make), NO_PADDING, ours=False)
    assert not torch.equal(found.generated, found.training[:, PROMPT - 1 :])


@pytest.mark.parametrize("make", [pytest.param(llama, marks=thorough), qwen3_moe])
def test_padded_prompts_of_patched_models(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks of any size, whose activations are epigrad's too."""
    for sizes in (SIZES, MIXTURE):
        monkeypatch.setitem(sizes, "intermediate_size", 41)
    monkeypatch.setitem(MIXTURE, "moe_intermediate_size", 25)
    model = made(make)
    assert patch(model).patched
    assert_one_result(run(model, PADDED, ours=True))
