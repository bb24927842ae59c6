"""A fleet in one process, on a simulated clock: members, their clients, and a topic that delays, loses and repeats.

`run_schedule` runs one random schedule and compares the use that all members together admit with the bound of
docs/explanation/one-quota-over-a-fleet.md. Everything follows from the seed.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gateway.fleet.counters import counters_of
from gateway.fleet.exchange import Exchange, FleetRules
from gateway.fleet.shares import Member, Share, decode_share, encode_share
from quotas.entities import QuotaEntity, QuotaKey
from quotas.group_quotas import GroupQuotas
from quotas.limits import Limits
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.rate_quotas import ByteRateQuotas, RateSettings, RateTracker, RequestTimeQuotas
from quotas.topic_quotas import TopicQuotas

STEP_MS: Final = 50
LIMIT: Final = 1_000.0
_SETTINGS: Final = RateSettings()
_WINDOW_S: Final = _SETTINGS.window_num * _SETTINGS.window_ms / 1000
BURST: Final = 2 * _WINDOW_S * LIMIT
"""The use that one counter admits at once: two windows."""


class FleetMember:
    """The counters of a gateway.

    Attributes:
        exchange: its exchange with other members.
        produce: the quota that its clients use.
        produced_topics: the quotas of topics.
        produced_groups: the quotas of groups.
        mutations: the quota of controller mutations, the other kind of counter.
        admitted: times, and the total use admitted until then, for sums over spans.
    """

    def __init__(self, id_: str, boot: str, rules: FleetRules, *, limit: float = LIMIT, now_ms: int) -> None:
        self.limits = Limits()
        self.limits.set(QuotaEntity("alice"), QuotaKey.PRODUCER_BYTE_RATE, limit)
        self.limits.set(QuotaEntity("alice"), QuotaKey.CONTROLLER_MUTATION_RATE, 5)
        self.produce = ByteRateQuotas(self.limits, QuotaKey.PRODUCER_BYTE_RATE, _SETTINGS)
        self.produced_topics, fetched_topics = (
            TopicQuotas(self.limits, key, _SETTINGS)
            for key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
        )
        self.produced_groups, *of_others = (
            GroupQuotas(self.limits, key, _SETTINGS)
            for key in (
                QuotaKey.PRODUCER_BYTE_RATE,
                QuotaKey.CONSUMER_BYTE_RATE,
                QuotaKey.REQUEST_PERCENTAGE,
            )
        )
        self.mutations = MutationQuotas(self.limits, MutationSettings())
        counters = counters_of(
            self.produce,
            ByteRateQuotas(self.limits, QuotaKey.CONSUMER_BYTE_RATE, _SETTINGS),
            RequestTimeQuotas(self.limits, _SETTINGS),
            self.mutations,
            (self.produced_topics, fetched_topics),
            (self.produced_groups, of_others[0], of_others[1]),
        )
        self.exchange = Exchange(Member(id_, boot), counters, rules, now_ms=now_ms)
        self.began_ms = now_ms
        self.cut = self.was_cut = False
        self.served = False
        self._times: list[int] = [now_ms - 1]
        self._sums: list[float] = [0.0]

    def tracker(self, *, now_ms: int) -> RateTracker:
        """The counter of all clients together."""
        found = self.produce.tracker("alice", "c", now_ms=now_ms)
        assert found is not None
        return found

    def admit(self, waiter: object, size: float, *, now_ms: int) -> int | None:
        """Admits a request and returns its throttle time; None: the request has to wait."""
        tracker = self.tracker(now_ms=now_ms)
        if tracker.wait_ms(waiter, size, now_ms=now_ms):
            return None
        self._times.append(now_ms)
        self._sums.append(self._sums[-1] + size)
        return tracker.record(size, waiter, now_ms=now_ms)

    def admitted(self, after_ms: float, until_ms: float = math.inf) -> float:
        """The use admitted in a span of time; its begin is excluded."""
        times, sums = self._times, self._sums
        first = bisect_left(times, after_ms + 1) - 1
        last = len(times) - 1 if until_ms == math.inf else bisect_left(times, until_ms + 1) - 1
        return sums[max(last, 0)] - sums[max(first, 0)]


class Bus:
    """The topic. All members get all messages, each after a delay of its own, and with faults."""

    def __init__(
        self, rng: Random, *, delay_ms: tuple[int, int], lose: float = 0.0, repeat: float = 0.0, ordered: bool
    ) -> None:
        self._rng = rng
        self._delay_ms = delay_ms
        self._lose = lose
        self._repeat = repeat
        self._ordered = ordered
        self._at: list[tuple[int, int, FleetMember, bytes]] = []
        self._count = 0
        self._last_ms: dict[int, int] = {}
        self.bytes = 0

    def send(self, share: Share, members: Sequence[FleetMember], *, now_ms: int) -> None:
        """Sends a message of a member that is not isolated."""
        data = encode_share(share)
        self.bytes += len(data)
        for member in members:
            if member.exchange.member != share.member and self._rng.random() < self._lose:
                continue
            for _ in range(2 if self._rng.random() < self._repeat else 1):
                due_ms = now_ms + self._rng.randint(*self._delay_ms)
                if self._ordered:
                    due_ms = self._last_ms[id(member)] = max(due_ms, self._last_ms.get(id(member), 0))
                self._count += 1
                heapq.heappush(self._at, (due_ms, self._count, member, data))

    def deliver(self, *, now_ms: int) -> None:
        """Delivers due messages. An isolated member gets them later."""
        held = []
        while self._at and self._at[0][0] <= now_ms:
            item = heapq.heappop(self._at)
            if item[2].cut:
                held.append(item)
            else:
                item[2].exchange.receive(decode_share(item[3]), now_ms=now_ms)
        for item in held:
            heapq.heappush(self._at, item)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Further events of a schedule besides bursts, joins and deaths; `members`: of `FleetRules`."""

    seconds: int = 60
    lose: float = 0.0
    repeat: float = 0.0
    cuts: bool = False
    ordered: bool = False
    members: int = 1


