"""A fleet of fixed size in one process: the use that one quota admits in bursts, and in each minute.

Gateways with workers share one log, as in Kafka: all read the same messages in the same order, each member with its
own delay. Their clients are faster than the quota, connect to one worker each, and sometimes move. Everything follows
from the seed.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gateway.fleet.exchange import FleetRules
from gateway.fleet.shares import Share
from testkit.fleet import BURST, LIMIT, Bus, FleetMember

GATEWAYS: Final = 4
WORKERS: Final = 2
STEP_MS: Final = 10
JOIN_MS: Final = 5_000
WARM_UP_MS: Final = 15_000
MINUTE_MS: Final = 60_000
BEGINS_MS: Final = 11_500
"""A minute may begin this much later than the first one, as in the accuracy campaign."""
SILENCE_MS: Final = 25_000
BURST_MS: Final = 5_000
AT_ONCE: Final = 10 * LIMIT
"""The burst that Kafka's arithmetic admits at once."""

MOST_OF_ALL: Final = 0.13
"""The requests of all connections together, one each, in seconds of the quota; as in the accuracy campaign."""


@dataclass(slots=True)
class Minutes:
    """The admitted use.

    Attributes:
        mean: mean of all minutes, as a part of the quota.
        least, most: the extremes of the minutes, as parts of the quota.
        over: burst beyond that of one gateway; see docs/explanation/one-quota-over-a-fleet.md.
        allowed: the most that `over` may be by the bound.
        burst: use within `BURST_MS` after silence, beyond the most that one gateway admits, as a part of that.
    """

    mean: float
    least: float
    most: float
    over: float
    allowed: float
    burst: float


@dataclass(slots=True)
class _Client:
    size: float
    at_once: int  # requests in a step
    moves: bool
    member: _Worker
    free_ms: int = 0
    name: object = field(default_factory=object)


class _Worker(FleetMember):
    """A process of a gateway, which sends messages like `UrgentMessages` and `FleetService`."""

    def __init__(self, name: str, rules: FleetRules, tick_at_ms: int, *, now_ms: int) -> None:
        super().__init__(name, name, rules, now_ms=now_ms)
        self._rules = rules
        self._tick_at_ms = tick_at_ms
        self._woken = False
        self._not_before_ms = now_ms
        self.exchange.on_urgent(self._wake)

    def _wake(self) -> None:
        self._woken = True

    def send(self, *, now_ms: int) -> list[Share]:
        """Its messages at this moment."""
        if now_ms % self._rules.interval_ms == self._tick_at_ms:
            return self.exchange.tick(now_ms=now_ms)
        if not self._woken or now_ms < self._not_before_ms:
            return []
        self._woken = False
        self._not_before_ms = now_ms + self.exchange.urgent_after_ms(now_ms=now_ms)
        return self.exchange.tell_urgent(now_ms=now_ms)


class _Fleet:
    def __init__(self, seed: int, gateways: int, workers: int) -> None:
        self.rng = rng = Random(f"minutes/{seed}")
        self.rules = FleetRules()
        self.slowest_ms = rng.choice([10, 30, 80, 200])
        self.bus = Bus(rng, delay_ms=(2, self.slowest_ms), ordered=True)
        self.now_ms = 5_000_000
        self.times: list[int] = []
        self.sums: list[float] = [0.0]
        self.fill = self.most_fill = 0.0  # level of one bucket for all of them
        self.fill_ms = self.now_ms
        names = [f"gw-{gateway}/{worker}" for gateway in range(gateways) for worker in range(workers)]
        if workers > 1:  # adds their supervisors, which serve no clients
            names += [f"gw-{gateway}" for gateway in range(gateways)]
        self.members = [
            _Worker(name, self.rules, at * STEP_MS % self.rules.interval_ms, now_ms=self.now_ms)
            for at, name in enumerate(names)
        ]
        self.workers = self.members[: gateways * workers]
        count = rng.choice([1, 2, 8, 24])
        self.clients = [
            _Client(
                size=rng.uniform(0.001, MOST_OF_ALL) * LIMIT / count,
                at_once=rng.choice([1, 4, 40]),
                moves=rng.random() < 0.5,
                member=rng.choice(self.workers),
            )
            for _ in range(count)
        ]

    def play(self, ms: int, *, demand: bool) -> None:
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            self.bus.deliver(now_ms=self.now_ms)
            if demand:
                self.rng.shuffle(self.clients)
                for client in self.clients:
                    self.serve(client)
            for member in self.members:
                for share in member.send(now_ms=self.now_ms):
                    self.bus.send(share, self.members, now_ms=self.now_ms)

    def serve(self, client: _Client) -> None:
        now_ms = self.now_ms
        if client.moves and self.rng.random() < STEP_MS / 10_000:
            client.member.tracker(now_ms=now_ms).leave(client.name)
            client.member = self.rng.choice(self.workers)
        for _ in range(client.at_once):
            if client.free_ms > now_ms:
                return
            throttle_ms = client.member.admit(client.name, client.size, now_ms=now_ms)
            if throttle_ms is None:
                return
            client.free_ms = now_ms + throttle_ms
            self.times.append(now_ms)
            self.sums.append(self.sums[-1] + client.size)
            self.fill = max(0.0, self.fill - (now_ms - self.fill_ms) * LIMIT / 1000) + client.size
            self.fill_ms = now_ms
            self.most_fill = max(self.most_fill, self.fill)

    def passed(self, since_ms: int, ms: int) -> float:
        """The use admitted in a span of time."""
        first, last = (bisect_left(self.times, at) for at in (since_ms, since_ms + ms))
        return self.sums[last] - self.sums[first]

    def bound(self) -> float:
        """The highest allowed level of the bucket for all (docs/explanation/one-quota-over-a-fleet.md)."""
        exchange_ms = self.rules.interval_ms + self.slowest_ms + 2 * STEP_MS
        alone = 2 * exchange_ms / 1000 * LIMIT * len(self.workers)
        requests = sum(sorted((each.size for each in self.clients), reverse=True)[: len(self.workers)])
        return BURST + AT_ONCE + alone + requests


def play_minutes(seed: int, *, gateways: int = GATEWAYS, workers: int = WORKERS) -> Minutes:
    """Runs silence, a burst followed by minutes of demand, silence again, and another burst.

    Args:
        seed: seed of all random decisions.
        gateways: the number of gateways.
        workers: workers of each gateway. Each worker and each supervisor is a member of the fleet.
    """
    fleet = _Fleet(seed, gateways, workers)
    fleet.play(JOIN_MS, demand=False)
    begin_ms = fleet.now_ms + WARM_UP_MS
    fleet.play(WARM_UP_MS + MINUTE_MS + BEGINS_MS, demand=True)
    ratios = [
        fleet.passed(begin_ms + after_ms, MINUTE_MS) / (MINUTE_MS / 1000 * LIMIT)
        for after_ms in range(0, BEGINS_MS, 500)
    ]
    fleet.play(SILENCE_MS, demand=False)
    since_ms = fleet.now_ms
    fleet.play(BURST_MS, demand=True)
    one_gateway = AT_ONCE + BURST_MS / 1000 * LIMIT
    return Minutes(
        statistics.fmean(ratios),
        min(ratios),
        max(ratios),
        fleet.most_fill / BURST - 1,
        fleet.bound() / BURST - 1,
        fleet.passed(since_ms, BURST_MS + 1) / one_gateway - 1,
    )
