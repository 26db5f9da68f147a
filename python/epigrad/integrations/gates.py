"""Recognises the gate that transformers' experts apply between their two projections.

`use_experts_implementation` of transformers gives a class of experts a method `_apply_gate`, unless
the class has its own. epigrad recognises a method by its source; the name of the class does not
matter. To add one, add a row to `_FORMS`. A method without a row is refused, and never taken for a
plain SwiGLU.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from epigrad._core.torch_state import constant_to_dynamo
from epigrad.integrations.blocks import Gate

__all__ = ["Form", "form_of"]


@dataclass(frozen=True, slots=True)
class Form:
    """A known `_apply_gate`.

    Attributes:
        body: its statements; ``gate_up`` is its argument.
        gate: where the gates are, as `epigrad.experts` calls it.
        kind: the gated kind that it computes.
        whole: the classes of `act_fn` and of its parts, where it is called with gate and value.
    """

    body: str
    gate: str
    kind: Gate
    whole: tuple[tuple[str, ...], ...] = ()


def _limited(limit: str, activation: str = "", kind: str = "", after: bool = False) -> Gate:
    return Gate(activation, kind, (("limit_after" if after else "limit", limit),))


def _oai(alpha: str, limit: str) -> Gate:
    return Gate(kind="swiglu", parameters=(("limit", limit), ("offset", 1), ("alpha", alpha)))


def _capped(family: str) -> tuple[str, ...]:
    return f"{family}SoftcappedSwiGLU", f"{family}Softcap", f"{family}Softcap"


_FORMS = (
    # the default of transformers
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate) * up
        """,
        "first",
        Gate("act_fn"),
    ),
    # Beam. Kernels compute half types in float32 as well, and round once.
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        return (self.act_fn(gate.float()) * up.float()).to(gate.dtype)
        """,
        "first",
        Gate("act_fn"),
    ),
    # DeepSeek-V4
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return self.act_fn(gate) * up
        """,
        "first",
        _limited("limit", activation="act_fn"),
    ),
    # GLM-5, HY-V4
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(min=None, max=self.swiglu_limit)
        up = up.clamp(min=-self.swiglu_limit, max=self.swiglu_limit)
        return F.silu(gate) * up
        """,
        "first",
        _limited("swiglu_limit", kind="swiglu"),
    ),
    # gpt-oss
    Form(
        """
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(gate * self.alpha)
        gated_output = (up + 1) * glu
        return gated_output
        """,
        "even",
        _oai("alpha", "limit"),
    ),
    # Inkling 2
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate, up)
        """,
        "first",
        Gate(
            kind="situ_glu",
            parameters=(
                ("gate_cap", "act_fn.gate_softcap.softcap"),
                ("value_cap", "act_fn.up_softcap.softcap"),
            ),
        ),
        whole=(
            _capped("transformers.models.inkling2.modeling_inkling2.Inkling2"),
            _capped("transformers.models.inkling2_loop.modeling_inkling2_loop.Inkling2Loop"),
        ),
    ),
    # MiniMax-M3
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=self.swiglu_limit)
        up = up.clamp(min=-self.swiglu_limit, max=self.swiglu_limit)
        glu = gate * torch.sigmoid(gate * self.swiglu_alpha)
        return (up + 1.0) * glu
        """,
        "first",
        _oai("swiglu_alpha", "swiglu_limit"),
    ),
    # OpenAI's privacy filter
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(gate * self.alpha)
        gated_output = (up + 1) * glu
        return gated_output
        """,
        "first",
        _oai("alpha", "limit"),
    ),
    # Step 3.7
    Form(
        """
        gate, up = gate_up.chunk(2, dim=-1)
        gate = self.act_fn(gate).clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return gate * up
        """,
        "first",
        _limited("limit", activation="act_fn", after=True),
    ),
)

_GLOBALS = {"torch": torch, "F": nn.functional}
"""The modules that the bodies name."""


def _normal(body: list[ast.stmt]) -> str:
    return "\n".join(map(ast.dump, body))


_KNOWN = {_normal(ast.parse(textwrap.dedent(form.body)).body): form for form in _FORMS}


class _Renamed(ast.NodeTransformer):
    """Renames a function's argument to the name that the rows use."""

    def __init__(self, argument: str) -> None:
        self.argument = argument

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("gate_up", node.ctx) if node.id == self.argument else node


def _recognised(function: Any) -> Form | None:
    """The form of a function; None if no form matches or there is no source."""
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__") or function.__closure__:
        return None  # its source is another function's, or incomplete
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    arguments = definition.args
    if [a.arg for a in arguments.args][:1] != ["self"] or len(arguments.args) != 2:
        return None
    body = definition.body
    if ast.get_docstring(definition) is not None:
        body = body[1:]
    renamed = _Renamed(arguments.args[1].arg)
    form = _KNOWN.get(_normal([renamed.visit(statement) for statement in body]))
    for name, meant in _GLOBALS.items():
        if name in function.__code__.co_names and function.__globals__.get(name) is not meant:
            return None
    return form


_forms: dict[Callable[..., Any], Form | None] = {}


@constant_to_dynamo
def form_of(cls: type[nn.Module]) -> Form | None:
    """The form of the `_apply_gate` of a class; None if epigrad does not recognise it."""
    # as it is written in a class: a method of another kind computes something else
    function: Any = next((base.__dict__["_apply_gate"] for base in cls.__mro__ if "_apply_gate" in base.__dict__), None)
    if function not in _forms:
        _forms[function] = _recognised(function)
    return _forms[function]
