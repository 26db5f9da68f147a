"""The table of ``python -m epigrad bench --models``: training steps of whole models.

A step is forward, loss and backward. A model's variants have the same weights and take turns in one
process, each model in a process of its own: a profiler that ran once in a process makes what
follows slower. Before it is timed, a variant has to compute the same as the model itself, by the
tolerance rule: in a wider dtype there is a reference, and logits and gradients may lie at most 1.5
times as far from it as eager's, and one rounding.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import multiprocessing
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from epigrad.cli.machine import backend, commit, cpu_name, cuda_facts
from epigrad.cli.models import MODELS, Inputs, Model, Size
from epigrad.cli.picture import plot_models
from epigrad.cli.report import Progress, Report, Row, command, failure, seconds_told, told
from epigrad.cli.table import print_table
from epigrad.cli.timing import interleaved_steps
from epigrad.integrations.patching import patch

__all__ = ["VARIANTS", "Settings", "measure", "run"]

# How long a model's variants take turns. On CUDA a turn is a burst of steps.
SECONDS, QUICK_SECONDS = 15.0, 2.0
BURST = 4

# A CUDA graph is warmed up, recorded and replayed in the first three steps.
WARM_UPS = 4

PROFILED_STEPS = 3

EAGER, PATCHED, LIGER = "eager", "patched", "liger"


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compute a model.

    Attributes:
        weights: which instance: the model itself, patched by epigrad, or by Liger.
        mode: torch.compile's; None does not compile.
    """

    weights: str
    mode: str | None = None

    @property
    def has_graphs(self) -> bool:
        """Whether CUDA graphs replay it."""
        return self.mode == "reduce-overhead"

    @property
    def name(self) -> str:
        """What is printed."""
        if self.mode is None:
            return self.weights
        own = [] if self.weights == EAGER else [self.weights]
        return " + ".join([*own, "compiled", *(["CUDA graphs"] if self.has_graphs else [])])

    @property
    def unpatched(self) -> str:
        """The name of the same without epigrad."""
        return Variant(EAGER, self.mode).name


