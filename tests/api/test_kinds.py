"""`epigrad.Activation` and `epigrad.Gated` as values: names, parameters, equality and errors.

To the kernels a parameter is data.
"""

from __future__ import annotations

import copy
import fractions
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import epigrad
import numpy as np
import pytest
import torch
from epigrad import Activation, Gated, backward, errors, forward, nn, plan
from epigrad._core import callables, loader
from torch.nn import functional

from tests.support.cases import ACTIVATIONS, GATED_KINDS, GATES, OTHERS
from tests.support.compositions import halves
from tests.support.devices import on_devices
from tests.support.layouts import assert_same_bits

ALIASES = {
    "identity": "none",
    "linear": "none",
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "relu_squared": "relu2",
    "sqrelu": "relu2",
    "hard_swish": "hardswish",
    "hard_sigmoid": "hardsigmoid",
}
OWN_ACTIVATION = "https://epigrad.github.io/epigrad/howto/own-activation.html"
OAI = Gated("swiglu", alpha=1.702, limit=7, offset=1)
KINDS = [Activation(kind) if isinstance(kind, str) else kind for kind in ACTIVATIONS]
KINDS_AND_GATED = [*KINDS, *(Gated(kind) if isinstance(kind, str) else kind for kind in GATED_KINDS)]


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases_are_reported_under_the_tables_name(alias: str, name: str) -> None:
    assert Activation(alias) == Activation(name) and Activation(alias).name == name
    assert hash(Activation(alias)) == hash(Activation(name)) and str(Activation(alias)) == name
    x = torch.randn(5)
    assert_same_bits(epigrad.activation(x, alias), epigrad.activation(x, name))
    assert_same_bits(torch.ops.epigrad.activation(x, alias), epigrad.activation(x, name))
    assert nn.Linear(2, 3, activation=alias).activation == Activation(name)
    selected = plan.GemmEpilogue.select(m=1, n=1, k=1, activation=alias, dtype=torch.float32)
    assert selected.sku.kind == name


def test_swish_with_beta_one_is_silu() -> None:
    silu = Activation("silu")
    assert Activation("swish") == Activation("swish", beta=1) == Activation("swish", beta=1.0) == silu
    assert Activation("swish", beta=1).name == "silu" and Activation("swish", beta=1).parameters == {}
    assert Activation("swish", beta=2).parameters == {"beta": 2.0} and Activation("swish", beta=2).name == "swish"
    assert Activation("quick_gelu") != Activation("swish", beta=1.702)


def test_the_name_may_be_given_by_keyword() -> None:
    assert Activation(name="gelu") == Activation("gelu")
    assert Gated(limit=7, name="swiglu") == Gated("swiglu", limit=7)


def test_presets_are_kinds_with_parameters() -> None:
    assert (
        Gated("swiglu_oai") == OAI and hash(Gated("swiglu_oai")) == hash(OAI) and Gated("swiglu_oai").name == "swiglu"
    )
    assert Gated("swiglu_oai").parameters == {"limit": 7.0, "limit_after": None, "offset": 1.0, "alpha": 1.702}
    assert Gated("swiglu_oai", limit=None, offset=0) == Gated("swiglu", alpha=1.702)
    assert Gated("swiglu_oai", limit=5) == Gated("swiglu", alpha=1.702, limit=5, offset=1)
    x = torch.randn(3, 8) * 5
    for made in (epigrad.gated_activation(x, "swiglu_oai"), torch.ops.epigrad.gated_activation(x, "swiglu_oai")):
        assert_same_bits(made, epigrad.gated_activation(x, OAI))
    selected = plan.GatedActivation.select(input_shape=(8,), kind="swiglu_oai", dtype=torch.float32)
    assert selected.sku.kind == str(OAI) == "swiglu(limit=7, offset=1, alpha=1.702)"


