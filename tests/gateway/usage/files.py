"""Lines for tests of sinks, and reading back what became of them."""

import json
import random
from pathlib import Path

from gateway.usage.line import Line
from gateway.usage.row import UsageRow
from gateway.usage.table import UsageTable
from testkit.usage_lines import usage_lines


def line(seq: int, *, rows: int = 1, ts: int | None = None, padding: int = 0) -> Line:
    """A line with nothing in it but its number, and so many bytes that do not compress."""
    text = {
        "v": 1, "gw": "a", "boot": 1, "seq": seq, "ts": 1_700_000_000 + seq if ts is None else ts,
        "dur_ms": 1_000, "algo": "token_bucket", "rows": [], "events": [], "dropped_rows": 0,
        "dropped_events": 0, "padding": random.Random(seq).randbytes(padding).hex(),
    }  # fmt: skip
    return Line(seq, json.dumps(text).encode(), rows, 0)


def event(table: UsageTable, row: UsageRow, topic: object, *, admitted: bool = True, now_ms: int = 0) -> None:
    """A strict request for a topic of three partitions."""
    options = {"strict": True, "admitted": admitted, "throttle_ms": 0, "correlation_id": 9, "now_ms": now_ms}
    table.event(row, "create_topics", topic, 3, **options)  # type: ignore[arg-type]


def seqs(directory: Path) -> list[int]:
    """The numbers in the complete files of a directory, in the order of their names; each file whole and strict."""
    return [line["seq"] for line in usage_lines(directory)]
