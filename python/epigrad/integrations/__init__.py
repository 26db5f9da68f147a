"""epigrad inside models that are there already: `epigrad.integrations.transformers.patch`,
`unpatch` and `register_experts`.

Importing this imports none of these libraries: the blocks of a model are recognised by what their
forward computes. In reading order:

    transformers  `patch`, `unpatch` and `register_experts` for Hugging Face's transformers
    timm          the same for timm's vision transformers, and torchvision's
    kernels       layers for Hugging Face's package ``kernels``
    torchtitan    overrides for torchtitan, which it imports
    patching      gives a block another class
    blocks        the kinds of blocks that epigrad computes
    recognition   finds the kind of a block
    bodies        reads the source of a forward as an expression
    sources       the parsed source of a function
    expressions   the nodes of these expressions
    proofs        tests that a kind computes the same as the forward of a class
    experts       the experts of mixtures, as one of transformers' implementations of them
    expert_adapters  PEFT's adapters of these experts
    expert_parallel  these experts over several processes, as one of transformers' transports
    gates         the gates of these experts, read as expressions
    layers        the activations and other steps between the projections of a block
    torch_functions  PyTorch's own products, inside ``batch_invariant(torch_functions=True)``
"""

from __future__ import annotations

from epigrad.integrations import kernels, timm, transformers
from epigrad.integrations import torch_functions as torch_functions  # so that it is there

__all__ = ["kernels", "timm", "transformers"]
