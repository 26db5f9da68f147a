"""examples/webgpu-page in Chromium: another implementation of WebGPU than wgpu-native runs the same
kernels."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.devices import REQUIRED
from tests.support.processes import run_script, start
from tests.support.repository import ROOT
from tests.support.tiers import nightly

FOLDER = ROOT / "examples" / "webgpu-page"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# Of each of the page's formulas one kind whose sizes are odd, and one whose sizes are multiples of
# four: the kernels of these rows are compared with Go's.
SAMPLED = ("silu", "relu", "swiglu", "geglu", "a number", "a tensor", "a row", "a row of sums")


def page() -> ModuleType:
    """The page's server, as a module."""
    spec = importlib.util.spec_from_file_location("serve", FOLDER / "serve.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve"] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def texts_of_go(folder: Path) -> set[str]:
    """Hashes of the kernels that epigrad makes for the sampled rows."""
    body = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import epigrad, serve
for row in serve.ROWS:
    for dtype in serve.DTYPES if row.kind in {SAMPLED!r} else ():
        given = serve.problem(row, serve.case_of(row, dtype))[0]
        grad, output = given.pop("grad_output"), given.pop("output", None)
        if row.call.startswith("lerp"):
            given.setdefault("weight", *serve.formula_of(row)[1])
        kind = () if row.call.startswith("lerp") else (row.kind,)
        with epigrad.use_backend("webgpu"):
            if not row.call.endswith("_backward"):
                getattr(epigrad.forward, row.call)(*given.values(), *kind)
            elif output is None:
                getattr(epigrad.backward, row.call)(grad, *given.values(), *kind)
            else:
                epigrad.backward.linear_backward(grad, *given.values(), *kind, output=output)
"""
    run_script(body, timeout=300, EPIGRAD_WEBGPU_SOURCES=str(folder))
    return {path.stem.split("-")[1] for path in folder.iterdir()}


@nightly
def test_the_page_keeps_the_rule_and_makes_the_kernels_that_go_makes(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        reason = "no Chromium here: apt-get install chromium-headless-shell"
        assert "webgpu" not in REQUIRED, reason
        pytest.skip(reason)
    done = start(str(FOLDER / "serve.py"), "--browser", browser, timeout=630)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert "error" not in report, report["error"]
    figures = report["figures"]
    serve = page()
    assert len(figures) == len(serve.ROWS) * len(serve.DTYPES)
    broken = [figure for figure in figures if not (figure["passed"] and 0 <= figure["worst"] <= 1)]
    assert not broken, broken
    assert report["passed"] and done.returncode == 0
    sampled = {text for figure in figures if figure["kind"] in SAMPLED for text in figure["kernels"]}
    assert len(sampled) > 40 and sampled <= texts_of_go(tmp_path)
