"""Asks each broker once an hour how many bytes it stores, for usage records (`usage.stored`). [io]

Hours are those of the wall clock. The pipeline uses one sample per broker and hour, from any gateway. So a gateway
takes a sample as soon as it starts, and then at its own moment in each hour.

Brokers are asked one after the other, with the gateway's own login. The next one is asked when lines have the whole
last sample. So a broker that does not answer, or has very many topics, delays other samples, but no client.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

import structlog

from gateway.runtime.clock import WallMs, wall_clock_ms
from gateway.runtime.slices import Slices, in_slices
from gateway.upstream.discovery import CLIENT_ID, Discovery, shown
from gateway.upstream.topology import ClusterMap
from gateway.usage.stored import StoredBytes
from protocol.codec import log_dirs_request
from protocol.errors import ProtocolError
from protocol.log_dirs import DESCRIBE_LOG_DIRS, read_log_dirs

_HOUR_S: Final = 3_600
_LAST_S: Final = 3_480
"""No sample is taken later in an hour: its last line must be of the same hour, and so of the same day."""
_SPREAD_S: Final = 600
"""The range of a gateway's moment in the hour: gateways of a fleet do not all ask at once."""
_LOOK_S: Final = 1.0

_log = structlog.get_logger("gateway.usage")


class SampleFailed(ConnectionError):
    """The broker has answered, but without a sample."""


class StoredSampler:
    """The task that takes samples."""

    def __init__(
        self,
        stored: StoredBytes,
        discovery: Discovery,
        cluster: ClusterMap,
        *,
        wall_ms: WallMs = wall_clock_ms,
    ) -> None:
        """Nothing is sent before `start`.

        Args:
            stored: gets the samples.
            discovery: sends requests, with the gateway's login.
            cluster: the brokers.
            wall_ms: the clock for hours.
        """
        self._stored = stored
        self._discovery = discovery
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._told: set[str] = set()  # reasons logged in the hour before, and in this one
        self._told_now: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take samples."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Take no more samples; a sample under way is abandoned."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        current, from_s = -1, 0.0
        left: list[int] = []
        while True:
            hour, past_s = divmod(self._wall_ms() // 1000, _HOUR_S)
            if left and (hour != current or past_s >= _LAST_S):
                self._stored.failed += len(left)
                left = []
            if hour != current and from_s <= past_s < _LAST_S and self._discovery.reached:
                current, from_s = hour, random.uniform(0, _SPREAD_S)
                self._told, self._told_now = self._told_now, set()
                left = self._in_turn(hour)
            if left and not self._stored.waiting:
                await self._try(left.pop())
            else:
                await asyncio.sleep(_LOOK_S)

    def _in_turn(self, hour: int) -> list[int]:
        """All brokers, each hour beginning with the next: if an hour is too short, other brokers are left out."""
        brokers = sorted(self._cluster.broker_ids)
        first = hour % max(1, len(brokers))
        return brokers[first:] + brokers[:first]

    async def _try(self, broker_id: int) -> None:
        try:
            await self._sample(broker_id)
        except (OSError, ProtocolError, TimeoutError) as exc:
            self._stored.failed += 1
            text = shown(str(exc))
            reason = f"{type(exc).__name__} {text}" if isinstance(exc, ProtocolError) else text
            reason = reason.strip() or "no answer in time"
            if reason not in self._told | self._told_now:
                _log.warning("stored_bytes_not_sampled", broker=broker_id, error=reason)
            self._told_now.add(reason)

    async def _sample(self, broker_id: int) -> None:
        if not self._discovery.may_ask(DESCRIBE_LOG_DIRS):
            raise SampleFailed("the brokers do not offer DescribeLogDirs version 1")
        frame = await self._discovery.ask(broker_id, log_dirs_request(client_id=CLIENT_ID))
        at_s = self._wall_ms() // 1000
        found = await in_slices(read_log_dirs(frame), Slices())
        if found.named == found.failed:
            raise SampleFailed(
                "the brokers name no directory that can be read; the gateway needs the right DESCRIBE on the cluster"
            )
        self._stored.add(self._cluster.cluster_id or "", broker_id, found.topics, found.total, at_s=at_s)
