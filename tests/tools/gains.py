"""Writes the tables about what epigrad gains: of docs/pays.md, and of mixtures in docs/experts.md.

    python -m tests.tools.gains

Every number is a ratio of two numbers of one record in docs/results. tests/docs/test_pages.py fails
where a table is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from tests.support.repository import ROOT
from tests.tools import readme

PAYS = ROOT / "docs" / "pays.md"
EXPERTS = ROOT / "docs" / "experts.md"
BEGIN = "<!-- python -m tests.tools.gains writes this table -->\n"
ON_CPUS = "<!-- python -m tests.tools.gains writes this table of a CPU -->\n"

MIXTURES_ON_A_CPU = ("AMD EPYC", "docs/results/2026-11-24-experts-amd-epyc.json")
XEON, EPYC, AVX2 = readme.CPUS

Row = dict[str, Any]
WIDE, LAYER = "[8192, 28672]", "8192x4096x14336"
LAYERS = ("linear", "mlp", "gated_mlp")
HALF, FULL = ("bfloat16", "float16"), ("float32", "float64")
DENSE = ("gpt2", "llama", "gemma", "bert", "vit")
EACH, BOTH = ("forward", "backward"), ("forward + backward",)


class Line(NamedTuple):
    """A line of docs/pays.md. Times and memory are epigrad's over PyTorch's.

    Attributes:
        what: what is trained, and where.
        against: what of PyTorch it is compared with.
        dtype: the dtype of the operands.
        times: the ratios that the line has the least and the largest of.
        memory: the same of memory, or nothing where it was not recorded.
        sources: the records.
    """

    what: str
    against: str
    dtype: str
    times: list[float]
    memory: list[float]
    sources: Iterable[readme.Source]


def span(ratios: Collection[float]) -> str:
    """The least and the largest of some ratios."""
    if not ratios:
        return ""
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


def of_mixtures(source: readme.Source) -> dict[tuple[str, str], dict[str, Row]]:
    """A record's rows by case and routing, then by implementation."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in readme.rows(source):
        found.setdefault((row["case"], row["routing"]), {})[row["implementation"]] = row
    return found


def mixtures(what: str, dtype: str, sources: Collection[readme.Source], wanted: Callable[[str], bool]) -> Line:
    """Experts beside transformers' fastest implementation."""
    pairs = [
        (ways["epigrad"], ways["grouped_mm"])
        for source in sources
        for (case, _), ways in of_mixtures(source).items()
        if wanted(case)
    ]
    kept = [ours["kept"] / theirs["kept"] for ours, theirs in pairs if "kept" in ours]
    return Line(what, "`grouped_mm`", dtype, [ours["ratio"] for ours, _ in pairs], kept, sources)


def operation(
    what: str, op: str, size: str, directions: Collection[str], dtypes: Collection[str] = ("bfloat16",)
) -> list[Line]:
    """An operation on the H200 in all its kinds, beside eager PyTorch and beside compiled."""
    rows = [
        row
        for row in readme.rows(readme.H200)
        if (row["op"], row["size"]) == (op, size) and row["dtype"] in dtypes and row["direction"] in directions
    ]
    lines = []
    for name, against, ratio in ((what, "eager", "ratio"), ("the same", "compile", "ratio_to_compile")):
        memory = [row["memory"] for row in rows if row.get("memory", {}).get(against)]
        kept = [own["epigrad"]["kept"] / own[against]["kept"] for own in memory]
        times = [row[ratio] for row in rows if ratio in row]
        shown = {"eager": "eager", "compile": "compiled"}[against]
        lines.append(Line(name, shown, ", ".join(dtypes), times, kept, [readme.H200]))
    return lines


def models(what: str, names: Collection[str], variant: str, plain: str, against: str) -> Line:
    """Training steps of whole models, with the patch and without; memory is the peak."""
    (machine, _) = readme.GPU
    rows = readme.by_variant(readme.model_record(machine))
    pairs = [(rows[model, variant], rows[model, plain]) for model in names]
    times = [ours["ratio_to_unpatched"] for ours, _ in pairs]
    peaks = [ours["peak"] / theirs["peak"] for ours, theirs in pairs]
    return Line(what, against, "bfloat16", times, peaks, [(machine, path) for path in readme.MODEL_RECORDS[machine]])


def on_cpus(what: str, cases: Collection[str], dtype: str, sources: Collection[readme.Source]) -> Line:
    """Means over the sizes on all threads, forward and backward."""
    means = [
        line["geometric_mean"]
        for source in sources
        for line in readme.of_cpu(source)
        if line["case"] in cases and line["dtype"] == dtype and readme.with_backward(line["case"], line["direction"])
    ]
    return Line(what, "eager", dtype, means, [], sources)


