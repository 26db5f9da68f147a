"""Writes the tables of README.md, docs/performance.md and docs/models.md and draws their pictures,
from the records of docs/results.

    python -m tests.tools.readme

fills what stands between two comments of each page, and draws the pictures of docs/results that
have no record of their own name. Accuracy comes from the pages that tests/tools/accuracy.py writes.
tests/docs/test_pages.py fails where a table or a picture is stale.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from epigrad.cli import bench_cpu, picture

from tests.support.repository import ROOT
from tests.tools import exact_page

README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
MODELS = ROOT / "docs" / "models.md"
RESULTS = ROOT / "docs" / "results" / "README.md"
PICTURE = ROOT / "docs" / "results" / "readme.png"
CPU_PICTURE = ROOT / "docs" / "results" / "readme-cpu.png"

BEGIN = "<!-- python -m tests.tools.readme writes this table -->\n"
END = "<!-- the end of the table -->\n"

# A machine, and what it measured.
Source = tuple[str, str]
H200 = ("NVIDIA H200", "docs/results/2026-11-24-cuda-nvidia-h200.json")
CPUS = (
    ("Intel Xeon", "docs/results/2026-11-23-cpu-intel-xeon.json"),
    ("AMD EPYC", "docs/results/2026-11-23-cpu-amd-epyc.json"),
    ("AMD EPYC, AVX2, one thread", "docs/results/2026-11-23-cpu-amd-epyc-avx2.json"),
)
# What `bench --models` measured, in one run or in several on a machine. docs/models.md shows all
# machines, README.md those with GPUs.
MODEL_RECORDS: dict[str, tuple[str, ...]] = {
    "NVIDIA H200": (
        "docs/results/2026-11-24-models-nvidia-h200.json",
        *(f"docs/results/2026-11-24-models-nvidia-h200-{part}.json" for part in (2, 3, 4)),
    ),
}
ACCURACY = (("NVIDIA H100", "docs/accuracy-cuda.md"), ("CPU", "docs/accuracy.md"))

HALF = ("bfloat16", "float16")
FULL = ("float32", "float64")


class Bar(NamedTuple):
    """A row of the H200's record; only `name` is not a field of it."""

    name: str
    op: str
    kind: str
    size: str
    dtype: str
    direction: str


BARS = (
    Bar("SwiGLU", "gated", "swiglu", "[8192, 28672]", "bfloat16", "forward"),
    Bar("SwiGLU", "gated", "swiglu", "[8192, 28672]", "bfloat16", "backward"),
    Bar("GeGLU", "gated", "geglu", "[8192, 28672]", "bfloat16", "backward"),
    Bar("lerp by a tensor", "lerp", "tensor", "[8192, 14336]", "bfloat16", "forward + backward"),
    Bar("SwiGLU MLP", "gated_mlp", "swiglu", "8192x4096x14336", "bfloat16", "forward + backward"),
    Bar("Linear with GELU", "linear", "gelu", "8192x4096x14336", "bfloat16", "backward"),
    Bar("GELU MLP", "mlp", "gelu", "8192x4096x14336", "bfloat16", "forward + backward"),
    Bar("GELU alone", "activation", "gelu", "[8192, 14336]", "float64", "forward"),
)


def rows(source: Source) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / source[1]).read_text())["rows"]
    return found


def row(bar: Bar) -> dict[str, Any]:
    """The one row of the record that a bar shows."""
    wanted = bar._asdict().items() - {("name", bar.name)}
    (found,) = (row for row in rows(H200) if wanted <= {(key, row[key]) for key in Bar._fields[1:]})
    return found


# Which of the CPUs README.md has a picture of.
CPU_SHOWN = 1


