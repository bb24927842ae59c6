"""The fleet in a running gateway: drives the exchange and its topic. [io]: timers of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from config import Config, read_secret
from gateway.fleet.counters import AllCounters
from gateway.fleet.exchange import Exchange, FleetRules, OnIsolation
from gateway.fleet.shares import Member, Share
from gateway.fleet.urgent import UrgentMessages
from gateway.runtime.clock import NowMs
from gateway.runtime.slices import Slices, in_slices
from quotas.limits import Limits
from quotas.record_signature import RecordSigner

_JOIN_S: Final = 5.0
_MOST_WAITING: Final = 1_000
"""The most received messages that wait to be taken."""

_log = structlog.get_logger("gateway.fleet")


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a gateway a member is: the whole gateway, or one of its processes.

    Attributes:
        of_share: the factor for its share of a limit. Members are processes: those that count a quota together have
            the shares of all processes of their gateway.
        of_limit: its part of the limit, if an isolated gateway enforces the limit.
    """

    of_share: float = 1.0
    of_limit: float = 1.0

    @classmethod
    def of_supervisor(cls, workers: int) -> Part:
        """The supervisor alone counts mutations."""
        return cls(of_share=workers + 1.0)

    @classmethod
    def of_worker(cls, workers: int) -> Part:
        """Workers count all other quotas."""
        return cls(of_share=(workers + 1) / workers, of_limit=1 / workers)


