"""The picture of a table: each row's time as a part of PyTorch eager's, by matplotlib."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any


def pyplot() -> Any:
    """matplotlib's, drawing into files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: pathlib.Path, **options: Any) -> None:
    """Write a figure and say so."""
    figure.savefig(path, **options)
    pyplot().close(figure)
    print(f"wrote {path}", file=sys.stderr)


def draw_bars(path: pathlib.Path, title: str, bars: Sequence[tuple[str, float, float | None]]) -> None:
    """Draw epigrad's ratios, and those of `torch.compile` beside them where there are."""
    bars = bars[::-1]
    figure, axes = pyplot().subplots(figsize=(9, 1.4 + 0.28 * len(bars)), layout="constrained")
    axes.barh(range(len(bars)), [ratio for _, ratio, _ in bars], color="#2a7f9e", label="epigrad")
    compiled = [(other, place) for place, (_, _, other) in enumerate(bars) if other is not None]
    if compiled:
        axes.plot(*zip(*compiled, strict=True), "D", color="#d08c2f", markersize=5, label="torch.compile")
        axes.legend(loc="lower right", fontsize=8)
    axes.axvline(1, color="#444444", linewidth=1)
    if max(ratio for _, ratio, _ in bars) > 5:
        axes.set_xscale("log")
    # by itself matplotlib leaves room for two bars at each end
    axes.set_ylim(-0.7, len(bars) - 0.3)
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars], fontsize=8)
    axes.set_xlabel("time / time of PyTorch eager (less is faster)")
    axes.set_title(title, fontsize=10)
    save(figure, path, dpi=150)
