"""Modules over the functions of `epigrad`; names and initial values are `torch.nn.Linear`'s."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, nn

from epigrad import errors, functional, kinds
from epigrad._core.call import dim_index, gate_place
from epigrad._core.checks import check_save, finite
from epigrad._core.projections import held_back, is_watched, projection
from epigrad.kinds import ActivationLike, Gated, activation_of, either_of, gated_of, nearest, shown

__all__ = ["MLP", "XIELU", "Activation", "Experts", "GatedActivation", "GatedMLP", "Lerp", "Linear", "PReLU"]


def _check_bias(module: str, bias: object, argument: str = "activation", *others: str) -> None:
    """Refuse what is no bool, which is probably what the module takes as this argument; `others`
    are tables whose names that argument takes too."""
    if isinstance(bias, bool):
        return
    given = f'"{bias}"' if isinstance(bias, str) else shown(bias)
    near = [nearest(table, bias) for table in (argument, *others)] if isinstance(bias, str) else []
    meant = bias if bias in near else next(filter(None, near), None)
    hint = f'; give {argument}="{meant}"' if meant else ""
    if callable(bias) and "activation" in (argument, *others):
        hint = f"; give it as {argument}"
    raise errors.DTypeError(f"{module}: bias: got {given}, want a bool{hint}")


def _size(module: str, name: str, size: int) -> int:
    try:
        number = operator.index(size)
    except TypeError:
        raise errors.DTypeError(f"{module}: {name}: got {size!r}, want an int") from None
    if number < 0:
        raise errors.InvalidProblemError(f"{module}: {name}: got {number}, want a size >= 0")
    return number


def _check_shard(up: nn.Module, hidden: Tensor, gate: str) -> None:
    """Refuse a local shard of a gated layer whose values and gates lie on different devices."""
    weight: Any = up._parameters.get("weight")
    # those of a DTensor, whose shape is that of the whole
    placements = getattr(weight, "placements", ())
    if not placements or hidden.shape[-1] == weight.shape[0]:
        return
    by_halves = any(type(way).__name__ == "_StridedShard" for way in placements)
    if gate in ("odd", "even"):
        if by_halves or hidden.shape[-1] % 2:
            raise errors.UnsupportedError(
                f"GatedMLP: up: a shard of {hidden.shape[-1]} features, want an even number on each device, split by "
                f"torch's ColwiseParallel: with gate={gate!r} a value and its gate are neighbours"
            )
    elif not by_halves:
        raise errors.UnsupportedError(
            f"GatedMLP: up: a shard of {hidden.shape[-1]} features, whose values and gates are on different devices, "
            "want epigrad.parallel.GatedColwiseParallel for this layer"
        )


def _with_plain_layers(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a block that 0.1 pickled, with `torch.nn.Linear` in the place of `Linear`."""

    def plain(layer: nn.Module | None) -> nn.Module | None:
        if type(layer) is not Linear:
            return layer
        made = nn.Linear.__new__(nn.Linear)
        made.__dict__.update({name: value for name, value in vars(layer).items() if name not in ("activation", "save")})
        return made

    return state | {"_modules": {name: plain(layer) for name, layer in state["_modules"].items()}}


