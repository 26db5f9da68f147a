"""The experts of transformers' mixtures, by `epigrad.experts`.

transformers calls a function that is registered by a name, with a module of experts, tokens and the
routing. It is chosen by the module's configuration, so that one setting counts for all experts
with this configuration. Importing this registers ``"epigrad"`` once transformers is imported.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from epigrad import errors, functional
from epigrad._core.mixtures import SPREAD
from epigrad._core.projections import class_name, why_called
from epigrad._core.tables import DTYPES, is_half
from epigrad._core.torch_state import autocasts, constant_to_dynamo
from epigrad._core.values import LowRank
from epigrad.integrations.blocks import activation_in, activation_obstacle
from epigrad.integrations.gates import form_of
from epigrad.kinds import Activation, Gated
from epigrad.ops.import_hook import after_import

NAME = "epigrad"
"""The name of the implementation."""

_ROOM = "transformers.integrations.moe"
_FLAGS = {"is_concatenated", "is_transposed", "has_bias", "has_gate", "has_post_expert_norm"}
_BEFORE = "epigrad_experts_before"
"""The attribute of a patched module that has its former implementation."""
_REGISTRATION = "epigrad_experts"
"""What a module that epigrad computes holds, so that its pickle names epigrad."""
ADAPTERS = "epigrad_experts_adapters"
"""The attribute of a module that has the adapters of a call, by the names of their parameters."""


def register_experts() -> None:
    """Make ``"epigrad"`` an experts implementation of transformers, as importing epigrad does too.

    `epigrad.experts` then computes the experts of models that are set to it: by
    ``model.set_experts_implementation("epigrad")``, or by ``experts_implementation="epigrad"`` of
    ``from_pretrained`` and ``from_config``. Registering again changes nothing. A call whose gate or
    activation epigrad does not recognise raises `UnsupportedError`, and says what to do. On a GPU
    experts in float32 or float64 are slow.

    Raises:
        UnsupportedError: (a ``NotImplementedError``) there is no transformers 5.0 or newer.

    Examples:
        >>> import torch
        >>> from epigrad.integrations.transformers import register_experts
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> sizes = dict(hidden_size=16, intermediate_size=24, vocab_size=32, num_local_experts=4)
        >>> sizes |= dict(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
        >>> model = MixtralForCausalLM(MixtralConfig(**sizes)).eval()
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> before = model(tokens).logits
        >>> register_experts()
        >>> model.set_experts_implementation("epigrad")
        >>> torch.allclose(model(tokens).logits, before, atol=1e-5)
        True
    """
    try:
        from transformers.integrations import moe

        _register(moe)
    except (ImportError, AttributeError) as error:
        raise errors.UnsupportedError(
            f"register_experts: transformers: got {_version()}, want 5.0 or newer, which has experts implementations"
        ) from error


def _register(moe: Any) -> None:
    functions = moe.ALL_EXPERTS_FUNCTIONS
    if functions.get(NAME, None) is not forward:
        functions.register(NAME, forward)


def _at_import() -> None:
    moe = sys.modules[_ROOM]
    if hasattr(moe, "ALL_EXPERTS_FUNCTIONS"):
        _register(moe)


class _Registration:
    """A configuration has the implementation's name alone. A process that unpickles this object
    with a module of experts registers what the name means."""

    def __reduce__(self) -> Any:
        return _registration, ()


def _registration() -> _Registration:
    register_experts()
    return _REGISTERED


_REGISTERED = _Registration()


def _version() -> str:
    found = getattr(sys.modules.get("transformers"), "__version__", None)
    return f"version {found}" if found else "none installed"


def forward(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The output of a module of experts; the signature is transformers'."""
    if not is_compiling():
        self.__dict__.setdefault(_REGISTRATION, _REGISTERED)
    group = None
    if self.__dict__.get(SPREAD):  # by epigrad.parallel.ExpertParallel
        sharded: Any = getattr(self, up_name(self))
        group = sharded.device_mesh.get_group()
    return computed(self, hidden_states, top_k_index, top_k_weights, group)


def computed(
    module: nn.Module,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    group: Any = None,
    same_tokens: Any = None,
) -> Tensor:
    """The output of a module of experts, or where its experts are those of a process, of all that
    the group has. Processes of the mesh `same_tokens` have the same tokens."""
    reason = obstacle(module)
    if reason:
        raise _refused(module, reason)
    kind, gate = _kind(module)
    # Read once: a parametrization computes what it gives each time.
    weight_in, bias_in, weight_out, bias_out = _parameters(module)
    if weight_in.dtype not in DTYPES.values():
        raise _refused(module, f"a parameter is of {weight_in.dtype}")
    # Not flattened where it has two dimensions: FSDP2's hooks refuse some outputs that are views.
    input = hidden_states if hidden_states.dim() == 2 else hidden_states.flatten(0, -2)
    index = (top_k_index if top_k_index.dim() == 2 else top_k_index.flatten(0, -2)).to(torch.int64)
    scale = top_k_weights if top_k_weights.shape == index.shape else top_k_weights.reshape(index.shape)
    if not autocasts(input.device.type):
        # As transformers' own do where a norm before the experts gives float32.
        input = input.to(weight_in.dtype)
        if scale.dtype != torch.float32 or weight_in.dtype == torch.float64:
            scale = scale.to(weight_in.dtype)
    parameters = (weight_in, bias_in, weight_out, bias_out)
    given = module.__dict__.get(ADAPTERS, {})
    if group is not None:
        own = slice(group.rank() * len(weight_in), (group.rank() + 1) * len(weight_in))
        given = {name: _part(adapter, own, same_tokens) for name, adapter in given.items()}
    adapters = {"adapter_in": given.get(up_name(module)), "adapter_out": given.get("down_proj")}
    if getattr(module, "has_post_expert_norm", False):
        if group is not None:
            raise _refused(module, "it has a norm after each expert, which epigrad.parallel has not")
        out = _normed(module, input, index, scale, *parameters, kind, gate, **adapters)
    elif group is not None:
        from epigrad import parallel  # which imports torch.distributed.tensor

        out = parallel.experts(input, index, scale, *parameters, kind, gate=gate, group=group, **adapters)
    else:
        out = functional.experts(input, index, scale, *parameters, kind, gate=gate, **adapters)
    out = out.to(hidden_states.dtype)
    return out if hidden_states.dim() == 2 else out.view(hidden_states.shape)


def _refused(module: nn.Module, reason: str) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        f"experts: {type(module).__name__}: {reason}: use another implementation for it, as in "
        'model.set_experts_implementation("eager")'
    )


