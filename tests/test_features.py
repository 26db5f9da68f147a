"""docs/features.md says what the tests show."""

from __future__ import annotations

import features
import pytest
from devices import DEVICES


def test_the_table_is_that_of_the_tests(request: pytest.FixtureRequest) -> None:
    config = request.config
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword or config.option.markexpr:
        pytest.skip("asked of the whole suite only, whose tests are all collected")
    shown = {
        cell
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.get_closest_marker("feature")
        for cell in features.cells_of(item)
        if cell[2] in DEVICES
    }
    written = {cell for cell in features.read(features.PAGE.read_text()) if cell[2] in DEVICES}
    assert written == shown, "docs/features.md is stale: python tests/features.py"


def test_a_page_is_read_as_it_was_written() -> None:
    cells = {("compile", "linear", "cpu"), ("TP", "mlp", "cuda"), ("eager", "lerp", "cpu")}
    assert features.read(features.write(cells)) == cells
