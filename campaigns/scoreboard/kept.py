"""Reads kept results for rows of the scoreboard: files of benchmarks/results, and lines of campaigns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

_RELEASE: Final = re.compile(r"^## \S+ .*(\d{4}-\d\d-\d\d)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """One kept result.

    Attributes:
        data: the whole file, or the figure of a campaign.
        day: day of the measurement, or of the first of several runs; None if the result does not contain it.
        commit: commit of the sources, or of the last of several runs; empty if the result does not contain it.
        seconds: how long it took; None if the result does not contain it.
        passed: whether the campaign's exit code was 0. True for files: their rows judge the figures.
    """

    data: Any
    day: date | None
    commit: str
    seconds: float | None
    passed: bool = True


def results(folder: Path, names: Iterable[str]) -> dict[str, Result]:
    """The named results, as far as they exist.

    Args:
        folder: folder of the kept results.
        names: names of files, with their suffix ``.json``, and of campaigns.
    """
    raw = folder / "campaigns.json"
    lines = {line["name"]: line for line in json.loads(raw.read_text())} if raw.exists() else {}
    found = {}
    for name in set(names):
        if name in lines:
            found[name] = _of_campaign(lines[name])
        elif name.endswith(".json") and (folder / name).exists():
            found[name] = _of_file(json.loads((folder / name).read_text()))
    return found


def last_release(changelog: str) -> date | None:
    """The day since which the newest release was measured: the last day in its line of the changelog.

    Args:
        changelog: with lines like ``## 0.2.0 - 2026-12-01, measured since 2026-11-29``.
    """
    days = [date.fromisoformat(day) for day in _RELEASE.findall(changelog)]
    return max(days, default=None)


def _of_campaign(line: Mapping[str, Any]) -> Result:
    return Result(line["figure"], _day(line["date"]), line["commit"], line.get("seconds"), line["passed"])


def _of_file(data: Mapping[str, Any]) -> Result:
    rows = data.get("rows", [])
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    begun = [data["started"]] if "started" in data else [row["started"] for row in rows if "started" in row]
    days = [_day(each) for each in begun or data.get("dates", {}).values()]
    commits = [row["commit"] for row in rows if "commit" in row] or [
        data.get("machine", {}).get("commit", "")
    ]
    seconds = data.get("seconds")
    if seconds is None and any("started" in row for row in rows):
        seconds = sum(row.get("seconds", 0) for row in rows)
    return Result(data, min(days, default=None), commits[-1], seconds)


def _day(text: str) -> date:
    return date.fromisoformat(text[:10])
