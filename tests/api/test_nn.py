"""The modules: parameters, state dicts and initialisation of torch.nn.Linear, the blocks, copies,
dtype and device."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable

import epigrad
import pytest
import torch
from epigrad import errors
from torch import Tensor, nn

from tests.support.layouts import assert_same_bits

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
KINDS = ("glu", "reglu", "swiglu", "geglu", "geglu_tanh", "bilinear")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Routed(nn.Module):
    """Experts with a routing of their own, to be called as the other modules are."""

    def __init__(self, experts: epigrad.nn.Experts) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x: Tensor) -> Tensor:
        index = torch.tensor([[0, 2], [2, 1], [1, 0]], device=x.device)
        return self.experts(x, index, torch.full(index.shape, 0.5, dtype=x.dtype, device=x.device))


MODULES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "linear": (lambda **o: epigrad.nn.Linear(4, 5, activation="gelu", **o), (3, 4)),
    "activation": (lambda **o: epigrad.nn.Activation("leaky_relu", slope=0.2, **o), (3, 4)),
    "prelu": (lambda **o: epigrad.nn.PReLU(4, **o), (3, 4)),
    "xielu": (lambda **o: epigrad.nn.XIELU(0.3, **o), (3, 4)),
    "gated_activation": (lambda **o: epigrad.nn.GatedActivation("geglu", 1, "first", **o), (3, 4)),
    "mlp": (lambda **o: epigrad.nn.MLP(4, 6, **o), (3, 4)),
    "gated_mlp": (lambda **o: epigrad.nn.GatedMLP(4, 6, **o), (3, 4)),
    "experts": (lambda **o: Routed(epigrad.nn.Experts(4, 6, 3, bias=True, **o)), (3, 4)),
}
EACH = pytest.mark.parametrize("name", MODULES)


def make(name: str, **options: object) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    maker, shape = MODULES[name]
    return maker(**options), torch.randn(shape)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_starts_as_torchs_linear(bias: bool) -> None:
    torch.manual_seed(11)
    theirs = nn.Linear(7, 5, bias=bias)
    after_theirs = torch.rand(1)
    torch.manual_seed(11)
    ours = epigrad.nn.Linear(7, 5, bias, "gelu")
    assert torch.equal(torch.rand(1), after_theirs), "initialisation drew another number of random values"
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert_same_bits(ours.state_dict()[name], value, name)
    assert (ours.in_features, ours.out_features, ours.bias is not None) == (7, 5, bias)


def test_state_dicts_of_linear_are_interchangeable() -> None:
    theirs, ours = nn.Linear(7, 5), epigrad.nn.Linear(7, 5, activation="tanh")
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(3, 7)
    torch.testing.assert_close(ours(x), torch.tanh(theirs(x)))
    theirs.load_state_dict(epigrad.nn.Linear(7, 5).state_dict(), strict=True)


def test_reset_parameters_is_torchs() -> None:
    ours, theirs = epigrad.nn.Linear(7, 5), nn.Linear(7, 5)
    torch.manual_seed(5)
    ours.reset_parameters()
    torch.manual_seed(5)
    theirs.reset_parameters()
    assert_same_bits(ours.weight, theirs.weight)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, None])
def test_linear_is_the_function(activation: str | None) -> None:
    layer, x = epigrad.nn.Linear(4, 5, activation=activation), torch.randn(2, 3, 4)
    assert_same_bits(layer(x), epigrad.linear(x, layer.weight, layer.bias, activation))


def test_activation_is_the_function() -> None:
    module, x = epigrad.nn.Activation("leaky_relu", slope=0.2), torch.randn(3, 4)
    assert_same_bits(module(x), epigrad.activation(x, epigrad.Activation("leaky_relu", slope=0.2)))
    assert repr(module) == "Activation('leaky_relu(slope=0.2)')"
    assert repr(epigrad.nn.Activation(module.activation)) == repr(module) and epigrad.nn.Activation(None)(x) is not x
    with pytest.raises(epigrad.errors.InvalidProblemError, match="gelu has no parameter 'slope'"):
        epigrad.nn.Activation("gelu", slope=0.2)


@pytest.mark.parametrize("gate", ["first", "second"])
@pytest.mark.parametrize("kind", KINDS)
def test_gated_modules_are_the_functions(kind: str, gate: str) -> None:
    x = torch.randn(3, 8)
    assert_same_bits(epigrad.nn.GatedActivation(kind, 1, gate)(x), epigrad.gated_activation(x, kind, 1, gate=gate))
    block = epigrad.nn.GatedMLP(8, 6, kind, True, gate)
    want = epigrad.gated_mlp(x, block.up.weight, block.up.bias, block.down.weight, block.down.bias, kind, gate=gate)
    assert_same_bits(block(x), want)


def test_lerp_is_the_function() -> None:
    start, end, weight = torch.randn(3, 4), torch.randn(4), torch.rand(3, 1)
    module = epigrad.nn.Lerp()
    assert_same_bits(module(start, end, weight), epigrad.lerp(start, end, weight))
    assert_same_bits(module(start, end, 0.25), epigrad.lerp(start, end, 0.25))
    assert not list(module.parameters())


def test_prelu_is_torchs() -> None:
    for given in ((), (4,), (4, 0.5)):
        ours, theirs = epigrad.nn.PReLU(*given), nn.PReLU(*given)
        assert repr(ours) == repr(theirs)
        assert_same_bits(ours.weight, theirs.weight)
        nn.init.normal_(theirs.weight)
        ours.load_state_dict(theirs.state_dict())
        nn.PReLU(*given).load_state_dict(ours.state_dict())
        x = torch.randn(3, 4, 2)
        assert_same_bits(ours(x), epigrad.prelu(x, theirs.weight))
        torch.testing.assert_close(ours(x), theirs(x))
    for arguments, error in (
        ((1.5,), errors.DTypeError),
        ((-1,), errors.InvalidProblemError),
        ((1, "0.25"), errors.DTypeError),
        ((1, float("nan")), errors.InvalidProblemError),
    ):
        with pytest.raises(error, match="PReLU: "):
            epigrad.nn.PReLU(*arguments)


@pytest.mark.parametrize("beta", [0.5, 0.3, -2.0, 0.0])
def test_xielu_starts_as_transformers_and_loads_its_state(beta: float) -> None:
    activations = pytest.importorskip("transformers.activations")
    module = epigrad.nn.XIELU(beta, dtype=torch.float64)
    theirs = activations.XIELUActivation(beta=beta, dtype=torch.float64)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(getattr(module, name), parameter)
    slopes = nn.functional.softplus(module.alpha_p), beta + nn.functional.softplus(module.alpha_n)
    assert [slope.item() for slope in slopes] == pytest.approx([0.8, 0.8])
    loaded, x = epigrad.nn.XIELU(dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    nn.init.normal_(theirs.alpha_p)
    nn.Sequential(loaded).load_state_dict(nn.Sequential(theirs).state_dict())
    assert loaded.beta == beta and repr(loaded) == f"XIELU(beta={beta})"
    torch.testing.assert_close(loaded(x), theirs(x), rtol=0, atol=1e-5)
    assert_same_bits(loaded(x), epigrad.xielu(x, loaded.alpha_p, loaded.alpha_n, beta))
    assert set(theirs.load_state_dict(loaded.state_dict(), strict=False).missing_keys) == {"beta", "eps"}
    with pytest.raises(RuntimeError, match="gamma"):
        loaded.load_state_dict({**loaded.state_dict(), "gamma": torch.ones(1)})


def test_xielu_has_a_start_for_a_small_beta_only() -> None:
    with pytest.raises(errors.InvalidProblemError, match=r"XIELU: beta: got 0\.8, want less than 0\.8"):
        epigrad.nn.XIELU(0.8)
    module = epigrad.nn.XIELU(-1e9, device="meta")
    assert module.alpha_p.is_meta and module.alpha_p.shape == (1,)


def test_mlp_holds_up_and_down() -> None:
    block = epigrad.nn.MLP(4, 6)
    assert type(block.up) is nn.Linear and type(block.down) is nn.Linear
    assert {name: tuple(value.shape) for name, value in block.state_dict().items()} == {
        "up.weight": (6, 4),
        "up.bias": (6,),
        "down.weight": (4, 6),
        "down.bias": (4,),
    }
    x = torch.randn(3, 4)
    want = epigrad.mlp(x, block.up.weight, block.up.bias, block.down.weight, block.down.bias, "gelu_tanh")
    assert_same_bits(block(x), want)
    assert [name for name, _ in epigrad.nn.MLP(4, 6, "relu", bias=False).named_parameters()] == [
        "up.weight",
        "down.weight",
    ]


def test_gated_mlp_holds_up_and_down() -> None:
    block = epigrad.nn.GatedMLP(4, 6)
    assert type(block.up) is nn.Linear and type(block.down) is nn.Linear
    assert {name: tuple(value.shape) for name, value in block.state_dict().items()} == {
        "up.weight": (12, 4),
        "down.weight": (4, 6),
    }
    with_bias = epigrad.nn.GatedMLP(4, 6, bias=True)
    assert with_bias.up.bias.shape == (12,) and with_bias.down.bias.shape == (4,)


@pytest.mark.parametrize("kind", ["swiglu", "geglu", "gelu_tanh"])
def test_experts_are_the_function(kind: str) -> None:
    gated = kind != "gelu_tanh"
    layer = epigrad.nn.Experts(4, 6, 3, kind, True, "odd" if gated else "second")
    assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == {
        "weight_in": (3, 12 if gated else 6, 4),
        "bias_in": (3, 12 if gated else 6),
        "weight_out": (3, 4, 6),
        "bias_out": (3, 4),
    }
    assert list(layer.state_dict()) == ["weight_in", "bias_in", "weight_out", "bias_out"]
    assert [name for name, _ in layer.named_parameters()] == list(layer.state_dict())
    x, index, scale = torch.randn(5, 4), torch.randint(3, (5, 2)), torch.rand(5, 2)
    weights = (layer.weight_in, layer.bias_in, layer.weight_out, layer.bias_out)
    assert_same_bits(layer(x, index, scale), epigrad.experts(x, index, scale, *weights, kind, gate=layer.gate))
    assert list(epigrad.nn.Experts(4, 6, 3).state_dict()) == ["weight_in", "weight_out"]


def test_each_expert_starts_as_torchs_linears() -> None:
    layer = epigrad.nn.Experts(64, 32, 3, bias=True)
    for weight, bias, size in ((layer.weight_in, layer.bias_in, 64), (layer.weight_out, layer.bias_out, 32)):
        for value in (weight, bias):
            assert value.abs().max() <= size**-0.5 and value.std() > 0.4 * size**-0.5
            assert not torch.equal(value[0], value[1])


def test_blocks_start_as_torchs_linears() -> None:
    torch.manual_seed(2)
    block = epigrad.nn.MLP(4, 6)
    torch.manual_seed(2)
    up, down = nn.Linear(4, 6), nn.Linear(6, 4)
    for ours, theirs in ((block.up, up), (block.down, down)):
        assert_same_bits(ours.weight, theirs.weight)
        assert_same_bits(ours.bias, theirs.bias)


@EACH
def test_modules_train(name: str) -> None:
    module, x = make(name)
    x.requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape, parameter_name
    if list(module.parameters()):
        before = module(x).sum().item()
        torch.optim.SGD(module.parameters(), lr=1e-3).step()
        assert module(x).sum().item() < before


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "copy", "pickle"]
)
@EACH
def test_copies(name: str, duplicate: Callable[[nn.Module], nn.Module]) -> None:
    module, x = make(name)
    want = module(x)
    double = duplicate(module)
    assert type(double) is type(module) and repr(double) == repr(module)
    assert_same_bits(double(x), want)
    double(x.requires_grad_()).sum().backward()


@EACH
def test_saving_whole_and_as_state_dict(name: str) -> None:
    module, x = make(name)
    for what in (module, module.state_dict()):
        file = io.BytesIO()
        torch.save(what, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=isinstance(what, dict))
        if isinstance(what, dict):
            fresh, _ = make(name)
            fresh.load_state_dict(loaded, strict=True)
            loaded = fresh
        assert_same_bits(loaded(x), module(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@EACH
def test_dtype_and_device(name: str, dtype: torch.dtype) -> None:
    module, x = make(name, dtype=dtype, device="cpu")
    assert all(p.dtype == dtype and p.device.type == "cpu" for p in module.parameters())
    assert module(x.to(dtype)).dtype == dtype
    converted, _ = make(name)
    assert converted.to(dtype)(x.to(dtype)).dtype == dtype
    ghost, _ = make(name, dtype=dtype, device="meta")
    assert all(p.is_meta for p in ghost.parameters())
    out = ghost(x.to(dtype).to("meta"))
    assert out.is_meta and out.shape == module(x.to(dtype)).shape
    filled = ghost.to_empty(device="cpu")
    assert all(p.device.type == "cpu" for p in filled.parameters())


def test_default_dtype_and_device_context() -> None:
    with torch.device("meta"):
        assert epigrad.nn.MLP(4, 6).up.weight.is_meta
    torch.set_default_dtype(torch.float64)
    try:
        assert epigrad.nn.GatedMLP(4, 6).down.weight.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@EACH
def test_repr_says_what_was_chosen(name: str) -> None:
    text = repr(make(name)[0])
    words = {
        "linear": ("gelu",),
        "activation": ("leaky_relu(slope=0.2)",),
        "gated_activation": ("geglu", "first"),
        "mlp": ("gelu_tanh", "up", "down"),
        "prelu": ("num_parameters=4",),
        "xielu": ("beta=0.3",),
        "gated_mlp": ("swiglu", "second"),
        "experts": ("swiglu", "second", "num_experts=3"),
    }
    assert all(word in text for word in words[name])


@pytest.mark.parametrize(
    ("construct", "word"),
    [
        (lambda: epigrad.nn.Linear(4, 5, activation="swash"), "Linear: activation: .*gelu_tanh"),
        (lambda: epigrad.nn.Linear(4, 5, save="both"), "Linear: save: 'both'"),
        (lambda: epigrad.nn.MLP(4, 5, "swash"), "MLP: activation: .*gelu_tanh"),
        (lambda: epigrad.nn.MLP(4, 5, save="both"), "MLP: save: 'both'"),
        (lambda: epigrad.nn.GatedActivation(gate="third"), "GatedActivation: gate: 'third'"),
        (lambda: epigrad.nn.GatedMLP(4, 5, gate="third"), "GatedMLP: gate: 'third'"),
        (lambda: epigrad.nn.GatedMLP(4, 5, save="both"), "GatedMLP: save: 'both'"),
        (lambda: epigrad.nn.Experts(4, 5, 2, gate="third"), "Experts: gate: 'third'"),
        (
            lambda: epigrad.nn.Experts(4, 5, 2, "relu", gate="odd"),
            "Experts: gate: 'odd', want the default: 'relu' has no gate",
        ),
        (lambda: epigrad.nn.Experts(4, 5, 2, "x"), "Experts: kind: 'x', want one of"),
        (lambda: epigrad.nn.Experts(4, 5, -2), "Experts: num_experts: got -2"),
        (lambda: epigrad.nn.Experts(4, 5, 2, save="both"), "Experts: save: 'both'"),
        (lambda: epigrad.nn.GatedActivation("relu"), "GatedActivation: kind: 'relu', want one of .*geglu_tanh"),
        (lambda: epigrad.nn.GatedMLP(4, 5, "x"), "GatedMLP: kind: 'x', want one of .*geglu_tanh"),
        (lambda: epigrad.nn.GatedMLP(4, 5, None), "GatedMLP: kind: None, want one of"),
        (lambda: epigrad.nn.GatedActivation("glu", 1.5), "GatedActivation: dim: float, want an int"),
        (lambda: epigrad.nn.GatedMLP(4, 5, "swiglu_iao"), "want one of .*did you mean 'swiglu_oai'"),
        (lambda: epigrad.nn.Activation("softcap", cap=0), "Activation: cap: got 0.0, want a finite number > 0"),
        (
            lambda: epigrad.nn.Activation(epigrad.Activation("softcap"), cap=3),
            "parameters: got cap beside .*, want them inside of",
        ),
        (lambda: epigrad.nn.Activation("silu", beta=2), "silu has no parameter 'beta', it takes no parameters"),
        (lambda: epigrad.nn.Linear(4, -5), "Linear: out_features: got -5"),
    ],
)
def test_unknown_names_are_refused_by_the_constructor(construct: Callable[[], nn.Module], word: str) -> None:
    with pytest.raises(errors.InvalidProblemError, match=word):
        construct()


@pytest.mark.parametrize(
    ("construct", "text"),
    [
        (lambda: epigrad.nn.Linear(8, 3, "gelu"), 'Linear: bias: got "gelu", want a bool; give activation="gelu"'),
        (lambda: epigrad.nn.Linear(8, 3, "yes"), 'Linear: bias: got "yes", want a bool'),
        (lambda: epigrad.nn.Linear(8, 3, "swish"), 'Linear: bias: got "swish", want a bool; give activation="swish"'),
        (lambda: epigrad.nn.Linear(8, 3, 1), "Linear: bias: got 1, want a bool"),
        (lambda: epigrad.nn.MLP(8, 3, "relu", "gelu"), 'MLP: bias: got "gelu", want a bool'),
        (
            lambda: epigrad.nn.Linear(8, 3, torch.nn.GELU()),
            "Linear: bias: got a module torch.nn.modules.activation.GELU, want a bool; give it as activation",
        ),
        (
            lambda: epigrad.nn.GatedMLP(8, 3, "glu", "geglu"),
            'GatedMLP: bias: got "geglu", want a bool; give kind="geglu"',
        ),
        (
            lambda: epigrad.nn.Experts(8, 3, 2, "glu", "relu"),
            'Experts: bias: got "relu", want a bool; give kind="relu"',
        ),
        (lambda: epigrad.nn.GatedMLP(8, 3, "glu", None), "GatedMLP: bias: got None, want a bool"),
        (lambda: epigrad.nn.GatedMLP(8, 16.5), "GatedMLP: hidden_features: got 16.5, want an int"),
        (lambda: epigrad.nn.MLP("8", 16), "MLP: features: got '8', want an int"),
        (lambda: epigrad.nn.Linear(8.0, 3), "Linear: in_features: got 8.0, want an int"),
        (lambda: epigrad.nn.Experts(8, 3, 2.0), "Experts: num_experts: got 2.0, want an int"),
        (lambda: epigrad.nn.Experts(8, 3, 2, "swiglu", 1), "Experts: bias: got 1, want a bool"),
    ],
)
def test_arguments_of_wrong_types_are_refused_by_the_constructor(construct: Callable[[], nn.Module], text: str) -> None:
    with pytest.raises(errors.DTypeError) as caught:
        construct()
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("swosh", "swish"), ("GELU", "gelu"), ("gelu-new", "gelu_new"), ("sigmiod", "sigmoid"), ("Identity", "identity")],
)
def test_an_unknown_activation_gets_a_suggestion(name: str, nearest: str) -> None:
    for call in (
        lambda: epigrad.nn.Linear(4, 5, activation=name),
        lambda: epigrad.linear(torch.ones(1, 4), torch.ones(5, 4), None, name),
    ):
        with pytest.raises(errors.InvalidProblemError, match=rf"{name!r}, want one of .*did you mean '{nearest}'"):
            call()
    with pytest.raises(errors.InvalidProblemError) as caught:
        epigrad.nn.Linear(4, 5, activation="q" * 2000)
    assert (
        len(str(caught.value)) < 500 and "want one of" in str(caught.value) and "did you mean" not in str(caught.value)
    )


def test_making_modules_does_not_load_the_core() -> None:
    code = (
        "import epigrad; from epigrad._core import loader\n"
        "epigrad.nn.Linear(4, 5, activation='gelu'); epigrad.nn.MLP(4, 5); epigrad.nn.GatedMLP(4, 5, 'reglu')\n"
        "epigrad.nn.GatedActivation('glu'); epigrad.nn.Lerp()\n"
        "epigrad.nn.PReLU(); epigrad.nn.XIELU()\n"
        "try: epigrad.nn.GatedMLP(4, 5, 'relu')\n"
        "except ValueError: pass\n"
        "assert not loader.is_loaded()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_wrong_input_names_the_sizes() -> None:
    with pytest.raises(errors.InvalidProblemError, match=r"(?s)5.*4|4.*5"):
        epigrad.nn.Linear(4, 6)(torch.ones(2, 5))


def test_sequential_and_functional_call() -> None:
    model = nn.Sequential(epigrad.nn.Linear(4, 6, activation="relu"), epigrad.nn.MLP(6, 8), epigrad.nn.GatedMLP(6, 5))
    x = torch.randn(3, 4)
    state = {name: value.detach() * 2 for name, value in model.state_dict().items()}
    called = torch.func.functional_call(model, state, (x,))
    model.load_state_dict(state)
    assert_same_bits(called.detach(), model(x).detach())
