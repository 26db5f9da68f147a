"""Where the repository is: tests read its documents, sources and settings."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
