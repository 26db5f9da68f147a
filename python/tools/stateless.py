"""Writes epigrad.forward and epigrad.backward: the functions of epigrad without a graph.

    python python/tools/stateless.py

They follow from the table of operations (python/epigrad/_core/tables.json, which go/tables writes)
and from python/epigrad/functional.py, whose signatures and docstrings each operation has once. The
build runs this. It imports nothing of epigrad, which is not built yet.
"""

from __future__ import annotations

import ast
import json
import pathlib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

PACKAGE = pathlib.Path(__file__).parents[1] / "epigrad"
WIDTH = 100
SIZES = {"...": "5", "K": "3", "N": "2", "H": "4", "T": "5", "E": "2", "J": "2"}
"""The sizes of symbols in examples."""

HEAD = {
    "forward": '''"""The functions of `epigrad` without a graph: nothing is saved and no output requires a gradient.

`out` gives a tensor to write into: right shape and dtype, any strides, no memory shared with an
input. It is returned itself.
"""
''',
    "backward": '''"""Stateless gradients, for your own `torch.autograd.Function`: no graph, nothing saved.

A gradient is None where `needs` is False, or where it cannot exist (no bias, a weight that is a
number). `out` gives tensors to write into. They have the right shape and dtype, any strides, and
share no memory with another output or an input. One that is not needed is ignored.

The results have no gradients. Put `torch.autograd.function.once_differentiable` on your `backward`:
PyTorch then raises an error for a second derivative, unless `grad_output` is a constant.
"""
''',
}
IMPORTS = {
    "forward": """
# Written by python/tools/stateless.py.

from __future__ import annotations

from typing import Literal, overload

from epigrad._core import selection
from epigrad._core.values import LowRank
from epigrad._core.call import Call, call_of
from epigrad._core.checks import check_tensors, finite, lerp_weight
from epigrad._core.stateless import launch_one, with_preactivation
from epigrad.kinds import ActivationLike, Gated
from epigrad.webgpu import Data
""",
    "backward": """
# Written by python/tools/stateless.py.

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from epigrad._core import selection
from epigrad._core.values import LowRank
from epigrad._core.call import Call, call_of
from epigrad._core.checks import check_tensors, finite, lerp_weight
from epigrad._core.stateless import gradients, one_gradient
from epigrad.kinds import ActivationLike, Gated
from epigrad.webgpu import Data
""",
}


@dataclass
class Parameter:
    """A parameter of a function: its annotation, its default, and its text in the docstring."""

    name: str
    annotation: str
    default: str
    keyword: bool
    text: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.annotation}" + (f" = {self.default}" if self.default else "")


class Function:
    """A function of functional.py."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self.name = node.name
        arguments = node.args
        positional = [*arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        pairs = [(a, d, False) for a, d in zip(positional, [*defaults, *arguments.defaults], strict=True)]
        pairs += [(a, d, True) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        sections = _sections(ast.get_docstring(node) or "")
        texts = _entries(sections["Args"])
        self.parameters = [
            Parameter(
                argument.arg,
                re.sub(r"\bTensor\b", "Data", ast.unparse(argument.annotation)) if argument.annotation else "",
                ast.unparse(default).replace("'", '"') if default else "",
                keyword,
                texts[argument.arg],
            )
            for argument, default, keyword in pairs
        ]
        self.summary, *_ = sections[""].split("\n\n")
        self.sections = sections


def _sections(text: str) -> dict[str, str]:
    """The sections of a docstring by their headings; the first has none."""
    parts = re.split(r"^(Args|Returns|Gradients|Raises|Source|Examples):[ \n]", text, flags=re.M)
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {"": parts[0].strip()} | {name: textwrap.dedent(part).strip("\n") for name, part in named.items()}


def _entries(text: str) -> dict[str, str]:
    """The entries of a section by their names, each text on one line."""
    found = re.findall(r"^(\w+): ((?:.*\n?)(?:[ ]+.*\n?)*)", text, re.M)
    return {name: " ".join(entry.split()) for name, entry in found}


class Row:
    """An operation of the table."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.name: str = fields["name"]
        self.inputs, self.outputs = fields["inputs"], fields["outputs"]
        self.kinds, self.parameters = fields["kinds"], fields["parameters"] or ()
        self.keeps, self.multiplies, self.splits = fields["keeps"], fields["multiplies"], fields["splits"]
        names = {f"grad_{argument['name']}" for argument in self.inputs}
        self.gradients = [output["name"] for output in self.outputs if output["name"] in names]
        self.halves, self.default_kind = fields["halves"], fields["default_kind"]
        adapted = (fields["adapted"] or fields)["inputs"]
        self.adapters = [argument["name"][:-2] for argument in adapted if argument["name"].endswith(".a")]

    @property
    def required(self) -> list[str]:
        """The tensors that a call needs."""
        return [argument["name"] for argument in self.inputs if not argument["optional"]]


