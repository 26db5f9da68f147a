"""Serves a page that runs epigrad's WebGPU kernels in the browser and compares what they give with
PyTorch in float64.

    python examples/webgpu-page/serve.py                       then open the address it prints
    python examples/webgpu-page/serve.py --browser CHROMIUM    no window: figures as JSON

The second runs the page in a Chromium without a window, prints the figures, and fails where one
breaks the rule.

The page gets the kernels as they lie in kernels/webgpu. Operands, references and how far a result
may be from them come from here, by the rule of the tests (tests/support/tolerance.py); the browser
multiplies nothing on the CPU.
"""

from __future__ import annotations

import argparse
import base64
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PAGE = Path(__file__).resolve().parent
ROOT = PAGE.parents[1]
KERNELS = ROOT / "kernels" / "webgpu"
sys.path.insert(0, str(ROOT))  # for tests.support

from epigrad import Activation, Gated  # noqa: E402
from epigrad._core.tables import QUOTIENTS  # noqa: E402
from epigrad.kinds import activation_of, gated_of  # noqa: E402

from tests.support import formulas  # noqa: E402
from tests.support.cases import ACTIVATIONS, FROM_OUTPUT, GATED_KINDS, LERP_SHAPES, Case  # noqa: E402
from tests.support.oracle import Sized  # noqa: E402
from tests.support.problem import problem_of  # noqa: E402
from tests.support.tolerance import allowed_error, worst_relative_error  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
REDRAWS = 4
"""How often PyTorch's own error is measured on other random values: few elements do not show its
worst."""

# Odd sizes, and those that kernels take four elements at a time of; more rows than one tile and one
# run of a sum have.
LINEAR = ("((70, 17), (17, 11))", "((72, 20), (20, 12))")
GATED = ("((5, 14), -1)", "((6, 40), -1)")
LERP = {"a number": "float", "a tensor": "full", "a row": "columns", "a row of sums": "long_sum"}
"""What the weight is, and the shapes' name among the tests'."""


@dataclass(frozen=True)
class Row:
    """One line of the page's table: a call of the browser's operations, for one kind."""

    call: str
    kind: str | Activation | Gated
    shape: str
    given: str = ""
    """What a backward starts from, besides the inputs."""

    @property
    def name(self) -> str:
        return f"{self.call} from {self.given}" if self.given else self.call


def rows() -> Iterator[Row]:
    for call in ("linear", "linear_backward"):
        for turn, kind in enumerate(ACTIVATIONS):
            yield Row(call, kind, LINEAR[turn % 2])
    for turn, kind in enumerate(FROM_OUTPUT):
        yield Row("linear_backward", kind, LINEAR[turn % 2], "output")
    for call in ("gated_product", "gated_product_backward"):
        for turn, kind in enumerate(GATED_KINDS):
            yield Row(call, kind, GATED[turn % 2])
    for call in ("lerp", "lerp_backward"):
        for kind, shape in LERP.items():
            yield Row(call, kind, shape)


ROWS = tuple(rows())


