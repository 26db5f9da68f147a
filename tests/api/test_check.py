"""`python -m epigrad check`: what holds passes, and a planted defect of each sort is found."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import epigrad
import pytest
import torch
from epigrad import Activation, Gated, backward, cli, forward, plan
from epigrad._autograd import functions
from epigrad._check import bounds, calls, expected, formulas, modes, search
from epigrad._check.drawing import drawn
from epigrad._check.modes import MODES
from epigrad._check.operations import OPERATIONS
from epigrad._check.problem import DTYPES, ENTRIES, GRADS, WAYS, Problem
from epigrad._check.values import VALUES
from epigrad._core import tables
from torch import Tensor

from tests.api.checking import found, some_of, wrong_in
from tests.support.devices import needs
from tests.support.tiers import in_turns, thorough

ADAPTED = [op for op, row in tables.OPS.items() if row.adapted and not row.is_backward]
pytestmark = pytest.mark.usefixtures("_one_thread")


def run(*arguments: str) -> int:
    return cli.main(["check", *arguments])


@pytest.mark.parametrize("mode", in_turns(MODES, len(MODES), thorough))
def test_nothing_fails(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    count = {"leak": 2, "race": 10}.get(mode, 150)
    code = run("--problems", str(count), "--seed", "11", "--mode", mode, "--json", str(path))
    assert code == 0, capsys.readouterr().out
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["mode"], row["problems"], row["failed"]) == (mode, count, 0)


def test_nothing_fails_by_the_c_interface() -> None:
    for problem in itertools.islice(search.problems("correct", "cpu", 3), 80):
        assert search.verdict("correct", dataclasses.replace(problem, entry="c"), "cpu") == "", str(problem)


@needs("webgpu")
@thorough
def test_nothing_fails_on_webgpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--problems", "40", "--backend", "webgpu", "--mode", "correct,bitwise,bad") == 0, capsys.readouterr().out


@needs("webgpu")
def test_arrays_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few operations, whose kernels are compiled in seconds; and a defect of a gradient."""
    every = itertools.islice(search.problems("correct", "webgpu", 0), 400)
    some = [each for each in every if each.entry == "array" and each.op in ("prelu", "lerp", "gated_product")][:12]
    assert len(some) > 5 and [Problem.read(str(each)) for each in some] == some
    assert not [str(each) for each in some if search.verdict("correct", each, "webgpu")]

    def change(grads: Any, *arguments: Any, **options: Any) -> Any:
        return tuple(grads[::-1])

    wrong_in(monkeypatch, backward, "gated_product_backward", change)
    problem = Problem.read("gated_product kind=swiglu sizes=2x3x4 entry=array needs=11")
    assert search.verdict("correct", problem, "webgpu").startswith("grad_value: ")


def test_a_seed_gives_the_same_problems_and_a_text_gives_them_back() -> None:
    rng = random.Random(5)
    some = [drawn(rng, tuple(OPERATIONS), DTYPES) for _ in range(500)]
    rng = random.Random(5)
    assert some == [drawn(rng, tuple(OPERATIONS), DTYPES) for _ in range(500)]
    assert [Problem.read(str(problem)) for problem in some] == some
    assert {problem.op for problem in some} == set(OPERATIONS)
    assert {problem.entry for problem in some} == set(ENTRIES)
    assert {layout for problem in some for layout in problem.layouts} == set(WAYS)
    assert {problem.values for problem in some} == set(VALUES)
    assert {problem.grads for problem in some} == set(GRADS)
    assert any(problem.wide for problem in some)
    assert {problem.op for problem in some if problem.adapters} == set(ADAPTED)
    assert {len(problem.ranks) for problem in some} == {0, 1, 2}
    assert all(problem.entry in problem.entries for problem in some)
    assert sum(0 in problem.sizes for problem in some) > 50


