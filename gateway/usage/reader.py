"""Reads usage records from a directory, for the commands; the pipeline has its own reader.

It reads files that are still being written, truncated files and foreign files as far as possible. Unreadable parts
are counted and named, never silently left out. [io]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.usage.part_file import WholeLines, read_pieces
from gateway.usage.retention import complete_files, left_parts
from quotas.entities import OTHER_CLIENTS, client_name, counter_name
from quotas.usage_record import OTHER, VERSION, Row, TopicRow, UsageApi

_MOST_NAMED: Final = 5
_LAST_SECOND: Final = 2**35  # in a thousand years: a later value is not in seconds

_TYPES: Final = {
    "gw": str,
    "boot": int,
    "seq": int,
    "ts": int,
    "dur_ms": int,
    "rows": list,
    "events": list,
    "dropped_rows": int,
    "dropped_events": int,
}


@dataclass(slots=True)
class Readings:
    """Usage records from a directory.

    Attributes:
        lines: the records of the requested time, each once, by time.
        unread: lines that are no usage records of this version.
        unread_files: names of some files with such lines, or that cannot be read.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    unread: int = 0
    unread_files: list[str] = field(default_factory=list)

    def missing(self) -> int:
        """The number of missing lines: those between the first and the last line of each gateway's start."""
        numbers: dict[tuple[str, int], list[int]] = {}
        for line in self.lines:
            numbers.setdefault((line["gw"], line["boot"]), []).append(line["seq"])
        return sum(max(seqs) - min(seqs) + 1 - len(seqs) for seqs in numbers.values())


def name_of_row(api: str, user: str, client_id: str) -> str:
    """The name of a row's client."""
    if not user and client_id == OTHER:
        return OTHER_CLIENTS
    return client_name(ip=client_id) if api == UsageApi.CONNECT else counter_name(user, client_id)


def read_last(directory: Path, seconds: int) -> Readings:
    """The records of the last seconds, counted back from the newest record.

    Args:
        directory: of the files.
        seconds: how many.

    Raises:
        OSError: the directory cannot be read.
    """
    files = complete_files(directory)
    newest_s = max((each.completed_s for each in files), default=0.0)
    # A file that was completed earlier has no records of that time.
    paths = [each.path for each in files if each.completed_s >= newest_s - seconds]
    found = Readings()
    known: dict[tuple[str, int, int], dict[str, Any]] = {}
    for path, is_complete in [
        *((path, True) for path in paths),
        *((path, False) for path in left_parts(directory)),
    ]:
        unread = 0
        try:
            with path.open("rb") as file:
                texts = WholeLines(read_pieces(file.fileno()))
                for text in texts:
                    line = _parse(text)
                    if line is None:
                        unread += 1
                    else:
                        known[line["gw"], line["boot"], line["seq"]] = line
                # A file that is still being written has no end, and an empty one has just begun.
                damaged = not texts.whole if is_complete else not _begins_as_gzip(file.fileno())
        except FileNotFoundError:
            continue  # completed or deleted meanwhile; its content is in another file, or too old
        except OSError:
            unread += 1
            damaged = True
        if unread or damaged:
            found.unread += unread
            found.unread_files.append(path.name)
    last_ts = max((line["ts"] for line in known.values()), default=0)
    found.lines = sorted(
        (line for line in known.values() if line["ts"] > last_ts - seconds),
        key=lambda line: (line["ts"], line["gw"], line["boot"], line["seq"]),
    )
    del found.unread_files[_MOST_NAMED:]
    return found


def rows_of(line: dict[str, Any]) -> Iterator[list[Any]]:
    """The rows of a line that have the fields of this version; later versions may append fields."""
    for row in line["rows"]:
        if (
            isinstance(row, list)
            and len(row) > Row.FLAGS
            and all(isinstance(name, str) for name in row[: Row.NODE])
            and all(isinstance(value, int | float) for value in row[Row.NODE : Row.QUOTA])
            and all(value is None or isinstance(value, int | float) for value in row[Row.QUOTA : Row.FLAGS])
        ):
            yield row


def topics_of(line: dict[str, Any]) -> Iterator[list[Any]]:
    """The rows of topics of a line; none if topics are not metered."""
    rows = line.get("topics")
    for row in rows if isinstance(rows, list) else ():
        if (
            isinstance(row, list)
            and len(row) > TopicRow.RECORDS
            and all(isinstance(name, str) for name in (*row[: TopicRow.NODE], row[TopicRow.TOPIC]))
            and all(isinstance(value, int | float) for value in row[TopicRow.REQUESTS :])
        ):
            yield row


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or line.get("v") != VERSION:
        return None
    # isinstance would accept a bool as an int.
    right = all(type(line.get(name)) is wanted for name, wanted in _TYPES.items())
    return line if right and 0 <= line["ts"] < _LAST_SECOND else None


def _begins_as_gzip(fd: int) -> bool:
    head = os.pread(fd, 2, 0)
    return b"\x1f\x8b".startswith(head)
