"""Lines for tests of sinks, and reading back what became of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from gateway.usage.line import Line
from testkit.usage_lines import usage_lines


def line(seq: int, *, rows: int = 1, ts: int | None = None, padding: int = 0) -> Line:
    """A line with nothing in it but its number, and so many bytes that do not compress."""
    text = {
        "v": 1,
        "gw": "a",
        "boot": 1,
        "seq": seq,
        "ts": 1_700_000_000 + seq if ts is None else ts,
        "dur_ms": 1_000,
        "algo": "token_bucket",
        "rows": [],
        "events": [],
        "dropped_rows": 0,
        "dropped_events": 0,
        "padding": random.Random(seq).randbytes(padding).hex(),
    }
    return Line(seq, json.dumps(text).encode(), rows, 0)


def seqs(directory: Path) -> list[int]:
    """The numbers in the complete files of a directory, in the order of their names; each file whole and strict."""
    return [line["seq"] for line in usage_lines(directory)]