def test_a_wrong_value_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A layer that is wrong where it has more than three columns."""

    def change(out: Tensor, *, weight: Tensor, **options: Any) -> Tensor:
        return out * 1.02 if weight.shape[0] > 3 else out

    wrong_in(monkeypatch, epigrad, "linear", change)
    monkeypatch.setattr(search, "SHRINK_SECONDS", 3.0)
    assert run("--mode", "correct", "--problems", "200") == 1
    failures = re.findall(r"correct: (.*)\n  (python -m epigrad check .*'linear .*')", capsys.readouterr().out)
    wrong, command = failures[0]
    assert wrong.startswith("out: ")
    sizes = re.search(r"sizes=(\d+)x(\d+)x(\d+)x(\d+)", command)
    assert sizes is not None and int(sizes[4]) == 4, command
    assert cli.main(shlex.split(command)[3:]) == 1, "the printed command shows the failure again"
    assert f"correct: {wrong}" in capsys.readouterr().out


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(grads: Any, *arguments: Any, out: Any, **options: Any) -> Any:
        if out[0] is not None and out[0].numel():
            out[0].view(-1)[0] += 1
        return grads

    wrong_in(monkeypatch, backward, "prelu_backward", change)
    assert found("correct", "prelu").startswith("grad_input: ")


@pytest.mark.parametrize("op", ["activation", "gated_activation", "gated_product"])
def test_a_wrong_gradient_of_a_gradient_is_found(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    def change(problem: functions.Problem, *given: Any) -> Any:
        *gradients, last = own(problem, *given)
        return (*gradients, last * 1.02 if problem.call.op.endswith("_backward") else last)

    kind = "silu" if op == "activation" else "swiglu"
    sizes = "1x2x3x4" if op == "gated_activation" else "2x3x4"
    problem = Problem.read(f"{op} kind={kind} sizes={sizes} entry=second")
    assert search.verdict("correct", problem, "cpu") == ""
    own = functions.Problem.run
    monkeypatch.setattr(functions.Problem, "run", change)
    assert search.verdict("correct", problem, "cpu").startswith("second_")


@pytest.mark.parametrize("op", ADAPTED)
def test_a_defect_of_an_adapter_is_found(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """One that is left out, and a gradient that is not scaled."""

    def without(_: Any, **options: Any) -> Any:
        return own(**{name: value for name, value in options.items() if not name.startswith("adapter")})

    own = getattr(forward, op)
    with monkeypatch.context() as patched:
        wrong_in(patched, forward, op, without)
        assert found("correct", op).startswith("out: ")

    def unscaled(grads: Any, *arguments: Any, out: Any, **options: Any) -> Any:
        for adapter in (value for name, value in options.items() if name.startswith("adapter")):
            places = [place for place, grad in enumerate(out) if grad is not None and grad.shape == adapter.a.shape]
            for place in places[-1:]:
                out[place].div_(adapter.scale)
        return grads

    wrong_in(monkeypatch, backward, f"{op}_backward", unscaled)
    assert re.match(r"grad_adapter\w*_[ab]: ", found("correct", op))


def test_memory_that_is_written_beside_an_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(result: Any, *arguments: Any, out: Tensor, **options: Any) -> Any:
        out.as_strided((1,), (1,), 0).fill_(1)
        return result

    wrong_in(monkeypatch, forward, "lerp", change)
    assert "elements outside the output were written" in found("correct", "lerp")


def test_an_input_that_is_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(result: Any, *, value: Tensor, **options: Any) -> Any:
        if value.numel():
            value.detach().as_strided((1,), (1,), value.storage_offset()).add_(1)
        return result

    wrong_in(monkeypatch, forward, "gated_product", change)
    assert "an input was written to" in found("correct", "gated_product")


@pytest.mark.parametrize("op", ["linear", "gated_product"])
@pytest.mark.parametrize(
    ("values", "spoil"),
    [
        ("infinite", lambda out: out.nan_to_num_(0.0, torch.inf, -torch.inf)),
        ("infinite", lambda out: out.copy_(torch.where(out.isinf(), torch.nan, out))),
        ("tiny", lambda out: out.copy_(torch.where(out.abs() < torch.finfo(out.dtype).smallest_normal, 0.0, out))),
        ("huge", lambda out: out.copy_(torch.where(out.abs() > 1e4, 1e4, out))),
    ],
    ids=["NaN is replaced", "infinity becomes NaN", "denormal becomes 0", "large is cut"],
)
def test_a_defect_at_special_values_is_found(
    monkeypatch: pytest.MonkeyPatch, op: str, values: str, spoil: Callable[[Tensor], Tensor]
) -> None:
    def change(result: Any, *arguments: Any, out: Tensor, **options: Any) -> Any:
        spoil(out)
        return result

    some = [
        dataclasses.replace(each, entry="stateless", save="recompute", values=values) for each in some_of(25, op=op)
    ]
    assert not [str(each) for each in some if search.verdict("correct", each, "cpu")]
    wrong_in(monkeypatch, forward, op, change)
    assert any(search.verdict("correct", each, "cpu").startswith("out: ") for each in some)


@pytest.mark.parametrize(
    ("fields", "where", "name"),
    [
        ({"op": "linear", "entry": "module"}, epigrad.functional, "linear"),
        ({"op": "prelu", "entry": "module"}, epigrad.functional, "prelu"),
        ({"op": "linear", "entry": "plan"}, plan.Plan, "run"),
        ({"op": "gated_activation", "entry": "plan"}, plan.Plan, "run"),
        ({"op": "experts", "entry": "plan"}, plan.Plan, "run"),
        ({"op": "lerp", "entry": "plan"}, plan.Plan, "run"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_a_defect_of_a_plan_or_a_module_is_found(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], where: Any, name: str
) -> None:
    some = some_of(12, **fields)
    assert len(some) >= 5 and not [str(each) for each in some if search.verdict("correct", each, "cpu")]

    def change(result: Any, *arguments: Any, out: Tensor | None = None, **options: Any) -> Any:
        if out is not None:
            out.add_(1)
            return result
        return result if result is None else result + 1

    wrong_in(monkeypatch, where, name, change)
    assert any(search.verdict("correct", each, "cpu").startswith("out: ") for each in some)


@pytest.mark.parametrize("grads", ["added", "float32", "float32_added"])
def test_gradients_come_into_given_tensors(monkeypatch: pytest.MonkeyPatch, grads: str) -> None:
    """What is not added, or was rounded to 16 bits on the way, is found."""
    some = some_of(20, op="linear", entry="stateless")
    some = [dataclasses.replace(each, grads=grads, dtype="bfloat16", values="normal", needs=(True,)) for each in some]
    assert len(some) >= 4 and not [str(each) for each in some if search.verdict("correct", each, "cpu")]

    def change(grads: Any, *arguments: Any, out: Any, accumulate: bool = False, **options: Any) -> Any:
        for place, tensor in enumerate(out[1:]):
            if tensor is not None and grads != "added":
                tensor.copy_(tensor.bfloat16() * (0 if accumulate and place else 1))
            elif tensor is not None:
                tensor.zero_()
        return grads

    wrong_in(monkeypatch, backward, "linear_backward", change)
    assert any(search.verdict("correct", each, "cpu").startswith("grad_") for each in some)


def test_a_branch_that_was_not_chosen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An infinite gradient times the slope 0 of a clamp is 0, as in PyTorch, and not NaN."""
    text = "activation kind=hardtanh sizes=9x9x9 entry=stateless values=infinite scale=6 seed="
    some = [Problem.read(f"{text}{seed}") for seed in range(20)]
    assert not [str(each) for each in some if search.verdict("correct", each, "cpu")]

    def change(grad: Tensor, *, grad_output: Tensor, input: Tensor, out: Tensor, **options: Any) -> Tensor:
        return out.copy_(grad_output * (input.abs() < 1).to(input.dtype))

    wrong_in(monkeypatch, backward, "activation_backward", change)
    assert any(search.verdict("correct", each, "cpu").startswith("grad_input: ") for each in some)