@pytest.mark.parametrize("none", [None, math.inf, np.float32("inf")], ids=repr)
def test_no_limit_is_none(none: float | None) -> None:
    assert Gated("geglu", limit=none, limit_after=none) == Gated("geglu")
    assert Gated("geglu", limit=none).parameters == {"limit": None, "limit_after": None, "offset": 0.0}
    assert str(Gated("geglu", limit=none)) == "geglu" and repr(Gated("geglu", limit=none)) == "Gated('geglu')"


@pytest.mark.parametrize("kind", KINDS_AND_GATED, ids=str)
def test_kinds_are_values(kind: Activation | Gated) -> None:
    for double in (copy.deepcopy(kind), pickle.loads(pickle.dumps(kind)), eval(repr(kind))):
        assert double == kind and hash(double) == hash(kind) and type(double) is type(kind)
    assert type(kind)(kind.name, **kind.parameters) == kind
    assert all(value is None or type(value) is float for value in kind.parameters.values())
    with pytest.raises(AttributeError):
        kind.name = "relu"  # type: ignore[misc]
    assert kind != kind.name and kind not in (None, 1)
    assert isinstance(str(kind), str) and {kind: 1}[kind] == 1


def test_numbers_of_all_kinds_are_kept_as_floats() -> None:
    wanted = Activation("leaky_relu", slope=0.5)
    for given in (0.5, np.float64(0.5), np.float32(0.5), fractions.Fraction(1, 2)):
        assert Activation("leaky_relu", slope=given) == wanted
    assert Activation("softplus", beta=2).parameters == {"beta": 2.0, "threshold": 20.0}
    assert Activation("leaky_relu", slope=-0.0) == Activation("leaky_relu", slope=0)
    assert Activation("hardtanh", low=1, high=1).parameters == {"low": 1.0, "high": 1.0}


ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Activation("softcap", cap=0), errors.InvalidProblemError, "cap: got 0.0, want a finite number > 0"),
    (lambda: Activation("softcap", cap=math.inf), errors.InvalidProblemError, "cap: got inf"),
    (lambda: Activation("softplus", beta=-1), errors.InvalidProblemError, "beta: got -1.0"),
    (lambda: Activation("softplus", threshold=math.nan), errors.InvalidProblemError, "threshold: got nan"),
    (
        lambda: Activation("celu", alpha=0),
        errors.InvalidProblemError,
        "alpha: got 0.0, want a finite number that is not 0",
    ),
    (lambda: Activation("hardtanh", low=2), errors.InvalidProblemError, "high: got 1.0, want a finite number >= low"),
    (lambda: Activation("hardtanh", low=0, high=-1), errors.InvalidProblemError, "high: got -1.0"),
    (lambda: Activation("swish", beta=10**400), errors.InvalidProblemError, "beta: got inf, want a finite number"),
    (lambda: Gated("glu", limit=0), errors.InvalidProblemError, "limit: got 0.0, want a number > 0, or none"),
    (lambda: Gated("glu", limit_after=-math.inf), errors.InvalidProblemError, "limit_after: got -inf"),
    (lambda: Gated("glu", limit=math.nan), errors.InvalidProblemError, "limit: got nan"),
    (lambda: Gated("glu", offset=math.inf), errors.InvalidProblemError, "offset: got inf, want a finite number"),
    (lambda: Gated("situ_glu", value_cap=-1), errors.InvalidProblemError, "value_cap: got -1.0"),
    (lambda: Gated("situ_glu", limit=1), errors.InvalidProblemError, "no parameter 'limit', want gate_cap, value_cap"),
    (lambda: Gated("geglu", alpha=1), errors.InvalidProblemError, "'alpha', want limit, limit_after, offset"),
    (lambda: Activation("swish", alpha=1), errors.InvalidProblemError, "'alpha', want beta"),
    (lambda: Activation("relu", slope=1), errors.InvalidProblemError, "'slope', it takes no parameters"),
    (lambda: Activation("swash"), errors.InvalidProblemError, "want one of 'none', 'relu', .*mean 'swish'"),
    (lambda: Gated("swish"), errors.InvalidProblemError, "want one of 'glu', .*'swiglu_oai'"),
    (lambda: Activation("prelu"), errors.InvalidProblemError, r"\('prelu' has weights: .*epigrad\.nn\.PReLU\)"),
    (
        lambda: nn.Linear(2, 3, activation="xielu"),
        errors.InvalidProblemError,
        r"'xielu' has weights: epigrad\.xielu or epigrad\.nn\.XIELU\)",
    ),
    (lambda: epigrad.gated_product(*torch.ones(2, 3), kind="prelu"), errors.InvalidProblemError, "epigrad.prelu"),
    (lambda: epigrad.activation(torch.ones(2), "swiglu"), errors.InvalidProblemError, r"\('swiglu' is a gated kind\)"),
    (lambda: Activation("swiglu_oai"), errors.InvalidProblemError, r"\('swiglu_oai' is a gated kind\)"),
    (
        lambda: epigrad.gated_activation(torch.ones(2), "silu"),
        errors.InvalidProblemError,
        r"\('silu' is an activation\)",
    ),
    (lambda: Gated("gelu_new"), errors.InvalidProblemError, r"\('gelu_new' is an activation\)"),
    (lambda: Activation("gelo"), errors.InvalidProblemError, r"\(did you mean 'gelu'\?\)"),
    (lambda: Activation("gelu_quick"), errors.InvalidProblemError, r"\(did you mean 'quick_gelu'\?\)"),
    (lambda: Activation("PReLU"), errors.InvalidProblemError, r"\('prelu' has weights"),
    (lambda: Activation("SwiGLU"), errors.InvalidProblemError, r"\('swiglu' is a gated kind\)"),
    (lambda: Gated("Quick-GELU"), errors.InvalidProblemError, r"\('quick_gelu' is an activation\)"),
    (lambda: Gated(None), errors.InvalidProblemError, "kind: None, want one of"),  # type: ignore[arg-type]
    (lambda: Activation(3), errors.InvalidProblemError, "activation: 3, want one of"),  # type: ignore[arg-type]
    (lambda: Activation("softcap", cap=True), errors.DTypeError, "cap: got True, want a number"),
    (lambda: Activation("softcap", cap="30"), errors.DTypeError, "cap: got '30', want a number"),
    (lambda: Activation("softcap", cap=None), errors.DTypeError, "cap: got None, want a number"),
    (
        lambda: Activation("swish", beta=torch.ones(())),  # type: ignore[arg-type]
        errors.DTypeError,
        r"beta: got a Tensor of shape \[\], want a number",
    ),
    (lambda: Gated("glu", limit=False), errors.DTypeError, "limit: got False, want a number or None"),
    (lambda: Gated("glu", offset=None), errors.DTypeError, "offset: got None, want a number"),
]
# texts with parameters
ERRORS += [
    (lambda text=text, kind=kind: kind(text), errors.InvalidProblemError, f"{re.escape(repr(text))}, want {want}")
    for kind, text, want in (
        (Activation, "leaky_relu(slope)", r"a name, or one with numbers, as in 'leaky_relu\(slope=0\.2\)'"),
        (Activation, "leaky_relu(slope=x)", "a name, or one with numbers"),
        (Activation, "leaky_relu(slope=nan)", "a name, or one with numbers"),
        (Activation, "leaky_relu(slope=1_0)", "a name, or one with numbers"),
        (Activation, "leaky_relu(slope=0.2", "a name, or one with numbers"),
        (Activation, "leaky_relu(slope=0.2) ", "a name, or one with numbers"),
        (Activation, "softplus(beta=2,threshold=3)", "a name, or one with numbers"),
        (Activation, "gelu()", "a name, or one with numbers"),
        (Activation, "softplus(beta=2, beta=3)", "each parameter once"),
        (Activation, "leaky(slope=0.2)", "one of 'none'"),
        (Gated, "swiglu(7)", r"a name, or one with numbers, as in 'swiglu\(limit=7, offset=1\)'"),
        (Gated, "leaky_relu(slope=0.2)", "one of 'glu'"),
    )
]
ERRORS += [
    (
        lambda: Activation("leaky_relu(alpha=2)"),
        errors.InvalidProblemError,
        "leaky_relu has no parameter 'alpha', want",
    ),
    (lambda: nn.MLP(2, 2, "relu(slope=1)"), errors.InvalidProblemError, "MLP: relu has no parameter 'slope'"),
    (lambda: Activation("softcap(cap=0)"), errors.InvalidProblemError, "cap: got 0.0, want a finite number > 0"),
    (
        lambda: Activation("leaky_relu(slope=0.2)", slope=0.2),
        errors.InvalidProblemError,
        r"parameters: got slope beside 'leaky_relu\(slope=0\.2\)', want them inside of it",
    ),
    (lambda: Gated("swiglu(limit=7)", offset=1), errors.InvalidProblemError, "parameters: got offset beside"),
]


