"""What the records of the topic `__sluice_quotas` say, and what became of them in the order of the log.

    key {"quota": "user=alice", "key": "producer_byte_rate"}   value {"format": 1, "value": 1048576.0}
    key {"quota": "user=alice", "key": "request_percentage"}   no value: removed
    key {"history": ALTERATION, "part": N}                     value {"format": 1, "by": ..., "changes": [...]}

All records of an alteration are one transaction and carry its name in a header; the history comes last and ends it.
The topic is compacted, so per quota the record with the highest offset counts, whatever order transactions were begun
in: a gateway that has followed and one that reads later come to the same. Versions are offsets, the same everywhere.

Records that do not fit are passed over and counted: whoever may write to the topic must not be able to stop every
gateway. A format that is newer than this program is passed over as well, and remembered: what is missing then is not
known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gateway.quota_admin.store.interface import Alteration, HistoryEntry
from quotas.entities import QuotaEntity, QuotaKey, parse_entity
from quotas.layered_quotas import QuotaChange
from quotas.limits import validate

FORMAT: Final = 1
ALTERATION_HEADER: Final = "alteration"

_CHANGES_PER_PART: Final = 500
_PART_BYTES: Final = 500_000
"""Of one record of the history: librdkafka and brokers refuse those above a million, and names may be long."""
_MAX_OPEN: Final = 1_000
"""Alterations whose end was not seen yet; a foreign writer's never come to one."""


class Record(NamedTuple):
    """One of the topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    alteration: str | None


class Written(NamedTuple):
    """One to be written."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Applied:
    """An alteration that has come to its end.

    Attributes:
        alteration: its name; None: a record that somebody else wrote.
        changes: what it changes that nothing later does.
        version: from it on.
    """

    alteration: str | None
    changes: tuple[QuotaChange, ...]
    version: int


@dataclass(slots=True)
class _Part:
    number: int
    last: bool
    at_ms: int
    by: str
    via: str
    changes: list[tuple[QuotaEntity, QuotaKey, float | None, float | None]]


@dataclass(slots=True)
class _Past:
    """An alteration of the history."""

    version: int = 0
    parts: dict[int, _Part] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(len(part.changes) for part in self.parts.values())