@pytest.mark.parametrize(("beta", "threshold"), [(0.25, 1.702), (1.0, -1.3)])
def test_a_value_beyond_a_jump_lies_within_the_bound(beta: float, threshold: float) -> None:
    """softplus is lower right behind its threshold than further on, where it may rise faster than
    before."""
    step = formulas.activation(Activation("softplus", beta=beta, threshold=threshold))
    place = torch.tensor([threshold / beta], dtype=torch.float64)
    before = bounds.Bounded(place - 1e-3, torch.tensor([1e-2], dtype=torch.float64), torch.float32)
    behind = step(place + 1e-9)
    assert bounds.breach(behind.float(), before.through(step)) == ""
    assert bounds.breach(behind.float() - 1e-3, before.through(step)) != ""


@pytest.mark.parametrize(("near", "error", "may_be_more"), [(-2.0, 1.0, False), (-2.0, 9.0, True), (9.0, 8.7, True)])
@pytest.mark.parametrize(("kind", "most"), [({"limit": 0.4}, 0.8), ({"limit_after": 2.25}, 3.0)])
def test_a_slope_may_be_one_that_is_at_neither_end(
    kind: dict[str, float], most: float, near: float, error: float, may_be_more: bool
) -> None:
    """That of a limited square is 0 before and behind, where an infinite gradient stops."""
    _, square = formulas.gated(Gated("sreglu", **kind))
    place, off = (torch.tensor([number], dtype=torch.float64) for number in (near, error))
    slope = bounds.Bounded(place, off, torch.bfloat16).slope(square)
    gradient = bounds.Bounded.exact(torch.tensor([torch.inf]), torch.bfloat16)
    assert bounds.breach(torch.tensor([0.0]), slope) == ""
    assert bounds.breach(torch.tensor([0.0]), gradient * slope) == ""
    assert (bounds.breach(torch.tensor([most * (1 - 1e-6)]), slope) == "") == may_be_more
    assert (bounds.breach(torch.tensor([torch.inf]), gradient * slope) == "") == may_be_more
    assert bounds.breach(torch.tensor([most * (1 + 1e-2)]), slope) != ""


