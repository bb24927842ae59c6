"""Builds the parts of usage records from the configuration. [io]"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from config import Config, read_secret
from config.sections.usage import UsageSettings
from gateway.runtime.clock import NowMs, wall_clock_ms
from gateway.usage.connections import ConnectionUsage, connection_level, record_user_connection
from gateway.usage.file_sink import FileSettings, FileWriter
from gateway.usage.forwarding import LATE_MS, Tell, WorkersRows, WorkerUsage
from gateway.usage.kafka_sink import KafkaWriter, TopicSettings
from gateway.usage.mutations import mutation_level
from gateway.usage.names import Names
from gateway.usage.recorder import Recorder
from gateway.usage.retention import Retention, latest_boot
from gateway.usage.salt import SALT_BYTES, SALT_NAME, load_salt
from gateway.usage.series import UsageSeries
from gateway.usage.sink import ThreadedSink, Writer
from gateway.usage.stored import StoredBytes
from gateway.usage.table import UsageTable
from gateway.usage.topic_ids import TopicIds
from gateway.usage.topics import TopicUse
from quotas.connections import ConnectionQuotas
from quotas.mutations import MutationQuotas
from quotas.record_signature import RecordSigner
from quotas.usage_record import FLEET, UsageApi
from quotas.user_connections import UserConnections

STOP_S: Final = 5.0
"""How long a stopping gateway waits for a slow disk or cluster to take the last lines."""

_GIVE_UP_MS: Final = 120_000
_HOUR_MS: Final = 3_600_000

_log = structlog.get_logger("gateway.usage")


class UsageService:
    """Counts, makes lines, delivers them.

    Attributes:
        table: where the data path counts.
        connections: counts connections.
        series: for Prometheus.
        recorder, sink: see their modules.
        from_workers: takes the lines of workers; None: there are none.
        stored: takes the brokers' stored bytes; None: they are not sampled.
    """

    def __init__(
        self,
        config: Config,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        client: Mapping[str, Any],
        scope: Callable[[], str],
        topic_ids: TopicIds | None = None,
        workers: bool = False,
    ) -> None:
        """Build the parts; nothing is written yet.

        Args:
            config: its [usage] is not off.
            loop: the gateway's.
            now_ms: its clock.
            client: librdkafka's settings for reaching the cluster; only records in a topic use them.
            scope: see `Recorder`.
            topic_ids: names of topics by id; discovery requests unknown names.
            workers: whether workers count too, and send their lines to `from_workers`.

        Raises:
            ConfigError: the file with the secret is unreadable.
        """
        section = config.usage
        self.from_workers = None
        if workers:
            self.from_workers = WorkersRows(
                max_topics_of_client=section.max_topics_per_client, max_topics=section.max_topics
            )
        self._loop = loop
        gateway = section.gateway_id or host_id()
        boot = _boot(section, gateway)
        names = _names(config)
        topics = _topics(section, names, topic_ids)
        self.stored = StoredBytes(names) if section.stored else None
        self.table = UsageTable(
            names, max_rows=section.max_rows, max_events=section.max_events, topics=topics
        )
        writer: Writer
        if section.kind == "files":
            assert section.directory is not None
            retention = Retention(section.keep_bytes, section.keep_hours * _HOUR_MS / 1000)
            files = FileSettings(
                Path(section.directory), section.rotate_seconds, section.rotate_bytes, retention
            )
            writer = FileWriter(files, gateway, boot)
        else:
            file = section.secret_file
            secrets = [] if file is None else [read_secret("usage.secret_file", file)]
            topic = TopicSettings(
                topic=section.topic,
                partitions=section.topic_partitions,
                replication_factor=section.topic_replication_factor,
                retention_ms=section.keep_hours * _HOUR_MS,
                give_up_ms=_GIVE_UP_MS,
                max_queued_bytes=section.max_queued_bytes,
                client=client,
                signer=RecordSigner(section.topic, secrets) if secrets else None,
            )
            writer = KafkaWriter(topic, gateway)
        self.sink = ThreadedSink(writer, max_queued_bytes=section.max_queued_bytes)
        self.recorder = Recorder(
            self.table,
            self.sink,
            gateway=gateway,
            boot=boot,
            algorithm=config.mutation_quota.algorithm.value,
            scope=scope,
            loop=loop,
            now_ms=now_ms,
            others=self.from_workers,
            late_ms=LATE_MS if workers else 0,
            stored=self.stored,
        )
        self.connections = ConnectionUsage(self.table)
        self.series = UsageSeries(self.table, self.sink, self.stored)

    @classmethod
    def configured(
        cls,
        config: Config,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        client: Mapping[str, Any],
        scope: Callable[[], str],
        topic_ids: TopicIds | None = None,
        workers: bool = False,
    ) -> UsageService | None:
        """The service of a configuration; None: it has no usage records. The arguments are the constructor's."""
        if config.usage.kind == "off":
            return None
        return cls(
            config,
            loop=loop,
            now_ms=now_ms,
            client=client,
            scope=scope,
            topic_ids=topic_ids,
            workers=workers,
        )

    def watch(self, mutations: MutationQuotas, connections: ConnectionQuotas, users: UserConnections) -> None:
        """Set where to find the limits of rows without a rate counter, and count decisions on users' connections."""
        users.on_decided = partial(record_user_connection, self.table)
        self.table.watch(UsageApi.MUTATION, mutation_level(mutations))
        self.table.watch(UsageApi.CONNECT, connection_level(connections))

    def start(self) -> None:
        """Begin the first line."""
        self.sink.start()
        self.recorder.start()

    async def stop(self) -> None:
        """Make the last line and wait, a bounded time, until it is delivered."""
        self.recorder.stop()
        await self._loop.run_in_executor(None, self.sink.stop, STOP_S)