class TopicLog:
    """What the topic says so far.

    Attributes:
        version: of the last record.
        bad_records: how many were passed over.
        newer: what a newer program wrote; None: nothing.
        size: how many quotas there are.
    """

    def __init__(self) -> None:
        """Nothing was read."""
        self.version = 0
        self.bad_records = 0
        self.newer: str | None = None
        self.size = 0
        self._latest: dict[tuple[QuotaEntity, QuotaKey], tuple[int, float | None]] = {}
        # Removed while alterations were open; kept until there is none, for their offsets.
        self._removed: set[tuple[QuotaEntity, QuotaKey]] = set()
        self._open: dict[str, list[tuple[int, QuotaChange]]] = {}
        self._past: dict[str, _Past] = {}
        self._was_at_end = False

    def value_of(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        """What is set for exactly this entity."""
        found = self._latest.get((entity, key))
        return None if found is None else found[1]

    def quotas(self) -> list[QuotaChange]:
        """Everything that is set."""
        return [QuotaChange(*at, value) for at, (_, value) in self._latest.items() if value is not None]

    def differences(self, before: TopicLog) -> list[QuotaChange]:
        """What makes the quotas of another log those of this one."""
        gone = [change for change in before.quotas() if self.value_of(change.entity, change.key) is None]
        return [
            *(QuotaChange(change.entity, change.key, None) for change in gone),
            *(c for c in self.quotas() if before.value_of(c.entity, c.key) != c.value),
        ]

    def feed(self, records: Sequence[Record]) -> list[Applied]:
        """Take the next records.

        Returns:
            The alterations that they end, in order.
        """
        applied = []
        for record in records:
            try:
                ended = self._take(record)
            except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
                self.bad_records += 1
                continue
            if ended is not None:
                applied.append(ended)
        return applied

    def read_to_end(self) -> None:
        """The topic was read to its end for the first time: `quotas` are all that there are.

        An alteration may still be open because its history was forgotten and compacted away. Its end never comes, and
        what it says counts like all else.
        """
        self._was_at_end = True
        self._open.clear()
        self._clean()

    def history(self, limit: int) -> list[HistoryEntry]:
        """The latest changes, the last one first."""
        found: list[HistoryEntry] = []
        for past in sorted(self._past.values(), key=lambda past: -past.version):
            for number in sorted(past.parts, reverse=True):
                part = past.parts[number]
                found.extend(
                    HistoryEntry(past.version, part.at_ms, part.by, part.via, *change)
                    for change in reversed(part.changes)
                )
            if len(found) >= limit:
                break
        return found[:limit]

    def write(
        self,
        name: str,
        alteration: Alteration,
        changes: Sequence[tuple[QuotaChange, float | None]],
        *,
        at_ms: int,
        max_history: int,
    ) -> list[Written]:
        """The records of an alteration, the history of what was too long ago removed.

        Args:
            name: of the alteration; new.
            alteration: who asked.
            changes: that change something, each with what it replaces.
            at_ms: Unix time.
            max_history: how many changes the history has afterwards.
        """
        written = []
        for change, _ in changes:
            value = None if change.value is None else _json({"format": FORMAT, "value": change.value})
            written.append(Written(_json({"quota": str(change.entity), "key": change.key.value}), value))
        written.extend(
            self._forget(sum(past.size for past in self._past.values()) + len(changes) - max_history)
        )
        parts = list(_parts(changes))
        for number, part in enumerate(parts):
            value = _json(
                {
                    "format": FORMAT,
                    "last": number == len(parts) - 1,
                    "at_ms": at_ms,
                    "by": alteration.by,
                    "via": alteration.via,
                    "changes": part,
                }
            )
            written.append(Written(_json({"history": name, "part": number}), value))
        return written

    def _forget(self, too_many: int) -> Iterator[Written]:
        for name, past in sorted(self._past.items(), key=lambda item: item[1].version):
            if too_many <= 0:
                return
            too_many -= past.size
            for number in past.parts:
                yield Written(_json({"history": name, "part": number}), None)

    # -- reading ---------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> Applied | None:
        key = json.loads(record.key or b"")
        value = None if record.value is None else json.loads(record.value)
        if value is not None and value["format"] > FORMAT:
            self.newer = (
                f"the record at offset {record.offset} was written by a newer version of sluice (format "
                f"{int(value['format'])}; this one reads {FORMAT})"
            )
            raise ValueError(self.newer)
        if "history" in key:
            return self._take_history(record.offset, key["history"], key["part"], value)
        change = QuotaChange(
            parse_entity(key["quota"]), QuotaKey(key["key"]), None if value is None else float(value["value"])
        )
        fault = change.value is not None and validate(change.entity, change.key, change.value, kept=True)
        if fault:
            raise ValueError(fault)
        at = (change.entity, change.key)
        self.size += (change.value is not None) - (self.value_of(*at) is not None)
        self._latest[at] = (record.offset, change.value)
        if change.value is None:
            self._removed.add(at)
        self.version = record.offset + 1
        if record.alteration is None:
            self._clean()
            return Applied(None, (change,), self.version)
        self._open.setdefault(record.alteration, []).append((record.offset, change))
        while self._was_at_end and len(self._open) > _MAX_OPEN:
            # Somebody gave names to records that no history follows.
            self._open.pop(next(iter(self._open)))
            self.bad_records += 1
        return None

    def _take_history(self, offset: int, name: str, number: int, value: Any) -> Applied | None:
        if value is None:
            if (past := self._past.get(name)) is not None:
                past.parts.pop(number, None)
                if not past.parts:
                    del self._past[name]
            self.version = offset + 1
            return None
        part = _Part(
            int(number),
            bool(value["last"]),
            int(value["at_ms"]),
            str(value["by"]),
            str(value["via"]),
            [
                (
                    parse_entity(each["entity"]),
                    QuotaKey(each["key"]),
                    _number(each["old"]),
                    _number(each["new"]),
                )
                for each in value["changes"]
            ],
        )
        self.version = offset + 1
        past = self._past.setdefault(str(name), _Past())
        past.parts[part.number] = part
        past.version = self.version
        if not part.last:
            return None
        changes = self._open.pop(name, [])
        latest = tuple(change for at, change in changes if self._latest[change.entity, change.key][0] == at)
        self._clean()
        return Applied(name, latest, self.version)

    def _clean(self) -> None:
        if self._open:
            return
        for at in self._removed:
            if self._latest[at][1] is None:
                del self._latest[at]
        self._removed.clear()


def _parts(changes: Sequence[tuple[QuotaChange, float | None]]) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    size = 0
    for change, old in changes:
        row = {"entity": str(change.entity), "key": change.key.value, "old": old, "new": change.value}
        row_bytes = len(_json(row))
        if part and (len(part) == _CHANGES_PER_PART or size + row_bytes > _PART_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += row_bytes
    if part:
        yield part


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _json(value: Any) -> bytes:
    # Keys are compared as bytes by the brokers, so they must not vary.
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
