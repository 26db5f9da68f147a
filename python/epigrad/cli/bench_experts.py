"""The table of ``python -m epigrad bench --experts``: mixtures of experts, forward and backward.

The experts are transformers' own modules, of the sizes of three models. Implementations take turns:
epigrad's, transformers' ``grouped_mm`` and ``eager``, and SonicMoE's where it is installed and
computes such experts; and with them the floor, six dense products of as many rows and columns by
`torch.mm`. The routing is given: each token's experts are drawn without repetition, all alike or
with Zipf's weights.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from epigrad.cli import sonicmoe
from epigrad.cli.machine import backend, commit, cpu_name, cuda_facts
from epigrad.cli.picture import plot_experts
from epigrad.cli.report import Progress, Report, Row, command, failure, told
from epigrad.cli.table import print_table
from epigrad.cli.timing import Timing, interleaved, interleaved_on_cuda

__all__ = ["CASES", "DTYPES", "Case", "run"]

SECONDS, QUICK_SECONDS = 4.0, 1.0
OTHER = "grouped_mm"
"""transformers' default, which the others are compared with."""
IMPLEMENTATIONS = (OTHER, "eager", "epigrad")
FLOOR = "floor"
ALLOWED = 4.0
"""The relative distance that two implementations' results may have, in epsilons of the dtype. In
float32 it is in 2^-19: two orders of a sum of thousands differ by more than an epsilon."""
ROUTINGS = ("uniform", "zipf")
DTYPES = ("float32", "bfloat16", "float16")
"""Those that transformers' grouped_mm takes."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model's experts.

    Attributes:
        module: transformers' class, behind ``transformers.models.``.
        config: the class of its configuration.
        experts: how many there are.
        features: of a token.
        hidden: features of an expert's hidden layer.
        tokens: in a batch.
        each: experts of a token.
        options: of the configuration, besides.
    """

    module: str
    config: str
    experts: int
    features: int
    hidden: int
    tokens: int
    each: int
    options: tuple[tuple[str, Any], ...] = ()

    def make(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The module with random weights."""
        sizes = {
            "hidden_size": self.features,
            "intermediate_size": self.hidden,
            "moe_intermediate_size": self.hidden,
            "num_experts": self.experts,
            "num_local_experts": self.experts,
            "num_experts_per_tok": self.each,
        }
        config = getattr(importlib.import_module("transformers"), self.config)(**sizes | dict(self.options))
        package, name = self.module.rsplit(".", 1)
        made: nn.Module
        with device:
            made = getattr(importlib.import_module(f"transformers.models.{package}"), name)(config)
            made = made.to(dtype)
            for parameter in made.parameters():
                nn.init.normal_(parameter, std=self.features**-0.5)
        return made

    def smaller(self) -> Case:
        """Of a size for CPUs: as many experts, an eighth of the features, few tokens."""
        return Case(
            self.module,
            self.config,
            self.experts,
            self.features // 8,
            self.hidden // 8,
            min(self.tokens // 8, 8 * self.experts),
            self.each,
            self.options,
        )

    def __str__(self) -> str:
        return f"{self.experts} of {self.features} -> {self.hidden}, {self.tokens} tokens x {self.each}"


CASES = {
    "qwen3-30b-a3b": Case("qwen3_moe.modeling_qwen3_moe.Qwen3MoeExperts", "Qwen3MoeConfig", 128, 2048, 768, 8192, 8),
    "gpt-oss-20b": Case("gpt_oss.modeling_gpt_oss.GptOssExperts", "GptOssConfig", 32, 2880, 2880, 8192, 4),
    "mixtral-like": Case("mixtral.modeling_mixtral.MixtralExperts", "MixtralConfig", 8, 4096, 14336, 4096, 2),
}


def run(args: argparse.Namespace, device_name: str) -> int:
    """Measure, print the table and write the requested files; 1 if anything failed."""
    if importlib.util.find_spec("transformers") is None:
        args.error("--experts: the experts are transformers' own, which is not installed: pip install transformers")
    importlib.import_module("epigrad.integrations.transformers").register_experts()
    on_cuda = device_name == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    facts = cuda_facts(device) if on_cuda else {"threads": torch.get_num_threads(), "backend": backend("cpu")}
    report = Report(
        device=torch.cuda.get_device_name(device) if on_cuda else cpu_name(),
        command=command(args, device_name),
        unit="seconds of forward and backward: median, quartiles, fastest; kept, peak: bytes",
        path=args.json,
        slug="experts",
        facts={**facts, "commit": commit(), "libraries": _libraries()},
    )
    seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    dtypes = args.dtypes or (("bfloat16",) if on_cuda else ("float32", "bfloat16"))
    problems = list(itertools.product(args.experts, dtypes, ROUTINGS))
    with Progress(len(problems), args.json) as progress:
        for name, dtype, routing in problems:
            case = CASES[name] if on_cuda else CASES[name].smaller()
            label, problem = f"{name} {dtype} {routing}", {"case": name, "dtype": dtype, "routing": routing}
            progress.begin(label)
            try:
                rows = [problem | row for row in measure(case, getattr(torch, dtype), routing, device, seconds)]
                text = ", ".join(f"{row['implementation']} {told(row['time'])}" for row in rows)
            except Exception as error:
                rows, text = [{**problem, "error": failure(error)}], failure(error)
            report.add(*rows)
            progress.end(f"{label}: {text}")
    report.finish(lambda: _print(report.rows))
    if args.plot is not None and any("time" in row for row in report.rows):
        plot_experts(report.place(args.plot, "png"), report.contents())
    return int(any("error" in row for row in report.rows))


def route(case: Case, routing: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Each token's experts, without repetition, and their scales, which sum to 1."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.ones(case.experts, dtype=torch.float64)
    if routing == "zipf":
        weights = 1 / torch.arange(1, case.experts + 1, dtype=torch.float64)
        weights = weights[torch.randperm(case.experts, generator=generator)]
    uniform = torch.rand(case.tokens, case.experts, generator=generator, dtype=torch.float64)
    logits = weights.log() - (-uniform.clamp(1e-9, 1 - 1e-9).log()).log()  # Gumbel's: top-k draws without repetition
    values, index = logits.topk(case.each, 1)
    return index.to(device), values.softmax(1).to(device, torch.float32)


def measure(case: Case, dtype: torch.dtype, routing: str, device: torch.device, seconds: float) -> list[Row]:
    """A row for each implementation and for the floor."""
    on_cuda = device.type == "cuda"
    torch.manual_seed(0)
    module = case.make(device, dtype)
    index, scale = route(case, routing, device)
    x = torch.randn(case.tokens, case.features, device=device, dtype=dtype).requires_grad_()
    scale = scale.to(dtype).requires_grad_()
    grad = torch.randn(case.tokens, case.features, device=device, dtype=dtype)
    names = ["out", "input", "scale", *(name for name, _ in module.named_parameters())]
    asking = [x, scale, *module.parameters()]

    def step(implementation: str) -> Callable[[], list[Tensor]]:
        def forward_and_backward() -> list[Tensor]:
            module.config._experts_implementation = implementation  # type: ignore[union-attr]
            out = module(x, index, scale)
            return [out.detach(), *torch.autograd.grad(out, asking, grad)]

        return forward_and_backward

    rows: list[Row] = []
    steps: dict[str, Callable[[], object]] = {}
    reference: Sequence[Tensor] = ()
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    if sonicmoe.takes(module, x):
        sonicmoe.register()
        implementations += (sonicmoe.NAME,)
    for implementation in implementations:
        found = step(implementation)()
        row: Row = {"size": str(case), "implementation": implementation}
        if reference:
            row["difference"], right = _difference(names, found, reference)
            if not right:
                raise ArithmeticError(f"{implementation} is {row['difference']:.2g} from {OTHER}")
        else:
            reference = found
        rows.append(row)
        steps[implementation] = step(implementation)
    reference, found = (), []
    if on_cuda:
        for row in rows:
            row |= _memory(module, row["implementation"], x, index, scale, grad, asking)
    steps[FLOOR] = _floor(case, device, dtype)
    rows.append({"size": str(case), "implementation": FLOOR})
    timings = interleaved_on_cuda(steps, seconds) if on_cuda else interleaved(steps, seconds)
    for row in rows:
        timing: Timing = timings[row["implementation"]]
        row["time"] = asdict(timing)
        for ratio, other in (("ratio_to_floor", FLOOR), ("ratio", OTHER)):
            row[ratio] = timing.median / timings[other].median
    return rows


def _libraries() -> dict[str, str]:
    """The versions of what takes turns with epigrad, by the names that pip knows them by."""
    names = {"transformers": "transformers", "sonicmoe": sonicmoe.NAME, "quack": "quack-kernels"}
    return {pip: importlib.metadata.version(pip) for module, pip in names.items() if importlib.util.find_spec(module)}


def _difference(names: Sequence[str], got: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[float, bool]:
    """The largest relative distance of two results, NaN if there is any, and whether it is small
    enough."""
    distances, right = [], []
    for name, one, other in zip(names, got, wanted, strict=True):
        distance = (one.float() - other.float()).norm() / other.float().norm()
        distances.append(distance)
        # grouped_mm adds gradients of biases up row by row in the weights' dtype
        epsilons = 8 * ALLOWED if "bias" in name else ALLOWED
        right.append(bool(distance <= epsilons * max(torch.finfo(other.dtype).eps, 2.0**-19)))
    return float(torch.stack(distances).max()), all(right)


def _floor(case: Case, device: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    """Six dense products of equal size: forward, and both gradients of either layer."""
    slots = case.tokens * case.each

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    x, pre, hidden = drawn(slots, case.features), drawn(slots, 2 * case.hidden), drawn(slots, case.hidden)
    w_in, w_out = drawn(2 * case.hidden, case.features), drawn(case.features, case.hidden)
    results = [torch.empty_like(t) for t in (pre, x, hidden, w_out, x, w_in)]

    def products() -> None:
        pairs = ((x, w_in.t()), (hidden, w_out.t()), (x, w_out), (x.t(), hidden), (pre, w_in), (pre.t(), x))
        for (left, right), out in zip(pairs, results, strict=True):
            torch.mm(left, right, out=out)

    return products


def _memory(
    module: nn.Module, implementation: str, x: Tensor, index: Tensor, scale: Tensor, grad: Tensor, asking: list[Tensor]
) -> Row:
    """What is kept between forward and backward beside the output, and the most that both take
    beside the gradients of weights."""
    module.config._experts_implementation = implementation  # type: ignore[union-attr]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = module(x, index, scale)
    kept = torch.cuda.memory_allocated() - before - out.numel() * out.element_size()
    grads = torch.autograd.grad(out, asking, grad)
    torch.cuda.synchronize()
    weights = sum(g.numel() * g.element_size() for g in grads[2:])
    return {"kept": kept, "peak": torch.cuda.max_memory_allocated() - before - weights}


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "time": ("forward + backward", told),
    "ratio_to_floor": ("/floor", "{:.3f}".format),
    "ratio": ("/grouped_mm", "{:.3f}".format),
    "kept": ("kept", _mebibytes),
    "peak": ("peak", _mebibytes),
}


def _print(rows: Sequence[Row]) -> None:
    columns = {field: column for field, column in _COLUMNS.items() if any(row.get(field) for row in rows)}
    lines = [
        [
            row["case"],
            row["dtype"],
            row["routing"],
            row.get("implementation", "-"),
            *(tell(row[field]) if field in row else "-" for field, (_, tell) in columns.items()),
            "failed" if "error" in row else "",
        ]
        for row in rows
    ]
    headings = ["experts", "dtype", "routing", "implementation", *(heading for heading, _ in columns.values()), "note"]
    print_table("Experts: median time and half the distance of the quartiles", headings, lines)
    for name, size in {row["case"]: row["size"] for row in rows if "size" in row}.items():
        print(f"{name}: experts of features -> hidden features: {size}")
    print("floor: dense products of as many rows")
    for row in rows:
        if "error" in row:
            print(f"error: {row['case']} {row['dtype']} {row['routing']}: {row['error']}")
