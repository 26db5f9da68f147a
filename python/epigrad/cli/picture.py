"""The pictures of `bench`, by matplotlib: bars, and curves over sizes."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

# The range of ratios that is drawn; what is beyond runs out of its panel.
SMALLEST, LARGEST = 0.1, 5.0

COLORS = {"float32": "#2a7f9e", "float64": "#7a4fa3", "bfloat16": "#d08c2f", "float16": "#b03a2e"}


def plot_curves(path: pathlib.Path, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Draw each operation's ratios over sizes: a line of panels, one for each direction and number
    of threads, with a curve for each dtype.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    names = list(dict.fromkeys((row["case"], row["kind"]) for row in rows))
    views = list(dict.fromkeys((row["direction"], row["threads"]) for row in rows))
    size = (2.3 * max(2, len(views)), 0.7 + 1.35 * len(names))
    figure, grid = pyplot.subplots(
        len(names), len(views), figsize=size, squeeze=False, sharex="row", sharey=True, layout="constrained"
    )
    for line, name in zip(grid, names, strict=True):
        for axes, view in zip(line, views, strict=True):
            _panel(axes, [r for r in rows if (r["case"], r["kind"]) == name and (r["direction"], r["threads"]) == view])
        line[0].set_ylabel(" ".join(name).replace("_", " "), fontsize=8)
    for axes, (direction, threads) in zip(grid[0], views, strict=True):
        axes.set_title(f"{direction}, {threads} thread{'s' * (threads > 1)}", fontsize=8)
    for axes in grid.flat:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.tick_params(labelsize=7)
    ratios = [row["ratio"] for row in rows]
    grid[0, 0].set_ylim(max(SMALLEST, 0.9 * min(ratios)), min(LARGEST, 1.1 * max(2.0, *ratios)))
    figure.supxlabel("multiply-adds of a product, or elements", fontsize=8)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    handles = {
        text: handle for axes in grid.flat for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"wrote {path}", file=sys.stderr)


def _panel(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        axes.set_axis_off()
        return
    axes.axhspan(1, LARGEST, color="#f3e3dc", linewidth=0)
    axes.axhline(1, color="#444444", linewidth=0.8)
    for dtype, color in COLORS.items():
        own = sorted((row["work"], row["ratio"]) for row in rows if row["dtype"] == dtype)
        if own:
            axes.plot(*zip(*own, strict=True), ".-", color=color, linewidth=1, markersize=3, label=dtype)


def plot(
    path: pathlib.Path,
    title: str,
    what: str,
    bars: Sequence[tuple[str, float, float | None]],
    goals: Sequence[float] = (),
) -> None:
    """Draw each row's time as a part of PyTorch eager's, and torch.compile's and its goal beside it
    where there are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = bars[::-1]
    figure, axes = pyplot.subplots(figsize=(9, 1.4 + 0.28 * len(bars)), layout="constrained")
    axes.barh(range(len(bars)), [ratio for _, ratio, _ in bars], color="#2a7f9e", label="epigrad")
    compiled = [(place, other) for place, (_, _, other) in enumerate(bars) if other is not None]
    if compiled:
        places, others = zip(*compiled, strict=True)
        axes.plot(others, places, "D", color="#d08c2f", markersize=5, linestyle="none", label="torch.compile")
    if goals:
        axes.plot(goals[::-1], range(len(bars)), "|", color="#b03a2e", markersize=9, linestyle="none", label="goal")
    if compiled or goals:
        axes.legend(loc="lower right", fontsize=8)
    axes.axvline(1, color="#444444", linewidth=1)
    if max(ratio for _, ratio, _ in bars) > 5:
        axes.set_xscale("log")
    # by itself matplotlib leaves room for two bars at each end
    axes.set_ylim(-0.7, len(bars) - 0.3)
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars], fontsize=8)
    axes.set_xlabel(f"time / time of PyTorch eager, {what} (less is faster)")
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"wrote {path}", file=sys.stderr)
