"""The MLPs of timm's and torchvision's vision transformers, by epigrad: the functions of
`epigrad.integrations.transformers`, which do not ask what library a block is of.

Examples:
    >>> import epigrad, timm
    >>> sizes = dict(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    >>> model = timm.models.VisionTransformer(**sizes)
    >>> print(epigrad.integrations.timm.patch(model))
    patched 2 blocks
      blocks.*.mlp (2): Mlp by mlp gelu
"""

from __future__ import annotations

from epigrad.integrations.patching import Report, patch, unpatch

__all__ = ["Report", "patch", "unpatch"]
