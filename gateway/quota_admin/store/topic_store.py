"""The quota store that several gateways share: a compacted topic of the cluster behind them.

Every gateway reads the topic to its end before it serves clients, and then follows it. An alteration is one
transaction, so the log has all of it or nothing. An alteration counts as made when it was read back: all gateways
apply all alterations in the order of the log, their own included. If the outcome of a commit is not known, the
gateway initializes the transactional id again. The brokers then complete or abort the transaction, and the log shows
the outcome.

librdkafka works in threads of its own. Its blocking calls run in a thread of this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException

from gateway.quota_admin.store.audit import audit_change
from gateway.quota_admin.store.interface import (
    Alteration,
    Effective,
    HistoryEntry,
    OnChange,
    Slot,
    StoredChange,
    StoreError,
    Value,
    changes_something,
    check_count,
    effective_in_slices,
    slot_of,
)
from gateway.quota_admin.store.topic_log import Record, TopicLog, Written
from gateway.quota_admin.store.topic_reader import TopicReader, end_offset, have_topic
from gateway.quota_admin.store.topic_writer import TopicWriter, is_timeout, is_unexpected, refusal_of
from gateway.quota_admin.store.writing import WritesInProgress
from gateway.runtime.slices import Slices
from quotas.record_signature import RecordSigner

_RETRY_S: Final = 1.0
_ASK_S: Final = 5.0
_SETTLE_S: Final = 2.0
"""Further time to learn the outcome of a failed transaction, after the alteration's own time."""
_REMEMBERED: Final = 1_000
_UNSIGNED_LOG_S: Final = 60.0
_SIGNED_AT_ONCE: Final = 2_000
"""Records per transaction of `_sign_anew`. Alterations of other gateways wait for it."""

_log = structlog.get_logger("gateway.store")


@dataclass(frozen=True, slots=True)
class TopicStoreSettings:
    """How the topic is used.

    Attributes:
        topic: the topic's name.
        replication_factor: the factor of a new topic; None: see `own_replicas`.
        max_quotas: the most overrides.
        max_history: the most changes in the history.
        write_timeout_ms: the timeout of an alteration, including the wait for earlier ones. After a failure up to 2 s
            more, to learn the outcome.
        client: librdkafka's settings for reaching the cluster.
        signer: signs and verifies records; None: all records count.
        accept_unsigned: see `config.sections.quota_store`.
        gateway: see `TopicWriter`.
    """

    topic: str
    replication_factor: int | None
    max_quotas: int
    max_history: int
    write_timeout_ms: int
    client: Mapping[str, Any]
    signer: RecordSigner | None = None
    accept_unsigned: bool | None = None
    gateway: str | None = None


class _Doubt(Exception):
    """The outcome is not known: an alteration may be in the log now or later."""


class _NotMade(StoreError):
    """An alteration is certainly not in the log.

    It is tried again if its transactional id was taken, once if the error was unexpected, and until the deadline if
    librdkafka waited in vain.

    Attributes:
        cause: what librdkafka raised.
        taken: whether the transactional id was taken.
        until: the deadline of another try after another error than a timeout, by `time.monotonic`.
    """

    def __init__(self, topic: str, cause: KafkaException | BufferError, *, taken: bool, until: float) -> None:
        super().__init__(f"topic {topic} could not be written; nothing was changed: {cause.args[0]}")
        self.cause = cause
        self.taken = taken
        self.until = until