@pytest.mark.parametrize(("make", "error", "text"), ERRORS, ids=[text for _, _, text in ERRORS])
def test_errors(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        make()
    assert isinstance(caught.value, TypeError if error is errors.DTypeError else ValueError)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Activation, name) for name in ("logsigmoid", "rrelu", "crelu", "lrelu", "softmax", "hardshrink", "tan", "relu5")]
    + [(Gated, name) for name in ("silu_glu", "sigmoid_glu", "relux")],
)
def test_the_name_of_another_function_gets_no_proposal(kind: type[Activation | Gated], name: str) -> None:
    with pytest.raises(errors.InvalidProblemError, match=f"'{name}', want one of") as caught:
        kind(name)
    assert "did you mean" not in str(caught.value)


def test_a_learned_parameter_is_refused_in_one_line_with_a_way_out() -> None:
    with pytest.raises(errors.DTypeError) as caught:
        Activation("swish", beta=torch.nn.Parameter(torch.full((30, 30), 1.5)))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "Activation: beta: got a Parameter of shape [30, 30], want a number; parameters of kinds have no gradient, "
        f"for one of your own see {OWN_ACTIVATION}"
    )


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS_AND_GATED, ids=str)
def test_the_text_of_a_kind_means_it(kind: Activation | Gated) -> None:
    assert type(kind)(str(kind)) == kind
    assert nn.Experts(2, 2, 1, str(kind)).kind == kind
    x = torch.linspace(-9, 9, 8)
    if isinstance(kind, Gated):
        assert nn.GatedActivation(str(kind)).kind == nn.GatedMLP(2, 2, str(kind)).kind == kind
        assert_same_bits(forward.gated_activation(x, str(kind)), forward.gated_activation(x, kind))
        selected = plan.GatedActivation.select(input_shape=(8,), kind=str(kind), dtype=torch.float32)
    else:
        assert nn.Linear(2, 2, activation=str(kind)).activation == nn.Activation(str(kind)).activation == kind
        assert_same_bits(epigrad.activation(x, str(kind)), epigrad.activation(x, kind))
        selected = plan.GemmEpilogue.select(m=1, n=1, k=1, activation=str(kind), dtype=torch.float32)
    assert selected.sku.kind == str(kind)