@dataclass(slots=True)
class Outcome:
    """The result.

    Attributes:
        worst: the largest used part of the bound; above 1 the bound is broken.
        over: the most that passed beyond the most that one gateway admits, in units of its burst.
        passed: the total use that was admitted.
        told: the number of counters in messages.
        detail: where `worst` was found.
    """

    worst: float = 0.0
    over: float = -math.inf
    passed: float = 0.0
    told: int = 0
    detail: str = ""


@dataclass(slots=True)
class _Client:
    size: float
    obeys: bool
    free_ms: int = 0
    name: object = field(default_factory=object)


class _Run:
    def __init__(self, seed: int, kind: Schedule, planted: Callable[[FleetMember], None] | None) -> None:
        self.rng = Random(seed)
        self.kind = kind
        self.planted = planted
        self.rules = FleetRules(members=kind.members)
        slowest_ms = self.rng.choice([20, 60, 200, 500])
        self.bus = Bus(
            self.rng,
            delay_ms=(1, slowest_ms),
            lose=kind.lose,
            repeat=kind.repeat,
            ordered=kind.ordered,
        )
        # One step for the clients before the tick, and one for arriving messages.
        self.exchange_ms = self.rules.interval_ms + slowest_ms + 2 * STEP_MS
        if kind.lose or kind.cuts:
            self.exchange_ms += self.rules.timeout_ms + 3 * self.exchange_ms + self.rules.heartbeat_ms
        self.now_ms = 5_000_000
        self.began = 0
        self.members: list[FleetMember] = []
        self.clients: dict[int, list[_Client]] = {}
        self.all: list[FleetMember] = []
        self.more = 0.0  # the addition to the bound because of ended and new members, and of cuts
        self.joining: list[FleetMember] = []
        self.cuts: list[tuple[FleetMember, int]] = []
        self.isolated = 0.0  # the most that isolated members may add
        self.fill = 0.0  # level of one bucket for all admitted use
        self.fill_ms = self.now_ms

    def join(self) -> None:
        self.began += 1
        member = FleetMember(f"gw-{self.began}", str(self.began), self.rules, now_ms=self.now_ms)
        if self.planted is not None:
            self.planted(member)
        self.members.append(member)
        self.all.append(member)
        self.joining.append(member)
        self.clients[id(member)] = [
            _Client(
                self.rng.choice([50.0, 200.0, 1_000.0, 4_000.0]) * self.rng.random() + 1,
                self.rng.random() < 0.6,
            )
            for _ in range(self.rng.randint(1, 4))
        ]

    def die(self) -> None:
        member = self.rng.choice(self.members)
        if not any(each.exchange.caught_up for each in self.members if each is not member):
            return  # counters disappear with the last member that knows them, as when a gateway restarts
        self.members.remove(member)
        since_ms = self.now_ms - self.exchange_ms
        self.more += member.admitted(since_ms) + (_WINDOW_S - 1) * LIMIT / 4

    def cut(self) -> None:
        member = self.rng.choice(self.members)
        if not member.cut:
            member.cut = True
            self.cuts.append((member, self.now_ms + self.rng.randint(500, 15_000)))

    def mend(self) -> None:
        for member, until_ms in list(self.cuts):
            if self.now_ms >= until_ms:
                member.cut = False
                self.cuts.remove((member, until_ms))

    def step(self, demand: bool, outcome: Outcome) -> None:
        now_ms = self.now_ms
        self.bus.deliver(now_ms=now_ms)
        for member in self.members:
            member.limits.set_share(member.exchange.share(now_ms=now_ms))
            self._see_join(member)
        order = [
            (member, client)
            for member in self.members
            if member.served
            for client in self.clients[id(member)]
        ]
        self.rng.shuffle(order)
        for member, client in order if demand else ():
            for _ in range(40):  # as many requests as pass in this step
                if client.free_ms > now_ms:
                    break
                throttle_ms = member.admit(client.name, client.size, now_ms=now_ms)
                if throttle_ms is None:
                    break
                if client.obeys:
                    client.free_ms = now_ms + throttle_ms
                outcome.passed += client.size
                self._judge(member, client.size, outcome)
        for member in self.members:
            exchange = member.exchange
            tell = exchange.tell_urgent if now_ms % self.rules.interval_ms else exchange.tick
            shares = tell(now_ms=now_ms)
            if member.cut:
                continue  # lost, like a request that a client gives up
            for share_ in shares:
                outcome.told += share_.counters
                self.bus.send(share_, self.members, now_ms=now_ms)

    def _see_join(self, member: FleetMember) -> None:
        if member.served:
            return
        waited_ms = self.now_ms - member.began_ms
        if member.exchange.caught_up or waited_ms >= self.rules.timeout_ms:
            member.served = True
            since_ms = self.now_ms - 2 * self.exchange_ms
            self.more += sum(each.admitted(since_ms) for each in self.all)
            self.joining.remove(member)

    def _judge(self, member: FleetMember, size: float, outcome: Outcome) -> None:
        self.fill = max(0.0, self.fill - (self.now_ms - self.fill_ms) * LIMIT / 1000) + size
        self.fill_ms = self.now_ms
        since_ms = self.now_ms - self.exchange_ms
        unknown = sum(each.admitted(since_ms) for each in self.members if each is not member)
        bound = BURST + size + unknown + self.more + self.isolated
        used = self.fill / bound
        outcome.over = max(outcome.over, self.fill / BURST - 1)
        if used > outcome.worst:
            outcome.worst = used
            outcome.detail = (
                f"at {self.now_ms - 5_000_000} ms: {self.fill:.0f} of {bound:.0f}, "
                f"{unknown:.0f} within {self.exchange_ms} ms, {len(self.members)} members"
            )

    def play(self) -> Outcome:
        outcome = Outcome()
        rng = self.rng
        for _ in range(rng.randint(2, 5)):
            self.join()
        until_ms = self.now_ms + 3_500  # by then the first members have joined
        demand = False
        for _ in range(self.kind.seconds * 1000 // STEP_MS):
            self.now_ms += STEP_MS
            if self.now_ms >= until_ms:
                demand = not demand
                # Either silence that empties the buckets and then a burst, or only a moment of silence.
                until_ms = self.now_ms + int(
                    rng.choice([200, 2_000, 15_000, 25_000] if not demand else [100, 500, 5_000, 30_000])
                    * (0.5 + rng.random())
                )
            if rng.random() < STEP_MS / 10_000 and len(self.members) < 6:
                self.join()
            if rng.random() < STEP_MS / 15_000 and len(self.members) > 1:
                self.die()
            if self.kind.cuts and rng.random() < STEP_MS / 10_000:
                self.cut()
            self.mend()
            if self.cuts:
                self._count_isolation()
            self.step(demand, outcome)
        return outcome

    def _count_isolation(self) -> None:
        """The most that isolated members may admit (docs/explanation/one-quota-over-a-fleet.md)."""
        for member, _ in self.cuts:
            if not member.was_cut:
                member.was_cut = True
                self.isolated += BURST + self.rules.timeout_ms / 1000 * LIMIT
            if member in self.members:
                self.isolated += LIMIT * STEP_MS / 1000


def run_schedule(seed: int, kind: Schedule, planted: Callable[[FleetMember], None] | None = None) -> Outcome:
    """Runs one schedule.

    Args:
        seed: seed of all random decisions.
        kind: the possible faults.
        planted: adds an error to each member.
    """
    return _Run(seed, kind, planted).play()
