"""The records of the topic `__sluice_quotas`, and their effect in the order of the log.

    key {"quota": "user=alice", "key": "producer_byte_rate"}   value {"format": 1, "value": 1048576.0, "owner": "api"}
    key {"quota": "user=alice", "key": "request_percentage"}   no value: removed
    key {"broker_limit": "max.connections"}                    value {"format": 1, "value": "500"}
    key {"history": ALTERATION, "part": N}                     value {"format": 1, "by": ..., "changes": [...],
                                                                     "limits": [...]}

All records of an alteration are one transaction and have its name in a header. The history comes last and ends the
alteration. The topic is compacted, so for each quota and limit the record with the highest offset counts, in whatever
order transactions were begun. So a gateway that has followed the topic and one that reads it later have the same
result. Versions are offsets, the same everywhere.

* Invalid records are skipped and counted: one stray record must not stop every gateway.
* Records of a newer format are skipped too, and that is remembered, because their content is not known.
* With a signer, records without a valid signature are skipped before any part of them is read, even the format.
* Limits of brokers were added later, still in format 1: programs that do not know them skip and count them, and apply
  the quotas. The owner of a quota (`quotas.layered_quotas.Owner`) was added in the same way; older programs ignore
  it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gateway.quota_admin.broker_limits import checked_limit
from gateway.quota_admin.store.interface import (
    NOTHING,
    Alteration,
    HistoryEntry,
    Kept,
    LimitChange,
    Slot,
    StoredChange,
    Value,
    change_of,
    owner_of,
    slot_of,
)
from gateway.runtime.slices import Slices, free
from quotas.entities import QuotaKey, parse_entity
from quotas.layered_quotas import Owner, QuotaChange
from quotas.limits import validate
from quotas.record_signature import RecordSigner

FORMAT: Final = 1
ALTERATION_HEADER: Final = "alteration"

_CHANGES_PER_PART: Final = 500
_PART_BYTES: Final = 500_000
"""The size of one record of the history. librdkafka and brokers refuse more than a million bytes, and names may be
long."""
_MAX_OPEN: Final = 1_000
"""The most alterations whose end was not read yet. Those of a foreign writer never end."""


class Record(NamedTuple):
    """A record of the topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    alteration: str | None
    signature: bytes | None = None


