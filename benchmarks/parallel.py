"""The table of ``python -m benchmarks parallel``: experts over processes, forward and backward.

Each row starts as many processes as it has ranks, on a GPU each by NCCL, or on the CPU by gloo.
Every rank has tokens of its own and a part of the experts of Qwen3-30B-A3B. In turns run

    slots grouped_mm   a row for each slot travels, as transformers sends them, and PyTorch's
                       `grouped_mm` multiplies
    slots epigrad      the same rows, which `epigrad.experts` multiplies
    chunks 1, 2, 4     `epigrad.parallel.experts`
    products           no transport: `epigrad.experts` for as many slots, with a rank's experts

A time is that of the slowest rank. The program runs itself as ``python -m benchmarks.parallel``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import epigrad.parallel
import torch
import torch.distributed as dist
from epigrad.cli import machine
from epigrad.cli.report import Row, told
from epigrad.cli.runner import Task
from epigrad.cli.timing import Timing
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional

from benchmarks import pictures
from benchmarks.experts import ALLOWED, CASES, ROUTINGS, Case, route
from benchmarks.record import Record

OTHER = "slots grouped_mm"
"""What the others are compared with."""
CHUNKS = (1, 2, 4)
CALLS = 4
RANKS = (1, 2, 4, 8)
CASE = "qwen3-30b-a3b"
KIND: Any = {"kind": "swiglu", "gate": "first"}
OURS = "chunks 1"
"""The default in one host."""
DRAWN = {OTHER: "a row for each slot, grouped_mm", OURS: "epigrad.parallel.experts"}
"""What the picture calls the ways that it has."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank has: its tokens and its experts, which require gradients but for the index."""

    case: Case
    x: Tensor
    index: Tensor
    scale: Tensor
    weight_in: Tensor
    weight_out: Tensor

    @classmethod
    def drawn(cls, case: Case, routing: str, device: torch.device, dtype: torch.dtype) -> Part:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        index, scale = route(replace(case, tokens=case.tokens * ranks), routing, torch.device("cpu"))
        mine = slice(rank * case.tokens, (rank + 1) * case.tokens)
        generator = torch.Generator(device).manual_seed(rank)

        def normal(*sizes: int) -> Tensor:
            made = torch.randn(*sizes, generator=generator, device=device, dtype=dtype)
            return (made * sizes[-1] ** -0.5 if len(sizes) == 3 else made).requires_grad_()

        local = case.experts // ranks
        return cls(
            case,
            normal(case.tokens, case.features),
            index[mine].to(device),
            scale[mine].to(device, dtype).requires_grad_(),
            normal(local, 2 * case.hidden, case.features),
            normal(local, case.features, case.hidden),
        )

    @property
    def asking(self) -> list[Tensor]:
        return [self.x, self.scale, self.weight_in, self.weight_out]

    def ways(self) -> dict[str, Callable[[], Tensor]]:
        """Each way's forward, by its name."""
        return {
            OTHER: lambda: by_slots(self, grouped),
            "slots epigrad": lambda: by_slots(self, multiplied),
            **{f"chunks {count}": partial(self.by_rows, count) for count in CHUNKS},
            "products": self.products,
        }

    def by_rows(self, chunks: int) -> Tensor:
        tensors = (self.x, self.index, self.scale, self.weight_in, None, self.weight_out, None)
        return epigrad.parallel.experts(*tensors, **KIND, chunks=chunks)

    def products(self) -> Tensor:
        index = self.index % len(self.weight_in)
        return epigrad.experts(self.x, index, self.scale, self.weight_in, None, self.weight_out, None, **KIND)