def told(module: nn.Module) -> str:
    """The functions that compute a module of experts, as text for a report."""
    kind, _ = _kind(module)
    layers = "grouped_linear" if getattr(module, "has_post_expert_norm", False) else "experts"
    return f"{layers} {kind}"


def obstacle(module: nn.Module) -> str:
    """The reason why epigrad cannot compute a module of experts; empty if it can."""
    for flag, default in _new_flags():
        if getattr(module, flag, default) != default:
            return f"{flag} is {getattr(module, flag)!r}, which epigrad does not know"
    if not getattr(module, "has_gate", True):
        return activation_obstacle(module, "act_fn", gated=False)
    form = None if "_apply_gate" in module.__dict__ else form_of(type(module))
    if form is None:
        return "its _apply_gate is none of those that epigrad recognises"
    if getattr(module, "is_concatenated", form.gate == "first") != (form.gate == "first"):
        return f"is_concatenated is {module.is_concatenated!r}, and its _apply_gate takes the other layout"
    if form.whole:
        layer = module._modules.get("act_fn")
        parts = () if layer is None else (layer, *layer._modules.values())
        if tuple([class_name(part) for part in parts]) not in form.whole:
            return f"act_fn is a {class_name(layer)}, which epigrad does not have"
        for part in parts:
            if part is not None and (reason := why_called(part)):
                return f"act_fn {reason}"
    return form.kind.obstacle(module)


