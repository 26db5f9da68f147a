"""The tables of README.md, and those of CPUs and of models; and their pictures.

Accuracy comes from the pages that tests/tools/accuracy.py writes.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from epigrad.cli.picture import pyplot

from benchmarks import cpu, pictures
from benchmarks.experts import OTHER as GROUPED_MM
from benchmarks.sonicmoe import NAME as SONIC_MOE
from benchmarks.sonicmoe import TUNED as SONIC_MOE_TUNED
from tests.support.repository import ROOT
from tests.tools import exact_page, records
from tests.tools.records import Row, Source, numbered, of_memory, ratios, rows, span, table

MODELS = ROOT / "docs" / "models.md"
PICTURE = records.RESULTS / "readme.png"

# The card of README.md's table and picture: its operations, its mixtures of experts, and those
# beside SonicMoE, by their names there.
GPU = ("NVIDIA H200", "docs/results/2026-11-29-cuda-nvidia-h200.json")
MIXTURES = ("NVIDIA H200", "docs/results/2026-11-29-experts-nvidia-h200.json")
BESIDE_SONICMOE = ("NVIDIA H200", "docs/results/2026-11-28-sonicmoe-nvidia-h200.json")
SONICMOE_CASES = {"qwen3-30b-a3b": "8192x2048, 768, 128, 8", "mixtral-like": "4096x4096, 14336, 8, 2"}
CPUS = (
    ("Intel Xeon", "docs/results/2026-11-29-cpu-intel-xeon.json"),
    ("AMD EPYC", "docs/results/2026-11-23-cpu-amd-epyc.json"),
    ("AMD EPYC, AVX2, one thread", "docs/results/2026-11-23-cpu-amd-epyc-avx2.json"),
)
# What `python -m benchmarks models` measured there.
MODEL_RECORD = ("NVIDIA H200", "docs/results/2026-11-29-models-nvidia-h200.json")
ACCURACY = (("NVIDIA H100", "docs/accuracy-cuda.md"), ("CPU", "docs/accuracy.md"))

# The models of README.md, by their names in the records.
MODEL_NAMES = {
    "qwen3-moe": "**Training step** of a Qwen3-MoE of six layers",
    "gpt2": "Training step of GPT-2",
    "llama": "Training step of a Llama",
    "vit": "Training step of a ViT-B",
    "gemma": "Training step of a Gemma",
    "bert": "Training step of BERT",
}


def of_cpu(source: Source) -> list[Row]:
    """The lines of a CPU's summary on all threads, one for each dtype.

    They are made of the record's rows. So it does not matter how its own summary, which up to 0.2.0
    had a line for several dtypes, divides them.
    """
    record = records.load(ROOT / source[1])
    return [line for line in cpu.summary(record["rows"]) if line["threads"] == record["threads"]]


def with_backward(case: str, direction: str) -> bool:
    """Whether a line is of both directions, or of a product, which is measured forward alone."""
    return direction == cpu.BOTH or case == "product"


Curves = dict[tuple[str, str, str], dict[str, Row]]


def curves(source: Source) -> Curves:
    """The lines of a CPU by operation, kind and direction, then by dtype."""
    found: Curves = {}
    for line in of_cpu(source):
        found.setdefault((line["case"], line["kind"], line["direction"]), {})[line["dtype"]] = line
    return found


def but_float16(lines: dict[str, Row]) -> list[Row]:
    """A curve without float16, whose ratios differ too much among processors for one mean."""
    return [line for dtype, line in lines.items() if dtype != "float16"]


def cpu_table() -> str:
    """Mean ratios by dtype, and the worst without float16."""
    parts: dict[str, list[list[str]]] = {}
    for source in CPUS:
        for (case, kind, direction), lines in curves(source).items():
            if not with_backward(case, direction):
                continue
            cells = [f"{lines[dtype]['geometric_mean']:.2f}" if dtype in lines else "-" for dtype in pictures.COLORS]
            worst = max(but_float16(lines), key=lambda line: float(line["worst"]))
            cells.append(f"{worst['worst']:.2f} at {'x'.join(map(str, worst['worst_at']))} {worst['dtype']}")
            own = parts.setdefault(f"{case} {kind}".replace("_", " "), [])
            own.append(["" if own else f"{case} {kind}".replace("_", " "), source[0], *cells])
    lines_of_all = [line for own in parts.values() for line in own]
    return table(["operation", "measured on", *pictures.COLORS, "worst but float16"], lines_of_all)


def summary_table() -> str:
    """An operation's mean, worst and share on each machine, over all dtypes but float16."""
    machines = [curves(source) for source in CPUS]
    lines = []
    for key, (first, *_) in ((key, but_float16(lines)) for key, lines in machines[0].items()):
        goal = "" if first["goal"] is None else f"{first['goal']:.2f}"
        cells = [_pooled(but_float16(machine[key])) if key in machine else "-" for machine in machines]
        lines.append([" ".join(key[:2]).replace("_", " "), key[2], goal, *cells])
    return table(["operation", "direction", "goal", *(machine for machine, _ in CPUS)], lines)


