"""Sends what a worker has recorded to the other workers, through the supervisor. [io]

The exchange is that of a fleet (docs/decisions/0022-one-quota-over-a-fleet.md), its members the workers; the
supervisor passes each message to all of them. Mutations are no part of it: the supervisor has their counters.

Where gateways are a fleet, each worker is a member of that: the supervisor passes messages between its workers and
the topic. It is a member itself, for mutations; it hears of all else too, so that it can inform a new worker.
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
    """The topic of a fleet as a worker has it: the supervisor writes and reads it. As `gateway.fleet.topic`.

    Attributes:
        refused, undelivered: counted by the supervisor.
        trouble: known to the supervisor; without touch this worker is isolated as others are.
    """

    refused = 0
    undelivered = 0
    trouble: str | None = None

    def __init__(self, worker: WorkerSide) -> None:
        """Nothing is received yet; the supervisor informs workers that serve.

        Args:
            worker: leads to the supervisor.
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
        """The supervisor does."""

    async def stop(self) -> None:
        """The supervisor does."""

    def _received(self, messages: Sequence[bytes]) -> None:
        self._receive(list(_decoded(messages)))


def _decoded(messages: Sequence[bytes]) -> Iterator[Share]:
    for message in messages:
        try:
            yield decode_share(message)
        except MalformedShare as exc:  # a fault of ours, and no reason to end what all else goes by
            if not flooded("share_malformed"):
                _log.error("share_malformed", error=str(exc))


class SharedUsage:
    """One worker's part.

    Attributes:
        exchange: what is sent and received.
    """

    def __init__(self, worker: WorkerSide, counters: AllCounters, workers: int, now_ms: NowMs) -> None:
        """Send and receive from when the worker serves on.

        Args:
            worker: leads to the supervisor.
            counters: of this process.
            workers: how many there are to be.
            now_ms: the clock.
        """
        # A worker without its supervisor drains, and counts for itself until then.
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
        # What is not taken is not sent: others ask where counters stand once they miss it.
        if self._urgent is None:  # it serves from now on
            self._urgent = UrgentMessages(self.exchange, self._send, self._now_ms)
        self._send(self.exchange.tick(now_ms=self._now_ms()))

    def _send(self, shares: Sequence[Share]) -> None:
        if shares:
            self._worker.link.tell_now("shares", [encode_share(share) for share in shares])

    def _receive(self, messages: Sequence[bytes]) -> None:
        now_ms = self._now_ms()
        for share in _decoded(messages):
            self.exchange.receive(share, now_ms=now_ms)
