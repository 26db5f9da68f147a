"""epigrad inside models that are there already: `epigrad.integrations.transformers.patch`,
`unpatch` and `register_experts`.

Importing this imports none of these libraries: the blocks of a model are recognised by what their
forward computes. In reading order:

    transformers  `patch`, `unpatch` and `register_experts` for Hugging Face's transformers
    timm          the same for timm's vision transformers, and torchvision's
    kernels       layers for Hugging Face's package ``kernels``
    torchtitan    an override for torchtitan, which it imports
    patching      how a block gets another class
    blocks        the kinds of blocks that epigrad computes
    recognition   which of these a block is
    bodies        what a forward computes, read from its source
    sources       the source of a function, if it is what runs
    expressions   what is read
    proofs        that a kind computes what the forward of a class does
    experts       the experts of mixtures, as one of transformers' implementations of them
    gates         what these experts do between their projections
    layers        the activations inside of blocks, and what else is between their projections
"""

from __future__ import annotations

from epigrad.integrations import kernels, timm, transformers

__all__ = ["kernels", "timm", "transformers"]
