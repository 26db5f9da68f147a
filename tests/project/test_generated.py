"""What a program has generated, and git keeps, is what the program makes."""

from __future__ import annotations

import json
from types import ModuleType

import cpu_table
import cuda_table
import mpmath
import portable_table
import pytest
import webgpu_table
from polynomials import DIGITS

from tests.tools import golden


@pytest.mark.parametrize(
    "table", [portable_table, cpu_table, cuda_table, webgpu_table], ids=lambda module: module.__name__
)
def test_polynomials_are_those_of_their_generator(table: ModuleType) -> None:
    with mpmath.workdps(DIGITS):  # whatever another module has set since
        assert table.TABLE.read_text() == table.text()


def test_golden_numbers_are_those_of_their_generator() -> None:
    assert json.loads(golden.FILE.read_text()) == golden.rows()
