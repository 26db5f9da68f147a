"""Which blocks of which libraries epigrad computes.

To add a model, add a row to `BLOCKS`, and its configuration to the list in
``tests/support/models.py``. A row says what the forward of that very class computes; subclasses are
left alone, since theirs may differ. Classes are named, not imported.
"""

from __future__ import annotations

from epigrad.integrations.blocks import Block, Gate, Gated, PackedGated, Plain


def _llama(**parameters: str) -> Gated:
    """Llama's; the parameters are the names of the block's attributes that have them."""
    return Gated(
        value="up_proj", gate="gate_proj", down="down_proj", kind=Gate("act_fn", parameters=tuple(parameters.items()))
    )


_LLAMA = _llama()
_PHI3 = PackedGated(up="gate_up_proj", down="down_proj", kind=Gate("activation_fn"), gate="first")
_OAI = Gate(kind="swiglu", parameters=(("limit", "swiglu_limit"), ("offset", 1), ("alpha", "swiglu_alpha")))
_NEMOTRON = Plain(up="up_proj", activation="act_fn", down="down_proj")
_GPT2 = Plain(up="c_fc", activation="act", down="c_proj", after=("dropout",))
_VIT = Plain(up="fc1", activation="activation_fn", down="fc2")
_BERT = Plain(up="dense", activation="intermediate_act_fn")

BLOCKS: dict[str, Block] = {
    "transformers.models.arcee.modeling_arcee.ArceeMLP": _NEMOTRON,
    "transformers.models.bert.modeling_bert.BertIntermediate": _BERT,
    "transformers.models.clip.modeling_clip.CLIPMLP": _VIT,
    "transformers.models.deepseek_v4.modeling_deepseek_v4.DeepseekV4MLP": _llama(limit="limit"),
    "transformers.models.gemma.modeling_gemma.GemmaMLP": _LLAMA,
    "transformers.models.gemma2.modeling_gemma2.Gemma2MLP": _LLAMA,
    "transformers.models.gemma3.modeling_gemma3.Gemma3MLP": _LLAMA,
    "transformers.models.glm.modeling_glm.GlmMLP": _PHI3,
    "transformers.models.glm4.modeling_glm4.Glm4MLP": _PHI3,
    "transformers.models.glm5_next.modeling_glm5_next.Glm5NextTextMLP": _llama(limit="swiglu_limit"),
    "transformers.models.glm5_next.modeling_glm5_next.Glm5NextVisionMLP": _llama(limit="swiglu_limit"),
    "transformers.models.gpt2.modeling_gpt2.GPT2MLP": _GPT2,
    "transformers.models.gpt_neo.modeling_gpt_neo.GPTNeoMLP": _GPT2,
    "transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXMLP": Plain(
        up="dense_h_to_4h", activation="act", down="dense_4h_to_h"
    ),
    "transformers.models.llama.modeling_llama.LlamaMLP": _LLAMA,
    "transformers.models.minimax_m3_vl.modeling_minimax_m3_vl.MiniMaxM3VLDenseMLP": PackedGated(
        up="gate_up_proj", down="down_proj", kind=_OAI, gate="first"
    ),
    "transformers.models.mistral.modeling_mistral.MistralMLP": _LLAMA,
    "transformers.models.nanochat.modeling_nanochat.NanoChatMLP": _VIT,
    "transformers.models.nemotron.modeling_nemotron.NemotronMLP": _NEMOTRON,
    "transformers.models.olmo2.modeling_olmo2.Olmo2MLP": _LLAMA,
    "transformers.models.phi.modeling_phi.PhiMLP": _VIT,
    "transformers.models.phi3.modeling_phi3.Phi3MLP": _PHI3,
    "transformers.models.qwen2.modeling_qwen2.Qwen2MLP": _LLAMA,
    "transformers.models.qwen3.modeling_qwen3.Qwen3MLP": _LLAMA,
    "transformers.models.roberta.modeling_roberta.RobertaIntermediate": _BERT,
    "transformers.models.siglip.modeling_siglip.SiglipMLP": _VIT,
    "transformers.models.step3p7.modeling_step3p7.Step3p7MLP": _llama(limit_after="limit"),
    "transformers.models.step3p7.modeling_step3p7.Step3p7VisionMLP": _VIT,
    "transformers.models.vit.modeling_vit.ViTMLP": _VIT,
    "timm.layers.mlp.Mlp": Plain(up="fc1", activation="act", down="fc2", between=("drop1", "norm"), after=("drop2",)),
}
"""The blocks, by the full name of their class."""
