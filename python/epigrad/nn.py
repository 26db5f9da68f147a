"""Modules over the functions of `epigrad`; their parameters are those of `torch.nn.Linear`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from epigrad import errors, functional
from epigrad.arguments import check_save, gate_is_first
from epigrad.differentiable import ACTIVATIONS

__all__ = ["MLP", "GatedActivation", "GatedMLP", "Lerp", "Linear"]


def _activation_name(module: str, activation: str | None) -> str:
    # The names are also known here, so that making a module does not load the core and a process that only makes
    # modules may fork.
    if activation is None:
        return "none"
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        valid = ", ".join(map(repr, ACTIVATIONS))
        raise errors.InvalidProblemError(f"{module}: activation: {activation!r}, want one of {valid}")
    return activation


def _is_called(layer: nn.Module) -> bool:
    """Whether a layer of a block has to be called by itself: it has hooks, as those of FSDP and tensor parallel are, or
    something else took its place.
    """
    hooks = layer._forward_pre_hooks or layer._forward_hooks or layer._backward_pre_hooks or layer._backward_hooks
    return type(layer) is not Linear or bool(hooks)


def _check_halves(up: nn.Module, hidden: Tensor) -> None:
    """Refuse a local shard of a gated layer whose values and gates lie on different devices."""
    if all(type(way).__name__ != "_StridedShard" for way in getattr(up.weight, "placements", ())):
        raise errors.UnsupportedError(
            f"GatedMLP: up: a shard of {hidden.shape[-1]} of its features, whose gates lie on other devices than their "
            "values: want it parallelised by epigrad.parallel.GatedColwiseParallel"
        )


class Linear(nn.Linear):
    """``act(input @ weight.T + bias)``: a `torch.nn.Linear` with an activation.

    Args:
        in_features: K, the last size of the input.
        out_features: N, the last size of the output.
        bias: whether there is a bias.
        activation: ``"none"`` or None, ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or
            ``"tanh"``.
        save: what is kept for backward, as in `epigrad.linear`.
        device: where the parameters are.
        dtype: their dtype: float32, float64, bfloat16 or float16.

    Shape:
        input ``[..., K]``, weight ``[N, K]``, bias ``[N]``, output ``[..., N]``.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown activation or `save`.

    Examples:
        >>> import epigrad, torch
        >>> layer = epigrad.nn.Linear(3, 4, activation="gelu")
        >>> layer(torch.ones(2, 3)).shape
        torch.Size([2, 4])
        >>> layer
        Linear(in_features=3, out_features=4, bias=True, activation='gelu')
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: str | None = "none",
        *,
        save: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = _activation_name("Linear", activation)
        check_save("Linear", save)
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.activation = name
        self.save = save

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to ``[..., in_features]``."""
        return functional.linear(input, self.weight, self.bias, self.activation, save=self.save)

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        return f"{super().extra_repr()}, activation={self.activation!r}"


class GatedActivation(nn.Module):
    """``value * act(gate)`` of the two halves of the input, as `epigrad.gated_activation`.

    Args:
        kind: ``"glu"``, ``"reglu"``, ``"swiglu"``, ``"geglu"``, ``"geglu_tanh"`` or ``"bilinear"``.
        dim: the dimension that is split.
        gate: which half is the gate: ``"second"`` or ``"first"``.
        device: accepted as by every module; there are no parameters.
        dtype: accepted as by every module.

    Shape:
        input ``[..., 2*H]`` for dim -1, output ``[..., H]``.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown kind or gate.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.nn.GatedActivation("geglu")(torch.ones(2, 6)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        kind: str = "swiglu",
        dim: int = -1,
        gate: str = "second",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate_is_first("GatedActivation", gate)  # the kind is in the core's table alone, and asked for at the first call
        super().__init__()
        self.kind = kind
        self.dim = dim
        self.gate = gate

    def forward(self, input: Tensor) -> Tensor:
        """Apply the gate."""
        return functional.gated_activation(input, self.kind, self.dim, gate=self.gate)

    def extra_repr(self) -> str:
        """What `repr` shows of the module."""
        return f"kind={self.kind!r}, dim={self.dim}, gate={self.gate!r}"


class MLP(nn.Module):
    """``down(act(up(input)))``, never saving the hidden activation, as `epigrad.mlp`.

    Args:
        features: K, the last size of the input and of the output.
        hidden_features: H, the size of the hidden layer.
        activation: ``"none"`` or None, ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or
            ``"tanh"``.
        bias: whether both layers have a bias.
        save: what is kept for backward, as in `epigrad.mlp`.
        device: where the parameters are.
        dtype: their dtype.

    Shape:
        input and output ``[..., K]``; `up` is a `Linear` with weight ``[H, K]``, `down` one with weight ``[K, H]``.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown activation or `save`.

    Examples:
        >>> import epigrad, torch
        >>> block = epigrad.nn.MLP(4, 16)
        >>> block(torch.ones(2, 4)).shape
        torch.Size([2, 4])
        >>> list(block.state_dict())
        ['up.weight', 'up.bias', 'down.weight', 'down.bias']
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        activation: str | None = "gelu_tanh",
        bias: bool = True,
        *,
        save: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = _activation_name("MLP", activation)
        check_save("MLP", save)
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.up = Linear(features, hidden_features, bias, name, **options)
        self.down = Linear(hidden_features, features, bias, **options)
        self.save = save

    def forward(self, input: Tensor) -> Tensor:
        """Apply the block to ``[..., features]``."""
        up, down = self.up, self.down
        if _is_called(up) or _is_called(down):
            out: Tensor = down(up(input))
            return out
        return functional.mlp(input, up.weight, up.bias, down.weight, down.bias, up.activation, save=self.save)


class GatedMLP(nn.Module):
    """``down(gated_activation(up(input)))``, never saving the hidden activation, as `epigrad.gated_mlp`.

    Args:
        features: K, the last size of the input and of the output.
        hidden_features: H, the size of the hidden layer; `up` has ``2*H`` rows.
        kind: ``"glu"``, ``"reglu"``, ``"swiglu"``, ``"geglu"``, ``"geglu_tanh"`` or ``"bilinear"``.
        bias: whether both layers have a bias.
        gate: which half of up's rows is the gate: ``"second"`` or ``"first"``.
        save: what is kept for backward, as in `epigrad.gated_mlp`.
        device: where the parameters are.
        dtype: their dtype.

    Shape:
        input and output ``[..., K]``; `up` is a `Linear` with weight ``[2*H, K]``, `down` one with weight ``[K, H]``.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown kind, gate or `save`.

    Examples:
        >>> import epigrad, torch
        >>> block = epigrad.nn.GatedMLP(4, 8)
        >>> block(torch.ones(2, 4)).shape, block.up.weight.shape
        (torch.Size([2, 4]), torch.Size([16, 4]))
    """

    def __init__(
        self,
        features: int,
        hidden_features: int,
        kind: str = "swiglu",
        bias: bool = False,
        gate: str = "second",
        *,
        save: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate_is_first("GatedMLP", gate)
        check_save("GatedMLP", save)
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.up = Linear(features, 2 * hidden_features, bias, **options)
        self.down = Linear(hidden_features, features, bias, **options)
        self.kind = kind
        self.gate = gate
        self.save = save

    def forward(self, input: Tensor) -> Tensor:
        """Apply the block to ``[..., features]``."""
        up, down = self.up, self.down
        if _is_called(up) or _is_called(down):
            hidden = up(input)
            if hidden.shape[-1] != up.out_features:
                _check_halves(up, hidden)
            out: Tensor = down(functional.gated_activation(hidden, self.kind, gate=self.gate))
            return out
        return functional.gated_mlp(
            input, up.weight, up.bias, down.weight, down.bias, self.kind, gate=self.gate, save=self.save
        )

    def extra_repr(self) -> str:
        """What `repr` shows of the block."""
        return f"kind={self.kind!r}, gate={self.gate!r}"


class Lerp(nn.Module):
    """``start + weight * (end - start)``, as `epigrad.lerp`.

    Args:
        device: accepted as by every module; there are no parameters.
        dtype: accepted as by every module.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.nn.Lerp()(torch.zeros(2), torch.ones(2), 0.5)
        tensor([0.5000, 0.5000])
    """

    def __init__(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()

    def forward(self, start: Tensor, end: Tensor, weight: float | Tensor) -> Tensor:
        """Mix `start` and `end`."""
        return functional.lerp(start, end, weight)