@pytest.mark.parametrize("value", [0.1, 1e-300, -1.5e300, 5e-324, 123456789.0, -2])
def test_all_digits_of_a_parameter_survive_its_text(value: float) -> None:
    kind = Activation("leaky_relu", slope=value)
    assert Activation(str(kind)) == kind and Activation(str(kind)).parameters == {"slope": value}


def test_a_checkpoint_with_kinds_loads_by_default(tmp_path: Path) -> None:
    """As Lightning's, whose hyperparameters hold what a module was made with."""
    torch.save({"hyper_parameters": KINDS_AND_GATED}, tmp_path / "checkpoint.pt")
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True) == {"hyper_parameters": KINDS_AND_GATED}


# --- modules and functions ------------------------------------------------------------------------

CALLABLES: list[tuple[Any, Activation]] = [
    (torch.nn.GELU(), Activation("gelu")),
    (torch.nn.GELU(approximate="tanh"), Activation("gelu_tanh")),
    (torch.nn.SiLU(), Activation("silu")),
    (torch.nn.LeakyReLU(0.2), Activation("leaky_relu", slope=0.2)),
    (torch.nn.Softplus(2, 15), Activation("softplus", beta=2, threshold=15)),
    (torch.nn.Hardtanh(-2, 3), Activation("hardtanh", low=-2, high=3)),
    (functional.gelu, Activation("gelu")),
    (functional.silu, Activation("silu")),
    (functional.leaky_relu, Activation("leaky_relu")),
    (torch.tanh, Activation("tanh")),
    (torch.sigmoid, Activation("sigmoid")),
]


