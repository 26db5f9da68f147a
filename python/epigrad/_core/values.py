"""Values: classes whose instances never change."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any, NamedTuple, NoReturn, TypeVar

_Class = TypeVar("_Class", bound=type[Any])


def immutable(cls: _Class) -> _Class:
    """Let a class and its subclasses refuse to set or delete any attribute, known or not.

    A frozen dataclass alone accepts new attributes in a subclass. One with slots raises a TypeError
    of `super` for attributes that it does not have.
    """
    cls.__setattr__ = cls.__delattr__ = _refuse  # type: ignore[assignment]
    return cls


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    cls, got = type(self).__name__, "a new value" if value else "a deletion"
    raise FrozenInstanceError(f"{cls}: {name}: got {got}, but instances of {cls} never change: make another")


@immutable
class LowRank(NamedTuple):
    """A low-rank update of a weight, as LoRA trains it beside a frozen one.

    A layer with it has the weight ``weight + scale * b @ a``, which is never formed: ``input @
    weight.T + scale * (input @ a.T) @ b.T + bias``. It is immutable and unpacks as ``a, b, scale``.

    Args:
        a: ``[r, K]`` for a weight ``[N, K]``; of groups and experts ``[E, r, K]``. Any strides. It
            has the dtype of the call, or is float32 beside bfloat16 or float16: then it is rounded
            for the products, and its gradient is float32. The rank r may be 0.
        b: ``[N, r]``, or ``[E, N, r]``, likewise.
        scale: a number, which has no gradient.

    Gradients:
        With ``grad_pre`` the gradient of the layer's preactivation: ``grad_a = scale * (grad_pre @
        b).T @ input``, ``grad_b = scale * grad_pre.T @ (input @ a.T)``, and ``grad_input`` has the
        term ``scale * (grad_pre @ b) @ a``.

    Source: Hu et al. 2021, https://arxiv.org/abs/2106.09685.

    Examples:
        >>> import epigrad, torch
        >>> x, weight = torch.ones(5, 3), torch.ones(4, 3)
        >>> a, b = torch.ones(2, 3, requires_grad=True), torch.ones(4, 2)
        >>> out = epigrad.linear(x, weight, adapter=epigrad.LowRank(a, b, 0.5))
        >>> torch.allclose(out, x @ (weight + 0.5 * b @ a).T)
        True
    """

    a: Any
    b: Any
    scale: float = 1.0