class FleetService:
    """One member of a fleet: a gateway, or a process of it.

    Attributes:
        exchange: makes and takes the messages.
        topic: transports them.
        isolations: how often this member became isolated.
    """

    def __init__(
        self,
        exchange: Exchange,
        topic: Any,
        rules: FleetRules,
        limits: Limits,
        now_ms: NowMs,
        part: Part | None = None,
    ) -> None:
        """It begins with `start`.

        Args:
            exchange: of this member.
            topic: a `ShareTopic`, or a worker's link to that of the supervisor.
            rules: those of the exchange.
            limits: multiplied by this member's share while it is isolated.
            now_ms: the loop's clock.
            part: of its gateway; None: the whole gateway.
        """
        self.exchange = exchange
        self.topic = topic
        self.isolations = 0
        self._rules = rules
        self._limits = limits
        self._now_ms = now_ms
        self._part = part or Part()
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._urgent: UrgentMessages | None = None
        self._touched = False
        self._members = 1
        self._again_ms: int | None = None
        self._caught_up = asyncio.Event()
        self._came: deque[Share] = deque()
        self._receiving: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None

    @classmethod
    def configured(
        cls,
        config: Config,
        counters: AllCounters,
        limits: Limits,
        *,
        gateway: str,
        client: Mapping[str, Any],
        now_ms: NowMs,
        worker: tuple[int, Any] | None = None,
    ) -> FleetService | None:
        """Make the service as configured; None: this gateway shares nothing.

        Args:
            config: valid.
            counters: to be shared.
            limits: in force here.
            gateway: the member's name, if [fleet] has none.
            client: librdkafka's settings for reaching the cluster.
            now_ms: the loop's clock.
            worker: this worker's number and its link to the supervisor's topic; None: this process uses the topic.

        Raises:
            ConfigError: a file with a secret is unreadable.
        """
        if config.client_quota.scope != "fleet":
            return None
        section = config.fleet
        workers = config.server.worker_count
        rules = FleetRules(
            interval_ms=section.interval_ms,
            heartbeat_ms=section.heartbeat_ms,
            timeout_ms=section.timeout_ms,
            max_counters_per_s=section.max_counters_per_s,
            on_isolation=OnIsolation(section.on_isolation),
            # Each process is a member.
            members=section.members * (workers + 1 if workers > 1 else 1),
        )
        name, boot = section.member or gateway, secrets.token_hex(8)
        if worker is not None:
            number, topic = worker
            exchange = Exchange(Member(f"{name}/{number}", boot), counters, rules, now_ms=now_ms())
            return cls(exchange, topic, rules, limits, now_ms, Part.of_worker(workers))
        # librdkafka is only loaded where it is used.
        from gateway.fleet.topic import ShareTopic, ShareTopicSettings

        member = Member(name, boot)
        settings = ShareTopicSettings(
            topic=section.topic,
            replication_factor=section.replication_factor,
            give_up_ms=section.timeout_ms,
            client=client,
            signer=_signer(config),
        )
        exchange = Exchange(member, counters, rules, now_ms=now_ms())
        part = Part.of_supervisor(workers) if workers > 1 else None
        return cls(exchange, ShareTopic(settings, member.id), rules, limits, now_ms, part)

    async def start(self) -> None:
        """Begin, and wait a limited time for the others' levels; then continue without them."""
        self.begin()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_JOIN_S):
                await self._caught_up.wait()

    def begin(self) -> None:
        """Begin; until it is connected, this member counts as isolated."""
        self._loop = asyncio.get_running_loop()
        now_ms = self._now_ms()
        self._again_ms = now_ms + 2 * self._rules.timeout_ms
        self.topic.start(self.receive)
        self._limits.set_share(self._share(now_ms))
        self._urgent = UrgentMessages(self.exchange, self.topic.send, self._now_ms)
        self._tick()

    async def stop(self, on_left: Callable[[], None] = lambda: None) -> None:
        """Announce to the others that this member ends.

        Args:
            on_left: called when the last message is made; later usage is not sent.
        """
        if self._timer is None or self._urgent is None:
            return
        self._urgent.stop()
        self._timer.cancel()
        self._timer = None
        for task in (self._ticking, self._receiving):
            if task is not None:
                await asyncio.wait({task})
        self.topic.send(self.exchange.leave(now_ms=self._now_ms()))
        on_left()
        await self.topic.stop()

    def receive(self, shares: Sequence[Share]) -> None:
        """Take messages from the topic, one after the other, in slices."""
        # Dropped messages are noticed as missing, and requested again.
        self._came.extend(shares[: max(0, _MOST_WAITING - len(self._came))])
        if self._receiving is None:
            self._receiving = self._loop.create_task(self._receive_all())

    async def _receive_all(self) -> None:
        slices = Slices(every=1)
        try:
            while self._came:
                share = self._came.popleft()
                await in_slices(self.exchange.receive_in_steps(share, now_ms=self._now_ms()), slices)
                if slices.over:
                    await slices.next()
            self._look_at_touch(self._now_ms())
        finally:
            self._receiving = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._rules.interval_ms / 1000, self._tick)
        if self.topic.trouble is not None and not self._touched:
            self._look_at_touch(self._now_ms())
        elif self._ticking is None:
            self._ticking = self._loop.create_task(self._tick_once())

    async def _tick_once(self) -> None:
        try:
            steps = self.exchange.tick_in_steps(now_ms=self._now_ms())
            if shares := await in_slices(steps, Slices(every=1)):
                self.topic.send(shares)
            self._look_at_touch(self._now_ms())
        finally:
            self._ticking = None

    def _look_at_touch(self, now_ms: int) -> None:
        exchange = self.exchange
        members = exchange.members(now_ms=now_ms)
        if exchange.connected is not self._touched:
            self._touched = exchange.connected
            if self._touched:
                _log.info("fleet_joined", member=exchange.member.id, members=members)
            else:
                self.isolations += 1
                _log.warning("fleet_isolated", member=exchange.member.id, members=members)
        elif members != self._members:
            _log.info(
                "fleet_members_changed", member=exchange.member.id, before=self._members, members=members
            )
        self._members = members
        self._limits.set_share(self._share(now_ms))
        if exchange.caught_up:
            self._caught_up.set()
        if exchange.connected:
            self._again_ms = None
        elif self.topic.trouble is not None:
            self._again_ms = now_ms + 2 * self._rules.timeout_ms
        elif self._again_ms is None:
            # A process that was suspended is connected again before that.
            self._again_ms = now_ms + self._rules.timeout_ms // 4
        elif now_ms >= self._again_ms:
            # The topic seems to be readable, but no message comes back.
            self._again_ms = now_ms + 2 * self._rules.timeout_ms
            self.topic.begin_again()

    def _share(self, now_ms: int) -> float:
        """The factor for the limits of this process now."""
        if self.exchange.in_agreement:
            return 1.0
        if self._rules.on_isolation is OnIsolation.LOCAL:
            return self._part.of_limit
        return min(1.0, self.exchange.share(now_ms=now_ms) * self._part.of_share)

    def isolation(self) -> str | None:
        """Why the fleet's quotas are not in force now, in a few words; None: they are."""
        now_ms = self._now_ms()
        isolated_ms = self.exchange.isolated_ms(now_ms=now_ms)
        if not isolated_ms:
            return None
        trouble = f" ({self.topic.trouble})" if self.topic.trouble else ""
        return (
            f"fleet: no contact with the other members for {isolated_ms // 1000} s{trouble}; "
            f"limits are multiplied by {self._limits.share:.3g}"
        )

    # -- figures ---------------------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """The number of members, including this one."""
        return self.exchange.members(now_ms=self._now_ms())

    @property
    def interval_s(self) -> float:
        """The time between two messages about a counter near its limit."""
        return self.exchange.interval_ms(now_ms=self._now_ms()) / 1000

    def ages(self) -> Iterator[tuple[str, float]]:
        """Every other member that is present, and the seconds since its last message."""
        now_ms = self._now_ms()
        for peer in self.exchange.peers.present(now_ms=now_ms):
            yield peer.member.id, (now_ms - peer.heard_ms) / 1000


def _signer(config: Config) -> RecordSigner | None:
    """A signer with the secrets of the fleet, or else those of the quota topic."""
    section, name = (
        (config.fleet, "fleet") if config.fleet.secret_file else (config.quota_store, "quota_store")
    )
    files = {"secret_file": section.secret_file, "previous_secret_file": section.previous_secret_file}
    found = [read_secret(f"{name}.{key}", file) for key, file in files.items() if file is not None]
    return RecordSigner(config.fleet.topic, found) if found else None
