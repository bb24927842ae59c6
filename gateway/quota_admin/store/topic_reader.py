"""Reads the topic of quotas in a thread: checks its settings, and passes its records to the loop."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.topic_identity import TopicIdentity
from gateway.quota_admin.store.topic_log import ALTERATION_HEADER, Record
from gateway.runtime.client_errors import RIGHTS, bug_in, reason_of_topic, why_not_reached
from gateway.runtime.client_log import client_logger
from gateway.runtime.client_settings import ClientAge
from gateway.runtime.topic_access import FORBIDDEN, make_topic, may_pass, open_to_anybody, own_replicas
from quotas.record_signature import SIGNATURE_HEADER

_BATCH: Final = 500
_POLL_S: Final = 0.2
_AGAIN_S: Final = 1.0
_ASK_S: Final = 5.0
_MAX_AHEAD: Final = 8
"""The most batches that the loop has not processed yet; then the reader waits."""

_STUCK_S: Final = 2.0
"""A reader that receives nothing for this time, though there are records, is replaced (hazard L09)."""

TOMBSTONES_S: Final = 86_400.0
"""Kafka's default."""

_GONE: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID)

_ENDS: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART)
"""After these errors librdkafka stops reading, or reads another topic of the same name."""

_OF_GROUPS: Final = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.COORDINATOR_NOT_AVAILABLE)
"""librdkafka looks up a group's coordinator although no group is used. Errors of that do not matter."""

_log = structlog.get_logger("gateway.store")
_client_log = client_logger("gateway.store.kafka")


def have_topic(
    topic: str,
    client: Mapping[str, Any],
    *,
    replication_factor: int | None,
    timeout_s: float,
    signed: bool = False,
) -> float:
    """Create the topic if it is missing. Blocks.

    Args:
        topic: the topic's name.
        client: librdkafka's settings for reaching the cluster.
        replication_factor: the factor of a new topic; None: see `own_replicas`.
        timeout_s: the timeout of each request.
        signed: only signed records count, so it does not matter who may write to the topic.

    Returns:
        The least time for which a removed quota stays in the topic, in seconds (its delete.retention.ms).

    Raises:
        KafkaException: the brokers did not respond; another attempt may succeed.
        StoreError: the topic exists and can't keep quotas, or the brokers refuse.
    """
    seen: list[KafkaError] = []
    admin = AdminClient({**client, "error_cb": seen.append}, logger=_client_log)
    try:
        brokers = admin.describe_cluster(request_timeout=timeout_s).result().nodes
    except KafkaException as exc:
        admin.poll(0)  # calls error_cb
        raise KafkaException(KafkaError(exc.args[0].code(), why_not_reached(seen))) from exc
    replicas = replication_factor or own_replicas(admin, brokers, timeout_s=timeout_s)
    settings = {"cleanup.policy": "compact", "min.insync.replicas": str(2 if replicas > 2 else 1)}
    # A metadata request first would create the topic with the brokers' defaults.
    wanted = NewTopic(topic, 1, replicas, config=settings)
    fallback = NewTopic(topic, 1, replication_factor or -1, config={"cleanup.policy": "compact"})
    not_made: KafkaError | None = None
    try:
        made = make_topic(admin, wanted, fallback, timeout_s=timeout_s)
        _log.warning("quota_topic_made", topic=topic, replication_factor=made.replication_factor)
        if made is fallback:
            _log.warning("quota_topic_made_with_defaults", topic=topic, refused=settings, replicas=replicas)
    except KafkaException as exc:
        # A gateway without the right to create the topic, or without a controller, may still use it.
        if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            not_made = exc.args[0]
    (found,) = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s).values()
    try:
        count = len(found.result().partitions)
    except KafkaException as exc:
        if not_made is not None and exc.args[0].code() in _GONE:
            if may_pass(not_made):
                why = not_made.str().rstrip(".")
                if not_made.code() == KafkaError.INVALID_REPLICATION_FACTOR:
                    why += "; start the brokers that are missing, or set quota_store.replication_factor"
                raise KafkaException(KafkaError(not_made.code(), why)) from exc
            raise KafkaException(
                KafkaError(
                    exc.args[0].code(),
                    f"it is not there and can't be made: {not_made.str().rstrip('.')}; grant CREATE on it, or "
                    f"create it with 1 partition and cleanup.policy=compact; {RIGHTS}",
                )
            ) from exc
        if may_pass(exc.args[0]):
            raise
        raise StoreError(f"topic {topic}: {reason_of_topic(exc)}") from exc
    if count != 1:
        raise StoreError(f"topic {topic} has {count} partitions; with more than one there is no order")
    (described,) = admin.describe_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, topic)], request_timeout=timeout_s
    ).values()
    try:
        config = described.result()
        policy = config["cleanup.policy"].value
        tombstones_s = float(config["delete.retention.ms"].value) / 1000
    except KafkaException as exc:
        if may_pass(exc.args[0]):
            raise
        _log.warning("quota_topic_not_checked", topic=topic, error=exc.args[0].str())
        return TOMBSTONES_S
    if not signed and (why := open_to_anybody(admin, topic, timeout_s=timeout_s)) is not None:
        _log.warning("quota_topic_open_to_anybody", topic=topic, detail=f"{why}; see quota_store.secret_file")
    if policy != "compact":
        raise StoreError(
            f'topic {topic} has cleanup.policy "{policy}", so brokers would delete quotas; it has to be "compact"'
        )
    return tombstones_s