class Written(NamedTuple):
    """A record to write."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Applied:
    """An alteration that has ended.

    Attributes:
        alteration: its name; None: a record of another writer.
        changes: its changes, without those that a later record has replaced.
        version: the version from this alteration on.
    """

    alteration: str | None
    changes: tuple[StoredChange, ...]
    version: int


class _Ended(NamedTuple):
    """An alteration whose last record was read, with the offset of each change."""

    alteration: str | None
    changes: list[tuple[int, StoredChange]]
    version: int


@dataclass(slots=True)
class _Part:
    number: int
    last: bool
    at_ms: int
    by: str
    via: str
    changes: list[tuple[Slot, Value | None, Value | None]]


@dataclass(slots=True)
class _Past:
    """An alteration of the history."""

    version: int = 0
    parts: dict[int, _Part] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(len(part.changes) for part in self.parts.values())


class TopicLog:
    """The content of the topic so far.

    Attributes:
        version: the version of the last record.
        bad_records: the number of skipped records.
        newer: a text about a record that a newer program wrote; None: there is none.
        size: the number of quotas.
        signed, unsigned_records: the numbers of records with a valid signature, and of those skipped without one.
    """

    def __init__(self, signer: RecordSigner | None = None, *, accept_unsigned: bool = False) -> None:
        """Starts without records.

        Args:
            signer: verifies signatures; None: records need none.
            accept_unsigned: records without any signature count too.
        """
        self.signed = 0
        self.unsigned_records = 0
        self._signer = signer
        self._accept_unsigned = accept_unsigned
        # The last record of each key, unless it is signed with the secret that signs now.
        self._signed_otherwise: dict[bytes, Record] = {}
        self._watched: dict[bytes, bytes | None] = {}
        self._overtaken: dict[bytes, bytes | None] = {}
        self.version = 0
        self.bad_records = 0
        self.newer: str | None = None
        self.size = 0
        self._latest: dict[Slot, tuple[int, Kept]] = {}
        # Records of earlier versions with other spellings of an address: slot -> key as written -> value.
        self._misspelled: dict[Slot, dict[bytes, Value]] = {}
        # Slots whose value comes from such a record, because there is none with the right spelling.
        self._borrowed: set[Slot] = set()
        # Slots removed while alterations were open. They are kept for their offsets until none is open.
        self._removed: set[Slot] = set()
        self._open: dict[str, list[tuple[int, StoredChange]]] = {}
        self._past: dict[str, _Past] = {}
        self._was_at_end = False

    def value_of(self, slot: Slot) -> Value | None:
        """The value of a slot."""
        return self.kept_of(slot).value

    def kept_of(self, slot: Slot) -> Kept:
        """The value of a slot and its owner."""
        found = self._latest.get(slot)
        return NOTHING if found is None else found[1]

    def values(self) -> list[StoredChange]:
        """All values, as changes."""
        return [change_of(slot, *kept) for slot, (_, kept) in self._latest.items() if kept.value is not None]

    def differences(self, before: TopicLog) -> list[StoredChange]:
        """The changes that turn the values of another log into those of this one."""
        gone = [slot for change in before.values() if self.value_of(slot := slot_of(change)) is None]
        return [
            *(change_of(slot, None) for slot in gone),
            *(
                change
                for change in self.values()
                if before.kept_of(slot_of(change)) != Kept(change.value, owner_of(change))
            ),
        ]

    def feed(self, records: Sequence[Record]) -> list[Applied]:
        """Read the next records.

        Returns:
            The alterations that these records end, in order.
        """
        applied = []
        for record in records:
            ended = self._feed(record)
            if ended is not None:
                latest = tuple(change for at, change in ended.changes if self._is_latest(at, change))
                self._clean()
                applied.append(Applied(ended.alteration, latest, ended.version))
        return applied

    async def feed_in_slices(self, record: Record) -> Applied | None:
        """`feed` for one record, in slices on the loop. It may end an alteration of tens of thousands of changes."""
        ended = self._feed(record)
        if ended is None:
            return None
        slices = Slices(every=1)
        latest = []
        for at, change in ended.changes:
            if slices.over:
                await slices.next()
            if self._is_latest(at, change):
                latest.append(change)
        if not self._open:
            for slot in self._removed:
                if slices.over:
                    await slices.next()
                if self._latest[slot][1].value is None:
                    del self._latest[slot]
            self._removed = set()
        applied = Applied(ended.alteration, tuple(latest), ended.version)
        await free(latest)
        await free(ended.changes)
        return applied

    def _feed(self, record: Record) -> _Ended | None:
        if self._signer is not None and not self._counts(record, self._signer):
            self.unsigned_records += 1
            return None
        try:
            return self._take(record)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            self.bad_records += 1
            return None

    def _is_latest(self, at: int, change: StoredChange) -> bool:
        return self._latest[slot_of(change)][0] == at

    def _counts(self, record: Record, signer: RecordSigner) -> bool:
        """Whether a record counts by its signature; notes whether it must be signed again."""
        key, value, signature = record.key, record.value, record.signature
        secret = signer.secret_of(signature, key, value)
        if secret is not None:
            self.signed += 1
        elif not self._accept_unsigned or signature is not None:
            return False
        if key is not None:
            # This keeps the order of the log.
            self._signed_otherwise.pop(key, None)
            if secret != 0:
                self._signed_otherwise[key] = record
            if key in self._watched and self._watched[key] != value:
                self._overtaken[key] = value
        return True

    def sign_anew(self, most: int) -> list[Written]:
        """Records that count only because another secret, or none, is accepted. Write them again as they are.

        From now on `overtaken` returns what another gateway writes under their keys.

        Args:
            most: the most records at once; they are in the order of the log.
        """
        found = itertools.islice(self._signed_otherwise.items(), most)
        again = [Written(key, record.value) for key, record in found]
        self._watched, self._overtaken = dict(again), {}
        return again

    def overtaken(self) -> list[Written]:
        """Records that others have written since then under the same keys. Write them again, so that they win."""
        found = [Written(key, value) for key, value in self._overtaken.items()]
        self._watched, self._overtaken = dict(found), {}
        return found

    def read_to_end(self) -> None:
        """Note that the topic was read to its end for the first time, so all quotas are known.

        An alteration may still be open because its history was removed by compaction. It never ends, and its records
        count like all others.
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
                    HistoryEntry(past.version, part.at_ms, part.by, part.via, *slot, old, new)
                    for slot, old, new in reversed(part.changes)
                )
            if len(found) >= limit:
                break
        return found[:limit]

    def write(
        self,
        name: str,
        alteration: Alteration,
        changes: Sequence[tuple[StoredChange, Value | None]],
        *,
        at_ms: int,
        max_history: int,
    ) -> list[Written]:
        """The records of an alteration, including removals of the oldest history. May be called in a thread.

        Args:
            name: a new name for the alteration.
            alteration: the alteration, whose author is written to the history.
            changes: the changes with an effect, each with the value that it replaces.
            at_ms: Unix time.
            max_history: the most changes in the history afterwards.
        """
        written: list[Written] = []
        for change, _ in changes:
            # These precede the record with the right spelling, which decides because it is the last.
            written.extend(Written(key, None) for key in self._misspelled.get(slot_of(change), ()))
            written.append(Written(_json(_record_key(change)), _record_value(change)))
        written.extend(
            self._forget(sum(past.size for past in list(self._past.values())) + len(changes) - max_history)
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
                    **part,
                }
            )
            written.append(Written(_json({"history": name, "part": number}), value))
        return written

    def _forget(self, too_many: int) -> Iterator[Written]:
        for name, past in sorted(self._past.items(), key=lambda item: item[1].version):
            if too_many <= 0:
                return
            too_many -= past.size
            for number in list(past.parts):
                yield Written(_json({"history": name, "part": number}), None)

    # -- reading ---------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> _Ended | None:
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
        change = self._rightly_spelled(_change(key, value), key, record.key or b"")
        slot = slot_of(change)
        if isinstance(change, QuotaChange):
            self.size += (change.value is not None) - (self.value_of(slot) is not None)
        self._latest[slot] = (record.offset, Kept(change.value, owner_of(change)))
        if change.value is None:
            self._removed.add(slot)
        self.version = record.offset + 1
        if record.alteration is None:
            return _Ended(None, [(record.offset, change)], self.version)
        self._open.setdefault(record.alteration, []).append((record.offset, change))
        while self._was_at_end and len(self._open) > _MAX_OPEN:
            # Another writer has written named records without a history.
            self._open.pop(next(iter(self._open)))
            self.bad_records += 1
        return None

    def _rightly_spelled(self, change: StoredChange, key: Any, written: bytes) -> StoredChange:
        """The effect of a record if others have the same address in another spelling: the right spelling decides.

        Args:
            change: the record's change.
            key: the record's key.
            written: the key as bytes.
        """
        if isinstance(change, LimitChange) or change.entity.ip is None:
            return change
        slot = slot_of(change)
        others = self._misspelled.get(slot, {})
        if key["quota"] != str(change.entity):
            others.pop(written, None)
            if change.value is not None:
                others[written] = change.value
            self._misspelled[slot] = others
            if slot not in self._borrowed and self.value_of(slot) is not None:
                return change_of(slot, *self.kept_of(slot))
        elif change.value is not None:
            self._borrowed.discard(slot)
            return change
        if not others:
            self._misspelled.pop(slot, None)
            self._borrowed.discard(slot)
            return change_of(slot, None)
        self._borrowed.add(slot)
        return change_of(slot, others[min(others)])

    def _take_history(self, offset: int, name: str, number: int, value: Any) -> _Ended | None:
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
                *(
                    (
                        (parse_entity(each["entity"]), QuotaKey(each["key"])),
                        _number(each["old"]),
                        _number(each["new"]),
                    )
                    for each in value["changes"]
                ),
                *(
                    ((None, str(each["limit"])), _text(each["old"]), _text(each["new"]))
                    for each in value.get("limits", ())
                ),
            ],
        )
        self.version = offset + 1
        past = self._past.setdefault(str(name), _Past())
        past.parts[part.number] = part
        past.version = self.version
        if not part.last:
            return None
        return _Ended(name, self._open.pop(name, []), self.version)

    def _clean(self) -> None:
        if self._open:
            return
        for at in self._removed:
            if self._latest[at][1].value is None:
                del self._latest[at]
        self._removed.clear()


