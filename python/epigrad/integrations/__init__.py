"""epigrad inside models that are there already: `epigrad.integrations.transformers.patch`,
`unpatch` and `register_experts`.

Importing this imports none of these libraries: the blocks of a model are recognised by the
names of their classes. In reading order:

    transformers  `patch`, `unpatch` and `register_experts` for Hugging Face's transformers
    timm          the same for timm's vision transformers
    kernels       layers for Hugging Face's package ``kernels``
    torchtitan    an override for torchtitan, which it imports
    patching      how a block gets another class
    table         which blocks of which libraries epigrad computes
    blocks        the kinds of these blocks
    experts       the experts of mixtures, as one of transformers' implementations of them
    gates         what these experts do between their projections
    layers        the activations inside of blocks, and the modules that do nothing there
"""

from __future__ import annotations

from epigrad.integrations import kernels, timm, transformers

__all__ = ["kernels", "timm", "transformers"]