@pytest.mark.parametrize("count", [20, pytest.param(1500, marks=thorough)])
def test_a_bound_is_that_of_many_arguments(count: int) -> None:
    """Of every kind that is drawn: its value, its slope and its second derivative."""
    place = torch.tensor([-6.0, -1.4, -0.2, 0.0, 0.1, 0.7, 3.0, 9.0], dtype=torch.float64).repeat(3)
    off = torch.tensor([0.05, 1.0, 12.0], dtype=torch.float64).repeat_interleave(8)
    arguments = place + off * torch.linspace(-1, 1, 1001, dtype=torch.float64).unsqueeze(1)
    given, many = bounds.Bounded(place, off, torch.float64), bounds.Bounded.exact(arguments, torch.float64)
    kinds = {each.kind_object for each in itertools.islice(search.problems("correct", "cpu", 0), count)}
    for kind in sorted(kinds - {None}, key=str):
        for formula in [formulas.activation(kind)] if isinstance(kind, Activation) else formulas.gated(kind):
            for of in ("through", "slope", "curvature"):
                bounded, values = getattr(given, of)(formula), getattr(many, of)(formula).value
                farthest, step = (values - bounded.value).abs().amax(0), values.diff(dim=0).abs().amax(0)
                assert bool((farthest <= bounded.error).all()), f"{kind}, {of}: too small"
                assert bool((bounded.error <= farthest + step + 1e-9).all()), f"{kind}, {of}: too large"


@pytest.mark.parametrize(
    ("dtype", "cap", "gate", "entry"),
    [
        ("float16", 7.69190876930201, -1.2607421875, "autograd"),
        ("bfloat16", 9.085123301106979, -1.265625, "autograd"),
        ("bfloat16", 16.205487072456684, 2.234375, "second"),
        ("float16", 17.32478463109212, -2.392578125, "second"),
    ],
)
def test_terms_of_a_slope_may_cancel(
    monkeypatch: pytest.MonkeyPatch, dtype: str, cap: float, gate: float, entry: str
) -> None:
    """Those of situ_glu, where a slope or a second derivative is nearly 0. More is found."""
    kind = f"situ_glu(gate_cap={cap},value_cap=1.0)"
    problem = Problem.read(f"gated_product kind={kind} dtype={dtype} sizes=1x1x1 entry={entry}")
    value, x, grad = (torch.full((1, 1, 1), number, dtype=problem.torch_dtype) for number in (16.0, gate, 1024.0))
    monkeypatch.setattr(calls.Inputs, "of", lambda *_: calls.Inputs({"value": value, "gate": x}, grad, {}))
    assert modes.correct(problem, "cpu") == ""

    def off(*given: Any) -> calls.Results:
        *others, last = calls.run(*given)
        assert last is not None
        return *others, last + 1024 * 2.0**-18

    monkeypatch.setattr(modes, "run", off)
    assert re.match("grad_gate|second_gate", modes.correct(problem, "cpu"))