def worker_usage(
    config: Config,
    *,
    loop: asyncio.AbstractEventLoop,
    now_ms: NowMs,
    tell: Tell,
    topic_ids: TopicIds | None = None,
) -> WorkerUsage | None:
    """The usage records of a worker; None: there are none.

    Args:
        config: valid.
        loop: the worker's.
        now_ms: its clock.
        `tell`: sends its lines to the supervisor.
        topic_ids: names of topics by id; discovery requests unknown names.
    """
    if config.usage.kind == "off":
        return None
    names = _names(config)
    return WorkerUsage(
        names,
        tell,
        max_rows=config.usage.max_rows,
        max_events=config.usage.max_events,
        algorithm=config.mutation_quota.algorithm.value,
        loop=loop,
        now_ms=now_ms,
        topics=_topics(config.usage, names, topic_ids),
    )


def counter_scope(config: Config, cluster_id: str | None) -> str:
    """What one counter covers, as `quotas.usage_record` writes it; empty: not known yet.

    Args:
        config: valid.
        cluster_id: of the cluster behind the gateway; None: not known yet.
    """
    scope = config.client_quota.scope
    if scope != "fleet":
        return scope
    # Fleets of different clusters may use topics with the same name.
    return f"{FLEET}{cluster_id}/{config.fleet.topic}" if cluster_id else ""


def _topics(section: UsageSettings, names: Names, topic_ids: TopicIds | None) -> TopicUse | None:
    """The counts of bytes by topic; None: they are off."""
    if not section.topics:
        return None
    return TopicUse(
        topic_ids or TopicIds(),
        names,
        max_of_client=section.max_topics_per_client,
        max_topics=section.max_topics,
    )


def host_id() -> str:
    """The host's name, with characters replaced that a file's name cannot have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname())[:64] or "gateway"


def _boot(section: UsageSettings, gateway: str) -> int:
    """The time of this start, later than all earlier starts even if the wall clock is wrong (hazard L05)."""
    latest = 0
    if section.directory is not None:
        # The sink logs a directory that cannot be read.
        with contextlib.suppress(OSError):
            latest = latest_boot(Path(section.directory), gateway)
    return max(wall_clock_ms(), latest + 1)


def _names(config: Config) -> Names:
    section = config.usage
    if section.privacy == "plain":
        return Names()
    path = Path(section.salt_file) if section.salt_file else Path(section.directory or ".") / SALT_NAME
    try:
        return Names(load_salt(path))
    except (OSError, ValueError) as exc:
        # Serving clients comes first; their names still do not leak.
        _log.error(
            "usage_salt_unreadable", file=str(path), error=str(exc), instead="a salt of this run alone"
        )
        return Names(secrets.token_bytes(SALT_BYTES))