@pytest.mark.parametrize(("given", "kind"), CALLABLES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_known_module_or_function_is_an_activation(given: Any, kind: Activation) -> None:
    x, weight = torch.linspace(-4, 4, 15).reshape(5, 3), torch.eye(3)
    assert Activation(given) == nn.Activation(given).activation == nn.Experts(2, 2, 1, given).kind == kind
    for run in (epigrad.linear, forward.linear):
        assert_same_bits(run(x, weight, None, given), run(x, weight, None, kind))
    torch.testing.assert_close(epigrad.activation(x, given), given(x))
    assert_same_bits(backward.activation_backward(x, x, given), backward.activation_backward(x, x, kind))
    assert plan.GemmEpilogue.select(m=1, n=1, k=1, activation=given, dtype=torch.float32).sku.kind == str(kind)
    layer = nn.Linear(2, 3, activation=given)
    assert f"activation={str(kind)!r}" in repr(layer)
    assert pickle.loads(pickle.dumps(layer)).activation == layer.activation == kind


def test_every_default_of_a_known_function_is_that_of_epigrad() -> None:
    x = torch.linspace(-30, 30, 601, dtype=torch.float64)
    for function in callables.FUNCTIONS:
        torch.testing.assert_close(epigrad.activation(x, function), function(x), rtol=1e-12, atol=1e-14)


def test_activations_of_transformers_are_known() -> None:
    from transformers.activations import ACT2FN

    for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu2", "silu", "mish", "linear", "relu6"):
        assert Activation(ACT2FN[name]) == Activation(name), name


def test_a_module_is_looked_at_again_at_each_call() -> None:
    """A call is kept by its kind, and a module may change."""
    module, x = torch.nn.LeakyReLU(0.2), torch.linspace(-4, 4, 15)
    assert_same_bits(epigrad.activation(x, module), functional.leaky_relu(x, 0.2))
    module.negative_slope = 0.5
    assert_same_bits(epigrad.activation(x, module), functional.leaky_relu(x, 0.5))
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(errors.InvalidProblemError, match="activation: activation: the LeakyReLU has hooks"):
        epigrad.activation(x, module)


class OtherGELU(torch.nn.GELU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input


def with_forward(module: torch.nn.Module) -> torch.nn.Module:
    module.forward = lambda input: input  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (torch.sin, "the function sin, want one of"),
        (lambda x: x, "the function <lambda>, want one of"),
        (torch.nn.Tanhshrink(), "a module torch.nn.modules.activation.Tanhshrink, want one of"),
        (torch.nn.GELU, "the class .*GELU, want .*it is a class: give an instance, or 'gelu'"),
        (OtherGELU(), "a subclass of GELU may compute something else: if it does not, give 'gelu'"),
        (torch.nn.PReLU(), "'prelu' has weights: epigrad.prelu or epigrad.nn.PReLU"),
        (functional.prelu, "'prelu' has weights: epigrad.prelu or epigrad.nn.PReLU"),
        ("sin", "'sin', want one of"),
    ],
    ids=["sin", "lambda", "Tanhshrink", "class", "subclass", "PReLU", "prelu", "name"],
)
def test_an_unknown_activation_leads_to_the_page_on_own_ones(given: Any, text: str) -> None:
    x = torch.ones(2, 2)
    for run in (lambda: epigrad.linear(x, x, None, given), lambda: nn.Linear(2, 2, activation=given)):
        with pytest.raises(errors.InvalidProblemError, match=rf"[Ll]inear: activation: .*{text}") as caught:
            run()
        assert str(caught.value).endswith(f"see {OWN_ACTIVATION}")
    with pytest.raises(errors.InvalidProblemError, match=f"Experts: kind: .*{OWN_ACTIVATION}$"):
        nn.Experts(2, 2, 1, given)