def _kind(module: nn.Module) -> tuple[str | Gated | Activation, str]:
    """The kind and where its gates are; there is no obstacle."""
    kind: str | Gated | Activation | None
    if not getattr(module, "has_gate", True):
        kind, gate = activation_in(module, "act_fn"), "second"
    else:
        form = form_of(type(module))
        assert form is not None
        kind, gate = form.kind.of(module), form.gate
    assert kind is not None
    return kind, gate


@constant_to_dynamo
def _new_flags() -> tuple[tuple[str, Any], ...]:
    """The flags of this release that epigrad does not know, with their defaults."""
    if not _flags:
        decorator: Any = sys.modules[_ROOM].use_experts_implementation
        parameters = inspect.signature(decorator).parameters.values()
        _flags.append(
            tuple(
                (parameter.name, parameter.default)
                for parameter in parameters
                if parameter.name not in _FLAGS | {"experts_class", "experts_interface"}
            )
        )
    return _flags[0]


_flags: list[tuple[tuple[str, Any], ...]] = []


def up_name(module: nn.Module) -> str:
    """The parameter of the first products."""
    return "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj"


def _parameters(module: Any) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """The parameters as `epigrad.experts` takes them, in their own memory."""
    up = up_name(module)

    def own(name: str, transposed: bool = False) -> Any:
        parameter = getattr(module, name)
        if module.__dict__.get(SPREAD):
            from epigrad.parallel.styles import local  # which imports torch.distributed.tensor

            return local(parameter, transposed)
        return parameter.transpose(1, 2) if transposed else parameter

    weight_in, weight_out = own(up, module.is_transposed), own("down_proj", module.is_transposed)
    if not module.has_bias:
        return weight_in, None, weight_out, None
    return weight_in, own(f"{up}_bias"), weight_out, own("down_proj_bias")


def _part(adapter: LowRank, own: slice, same_tokens: Any) -> LowRank:
    """The adapter of a process's experts, of that of all, which every process has.

    A process's gradient has numbers for its own experts, and zeros for others: it is a part of the
    whole, as that of any parameter of which a process sees its own tokens alone. Processes that
    have the same tokens get the sum.
    """

    def part(tensor: Tensor) -> Tensor:
        if same_tokens is not None:
            from torch.distributed.tensor import DTensor, Partial, Replicate

            whole = DTensor.from_local(tensor, same_tokens, [Replicate()], run_check=False)
            tensor = whole.to_local(grad_placements=[Partial()])
        return tensor[own]

    return LowRank(part(adapter.a), part(adapter.b), adapter.scale)


