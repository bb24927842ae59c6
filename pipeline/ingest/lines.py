"""Parses usage lines strictly, with a reason for each invalid one.

The layout is `quotas.usage_record`'s. Files are plain text or gzip, possibly several members as in appended files. A
damaged or incomplete file gives the lines before the damage and then one `Torn`.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeGuard

import orjson

from quotas.usage_record import VERSION, Event, Row, StoredRow

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
KEPT_BYTES: Final = 1024 * 1024
"""Bytes of an unreadable line that are kept in quarantine."""
MOST_STORED: Final = 2**53
"""The largest number of bytes on one broker; the tables' numbers are exact up to here."""
UNSIGNED: Final = "no valid signature"
"""The reason for a line that must not be read, whatever it contains."""

_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # a gzip header is expected
_INPUT_STEP: Final = 64 * 1024
_OUTPUT_STEP: Final = 1024 * 1024
_MAX_INT64: Final = 2**63 - 1
_LONGEST_SCOPE: Final = 512
_LAST_SECOND: Final = 2**35  # a thousand years ahead; a larger number is not in seconds

ROW_WIDTH: Final = Row.FLAGS + 1
"""Rows of an older gateway; values that only newer gateways record become 0."""
EVENT_WIDTH: Final = len(Event)


class Torn(NamedTuple):
    """A line that cannot be read."""

    position: int
    reason: str
    text: bytes
    """At most KEPT_BYTES of it."""


class Line(NamedTuple):
    """A line whose head is valid. Of its rows and events only the number of values has been checked.

    A newer gateway may write further values at the end of rows and events, and further keys; these are ignored. An
    older gateway writes fewer values in rows; the missing ones become 0.
    """

    position: int
    gw: str
    boot: int
    seq: int
    ts: int
    dur_ms: int
    dropped_rows: int
    dropped_events: int
    rows: list[list[Any]]
    events: list[list[Any]]
    text: bytes
    algo: str = ""
    """Algorithms of the controller mutation quota; empty: not known."""
    jump_ms: int = 0
    scope: str = ""
    """The scope of one counter; empty: the line does not say it."""
    stored: tuple[list[Any], ...] = ()
    """Parts of samples of the bytes that brokers store; see `StoredRow`."""


def texts_of(content: bytes) -> Iterator[bytes | Torn]:
    """The lines of a file, without line ends. The last item is a `Torn` if the rest cannot be read.

    Args:
        content: the whole file.
    """
    position = 0
    rest = b""
    try:
        for piece in _plain(content):
            whole, newline, after = piece.rpartition(b"\n")
            if not newline:
                rest += piece
                if len(rest) > MAX_LINE_BYTES:
                    yield Torn(position, f"longer than {MAX_LINE_BYTES} bytes", rest[:KEPT_BYTES])
                    return
                continue
            for text in (rest + whole).split(b"\n"):
                yield text
                position += 1
            rest = after
    except (zlib.error, EOFError) as exc:
        yield Torn(position, f"the file ends early or is damaged: {exc}", rest[:KEPT_BYTES])
        return
    if rest:
        yield rest