def _pooled(lines: list[Row]) -> str:
    """The mean over the points of several lines, the worst, and the share at the level."""
    points = sum(line["points"] for line in lines)
    mean = math.exp(sum(line["points"] * math.log(line["geometric_mean"]) for line in lines) / points)
    share = sum(line["points"] * line["share_at_level"] for line in lines) / points
    return f"{mean:.2f}, {max(line['worst'] for line in lines):.2f}, {share:.0%}"


def models() -> dict[tuple[str, str], Row]:
    """The rows of whole models, by model and variant."""
    return {(row["model"], row["variant"]): row for row in rows(MODEL_RECORD) if "wall" in row}


# The lines of a model: a heading, a row's field, and its unit.
QUANTITIES = (
    ("step, ms", "wall", 1e-3),
    ("GPU busy, ms", "busy", 1e-3),
    ("host, ms", "host", 1e-3),
    ("peak, MiB", "peak", 2**20),
)


def models_table() -> str:
    """The table and the picture of models."""
    found = models()
    names, variants = (list(dict.fromkeys(each)) for each in zip(*found, strict=True))
    lines = []
    for model in names:
        own = [found.get((model, variant), {}) for variant in variants]
        heading = f"{model}, {own[0]['size']}"
        for quantity, field, unit in QUANTITIES:
            if any(field in row for row in own):
                lines.append([heading, quantity, *(_value(row, field, unit) for row in own)])
                heading = ""
    machine, path = MODEL_RECORD
    heads = [f"[{machine}]({path.removeprefix('docs/')})", "", *variants]
    picture = models_picture().relative_to(MODELS.parent)
    return table(heads, lines) + f"\n![Training steps of models, {machine}]({picture})\n"


def models_picture() -> pathlib.Path:
    """Where the picture of models is."""
    return (ROOT / MODEL_RECORD[1]).with_suffix(".png")


def _value(row: Row, field: str, unit: float) -> str:
    """A number with three digits and no exponent, or nothing where it was not measured."""
    if field not in row:
        return ""
    number = (row[field]["median"] if isinstance(row[field], dict) else row[field]) / unit
    return f"{number:.{max(0, 2 - math.floor(math.log10(number)))}f}"


def worst(columns: Collection[str]) -> float:
    """The largest finite float64 error in these columns of the accuracy pages."""
    errors = []
    for _, page in ACCURACY:
        table = re.findall(r"^\| (.*) \|$", (ROOT / page).read_text(), re.MULTILINE)
        heads, *lines = (line.split(" | ") for line in table if line.count(" | ") == 7)
        for line in lines:
            cells = dict(zip(heads, line, strict=True))
            if cells["dtype"] == "float64":
                numbers = (re.match(r"[\d.e+]+", cells[column]) for column in columns)
                errors += [float(number[0]) for number in numbers if number]
    return max(errors)