def _normed(
    module: Any,
    input: Tensor,
    index: Tensor,
    scale: Tensor,
    weight_in: Tensor,
    bias_in: Tensor | None,
    weight_out: Tensor,
    bias_out: Tensor | None,
    kind: Any,
    gate: str,
    adapter_in: LowRank | None,
    adapter_out: LowRank | None,
) -> Tensor:
    """Experts with a norm of the model's after each: the products apart, and the rest in PyTorch.

    A slot that selects no expert is sorted after all groups. No product reads it, and it adds 0.
    """
    count = weight_in.shape[0]
    expert = torch.where((index < 0) | (index >= count), count, index).flatten()
    expert, order = expert.sort(stable=True)
    offsets = torch.searchsorted(expert, torch.arange(count, device=expert.device), right=True)
    nothing = (expert == count).unsqueeze(-1)
    rows = input[order // index.shape[1]]
    if module.has_gate:
        hidden = functional.grouped_linear(rows, weight_in, bias_in, offsets=offsets, adapter=adapter_in)
        hidden = functional.gated_activation(hidden, kind, gate=gate)
    else:
        hidden = functional.grouped_linear(rows, weight_in, bias_in, kind, offsets=offsets, adapter=adapter_in)
    out = functional.grouped_linear(hidden, weight_out, bias_out, offsets=offsets, adapter=adapter_out)
    # Ones for empty slots, since the norm of zeros may be NaN.
    out = module.post_expert_norm(out.masked_fill(nothing, 1))
    out = (out * scale.flatten()[order].unsqueeze(-1)).masked_fill(nothing, 0)
    summed: Tensor = out[order.argsort()].unflatten(0, index.shape).sum(1)
    return summed


# --- `patch` of experts ---------------------------------------------------------------------------


def switch(model: nn.Module) -> tuple[dict[str, str], dict[str, str]]:
    """Set the experts of a model to epigrad: what computes them now, and why others were left, by
    the names of the modules.

    All experts with one configuration are switched, or none of them.
    """
    found = dict(_experts(model))
    left = {name: f"{type(module).__name__}: {reason}" for name, module in found.items() if (reason := _held(module))}
    configurations = {id(found[name].config): name for name in reversed(left)}
    patched: dict[str, str] = {}
    for name, module in found.items():
        if name in left:
            continue
        config: Any = module.config
        if id(config) in configurations:
            other = configurations[id(config)]
            left[name] = f"{type(module).__name__}: its configuration is that of {other} too, which is left alone"
            continue
        if not patched:
            register_experts()
        patched[name] = f"{type(module).__name__} by {told(module)}"
        if config._experts_implementation != NAME:
            module.__dict__[_BEFORE] = config._experts_implementation
    for name in patched:
        module, config = found[name], found[name].config
        config._experts_implementation_internal = NAME
        module.__dict__[_REGISTRATION] = _REGISTERED
        models = [each for each in model.modules() if hasattr(each, "set_experts_implementation")]
        if not any(getattr(each, "config", None) is config for each in models):
            patched[name] += ", as are now all experts with its configuration"
    for name, module in model.named_modules():
        if name not in found and _LIKE_EXPERTS.search(type(module).__name__) and not _is_ours(module):
            left[name] = f"{type(module).__name__}: a class that takes no experts implementation"
    return patched, left


def restore(model: nn.Module) -> tuple[str, ...]:
    """Give experts that `switch` has set back what they had: the names of these modules."""
    names = []
    for name, module in model.named_modules():
        if _BEFORE in module.__dict__:
            before = module.__dict__.pop(_BEFORE)
            config: Any = module.config
            if config._experts_implementation == NAME:
                config._experts_implementation_internal = before
            module.__dict__.pop(_REGISTRATION, None)
            names.append(name)
    return tuple(names)


_LIKE_EXPERTS = re.compile(r"Experts$")


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("epigrad.")


def _experts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if takes_implementation(type(module)):
            yield name, module


@constant_to_dynamo  # which fails at a cell that it has read as a closure's variable
def takes_implementation(cls: type[Any]) -> bool:
    """Whether a class of experts takes an implementation of transformers."""
    moe = sys.modules.get(_ROOM)
    return moe is not None and _dispatches(getattr(cls, "forward", None), moe)


def _dispatches(method: Any, moe: Any) -> bool:
    """Whether a method is what transformers' decorator gives a class of experts."""
    code = getattr(method, "__code__", None)
    if code is None or code.co_filename != moe.__file__ or not hasattr(method, "__wrapped__"):
        return False
    closure: Any = inspect.getclosurevars(method)
    interface = closure.nonlocals.get("experts_interface") or closure.globals.get("ALL_EXPERTS_FUNCTIONS")
    return interface is not None and interface is getattr(moe, "ALL_EXPERTS_FUNCTIONS", None)


def _held(module: Any) -> str:
    """Why `switch` leaves a module of experts alone; empty if it does not."""
    if not hasattr(module.config, "_experts_implementation_internal"):
        return f"its configuration is a {class_name(module.config)}"
    if module.config._experts_implementation == "deepgemm_megamoe":
        return "it has weights for deepgemm_megamoe alone"
    if reason := obstacle(module):
        return reason
    for parameter in _parameters(module):
        if parameter is not None and parameter.dtype not in DTYPES.values():
            return f"a parameter is of {parameter.dtype}"
    if module.config._experts_implementation == NAME:  # chosen by its name
        return ""
    weight = module.down_proj
    if weight.is_cuda and not is_half(weight.dtype):  # docs/gpu.md
        what = f"parameters of {weight.dtype} on a GPU, where epigrad is slow"
        return f'{what}: set_experts_implementation("{NAME}") takes it anyway'
    return ""


after_import(_ROOM, _at_import)
