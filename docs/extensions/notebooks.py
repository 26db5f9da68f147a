"""Runs the notebooks of docs/tutorials and stores in them what they show.

    python docs/extensions/notebooks.py [--all]

runs those whose code has changed since they were stored, or all. Each runs in an empty folder of
its own, as a notebook that somebody has downloaded does. `make docs` calls it, and the site shows
what is stored. Pictures are stored with 64 colours, which is a third of their size.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1] / "tutorials"
COLORS = 64


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: Any) -> str:
    """Of all code: text may change without a run."""
    return hashlib.sha256("\0".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()


def is_stale(notebook: Any) -> bool:
    """Whether what is stored was shown by other code."""
    return bool(notebook.metadata.get("epigrad", {}).get("code") != digest(notebook))


def run(notebook: Any, environment: Mapping[str, str]) -> None:
    """Run all cells in an empty folder, so that they have outputs. A cell that raises, raises."""
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=300,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--log-level=ERROR"],  # a kernel warns of its own sockets
        )
        client.execute(env=dict(environment))


def smaller(png: str) -> str:
    """A picture in base64 with few colours, and without the name of what drew it."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def store(path: Path) -> None:
    """Run a notebook and write it with its outputs."""
    notebook = read(path)
    metadata = notebook.metadata.copy()
    run(notebook, os.environ)
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    notebook.metadata = metadata | {"epigrad": {"code": digest(notebook)}}  # not the kernel's version
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run notebooks and store what they show.")
    parser.add_argument("--all", action="store_true", help="those too whose code has not changed")
    everything = parser.parse_args().all
    for path in sorted(FOLDER.glob("*.ipynb")):
        if everything or is_stale(read(path)):
            begin = time.monotonic()
            store(path)
            print(f"{path.name}: {time.monotonic() - begin:.0f} s, {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
