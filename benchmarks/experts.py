"""The tables of ``python -m benchmarks experts`` and ``sonicmoe``: mixtures of experts, forward and
backward.

The experts are transformers' own modules, of the sizes of three models. Implementations take turns:
epigrad's, transformers' ``grouped_mm`` and ``eager``, and SonicMoE's where it is installed and
computes such experts; and with them the floor, six dense products of as many rows and columns by
`torch.mm`. The routing is given: each token's experts are drawn without
repetition, all alike or with Zipf's weights.

The table ``sonicmoe`` has the shapes that SonicMoE publishes, without ``eager``, and SonicMoE with
tuned products too.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from epigrad.cli import bench, machine
from epigrad.cli.contest import Candidate
from epigrad.cli.report import Row, told
from epigrad.cli.runner import Task
from epigrad.cli.timing import interleaved, interleaved_on_cuda
from torch import Tensor, nn

from benchmarks import pictures, sonicmoe
from benchmarks.record import Record

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
    """A model's experts: transformers' names of the model, and sizes."""

    model: str
    experts: int
    features: int
    hidden: int
    tokens: int
    each: int

    def make(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The module with random weights."""
        sizes = {
            "hidden_size": self.features,
            **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), self.hidden),
            **dict.fromkeys(("num_experts", "num_local_experts"), self.experts),
            "num_experts_per_tok": self.each,
        }
        config = getattr(importlib.import_module("transformers"), f"{self.model}Config")(**sizes)
        package = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", self.model).lower()
        module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
        with device:
            made: nn.Module = getattr(module, f"{self.model}Experts")(config).to(dtype)
            for parameter in made.parameters():
                nn.init.normal_(parameter, std=self.features**-0.5)
        return made

    def smaller(self) -> Case:
        """Of a size for CPUs: as many experts, an eighth of the features, few tokens."""
        tokens = min(self.tokens // 8, 8 * self.experts)
        return replace(self, features=self.features // 8, hidden=self.hidden // 8, tokens=tokens)

    def __str__(self) -> str:
        return f"{self.experts} of {self.features} -> {self.hidden}, {self.tokens} tokens x {self.each}"


MODELS = {"qwen3-30b-a3b": "Qwen3Moe", "gpt-oss-20b": "GptOss", "mixtral-like": "Mixtral"}
CASES = {name: Case(model, *bench.EXPERTS[name]) for name, model in MODELS.items()}
# Tokens, features, hidden features, experts, and experts of a token: a row of each of CASES, and of
# figure 13 of https://arxiv.org/abs/2512.14080.
_SHAPES = (
    (8192, 2048, 768, 128, 8),
    *((24576, 1536, *fine) for fine in ((256, 128, 8), (512, 64, 4), (1024, 32, 2))),
    *((32768, 4096, *fine) for fine in ((256, 256, 16), (512, 128, 8), (1024, 64, 4))),
    *((40960, 768, *fine) for fine in ((256, 128, 8), (512, 64, 4), (1024, 32, 2))),
    (4096, 4096, 14336, 8, 2),
    (8192, 2880, 2880, 32, 4),
)
SHAPES = {
    f"{tokens}x{features}, {hidden}, {experts}, {each}": Case("Qwen3Moe", experts, features, hidden, tokens, each)
    for tokens, features, hidden, experts, each in _SHAPES
}


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


def measure(
    case: Case, dtype: torch.dtype, routing: str, device: torch.device, beside_sonicmoe: bool, seconds: float
) -> Iterator[Row]:
    """A row for each implementation and for the floor."""
    torch.manual_seed(0)
    module: Any = case.make(device, dtype)
    index, scale = route(case, routing, device)
    x = torch.randn(case.tokens, case.features, device=device, dtype=dtype).requires_grad_()
    scale = scale.to(dtype).requires_grad_()
    grad = torch.randn(case.tokens, case.features, device=device, dtype=dtype)
    names = ["out", "input", "scale", *(name for name, _ in module.named_parameters())]
    asking = [x, scale, *module.parameters()]

    def forward(implementation: str) -> Tensor:
        module.config._experts_implementation = implementation
        out: Tensor = module(x, index, scale)
        return out

    implementations = tuple(name for name in IMPLEMENTATIONS if not (beside_sonicmoe and name == "eager"))
    if sonicmoe.takes(module, x):
        implementations += sonicmoe.register(tunes=beside_sonicmoe)
    ways = {name: Candidate(partial(forward, name), asking) for name in implementations}
    rows: dict[str, Row] = {}
    reference: list[Tensor] = []
    for name, way in ways.items():
        begin = time.perf_counter()
        found = way.step(grad)
        if device.type == "cuda":
            torch.cuda.synchronize()
        rows[name] = {"size": str(case), "implementation": name, "first": time.perf_counter() - begin}
        if reference:
            rows[name]["difference"], right = _difference(names, found, reference)
            if not right:
                raise ArithmeticError(f"{name} is {rows[name]['difference']:.2g} from {OTHER}")
        reference = reference or found
    reference, found = [], []
    if device.type == "cuda":
        weights = sum(parameter.nbytes for parameter in module.parameters())
        for name, way in ways.items():
            rows[name] |= (memory := machine.memory(way.forward, partial(way.backward, grad)))
            rows[name]["peak"] = memory["peak"] - weights  # their gradients are no extra
    rows[FLOOR] = {"size": str(case), "implementation": FLOOR}
    steps = {name: partial(way.step, grad) for name, way in ways.items()}
    turns = interleaved_on_cuda if device.type == "cuda" else interleaved
    timings = turns({**steps, FLOOR: _floor(case, device, dtype)}, seconds)
    forwards = {name: way.forward for name, way in ways.items()}
    of_forward = turns({**forwards, FLOOR: _floor(case, device, dtype, 2)}, seconds / 2)
    for name, row in rows.items():
        row["time"], row["forward"] = asdict(timings[name]), asdict(of_forward[name])
        for ratio, other in (("ratio_to_floor", FLOOR), ("ratio", OTHER)):
            row[ratio] = timings[name].median / timings[other].median
        yield row


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


def _floor(case: Case, device: torch.device, dtype: torch.dtype, count: int = 6) -> Callable[[], object]:
    """Six dense products of equal size: forward, which are the first two, and both gradients of
    either layer."""
    slots = case.tokens * case.each

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    x, pre, hidden = drawn(slots, case.features), drawn(slots, 2 * case.hidden), drawn(slots, case.hidden)
    w_in, w_out = drawn(2 * case.hidden, case.features), drawn(case.features, case.hidden)
    results = [torch.empty_like(t) for t in (pre, x, hidden, w_out, x, w_in)]

    def products() -> None:
        pairs = ((x, w_in.t()), (hidden, w_out.t()), (x, w_out), (x.t(), hidden), (pre, w_in), (pre.t(), x))
        for (left, right), out in zip(pairs[:count], results, strict=False):
            torch.mm(left, right, out=out)

    return products


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def subject(args: argparse.Namespace, beside_sonicmoe: bool = False) -> Record:
    """The table of a device's mixtures."""
    name = "sonicmoe" if beside_sonicmoe else "experts"
    if importlib.util.find_spec("transformers") is None:
        args.error(f"{name}: they are transformers' own, which is not installed: pip install transformers")
    importlib.import_module("epigrad.integrations.transformers").register_experts()
    on_cuda = args.device == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    dtypes = args.dtypes or (("bfloat16",) if on_cuda else ("float32", "bfloat16"))
    cases, routings = (SHAPES, ROUTINGS[:1]) if beside_sonicmoe else (CASES, ROUTINGS)
    return Record(
        slug=name,
        device=machine.name(device),
        unit=(
            "seconds of forward and backward, and of forward: median, quartiles, fastest; first: seconds of the first "
            "call; kept, peak: bytes"
        ),
        title="Experts: median time and half the distance of the quartiles",
        tasks=[
            Task(
                f"{name} {dtype} {routing}",
                {"case": name, "dtype": dtype, "routing": routing},
                partial(
                    measure,
                    case if on_cuda else case.smaller(),
                    getattr(torch, dtype),
                    routing,
                    device,
                    beside_sonicmoe,
                ),
            )
            for (name, case), dtype, routing in itertools.product(cases.items(), dtypes, routings)
        ],
        names={"case": "experts", "dtype": "dtype", "routing": "routing", "implementation": "implementation"},
        columns={
            "time": ("forward + backward", told),
            "forward": ("forward", told),
            "ratio_to_floor": ("/floor", "{:.3f}".format),
            "ratio": ("/grouped_mm", "{:.3f}".format),
            "kept": ("kept", _mebibytes),
            "peak": ("peak", _mebibytes),
            "first": ("first call", "{:.2f} s".format),
        },
        seconds=1.0 if args.quick else 4.0,
        facts={**machine.facts(device), "libraries": _libraries()},
        picture=pictures.draw_experts,
    )


def subject_beside_sonicmoe(args: argparse.Namespace) -> Record:
    """The table of the shapes that SonicMoE publishes."""
    return subject(args, beside_sonicmoe=True)