class Claim(NamedTuple):
    """A row of README.md's table: what epigrad takes over what PyTorch takes.

    Attributes:
        what: is computed.
        eager: the time over PyTorch eager's, or over that of the implementation that `what` names.
        compiled: the time over that of torch.compile; of models, where both are compiled.
        kept: for backward, over eager's.
        peak: of memory, over eager's.
        peak_compiled: the same over that of torch.compile.
    """

    what: str
    eager: str
    compiled: str = ""
    kept: str = ""
    peak: str = ""
    peak_compiled: str = ""


HEADS = ("time / eager", "time / compiled", "kept / eager", "peak / eager", "peak / compiled")


def claims_table() -> str:
    """What epigrad gains, and its largest error."""
    ours = max(worst(("value", "slope", "from output")), exact_page.largest("float64"))
    eager = worst(("PyTorch value", "PyTorch slope"))
    moe, *dense = _of_models()
    heads = (f"bfloat16, one {GPU[0]} ([records](docs/pays.md))", *HEADS)
    ulps = f"[{ours:.1f} ULP](docs/kinds.md#worst-cases)"
    accuracy = f"""An activation or slope in float64 is off by at most {ulps}, units in the last place
({numbered(ACCURACY)}). PyTorch rounds some to 0: over 10<sup>{math.floor(math.log10(eager))}</sup>."""
    return f"{table(heads, [*_mixtures(), moe, *_operations(), *dense])}\n{accuracy}\n"


def _mixtures() -> Iterable[Claim]:
    """One layer of experts beside transformers' default, and beside SonicMoE."""
    tokens = mixture_row("qwen3-30b-a3b", "epigrad")["size"].split(", ")[1].split(" x ")[0]
    what = f"**Experts** of one Qwen3-30B-A3B layer, {tokens}, even routing, over transformers' default `grouped_mm`"
    ways = ((what, GROUPED_MM), ("The same over SonicMoE, tuned", SONIC_MOE_TUNED))
    for name, other in ways:
        ours, theirs = pair_of("qwen3-30b-a3b", other)
        time = f"{ours['time']['median'] / theirs['time']['median']:.2f}"
        kept, peak = (f"{ours[field] / theirs[field]:.2f}" for field in ("kept", "peak"))
        yield Claim(name, f"**{time}**" if other == GROUPED_MM else time, "not measured", kept, peak)


def mixture_row(case: str, implementation: str, source: Source = MIXTURES) -> Row:
    """A row of a mixtures' record, of uniform routing."""
    wanted = {"case": case, "implementation": implementation, "routing": "uniform"}.items()
    (found,) = (row for row in rows(source) if wanted <= row.items())
    return found


def pair_of(case: str, other: str) -> tuple[Row, Row]:
    """epigrad's row and another implementation's, of one run."""
    if other in (SONIC_MOE, SONIC_MOE_TUNED):
        named = SONICMOE_CASES[case]
        return mixture_row(named, "epigrad", BESIDE_SONICMOE), mixture_row(named, other, BESIDE_SONICMOE)
    return mixture_row(case, "epigrad"), mixture_row(case, other)


def _operations() -> Iterable[Claim]:
    gates = [row for row in rows(GPU) if row["kind"] in ("swiglu", "geglu") and row["dtype"] == "bfloat16"]
    alone = [row for row in gates if row["op"] == "gated"]
    yield Claim(
        "SwiGLU and GeGLU without products, each direction",
        span(ratios(alone)),
        span(ratios(alone, "ratio_to_compile")),
    )
    for op, what in (("gated_mlp", "SwiGLU and GeGLU MLPs"), ("mlp", "GELU MLPs")):
        own = [row for row in rows(GPU) if row["op"] == op and "memory" in row]
        memory = (of_memory(own, *which) for which in (("kept", "eager"), ("peak", "eager"), ("peak", "compile")))
        times = span(ratios(own)), span(ratios(own, "ratio_to_compile"))
        yield Claim(f"{what} of {own[0]['size']}", *times, *map(span, memory))


