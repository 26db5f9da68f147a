"""The MLPs and experts of Hugging Face's transformers, by epigrad.

``patch(model)`` replaces the maths of the blocks that epigrad recognises by their forward, in
place, and ``unpatch(model)`` takes it back. Parameters, their names and the modules around them
stay as they are. ``register_experts()`` makes epigrad an experts implementation by itself.

Examples:
    >>> import epigrad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=16, intermediate_size=24, vocab_size=32)
    >>> sizes |= dict(num_hidden_layers=2, num_attention_heads=2)
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes))
    >>> print(epigrad.integrations.transformers.patch(model))
    patched 2 blocks
      model.layers.*.mlp (2): LlamaMLP by gated_linear swiglu
    >>> epigrad.integrations.transformers.unpatch(model)
    ('model.layers.0.mlp', 'model.layers.1.mlp')
"""

from __future__ import annotations

from epigrad.integrations import expert_adapters, expert_parallel  # noqa: F401  # which register themselves
from epigrad.integrations.experts import register_experts
from epigrad.integrations.patching import Report, patch, unpatch

__all__ = ["Report", "patch", "register_experts", "unpatch"]
