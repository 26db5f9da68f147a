"""The table of ``python -m benchmarks models``: training steps of whole models.

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
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from epigrad.cli import machine
from epigrad.cli.contest import distance
from epigrad.cli.models import MODELS, Inputs, Model
from epigrad.cli.report import Row, failure, seconds_told, told
from epigrad.cli.runner import Task
from epigrad.integrations.patching import patch
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from benchmarks import pictures
from benchmarks.record import Record
from benchmarks.timing import steps_and_host, wait_for

# How long a model's variants take turns. On CUDA a turn is a burst of steps.
SECONDS, QUICK_SECONDS = 15.0, 2.0
BURST = 4

# A CUDA graph is warmed up, recorded and replayed in the first three steps.
WARM_UPS = 4

PROFILED_STEPS = 3

EAGER, PATCHED, LIGER = "eager", "patched", "liger"
# Liger's functions, by the models that they patch.
LIGERS = {name: f"apply_liger_kernel_to_{name}" for name in ("llama", "gemma")}


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compute a model.

    Attributes:
        weights: which instance: the model itself, or one that was patched.
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
        least: how many rounds at least.
        compiled: whether torch.compile is measured.
    """

    device: torch.device
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

    def variants(self, model: str) -> list[Variant]:
        """Those that can be measured here."""

        def is_here(variant: Variant) -> bool:
            if variant.weights == LIGER and not (
                self.on_cuda and model in LIGERS and importlib.util.find_spec("liger_kernel") is not None
            ):
                return False
            return variant.mode is None or (self.compiled and (self.on_cuda or not variant.has_graphs))

        return list(filter(is_here, VARIANTS))


def subject(args: argparse.Namespace) -> Record:
    """The table of a device's models."""
    device = torch.device("cuda", torch.cuda.current_device()) if args.device == "cuda" else torch.device("cpu")
    on_cuda = device.type == "cuda"
    settings = Settings(
        device, least=2 if args.quick else 5, compiled=on_cuda if args.compile is None else args.compile
    )
    here = {
        library: importlib.metadata.version(library)
        for library in ("transformers", "timm", "liger_kernel")
        if importlib.util.find_spec(library) is not None
    }
    return Record(
        slug="models",
        device=machine.name(device),
        unit=f"seconds of one step: median, quartiles, fastest; ratio: of these, the {settings.statistic}; peak: bytes",
        title="A training step: median time and half the distance of the quartiles",
        tasks=[Task(name, {"model": name}, partial(_in_a_process, name, settings)) for name in MODELS],
        names={"model": "model", "variant": "variant"},
        columns={
            "wall": ("step", told),
            "ratio": ("/eager", "{:.3f}".format),
            "ratio_to_unpatched": ("/unpatched", "{:.3f}".format),
            "busy": ("GPU busy", seconds_told),
            "host": ("host", told),
            "peak": ("peak", lambda peak: f"{peak / 2**20:.0f} MiB"),
            "difference": ("difference", "{:.1e}".format),
            "graph_breaks": ("graph breaks", str),
            "cudagraph_skips": ("without CUDA graphs", str),
        },
        seconds=QUICK_SECONDS if args.quick else SECONDS,
        facts={**machine.facts(device), "libraries": here, "statistic": settings.statistic},
        picture=pictures.draw_models,
    )


# --- a process for each model ---------------------------------------------------------------------