def call_text(row: Row) -> str:
    """The call of the core with a function's arguments."""
    op = f'"{row.name}"'
    if row.kinds:
        arguments = [op, "activation" if row.kinds == "activation" else "kind"]
        arguments += ["dim" if row.splits else "0"] if row.splits or row.halves else []
        arguments += ["gate"] if row.halves else []
        return f"call_of({', '.join(arguments)})"
    if row.parameters:
        (parameter,) = row.parameters
        numbers = f'(finite({op}, "{parameter["name"]}", {parameter["name"]}),)'
    else:
        numbers = "numbers" if _takes_number(row) else "()"
    return f"Call({op}, None, {numbers}, backend=selection.current())"


def _takes_number(row: Row) -> bool:
    """Whether a number may stand for its last tensor."""
    return not row.kinds and not row.parameters and any(argument["optional"] for argument in row.inputs)


def wrapped(text: str, indent: int, hanging: int = 0) -> str:
    """A paragraph of a docstring."""
    lead = " " * indent
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=lead + " " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def docstring(paragraphs: list[str], parameters: list[Parameter], sections: dict[str, str]) -> Iterator[str]:
    """The lines of a docstring."""
    first, *rest = paragraphs
    yield wrapped('"""' + first, 4)
    for paragraph in rest:
        yield ""
        yield wrapped(paragraph, 4)
    yield "\n    Args:"
    for parameter in parameters:
        yield wrapped(f"{parameter.name}: {parameter.text}", 8, 4)
    for name, text in sections.items():
        if name == "Source":
            yield "\n" + wrapped(f"Source: {text}", 4)
            continue
        yield f"\n    {name}:"
        yield textwrap.indent(text, " " * 8)
    yield '    """'


def raises(function: Function) -> str:
    """The errors of a stateless function: those of the differentiable one, and of `out`."""
    entries = _entries(function.sections["Raises"])
    alias, _, text = entries["InvalidProblemError"].partition(") ")
    entries["InvalidProblemError"] = f"{alias}) an overlapping `out`, {text.replace(' or `save`', '')}"
    entries["EpigradError"] = "another class of `epigrad.errors`, of devices, backends or tensor subclasses."
    return textwrap.dedent("\n".join(wrapped(f"{name}: {text}", 8, 4) for name, text in entries.items()))


def example(row: Row, room: str, function: Function) -> str:
    """A call with tensors of ones, and the shapes of its results."""
    # of an output after the gradients nothing is shown
    known = [argument for argument in (*row.inputs, *row.outputs) if argument["shape"] or argument["example"]]
    shapes = {argument["name"]: shape_of(argument) for argument in known}
    given = []
    for argument in row.inputs:
        if argument["kept"]:
            continue
        dtype = ", dtype=torch.int64" if argument["types"] in ("index", "offsets") else ""
        if argument["name"] in [p.name for p in function.parameters if p.keyword]:
            given.append(f"{argument['name']}=torch.ones({shapes[argument['name']]}{dtype})")
        else:
            given.append(f"torch.ones({shapes[argument['name']]}{dtype})")
    if row.kinds and not row.default_kind:
        given.append('"gelu"')
    positional = [text for text in given if not re.match(r"\w+=", text)]
    keywords = [text for text in given if re.match(r"\w+=", text)]
    lines = [">>> import epigrad, torch", ">>> tensors = ("]
    lines += [f"...     {text}," for text in positional] + ["... )"]
    call = f"epigrad.{room}.{row.name}({', '.join(['*tensors', *keywords])})"
    if len(row.gradients) > 1:
        sizes = ", ".join(str(tuple(map(int, shapes[name].split(", ")))) for name in row.gradients)
        lines += [f">>> gradients = {call}", ">>> [tuple(gradient.shape) for gradient in gradients]", f"[{sizes}]"]
    else:
        lines += [f">>> {call}.shape", f"torch.Size([{shapes[row.outputs[0]['name']]}])"]
    return "\n".join(lines)


