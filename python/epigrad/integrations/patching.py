"""`patch` and `unpatch`: a block gets another class, and nothing else of it changes. Experts get
another implementation by transformers' own setting.

The class is made from the block's own and adds a forward. So the block stays an instance of its
class, with the same parameters, names, hooks and place in the model, and `unpatch` gives the class
back. Such classes are made anew where a model is unpickled or copied.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from epigrad import errors
from epigrad._core.projections import any_global_hook, class_name, full_name, replaced
from epigrad.integrations import experts
from epigrad.integrations.blocks import Block
from epigrad.integrations.table import BLOCKS


@dataclass(frozen=True, slots=True)
class Report:
    """What `patch` did, by the names of the blocks in the model.

    Attributes:
        patched: what computes each block now.
        left: why a block was left alone.
    """

    patched: dict[str, str]
    left: dict[str, str]

    def __str__(self) -> str:
        lines = [f"patched {_counted(len(self.patched))}", *_grouped(self.patched)]
        if self.left:
            lines += [f"left {_counted(len(self.left))} alone", *_grouped(self.left)]
        if not self.patched and not self.left:
            lines.append("  docs/models.md lists the classes of blocks that epigrad computes")
        return "\n".join(lines)


class Patched:
    """What a patched block is an instance of, beside its own class."""

    __slots__ = ()
    epigrad_original: type[Any]
    """The block's own class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls: type[Any] = type(self)
        # another library's class on top of ours
        if cls is not _patched_class(self.epigrad_original):
            return super().__reduce_ex__(protocol)
        return _blank, (self.epigrad_original,), object.__getstate__(self)


def patch(model: nn.Module) -> Report:
    """Let epigrad compute the MLPs and the experts of a model, in place.

    The model's parameters, state dict, modules and hooks stay what they are. A block is left alone
    where epigrad would not compute the same, and the report says why. Each call of a block checks
    again for what came after `patch`: adapters, hooks and quantised layers keep their part.

    Experts are set to the implementation of `register_experts`, by their configuration: all that
    share it, or none.

    Args:
        model: a model of transformers or timm, or any module that has blocks of theirs inside.

    Returns:
        A `Report`: which blocks epigrad computes now and by which function, which were left alone
        and why. Printed, it is a short text.

    Raises:
        DTypeError: (a ``TypeError``) `model` is not a `torch.nn.Module`.

    Examples:
        >>> import torch
        >>> from epigrad.integrations.transformers import patch, unpatch
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32)).eval()
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> before = model(tokens).last_hidden_state
        >>> report = patch(model)
        >>> report.patched["h.0.mlp"]
        'GPT2MLP by mlp gelu_tanh'
        >>> torch.allclose(model(tokens).last_hidden_state, before, atol=1e-5)
        True
    """
    report = Report({}, {})
    tied = _tied(_checked("patch", model))
    for name, module, block in _blocks(model):
        reason = _obstacle(module, block) or _tied_projection(module, block, tied)
        if reason:
            report.left[name] = f"{_own_class(module).__name__}: {reason}"
            continue
        if not isinstance(module, Patched):
            module.__class__ = _patched_class(type(module))
        report.patched[name] = f"{_own_class(module).__name__} by {block.told(module)}"
    switched, left = experts.switch(model)
    report.patched.update(switched)
    report.left.update(left)
    around = {name[: place.start()] for name in switched | left for place in re.finditer(r"\.", name)}
    for name, module in model.named_modules():
        known = name in report.patched or name in report.left or name in around
        if not known and _LIKE_A_BLOCK.search(type(module).__name__) and next(module.children(), None) is not None:
            report.left[name] = f"{type(module).__name__}: a class that epigrad does not know"
    return report


