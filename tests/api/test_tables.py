"""Tables that must agree: the core's rows with what Python, C and the tests know by name."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from pathlib import Path
from typing import Any

import epigrad
import pytest
import torch
from epigrad import backward, errors, forward, plan
from epigrad._autograd import formulas
from epigrad._check import formulas as oracle_formulas
from epigrad._core import tables as tables_module

from tests.support import oracle
from tests.support.cases import parsed
from tests.support.repository import ROOT

HEADER = (ROOT / "cbridge" / "include" / "epigrad.h").read_text()

ACTIVATIONS = [
    *("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu", "relu2", "quick_gelu", "swish"),
    *("elu", "selu", "celu", "softplus", "mish", "hardswish", "hardsigmoid", "relu6", "hardtanh", "softcap"),
]
GATED = {
    "glu": "sigmoid",
    "reglu": "relu",
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "bilinear": "none",
    "sreglu": "relu2",
    "quick_geglu": "quick_gelu",
    "situ_glu": "",
}
DTYPES = {"float32": "float32", "float64": "float64", "bfloat16": "float32", "float16": "float32"}
FROM_OUTPUT = {"relu", "sigmoid", "tanh"}


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(tables_module.__file__).with_name("tables.json").read_text())
    return loaded


def test_the_cores_tables_hold_what_the_interface_promises(tables: dict[str, Any]) -> None:
    from_output = {row["name"]: row["from_output"] for row in tables["activations"]}
    assert {name: name in FROM_OUTPUT for name in ACTIVATIONS}.items() <= from_output.items()
    assert GATED.items() <= {row["name"]: row["activation"] for row in tables["gated_kinds"]}.items()
    assert DTYPES.items() <= {row["name"]: row["accumulator"] for row in tables["dtypes"]}.items()


def test_every_row_has_a_formula_and_a_source(tables: dict[str, Any]) -> None:
    for row in tables["activations"]:
        assert row["formula"] and row["source"], row["name"]
    for row in tables["gated_kinds"]:
        assert row["source"], row["name"]


def test_every_activation_has_a_differentiable_formula_and_an_oracle(tables: dict[str, Any]) -> None:
    names = {row["name"] for row in tables["activations"]}
    assert set(formulas.ACTIVATIONS) == names
    assert {name.partition("(")[0] for name in oracle.ACTIVATIONS} == names
    assert {name.partition("(")[0] for name in oracle.GATED} == {row["name"] for row in tables["gated_kinds"]}


def test_kinks_are_the_oracles_own(tables: dict[str, Any]) -> None:
    for text, row in oracle.ACTIVATIONS.items():
        name = text.partition("(")[0]
        # with its default parameters swish is silu
        values = parsed(epigrad.Activation, text).parameters
        (fields,) = (fields for fields in tables["activations"] if fields["name"] == name)

        def number(part: str, values: dict[str, float | None] = values) -> float:
            return float(values.get(part) or part)

        kinks = [kink.split("/") for kink in fields.get("kinks", ())]
        assert {number(over) / number(*below or "1") for over, *below in kinks} == set(row.kinks), text


def test_a_range_that_python_does_not_know_is_an_error() -> None:
    with pytest.raises(KeyError):
        tables_module.Parameter("limit", 1.0, "a number of the moon")


def test_pickles_have_parameters_by_name() -> None:
    made, (kind, name, parameters) = epigrad.Activation("leaky_relu", slope=0.2).__reduce__()
    assert (kind, name, parameters) == (epigrad.Activation, "leaky_relu", {"slope": 0.2})
    assert made(kind, name, {}) == epigrad.Activation("leaky_relu")  # a pickle from before the row had it
    for value in (epigrad.Activation("leaky_relu", slope=0.2), epigrad.Gated("geglu")):
        assert pickle.loads(pickle.dumps(value)) == value
    assert str(epigrad.Activation("leaky_relu", slope=1 / 3)) == "leaky_relu(slope=0.3333333333333333)"


def test_the_oracle_shares_nothing_with_the_implementation() -> None:
    imported = {
        module.__name__: re.findall(r"^\s*(?:from|import) (epigrad.*)", inspect.getsource(module), re.MULTILINE)
        for module in (oracle, oracle_formulas)
    }
    assert imported == {
        oracle.__name__: ["epigrad._check import formulas"],
        oracle_formulas.__name__: ["epigrad.kinds import Activation, Gated"],
    }


def test_dtypes_are_torchs(tables: dict[str, Any]) -> None:
    for row in tables["dtypes"]:
        assert getattr(torch, row["name"]).itemsize == row["size"]
        assert row["half"] == tables_module.is_half(getattr(torch, row["name"])) == (row["size"] == 2)
    assert len({row["short"] for row in tables["dtypes"]}) == len(DTYPES)


def test_statuses_pair_with_the_error_classes(tables: dict[str, Any]) -> None:
    rows = {row["code"]: row["class"] for row in tables["statuses"]}
    assert len(rows) == len(tables["statuses"]) == len(set(rows.values()))
    assert set(rows.values()) == set(errors.__all__)
    for code, name in rows.items():
        error = errors.from_status(code, name, "op: argument: text", 3, 2)
        end = ", as tensor.clone() does" if name == "MisalignedOperandError" else ""
        assert type(error) is getattr(errors, name) and str(error) == f"op: argument: text{end}"
    declared = {int(code) for code in re.findall(r"EPG_\w+ = (\d+)\b", HEADER[: HEADER.index("epg_call.flags")])}
    assert declared == {0, *rows}


def test_the_versions_agree(tables: dict[str, Any]) -> None:
    declared = re.search(r'#define EPG_VERSION "([^"]+)"', HEADER)
    assert declared and tables["version"] == declared.group(1)
    assert epigrad.__version__ == tables["version"]


def test_the_header_lists_every_dtype(tables: dict[str, Any]) -> None:
    for row in tables["dtypes"]:
        assert row["name"] in HEADER


def test_python_functions_pair_with_the_ops(tables: dict[str, Any]) -> None:
    ops = tables_module.OPS
    for module in (forward, backward):
        for name in module.__all__:
            parameters = inspect.signature(getattr(module, name)).parameters
            assert name in ops, name
            assert [given for given in parameters if given in ops[name].tensors] == list(ops[name].tensors)
    unpaired = {name for name, row in ops.items() if not row.is_second} - {*forward.__all__, *backward.__all__}
    assert not unpaired, "an op without a Python function"
    for name in forward.__all__:
        assert callable(getattr(epigrad, name))


def test_plan_tensor_names_are_the_ops() -> None:
    ops = tables_module.OPS
    wanted = {
        plan.GemmEpilogueBackward: "grad_output a b bias preactivation grad_a grad_b grad_bias",
        plan.GatedActivationBackward: "grad_output input grad_input",
        plan.LerpBackward: "grad_output start end weight grad_start grad_end grad_weight",
    }
    for cls, names in wanted.items():
        given = {"m": 1, "n": 1, "k": 1} if cls is plan.GemmEpilogueBackward else {}
        given |= {"input_shape": (2,)} if cls is plan.GatedActivationBackward else {}
        given |= {"shape": (2,)} if cls is plan.LerpBackward else {}
        made = cls.select(**given, dtype=torch.float32)
        with pytest.raises(TypeError) as caught:
            made.run(colour=torch.ones(1))
        assert all(re.search(rf"\b{name}\b", str(caught.value)) for name in names.split())
        assert set(names.split()) <= {*ops[made.sku.op].tensors, *ops[made.sku.op].results}


_GEMM_BACKWARD = "bias=None, activation='none', *, preactivation=None, output=None, " + (
    "needs=(True, True, True), out=(None, None, None), accumulate=False)"
)
_GEMM_PLAN = "(*, m, n, k, batch=(), b_batched=False, activation='none', dtype, device='cpu', " + (
    "lda=None, ldb=None, ld_grad=None)"
)
_GATED_PLAN = "(*, input_shape, split_dim=-1, kind='swiglu', gate='second', dtype, device='cpu')"
_GATED_LINEAR = "(input, weight_value, weight_gate, bias_value=None, bias_gate=None, kind='swiglu',"
_LERP_PLAN = "(*, shape, weight=None, dtype, device='cpu')"
SIGNATURES = {
    "matmul_bias_activation": "(a, b, bias=None, activation='none', *, save='auto')",
    "linear": "(input, weight, bias=None, activation='none', *, save='auto', adapter=None)",
    "gated_activation": "(input, kind='swiglu', dim=-1, *, gate='second')",
    "gated_product": "(value, gate, kind='swiglu')",
    "lerp": "(start, end, weight)",
    "prelu": "(input, weight)",
    "xielu": "(input, alpha_p, alpha_n, beta=0.5)",
    "gated_linear": _GATED_LINEAR + " *, save='auto', adapter_value=None, adapter_gate=None)",
    "mlp": "(input, weight1, bias1, weight2, bias2, activation='gelu_tanh', *, save='auto', "
    "adapter1=None, adapter2=None)",
    "gated_mlp": "(input, weight_in, bias_in, weight_out, bias_out, kind='swiglu', *, gate='second', save='auto', "
    "adapter_in=None, adapter_out=None)",
    "backward.matmul_bias_activation_backward": "(grad_output, a, b, " + _GEMM_BACKWARD,
    "backward.linear_backward": "(grad_output, input, weight, " + _GEMM_BACKWARD.replace("*, ", "*, adapter=None, "),
    "backward.gated_activation_backward": "(grad_output, input, kind='swiglu', dim=-1, *, gate='second', out=None)",
    "backward.gated_product_backward": "(grad_output, value, gate, kind='swiglu', *, "
    "needs=(True, True), out=(None, None))",
    "backward.gated_linear_backward": _GATED_LINEAR.replace("(", "(grad_output, ")
    + " *, adapter_value=None, adapter_gate=None, "
    "preactivation=None, needs=(True, True, True, True, True), out=(None, None, None, None, None), accumulate=False)",
    "backward.lerp_backward": "(grad_output, start, end, weight, *, needs=(True, True, True), out=(None, None, None))",
    "backward.prelu_backward": "(grad_output, input, weight, *, needs=(True, True), out=(None, None))",
    "backward.xielu_backward": "(grad_output, input, alpha_p, alpha_n, beta=0.5, *, "
    "needs=(True, True, True), out=(None, None, None))",
    "plan.GemmEpilogue.select": _GEMM_PLAN,
    "plan.GemmEpilogueBackward.select": _GEMM_PLAN,
    "plan.GatedActivation.select": _GATED_PLAN,
    "plan.GatedActivationBackward.select": _GATED_PLAN,
    "plan.Lerp.select": _LERP_PLAN,
    "plan.LerpBackward.select": _LERP_PLAN,
}


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures_are_those_of_the_interface(path: str) -> None:
    found: Any = epigrad
    for name in path.split("."):
        found = getattr(found, name)
    signature = inspect.signature(found)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    text = str(inspect.Signature(bare))
    assert text == SIGNATURES[path]


def test_the_typed_marker_is_there() -> None:
    assert (Path(epigrad.__file__).parent / "py.typed").exists()