class Linear(nn.Module):
    """``act(input @ weight.T + bias)``: a linear layer with its activation.

    It is not a `torch.nn.Linear`, although its state dict is the same. LoRA, `ColwiseParallel` and
    quantisation ask by `isinstance`: they would take the layer for linear and lose the activation.
    For them, use a `torch.nn.Linear` followed by `epigrad.activation`, or the layers of `MLP`.

    Args:
        in_features: K, the last size of the input.
        out_features: N, the last size of the output.
        bias: whether there is a bias.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        save: what is kept for backward, as in `epigrad.linear`.
        device: where the parameters are.
        dtype: their dtype: float32, float64, bfloat16 or float16.

    Shape:
        input ``[..., K]``, weight ``[N, K]``, bias ``[N]``, output ``[..., N]``.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown activation or `save`.
        DTypeError: (a ``TypeError``) a size that is not an int, or a `bias` that is not a bool.

    Examples:
        >>> import epigrad, torch
        >>> layer = epigrad.nn.Linear(3, 4, activation="gelu")
        >>> layer(torch.ones(2, 3)).shape
        torch.Size([2, 4])
        >>> layer
        Linear(in_features=3, out_features=4, bias=True, activation='gelu')
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: ActivationLike = "none",
        *,
        save: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        act = activation_of("Linear", activation)
        check_save("Linear", save)
        _check_bias("Linear", bias)
        super().__init__()
        self.in_features = _size("Linear", "in_features", in_features)
        self.out_features = _size("Linear", "out_features", out_features)
        self.activation = act
        self.save = save
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty((self.out_features, self.in_features), **options))
        self.register_parameter("bias", nn.Parameter(torch.empty(self.out_features, **options)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as `torch.nn.Linear` does."""
        # it asks for weight and bias alone
        nn.Linear.reset_parameters(self)  # type: ignore[arg-type]

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to ``[..., in_features]``."""
        return functional.linear(input, self.weight, self.bias, self.activation, save=self.save)

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"activation={str(self.activation)!r}"
        )


class Activation(nn.Module):
    """``act(input)``, elementwise, as `epigrad.activation`.

    Args:
        name: of the activation, which `epigrad.Activation` lists; or one of these, or None.
        device: accepted as by every module; there are no tensors.
        dtype: accepted as by every module.
        parameters: numbers, by keyword; what is left out has its default.

    Shape:
        input of any shape, output of the same.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown name or parameter, or a value out of its
            range.
        DTypeError: (a ``TypeError``) a parameter that is not a number.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.nn.Activation("leaky_relu", slope=0.5)(torch.tensor([-2.0, 2.0]))
        tensor([-1.,  2.])
    """

    def __init__(
        self,
        name: ActivationLike,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **parameters: float,
    ) -> None:
        super().__init__()
        if isinstance(name, kinds.Activation) and parameters:
            raise errors.InvalidProblemError(
                f"Activation: parameters: got {', '.join(parameters)} beside {name!r}, want them inside of it"
            )
        self.activation = name if isinstance(name, kinds.Activation) else kinds.Activation(name, **parameters)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation."""
        return functional.activation(input, self.activation)

    def extra_repr(self) -> str:
        """What `repr` shows of the module."""
        return repr(str(self.activation))


class GatedActivation(nn.Module):
    """``value * act(gate)`` of the two halves of the input, as `epigrad.gated_activation`.

    Args:
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        dim: the dimension that is split.
        gate: where the gates are along `dim`: the ``"second"`` or the ``"first"`` half, or the
            ``"odd"`` or the ``"even"`` places.
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
        kind: str | Gated = "swiglu",
        dim: int = -1,
        gate: str = "second",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate_place("GatedActivation", gate)
        super().__init__()
        self.kind = gated_of("GatedActivation", kind)
        self.dim = dim_index("GatedActivation", dim)
        self.gate = gate

    def forward(self, input: Tensor) -> Tensor:
        """Apply the gate."""
        return functional.gated_activation(input, self.kind, self.dim, gate=self.gate)

    def extra_repr(self) -> str:
        """What `repr` shows of the module."""
        return f"kind={str(self.kind)!r}, dim={self.dim}, gate={self.gate!r}"


class MLP(nn.Module):
    """``down(act(up(input)))``, as `epigrad.mlp`: the hidden activation is never saved.

    Args:
        features: K, the last size of the input and of the output.
        hidden_features: H, the size of the hidden layer.
        activation: a name or an `epigrad.Activation`, which lists them; None is ``"none"``.
        bias: whether both layers have a bias.
        save: what is kept for backward, as in `epigrad.mlp`.
        device: where the parameters are.
        dtype: their dtype.

    Shape:
        input and output ``[..., K]``; `up` is a `torch.nn.Linear` with weight ``[H, K]``, `down`
        one with weight ``[K, H]``. A layer that LoRA or quantisation has replaced, that has hooks,
        or whose parameters are tensor subclasses is called as a module of its own.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown activation or `save`.
        DTypeError: (a ``TypeError``) a size that is not an int, or a `bias` that is not a bool.

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
        activation: ActivationLike = "gelu_tanh",
        bias: bool = True,
        *,
        save: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        act = activation_of("MLP", activation)
        check_save("MLP", save)
        _check_bias("MLP", bias)
        outer, hidden = _size("MLP", "features", features), _size("MLP", "hidden_features", hidden_features)
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.up = nn.Linear(outer, hidden, bias, **options)
        self.down = nn.Linear(hidden, outer, bias, **options)
        self.activation = act
        self.save = save

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "activation" not in state:
            state = _with_plain_layers(state | {"activation": state["_modules"]["up"].activation})
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def forward(self, input: Tensor) -> Tensor:
        """Apply the block to ``[..., features]``."""
        up, down = self.up, self.down
        if is_watched(input) or held_back(self, "up"):
            hidden = functional.activation(up(input), self.activation)
        elif held_back(self, "down"):
            weight, bias, adapter = projection(self, "up")
            hidden = functional.linear(input, weight, bias, self.activation, save=self.save, adapter=adapter)
        else:
            first, second = projection(self, "up"), projection(self, "down")
            return functional.mlp(
                input,
                *first[:2],
                *second[:2],
                self.activation,
                save=self.save,
                adapter1=first.adapter,
                adapter2=second.adapter,
            )
        out: Tensor = down(hidden)
        return out

    def extra_repr(self) -> str:
        """What `repr` shows of the block."""
        return f"activation={str(self.activation)!r}"