def test_a_module_with_a_forward_of_its_own_is_refused() -> None:
    with pytest.raises(errors.InvalidProblemError, match="the SiLU has a forward on the instance"):
        Activation(with_forward(torch.nn.SiLU()))


def test_operators_refuse_values_that_make_no_sense() -> None:
    """They take the values of all parameters, in the table's order."""
    x = torch.randn(4)
    for run in (torch.ops.epigrad.activation, torch.ops.epigrad._activation):
        for kind, values in (("softcap", [-1.0]), ("hardtanh", [2.0, 1.0]), ("relu", [1.0]), ("softplus", [1.0])):
            with pytest.raises((errors.InvalidProblemError, RuntimeError), match="got"):
                run(x, kind, parameters=values)
    no_limit = [math.inf, math.inf, 0.0, 1.702]
    got = torch.ops.epigrad.gated_activation(x, "swiglu", parameters=no_limit)
    assert_same_bits(got, epigrad.gated_activation(x, Gated("swiglu", alpha=1.702)))
    got = torch.ops.epigrad.activation(x, "swish", parameters=[1.0])
    assert_same_bits(got, epigrad.activation(x, "silu"))


@on_devices
def test_a_kind_without_limits_keeps_the_bits_of_its_product(device: str) -> None:
    """Also the signs of zeros, which a sum with an offset of 0 would lose."""
    value = torch.tensor([-0.0, 0.0, -1.0, 2.0, math.inf], device=device)
    gate = torch.tensor([1.0, -1.0, -0.0, 0.5, 1.0], device=device)
    assert_same_bits(epigrad.gated_product(value, gate, "bilinear"), value * gate)


# --- parameters are data --------------------------------------------------------------------------


@pytest.mark.parametrize("activation", OTHERS, ids=str)
def test_other_parameters_run_the_same_kernel(activation: Activation) -> None:
    other = {name: value * 1.25 for name, value in activation.parameters.items() if value is not None}
    problem: dict[str, Any] = {"m": 4, "n": 8, "k": 4, "dtype": torch.float32}
    for cls in (plan.GemmEpilogue, plan.GemmEpilogueBackward):
        one, two = (
            cls.select(activation=kind, **problem) for kind in (activation, Activation(activation.name, **other))
        )
        assert one.sku.kernel == two.sku.kernel and one.sku.kind == str(activation) != two.sku.kind


@on_devices
def test_calls_that_differ_by_parameters_share_nothing(device: str) -> None:
    """What is kept of one call is not met by another: each gives what it gives alone."""
    x, grad = torch.linspace(-9, 9, 64, device=device), torch.linspace(-1, 1, 64, device=device)
    weight = torch.eye(64, device=device)
    calls: list[Callable[[Any], Any]] = [
        lambda kind: forward.activation(x, kind),
        lambda kind: backward.activation_backward(grad, x, kind),
        lambda kind: forward.linear(x, weight, None, kind),
        lambda kind: backward.linear_backward(grad, x, weight, None, kind)[0],
    ]
    gated: list[Callable[[Any], Any]] = [
        lambda kind: forward.gated_product(x, x, kind),
        lambda kind: backward.gated_product_backward(grad, x, x, kind)[1],
        lambda kind: forward.gated_linear(x, weight, weight, kind=kind),
    ]
    kinds = [Activation("swish", beta=beta) for beta in (1, 2, -0.5, 1.702)]
    kinds += [Activation("hardtanh", low=-2, high=high) for high in (-1, 0.5, 3)]
    kinds += [Activation("softplus", beta=beta, threshold=3) for beta in (1, 0.5)]
    gated_kinds = ["swiglu", "swiglu_oai", *(Gated("swiglu", limit=limit) for limit in (1, 2.5, None))]
    gated_kinds += [Gated("swiglu", limit_after=2), Gated("swiglu", offset=1), Gated("swiglu", alpha=2)]
    for chosen, functions in ((kinds, calls), (gated_kinds, gated)):
        for call in functions:
            alone = []
            for kind in chosen:
                loader.core().control.ClearPlanCache()
                alone.append(call(kind))
            for _ in range(4):
                for kind, want in zip(chosen, alone, strict=True):
                    assert_same_bits(call(kind), want, str(kind))
            for i, one in enumerate(alone):
                for j, two in enumerate(alone[:i]):
                    same = str(epigrad_kind(chosen[i])) == str(epigrad_kind(chosen[j]))
                    assert torch.equal(one, two) == same, f"{chosen[i]} and {chosen[j]}"