def lines() -> list[Line]:
    """The lines of docs/pays.md."""
    return [
        mixtures(
            "Hopper: experts of Qwen3-30B-A3B and gpt-oss-20b",
            "bfloat16",
            (readme.MIXTURES,),
            lambda case: case != "mixtral-like",
        ),
        mixtures(
            "Hopper: experts of Mixtral's shape", "bfloat16", (readme.MIXTURES,), lambda case: case == "mixtral-like"
        ),
        models("Hopper: a step of a Qwen3-MoE, patched", ("qwen3-moe",), "patched", "eager", "eager"),
        models("the same", ("qwen3-moe",), "patched + compiled", "compiled", "compiled"),
        models("Hopper: a step of five dense models, patched", DENSE, "patched", "eager", "eager"),
        models("the same", DENSE, "patched + compiled", "compiled", "compiled"),
        *operation(f"Hopper: a gated MLP of {LAYER}", "gated_mlp", LAYER, BOTH),
        *operation(f"Hopper: a GELU MLP of {LAYER}", "mlp", LAYER, BOTH),
        *operation("Hopper: a gate alone", "gated", WIDE, EACH, HALF),
        *operation("Hopper: a gate alone", "gated", WIDE, EACH, FULL),
        on_cpus("CPU: layers and MLPs", LAYERS, "float32", readme.CPUS),
        on_cpus("CPU with AVX512_BF16 or AMX: layers and MLPs", LAYERS, "bfloat16", (XEON, EPYC)),
        on_cpus("CPU with AVX2 alone: layers and MLPs", LAYERS, "bfloat16", (AVX2,)),
        on_cpus("CPU: a gate alone", ("gated_activation",), "float32", readme.CPUS),
        mixtures("CPU: experts of three mixtures", "float32", (MIXTURES_ON_A_CPU,), lambda case: True),
    ]


def pays_table() -> str:
    """The table of docs/pays.md."""
    text = "| where: what | PyTorch is | dtype | time | memory | measured on |\n" + "|---" * 6 + "|\n"
    for line in lines():
        links = readme.numbered((machine, path.removeprefix("docs/")) for machine, path in line.sources)
        times, memory = span(line.times), span(line.memory)
        text += f"| {line.what} | {line.against} | {line.dtype} | {times} | {memory} | {links} |\n"
    return text


NAMES = {"qwen3-30b-a3b": "Qwen3-30B-A3B", "gpt-oss-20b": "gpt-oss-20b", "mixtral-like": "Mixtral's shape"}
ROUTINGS = {"uniform": "even", "zipf": "uneven"}


def gpu_table() -> str:
    """Mixtures on a GPU: milliseconds, ratios, and MiB of epigrad, of SonicMoE and of
    `grouped_mm`."""
    machine, path = readme.MIXTURES
    text = f"| [{machine}]({path.removeprefix('docs/')}) | routing | time, ms | to `grouped_mm` | to SonicMoE "
    text += "| to the floor | kept, MiB | peak, MiB |\n" + "|---" * 8 + "|\n"
    for (case, routing), ways in of_mixtures(readme.MIXTURES).items():
        ours, sonic = ways["epigrad"], ways.get(readme.SONIC_MOE)
        memory = [
            ", ".join(f"{row[what] / 2**20:.0f}" if row else "-" for row in (ours, sonic, ways["grouped_mm"]))
            for what in ("kept", "peak")
        ]
        cells = [
            NAMES[case],
            ROUTINGS[routing],
            f"{1e3 * ours['time']['median']:.2f}",
            f"{ours['ratio']:.2f}",
            f"{ours['time']['median'] / sonic['time']['median']:.2f}" if sonic else "-",
            f"{ours['ratio_to_floor']:.2f}",
            *memory,
        ]
        text += f"| {' | '.join(cells)} |\n"
    return text


def cpu_table() -> str:
    """Mixtures on a CPU."""
    text = "| experts | experts, features -> hidden, tokens x chosen | even | uneven |\n|---|---|---|---|\n"
    ways = of_mixtures(MIXTURES_ON_A_CPU)
    for case in dict.fromkeys(case for case, _ in ways):
        own = [ways[case, routing]["epigrad"] for routing in ROUTINGS]
        cells = " | ".join(f"{row['ratio']:.2f}" for row in own)
        text += f"| {NAMES[case]} | {own[0]['size']} | {cells} |\n"
    return text


def filled_pays(page: str) -> str:
    """docs/pays.md with its table anew."""
    return readme.filled(page, pays_table(), BEGIN)


def filled_experts(page: str) -> str:
    """docs/experts.md with its tables anew."""
    return readme.filled(readme.filled(page, gpu_table(), BEGIN), cpu_table(), ON_CPUS)


def main() -> None:
    PAYS.write_text(filled_pays(PAYS.read_text()))
    EXPERTS.write_text(filled_experts(EXPERTS.read_text()))


if __name__ == "__main__":
    main()