def by_slots(part: Part, multiply: Callable[[Part, Tensor, Tensor], Tensor]) -> Tensor:
    """The output with a row for each slot on the wire, sorted by expert; scales stay here."""
    ranks, each = dist.get_world_size(), part.index.shape[1]
    expert, order = part.index.flatten().sort(stable=True)
    owner = expert // len(part.weight_in)
    counts = torch.bincount(owner, minlength=ranks)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sent, received = torch.stack([counts, arriving]).tolist()
    world: Any = dist.group.WORLD
    rows = all_to_all_single_autograd(part.x[order // each], received, sent, world)
    local = torch.empty(sum(received), dtype=torch.int64, device=rows.device)
    dist.all_to_all_single(local, expert % len(part.weight_in), received, sent)
    returned = all_to_all_single_autograd(multiply(part, rows, local), sent, received, world)
    slots = torch.empty_like(returned).index_copy(0, order, returned).view(*part.index.shape, -1)
    out: Tensor = (slots * part.scale.unsqueeze(-1)).sum(1)
    return out


def grouped(part: Part, rows: Tensor, expert: Tensor) -> Tensor:
    """Each row's expert by PyTorch's products of groups."""
    expert, order = expert.sort(stable=True)
    every = torch.arange(len(part.weight_in), device=rows.device)
    ends = torch.searchsorted(expert, every, right=True).to(torch.int32)
    gate, value = functional.grouped_mm(rows[order], part.weight_in.mT, offs=ends).chunk(2, -1)
    out = functional.grouped_mm(functional.silu(gate) * value, part.weight_out.mT, offs=ends)
    return torch.empty_like(out).index_copy(0, order, out)


def multiplied(part: Part, rows: Tensor, expert: Tensor) -> Tensor:
    """The same by `epigrad.experts`, with a scale of 1."""
    ones = torch.ones(len(rows), 1, device=rows.device, dtype=rows.dtype)
    return epigrad.experts(rows, expert.unsqueeze(1), ones, part.weight_in, None, part.weight_out, None, **KIND)


class Clock:
    """Times steps that all ranks take together."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def of(self, step: Callable[[], object]) -> float:
        """The seconds of the slowest rank. A GPU takes some steps one after the other, as a model
        has layers."""
        dist.barrier()
        if self.device.type == "cuda":
            event: Any = torch.cuda.Event
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            for _ in range(CALLS):
                step()
            end.record()
            end.synchronize()
            taken = start.elapsed_time(end) / 1e3 / CALLS
        else:
            begin = time.perf_counter()
            step()
            taken = time.perf_counter() - begin
        slowest = torch.tensor(taken, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)

    def in_turns(self, steps: dict[str, Callable[[], object]], seconds: float) -> dict[str, Timing]:
        """Each step's times, in another order each round. All ranks take as many rounds."""
        for step in steps.values():
            self.of(step)
        rounds = max(5, round(seconds / sum(self.of(step) for step in steps.values())))
        agreed = torch.tensor(rounds, device=self.device)
        dist.broadcast(agreed, 0)
        order, random_order = list(steps), random.Random(0)
        samples: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(int(agreed)):
            random_order.shuffle(order)
            for name in order:
                samples[name].append(self.of(steps[name]))
        return {name: Timing.of(taken) for name, taken in samples.items()}


def worker(rank: int, ranks: int, port: int, text: str) -> None:
    """One of a row's processes; the first prints the rows as JSON."""
    task = json.loads(text)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    device = torch.device("cuda", rank) if task["device"] == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    dtype = getattr(torch, task["dtype"])
    part = Part.drawn(Case(**task["case"]), task["routing"], device, dtype)
    grad = torch.randn_like(part.x)
    rows: dict[str, Row] = {}
    reference: list[Tensor] = []
    for name, way in part.ways().items():
        rows[name] = {"way": name}
        found = [out := way(), *torch.autograd.grad(out, part.asking, grad)]
        if reference and name != "products":
            pairs = zip(found, reference, strict=True)
            distances = [float((one.float() - other.float()).norm() / other.float().norm()) for one, other in pairs]
            rows[name]["difference"] = worst = max(distances)
            # those of weights are sums over chunks, each of which is rounded
            if not worst <= 2 * ALLOWED * max(torch.finfo(dtype).eps, 2.0**-19):
                raise ArithmeticError(f"{name} is {worst:.2g} from {OTHER}")
        reference = reference or [tensor.detach() for tensor in found]
    reference, found = [], []
    if device.type == "cuda":
        for name, way in part.ways().items():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            torch.autograd.grad(way(), part.asking, grad)
            rows[name]["peak"] = torch.cuda.max_memory_allocated() - before
    steps: dict[str, Callable[[], object]] = {}
    for name, way in part.ways().items():
        steps[name] = partial(lambda way: torch.autograd.grad(way(), part.asking, grad), way)
        steps[f"{name} forward"] = torch.no_grad()(way)
    timings = Clock(device).in_turns(steps, task["seconds"])
    for name, row in rows.items():
        row["time"], row["forward"] = asdict(timings[name]), asdict(timings[f"{name} forward"])
        row["ratio"] = timings[name].median / timings[OTHER].median
    if rank == 0:
        print(json.dumps(list(rows.values())), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may hold tensors still


def measure(case: Case, dtype: str, routing: str, ranks: int, device: str, seconds: float) -> list[Row]:
    """A row for each way, of processes of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    task = {"case": asdict(case), "dtype": dtype, "routing": routing, "device": device, "seconds": seconds}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.parallel", str(rank), str(ranks), str(port), json.dumps(task)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=300 + 10 * seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"a process ended with {process.returncode}: {output[-2000:]}")
    rows: list[Row] = json.loads(outputs[0].strip().splitlines()[-1])
    return rows


def subject(args: argparse.Namespace) -> Record:
    """The table of this machine's processes."""
    on_cuda = args.device == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    most = torch.cuda.device_count() if on_cuda else 2
    case = CASES[CASE] if on_cuda else CASES[CASE].smaller()
    dtypes: Sequence[str] = args.dtypes or (("bfloat16",) if on_cuda else ("float32",))
    return Record(
        slug="parallel",
        device=machine.name(device) if most == 1 else f"{most} x {machine.name(device)}",
        unit="seconds of forward and backward, and of forward alone, of the slowest rank: median, quartiles, "
        "fastest; peak: bytes beside tokens and weights",
        title="Experts over processes: median time and half the distance of the quartiles",
        tasks=[
            Task(
                f"{ranks} ranks {dtype} {routing}",
                {
                    "ranks": ranks,
                    "dtype": dtype,
                    "routing": routing,
                    "tokens": case.tokens,
                    "size": f"{case} a rank",
                },
                partial(measure, case, dtype, routing, ranks, device.type),
            )
            for ranks, dtype, routing in itertools.product(RANKS, dtypes, ROUTINGS)
            if ranks <= most
        ],
        names={"ranks": "ranks", "dtype": "dtype", "routing": "routing", "way": "way"},
        columns={
            "time": ("forward + backward", told),
            "forward": ("forward", told),
            "ratio": (f"/{OTHER}", "{:.3f}".format),
            "peak": ("peak", lambda count: f"{count / 2**20:.0f} MiB"),
        },
        seconds=1.0 if args.quick else 4.0,
        facts=machine.facts(device),
        picture=partial(pictures.draw_parallel, names=DRAWN),
    )


if __name__ == "__main__":
    worker(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