class GatedMLP(nn.Module):
    """``down(gated_activation(up(input)))``, as `epigrad.gated_mlp`.

    The hidden activation is never saved.

    Args:
        features: K, the last size of the input and of the output.
        hidden_features: H, the size of the hidden layer; `up` has ``2*H`` rows.
        kind: a name such as ``"swiglu"``, or an `epigrad.Gated`, which lists them.
        bias: whether both layers have a bias.
        gate: where the gates are among up's rows: the ``"second"`` or the ``"first"`` half, or the
            ``"odd"`` or the ``"even"`` rows.
        save: what is kept for backward, as in `epigrad.gated_mlp`.
        device: where the parameters are.
        dtype: their dtype.

    Shape:
        input and output ``[..., K]``; `up` is a `torch.nn.Linear` with weight ``[2*H, K]``, `down`
        one with weight ``[K, H]``. As in `MLP`, a layer that is no plain one any more is called.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown kind, gate or `save`.
        DTypeError: (a ``TypeError``) a size that is not an int, or a `bias` that is not a bool.

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
        kind: str | Gated = "swiglu",
        bias: bool = False,
        gate: str = "second",
        *,
        save: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate_place("GatedMLP", gate)
        check_save("GatedMLP", save)
        _check_bias("GatedMLP", bias, "kind")
        outer, hidden = _size("GatedMLP", "features", features), _size("GatedMLP", "hidden_features", hidden_features)
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.kind = gated_of("GatedMLP", kind)
        self.up = nn.Linear(outer, 2 * hidden, bias, **options)
        self.down = nn.Linear(hidden, outer, bias, **options)
        self.gate = gate
        self.save = save

    def __setstate__(self, state: dict[str, Any]) -> None:
        if all(str(getattr(layer, "activation", "")) == "none" for layer in state["_modules"].values()):
            state = _with_plain_layers(state)
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def forward(self, input: Tensor) -> Tensor:
        """Apply the block to ``[..., features]``."""
        up, down = self.up, self.down
        if is_watched(input) or held_back(self, "up") or held_back(self, "down"):
            hidden = up(input)
            _check_shard(up, hidden, self.gate)
            out: Tensor = down(functional.gated_activation(hidden, self.kind, gate=self.gate))
            return out
        first, second = projection(self, "up"), projection(self, "down")
        return functional.gated_mlp(
            input,
            *first[:2],
            *second[:2],
            self.kind,
            gate=self.gate,
            save=self.save,
            adapter_in=first.adapter,
            adapter_out=second.adapter,
        )

    def extra_repr(self) -> str:
        """What `repr` shows of the block."""
        return f"kind={str(self.kind)!r}, gate={self.gate!r}"


class Experts(nn.Module):
    """A mixture of feed-forward experts, as `epigrad.experts`, for tokens that a router has placed.

    Each expert is initialised as two `torch.nn.Linear`.

    Args:
        features: K, the size of a token.
        hidden_features: H, the size of the hidden layer; weight_in has ``2*H`` rows for a gated
            kind.
        num_experts: E.
        kind: a gated kind or an activation: a name, an `epigrad.Gated` or an `epigrad.Activation`.
        bias: whether both layers have a bias.
        gate: where the gates are among weight_in's rows: the ``"second"`` or the ``"first"`` half,
            or the ``"odd"`` or the ``"even"`` rows.
        save: what is kept for backward, as in `epigrad.experts`.
        device: where the parameters are.
        dtype: their dtype.

    Shape:
        called with input ``[T, K]``, index ``[T, k]`` (int64) and scale ``[T, k]``, it gives
        ``[T, K]``. Parameters are weight_in ``[E, 2*H, K]`` (``[E, H, K]`` without a gate), bias_in
        ``[E, 2*H]``, weight_out ``[E, K, H]`` and bias_out ``[E, K]``.

    Raises:
        InvalidProblemError: (a ``ValueError``) an unknown kind, gate or `save`.
        DTypeError: (a ``TypeError``) a size that is not an int, or a `bias` that is not a bool.

    Source: Shazeer et al. 2017, https://arxiv.org/abs/1701.06538.

    Examples:
        >>> import epigrad, torch
        >>> experts = epigrad.nn.Experts(4, 8, num_experts=3)
        >>> tokens = torch.ones(5, 4)
        >>> scale, index = torch.rand(5, 3).softmax(-1).topk(2)
        >>> experts(tokens, index, scale).shape
        torch.Size([5, 4])
    """

    weight_in: nn.Parameter
    bias_in: nn.Parameter | None
    weight_out: nn.Parameter
    bias_out: nn.Parameter | None

    def __init__(
        self,
        features: int,
        hidden_features: int,
        num_experts: int,
        kind: ActivationLike | Gated = "swiglu",
        bias: bool = False,
        gate: str = "second",
        *,
        save: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate_place("Experts", gate)
        check_save("Experts", save)
        _check_bias("Experts", bias, "kind", "activation")
        found = either_of("Experts", kind)
        if gate != "second" and not isinstance(found, Gated):
            raise errors.InvalidProblemError(f"Experts: gate: {gate!r}, want the default: {str(found)!r} has no gate")
        outer, hidden = _size("Experts", "features", features), _size("Experts", "hidden_features", hidden_features)
        count, rows = _size("Experts", "num_experts", num_experts), hidden * (2 if isinstance(found, Gated) else 1)
        super().__init__()
        self.kind, self.gate, self.save = found, gate, save

        def parameter(*sizes: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*sizes, device=device, dtype=dtype))

        self.weight_in = parameter(count, rows, outer)
        self.register_parameter("bias_in", parameter(count, rows) if bias else None)
        self.weight_out = parameter(count, outer, hidden)
        self.register_parameter("bias_out", parameter(count, outer) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Give each expert's parameters the initial values of two `torch.nn.Linear`."""
        for weight, bias in ((self.weight_in, self.bias_in), (self.weight_out, self.bias_out)):
            bound = 1 / math.sqrt(weight.shape[-1]) if weight.shape[-1] else 0.0
            nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    def forward(self, input: Tensor, index: Tensor, scale: Tensor) -> Tensor:
        """Apply to each token ``[T, K]`` its experts ``[T, k]``, weighted with their scales."""
        weights = (self.weight_in, self.bias_in, self.weight_out, self.bias_out)
        return functional.experts(input, index, scale, *weights, self.kind, gate=self.gate, save=self.save)

    def extra_repr(self) -> str:
        """What `repr` shows of the module."""
        count, features, hidden = self.weight_out.shape
        sizes = f"features={features}, hidden_features={hidden}, num_experts={count}"
        return f"{sizes}, kind={str(self.kind)!r}, bias={self.bias_in is not None}, gate={self.gate!r}"


