"""The rows of tests/golden/scenarios.json: what must happen according to Kafka's own tests and the KIPs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[1] / "tests" / "golden" / "scenarios.json"


def scenarios(*kinds: str) -> list[Any]:
    """The rows of these kinds as pytest parameters, named by their ids. Fails if a kind has no rows."""
    rows = [row for row in _document()["scenarios"] if row["kind"] in kinds]
    missing = set(kinds) - {row["kind"] for row in rows}
    if missing:
        raise LookupError(f"no scenario of kind {sorted(missing)}")
    return [pytest.param(row, id=row["id"]) for row in rows]


def entities(name: str) -> list[Any]:
    """A named list of entities with values that rows refer to."""
    found: list[Any] = _document()[name]
    return found


def steps(row: dict[str, Any]) -> list[Any]:
    """A row's steps, with ``["x", N, step]`` written out N times."""
    plain: list[Any] = []
    for step in row["steps"]:
        plain += [step[2]] * step[1] if step[0] == "x" else [step]
    return plain


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return document