def _record_key(change: StoredChange) -> dict[str, str]:
    if isinstance(change, LimitChange):
        return {"broker_limit": change.name}
    return {"quota": str(change.entity), "key": change.key.value}


def _record_value(change: StoredChange) -> bytes | None:
    if change.value is None:
        return None
    owner = owner_of(change)
    return _json({"format": FORMAT, "value": change.value} | ({"owner": owner} if owner else {}))


def _change(key: Any, value: Any) -> StoredChange:
    """The change of a record that is no history.

    Raises:
        ValueError, TypeError, KeyError: the record is not valid.
    """
    if "broker_limit" in key:
        name = str(key["broker_limit"])
        return LimitChange(name, None if value is None else checked_limit(name, value["value"]))
    limit, owner = (None, "") if value is None else (float(value["value"]), str(value.get("owner", "")))
    change = QuotaChange(parse_entity(key["quota"]), QuotaKey(key["key"]), limit, Owner.of(owner))
    fault = change.value is not None and validate(change.entity, change.key, change.value)
    if fault:
        raise ValueError(fault)
    return change


def _parts(
    changes: Sequence[tuple[StoredChange, Value | None]],
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    part: dict[str, list[dict[str, Any]]] = {"changes": []}
    count = size = 0
    for change, old in changes:
        row: dict[str, Any]
        if isinstance(change, LimitChange):
            where, row = "limits", {"limit": change.name}
        else:
            where, row = "changes", {"entity": str(change.entity), "key": change.key.value}
        row |= {"old": old, "new": change.value}
        row_bytes = len(_json(row))
        if count == _CHANGES_PER_PART or (count and size + row_bytes > _PART_BYTES):
            yield part
            part, count, size = {"changes": []}, 0, 0
        part.setdefault(where, []).append(row)
        count += 1
        size += row_bytes
    if count:
        yield part


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _json(value: Any) -> bytes:
    # Brokers compare keys as bytes, so the form must not vary.
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