def end_offset(topic: str, client: Mapping[str, Any], *, deadline: float) -> int:
    """The current end offset of the topic, open transactions included. Blocks.

    A reader of committed records reaches it when all transactions that were open have ended, of all gateways.

    Args:
        topic: the topic's name.
        client: librdkafka's settings for reaching the cluster.
        deadline: by `time.monotonic`; there is one attempt even after it.

    Raises:
        KafkaException: the brokers did not respond.
    """
    while True:
        try:
            return _end_offset(topic, client, max(0.2, deadline - time.monotonic()))
        except KafkaException:
            if time.monotonic() + _POLL_S > deadline:
                raise
            time.sleep(_POLL_S)


def _end_offset(topic: str, client: Mapping[str, Any], timeout_s: float) -> int:
    # The consumer could be used, but librdkafka (2.16) waits for ever when its connection breaks meanwhile. A client
    # that once found no leader never finds one. So a new client is used, with a timeout of our own.
    admin = AdminClient(dict(client), logger=_client_log)
    (asked,) = admin.list_offsets(
        {TopicPartition(topic, 0): OffsetSpec.latest()},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=timeout_s,
    ).values()
    try:
        end = int(asked.result(timeout_s).offset)
    except TimeoutError:
        end = -1
    if end < 0:  # librdkafka's value after a timeout
        raise KafkaException(
            KafkaError(KafkaError._TIMED_OUT, "the brokers did not say where the topic ends")
        )
    return end


class _Replaced(Exception):
    """The topic was replaced, or has lost records that were read."""


def _both_clocks() -> tuple[float, float]:
    """Both clocks: one misses a suspended machine, the other a change of the wall clock."""
    return time.monotonic(), time.time()