VARIANTS = (
    Variant(EAGER),
    Variant(PATCHED),
    Variant(LIGER),
    Variant(EAGER, "default"),
    Variant(PATCHED, "default"),
    Variant(EAGER, "reduce-overhead"),
    Variant(PATCHED, "reduce-overhead"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How models are measured.

    Attributes:
        device: where they are.
        size: which of a model's sizes.
        seconds: how long a model's variants take turns.
        least: how many rounds at least.
        compiled: whether torch.compile is measured.
    """

    device: torch.device
    size: str
    seconds: float
    least: int
    compiled: bool

    @property
    def on_cuda(self) -> bool:
        """Whether there are graphs, memory statistics and CUPTI."""
        return self.device.type == "cuda"

    @property
    def statistic(self) -> str:
        """What ratios are of: others of a machine can only make a round on its CPU slower."""
        return "median" if self.on_cuda else "fastest"

    @property
    def dtype(self) -> torch.dtype:
        """What a model is trained in."""
        return torch.bfloat16 if self.on_cuda else torch.float32

    @property
    def wider(self) -> torch.dtype:
        """The reference's dtype."""
        return torch.float32 if self.on_cuda else torch.float64

    def variants(self, model: Model) -> list[Variant]:
        """Those that can be measured here."""

        def is_here(variant: Variant) -> bool:
            if variant.weights == LIGER and not (
                self.on_cuda and model.liger and importlib.util.find_spec("liger_kernel") is not None
            ):
                return False
            return variant.mode is None or (self.compiled and (self.on_cuda or not variant.has_graphs))

        return list(filter(is_here, VARIANTS))


def run(args: argparse.Namespace, device_name: str) -> int:
    """Measure, print the table and write the requested files; 1 if anything failed."""
    for name in args.models:
        library = MODELS[name].library
        if importlib.util.find_spec(library) is None:
            args.error(f"--models: {name} is a model of {library}, which is not installed: pip install {library}")
    on_cuda = device_name == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    seconds = QUICK_SECONDS if args.quick else SECONDS
    settings = Settings(
        device,
        size="cuda" if on_cuda else "quick" if args.quick else "cpu",
        seconds=seconds if args.seconds is None else args.seconds / len(args.models),
        least=2 if args.quick else 5,
        compiled=on_cuda if args.compile is None else args.compile,
    )
    cpu_facts = {"threads": torch.get_num_threads(), "backend": backend("cpu"), "commit": commit()}
    report = Report(
        device=torch.cuda.get_device_name(device) if on_cuda else cpu_name(),
        command=command(args, device_name),
        unit=f"seconds of one step: median, quartiles, fastest; ratio: of these, the {settings.statistic}; peak: bytes",
        path=args.json,
        slug="models",
        facts={
            **(cuda_facts(device) if on_cuda else cpu_facts),
            "libraries": {
                library: importlib.metadata.version(library)
                for library in ("transformers", "timm", "liger_kernel")
                if importlib.util.find_spec(library) is not None
            },
            "statistic": settings.statistic,
        },
    )
    total = sum(len(settings.variants(MODELS[name])) + 1 for name in args.models)
    with Progress(total, args.json) as progress:
        for name in args.models:
            for kind, content in _in_a_process(name, settings):
                if kind == "begin":
                    progress.begin(content)
                elif kind == "end":
                    progress.end(content)
                elif kind == "rows":
                    report.add(*content)
                else:
                    variant, found = content
                    next(row for row in report.rows if (row["model"], row["variant"]) == (name, variant)).update(found)
                    report.add()
    report.finish(lambda: _print(report.rows))
    if args.plot is not None and any("wall" in row for row in report.rows):
        plot_models(report.place(args.plot, "png"), report.contents())
    return int(any("error" in row for row in report.rows))


# --- a process for each model ---------------------------------------------------------------------

Event = tuple[str, Any]
"""``begin`` and ``end`` with what is to be told, ``rows`` with what was measured, and ``profiled``
with a variant's name and what its row gets besides."""


def _in_a_process(name: str, settings: Settings) -> Iterator[Event]:
    """The events of `measure` in a process of its own, which may die."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, name, settings))
    process.start()
    sender.close()
    try:
        while True:
            yield receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode:
            yield "rows", [_failed(name, f"its process ended with {process.exitcode}")]
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, name: str, settings: Settings) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    with sender:
        try:
            for event in measure(name, MODELS[name], settings):
                sender.send(event)
        except Exception as error:
            sender.send(("rows", [_failed(name, failure(error))]))


def _failed(name: str, reason: str) -> Row:
    """The row of a model of which nothing can be measured."""
    return {"model": name, "variant": EAGER, "error": reason}


# --- one model ------------------------------------------------------------------------------------


def measure(name: str, model: Model, settings: Settings) -> Iterator[Event]:
    """What is measured of a model: a row for each variant, which says what failed if anything
    did."""
    if model.library == "transformers":
        importlib.import_module("transformers").logging.set_verbosity_error()
    if settings.on_cuda:
        torch.cuda.set_device(settings.device)
    size = model.sizes[settings.size]
    subject = Subject(model, size, settings)
    rows: dict[str, Row] = {}
    steps: dict[str, Step] = {}
    for variant in settings.variants(model):
        label = f"{name} {variant.name}"
        yield "begin", label
        row: Row = {
            "model": name,
            "variant": variant.name,
            "size": str(size),
            "parameters": subject.parameters,
            "dtype": str(settings.dtype).removeprefix("torch."),
        }
        rows[variant.name] = row
        try:
            row |= subject.warmed_up(variant, steps)
            if settings.on_cuda and not variant.has_graphs:
                row["peak"] = _peak(steps[variant.name])
            text = f"same results, warm after {row['warm_up']:.1f} s"
        except Exception as error:
            steps.pop(variant.name, None)
            row["error"] = text = failure(error)
        yield "end", f"{label}: {text}"
    subject.forget()
    yield "begin", f"{name}: turns"
    if steps:
        walls, hosts = interleaved_steps(
            steps,
            settings.seconds,
            torch.cuda.synchronize if settings.on_cuda else _nothing,
            BURST if settings.on_cuda else 1,
            settings.least,
        )
        for variant_name, step in steps.items():
            row = rows[variant_name]
            row["wall"] = asdict(walls[variant_name])
            for ratio, other in (("ratio", EAGER), ("ratio_to_unpatched", step.variant.unpatched)):
                if other in walls and other != variant_name:
                    ours, theirs = (getattr(walls[each], settings.statistic) for each in (variant_name, other))
                    row[ratio] = ours / theirs
            if settings.on_cuda:
                row["host"] = asdict(hosts[variant_name])
    yield "rows", list(rows.values())
    if settings.on_cuda:
        # last: it makes what follows slower, and could end the process
        for variant_name, step in steps.items():
            rows[variant_name] |= (busy := _busy(step))
            yield "profiled", (variant_name, busy)
    yield "end", f"{name}: " + ", ".join(f"{each} {told(row['wall'])}" for each, row in rows.items() if "wall" in row)


def _nothing() -> None:
    """What a CPU has to wait for."""


class Step:
    """A training step of a variant."""

    def __init__(self, model: Model, module: nn.Module, inputs: Inputs, variant: Variant) -> None:
        self.model, self.inputs, self.variant = model, inputs, variant
        self.parameters = list(module.parameters())
        self.module = module
        if variant.mode is not None:
            mode = None if variant.mode == "default" else variant.mode
            self.module = torch.compile(module, mode=mode, dynamic=False)  # type: ignore[assignment]

    def __call__(self) -> None:
        """Forward, loss and backward; no gradient is kept."""
        self.logits()
        self.forget()

    def logits(self) -> Tensor:
        """The same, with the gradients in the parameters until `forget`."""
        if self.variant.has_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss, logits = self.model.forward(self.module, self.inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        return logits

    def forget(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None


class Subject:
    """A model's instances with the same weights, and what a step of them should compute."""

    def __init__(self, model: Model, size: Size, settings: Settings) -> None:
        self.model, self.settings = model, settings
        torch.manual_seed(0)
        with settings.device:
            plain = model.make(size).to(settings.dtype).train()
        self.inputs = model.inputs(size, plain)
        self.modules = {EAGER: plain}
        self.parameters = sum(parameter.numel() for parameter in plain.parameters())
        self.reference = self._reference(plain)
        self.allowed: dict[str, float] = {}
        self.eager_logits = torch.empty(0)

    def _reference(self, plain: nn.Module) -> list[list[Tensor]]:
        """Logits and gradients in the wider dtype."""
        wider = self.settings.wider
        images, wanted = self.inputs
        inputs = (images.to(wider) if images.is_floating_point() else images, wanted)
        module: Any = copy.deepcopy(plain).to(wider)
        if wider is torch.float64 and hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")  # grouped_mm, the default, takes no float64
        step = Step(self.model, module, inputs, Variant(EAGER))
        return _results(step, step.logits())

    def forget(self) -> None:
        """Free what only the comparison needs."""
        self.reference, self.eager_logits = [], torch.empty(0)
        if self.settings.on_cuda:
            torch.cuda.empty_cache()

    def warmed_up(self, variant: Variant, steps: dict[str, Step]) -> Row:
        """A variant's step, after its first calls, goes to `steps`; returned is how long they took,
        and how its results differ."""
        begin = time.perf_counter()
        step = Step(self.model, self._module(variant.weights), self.inputs, variant)
        counted = _compiler_counts()
        try:
            for _ in range(WARM_UPS):
                step()
            if self.settings.on_cuda:
                torch.cuda.synchronize()
            row: Row = {"warm_up": time.perf_counter() - begin}
            if variant.mode is not None:
                row |= {what: count - counted[what] for what, count in _compiler_counts().items()}
            row |= self._compared(variant, step)
        finally:
            step.forget()
        steps[variant.name] = step
        return row

    def _module(self, weights: str) -> nn.Module:
        if weights not in self.modules:
            module = copy.deepcopy(self.modules[EAGER])
            if weights == LIGER:
                _apply_liger(self.model.liger, module)
            else:
                report = patch(module)
                if not report.patched or report.left:
                    raise RuntimeError(str(report).replace("\n", ";"))
            self.modules[weights] = module
        return self.modules[weights]

    def _compared(self, variant: Variant, step: Step) -> Row:
        """How far a step's results lie from the reference, and its logits from eager's."""
        logits = step.logits()
        deviation = {
            what: _distance(got, wanted)
            for what, got, wanted in zip(("logits", "gradients"), _results(step, logits), self.reference, strict=True)
        }
        if variant == Variant(EAGER):
            self.eager_logits = logits.detach().clone()
            rounding = torch.finfo(self.settings.dtype).eps
            self.allowed = {what: 1.5 * distance + rounding for what, distance in deviation.items()}
        if not self.allowed:
            raise RuntimeError("eager gave no result to compare with")
        for what, distance in deviation.items():
            if not distance <= self.allowed[what]:
                raise ArithmeticError(
                    f"{what} are {distance:.2g} from {self.settings.wider}'s, want at most {self.allowed[what]:.2g}: "
                    "wrong results are not timed"
                )
        eager = self.eager_logits.float()
        difference = (logits.detach().float() - eager).abs().max() / eager.abs().max()
        return {"deviation": deviation, "difference": difference.item()}


def _results(step: Step, logits: Tensor) -> list[list[Tensor]]:
    return [[logits.detach()], [p.grad for p in step.parameters if p.grad is not None]]


def _distance(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The 2-norm of the difference of two lists of tensors, each as one vector, over the norm of
    the second."""
    differences = [(a.to(b) - b).norm().item() for a, b in zip(got, wanted, strict=True)]
    return math.hypot(*differences) / math.hypot(*(b.norm().item() for b in wanted))


def _apply_liger(name: str, model: nn.Module) -> None:
    """Let Liger compute the MLPs of a model, and nothing else."""
    apply = getattr(importlib.import_module("liger_kernel.transformers"), name)
    switches = [switch for switch in inspect.signature(apply).parameters if switch != "model"]
    own_module = sys.modules[type(model).__module__]
    before = dict(vars(own_module))
    apply(**{switch: switch in ("swiglu", "geglu") for switch in switches}, model=model)
    # It replaces the class in transformers too, which models made later would get.
    vars(own_module).update(before)


def _compiler_counts() -> dict[str, int]:
    """What kept PyTorch from compiling a model as one graph, and from replaying it as CUDA
    graphs."""
    from torch._dynamo.utils import counters

    return {
        "graph_breaks": sum(counters["graph_break"].values()),
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
    }


def _peak(step: Step) -> int:
    """Bytes that a step needs at most, beside what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _busy(step: Step) -> Row:
    """Seconds of a step in which the GPU runs kernels and copies, as CUPTI saw them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler won't be using warmup")
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                for _ in range(PROFILED_STEPS):
                    step()
                torch.cuda.synchronize()
            seconds = device_seconds(profiler.events() or ())
        except Exception as error:  # the times that were measured are kept
            return {"busy_error": failure(error)}
    return {"busy": seconds / PROFILED_STEPS} if seconds else {"busy_error": "the profiler saw no kernel"}


def device_seconds(events: Iterable[Any]) -> float:
    """How long at least one of a profiler's kernels and copies runs. They may overlap: a kernel
    that was launched early waits for the one before."""
    own = [e.time_range for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    microseconds, ended = 0.0, -math.inf
    for time_range in sorted(own, key=lambda each: each.start):
        microseconds += max(0.0, time_range.end - max(time_range.start, ended))
        ended = max(ended, time_range.end)
    return microseconds / 1e6


# --- what is told ---------------------------------------------------------------------------------


_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "wall": ("step", told),
    "ratio": ("/eager", "{:.3f}".format),
    "ratio_to_unpatched": ("/unpatched", "{:.3f}".format),
    "busy": ("GPU busy", seconds_told),
    "host": ("host", told),
    "peak": ("peak", lambda peak: f"{peak / 2**20:.0f} MiB"),
    "difference": ("difference", "{:.1e}".format),
    "graph_breaks": ("graph breaks", str),
    "cudagraph_skips": ("without CUDA graphs", str),
}
"""The fields of a row that are printed, where a row has them: a column's title, and how a value is
told."""


def _print(rows: Sequence[Row]) -> None:
    columns = {field: column for field, column in _COLUMNS.items() if any(row.get(field) for row in rows)}
    lines = [
        [
            row["model"],
            row["variant"],
            *(tell(row[field]) if field in row else "-" for field, (_, tell) in columns.items()),
            "failed" if "error" in row else "",
        ]
        for row in rows
    ]
    title = "A training step: median time and half the distance of the quartiles"
    print_table(title, ["model", "variant", *(heading for heading, _ in columns.values()), ""], lines)
    for row in rows:
        for what in ("error", "busy_error"):
            if what in row:
                print(f"{what}: {row['model']} {row['variant']}: {row[what]}")