@pytest.mark.parametrize(("backend", "may_be_zero"), [("cpu", False), ("cuda", True)])
def test_a_factor_of_a_second_derivative_may_be_denormal(backend: str, may_be_zero: bool) -> None:
    """At -10.6875 gelu_tanh's is 7260 e^-104.2, and e^-104 the least denormal number of float32."""
    place, large = (torch.tensor([x], dtype=torch.bfloat16) for x in (-10.6875, 1e4))
    exact = functools.partial(bounds.Bounded.exact, dtype=torch.bfloat16, backend=backend)
    curvature = exact(place).curvature(formulas.activation(Activation("gelu_tanh"))) * exact(large)
    assert (bounds.breach(torch.zeros_like(place), curvature) == "") == may_be_zero


@pytest.mark.parametrize(("backend", "may_be_one"), [("cpu", False), ("cuda", True)])
def test_an_adapter_may_be_added_to_what_is_rounded_with_its_bias(backend: str, may_be_one: bool) -> None:
    """1 + 0.9 u is 1 in bfloat16, and so is 1 + 0.9 u again; 1 + 1.8 u is 1 + 2 u."""
    exact = functools.partial(bounds.Bounded.exact, dtype=torch.bfloat16, backend=backend)
    one, part = exact(torch.ones(1, 1)), exact(torch.full((1, 1), 0.9 * 2.0**-8))
    layer = expected._times(one, expected.Adapted(part, one, part), one)
    assert (bounds.breach(torch.ones(1, 1, dtype=torch.bfloat16), layer) == "") == may_be_one


@pytest.mark.parametrize(("error", "may_be_one"), [(1e3, False), (1e14, True)])
def test_a_slope_may_be_that_of_0_where_the_argument_may_be_0(error: float, may_be_one: bool) -> None:
    """A sum of huge terms that cancel. The slope of softcap is 0 at both ends of what it may be."""
    place, off = torch.tensor([1e12], dtype=torch.float64), torch.tensor([error], dtype=torch.float64)
    slope = bounds.Bounded(place, off, torch.float32).slope(formulas.activation(Activation("softcap")))
    assert bounds.breach(torch.tensor([0.0]), slope) == ""
    assert (bounds.breach(torch.tensor([1.0]), slope) == "") == may_be_one


@pytest.mark.parametrize(("error", "may_be_nan"), [(0.0, False), (1e-2, True)])
def test_beside_a_branch_an_infinite_gradient_may_stop_or_not(error: float, may_be_nan: bool) -> None:
    """hardswish stops it below -3. A preactivation near -3 may have been above."""
    gradient = bounds.Bounded.exact(torch.tensor([torch.inf]), torch.float32)
    place, off = torch.tensor([-3.005], dtype=torch.float64), torch.tensor([error], dtype=torch.float64)
    slope = bounds.Bounded(place, off, torch.float32).slope(formulas.activation(Activation("hardswish")))
    assert bounds.breach(torch.tensor([0.0]), gradient * slope) == ""
    assert (bounds.breach(torch.tensor([torch.nan]), gradient * slope) == "") == may_be_nan


def test_a_formula_may_go_beyond_the_range_on_the_way() -> None:
    """celu of a negative alpha is alpha times a power, which overflows first."""
    celu = formulas.activation(Activation("celu", alpha=-0.6))
    x = torch.tensor([-0.6 * 89.0, -0.6 * 88.0])
    got = torch.tensor([-torch.inf, -torch.inf])
    for dtype, wrong in ((torch.float32, "at [1]"), (torch.float64, "at [0]")):
        assert wrong in bounds.breach(got.to(dtype), bounds.Bounded.exact(x, dtype).through(celu))


