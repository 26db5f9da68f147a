"""Reads the source of a block's forward and turns it into an expression (`expressions.py`).

A forward is evaluated with a symbol for its input, in a small language: calls of the block's own
modules, activations and dropouts of PyTorch, halves, products, limits, and conditions on plain
attributes. `Unknown` names the part of a forward that the language lacks. No code of the block
runs.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from epigrad._core.callables import FUNCTIONS, activation_of_function
from epigrad.integrations.expressions import (
    Applied,
    Call,
    Clamped,
    Dropped,
    Half,
    Input,
    Joint,
    Node,
    Number,
    Product,
    Recast,
    Rounded,
    Scaled,
    Shifted,
    Widened,
    used,
)
from epigrad.integrations.layers import Cast, Given
from epigrad.integrations.sources import Unknown, definition


@dataclass(frozen=True, slots=True)
class Body:
    """The expression that a forward computes.

    Attributes:
        output: the expression that it returns.
        given: the attributes that its conditions read. The expression holds while they do not
            change.
    """

    output: Node
    given: tuple[Given, ...]


def read(module: nn.Module, cls: type[Any]) -> Body:
    """The body of a class's forward, with the attributes of a block.

    Raises:
        Unknown: the forward uses something that the language lacks.
    """
    forward = cls.forward
    if forward is nn.Sequential.forward:
        return _sequence(module, cls)
    reader = _Reader(module, forward)
    return Body(reader.output(), tuple(reader.given))


def read_method(function: Any) -> Node:
    """The expression of a method of one tensor, whatever the attributes of its block are.

    Raises:
        Unknown: the method uses something that the language lacks.
    """
    return _MethodReader(nn.Module(), function).output()


def fingerprint(cls: type[Any]) -> str:
    """The source of a class's forward, normalised; empty if it is not understood."""
    if cls.forward is nn.Sequential.forward:
        return "Sequential"
    try:
        return ast.unparse(definition(cls.forward))
    except Unknown:
        return ""


def _sequence(module: nn.Module, cls: type[Any]) -> Body:
    if cls.__iter__ is not nn.Sequential.__iter__:
        raise Unknown("it is a Sequential with an order of its own")
    output: Node = Input()
    for name, layer in module._modules.items():
        if layer is None:
            raise Unknown(f"{name} is None")
        output = Call(name, output)
    return Body(output, (Given("_modules", "names", tuple(module._modules)),))


def _told(node: Node) -> str:
    return node.name if isinstance(node, Call) else "dropout"


# --- evaluation -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Own:
    """The block."""


@dataclass(frozen=True, slots=True)
class _Training:
    """The block's `training` flag."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A value that is no tensor, and the path of the block's attribute that holds it. A literal has
    no path."""

    value: Any
    path: str = ""


@dataclass(frozen=True, slots=True)
class _Method:
    """A tensor's method."""

    of: Node
    name: str


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SCALARS = (bool, int, float, str, type(None))
_METHODS = {name: getattr(torch, name) for name in ("chunk", "clamp", "relu", "sigmoid", "tanh")}
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


