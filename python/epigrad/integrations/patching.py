"""`patch` and `unpatch`: a block gets another class, and nothing else of it changes. Experts get
another implementation by transformers' own setting.

A block is a module that `recognition.py` recognises and `proofs.py` proves, whatever its name.

The class is made from the block's own and adds a forward. So the block stays an instance of its
class, with the same parameters, names, hooks and place in the model, and `unpatch` gives the class
back. Such classes are made anew where a model is unpickled or copied.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from epigrad import errors
from epigrad._core.projections import class_name, is_watched, replaced
from epigrad._core.values import immutable
from epigrad.integrations import experts
from epigrad.integrations.blocks import Block
from epigrad.integrations.bodies import fingerprint
from epigrad.integrations.proofs import doubt
from epigrad.integrations.recognition import row_of
from epigrad.integrations.sources import Unknown


@immutable
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
        if not self.patched:
            lines.append(_NOTHING)
        return "\n".join(lines)


_NOTHING = f"  {errors.SITE}/models.html lists the blocks that epigrad computes; epigrad.nn has layers for others"


class Patched:
    """The base of a patched block's class, beside the block's own class."""

    __slots__ = ()
    epigrad_original: type[Any]
    """The block's own class."""
    epigrad_block: Block
    """The row by which epigrad computes it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls: type[Any] = type(self)
        # another library's class on top of ours
        if not _is_as_patched(cls):
            return super().__reduce_ex__(protocol)
        arguments = self.epigrad_original, self.epigrad_block, fingerprint(self.epigrad_original)
        return _blank, arguments, object.__getstate__(self)


def patch(model: nn.Module) -> Report:
    """Let epigrad compute the MLPs and the experts of a model, in place.

    A block is recognised by the source of its forward. Each class is proved once: a small block of
    it with random weights has to give the same output and gradients by epigrad. The model's
    parameters, state dict, modules and hooks stay what they are, and so do random generators. A
    block is left alone where epigrad would not compute the same, and the report says why. Each call
    of a block checks again for what came after `patch`: adapters, hooks and quantised layers keep
    their part.

    Experts are set to the implementation of `register_experts`, by their configuration: all that
    share it, or none.

    Args:
        model: a model of transformers, timm or torchvision, or any other module.

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
    others: dict[str, str] = {}
    tied = _tied(_checked("patch", model))
    for name, module in model.named_modules():
        cls: type[Any] = module.epigrad_original if isinstance(module, Patched) else type(module)
        try:
            block = _row(module, cls)
        except Unknown as unknown:
            like_a_block = _LIKE_A_BLOCK.search(cls.__name__)
            (report.left if like_a_block else others)[name] = f"{cls.__name__}: {unknown}"
            continue
        if block is None:
            continue
        if reason := _obstacle(module, cls, block) or _tied_projection(module, block, tied):
            report.left[name] = f"{cls.__name__}: {reason}"
            continue
        if not isinstance(module, Patched) or _is_as_patched(type(module)):
            module.__class__ = _patched_class(cls, block)
        report.patched[name] = f"{cls.__name__} by {block.told(module)}"
    switched, left = experts.switch(model)
    report.patched.update(switched)
    # What holds blocks is none itself.
    for name in [key for key in report.left if _holds_any(key, report.patched | left)]:
        del report.left[name]
    report.left.update(left)
    if not report.patched and not report.left:
        report.left.update({name: others[name] for name in _around_layers(model) if name in others})
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
        if not _is_as_patched(type(module)):
            raise errors.InvalidProblemError(
                f"unpatch: model: {name} is a {class_name(module)}, want the class that patch gave it: first undo "
                "what changed its class since"
            )
    for _, module in found:
        module.__class__ = module.epigrad_original
    return (*(name for name, _ in found), *experts.restore(model))


def _checked(op: str, model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise errors.DTypeError(f"{op}: model: {type(model).__name__}, want a torch.nn.Module")
    return model


_classes: dict[tuple[type[Any], Block], type[Any]] = {}


def _patched_class(original: type[Any], block: Block) -> type[Any]:
    key = original, block
    if key in _classes:
        return _classes[key]
    return _classes.setdefault(key, _made(original, block))


def _made(original: type[Any], block: Block) -> type[Any]:
    own_forward = original.forward

    @functools.wraps(own_forward)
    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        # A program may have replaced the class's forward since. What watches is to see the layers.
        as_before = not named and len(arguments) == 1 and original.forward is own_forward
        if as_before and not is_watched(arguments[0]) and not block.obstacle(self):
            return block.forward(self, arguments[0])
        return original.forward(self, *arguments, **named)

    own = {"forward": forward, "epigrad_original": original, "epigrad_block": block}
    own |= {"__module__": __name__, "__doc__": original.__doc__}
    # The original comes first: only a class of its layout can take its place.
    return type(f"Epigrad{original.__name__}", (original, Patched), own)


def _is_as_patched(cls: type[Any]) -> bool:
    return cls is _classes.get((cls.epigrad_original, cls.epigrad_block))


def _blank(original: type[Any], block: Block, body: str) -> Any:
    """A block without state, which pickle and copy fill: a patched one, if the class still has the
    forward that it had."""
    return object.__new__(_patched_class(original, block) if fingerprint(original) == body else original)


_LIKE_A_BLOCK = re.compile(r"MLP|Mlp|FeedForward|FFN|Intermediate$|DenseAct|DenseGated")
"""What libraries call a two-layer block, or a part of one."""


def _row(module: nn.Module, cls: type[Any]) -> Block | None:
    """The row of a module, None if it is no block of a model."""
    room = cls.__module__.partition(".")[0]
    if cls is nn.Linear:
        raise Unknown("a layer by itself: epigrad computes it together with an activation")
    if cls.__module__.startswith("torch.nn.modules.") and cls is not nn.Sequential:
        raise Unknown("a class of PyTorch that epigrad does not compute")
    if room == "torch" and cls is not nn.Sequential:
        raise Unknown(f"its class is of {cls.__module__}: patch before it gets this class")
    if room == "epigrad" or not module._modules:
        return None
    return row_of(module, cls)


def _obstacle(module: nn.Module, cls: type[Any], block: Block) -> str:
    if reason := replaced(module):
        return f"it {reason}"
    return block.obstacle(module) or doubt(module, cls, block)


def _around_layers(model: nn.Module) -> Iterator[str]:
    """The modules that call a linear layer: what is around it, but for lists."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            around = name.rpartition(".")[0]
            while around and isinstance(model.get_submodule(around), nn.ModuleList | nn.ModuleDict):
                around = around.rpartition(".")[0]
            yield around


def _holds_any(name: str, others: Iterable[str]) -> bool:
    prefix = f"{name}." if name else ""
    return any(other.startswith(prefix) and other != name for other in others)


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
