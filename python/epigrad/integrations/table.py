"""Which blocks of which libraries epigrad computes.

To add a model, add a row to `BLOCKS`, and its configuration to the list in
``tests/support/models.py``. A row says what the forward of that very class computes; subclasses are
left alone, since theirs may differ. Classes are named, not imported.
"""

from __future__ import annotations

from epigrad.integrations.blocks import Block, Gated, PackedGated, Plain

_LLAMA = Gated(value="up_proj", gate="gate_proj", down="down_proj", activation="act_fn")
_PHI3 = PackedGated(up="gate_up_proj", down="down_proj", activation="activation_fn", gate="first")
_GPT2 = Plain(up="c_fc", activation="act", down="c_proj", after=("dropout",))
_VIT = Plain(up="fc1", activation="activation_fn", down="fc2")
_BERT = Plain(up="dense", activation="intermediate_act_fn")

BLOCKS: dict[str, Block] = {
    "transformers.models.bert.modeling_bert.BertIntermediate": _BERT,
    "transformers.models.gemma.modeling_gemma.GemmaMLP": _LLAMA,
    "transformers.models.gemma2.modeling_gemma2.Gemma2MLP": _LLAMA,
    "transformers.models.gemma3.modeling_gemma3.Gemma3MLP": _LLAMA,
    "transformers.models.glm.modeling_glm.GlmMLP": _PHI3,
    "transformers.models.gpt2.modeling_gpt2.GPT2MLP": _GPT2,
    "transformers.models.gpt_neo.modeling_gpt_neo.GPTNeoMLP": _GPT2,
    "transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXMLP": Plain(
        up="dense_h_to_4h", activation="act", down="dense_4h_to_h"
    ),
    "transformers.models.llama.modeling_llama.LlamaMLP": _LLAMA,
    "transformers.models.mistral.modeling_mistral.MistralMLP": _LLAMA,
    "transformers.models.olmo2.modeling_olmo2.Olmo2MLP": _LLAMA,
    "transformers.models.phi.modeling_phi.PhiMLP": _VIT,
    "transformers.models.phi3.modeling_phi3.Phi3MLP": _PHI3,
    "transformers.models.qwen2.modeling_qwen2.Qwen2MLP": _LLAMA,
    "transformers.models.qwen3.modeling_qwen3.Qwen3MLP": _LLAMA,
    "transformers.models.roberta.modeling_roberta.RobertaIntermediate": _BERT,
    "transformers.models.vit.modeling_vit.ViTMLP": _VIT,
    "timm.layers.mlp.Mlp": Plain(up="fc1", activation="act", down="fc2", between=("drop1", "norm"), after=("drop2",)),
}
"""The blocks, by the full name of their class."""