def test_a_sum_over_batches_may_overflow_on_the_way() -> None:
    """A kernel adds up the terms of both products in any order."""
    large = torch.tensor([[[2e38]], [[-2e38]]])
    sums = bounds.Bounded.exact(large, torch.float32) @ bounds.Bounded.exact(torch.ones(2, 1, 1), torch.float32)
    assert bounds.breach(torch.tensor([[torch.inf]]), sums.sum_to((1, 1))) == ""
    assert bounds.breach(torch.tensor([[torch.inf]]), (sums * sums.map(torch.zeros_like)).sum_to((1, 1))) != ""


@pytest.mark.parametrize(("size", "overflows"), [(3e38, True), (1e38, False)])
def test_a_sum_over_experts_may_overflow_on_the_way(size: float, overflows: bool) -> None:
    total = expected.zeros(bounds.Bounded.exact(torch.zeros(1), torch.float32))
    for sign in (1, 1, -1):
        total.put(torch.tensor([0]), bounds.Bounded.exact(torch.tensor([sign * size]), torch.float32))
    assert bounds.breach(torch.tensor([size]), total.added_up()) == ""
    assert (bounds.breach(torch.tensor([torch.inf]), total.added_up()) == "") == overflows


def test_bits_that_depend_on_needs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(grads: Any, *arguments: Any, needs: tuple[bool, ...], out: Any, **options: Any) -> Any:
        if sum(needs) == 1:
            out[needs.index(True)].mul_(1 + 2**-7)
        return grads

    wrong_in(monkeypatch, backward, "linear_backward", change)
    assert "other bits for one gradient" in found("bitwise", "linear")


def test_rows_that_depend_on_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a library that sums in another order where there are many rows."""

    def change(result: Any, *, a: Tensor, out: Tensor, **options: Any) -> Any:
        if a.dim() == 2 and len(a) > 6:
            out.mul_(1 + 2**-7)
        return result

    wrong_in(monkeypatch, forward, "matmul_bias_activation", change)
    assert "alone" in found("bitwise", "matmul_bias_activation")


@pytest.mark.parametrize("op", ["linear", "gated_mlp", "grouped_linear", "experts"])
def test_rows_of_every_product_are_computed_alone(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """As of a kernel that takes another way for one row: any rank, and within groups."""

    def change(result: Any, *, input: Tensor, out: Tensor, **options: Any) -> Any:
        if input.dim() == 3 or input.shape[0] <= 4:
            out.mul_(1 + 2**-7)
        return result

    wrong_in(monkeypatch, forward, op, change)
    some = [each for each in some_of(60, op=op, entry="stateless") if each.values == "normal"]
    alone = [each for each in some if "alone" in search.verdict("bitwise", each, "cpu")]
    assert len(alone) > 1


def test_most_products_have_rows_that_are_computed_alone() -> None:
    some = [each for each in itertools.islice(search.problems("bitwise", "cpu", 0), 1000) if each.row.multiplies]
    assert sum(each.row_dims is not None and min(each.sizes) > 0 for each in some) > len(some) / 2


@pytest.mark.parametrize("what", ["objects", "malloc"])
def test_a_leak_is_found(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    kept: list[Any] = []

    def change(out: Tensor, *arguments: Any, **options: Any) -> Tensor:
        kept.append([len(kept)] if what == "objects" else torch.empty(100))
        return out

    wrong_in(monkeypatch, epigrad, "activation", change)
    problem = Problem.read("activation kind=gelu sizes=2x3x0")
    assert "more after each" in modes.leak(problem, "cpu")


def test_a_race_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function whose result is that of the latest call."""
    latest: list[Tensor] = []

    def change(out: Tensor, *arguments: Any, **options: Any) -> Tensor:
        latest[:] = [out.detach().clone()]
        for _ in range(200):
            torch.rand(50).sort()  # where another thread comes in
        return out + (latest[0] - out.detach())

    wrong_in(monkeypatch, epigrad, "activation", change)
    assert "beside other threads" in modes.race(Problem.read("activation kind=gelu sizes=2x3x0"), "cpu")
