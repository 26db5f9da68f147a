"""The tables about what epigrad gains: of docs/pays.md, and of mixtures in docs/experts.md.

Every number is a ratio of two numbers of one record in docs/results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from benchmarks import parallel
from benchmarks.experts import FLOOR
from benchmarks.experts import OTHER as GROUPED_MM
from benchmarks.sonicmoe import NAME as SONIC_MOE
from benchmarks.sonicmoe import TUNED as SONIC_MOE_TUNED
from tests.tools import readme, records
from tests.tools.records import Row, Source, span, table

MANY_GPUS = ("2 NVIDIA H200", "docs/results/2026-11-29-parallel-2-x-nvidia-h200.json")
MIXTURES_ON_A_CPU = ("AMD EPYC", "docs/results/2026-11-27-experts-amd-epyc.json")
XEON, EPYC, AVX2 = readme.CPUS

WIDE, LAYER, SMALL = "[8192, 28672]", "8192x4096x14336", "2048x768x3072"
GLUS = ("swiglu", "geglu")
LAYERS = ("linear", "mlp", "gated_mlp")
DENSE = ("gpt2", "llama", "gemma", "bert", "vit")
# What times and memory are compared with: the record's word for it, and the table's.
AGAINST = {
    GROUPED_MM: "`grouped_mm`",
    SONIC_MOE: "SonicMoE, not tuned",
    SONIC_MOE_TUNED: "SonicMoE, tuned",
    "eager": "eager",
    "compile": "compiled",
}


class Line(NamedTuple):
    """A line of docs/pays.md. Times and memory are epigrad's over PyTorch's.

    Attributes:
        what: what is trained, and where.
        against: what of PyTorch it is compared with.
        dtype: the dtype of the operands.
        sources: the records.
        times: the ratios that the line has the least and the largest of.
        kept: the same of memory kept for backward, or nothing where it was not recorded.
        peaks: the same of the largest memory.
    """

    what: str
    against: str
    dtype: str
    sources: Iterable[Source]
    times: list[float]
    kept: Collection[float] = ()
    peaks: Collection[float] = ()


def of_mixtures(source: Source, dtype: str = "bfloat16") -> dict[tuple[str, str], dict[str, Row]]:
    """A record's rows by case and routing, then by implementation."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in (row for row in records.rows(source) if row["dtype"] == dtype):
        found.setdefault((row["case"], row["routing"]), {})[row["implementation"]] = row
    return found


def mixtures(what: str, dtype: str, source: Source, cases: Collection[str], against: str = GROUPED_MM) -> Line:
    """Experts beside another implementation, by even and by uneven routing."""
    found = (ways for (case, _), ways in of_mixtures(source, dtype).items() if case in cases)
    pairs = [(ways["epigrad"], ways[against]) for ways in found if against in ways]
    times = [ours["time"]["median"] / theirs["time"]["median"] for ours, theirs in pairs]
    kept, peaks = ([ours[of] / theirs[of] for ours, theirs in pairs if of in ours] for of in ("kept", "peak"))
    return Line(what, AGAINST[against], dtype, [source], times, kept, peaks)


def operation(what: str, rows: Collection[Row], dtypes: str) -> list[Line]:
    """Rows of an operation, beside eager PyTorch and beside compiled."""
    return [
        Line(
            name,
            AGAINST[against],
            dtypes,
            [readme.GPU],
            records.ratios(rows, ratio),
            records.of_memory(rows, "kept", against),
            records.of_memory(rows, "peak", against),
        )
        for name, against, ratio in ((what, "eager", "ratio"), ("the same", "compile", "ratio_to_compile"))
    ]


def layers(op: str, size: str = LAYER) -> list[Row]:
    """A layer or an MLP in all its kinds, forward and backward."""
    return [
        row
        for row in records.rows(readme.GPU)
        if (row["op"], row["size"], row["direction"]) == (op, size, "forward + backward")
    ]


def gates(dtypes: Collection[str], wanted: Callable[[str], bool]) -> list[Row]:
    """Gates without products, forward and backward apart."""
    return [
        row
        for row in records.rows(readme.GPU)
        if row["op"] == "gated" and row["size"] == WIDE and row["dtype"] in dtypes and wanted(row["kind"])
    ]


def models(what: str, names: Collection[str], variant: str, plain: str, against: str) -> Line:
    """Training steps of whole models, with the patch and without."""
    rows = readme.models()
    pairs = [(rows[model, variant], rows[model, plain]) for model in names]
    times = [ours["ratio_to_unpatched"] for ours, _ in pairs]
    peaks = [ours["peak"] / theirs["peak"] for ours, theirs in pairs]
    return Line(what, against, "bfloat16", [readme.MODEL_RECORD], times, peaks=peaks)