def packed(values: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def operand(tensor: Tensor) -> dict[str, Any]:
    """A tensor as the page gets it: its bytes, whatever the dtype."""
    bits = torch.int16 if tensor.element_size() == 2 else torch.int32
    return {"shape": list(tensor.shape), "bytes": packed(tensor.contiguous().view(bits).numpy())}


def case_of(row: Row, dtype: torch.dtype) -> Case:
    """The row in the tests' words."""
    return Case(row.call.removesuffix("_backward"), row.kind, dtype, row.shape, layout="contiguous")


Problem = tuple[dict[str, Tensor], dict[str, tuple[Sized, Tensor]]]


def problem(row: Row, case: Case) -> Problem:
    """A row's operands, and of each of its results the reference and what PyTorch's own operations
    give."""
    found = problem_of(case)
    operands = dict(found.inputs.given)
    if row.given == "output":
        operands["output"] = case.row.eager(found.preactivation())
    wanted = found.wanted()
    everything = zip(found.names, wanted.reference, wanted.eager, strict=True)
    results = {name: (want, eager) for name, want, eager in everything if want is not None and eager is not None}
    kept = {name: result for name, result in results.items() if row.call.endswith("backward") != (name == "out")}
    return {name: x for name, x in operands.items() if x is not None} | {"grad_output": found.grad_output}, kept


def formula_of(row: Row) -> formulas.GatedFormula:
    """The formula that computes a row, and its numbers: lerp's is a weight that is no tensor."""
    if row.call.startswith("lerp"):
        weight = LERP_SHAPES[row.shape][2]
        return "none", (weight,) if isinstance(weight, float) else ()
    if row.call.startswith("gated"):
        return formulas.of_gated(gated_of("page", row.kind))
    return formulas.of_activation(activation_of("page", row.kind))


@functools.cache
def described(row: Row, dtype: torch.dtype) -> bytes:
    """The JSON of one cell of the table: operands, and of each result the reference and the error
    that is allowed."""
    case = case_of(row, dtype)
    operands, results = problem(row, case)
    others = [problem(row, replace(case, draw=draw))[1] for draw in range(1, REDRAWS + 1)]
    told_results = {}
    for name, (reference, _) in results.items():
        error = max(worst_relative_error(eager, want) for want, eager in (draw[name] for draw in (results, *others)))
        allowed = allowed_error(reference, error, dtype)
        told_results[name] = {"reference": packed(reference.value), "allowed": packed(allowed)}
    formula, numbers = formula_of(row)
    told = {
        "call": row.call,
        "formula": formula,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(operands["grad_output"].shape),
        "parameters": numbers,
        "quotients": QUOTIENTS.get(formula),
        "operands": {name: operand(x) for name, x in operands.items()},
        "results": told_results,
    }
    return json.dumps(told).encode()


class Handler(SimpleHTTPRequestHandler):
    """The page's files, the kernels, the cases, and where the page reports."""

    server: Server

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, directory=str(PAGE), **rest)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/kernels.json":
            texts = {file.stem: file.read_text() for file in sorted(KERNELS.glob("*.wgsl"))}
            self.answer(json.dumps(texts).encode())
        elif path == "/rows.json":
            dtypes = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
            told = [{"name": row.name, "kind": str(row.kind)} for row in self.server.rows]
            self.answer(json.dumps({"dtypes": dtypes, "rows": told}).encode())
        elif path.startswith("/case/"):
            index, dtype = path.removeprefix("/case/").split("/")
            self.answer(described(self.server.rows[int(index)], getattr(torch, dtype)))
        else:
            super().do_GET()

    def do_POST(self) -> None:
        report = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"{}")
        self.server.report = json.loads(report)
        self.server.reported.set()

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing of each request."""


class Server(ThreadingHTTPServer):
    """Serves on this machine alone, from construction on."""

    def __init__(self, port: int = 0, rows: Sequence[Row] = ROWS) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.rows = rows
        self.report: dict[str, Any] = {}
        self.reported = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://localhost:{self.server_address[1]}/"


# Chromium brings SwiftShader, which runs WebGPU on any CPU; as root it has no sandbox.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-dawn-features=disable_workgroup_init",  # compiles products five times as fast; they need none
    "--remote-debugging-port=0",
)


def in_chromium(browser: str, seconds: float, rows: Sequence[Row]) -> dict[str, Any]:
    """What the page reports when a Chromium without a window opens it."""
    torch.set_num_threads(1)  # the problems are small, and the browser needs the CPU
    server = Server(rows=rows)
    with tempfile.TemporaryDirectory() as profile, tempfile.TemporaryFile() as log:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", server.address]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            if not server.reported.wait(seconds):
                log.seek(0)
                raise TimeoutError(f"{browser}: no report within {seconds} s\n{log.read().decode(errors='replace')}")
        finally:
            # the command may be a script that starts the browser
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            server.shutdown()
    return server.report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000, help="where the page is (default: %(default)s)")
    parser.add_argument("--browser", metavar="CHROMIUM", help="run the page there, once, and print its figures as JSON")
    parser.add_argument("--seconds", type=float, default=600, help="how long to wait for them (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="rows of these only, such as silu and 'a row'")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.kinds is None or str(row.kind) in options.kinds]
    if not rows:
        parser.error(f"--kinds {' '.join(options.kinds)}: no row is of these")
    if options.browser:
        report = in_chromium(options.browser, options.seconds, rows)
        print(json.dumps(report, indent=1))
        return 0 if report["passed"] else 1
    server = Server(options.port, rows)
    print(f"open {server.address} (Ctrl+C ends this)")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