def shape_of(argument: dict[str, Any]) -> str:
    """The sizes of an argument in an example."""
    if argument["example"]:
        text: str = argument["example"].strip("[]")
        return text
    sizes = []
    for part in argument["shape"].strip("[]").split(", "):
        size = 2 if part.startswith("2") else 1
        for symbol in part.removeprefix("2").split("*"):
            size *= int(SIZES[symbol])
        sizes.append(str(size))
    return ", ".join(sizes)


def header(name: str, parameters: list[Parameter], result: str, end: str = ":") -> Iterator[str]:
    """The lines of a signature."""
    yield f"def {name}("
    keyword = False
    for parameter in parameters:
        if parameter.keyword and not keyword:
            keyword = True
            yield "    *,"
        yield f"    {parameter},"
    yield f") -> {result}{end}"


def of_tensors(row: Row) -> Iterator[str]:
    """The lines that check and bind a call's tensors: `call` and `inputs`."""
    names = [argument["name"] for argument in row.inputs]
    if _takes_number(row):
        yield f'    numbers, {names[-1]}_tensor = lerp_weight("{row.name}", {names[-1]})'
    checked = [f"{name}={name}" for name in row.required]
    yield f'    check_tensors("{row.name}", {", ".join(checked[:5])})'
    if len(checked) > 5:
        yield f'    check_tensors("{row.name}", {", ".join(checked[5:])})'
    yield f"    call = {call_text(row)}"
    inputs = [f"{name}_tensor" if _takes_number(row) and name == names[-1] else name for name in names]
    yield f"    inputs = ({', '.join(inputs)}{',' if len(inputs) == 1 else ''})"


def forward(row: Row, function: Function) -> Iterator[str]:
    """A function of epigrad.forward."""
    parameters = [parameter for parameter in function.parameters if parameter.name != "save"]
    out = Parameter("out", "Data | None", "None", True, "a tensor to write the output into.")
    sections = function.sections
    returns = sections["Returns"].replace("A contiguous tensor", "A tensor")
    if row.keeps:
        kept = row.outputs[1]["shape"].strip("[]").replace("2H", "2*H")
        text = f"return the preactivation {f'``[{kept}]`` ' if kept else ''}too, rounded to the storage dtype."
        asked = Parameter("return_preactivation", "bool", "False", True, text)
        for annotation, default, result in (("[False]", "False", "Data"), ("[True]", "", "tuple[Data, Data]")):
            literal = Parameter(asked.name, f"Literal{annotation}", default, True)
            yield "@overload"
            yield from header(row.name, [*parameters, literal, out], result, ": ...")
        yield from header(row.name, [*parameters, asked, out], "Data | tuple[Data, Data]")
        parameters = [*parameters, asked]
        returns += "\nWith `return_preactivation`, ``(output, preactivation)``."
    else:
        yield from header(row.name, [*parameters, out], "Data")
    texts = {
        "Returns": returns,
        "Raises": raises(function),
        "Source": f"`epigrad.{row.name}`.",
        "Examples": example(row, "forward", function),
    }
    yield from docstring([f"{function.summary.removesuffix('.')}, without a graph."], [*parameters, out], texts)
    yield from of_tensors(row)
    if row.keeps:
        arguments = ["call", "inputs", "return_preactivation", "out", *row.adapters]
        yield f"    return with_preactivation({', '.join(arguments)})"
    else:
        yield "    return launch_one(call, inputs, out)"