class PReLU(nn.Module):
    """``input if input > 0 else weight * input`` with a learned weight, as `epigrad.prelu`.

    Arguments, initial values and state dict are those of `torch.nn.PReLU`.

    Args:
        num_parameters: how many elements the weight has: 1, or the input's second size.
        init: their initial value.
        device: where the weight is.
        dtype: its dtype: float32, float64, bfloat16 or float16.

    Shape:
        input of any shape, output of the same; weight ``[num_parameters]``.

    Raises:
        DTypeError: (a ``TypeError``) a `num_parameters` that is not an int, or an `init` that is
            not a number.
        InvalidProblemError: (a ``ValueError``) a negative `num_parameters`, or an `init` that is
            not finite.

    Source: He et al. 2015, https://arxiv.org/abs/1502.01852.

    Examples:
        >>> import epigrad, torch
        >>> epigrad.nn.PReLU()(torch.tensor([-2.0, 4.0])).tolist()
        [-0.5, 4.0]
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        count, value = _size("PReLU", "num_parameters", num_parameters), finite("PReLU", "init", init)
        super().__init__()
        self.num_parameters = count
        self.init = value
        self.weight = nn.Parameter(torch.empty(count, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Give the weight its initial value."""
        nn.init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation."""
        return functional.prelu(input, self.weight)

    def extra_repr(self) -> str:
        """What `repr` shows of the module."""
        return f"num_parameters={self.num_parameters}"


class XIELU(nn.Module):
    """xIELU with learned alphas, the activation of Apertus, as `epigrad.xielu`.

    At the start ``softplus(alpha_p)`` and ``beta + softplus(alpha_n)`` are 0.8. State dicts of
    transformers' `XIELUActivation` load: its `beta` becomes the module's, and its `eps` has no use
    here.

    Args:
        beta: a number below 0.8: the slope at 0.
        device: where the alphas are.
        dtype: their dtype: float32, float64, bfloat16 or float16.

    Shape:
        input of any shape, output of the same; alpha_p and alpha_n ``[1]``.

    Raises:
        DTypeError: (a ``TypeError``) a beta that is not a number.
        InvalidProblemError: (a ``ValueError``) a beta that is not finite, or is 0.8 or more.

    Source: Huang and Schlag 2024, https://arxiv.org/abs/2411.13010.

    Examples:
        >>> import epigrad, torch
        >>> module = epigrad.nn.XIELU()
        >>> module(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 1.3000], grad_fn=<ElementwiseBackward>)
        >>> list(module.state_dict())
        ['alpha_p', 'alpha_n']
    """

    alpha_p: nn.Parameter
    alpha_n: nn.Parameter

    def __init__(
        self, beta: float = 0.5, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        number = finite("XIELU", "beta", beta)
        if number >= _XIELU_START:
            raise errors.InvalidProblemError(
                f"XIELU: beta: got {beta!r}, want less than {_XIELU_START}, where beta + softplus(alpha_n) starts"
            )
        super().__init__()
        self.beta = number
        self.alpha_p, self.alpha_n = (nn.Parameter(torch.empty(1, device=device, dtype=dtype)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Give the alphas their initial values."""
        nn.init.constant_(self.alpha_p, _before_softplus(_XIELU_START))
        nn.init.constant_(self.alpha_n, _before_softplus(_XIELU_START - self.beta))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # transformers keeps two numbers among the buffers
        beta = state_dict.pop(f"{prefix}beta", None)
        state_dict.pop(f"{prefix}eps", None)
        if beta is not None and not beta.is_meta:
            self.beta = finite("XIELU", "beta", beta.item())
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation."""
        return functional.xielu(input, self.alpha_p, self.alpha_n, self.beta)

    def extra_repr(self) -> str:
        """What `repr` shows of the module."""
        return f"beta={self.beta}"


_XIELU_START = 0.8


def _before_softplus(value: float) -> float:
    """The number whose softplus is this one, without an overflow."""
    return value + math.log(-math.expm1(-value))


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
