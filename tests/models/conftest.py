"""What tests of experts share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import epigrad
import pytest
from epigrad.integrations import experts as integration
from epigrad.integrations.transformers import register_experts


@pytest.fixture
def _registered() -> None:
    register_experts()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of epigrad's functions that experts call."""
    seen: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        own = getattr(epigrad.functional, name)

        @functools.wraps(own)
        def call(*arguments: Any, **options: Any) -> Any:
            seen.append(name)
            return own(*arguments, **options)

        return call

    functions = {name: watched(name) for name in ("experts", "grouped_linear", "gated_activation")}
    monkeypatch.setattr(integration, "functional", SimpleNamespace(**functions))
    return seen