def _of_models() -> Iterable[Claim]:
    """What `patch` makes of models, plain ones and compiled ones."""
    found = models()
    for name, what in MODEL_NAMES.items():
        pairs = [
            (found.get((name, f"patched{more}")), found.get((name, plain)))
            for plain, more in (("eager", ""), ("compiled", " + compiled"))
        ]
        times = (f"{ours['ratio_to_unpatched']:.2f}" if ours else "" for ours, _ in pairs)
        peaks = (f"{ours['peak'] / theirs['peak']:.2f}" if ours and theirs else "" for ours, theirs in pairs)
        yield Claim(what, *times, "", *peaks)


def digest(path: str) -> str:
    """What the file of a picture says, which shows a whole record."""
    return hashlib.sha256(json.dumps(records.load(ROOT / path), sort_keys=True).encode()).hexdigest()


# What the picture shows of a mixture's row, and the implementations with their colours.
SHOWN = {"time": "time", "kept": "memory kept for backward"}
MIXTURE_NAMES = {"qwen3-30b-a3b": "Qwen3-30B-A3B", "gpt-oss-20b": "gpt-oss-20b", "mixtral-like": "Mixtral's shape"}
COLOURS = {GROUPED_MM: "#c9ced1", SONIC_MOE: "#d08c2f", "epigrad": "#2a7f9e"}


def bars() -> dict[str, dict[str, dict[str, float]]]:
    """The lengths of the picture's bars: of each quantity, implementation and mixture, with
    grouped_mm's of the same run as 1."""
    found: dict[str, dict[str, dict[str, float]]] = {what: {name: {} for name in COLOURS} for what in SHOWN}
    places = [(case, case, MIXTURES, ("epigrad", GROUPED_MM)) for case in MIXTURE_NAMES]
    places += [(case, named, BESIDE_SONICMOE, (SONIC_MOE,)) for case, named in SONICMOE_CASES.items()]
    for case, named, source, names in places:
        other = mixture_row(named, GROUPED_MM, source)
        for name in names:
            row = mixture_row(named, name, source)
            found["time"][name][case] = round(row["time"]["median"] / other["time"]["median"], 2)
            found["kept"][name][case] = round(row["kept"] / other["kept"], 2)
    return found


def description() -> str:
    """What the picture's file says that it shows."""
    return json.dumps(bars())


def draw() -> None:
    """The picture of README.md, and those of docs/models.md."""
    cases = list(MIXTURE_NAMES)
    figure, panels = pyplot().subplots(1, len(SHOWN), figsize=(9, 2.9), dpi=130, sharey=True, layout="constrained")
    for axes, (quantity, lengths) in zip(panels, bars().items(), strict=True):
        for place, (name, colour) in enumerate(COLOURS.items()):
            heights = [cases.index(case) + 0.27 * (place - 1) for case in lengths[name]]
            drawn = axes.barh(heights, list(lengths[name].values()), 0.25, color=colour, label=name)
            weight = "bold" if name == "epigrad" else "normal"
            axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8, fontweight=weight)
            for case in set(cases) - set(lengths[name]):
                height = cases.index(case) + 0.27 * (place - 1)
                axes.text(0.02, height, f"{name} does not compute this gate", color=colour, fontsize=7, va="center")
        axes.set_yticks(range(len(cases)), list(MIXTURE_NAMES.values()))
        axes.set_xticks([])
        axes.set_xlim(0, 1.12)
        axes.tick_params(left=False)
        axes.spines[:].set_visible(False)
        axes.set_title(SHOWN[quantity], fontsize=9, loc="left")
    panels[0].invert_yaxis()
    handles = [handle for handle in panels[0].containers if len(handle)]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    title = f"Experts of one layer, forward and backward, even routing, {MIXTURES[0]}, bfloat16"
    figure.suptitle(f"{title}; transformers' grouped_mm = 1", fontsize=10, x=0.01, ha="left")
    figure.savefig(PICTURE, metadata={"Software": None, "Description": description()})
    pyplot().close(figure)
    records.pack_picture(PICTURE)
    metadata = {"Software": None, "Description": digest(MODEL_RECORD[1])}
    pictures.draw_models(models_picture(), records.load(ROOT / MODEL_RECORD[1]), metadata)
    records.pack_picture(models_picture())
