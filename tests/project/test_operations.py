"""Names of operations stand in their rows, their kernels and their documents. What else spells one
has to learn of a new operation by hand."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

from epigrad._core.tables import OPS

from tests.support.repository import ROOT

ROWS = (
    "go/op/",
    "go/epigrad/",
    "go/optest/",
    "kernels/",
    "python/epigrad/ops/",
    "python/epigrad/functional.py",
    "python/epigrad/_autograd/formulas.py",
)
"""Where an operation is written: its row and problem, its Go function, its kernels, its rules for
PyTorch, its function and its formula."""

EXCEPTIONS = {
    "cbridge/torch/operators.c": 1,
    "go/activation/activation.go": 2,
    "go/backend/cuda/pointwise.go": 1,
    "go/backend/lower/parts.go": 6,
    "go/backend/webgpu/elementwise.go": 2,
    "go/backend/webgpu/webgpu.go": 1,
    "python/epigrad/_check/c_interface.py": 1,
    "python/epigrad/_check/calls.py": 2,
    "python/epigrad/_check/defects.py": 3,
    "python/epigrad/_check/drawing.py": 2,
    "python/epigrad/_check/expected.py": 13,
    "python/epigrad/_check/modes.py": 1,
    "python/epigrad/_check/operations.py": 3,
    "python/epigrad/_check/problem.py": 3,
    "python/epigrad/_core/call.py": 1,
    "python/epigrad/_core/projections.py": 1,
    "python/epigrad/_core/tables.py": 2,
    "python/epigrad/cli/bench.py": 1,
    "python/epigrad/cli/operations.py": 4,
    "python/epigrad/cli/plans.py": 2,
    "python/epigrad/integrations/experts.py": 1,
    "python/epigrad/integrations/recognition.py": 1,
    "python/epigrad/kinds.py": 12,
    "python/epigrad/nn.py": 7,
    "python/epigrad/parallel/__init__.py": 1,
    "python/epigrad/parallel/mixture.py": 1,
    "python/epigrad/plan.py": 10,
    "python/tools/stateless.py": 1,
}
"""How many lines of other files have such a name; some mean an activation or a command of the same
name. The numbers may fall, and may not grow: who lowers one writes it here."""


def spelled() -> Counter[str]:
    """How many lines of each production file have an operation's name as a string."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    name = re.compile(rf"""["']({"|".join(OPS)})["']""")
    found: Counter[str] = Counter()
    for path in listed.stdout.splitlines():
        is_code = re.search(r"\.(go|c|h|cu|cuh|wgsl|py|cpp)$", path) and not path.endswith("_test.go")
        if is_code and not path.startswith((*ROWS, "tests/", "benchmarks/", "examples/", "docs/")):
            found[path] = sum(bool(name.search(line)) for line in (ROOT / path).read_text().splitlines())
    return +found


def test_operations_are_named_where_they_are_written() -> None:
    assert spelled() == EXCEPTIONS