def gates(sources: Iterable[Source], dtypes: Collection[str]) -> str:
    """SwiGLU's and GeGLU's times over eager's, from the least to the largest."""
    ratios = [
        row["ratio"]
        for source in sources
        for row in rows(source)
        if row["op"] == "gated" and row["kind"] in ("swiglu", "geglu") and row["dtype"] in dtypes
    ]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def of_cpu(source: Source) -> list[dict[str, Any]]:
    """The lines of a CPU's summary on all threads, both directions together where they are."""
    record = json.loads((ROOT / source[1]).read_text())
    lines: list[dict[str, Any]] = [line for line in record["summary"] if line["threads"] == record["threads"]]
    return [line for line in lines if line["direction"] == bench_cpu.BOTH or line["case"] == "product"]


LAYERS = ("linear", "mlp", "gated_mlp")
OF_A_CURVE = ("case", "kind", "direction", "threads")


def layers(source: Source) -> str:
    """The mean ratios of layers on a CPU, without float16."""
    means = {line["case"]: line["geometric_mean"] for line in of_cpu(source) if "float32" in line["dtypes"]}
    return ", ".join(f"{means[case]:.2f}" for case in LAYERS)


def cpu_table() -> str:
    """The table of docs/performance.md: mean ratios by dtype, and the worst without float16."""
    text = f"| operation | measured on | {' | '.join(picture.COLORS)} | worst but float16 |\n" + "|---" * 7 + "|\n"
    parts: dict[tuple[str, str], list[str]] = {}
    for machine, path in CPUS:
        record = json.loads((ROOT / path).read_text())
        for line in of_cpu((machine, path)):
            if "float32" not in line["dtypes"]:
                continue
            name = (line["case"], line["kind"])
            own = [point for point in record["rows"] if all(point[key] == line[key] for key in OF_A_CURVE)]
            cells = [_mean([point["ratio"] for point in own if point["dtype"] == dtype]) for dtype in picture.COLORS]
            at = "x".join(map(str, line["worst_at"]["size"]))
            cells.append(f"{line['worst']:.2f} at {at} {line['worst_at']['dtype']}")
            parts.setdefault(name, []).append(f"| {machine} | {' | '.join(cells)} |\n")
    for (case, kind), lines in parts.items():
        for place, line in enumerate(lines):
            text += f"| {'' if place else f'{case} {kind}'.replace('_', ' ')} {line}"
    return text


def summary_table() -> str:
    """The table of docs/results/README.md: an operation's mean, worst and share on each machine."""
    machines: list[dict[tuple[str, ...], dict[str, Any]]] = []
    for _, path in CPUS:
        record = json.loads((ROOT / path).read_text())
        lines = [
            line for line in record["summary"] if line["threads"] == record["threads"] and "float32" in line["dtypes"]
        ]
        machines.append({(line["case"], line["kind"], line["direction"]): line for line in lines})
    text = f"| operation | direction | goal | {' | '.join(machine for machine, _ in CPUS)} |\n" + "|---" * 6 + "|\n"
    for key in machines[0]:
        goal = machines[0][key]["goal"]
        cells = [
            f"{line['geometric_mean']:.2f}, {line['worst']:.2f}, {line['share_at_level']:.0%}"
            for line in (machine[key] for machine in machines)
        ]
        name = " ".join(key[:2]).replace("_", " ")
        text += f"| {name} | {key[2]} | {'' if goal is None else f'{goal:.2f}'} | {' | '.join(cells)} |\n"
    return text


def _mean(ratios: Collection[float]) -> str:
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"


def model_record(machine: str) -> dict[str, Any]:
    """The record of a machine's models, with the rows of all its runs."""
    record, *others = (json.loads((ROOT / path).read_text()) for path in MODEL_RECORDS[machine])
    rows = [row for each in (record, *others) for row in each["rows"] if "wall" in row]
    return {**record, "rows": rows}


