"""The state of a pipeline's folder as metrics in Prometheus' text format."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest, write_to_textfile
from pyarrow import fs

from pipeline.errors import JobError
from pipeline.storage.files import files_below, read_bytes
from pipeline.storage.layout import SEEN_FOR_ONLY

_DAY_S: Final = 86_400
_PLAN: Final = "plan.json"


def write_metrics(found: Mapping[str, Any], out: str, file: str, *, now_s: int) -> None:
    """Writes a file for node_exporter's textfile collector, atomically.

    Args:
        found: the result of `pipeline.maintenance.status.status`.
        out: the pipeline's folder, for its newest plan.
        file: the file.
        now_s: the time, s since the epoch.

    Raises:
        JobError: the file can't be written.
    """
    try:
        write_to_textfile(file, _registry(found, out, now_s))
    except OSError as exc:
        raise JobError(f"--prometheus {file}: {exc.strerror}") from exc


def metrics_text(found: Mapping[str, Any], out: str, *, now_s: int) -> str:
    """The metrics as text."""
    return generate_latest(_registry(found, out, now_s)).decode()


def _registry(found: Mapping[str, Any], out: str, now_s: int) -> CollectorRegistry:
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float) -> None:
        Gauge(f"sluice_pipeline_{name}", text, registry=registry).set(value)

    gauge("status_timestamp_seconds", "When these figures were made.", now_s)
    if found["newest_line"] is not None:
        gauge("newest_line_timestamp_seconds", "The newest second that was read.", found["newest_line"])
    days = [day for day in found["days"] if not day["open"] and not day["ahead"]]
    # A deleted day had been compacted before.
    compacted = [day for day in days if day["compacted_rows"] is not None or day["pruned"]]
    if compacted:
        newest = compacted[-1]
        gauge(
            "newest_day_timestamp_seconds",
            "The end of the newest compacted day that is over.",
            _end_of(newest["date"]),
        )
        gauge(
            "newest_day_completeness_ratio",
            "How complete the records of that day are, 0 to 1.",
            newest["completeness"],
        )
    late = sum(day["late"] for day in compacted)
    gauge("days_not_compacted", "Days that are over and not compacted.", len(days) - len(compacted))
    gauge("days_with_late_lines", "Compacted days that got lines since then.", late)
    gauge(
        "missing_lines",
        "Lines that gateways wrote and that never arrived.",
        sum(gap["lines"] for gap in found["gaps"]),
    )
    gauge("read_lines", "Lines that were read, each once.", found["lines"])
    gauge("duplicate_lines", "Lines that were read again and not counted.", found["duplicates"])
    gauge("unreadable_lines", "Lines that could not be read and are kept in the raw table.", found["torn"])
    if (plan := _newest_plan(out)) is not None:
        gauge("plan_timestamp_seconds", "When the newest plan was made.", _instant(plan["made_at"]))
        quotas = Gauge(
            "sluice_pipeline_plan_quotas", "Quotas of the newest plan.", ["action"], registry=registry
        )
        for action in ("set", "keep"):
            quotas.labels(action).set(sum(entry["action"] == action for entry in plan["entries"]))
        too_little = plan.get("too_little") or ()
        quotas.labels("left_out").set(
            sum(not each["reason"].startswith(SEEN_FOR_ONLY) for each in too_little)
        )
    return registry


def _newest_plan(out: str) -> Mapping[str, Any] | None:
    folder = f"{out}/results/plan"
    infos = files_below(folder).get_file_info(fs.FileSelector("", allow_not_found=True, recursive=True))
    names = sorted(info.path for info in infos if info.path.rpartition("/")[2] == _PLAN)
    content = read_bytes(f"{folder}/{names[-1]}") if names else None
    if content is None:
        return None
    try:
        plan: Mapping[str, Any] = json.loads(content)
        plan["made_at"], plan["entries"]
    except (ValueError, KeyError, TypeError) as exc:
        raise JobError(f"{folder}/{names[-1]}: not a plan: {exc}") from exc
    return plan


def _end_of(date: str) -> int:
    return _instant(f"{date}T00:00:00Z") + _DAY_S


def _instant(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp())
