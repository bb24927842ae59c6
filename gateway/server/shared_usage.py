"""Sends the usage that a worker has recorded to the other workers, through the supervisor. [io]

The exchange is that of a fleet (docs/decisions/0022-one-quota-over-a-fleet.md), with the workers as members. The
supervisor passes each message to all of them. Mutations are not exchanged, as the supervisor has their counters.

If gateways are a fleet, each worker is a member of it: the supervisor passes messages between its workers and the
topic. The supervisor is a member too, for mutations. It also receives all other usage, to inform new workers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

import structlog

from gateway.fleet.counters import AllCounters
from gateway.fleet.exchange import Exchange, FleetRules, OnIsolation
from gateway.fleet.shares import MalformedShare, Member, Share, decode_share, encode_share
from gateway.fleet.urgent import UrgentMessages
from gateway.observability.logging_setup import flooded
from gateway.runtime.clock import NowMs
from gateway.server.worker import TICK_S, WorkerSide

_log = structlog.get_logger("gateway.fleet")


class SupervisorsTopic:
    """A fleet's topic as a worker uses it: the supervisor reads and writes it. Same interface as
    `gateway.fleet.topic`.

    Attributes:
        refused, undelivered: always 0, as the supervisor counts them.
        trouble: always None, as the supervisor knows it; without contact this worker is isolated as other members
            are.
    """

    refused = 0
    undelivered = 0
    trouble: str | None = None

    def __init__(self, worker: WorkerSide) -> None:
        """Nothing is received yet; the supervisor only informs workers that serve.

        Args:
            worker: the link to the supervisor.
        """
        self._worker = worker
        self._receive: Callable[[Sequence[Share]], None] = lambda _shares: None
        worker.handlers["shares"] = self._received

    def start(self, receive: Callable[[Sequence[Share]], None]) -> None:
        """See `ShareTopic`."""
        self._receive = receive

    def send(self, shares: Sequence[Share]) -> None:
        """See `ShareTopic`."""
        if shares:
            self._worker.link.tell_now("shares", [encode_share(share) for share in shares])

    def begin_again(self) -> None:
        """Nothing: only the supervisor reconnects."""

    async def stop(self) -> None:
        """Nothing: only the supervisor stops the topic."""

    def _received(self, messages: Sequence[bytes]) -> None:
        self._receive(list(_decoded(messages)))


def _decoded(messages: Sequence[bytes]) -> Iterator[Share]:
    for message in messages:
        try:
            yield decode_share(message)
        except MalformedShare as exc:  # a bug of ours, which must not end the link
            if not flooded("share_malformed"):
                _log.error("share_malformed", error=str(exc))


class SharedUsage:
    """One worker's part.

    Attributes:
        exchange: makes and takes the messages.
    """

    def __init__(self, worker: WorkerSide, counters: AllCounters, workers: int, now_ms: NowMs) -> None:
        """Send and receive as soon as the worker serves.

        Args:
            worker: the link to the supervisor.
            counters: of this process.
            workers: the configured number.
            now_ms: the clock.
        """
        # A worker without its supervisor drains, and counts by itself until its end.
        rules = FleetRules(interval_ms=int(TICK_S * 1000), members=workers, on_isolation=OnIsolation.LOCAL)
        self.exchange = Exchange(
            Member(f"worker-{worker.number}", secrets.token_hex(8)),
            counters,
            rules,
            now_ms=now_ms(),
        )
        self._worker = worker
        self._now_ms = now_ms
        self._urgent: UrgentMessages | None = None
        worker.handlers["shares"] = self._receive
        worker.on_tick.append(self._tick)

    def _tick(self) -> None:
        # Messages may be dropped: other workers then notice the gap and request levels.
        if self._urgent is None:  # the first tick: the worker serves
            self._urgent = UrgentMessages(self.exchange, self._send, self._now_ms)
        self._send(self.exchange.tick(now_ms=self._now_ms()))

    def _send(self, shares: Sequence[Share]) -> None:
        if shares:
            self._worker.link.tell_now("shares", [encode_share(share) for share in shares])

    def _receive(self, messages: Sequence[bytes]) -> None:
        now_ms = self._now_ms()
        for share in _decoded(messages):
            self.exchange.receive(share, now_ms=now_ms)