class TopicStore:
    """See the module.

    Attributes:
        version, bad_records, stale: see `QuotaStore`.
        log: the content of the topic that is in force.
    """

    def __init__(self, settings: TopicStoreSettings, *, now_ms: Callable[[], int]) -> None:
        """Connects to no broker yet.

        Args:
            settings: see `TopicStoreSettings`.
            now_ms: Unix time, for the history.
        """
        self._settings = settings
        self.log = self._new_log()
        self.stale: str | None = None
        # The log that is being read; not `log` while the topic is read from its beginning again.
        self._reading = self.log
        self._now_ms = now_ms
        self._on_change: OnChange
        self._thread: ThreadPoolExecutor | None = None
        self._reader: TopicReader | None = None
        self._writer = TopicWriter(settings.topic, settings.client, settings.signer, settings.gateway)
        self._read_to_end = asyncio.Event()
        self._loaded = False
        self._one_at_a_time = asyncio.Lock()
        self._writing = WritesInProgress()
        # Alterations that were read in the log, the latest last, and those that are expected.
        self._seen: dict[str, int] = {}
        self._awaited: dict[str, asyncio.Event] = {}
        # Alterations whose response was an error, but which may still come into force.
        self._doubtful: dict[str, tuple[Alteration, Sequence[tuple[StoredChange, Value | None]]]] = {}
        # The offset up to which the topic was read, including foreign records.
        self._reached = 0
        # The topic in force, and how far it was read at least; and why the topic read now may be another one.
        self._topic_id: str | None = None
        self._reading_id = ""
        self._known_end = 0
        self._replaced: str | None = None
        self._progress = asyncio.Event()
        self._closing = False
        self._unsigned_logged_s = -math.inf
        self._unsigned_logged = 0
        self._signing: asyncio.Future[int] | None = None

    def _new_log(self) -> TopicLog:
        settings = self._settings
        return TopicLog(settings.signer, accept_unsigned=bool(settings.accept_unsigned))

    @property
    def read_only(self) -> str | None:
        """Why alterations are refused: a newer program has written records that this one does not understand."""
        return self.log.newer

    @property
    def bad_records(self) -> int:
        """The number of skipped records."""
        return self.log.bad_records

    @property
    def unsigned_records(self) -> int:
        """The number of records that were skipped because they have no valid signature."""
        return self.log.unsigned_records

    @property
    def version(self) -> int:
        """The offset after the last record; it is the same in every gateway."""
        return self.log.version

    async def open(self, on_change: OnChange) -> None:
        """See `QuotaStore`. Waits for a cluster that can't be reached."""
        self._on_change = on_change
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="quota-store")
        loop = asyncio.get_running_loop()
        logged = ""
        while True:
            try:
                tombstones_s = await loop.run_in_executor(self._thread, self._have_topic)
                break
            except KafkaException as exc:
                if logged != (logged := exc.args[0].str()):
                    _log.warning("quota_store_not_reached", topic=self._settings.topic, error=logged)
                self.stale = f"quota topic {self._settings.topic}: {logged}"
                await asyncio.sleep(_RETRY_S)
        self.stale = None
        self._reader = TopicReader(
            self._settings.topic,
            self._settings.client,
            loop,
            self._receive,
            self._begin_again,
            self._begun,
            tombstones_s=tombstones_s,
            each_turn=self._writer.write_log,
        )
        self._reader.start()
        await self._read_to_end.wait()
        if self.log.newer is not None:
            raise StoreError(f"topic {self._settings.topic}: {self.log.newer}")
        if self._settings.accept_unsigned is None and self.log.unsigned_records and not self.log.signed:
            raise StoreError(
                f"topic {self._settings.topic}: none of its {self.log.unsigned_records} records is signed with "
                "quota_store.secret_file. Set accept_unsigned = true to keep records from before there was a secret, "
                "or false to begin without them"
            )
        self._loaded = True
        await on_change(self.log.values(), self.version)
        # Prepared now so that the first alteration does not wait. That alteration reports unreachable brokers.
        loop.run_in_executor(self._thread, self._prepare)
        if self.log.sign_anew(1):
            self._signing = asyncio.ensure_future(self._writing.carry_out(self._sign_anew()))
            self._signing.add_done_callback(_log_not_signed)

    async def write(self, alteration: Alteration) -> int:
        """See `QuotaStore`."""
        # The caller believes that these values are already set, and writes no audit lines for them.
        seem_made = set()
        slices = Slices()
        for change in alteration.changes:
            if slices.over:
                await slices.next()
            if not changes_something(change, self.log.kept_of(slot := slot_of(change))):
                seem_made.add(slot)
        return await self._writing.carry_out(self._write(alteration, seem_made, self._deadline()))

    async def catch_up(self) -> None:
        """See `QuotaStore`."""
        self._check_usable()
        await self._catch_up(self._deadline())

    async def history(self, limit: int) -> list[HistoryEntry]:
        """See `QuotaStore`."""
        return self.log.history(limit)

    async def close(self) -> None:
        """See `QuotaStore`; alterations in progress are completed first."""
        thread = self._thread
        if thread is None or self._closing:
            return
        self._closing = True
        await self._writing.done()
        self._thread = None
        loop = asyncio.get_running_loop()
        if self._reader is not None:
            await self._reader.stop(thread)
        await loop.run_in_executor(thread, self._writer.drop)
        thread.shutdown()

    # -- reading ---------------------------------------------------------------------------------------------

    async def _receive(self, records: Sequence[Record], end: int | None) -> None:
        bad = self._reading.bad_records
        slices = Slices(every=1)
        for record in records:
            if slices.over:
                await slices.next()
            applied = await self._reading.feed_in_slices(record)
            if applied is None:
                continue
            # Changes before the end are passed on together, from the log, when the end is reached.
            if self._follows and applied.changes:
                await self._on_change(applied.changes, applied.version)
            if applied.alteration is not None:
                self._remember(applied.alteration, applied.version)
        if self._reading.bad_records > bad:
            _log.error(
                "quota_store_bad_records",
                topic=self._settings.topic,
                count=self._reading.bad_records - bad,
                newer=self._reading.newer or "",
            )
        self._log_unsigned()
        self._reached = max(end or 0, records[-1].offset + 1 if records else 0, self._reached)
        if end is not None:
            await self._reach_end()
        if self._follows:
            for name in self._awaited.keys() & self._seen.keys():
                self._awaited[name].set()
            for name in self._doubtful.keys() & self._seen.keys():
                # The caller was informed that the outcome was not known, and has written no audit line.
                _write_audit(*self._doubtful.pop(name), late=True)
        self._progress.set()

    def _log_unsigned(self) -> None:
        count, now_s = self._reading.unsigned_records, time.monotonic()
        if count > self._unsigned_logged and now_s >= self._unsigned_logged_s + _UNSIGNED_LOG_S:
            self._unsigned_logged, self._unsigned_logged_s = count, now_s
            _log.error("quota_store_unsigned_records", topic=self._settings.topic, passed_over=count)

    @property
    def _follows(self) -> bool:
        return self._loaded and self.stale is None

    async def _reach_end(self) -> None:
        if not self._read_to_end.is_set():
            self.stale = None
            self.log.read_to_end()
            self._read_to_end.set()
        elif self.stale is not None:
            await self._take_what_was_read_again()

    async def _begun(self, topic_id: str, end: int) -> None:
        """The topic is read from its beginning now."""
        self._reading_id = topic_id
        if self._topic_id is None:
            self._topic_id = topic_id
        elif topic_id != self._topic_id:
            self._replaced = "was deleted and made again"
        elif end < self._known_end:
            self._replaced = f"ends at {end} and was read up to {self._known_end}"

    async def _begin_again(self, why: str) -> None:
        """The topic is read from its beginning again. Until its end is reached, the previous quotas stay in force."""
        self._reading = self._new_log()
        self._unsigned_logged = 0
        self._known_end = max(self._known_end, self._reached)
        self._reached = 0
        if not self._read_to_end.is_set():
            self.log = self._reading
        self.stale = f"quota topic {self._settings.topic} can't be followed: {why}"

    async def _take_what_was_read_again(self) -> None:
        before, now = self.log, self._reading
        if now.newer is not None:
            self.stale = f"quota topic {self._settings.topic}: {now.newer}"
            return
        changes = await asyncio.get_running_loop().run_in_executor(self._thread, now.differences, before)
        if why := self._why_not_taken(before, now, changes):
            # The quotas in force may be the only copy. An operator accepts the topic by restarting the gateway.
            if self.stale != (stale := f"quota topic {self._settings.topic} {why}"):
                self.stale = stale
                _log.error("quota_topic_not_taken", topic=self._settings.topic, reason=why)
            return
        now.read_to_end()
        self.log, self.stale = now, None
        self._topic_id, self._known_end, self._replaced = self._reading_id, self._reached, None
        _log.warning("quota_topic_read_again", topic=self._settings.topic, changes=len(changes))
        if changes:
            await self._on_change(changes, self.version)

    def _why_not_taken(self, before: TopicLog, now: TopicLog, changes: Sequence[StoredChange]) -> str | None:
        lost = sum(before.value_of(slot_of(change)) is not None for change in changes)
        if not lost:
            return None
        if now.version == 0:
            return f"is empty, and there were {len(before.values())} quotas in it"
        if self._replaced is None:
            return None
        return f"{self._replaced}; {lost} of the quotas in force are not the same in it"

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
        """Write an alteration, and again what was certainly not made: see `_NotMade`."""
        self._check_usable()
        until, may_fail = deadline, True
        while True:
            try:
                return await self._try(alteration, seem_made, until)
            except _NotMade as exc:
                late = is_timeout(exc.cause) and time.monotonic() < deadline
                unexpected = may_fail and is_unexpected(exc.cause)
                if not (exc.taken or late or unexpected):
                    raise
                may_fail = may_fail and not unexpected
                until = deadline if late else exc.until

    async def _try(self, alteration: Alteration, seem_made: Set[Slot], deadline: float) -> int:
        if (fault := self.stale or self.read_only) is not None:
            raise StoreError(fault)
        if alteration.expected:
            await self._catch_up(deadline)
        changes, slots, grown = await self._effective(alteration)
        if len(changes) < slots and not alteration.expected:
            # A change that seems to have no effect may have one after another gateway's last alteration.
            await self._catch_up(deadline)
            changes, _, grown = await self._effective(alteration)
        if not changes:
            return self.version
        check_count(self.log.size + grown, self._settings.max_quotas, grows=grown > 0)
        name = str(uuid.uuid4())
        write = partial(
            self.log.write,
            name,
            alteration,
            changes,
            at_ms=self._now_ms(),
            max_history=self._settings.max_history,
        )
        records = await asyncio.get_running_loop().run_in_executor(self._thread, write)
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
        if seem_made:
            slices = Slices(every=1)
            for item in changes:
                if slices.over:
                    await slices.next()
                if slot_of(item[0]) in seem_made:
                    _write_audit(alteration, [item])
        return version

    async def _effective(self, alteration: Alteration) -> Effective:
        return await effective_in_slices(alteration.changes, self.log.kept_of, alteration.expected)

    async def _sign_anew(self) -> int:
        """Write records with another secret's signature, or none, again until all have the current secret's."""
        count = 0
        async with self._one_at_a_time:
            deadline = self._deadline()
            self._check_usable()
            await self._catch_up(deadline)
            while records := self.log.overtaken() or self.log.sign_anew(_SIGNED_AT_ONCE):
                count += len(records)
                deadline = self._deadline()
                loop = asyncio.get_running_loop()
                try:
                    await loop.run_in_executor(self._thread, self._writer.open, deadline)
                    await loop.run_in_executor(
                        self._thread, self._writer.transaction, None, records, deadline
                    )
                except (KafkaException, BufferError) as exc:
                    await loop.run_in_executor(self._thread, self._writer.drop)
                    raise StoreError(f"not all records could be signed: {exc.args[0]}") from exc
                await self._catch_up(deadline)
        _log.info("quota_store_signed_anew", topic=self._settings.topic, records=count)
        return self.version

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
            taken = self._writer.give_way(exc)
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
                raise _NotMade(topic, exc, taken=taken, until=deadline) from exc
            return self._seen[name]
        if not await self._read_back(name, max(deadline, time.monotonic() + _RETRY_S)):
            if self._reader is not None:
                self._reader.doubt("what was written to it did not come back")
            raise _Doubt(
                f"topic {topic} was written and can't be read; the change takes effect later, once it can"
            )
        return self._seen[name]

    def _unreached(self, exc: KafkaException) -> StoreError:
        topic, error = self._settings.topic, exc.args[0]
        if refusal := refusal_of(error):
            return StoreError(f"topic {topic} can't be written; nothing was changed: {refusal}")
        return StoreError(
            f"the brokers of topic {topic} can't be reached; nothing was changed: {error.str()}"
        )

    async def _read_back(self, name: str, deadline: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._awaited[name].wait()
        return self._awaited[name].is_set()

    # -- in the thread ---------------------------------------------------------------------------------------

    def _have_topic(self) -> float:
        return have_topic(
            self._settings.topic,
            self._settings.client,
            replication_factor=self._settings.replication_factor,
            timeout_s=_ASK_S,
            signed=self._settings.signer is not None,
        )

    def _prepare(self) -> None:
        try:
            self._writer.open(time.monotonic() + self._settings.write_timeout_ms / 1000)
        except KafkaException as exc:
            if refusal := refusal_of(exc.args[0]):
                _log.error("quota_topic_not_writable", topic=self._settings.topic, error=refusal)

    def _end_offset(self, deadline: float) -> int:
        return end_offset(self._settings.topic, self._settings.client, deadline=deadline)


def _log_not_signed(signing: asyncio.Future[int]) -> None:
    if not signing.cancelled() and (failure := signing.exception()) is not None:
        _log.error("quota_store_not_signed_anew", error=str(failure))


def _write_audit(
    alteration: Alteration, changes: Sequence[tuple[StoredChange, Value | None]], **more: bool
) -> None:
    for change, old in changes:
        audit_change(change, old, by=alteration.by, via=alteration.via, **more)
