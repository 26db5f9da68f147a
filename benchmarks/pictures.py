"""The pictures of records: curves over sizes, steps of models, and mixtures of experts, on one GPU
and on many."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from epigrad.cli.picture import pyplot, save

# The range of ratios that is drawn; what is beyond runs out of its panel.
SMALLEST, LARGEST = 0.1, 5.0

COLORS = {"float32": "#2a7f9e", "float64": "#7a4fa3", "bfloat16": "#d08c2f", "float16": "#b03a2e"}


def draw_curves(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Draw each operation's ratios over sizes: a line of panels, one for each direction and number
    of threads, with a curve for each dtype.
    """
    rows = [row for row in record["rows"] if "ratio" in row]
    title = f"{_title(record)}: time over PyTorch eager's (below 1 is faster)"
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    names = list(dict.fromkeys((row["case"], row["kind"]) for row in rows))
    views = list(dict.fromkeys((row["direction"], row["threads"]) for row in rows))
    panels = [[(name, view) for view in views] for name in names]
    columns = len(views)
    size = (2.6 * max(2, columns), 1.0 + 1.95 * len(panels))
    figure, grid = pyplot().subplots(
        len(panels), columns, figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    ratios = [row["ratio"] for row in rows]
    bottom, top = _limits(ratios)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, contents in zip(grid, panels, strict=True):
        for axes, (name, view) in zip(line, contents, strict=False):
            own = [r for r in rows if (r["case"], r["kind"]) == name and (r["direction"], r["threads"]) == view]
            if not own:
                continue
            axes.set_axis_on()
            _panel(axes, own, bottom)
            axes.set_title(f"{_named(name)}\n{_seen(view)}", fontsize=8)
            axes.set_yscale("log")
            axes.set_ylim(bottom, top)
            axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4]))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            axes.tick_params(labelsize=7)
            axes.tick_params(axis="x", labelrotation=90, labelsize=6)
    dtypes = {row["dtype"] for row in rows}
    handles = [Line2D([], [], color=color, label=dtype) for dtype, color in COLORS.items() if dtype in dtypes]
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save(figure, path, dpi=100)


def _title(record: Mapping[str, Any]) -> str:
    versions = record["versions"]
    return f"epigrad {versions['epigrad']} on {record['device']}, PyTorch {versions['torch']}"


Name = tuple[str, str]
View = tuple[str, int]


def _named(name: Name) -> str:
    return " ".join(name).replace("_", " ")


def _seen(view: View) -> str:
    direction, threads = view
    return f"{direction}, {threads} thread{'s' * (threads > 1)}"


def _limits(ratios: Sequence[float]) -> tuple[float, float]:
    """The range that is drawn: eager's line at 1 is in it."""
    return max(SMALLEST, 0.9 * min(0.8, *ratios)), min(LARGEST, 1.1 * max(2.0, *ratios))


def _panel(axes: Any, rows: Sequence[dict[str, Any]], bottom: float) -> None:
    """Ratios over sizes, which lie side by side by the work that they are; an arrow is for those
    below the bottom."""
    sizes = sorted({(math.prod(row["size"]), tuple(row["size"])) for row in rows})
    places = {size: place for place, (_, size) in enumerate(sizes)}
    axes.axhspan(1, LARGEST, color="#f3e3dc", linewidth=0)
    axes.axhline(1, color="#444444", linewidth=0.8)
    for dtype, color in COLORS.items():
        own = sorted((places[tuple(row["size"])], row["ratio"]) for row in rows if row["dtype"] == dtype)
        if own:
            axes.plot(*zip(*own, strict=True), ".-", color=color, linewidth=1, markersize=3)
            below = [place for place, ratio in own if ratio < bottom]
            axes.plot(below, [1.05 * bottom] * len(below), "v", color=color, markersize=4, linestyle="none")
    axes.set_xticks(range(len(sizes)), [_size(size) for _, size in sizes])


