"""The quota store that several gateways share: a compacted topic of the cluster behind them.

Every gateway reads the topic to its end before it serves clients, and then follows it. An alteration is one
transaction, so it is in the log as a whole or not at all, and it counts as made when it was read back: all gateways
apply all alterations in the order of the log, their own included. When the outcome of a commit is not known, the
transactional id is taken up again, which makes the brokers finish or end what was begun; then the log says what
became of it.

librdkafka works in threads of its own, and its calls that wait are made in one of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException

from gateway.quota_admin.store.audit import audit_change
from gateway.quota_admin.store.interface import (
    Alteration,
    HistoryEntry,
    OnChange,
    Slot,
    StoredChange,
    StoreError,
    Value,
    check_count,
    effective,
    growth,
    slot_of,
)
from gateway.quota_admin.store.topic_log import Record, TopicLog, Written
from gateway.quota_admin.store.topic_reader import TopicReader, end_offset, have_topic
from gateway.quota_admin.store.topic_writer import TopicWriter
from gateway.quota_admin.store.writing import WritesInProgress

_RETRY_S: Final = 1.0
_ASK_S: Final = 5.0
_SETTLE_S: Final = 2.0
"""Time to learn what became of a transaction that failed, even when the alteration has had all of its own."""
_REMEMBERED: Final = 1_000

_log = structlog.get_logger("gateway.store")


@dataclass(frozen=True, slots=True)
class TopicStoreSettings:
    """How the topic is used.

    Attributes:
        topic: its name.
        replication_factor: when it is made; None: 3, or as many brokers as there are.
        max_quotas: how many overrides there may be.
        max_history: how many changes are remembered.
        write_timeout_ms: how long an alteration may take, the wait for others before it included; when it fails,
            up to 2 s more to learn what became of it.
        client: librdkafka's settings for reaching the cluster.
    """

    topic: str
    replication_factor: int | None
    max_quotas: int
    max_history: int
    write_timeout_ms: int
    client: Mapping[str, Any]


class _Doubt(Exception):
    """An alteration may be in the log already, or come into it."""


class TopicStore:
    """See the module.

    Attributes:
        version, bad_records, stale: see `QuotaStore`.
        log: what the topic says, as it is in force.
    """

    def __init__(self, settings: TopicStoreSettings, *, now_ms: Callable[[], int]) -> None:
        """Nothing is connected yet.

        Args:
            settings: see there.
            now_ms: Unix time, for the history.
        """
        self.log = TopicLog()
        self.stale: str | None = None
        # What is read into: another one while the topic is read from its beginning again.
        self._reading = self.log
        self._settings = settings
        self._now_ms = now_ms
        self._on_change: OnChange = lambda _changes, _version: None
        self._thread: ThreadPoolExecutor | None = None
        self._reader: TopicReader | None = None
        self._writer = TopicWriter(settings.topic, settings.client)
        self._read_to_end = asyncio.Event()
        self._loaded = False
        self._one_at_a_time = asyncio.Lock()
        self._writing = WritesInProgress()
        # Alterations that were seen in the log, the latest last, and those awaited.
        self._seen: dict[str, int] = {}
        self._awaited: dict[str, asyncio.Event] = {}
        # Alterations that were answered with an error and may still come into force.
        self._doubtful: dict[str, tuple[Alteration, Sequence[tuple[StoredChange, Value | None]]]] = {}
        # Up to where the topic was read, records that are none of ours included.
        self._reached = 0
        self._progress = asyncio.Event()
        self._closing = False

    @property
    def read_only(self) -> str | None:
        """What was written by a newer program, which this one can't go on from."""
        return self.log.newer

    @property
    def bad_records(self) -> int:
        """How many records were passed over."""
        return self.log.bad_records

    @property
    def version(self) -> int:
        """The offset after the last record, so the same in every gateway."""
        return self.log.version

    async def open(self, on_change: OnChange) -> None:
        """See `QuotaStore`. Waits for a cluster that can't be reached."""
        self._on_change = on_change
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="quota-store")
        loop = asyncio.get_running_loop()
        logged = ""
        while True:
            try:
                await loop.run_in_executor(self._thread, self._have_topic)
                break
            except KafkaException as exc:
                if logged != (logged := str(exc.args[0])):
                    _log.warning("quota_store_not_reached", topic=self._settings.topic, error=logged)
                await asyncio.sleep(_RETRY_S)
        self._reader = TopicReader(
            self._settings.topic, self._settings.client, loop, self._receive, self._begin_again
        )
        self._reader.start()
        await self._read_to_end.wait()
        if self.log.newer is not None:
            raise StoreError(f"topic {self._settings.topic}: {self.log.newer}")
        self._loaded = True
        on_change(self.log.values(), self.version)
        # So that the first alteration does not wait for it; a failure shows there.
        loop.run_in_executor(self._thread, self._prepare)

    async def write(self, alteration: Alteration) -> int:
        """See `QuotaStore`."""
        if self.read_only is not None:
            raise StoreError(self.read_only)
        # The caller takes these for made already, and won't write a line about them.
        seem_made = {
            slot
            for change in alteration.changes
            if self.log.value_of(slot := slot_of(change)) == change.value
        }
        return await self._writing.carry_out(self._write(alteration, seem_made, self._deadline()))

    async def catch_up(self) -> None:
        """See `QuotaStore`."""
        self._check_usable()
        await self._catch_up(self._deadline())

    async def history(self, limit: int) -> list[HistoryEntry]:
        """See `QuotaStore`."""
        return self.log.history(limit)

    async def close(self) -> None:
        """See `QuotaStore`; alterations on their way are made first."""
        thread = self._thread
        if thread is None or self._closing:
            return
        self._closing = True
        await self._writing.done()
        self._thread = None
        loop = asyncio.get_running_loop()
        if self._reader is not None:
            await loop.run_in_executor(thread, self._reader.stop)
        await loop.run_in_executor(thread, self._writer.drop)
        thread.shutdown()

    # -- reading ---------------------------------------------------------------------------------------------

    def _receive(self, records: Sequence[Record], end: int | None) -> None:
        bad = self._reading.bad_records
        for applied in self._reading.feed(records):
            if applied.alteration is not None:
                self._remember(applied.alteration, applied.version)
            # Before the end everything is handed over at once, from the log.
            if self._follows and applied.changes:
                self._on_change(applied.changes, applied.version)
        if self._reading.bad_records > bad:
            _log.error(
                "quota_store_bad_records",
                topic=self._settings.topic,
                count=self._reading.bad_records - bad,
                newer=self._reading.newer or "",
            )
        self._reached = max(end or 0, records[-1].offset + 1 if records else 0, self._reached)
        if end is not None:
            self._reach_end()
        if self._follows:
            for name in self._awaited.keys() & self._seen.keys():
                self._awaited[name].set()
            for name in self._doubtful.keys() & self._seen.keys():
                # The caller knows that it is not sure, and has written no line.
                _write_audit(*self._doubtful.pop(name), late=True)
        self._progress.set()

    @property
    def _follows(self) -> bool:
        return self._loaded and self.stale is None

    def _reach_end(self) -> None:
        if not self._read_to_end.is_set():
            self.stale = None
            self.log.read_to_end()
            self._read_to_end.set()
        elif self.stale is not None:
            self._take_what_was_read_again()

    def _begin_again(self, why: str) -> None:
        """The topic is read from its beginning again; until its end what was in force stays so."""
        self._reading = TopicLog()
        self._reached = 0
        if not self._read_to_end.is_set():
            self.log = self._reading
        self.stale = f"quota topic {self._settings.topic} can't be followed: {why}"

    def _take_what_was_read_again(self) -> None:
        before, now = self.log, self._reading
        if now.newer is not None:
            self.stale = f"quota topic {self._settings.topic}: {now.newer}"
            return
        if now.version == 0 and (lost := len(before.values())):
            # The topic was made anew. What is in force may be the only copy of what was in it.
            self.stale = f"quota topic {self._settings.topic} is empty, and there were {lost} quotas in it"
            return
        now.read_to_end()
        self.log, self.stale = now, None
        changes = now.differences(before)
        _log.warning("quota_topic_read_again", topic=self._settings.topic, changes=len(changes))
        if changes:
            self._on_change(changes, self.version)

    def _remember(self, name: str, version: int) -> None:
        self._seen[name] = version
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    async def _catch_up(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            end = await loop.run_in_executor(self._thread, self._end_offset, deadline)
        except KafkaException as exc:
            raise self._unreached(exc) from exc
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                while self._reached < end or not self._follows:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            raise StoreError(
                f"topic {self._settings.topic} could not be read to its end; nothing was changed"
            ) from None

    # -- writing ---------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.write_timeout_ms / 1000

    def _check_usable(self) -> None:
        if self._closing or self._thread is None:
            raise StoreError("the quota store is closed")
        if self.stale is not None:
            raise StoreError(self.stale)

    async def _write(self, alteration: Alteration, seem_made: Set[Slot], deadline: float) -> int:
        try:
            async with asyncio.timeout(max(0, deadline - time.monotonic())):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            raise StoreError("other alterations took too long; nothing was changed") from None
        try:
            return await self._write_next(alteration, seem_made, deadline)
        finally:
            self._one_at_a_time.release()

    async def _write_next(self, alteration: Alteration, seem_made: Set[Slot], deadline: float) -> int:
        self._check_usable()
        changes = effective(alteration.changes, self.log.value_of)
        if len(changes) < len({slot_of(change) for change in alteration.changes}):
            # What seems to change nothing may do so after what another gateway has made a moment ago.
            await self._catch_up(deadline)
            changes = effective(alteration.changes, self.log.value_of)
        if not changes:
            return self.version
        grown = growth(changes)
        check_count(self.log.size + grown, self._settings.max_quotas, grows=grown > 0)
        name = str(uuid.uuid4())
        records = self.log.write(
            name, alteration, changes, at_ms=self._now_ms(), max_history=self._settings.max_history
        )
        self._awaited[name] = asyncio.Event()
        try:
            version = await self._commit(name, records, deadline)
        except _Doubt as exc:
            self._doubtful[name] = (alteration, changes)
            if len(self._doubtful) > _REMEMBERED:
                del self._doubtful[next(iter(self._doubtful))]
            raise StoreError(str(exc)) from exc
        finally:
            del self._awaited[name]
        _write_audit(alteration, [item for item in changes if slot_of(item[0]) in seem_made])
        return version

    async def _commit(self, name: str, records: Sequence[Written], deadline: float) -> int:
        loop = asyncio.get_running_loop()
        topic = self._settings.topic
        try:
            await loop.run_in_executor(self._thread, self._writer.open, deadline)
        except KafkaException as exc:
            raise self._unreached(exc) from exc
        try:
            await loop.run_in_executor(self._thread, self._writer.transaction, name, records, deadline)
        except (KafkaException, BufferError) as exc:
            _log.warning("quota_store_transaction_failed", topic=topic, error=str(exc.args[0]))
            deadline = max(deadline, time.monotonic() + _SETTLE_S)
            try:
                await loop.run_in_executor(self._thread, self._writer.settle, deadline)
                await self._catch_up(deadline)
            except (KafkaException, StoreError) as unsettled:
                if name not in self._seen:
                    raise _Doubt(
                        f"the brokers of topic {topic} did not say what became of the change, so it was not "
                        f"confirmed; it may take effect later: {exc.args[0]}"
                    ) from unsettled
            if name not in self._seen:
                raise StoreError(
                    f"topic {topic} could not be written; nothing was changed: {exc.args[0]}"
                ) from exc
            return self._seen[name]
        if not await self._read_back(name, max(deadline, time.monotonic() + _RETRY_S)):
            raise _Doubt(
                f"topic {topic} was written and can't be read; the change takes effect later, once it can"
            )
        return self._seen[name]

    def _unreached(self, exc: KafkaException) -> StoreError:
        return StoreError(
            f"the brokers of topic {self._settings.topic} can't be reached; nothing was changed: {exc.args[0].str()}"
        )

    async def _read_back(self, name: str, deadline: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awaited[name].wait(), deadline - time.monotonic())
        return self._awaited[name].is_set()

    # -- in the thread ---------------------------------------------------------------------------------------

    def _have_topic(self) -> None:
        have_topic(
            self._settings.topic,
            self._settings.client,
            replication_factor=self._settings.replication_factor,
            timeout_s=_ASK_S,
        )

    def _prepare(self) -> None:
        with contextlib.suppress(KafkaException):
            self._writer.open(time.monotonic() + self._settings.write_timeout_ms / 1000)

    def _end_offset(self, deadline: float) -> int:
        return end_offset(self._settings.topic, self._settings.client, deadline=deadline)


def _write_audit(
    alteration: Alteration, changes: Sequence[tuple[StoredChange, Value | None]], **more: bool
) -> None:
    for change, old in changes:
        audit_change(change, old, by=alteration.by, via=alteration.via, **more)
