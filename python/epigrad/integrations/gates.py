"""The gate that transformers' experts apply between their two projections.

`use_experts_implementation` of transformers gives a class of experts a method `_apply_gate`, unless
the class has its own. epigrad reads it as an expression (`bodies.py`). A method that it does not
understand is refused, and never taken for a plain SwiGLU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from epigrad._core.torch_state import constant_to_dynamo
from epigrad.integrations.blocks import Gate
from epigrad.integrations.bodies import read_method
from epigrad.integrations.expressions import Half, Input, Joint
from epigrad.integrations.recognition import gate_of
from epigrad.integrations.sources import Unknown


@dataclass(frozen=True, slots=True)
class Form:
    """What an `_apply_gate` computes.

    Attributes:
        kind: the gated kind.
        gate: where the gates are, as `epigrad.experts` calls it.
        whole: the classes of `act_fn` and of its parts, where it is called with gate and value.
    """

    kind: Gate
    gate: str
    whole: tuple[tuple[str, ...], ...] = ()


_INKLING = Form(
    Gate(
        kind="situ_glu",
        parameters=(("gate_cap", "act_fn.gate_softcap.softcap"), ("value_cap", "act_fn.up_softcap.softcap")),
    ),
    "first",
    tuple(
        [
            (f"{family}SoftcappedSwiGLU", f"{family}Softcap", f"{family}Softcap")
            for family in (
                "transformers.models.inkling2.modeling_inkling2.Inkling2",
                "transformers.models.inkling2_loop.modeling_inkling2_loop.Inkling2Loop",
            )
        ]
    ),
)


def _recognised(function: Any) -> Form | None:
    try:
        output = read_method(function)
        found = gate_of(output)
    except Unknown:
        return None
    match output:
        case Joint("act_fn", Half(0, False, Input() as input), Half(1, False, of)) if of is input:
            return _INKLING
    return None if found is None else Form(*found)


_forms: dict[Callable[..., Any], Form | None] = {}


@constant_to_dynamo
def form_of(cls: type[nn.Module]) -> Form | None:
    """The form of the `_apply_gate` of a class; None if epigrad does not recognise it."""
    # as it is written in a class: a method of another kind computes something else
    function: Any = next((base.__dict__["_apply_gate"] for base in cls.__mro__ if "_apply_gate" in base.__dict__), None)
    if function not in _forms:
        _forms[function] = _recognised(function)
    return _forms[function]
