"""Usage lines as tests write them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Final

import orjson

from pipeline.storage.coverage import Expectation

DAY: Final = 1_790_553_600  # 2026-09-28 00:00 UTC
BOOT: Final = (DAY - 60) * 1000
LONG_AFTER: Final = Expectation(2**32)
"""An expectation by which all days of tests are closed."""


def row(client_id: str = "app", units: float = 100, **changed: Any) -> list[Any]:
    """A row of a usage record; `changed` by the lower-case names of `quotas.usage_record.Row`."""
    names: dict[str, Any] = {
        "listener": "plain",
        "user": "alice",
        "client_id": client_id,
        "api": "produce",
        "node": 1,
    }
    values = {"requests": 2, "bytes_in": units, "bytes_out": 60, "offered": units, "admitted": units}
    values |= {"max_units": units / 2, "rejected": 0, "rejected_units": 0, "delayed": 0, "throttle_ms": 0}
    limits: dict[str, Any] = {"muted_ms": 0, "quota": None, "level_end": None, "flags": 0}
    return list((names | values | limits | changed).values())


def event(client_id: str = "app", offset_ms: int = 0, units: int = 3, **changed: Any) -> list[Any]:
    """An event of a usage record."""
    names: dict[str, Any] = {
        "offset_ms": offset_ms,
        "listener": "plain",
        "user": "alice",
        "client_id": client_id,
    }
    values = {"api": "create_topics", "units": units, "strict": True, "admitted": True, "throttle_ms": 0}
    return list((names | values | {"correlation_id": 5, "attempt": 1} | changed).values())


def line(seq: int, *rows: list[Any], events: tuple[list[Any], ...] = (), **head: Any) -> bytes:
    """A line of gateway `a` for second `seq` of the day, unless `ts` gives another time."""
    told = {
        "v": 1,
        "gw": "a",
        "boot": BOOT,
        "seq": seq,
        "ts": DAY + seq,
        "dur_ms": 1000,
        "algo": "token_bucket",
    }
    told |= {"rows": list(rows), "events": list(events), "dropped_rows": 0, "dropped_events": 0}
    return orjson.dumps(told | head)


def content(*lines: bytes) -> bytes:
    """The bytes of a file with these lines."""
    return gzip.compress(b"".join(text + b"\n" for text in lines), 1, mtime=0)


def place(folder: Path, name: str, *lines: bytes) -> Path:
    """Writes a file like a gateway."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}.part"
    hidden.write_bytes(content(*lines))
    return hidden.rename(folder / name)