def on_cpus(what: str, cases: Collection[str], dtype: str, sources: Collection[Source]) -> Line:
    """Means over the sizes on all threads, forward and backward."""
    means = [
        line["geometric_mean"]
        for source in sources
        for line in readme.of_cpu(source)
        if line["case"] in cases and line["dtype"] == dtype and readme.with_backward(line["case"], line["direction"])
    ]
    return Line(what, "eager", dtype, sources, means)


def lines() -> list[Line]:
    """The lines of docs/pays.md."""
    fine, coarse = ("qwen3-30b-a3b", "gpt-oss-20b"), ("mixtral-like",)

    def beside_sonicmoe(what: str, case: str) -> list[Line]:
        named, source = readme.SONICMOE_CASES[case], readme.BESIDE_SONICMOE
        ways = ((what, SONIC_MOE), ("the same", SONIC_MOE_TUNED))
        return [mixtures(name, "bfloat16", source, (named,), way) for name, way in ways]

    return [
        mixtures("Hopper: experts of Qwen3-30B-A3B and gpt-oss-20b", "bfloat16", readme.MIXTURES, fine),
        *beside_sonicmoe("Hopper: experts of Qwen3-30B-A3B", "qwen3-30b-a3b"),
        mixtures("Hopper: experts of Mixtral's shape", "bfloat16", readme.MIXTURES, coarse),
        *beside_sonicmoe("the same", "mixtral-like"),
        models("Hopper: a step of a Qwen3-MoE of six layers, patched", ("qwen3-moe",), "patched", "eager", "eager"),
        models("the same", ("qwen3-moe",), "patched + compiled", "compiled", "compiled"),
        models("Hopper: a step of five dense models, patched", DENSE, "patched", "eager", "eager"),
        models("the same", DENSE, "patched + compiled", "compiled", "compiled"),
        *operation(f"Hopper: a SwiGLU or GeGLU MLP of {LAYER}", layers("gated_mlp"), "bfloat16"),
        *operation(f"Hopper: a SwiGLU MLP of {SMALL}, in a CUDA graph", layers("gated_mlp", SMALL), "bfloat16"),
        *operation(f"Hopper: a GELU MLP of {LAYER}", layers("mlp"), "bfloat16"),
        *operation(f"Hopper: the `gated_linear` of a Llama, {LAYER}", layers("gated_linear"), "bfloat16"),
        *operation("Hopper: SwiGLU or GeGLU alone", gates(("bfloat16",), GLUS.__contains__), "bfloat16"),
        *operation("Hopper: another gate alone", gates(("bfloat16",), lambda kind: kind not in GLUS), "bfloat16"),
        *operation(
            "Hopper: a gate alone",
            gates(("float32", "float64"), lambda kind: True),
            "float32, float64",
        ),
        on_cpus("CPU: layers and MLPs", LAYERS, "float32", readme.CPUS),
        on_cpus("CPU with AVX512_BF16 or AMX: layers and MLPs", LAYERS, "bfloat16", (XEON, EPYC)),
        on_cpus("CPU with AVX2 alone: layers and MLPs", LAYERS, "bfloat16", (AVX2,)),
        on_cpus("CPU: a gate alone", ("gated_activation",), "float32", readme.CPUS),
        mixtures("CPU: experts of three mixtures", "float32", MIXTURES_ON_A_CPU, readme.MIXTURE_NAMES),
        mixtures("CPU with AVX2 alone: the same", "bfloat16", MIXTURES_ON_A_CPU, readme.MIXTURE_NAMES),
    ]


def pays_table() -> str:
    """What pays, and how much."""
    cells = []
    for line in lines():
        links = records.numbered((machine, path.removeprefix("docs/")) for machine, path in line.sources)
        cells.append([line.what, line.against, line.dtype, *map(span, (line.times, line.kept, line.peaks)), links])
    return table(["where: what", "over", "dtype", "time", "kept", "peak", "records"], cells)


ROUTINGS = {"uniform": "even", "zipf": "uneven"}