def _size(size: Sequence[int]) -> str:
    """64x256x1024; of elements 64, 1k, 16M."""
    if len(size) > 1:
        return "x".join(map(str, size))
    (count,) = size
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def draw_models(
    path: pathlib.Path, record: Mapping[str, Any], metadata: Mapping[str, str | None] | None = None
) -> None:
    """Draw how long a step of each variant of each model takes: a panel for each model. Marks show
    how long the GPU is busy and how long the host takes, where the record has that. The file has
    these `metadata`."""
    from matplotlib.lines import Line2D

    rows = [row for row in record["rows"] if "wall" in row]
    names = list(dict.fromkeys(row["model"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    size = (2.2 + 1.9 * len(names), 1.4 + 0.25 * len(variants))
    figure, grid = pyplot().subplots(1, len(names), figsize=size, squeeze=False, sharey=True, layout="constrained")

    def milliseconds(time: float | Mapping[str, float]) -> float:
        return 1e3 * (time[record["statistic"]] if isinstance(time, Mapping) else time)

    marks = {"busy": ("|", "#222222", "GPU busy"), "host": ("d", "#d08c2f", "host")}
    for axes, name in zip(grid.flat, names, strict=True):
        own = {variants.index(row["variant"]): row for row in rows if row["model"] == name}
        times = [milliseconds(row["wall"]) for row in own.values()]
        colors = ["#2a7f9e" if "patched" in row["variant"] else "#c9ced1" for row in own.values()]
        axes.bar_label(axes.barh(list(own), times, 0.7, color=colors), fmt="%.3g", padding=2, fontsize=7)
        for field, (marker, color, _) in marks.items():
            marked = [(milliseconds(row[field]), place) for place, row in own.items() if field in row]
            if marked:
                axes.plot(*zip(*marked, strict=True), marker, color=color, markersize=6)
        axes.margins(x=0.2)
        axes.set_xlim(left=0)
        axes.set_title(f"{name}, {own[min(own)]['size']}", fontsize=8)
        axes.set_yticks(range(len(variants)), variants, fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].invert_yaxis()
    figure.suptitle(f"{_title(record)}: ms of a training step (less is faster)", fontsize=9, x=0.01, ha="left")
    handles = [
        Line2D([], [], marker=marker, color=color, linestyle="none", label=label)
        for field, (marker, color, label) in marks.items()
        if any(field in row for row in rows)
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    save(figure, path, dpi=120, metadata=metadata)


def draw_experts(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Draw each implementation's time in times of the floor's: a panel for each mixture and dtype,
    in which routings stand apart."""
    rows = [row for row in record["rows"] if "time" in row and row["implementation"] != "floor"]
    names = list(dict.fromkeys((row["case"], row["dtype"]) for row in rows))
    labels = list(dict.fromkeys((row["routing"], row["implementation"]) for row in rows))
    places = {label: place + 0.5 * (label[0] != labels[0][0]) for place, label in enumerate(labels)}
    size = (2.5 + 2.5 * len(names), 1.4 + 0.28 * len(labels))
    figure, grid = pyplot().subplots(1, len(names), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axes, name in zip(grid.flat, names, strict=True):
        own = [row for row in rows if (row["case"], row["dtype"]) == name]
        heights = [places[row["routing"], row["implementation"]] for row in own]
        colors = ["#2a7f9e" if row["implementation"] == "epigrad" else "#c9ced1" for row in own]
        bars = axes.barh(heights, [row["ratio_to_floor"] for row in own], 0.75, color=colors)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axes.axvline(1, color="#444444", linewidth=1)
        axes.margins(x=0.15)
        axes.set_title(f"{name[0]}, {name[1]}\n{own[0]['size']}", fontsize=8)
        ticks = [f"{implementation}, {routing}" for routing, implementation in labels]
        axes.set_yticks(list(places.values()), ticks, fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].invert_yaxis()
    what = "forward and backward of experts, in times of dense products of as many rows (less is faster)"
    figure.suptitle(f"{_title(record)}\n{what}", fontsize=9, x=0.01, ha="left")
    save(figure, path, dpi=100)


def draw_parallel(path: pathlib.Path, record: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Draw the tokens that all ranks together take a second: a panel for each routing, a curve for
    each way that has a name, and what one rank's speed would grow to."""
    rows = [row for row in record["rows"] if "time" in row and row["way"] in names]
    routings = list(dict.fromkeys(row["routing"] for row in rows))
    size = (1.0 + 3.2 * len(routings), 2.8)
    figure, grid = pyplot().subplots(1, len(routings), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axes, routing in zip(grid.flat, routings, strict=True):
        for color, (way, name) in zip(COLORS.values(), names.items(), strict=False):
            own = [row for row in rows if (row["routing"], row["way"]) == (routing, way)]
            ranks = [row["ranks"] for row in own]
            speeds = [row["ranks"] * row["tokens"] / row["time"]["median"] / 1e6 for row in own]
            axes.plot(ranks, speeds, "o-", color=color, label=name)
            axes.plot(ranks, [speeds[0] * rank / ranks[0] for rank in ranks], ":", color=color, linewidth=1)
            for rank, speed in zip(ranks, speeds, strict=True):
                axes.annotate(f"{speed:.2f}", (rank, speed), (0, 5), textcoords="offset points", fontsize=7)
        axes.set_title(f"{routing} routing", fontsize=8)
        axes.set_xticks(ranks, [f"{rank} GPU{'s' * (rank > 1)}" for rank in ranks], fontsize=8)
        axes.tick_params(axis="y", labelsize=7)
        axes.set_ylim(0)
        axes.margins(0.15)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("million tokens a second", fontsize=8)
    grid[0, 0].legend(fontsize=7, frameon=False)
    what = "forward and backward of a layer; dotted: as many times as fast as one"
    figure.suptitle(f"{_title(record)}\n{what}", fontsize=9, x=0.01, ha="left")
    save(figure, path, dpi=100)