def epigrad_kind(kind: str | Activation | Gated) -> Activation | Gated:
    return Gated(kind) if isinstance(kind, str) else kind


# --- where the gates are --------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("gate", GATES)
def test_places_of_the_gate(gate: str, device: str) -> None:
    """Functions, modules and plans take the same names for them."""
    x = torch.randn(3, 8, device=device)
    value, gates = (half.contiguous() for half in halves(x, -1, gate))
    want = epigrad.gated_product(value, gates, "geglu")
    assert_same_bits(epigrad.gated_activation(x, "geglu", gate=gate), want)
    assert_same_bits(epigrad.gated_activation(x.T.contiguous(), "geglu", 0, gate=gate), want.T.contiguous())
    assert_same_bits(forward.gated_activation(x, "geglu", gate=gate), want)
    assert_same_bits(nn.GatedActivation("geglu", gate=gate)(x), want)
    assert_same_bits(torch.ops.epigrad.gated_activation(x, "geglu", gate=gate), want)
    out = torch.empty_like(want)
    plan.GatedActivation.select(input_shape=(3, 8), kind="geglu", gate=gate, dtype=torch.float32, device=device).run(
        input=x, out=out
    )
    assert_same_bits(out, want)
    grad = torch.randn_like(want)
    of_halves = backward.gated_product_backward(grad, value, gates, "geglu")
    got = halves(backward.gated_activation_backward(grad, x, "geglu", gate=gate), -1, gate)
    for one, other in zip(got, of_halves, strict=True):
        assert other is not None
        assert_same_bits(one.contiguous(), other)


@pytest.mark.parametrize("gate", GATES)
def test_places_of_the_gate_in_a_block(gate: str) -> None:
    block = nn.GatedMLP(4, 6, "swiglu_oai", True, gate)
    x = torch.randn(5, 4, requires_grad=True)
    hidden = epigrad.gated_product(*halves(block.up(x), -1, gate), OAI)
    want = block.down(hidden)
    torch.testing.assert_close(block(x), want)
    parameters = [x, *block.parameters()]
    grad = torch.randn_like(want)
    wanted = torch.autograd.grad(want, parameters, grad)
    torch.testing.assert_close(torch.autograd.grad(block(x), parameters, grad), wanted)
    operands = (block.up.weight, block.up.bias, block.down.weight, block.down.bias)
    with torch.no_grad():
        stateless = backward.gated_mlp_backward(grad, x, *operands, OAI, gate=gate)
    torch.testing.assert_close(stateless, wanted)
    assert repr(block).splitlines()[1].strip() == f"kind='{OAI}', gate='{gate}'"


@pytest.mark.parametrize("gate", ["third", "", None, 1, ["odd"]], ids=repr)
def test_other_places_are_errors(gate: Any) -> None:
    text = "want one of 'second', 'first', 'odd', 'even'"
    for make in (
        lambda: epigrad.gated_activation(torch.ones(2), gate=gate),
        lambda: nn.GatedMLP(2, 2, gate=gate),
        lambda: plan.GatedActivation.select(input_shape=(2,), gate=gate, dtype=torch.float32),
    ):
        with pytest.raises(errors.InvalidProblemError, match=text):
            make()