def gpu_tables() -> str:
    """Mixtures on a GPU: milliseconds and ratios, then MiB, the same for both routings."""
    machine, path = readme.MIXTURES
    times: list[list[str]] = []
    memory: dict[str, list[str]] = {}
    for (case, routing), ways in of_mixtures(readme.MIXTURES).items():
        ours, theirs, name = ways["epigrad"], ways[GROUPED_MM], readme.MIXTURE_NAMES[case]
        milliseconds = [f"{1e3 * way['time']['median']:.2f}" for way in (ours, theirs)]
        times.append([name, ROUTINGS[routing], *milliseconds, f"{ours['ratio']:.2f}", f"{ours['ratio_to_floor']:.2f}"])
        memory[name] = [name, *(f"{row[what] / 2**20:.0f}" for what in ("kept", "peak") for row in (ours, theirs))]
    link = f"[{machine}]({path.removeprefix('docs/')})"
    heads = [f"{what}, {name}" for what in ("kept", "peak") for name in ("epigrad", "`grouped_mm`")]
    first = [link, "routing", "ms", "`grouped_mm`, ms", "over `grouped_mm`", "over the floor"]
    return f"{table(first, times)}\n{table(['MiB', *heads], memory.values())}"


def sonicmoe_table() -> str:
    """The shapes that SonicMoE publishes: times and memory over those of others."""
    machine, path = readme.BESIDE_SONICMOE
    lines = []
    for (case, _), ways in of_mixtures(readme.BESIDE_SONICMOE).items():
        ours, others = ways["epigrad"], [ways[name] for name in (SONIC_MOE, SONIC_MOE_TUNED, GROUPED_MM)]
        cells = [f"{1e3 * ours['time']['median']:.2f}"]
        for part in ("forward", "time"):
            mine = ours[part]["median"]
            cells += [
                f"{mine / other[part]['median']:.2f}" for other in (*others[: 3 if part == "time" else 2], ways[FLOOR])
            ]
        lines.append([case.split(",")[0], *case.split(", ")[1:], *cells, f"{ours['peak'] / others[0]['peak']:.2f}"])
    sizes = [f"[{machine}]({path.removeprefix('docs/')})", "I", "E", "K"]
    over = ("SonicMoE", "tuned", "`grouped_mm`", "floor")
    heads = [
        "ms",
        *(f"forward / {each}" for each in over if each != "`grouped_mm`"),
        *(f"both / {each}" for each in over),
    ]
    return table([*sizes, *heads, "peak / SonicMoE"], lines)


def parallel_table() -> str:
    """Experts over GPUs: milliseconds, over a row for each slot, the share of one GPU's speed that
    each of several has, and MiB beside tokens and weights."""
    machine, path = MANY_GPUS
    found: dict[tuple[int, str], dict[str, Row]] = {}
    for row in records.rows(MANY_GPUS):
        found.setdefault((row["ranks"], row["routing"]), {})[row["way"]] = row
    lines = []
    for (ranks, routing), ways in found.items():
        ours, theirs, products = ways[parallel.OURS], ways[parallel.OTHER], ways["products"]
        times = [f"{1e3 * way['time']['median']:.2f}" for way in (ours, theirs, products)]
        speed = found[1, routing][parallel.OURS]["time"]["median"] / ours["time"]["median"]
        peaks = [f"{way['peak'] / 2**20:.0f}" for way in (ours, theirs)]
        lines.append([str(ranks), ROUTINGS[routing], *times, f"{ours['ratio']:.2f}", f"{speed:.2f}", *peaks])
    link = f"[{machine}](../{path.removeprefix('docs/')})"
    heads = ["routing", "ms", "rows for slots, ms", "products alone, ms", "over rows for slots", "speed of a GPU"]
    return table([f"GPUs of {link}", *heads, "peak, MiB", "rows for slots, MiB"], lines)


def cpu_table() -> str:
    """Mixtures on a CPU, and how much the times of an implementation vary."""
    lines, times = [], []
    for dtype in ("float32", "bfloat16"):
        ways = of_mixtures(MIXTURES_ON_A_CPU, dtype)
        for case in dict.fromkeys(case for case, _ in ways):
            own = [ways[case, routing]["epigrad"] for routing in ROUTINGS]
            cells = [f"{row['ratio']:.2f}" for row in own]
            lines.append([readme.MIXTURE_NAMES[case], own[0]["size"], dtype, *cells])
        times += [each[name]["time"] for each in ways.values() for name in ("epigrad", GROUPED_MM)]
    off = max(abs(time[quartile] / time["median"] - 1) for time in times for quartile in ("low", "high"))
    text = table(["experts", "experts, features -> hidden, tokens x chosen", "dtype", "even", "uneven"], lines)
    return f"{text}\nThe quartiles of a time lie up to {100 * off:.0f} % from its median.\n"