class TopicReader:
    """A thread that reads the committed records of the topic, from its beginning and then continuously.

    It reads the topic from its beginning again when it can't continue, when the topic was replaced or has lost its
    end (hazard L01), and when the brokers may have dropped removals meanwhile (hazard L10).
    """

    def __init__(
        self,
        topic: str,
        client: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop,
        receive: Callable[[Sequence[Record], int | None], Awaitable[None]],
        lost: Callable[[str], Awaitable[None]],
        begun: Callable[[str, int], Awaitable[None]],
        *,
        tombstones_s: float = TOMBSTONES_S,
        each_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """Reads nothing yet.

        Args:
            topic: the topic's name.
            client: librdkafka's settings for reaching the cluster.
            loop: the loop that receives the records.
            receive: called with the next records, and the end offset if they reach it.
            lost: called with the reason why reading can't continue; the next records are from the beginning. `lost`,
                `begun` and `receive` are called one at a time.
            begun: called with the id of the topic that is read from its beginning now, and its end offset.
            tombstones_s: how long the topic keeps removals.
            each_turn: called in the thread a few times a second.
        """
        self._topic = topic
        self._each_turn = each_turn
        self._loop = loop
        self._receive = receive
        self._lost = lost
        self._begun = begun
        self._identity = TopicIdentity(topic, client)
        self._longest_away_s = tombstones_s / 2
        self._topic_id: str | None = None
        self._missing = 0
        self._position = 0
        self._asked_at = 0  # the position at the last query
        self._behind: tuple[int, float] | None = None  # a position before the end, and when it was reached
        self._at_end_s = (0.0, 0.0)
        self._doubt = ""
        self._stopped = threading.Event()
        self._read: asyncio.Queue[tuple[Callable[..., Awaitable[None]], tuple[object, ...]]] = asyncio.Queue()
        self._delivering: asyncio.Task[None] | None = None
        self._ahead = threading.BoundedSemaphore(_MAX_AHEAD)
        self._client = client
        self._age = ClientAge(client)
        self._settings = {
            # librdkafka requires a group, but the partition is assigned explicitly and no offset is committed.
            "group.id": "sluice-quotas",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.error.backoff.ms": 100,
            "topic.metadata.refresh.interval.ms": 30_000,
        }
        self._told = ""  # the reason logged last why reading can't continue
        self._thread = threading.Thread(target=self._run, name="quota-reader", daemon=True)

    def start(self) -> None:
        """Start the thread; call it in the loop."""
        self._delivering = self._loop.create_task(self._deliver())
        self._thread.start()

    def doubt(self, why: str) -> None:
        """Read the topic again, because expected records were not read; unless an open transaction is the reason."""
        self._doubt = why

    async def stop(self, executor: Executor) -> None:
        """End the thread, and wait until it has ended.

        Args:
            executor: runs the wait.
        """
        self._stopped.set()
        await self._loop.run_in_executor(executor, self._thread.join)
        if self._delivering is not None:
            self._delivering.cancel()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except Exception as exc:  # noqa: BLE001  (whatever it is: a topic that is not followed is not noticed)
                text = _text(exc)
                if self._told != text:
                    self._told = text
                    bug = None if isinstance(exc, _Replaced) else bug_in(exc)
                    _log.error("quota_topic_not_followed", topic=self._topic, error=text, exc_info=bug)
                self._hand_over(self._lost, text)
                self._stopped.wait(_AGAIN_S)

    def _follow(self) -> None:
        found = self._identity.ask()
        if found.topic_id is None and not self._stopped.wait(_POLL_S):
            found = self._identity.ask()  # one broker alone may not know it yet
        if found.topic_id is None:
            raise _Replaced("there is no such topic")
        self._topic_id, self._missing, self._position, self._doubt = found.topic_id, 0, 0, ""
        self._asked_at, self._behind = 0, None
        self._at_end_s = _both_clocks()
        begun = False
        while not self._stopped.is_set():
            self._age.begin()
            # A consumer that has lost its topic once does not find it again.
            consumer = Consumer({**self._client, **self._settings}, logger=_client_log)
            try:
                # This finds the partition's leader now. Otherwise librdkafka looks it up only once a second.
                with contextlib.suppress(KafkaException):
                    consumer.list_topics(self._topic, _ASK_S)
                if not begun:
                    self._hand_over(self._begun, found.topic_id, found.end)
                begun = True
                consumer.assign([TopicPartition(self._topic, 0, self._position or OFFSET_BEGINNING)])
                self._read_on(consumer)
            finally:
                consumer.close()

    def _check_identity(self) -> None:
        """Checks that the topic is still the same and still has the records that were read.

        Raises:
            _Replaced: it was replaced or has lost records.
        """
        if (
            max(now - then for now, then in zip(_both_clocks(), self._at_end_s, strict=True))
            > self._longest_away_s
        ):
            raise _Replaced("it was not read for so long that removals may be missing from it")
        asked_at = self._asked_at
        found = self._identity.poll()
        if not self._identity.asking:
            self._asked_at = self._position
        if found is None:
            return
        self._missing = self._missing + 1 if found.topic_id is None else 0
        if self._missing > 1:  # one broker alone may not know it yet
            raise _Replaced("it is gone")
        if found.topic_id is not None and found.topic_id != self._topic_id:
            raise _Replaced("it was deleted and made again")
        if found.topic_id is not None and found.end < asked_at:
            raise _Replaced(f"it ends at {found.end} and was read up to {asked_at}")
        if found.end <= self._position:
            self._at_end_s = _both_clocks()
        if self._position < found.end and self._position >= found.readable:
            # A transaction is open. Records that others have written can be read when it has ended.
            self._doubt = ""
        elif self._doubt:
            raise _Replaced(self._doubt)
        self._check_progress(found.readable)

    def _check_progress(self, readable: int) -> None:
        if self._position >= readable:
            self._behind = None
        elif self._behind is None or self._behind[0] != self._position:
            self._behind = (self._position, time.monotonic())
        elif time.monotonic() - self._behind[1] >= _STUCK_S:
            raise _Replaced(f"nothing comes after {self._position}, though there is more up to {readable}")

    def _read_on(self, consumer: Any) -> None:
        """Reads until the thread is stopped or the consumer must be replaced."""
        while not self._stopped.is_set() and not self._age.outdated(consumer):
            self._check_identity()
            self._each_turn()
            # Waiting for a whole batch would delay its first record.
            first = consumer.poll(_POLL_S)
            if first is None:
                continue
            records, end = [], None
            for message in (first, *consumer.consume(_BATCH, 0)):
                error = message.error()
                if error is None:
                    records.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    end = message.offset()
                elif error.code() in (*_ENDS, *FORBIDDEN) or error.fatal():
                    raise KafkaException(error)
                elif error.code() not in _OF_GROUPS:
                    _log.error("quota_topic_not_read", topic=self._topic, error=error.str())
            if records or end is not None:
                self._position = max(end or 0, records[-1].offset + 1 if records else 0, self._position)
                self._hand_over(self._receive, records, end)
            if end is not None:
                self._at_end_s = _both_clocks()
                self._told = ""

    def _hand_over(self, take: Callable[..., Awaitable[None]], *what: object) -> None:
        while not self._ahead.acquire(timeout=_POLL_S):
            if self._stopped.is_set():
                return
        try:
            self._loop.call_soon_threadsafe(self._read.put_nowait, (take, what))
        except RuntimeError:
            # The loop has ended before this thread.
            self._stopped.set()

    async def _deliver(self) -> None:
        while True:
            take, what = await self._read.get()
            try:
                if not self._stopped.is_set():
                    await take(*what)
            except Exception as exc:  # noqa: BLE001  (a bug of ours; what comes next must be seen nevertheless)
                _log.error("quota_topic_not_applied", topic=self._topic, exc_info=exc)
            finally:
                self._ahead.release()


# For header names that are not UTF-8, confluent-kafka returns a list with NULL entries and also sets an error. An
# interpreter that has specialised the call does not check the error and crashes with a segmentation fault. A call
# through `methodcaller` checks it.
_headers_of: Final = operator.methodcaller("headers")


def _record(message: Any) -> Record:
    try:
        # Of several headers with one name the last counts.
        headers = dict(_headers_of(message) or ())
    except Exception:  # noqa: BLE001  (a name that is no UTF-8, of a header that is none of ours, is a SystemError)
        return Record(message.offset(), None, None, None)  # counted as a bad record
    name = headers.get(ALTERATION_HEADER)
    return Record(
        message.offset(),
        message.key(),
        message.value(),
        None if name is None else name.decode("ascii", "replace"),
        headers.get(SIGNATURE_HEADER),
    )


def _text(exc: Exception) -> str:
    return str(exc) if isinstance(exc, _Replaced) else reason_of_topic(exc)
