"""epigrad inside models that are there already: `epigrad.integrations.transformers.patch` and `unpatch`.

Importing this imports neither transformers nor timm: the blocks of a model are recognised by the names of their
classes.
"""

from __future__ import annotations

from epigrad.integrations import timm, transformers

__all__ = ["timm", "transformers"]