def read_line(text: bytes, position: int) -> Line | Torn:
    """Reads a line's head and checks the shape of the rest.

    Args:
        text: the line without its end.
        position: the line's position in its source, which is recorded.
    """
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        return Torn(position, f"not JSON: {exc}", text[:KEPT_BYTES])
    if not isinstance(line, dict):
        return Torn(position, "not an object", text[:KEPT_BYTES])
    if line.get("v") != VERSION:
        return Torn(position, f"v is {line.get('v')!r}, known is {VERSION}", text[:KEPT_BYTES])
    gw, rows, events = line.get("gw"), line.get("rows"), line.get("events", [])
    if not isinstance(gw, str):
        return Torn(position, "gw is not a string", text[:KEPT_BYTES])
    numbers = []
    for name, highest in _HEAD.items():
        number = line.get(name, 0 if name in _OPTIONAL else None)
        if type(number) is not int or not 0 <= number <= highest:
            return Torn(position, f"{name} is not a whole number from 0 to {highest}", text[:KEPT_BYTES])
        numbers.append(number)
    if not _is_table(rows, ROW_WIDTH):
        return Torn(position, f"rows is not a list of lists of {ROW_WIDTH} values", text[:KEPT_BYTES])
    if not _is_table(events, EVENT_WIDTH):
        return Torn(position, f"events is not a list of lists of {EVENT_WIDTH} values", text[:KEPT_BYTES])
    algo, jump_ms = line.get("algo", ""), line.get("jump_ms", 0)
    if not isinstance(algo, str) or type(jump_ms) is not int or abs(jump_ms) > _MAX_INT64:
        return Torn(position, "algo is not a string, or jump_ms is not a whole number", text[:KEPT_BYTES])
    scope = line.get("scope", "")
    if not isinstance(scope, str) or len(scope) > _LONGEST_SCOPE:
        return Torn(
            position, f"scope is not a string of at most {_LONGEST_SCOPE} characters", text[:KEPT_BYTES]
        )
    stored = line.get("stored", [])
    if not _is_stored(stored):
        return Torn(position, "stored is not a list of samples of brokers", text[:KEPT_BYTES])
    rows, events = _cut(rows, len(Row)), _cut(events, EVENT_WIDTH)
    boot, seq, ts, dur_ms, dropped_rows, dropped_events = numbers
    return Line(
        position,
        gw,
        boot,
        seq,
        ts,
        dur_ms,
        dropped_rows,
        dropped_events,
        rows,
        events,
        text,
        algo,
        jump_ms,
        scope,
        tuple(stored),
    )


_HEAD: Final = {
    "boot": 1000 * _LAST_SECOND,
    "seq": _LAST_SECOND,
    "ts": _LAST_SECOND,
    "dur_ms": 2**31 - 1,
    "dropped_rows": 2**31 - 1,
    "dropped_events": 2**31 - 1,
}
_OPTIONAL: Final = frozenset({"dur_ms", "dropped_rows", "dropped_events"})


def _is_table(rows: Any, width: int) -> TypeGuard[list[list[Any]]]:
    return (
        isinstance(rows, list)
        and set(map(type, rows)) <= {list}
        and min(map(len, rows), default=width) >= width
    )


def _is_stored(parts: Any) -> TypeGuard[list[list[Any]]]:
    return _is_table(parts, len(StoredRow)) and all(
        type(part[StoredRow.CLUSTER]) is str
        and type(part[StoredRow.NODE]) is type(part[StoredRow.AT]) is int
        and (part[StoredRow.TOTAL] is None or _is_size(part[StoredRow.TOTAL]))
        and isinstance(part[StoredRow.TOPICS], list)
        and all(
            isinstance(each, list)
            and len(each) == 2
            and type(each[0]) is str
            and each[0]
            and _is_size(each[1])
            for each in part[StoredRow.TOPICS]
        )
        for part in parts
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_STORED


def _cut(rows: list[list[Any]], width: int) -> list[list[Any]]:
    if set(map(len, rows)) <= {width}:
        return rows
    return [row[:width] + [0] * (width - len(row)) for row in rows]


def _plain(content: bytes) -> Iterator[bytes]:
    if not content.startswith(_GZIP):
        yield content
        return
    # Uses zlib directly and in steps: `gzip.open` returns nothing of a block that is incomplete.
    stream = zlib.decompressobj(_GZIP_WINDOW)
    view = memoryview(content)
    at = 0
    while at < len(view):
        piece = view[at : at + _INPUT_STEP]
        at += len(piece)
        while len(piece):
            before = stream.copy()
            try:
                text = stream.decompress(piece, _OUTPUT_STEP)
            except zlib.error:
                yield _up_to_the_damage(before, piece)
                raise
            yield text
            piece = memoryview(stream.unconsumed_tail)
            if stream.eof:
                piece = memoryview(stream.unused_data)
                if not len(piece) and at >= len(view):
                    return
                stream = zlib.decompressobj(_GZIP_WINDOW)
    yield stream.flush()
    if not stream.eof:
        raise EOFError("no end of the gzip stream")


def _up_to_the_damage(stream: Any, piece: memoryview) -> bytes:
    """The readable part of a piece that makes a decompressor fail, since a failing call returns nothing."""
    texts: list[bytes] = []
    with contextlib.suppress(zlib.error):
        texts.extend(stream.decompress(piece[at : at + 1]) for at in range(len(piece)))
    return b"".join(texts)