def by_variant(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """A record's rows by model and variant."""
    return {(row["model"], row["variant"]): row for row in record["rows"]}


# The lines of a model: a heading, a row's field, and its unit.
QUANTITIES = (
    ("step, ms", "wall", 1e-3),
    ("GPU busy, ms", "busy", 1e-3),
    ("host, ms", "host", 1e-3),
    ("peak, MiB", "peak", 2**20),
)


def models_table() -> str:
    """The tables of docs/models.md and their pictures, one for each machine."""
    return "\n".join(map(_models_table, MODEL_RECORDS))


def _models_table(machine: str) -> str:
    record = model_record(machine)
    rows = by_variant(record)
    models, variants = (list(dict.fromkeys(names)) for names in zip(*rows, strict=True))
    links = numbered((machine, _in_docs(ROOT / path)) for path in MODEL_RECORDS[machine])
    text = f"| {links} | | {' | '.join(variants)} |\n" + "|---" * (2 + len(variants)) + "|\n"
    for model in models:
        own = [rows.get((model, variant), {}) for variant in variants]
        heading = f"{model}, {own[0]['size']}"
        for quantity, field, unit in QUANTITIES:
            if any(field in row for row in own):
                cells = (_value(row, field, unit, record["statistic"]) for row in own)
                text += f"| {heading} | {quantity} | {' | '.join(cells)} |\n"
                heading = ""
    return text + f"\n![Training steps of models, {machine}]({_in_docs(models_picture(machine))})\n"


def _in_docs(path: pathlib.Path) -> pathlib.Path:
    return path.relative_to(MODELS.parent)


def models_picture(machine: str) -> pathlib.Path:
    """Where the picture of a machine's models is."""
    return (ROOT / MODEL_RECORDS[machine][0]).with_suffix(".png")


def on_gpus() -> list[str]:
    """The machines whose models were on a GPU."""
    return [machine for machine in MODEL_RECORDS if "capability" in model_record(machine)]


def _value(row: dict[str, Any], field: str, unit: float, statistic: str) -> str:
    """A number with three digits and no exponent, or nothing where it was not measured."""
    if field not in row:
        return ""
    number = (row[field][statistic] if isinstance(row[field], dict) else row[field]) / unit
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


def table() -> str:
    """The table of README.md."""
    mlp = next(bar for bar in BARS if bar.op == "mlp")
    kept = {who: f"{memory['kept'] / 2**20:.0f} MiB" for who, memory in row(mlp)["memory"].items()}
    ours = max(worst(("value", "slope", "from output")), exact_page.largest("float64"))
    eager = worst(("PyTorch value", "PyTorch slope"))
    lines: list[tuple[str, str, str, Iterable[Source]]] = [
        ("Time of SwiGLU and GeGLU, bfloat16 and float16", gates([H200], HALF), "1", [H200]),
        ("Time of SwiGLU and GeGLU, float32 and float64", gates([H200], FULL), "1", [H200]),
        *(
            (
                "Time of a GELU layer, an MLP and a SwiGLU MLP, each the mean of ten sizes and three dtypes",
                layers((machine, path)),
                "1",
                [(machine, path)],
            )
            for machine, path in CPUS[:2]  # with AVX2 alone PyTorch has no fast bfloat16, which would flatter a mean
        ),
        (
            f"Memory that a {mlp.name} of {mlp.size} keeps for backward, {mlp.dtype}",
            kept["epigrad"],
            kept["eager"],
            [H200],
        ),
        *map(_models_line, on_gpus()),
        (
            "Largest error of an activation or its slope, float64",
            f"{ours:.1f} ULP",
            f"over 10<sup>{math.floor(math.log10(eager))}</sup> ULP, in the tails",
            (*ACCURACY, ("a search", "docs/kinds.md#worst-cases")),
        ),
    ]
    text = "| | epigrad | PyTorch eager | measured on |\n|---|---|---|---|\n"
    for what, here, there, sources in lines:
        text += f"| {what} | {here} | {there} | {numbered(sources)} |\n"
    for machine in on_gpus():
        text += f"\n![Training steps of models, {machine}]({models_picture(machine).relative_to(ROOT)})\n"
    return text


def numbered(sources: Iterable[tuple[str, str | pathlib.Path]]) -> str:
    """Links to records by their machines; to further ones of a machine by their numbers."""
    links: list[str] = []
    seen: dict[str, int] = {}
    for machine, path in sources:
        seen[machine] = seen.get(machine, 0) + 1
        links.append(f"[{machine if seen[machine] == 1 else seen[machine]}]({path})")
    return ", ".join(links)


def _models_line(machine: str) -> tuple[str, str, str, Iterable[Source]]:
    """A line of README.md: what `patch` makes of models, plain ones and compiled ones."""
    rows = by_variant(model_record(machine))
    models = list(dict.fromkeys(model for model, _ in rows))

    def ratios(variant: str) -> str:
        found = [rows[model, variant]["ratio_to_unpatched"] for model in models if (model, variant) in rows]
        return ", ".join(f"{ratio:.2f}" for ratio in found)

    what = f"Time of a training step of {', '.join(models)}, patched; where both are compiled"
    return (
        what,
        f"{ratios('patched')}; {ratios('patched + compiled')}",
        "1",
        [(machine, path) for path in MODEL_RECORDS[machine]],
    )


def filled(page: str, table: str, begin: str = BEGIN) -> str:
    """A page with the table anew that stands below a comment."""
    before, rest = page.split(begin)
    return before + begin + table + END + rest.split(END, 1)[1]


def bars() -> list[tuple[str, float, float]]:
    """The picture's labels, with epigrad's and torch.compile's times over eager's."""

    def times(row: dict[str, Any]) -> tuple[float, float]:
        ours, compiled = (row[who]["median"] / row["eager"]["median"] for who in ("epigrad", "compile"))
        return round(ours, 2), round(compiled, 2)

    return [(f"{bar.name}, {bar.direction}, {bar.dtype}".replace("+", "and"), *times(row(bar))) for bar in BARS]


def description() -> str:
    """What the picture's file says that it shows."""
    return json.dumps(bars())


def digest(*paths: str) -> str:
    """What the file of a picture says, which shows whole records."""
    return hashlib.sha256(b"".join((ROOT / path).read_bytes() for path in paths)).hexdigest()


def draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels, ours, compiled = zip(*bars(), strict=True)
    places = range(len(labels))
    figure, axes = pyplot.subplots(figsize=(9, 3.3), dpi=100, layout="constrained")
    for times, shift, colour, ink, name in (
        (ours, -0.2, "#2a7f9e", "white", "epigrad"),
        (compiled, 0.2, "#c9ced1", "black", "torch.compile"),
    ):
        drawn = axes.barh([place + shift for place in places], times, 0.4, color=colour, label=name)
        axes.bar_label(drawn, fmt="%.2f", padding=-26, fontsize=8, color=ink)
    axes.axvline(1, color="#b03a2e", linewidth=1, label="PyTorch eager")
    axes.set_yticks(places, labels)
    axes.set_xticks([0, 0.5, 1, 1.5])
    axes.invert_yaxis()
    axes.tick_params(left=False)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.set_title("Time on an NVIDIA H200, relative to PyTorch eager: shorter is faster", fontsize=10)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    figure.savefig(PICTURE, metadata={"Software": None, "Description": description()})
    pyplot.close(figure)


def draw_models(machine: str) -> None:
    metadata = {"Software": None, "Description": digest(*MODEL_RECORDS[machine])}
    picture.plot_models(models_picture(machine), model_record(machine), metadata)


def draw_cpu() -> None:
    machine, path = CPUS[CPU_SHOWN]
    title = f"Time on an {machine} relative to PyTorch eager, products forward, others with backward: below 1 is faster"
    picture.plot_overview(
        CPU_PICTURE, title, rows((machine, path)), metadata={"Software": None, "Description": digest(path)}
    )


def main() -> None:
    README.write_text(filled(README.read_text(), table()))
    PERFORMANCE.write_text(filled(PERFORMANCE.read_text(), cpu_table()))
    RESULTS.write_text(filled(RESULTS.read_text(), summary_table()))
    MODELS.write_text(filled(MODELS.read_text(), models_table()))
    draw()
    draw_cpu()
    for machine in MODEL_RECORDS:
        draw_models(machine)


if __name__ == "__main__":
    main()