def unpatch(model: nn.Module) -> tuple[str, ...]:
    """Give the blocks of a model their own forward back, and experts the implementation that they
    had.

    Args:
        model: a module that `patch` got, or one that holds such modules.

    Returns:
        The names of the blocks that were patched.

    Raises:
        DTypeError: (a ``TypeError``) `model` is not a `torch.nn.Module`.
        InvalidProblemError: (a ``ValueError``) another library has given a patched block a class of
            its own since; nothing was changed then.

    Examples:
        >>> from epigrad.integrations.transformers import patch, unpatch
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32))
        >>> patch(model).left
        {}
        >>> unpatch(model)
        ('h.0.mlp', 'h.1.mlp')
    """
    found = [
        (name, module) for name, module in _checked("unpatch", model).named_modules() if isinstance(module, Patched)
    ]
    for name, module in found:
        if type(module) is not _patched_class(module.epigrad_original):
            raise errors.InvalidProblemError(
                f"unpatch: model: {name} is a {class_name(module)} now, want the class that patch gave it: undo what "
                "was done to it since"
            )
    for _, module in found:
        module.__class__ = module.epigrad_original
    return (*(name for name, _ in found), *experts.restore(model))


def _checked(op: str, model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise errors.DTypeError(f"{op}: model: {type(model).__name__}, want a torch.nn.Module")
    return model


_classes: dict[type[Any], type[Any]] = {}


def _patched_class(original: type[Any]) -> type[Any]:
    """The class of patched blocks of an own class."""
    if original in _classes:
        return _classes[original]
    return _classes.setdefault(original, _made(original, BLOCKS[full_name(original)]))


def _made(original: type[Any], block: Block) -> type[Any]:
    own_forward = original.forward

    @functools.wraps(own_forward)
    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        # Hooks on all modules are to see the layers too.
        if named or len(arguments) != 1 or any_global_hook() or block.obstacle(self):
            return own_forward(self, *arguments, **named)
        return block.forward(self, arguments[0])

    own = {"forward": forward, "epigrad_original": original, "__module__": __name__, "__doc__": original.__doc__}
    # The original comes first: only a class of its layout can take its place.
    return type(f"Epigrad{original.__name__}", (original, Patched), own)


def _blank(original: type[Any]) -> Any:
    """A patched block without state, which pickle and copy fill."""
    return object.__new__(_patched_class(original))


def _own_class(module: nn.Module) -> type[Any]:
    return module.epigrad_original if isinstance(module, Patched) else type(module)


def _row(cls: type[Any]) -> Block | None:
    return BLOCKS.get(full_name(cls))


_LIKE_A_BLOCK = re.compile(r"MLP|Mlp|FeedForward|FFN")
"""What libraries call a two-layer block."""


def _blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module, Block]]:
    """The blocks of the table's classes and of subclasses of them."""
    for name, module in model.named_modules():
        block = next(filter(None, map(_row, type(module).__mro__)), None)
        if block is not None:
            yield name, module, block


def _obstacle(module: nn.Module, block: Block) -> str:
    if _row(_own_class(module)) is None:
        return "a subclass, whose forward may be another"
    return f"it {reason}" if (reason := replaced(module)) else block.obstacle(module)


def _tied(model: nn.Module) -> set[int]:
    """The parameters that several modules have, by identity."""
    owners = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in {id(p): p for p in module._parameters.values() if p is not None}.values()
    )
    return {parameter for parameter, count in owners.items() if count > 1}


def _tied_projection(module: nn.Module, block: Block, tied: set[int]) -> str:
    for name in block.read:
        for part, parameter in module.get_submodule(name).named_parameters(recurse=False):
            if id(parameter) in tied:
                return f"{name}.{part} is a parameter of another module too"
    return ""


def _counted(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


def _grouped(told: dict[str, str]) -> list[str]:
    """A line for all blocks that differ by numbers in their names alone."""
    groups = Counter((re.sub(r"\d+", "*", name), text) for name, text in told.items())
    return [f"  {name or 'the model itself'} ({count}): {text}" for (name, text), count in groups.items()]
