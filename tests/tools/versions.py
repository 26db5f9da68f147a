"""The tables of docs/upgrade.md that compare the speed of 0.1 and 0.2.

Times in turns come from the records in docs/results that end in -versions, which turns.py writes:

    python benchmarks/turns.py FILE 0.1=FOLDER 0.2=FOLDER --eager [--device cuda]

More rows of a GPU come from a record of each version.
"""

from __future__ import annotations

import pathlib

from tests.tools.records import RESULTS, geometric_mean, load, table

DOCS = RESULTS.parent
GPU_RECORDS = {
    "0.1": RESULTS / "2026-11-21-cuda-nvidia-h200.json",
    "0.2": RESULTS / "2026-11-24-cuda-nvidia-h200.json",
}
# What two records have to agree on for their times to compare.
SAME = ("device", "driver", "cuda")


def turns_tables() -> str:
    """A table for each record of turns."""
    tables = [turns_table(path) for path in sorted(RESULTS.glob("*-versions.json"))]
    return "\n".join(tables) or "No runs in turns are recorded yet.\n"


def turns_table(path: pathlib.Path) -> str:
    """A line for each operation, dtype and direction; those of the same sizes share a table."""
    record = load(path)
    old, new = record["geometric_mean"]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in record["rows"]:
        operation, size, dtype, direction = row["call"].split(", ")
        cells = lines.setdefault((operation, dtype, direction), {})
        cells[size] = f"{row['ratio'][old]:.2f}, {row['ratio'][new]:.2f}"
    means = ", ".join(f"{mean:.2f}" for mean in (record["geometric_mean"][old], record["geometric_mean"][new]))
    device = record["device"] + (f", {record['threads']} threads" if "threads" in record else "")
    machine = f"[{device}]({path.relative_to(DOCS)})"
    text = f"{machine}, PyTorch {record['torch'].partition('+')[0]}.\nThe geometric means of all are {means}.\n"
    for sizes in dict.fromkeys(map(tuple, lines.values())):
        of_sizes = [[*label, *cells.values()] for label, cells in lines.items() if tuple(cells) == sizes]
        text += "\n" + table(["operation", "dtype", "direction", *sizes], of_sizes)
    return text


def gpu_table() -> str:
    """A line for each operation and direction: geometric means over kinds, sizes and dtypes."""
    records = {version: load(path) for version, path in GPU_RECORDS.items()}
    old, new = records.values()
    facts = [[record[key] for key in SAME] + [record["versions"]["torch"]] for record in (old, new)]
    if facts[0] != facts[1]:
        raise SystemExit(f"the records of two versions do not compare: {facts[0]} and {facts[1]}")
    ratios = [
        {
            tuple(row[key] for key in ("op", "kind", "size", "dtype", "direction")): row["ratio"]
            for row in record["rows"]
            if "ratio" in row
        }
        for record in (old, new)
    ]
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row, ratio in ratios[0].items():
        if row in ratios[1]:
            lines.setdefault((row[0], row[-1]), []).append((ratio, ratios[1][row]))
    links = [f"[{version}]({path.relative_to(DOCS)})" for version, path in GPU_RECORDS.items()]
    cells = []
    for (operation, direction), pairs in lines.items():
        means = [f"{geometric_mean(column):.2f}" for column in zip(*pairs, strict=True)]
        cells.append([operation.replace("_", " "), direction, str(len(pairs)), *means])
    return table(["operation", "direction", "rows", *links], cells)