class _Reader:
    """Evaluates the statements of a forward."""

    def __init__(self, module: nn.Module, function: Any) -> None:
        statements = definition(function)
        arguments, self.statements = statements.args, statements.body
        self.module = module
        self.globals = function.__globals__
        self.names: dict[str, Any] = {}
        self.given: dict[Given, None] = {}
        self.effects: list[Node] = []
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        defaults = function.__defaults__ or ()
        required = len(names) - len(defaults)
        if required < 2 or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
            raise Unknown("its forward does not take one tensor")
        if required > 2:
            raise Unknown(f"its forward takes {names[2]} too")
        self.names[names[0]], self.names[names[1]] = _Own(), Input()
        for name, default in zip(names[2:], defaults, strict=True):
            self.names[name] = _Known(default)

    def output(self) -> Node:
        """The expression that is returned, of which all calls are a part."""
        output = self.run(self.statements)
        if not isinstance(output, Node):
            raise Unknown("its forward returns no tensor that is computed from its input")
        reached = used(output)
        for node in self.effects:
            if id(node) not in reached:
                raise Unknown(f"its forward does not use the output of {_told(node)}")
        return output

    # --- statements

    def run(self, statements: list[ast.stmt]) -> Any:
        """The value that the statements return, None if they do not return."""
        for statement in statements:
            returned = self._statement(statement)
            if returned is not None:
                return returned
        return None

    def _statement(self, statement: ast.stmt) -> Any:
        match statement:
            case ast.Expr(ast.Constant()):
                return None
            case ast.Assign([target], value):
                self._assign(target, self.value(value))
                return None
            case ast.AnnAssign(ast.Name() as target, _, ast.expr() as value):
                self._assign(target, self.value(value))
                return None
            case ast.If():
                if self._recast(statement):
                    return None
                return self.run(statement.body if self._holds(statement.test) else statement.orelse)
            case ast.Return(ast.expr() as value):
                return self.value(value)
        raise Unknown(f"its forward has `{ast.unparse(statement).splitlines()[0]}`")

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(target.elts) == len(value):
            for each, part in zip(target.elts, value, strict=True):
                self._assign(each, part)
        else:
            raise Unknown(f"its forward assigns to `{ast.unparse(target)}`")

    def _recast(self, statement: ast.If) -> bool:
        """Whether a statement is T5's guard: a cast to the next layer's dtype if it differs and the
        layer is not quantised."""
        match statement.body:
            case [ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name(same), "to"), [ast.expr() as to], []))]:
                dtype = ast.unparse(to)
            case _:
                return False
        layer = dtype.removeprefix("self.").removesuffix(".weight.dtype")
        own, node = self.names.get("self"), self.names.get(name)
        if not (isinstance(own, _Own) and isinstance(node, Node) and same == name and not statement.orelse):
            return False
        if f"self.{layer}.weight.dtype" != dtype or not layer.isidentifier() or self.globals.get("torch") is not torch:
            return False
        conditions = set(map(ast.unparse, _conjunction(statement.test)))
        kept = [each for each in ("int8", "uint8") if f"{dtype} != torch.{each}" in conditions]
        allowed = {f"isinstance(self.{layer}.weight, torch.Tensor)", f"{name}.dtype != {dtype}"}
        allowed |= {f"{dtype} != torch.{each}" for each in kept}
        if conditions != allowed:
            return False
        self.names[name] = Recast(Cast(layer, tuple(getattr(torch, each) for each in kept)), node)
        return True

    def _holds(self, test: ast.expr) -> bool:
        """Whether a condition on the block's attributes holds. Adds the attributes to `given`."""
        match test:
            case ast.BoolOp(ast.And(), values):
                return all(self._holds(each) for each in values)
            case ast.BoolOp(ast.Or(), values):
                return any(self._holds(each) for each in values)
            case ast.UnaryOp(ast.Not(), operand):
                return not self._holds(operand)
            case ast.Compare(left, [ast.Is() | ast.IsNot() as compared], [ast.Constant(None)]):
                none = self._is_none(self.value(left), test)
                return none == isinstance(compared, ast.Is)
            case ast.Compare(left, [compared], [right]) if type(compared) in _COMPARISONS:
                a, b = self._scalar(self.value(left), test), self._scalar(self.value(right), test)
                return bool(_COMPARISONS[type(compared)](a, b))
        return bool(self._scalar(self.value(test), test))

    def _is_none(self, value: Any, test: ast.expr) -> bool:
        if not isinstance(value, _Known):
            raise Unknown(f"its forward branches on `{ast.unparse(test)}`")
        if value.path:
            self.given[Given(value.path, "none", value.value is None)] = None
        return value.value is None

    def _scalar(self, value: Any, test: ast.expr) -> Any:
        if not isinstance(value, _Known) or type(value.value) not in _SCALARS:
            raise Unknown(f"its forward branches on `{ast.unparse(test)}`")
        if value.path:
            self.given[Given(value.path, "value", value.value)] = None
        return value.value

    # --- expressions

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(constant):
                return _Known(constant)
            case ast.Name(name):
                return self._name(name)
            case ast.Attribute(owner, name):
                return self._attribute(self.value(owner), name, node)
            case ast.Tuple(parts):
                return tuple(self.value(each) for each in parts)
            case ast.IfExp(test, body, orelse):
                return self.value(body if self._holds(test) else orelse)
            case ast.UnaryOp(ast.USub(), operand):
                return self._negative(self.value(operand), node)
            case ast.BinOp(left, ast.Mult() | ast.Add() as op, right):
                return self._combined(self.value(left), op, self.value(right), node)
            case ast.Subscript(owner, index):
                return self._part(self.value(owner), index, node)
            case ast.Call(function, arguments, keywords):
                named = {each.arg or "**": self.value(each.value) for each in keywords}
                return self._call(self.value(function), [self.value(each) for each in arguments], named, node)
        raise _not_known(node)

    def _name(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        if name in self.globals:
            return self.globals[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise Unknown(f"its forward uses {name}, which is not defined")

    def _attribute(self, owner: Any, name: str, node: ast.expr) -> Any:
        if isinstance(owner, _Own):
            return self._own(name)
        if isinstance(owner, Node):
            return _Method(owner, name)
        if isinstance(owner, types.ModuleType) and hasattr(owner, name):
            return getattr(owner, name)
        if isinstance(owner, _Known) and owner.path and not isinstance(owner.value, (nn.Module, Tensor, *_SCALARS)):
            try:
                return _Known(getattr(owner.value, name), f"{owner.path}.{name}")
            except AttributeError:
                pass
        raise _not_known(node)

    def _own(self, name: str) -> Any:
        module = self.module
        if name == "training":
            return _Training()
        for place in (module._modules, module.__dict__):
            if name in place:
                return _Known(place[name], name)
        if name in module._parameters or name in module._buffers:
            raise Unknown(f"its forward uses its own parameter {name}")
        found = inspect.getattr_static(type(module), name, None)
        if type(found) not in _SCALARS or found is None:
            raise Unknown(f"its forward uses its method {name}")
        return _Known(found, name)

    def _negative(self, value: Any, node: ast.expr) -> Any:
        if isinstance(value, _Known) and not value.path and type(value.value) in (int, float):
            return _Known(-value.value)
        number = self._number(value, node)
        return Number(number.value, not number.negative)

    def _number(self, value: Any, node: ast.expr) -> Number:
        if isinstance(value, Number):
            return value
        if not isinstance(value, _Known) or type(value.value) not in (int, float):
            raise _not_known(node)
        return Number(value.path or float(value.value))

    def _combined(self, left: Any, op: ast.operator, right: Any, node: ast.expr) -> Node:
        if isinstance(left, Node) and isinstance(right, Node):
            if isinstance(op, ast.Mult):
                return Product(left, right)
            raise Unknown(f"its forward adds, in `{ast.unparse(node)}`")
        if not isinstance(left, Node):
            left, right = right, left
        if not isinstance(left, Node):
            raise _not_known(node)
        return (Scaled if isinstance(op, ast.Mult) else Shifted)(self._number(right, node), left)

    def _part(self, owner: Any, index: ast.expr, node: ast.expr) -> Any:
        match owner, index:
            case tuple(), ast.Constant(int() as place) if 0 <= place < len(owner):
                return owner[place]
            case Node(), ast.Tuple([ast.Constant(value=dots), ast.Slice(start, None, ast.Constant(2))]) if dots is ...:
                if start is None or (isinstance(start, ast.Constant) and start.value == 1):
                    return Half(0 if start is None else 1, True, owner)
        raise _not_known(node)

    # --- calls

    def _call(self, function: Any, arguments: list[Any], named: dict[str, Any], node: ast.expr) -> Any:
        if isinstance(function, _Method) and function.name in _METHODS:
            function, arguments = _METHODS[function.name], [function.of, *arguments]
        if not arguments or not isinstance(arguments[0], Node):
            raise _not_known(node)
        first, *rest = arguments
        if isinstance(function, _Known):
            known = isinstance(function.value, nn.Module) or activation_of_function(function.value) is not None
            if "." in function.path or rest or named:
                raise _not_known(node)
            if not known:
                raise Unknown(f"{function.path} is {function.value!r}, which epigrad does not have")
            return self._effect(Call(function.path, first))
        if function is torch.chunk:
            chunks, dim = _bound(("chunks", "dim"), rest, named, node)
            return self._halves(first, chunks, dim, node)
        if function is torch.clamp:
            low, high = _bound(("min", "max"), rest, named, node)
            return Clamped(self._limit(low, node), self._limit(high, node), first)
        if function is nn.functional.dropout:
            p, training = _bound(("p", "training"), rest, named, node)
            if not isinstance(p, _Known) or not p.path or not isinstance(training, _Training):
                raise _not_known(node)
            return self._effect(Dropped(p.path, first))
        if function is nn.functional.gelu and not rest and set(named) <= {"approximate"}:
            approximate = named.get("approximate", _Known("none"))
            if isinstance(approximate, _Known) and not approximate.path and approximate.value in _GELUS:
                return Applied(_GELUS[approximate.value], first)
        elif not rest and not named and isinstance(function, types.FunctionType | types.BuiltinFunctionType):
            activation = FUNCTIONS.get(function)
            if activation is not None:
                return Applied(activation, first)
        raise _not_known(node)

    def _effect(self, node: Call | Dropped) -> Node:
        self.effects.append(node)
        return node

    def _halves(self, of: Node, chunks: Any, dim: Any, node: ast.expr) -> tuple[Node, Node]:
        if dim is None or self._scalar(chunks, node) != 2 or self._scalar(dim, node) != -1:
            raise _not_known(node)
        return Half(0, False, of), Half(1, False, of)

    def _limit(self, value: Any, node: ast.expr) -> Number | None:
        if value is None or (isinstance(value, _Known) and not value.path and value.value is None):
            return None
        return self._number(value, node)


class _MethodReader(_Reader):
    """Evaluates a method for all blocks of a class: an attribute may be a module or a number."""

    def _own(self, name: str) -> Any:
        return _Known(self.module, name)

    def _holds(self, test: ast.expr) -> bool:
        raise Unknown(f"it branches on `{ast.unparse(test)}`")

    def _number(self, value: Any, node: ast.expr) -> Number:
        if isinstance(value, _Known) and value.value is self.module:
            return Number(value.path)
        return super()._number(value, node)

    def _call(self, function: Any, arguments: list[Any], named: dict[str, Any], node: ast.expr) -> Any:
        match function, arguments:
            case _Method(of, "float"), [] if not named:
                return Widened(of)
            case _Method(of, "to"), [_Method(Input() | Half(of=Input()), "dtype")] if not named:
                return Rounded(of)
            case _Known(path=name), [left, right] if isinstance(left, Node) and isinstance(right, Node) and not named:
                return Joint(name, left, right)
        return super()._call(function, arguments, named, node)


def _bound(parameters: tuple[str, str], rest: list[Any], named: dict[str, Any], node: ast.expr) -> list[Any]:
    """Two arguments by position or name, None if missing."""
    found = dict(zip(parameters, rest, strict=False)) | named
    if len(rest) > 2 or len(found) < len(rest) + len(named) or not set(found) <= set(parameters):
        raise _not_known(node)
    return [found.get(parameter) for parameter in parameters]


def _not_known(node: ast.expr) -> Unknown:
    return Unknown(f"its forward has `{ast.unparse(node)}`")


def _conjunction(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for each in test.values for part in _conjunction(each)]
    return [test]