def _in_a_process(name: str, settings: Settings, seconds: float) -> list[Row]:
    """The rows of `measure` in a process of its own, which may die: what it has sent until then."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, name, settings, seconds))
    process.start()
    sender.close()
    rows: list[Row] = []
    try:
        while True:
            rows = receiver.recv()
    except EOFError:
        process.join()
        if process.exitcode:
            rows = [*rows, {"variant": EAGER, "error": f"its process ended with {process.exitcode}"}]
    finally:
        process.kill()
        process.join()
    return rows


def _send(sender: Connection, name: str, settings: Settings, seconds: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    with sender:
        try:
            for rows in measure(name, MODELS[name], settings, seconds):
                sender.send(rows)
        except Exception as error:
            sender.send([{"variant": EAGER, "error": failure(error)}])


# --- one model ------------------------------------------------------------------------------------


def measure(name: str, model: Model, settings: Settings, seconds: float) -> Iterator[list[Row]]:
    """The rows of a model, one for each variant, which says what failed if anything did: and again
    once they have what a profiler sees."""
    if settings.on_cuda:
        torch.cuda.set_device(settings.device)
    instances = Instances(name, model, settings)
    rows: dict[str, Row] = {}
    steps: dict[str, Step] = {}
    for variant in settings.variants(name):
        row = rows[variant.name] = {"variant": variant.name, **instances.facts}
        try:
            row |= instances.warmed_up(variant, steps)
            if settings.on_cuda and not variant.has_graphs:
                row["peak"] = _peak(steps[variant.name])
        except Exception as error:
            steps.pop(variant.name, None)
            row["error"] = failure(error)
    instances.forget()
    if steps:
        burst = BURST if settings.on_cuda else 1
        walls, hosts = steps_and_host(steps, seconds, wait_for(settings.device), burst, settings.least)
        for variant_name, step in steps.items():
            row = rows[variant_name]
            row["wall"] = asdict(walls[variant_name])
            for ratio, other in (("ratio", EAGER), ("ratio_to_unpatched", step.variant.unpatched)):
                if other in walls and other != variant_name:
                    ours, theirs = (getattr(walls[each], settings.statistic) for each in (variant_name, other))
                    row[ratio] = ours / theirs
            if settings.on_cuda:
                row["host"] = asdict(hosts[variant_name])
    yield list(rows.values())
    if settings.on_cuda:
        # last: it makes what follows slower, and could end the process
        for variant_name, step in steps.items():
            rows[variant_name] |= _busy(step)
        yield list(rows.values())


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
        self.results()
        self.forget()

    def forget(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def results(self) -> list[list[Tensor]]:
        """The same: logits, and the gradients, which stay in the parameters."""
        if self.variant.has_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss, logits = self.model.forward(self.module, self.inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        return [[logits.detach()], [p.grad for p in self.parameters if p.grad is not None]]


class Instances:
    """A model's instances with the same weights, and what a step of them should compute."""

    def __init__(self, name: str, model: Model, settings: Settings) -> None:
        self.name, self.model, self.settings = name, model, settings
        torch.manual_seed(0)
        with settings.device:
            plain, (given, wanted) = model.make(settings.on_cuda)
        plain = plain.to(settings.dtype).train()
        given, wanted = given.to(settings.device), wanted.to(settings.device)
        size = f"{given.shape[0]} x {given.shape[-1]}"
        dtype = str(settings.dtype).removeprefix("torch.")
        self.facts = {"size": size, "parameters": sum(p.numel() for p in plain.parameters()), "dtype": dtype}
        self.modules = {EAGER: plain}
        module: Any = copy.deepcopy(plain).to(settings.wider)
        if settings.wider is torch.float64 and hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("eager")  # grouped_mm, the default, takes no float64
        wider, self.inputs = (
            (given.to(dtype) if given.is_floating_point() else given, wanted)
            for dtype in (settings.wider, settings.dtype)
        )
        self.reference = Step(model, module, wider, Variant(EAGER)).results()
        self.allowed: list[float] = []
        self.eager_logits = torch.empty(0)

    def forget(self) -> None:
        """Free what only the comparison needs."""
        self.reference, self.eager_logits = [], torch.empty(0)
        if self.settings.on_cuda:
            torch.cuda.empty_cache()

    def _module(self, weights: str) -> nn.Module:
        if weights not in self.modules:
            module = copy.deepcopy(self.modules[EAGER])
            if weights == LIGER:
                _apply_liger(LIGERS[self.name], module)
            else:
                report = patch(module)
                if not report.patched or report.left:
                    raise RuntimeError(str(report).replace("\n", ";"))
            self.modules[weights] = module
        return self.modules[weights]

    def warmed_up(self, variant: Variant, steps: dict[str, Step]) -> Row:
        """A variant's step, after its first calls, goes to `steps`; returned is how long they took,
        and how its results differ."""
        begin = time.perf_counter()
        step = Step(self.model, self._module(variant.weights), self.inputs, variant)
        counted = _compiler_counts()
        for _ in range(WARM_UPS):
            step()
        wait_for(self.settings.device)()
        row: Row = {"warm_up": time.perf_counter() - begin}
        if variant.mode is not None:
            row |= {what: count - counted[what] for what, count in _compiler_counts().items()}
        try:
            row |= self._compared(variant, step.results())
        finally:
            step.forget()
        steps[variant.name] = step
        return row

    def _compared(self, variant: Variant, results: list[list[Tensor]]) -> Row:
        """How far results lie from the reference, and logits from eager's."""
        found = [distance(got, wanted) for got, wanted in zip(results, self.reference, strict=True)]
        logits = results[0][0].float()
        if variant == Variant(EAGER):
            self.eager_logits = logits.clone()
            self.allowed = [1.5 * distance + torch.finfo(self.settings.dtype).eps for distance in found]
        if not self.allowed:
            raise RuntimeError("eager gave no result to compare with")
        deviation = dict(zip(("logits", "gradients"), found, strict=True))
        for (what, found_distance), allowed in zip(deviation.items(), self.allowed, strict=True):
            if not found_distance <= allowed:
                raise ArithmeticError(
                    f"{what} are {found_distance:.2g} from {self.settings.wider}'s, want at most {allowed:.2g}: "
                    "wrong results are not timed"
                )
        difference = (logits - self.eager_logits).abs().max() / self.eager_logits.abs().max()
        return {"deviation": deviation, "difference": difference.item()}


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