def backward(row: Row, function: Function) -> Iterator[str]:
    """A function of epigrad.backward."""
    shape = row.inputs[0]["shape"].strip("[]")
    grad_text = f"{f'``[{shape}]``' if shape and shape != '...' else 'the shape of the output'}; float32, float64, " + (
        "bfloat16 or float16, as all tensors"
        + (" but integers." if any(a["types"] in ("index", "offsets") for a in row.inputs) else ".")
    )
    parameters = [Parameter("grad_output", "Data", "", False, grad_text)]
    optional = {argument["name"] for argument in row.inputs if argument["optional"]}
    for parameter in function.parameters:
        if parameter.name == "save":
            continue
        annotation = parameter.annotation
        if parameter.name in optional and annotation == "Data":
            annotation = "Data | None"
        # the dtypes stand with grad_output
        text = "; ".join(part for part in parameter.text.split("; ") if not part.startswith("float32, "))
        text = f"{text.removesuffix('.')}."
        parameters.append(Parameter(parameter.name, annotation, parameter.default, parameter.keyword, text))
    kept = [argument for argument in row.inputs if argument["kept"]]
    for argument in kept:
        text = "the saved preactivation; without it, it is formed again where it is needed."
        if argument["name"] == "output":
            text = "the saved output, for relu, sigmoid and tanh only."
        parameters.append(Parameter(argument["name"], "Data | None", "None", True, text))
    count = len(row.gradients)
    names = f"``({', '.join(row.gradients)})``"
    sections = {"Raises": raises(function), "Source": f"The chain rule; `epigrad.{function.name}`."}
    sections |= {"Examples": example(row, "backward", function)}
    if count == 1:
        parameters.append(Parameter("out", "Data | None", "None", True, "a tensor to write the gradient into."))
        result, returns = "Data", f"The gradient to `{row.gradients[0].removeprefix('grad_')}`."
    else:
        flags = f"({', '.join(['True'] * count)})" if count < 4 else f"(True,) * {count}"
        empty = f"({', '.join(['None'] * count)})" if count < 4 else f"(None,) * {count}"
        more = " Those of `a` and `b` of each adapter that is given follow, here and in `out`." if row.adapters else ""
        parameters.append(Parameter("needs", "Sequence[bool]", flags, True, f"which of {names} are computed.{more}"))
        text = "tensors to write them into, which are returned themselves."
        parameters.append(Parameter("out", "Sequence[Data | None]", empty, True, text))
        result, returns = (
            f"tuple[{', '.join(['Data | None'] * count)}]",
            "The gradients in the order of `needs`, None where not needed.",
        )
    if row.multiplies:
        added = "weights, biases and adapters" if row.adapters else "weights and biases"
        text = f"add into `out` for {added}, which is then given for each that is needed; the "
        text += "others are overwritten."
        parameters.append(Parameter("accumulate", "bool", "False", True, text))
    if row.adapters:  # whose gradients make the result longer
        bare = [replace(p, annotation="None") if p.name in row.adapters else p for p in parameters]
        yield "@overload"
        yield from header(row.name, bare, result, ": ...")
        result = "tuple[Data | None, ...]"
        yield "@overload"
        yield from header(row.name, parameters, result, ": ...")
    yield from header(row.name, parameters, result)
    paragraphs = [f"Compute the gradients of `epigrad.{function.name}`."]
    paragraphs += [" ".join(part.split()) for part in function.sections.get("Gradients", "").split("\n\n") if part]
    yield from docstring(paragraphs, parameters, {"Returns": returns} | sections)
    yield from of_tensors(row)
    if count == 1:
        yield "    return one_gradient(call, inputs, out)"
    else:
        accumulate = "accumulate" if row.multiplies else "False"
        arguments = ["call", "inputs", "needs", "out", accumulate, *row.adapters]
        ignored = "" if row.adapters else "  # type: ignore[return-value]"
        yield f"    return gradients({', '.join(arguments)}){ignored}"


def main() -> None:
    rows = {
        fields["name"]: Row(fields) for fields in json.loads((PACKAGE / "_core" / "tables.json").read_text())["ops"]
    }
    tree = ast.parse((PACKAGE / "functional.py").read_text())
    functions = {
        node.name: Function(node) for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in rows
    }
    for room, write in (("forward", forward), ("backward", backward)):
        ending = "_backward" if room == "backward" else ""
        names = sorted(f"{name}{ending}" for name in functions)
        parts = [HEAD[room] + IMPORTS[room], "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"]
        parts += [
            "\n" + "\n".join(write(rows[f"{name}{ending}"], function)) + "\n" for name, function in functions.items()
        ]
        (PACKAGE / f"{room}.py").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
