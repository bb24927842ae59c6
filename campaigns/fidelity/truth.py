"""Throttled clients in simulated time, request by request, compared with a replay of their usage seconds.

A real run cannot be repeated exactly. Here the clients of `campaigns.fidelity.comparison` use the gateway's own
counter and usage row in simulated time. So two runs can differ only by a delay of up to two milliseconds per request.
No replay can be more exact than the difference between these two runs.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from campaigns.fidelity.comparison import Client
from gateway.usage.row import Level, RowKey, RowValues, UsageRow
from pipeline.replay.demand import demands
from pipeline.replay.dispatch import ReplaySettings, replay
from quotas.entities import QuotaEntity, QuotaKey
from quotas.lending import Claim
from quotas.lent_rates import LENT_BURST_S
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings, RateTracker
from quotas.usage_record import Row, UsageApi
from testkit.pipeline.compacted_rows import compacted_batch

_ROUND_TRIP_MS: Final = 1.0
_BACKLOG_MS: Final = 5_000.0
_START_MS: Final = 1_000_000
_COLUMNS: Final = {
    "requests": Row.REQUESTS,
    "offered": Row.OFFERED,
    "max_units": Row.MAX_UNITS,
    "muted_ms": Row.MUTED_MS,
    "quota": Row.QUOTA,
    "connections": Row.CONNECTIONS,
    "first_ms": Row.FIRST_MS,
    "in_force": Row.IN_FORCE,
}


@dataclass(slots=True)
class Truth:
    """One client's requests, and the waits in its replies.

    Attributes:
        seconds: the usage row of each second that has one.
        requests, throttled: number of requests, and of those that were delayed or got a throttle time.
        told_ms: sum of the waits.
    """

    seconds: dict[int, RowValues] = field(default_factory=dict)
    requests: int = 0
    throttled: int = 0
    told_ms: int = 0

    @property
    def share(self) -> float:
        """The throttled share of its requests."""
        return self.throttled / max(1, self.requests)


class _Connection:
    """One connection of a client, busy and silent for about ten seconds each; for `late_ms` see `truth_of`."""

    def __init__(self, client: Client, name: str, number: int, late_ms: float) -> None:
        self.number = number
        self.size = 0
        self.comes_ms = 0.0
        self.held = False
        self._client = client
        self._name = name
        self._late_ms = late_ms
        self._pauses, self._lateness = random.Random(f"{name} pauses"), random.Random(f"{name} late")
        self._busy = 0
        self._dice = random.Random(f"{name} {self._busy}")
        self._now_ms = self._free_ms = float(_START_MS)
        self._due_ms = self._now_ms + self._pauses.uniform(0, 5_000)
        self._off_at_ms = self._due_ms + self._pauses.expovariate(1 / 10_000)

    def plan(self, until_ms: float) -> bool:
        """Plan the next request; False if there is none."""
        if self._due_ms > self._off_at_ms:
            self._due_ms = self._off_at_ms + self._pauses.expovariate(1 / 10_000)
            self._off_at_ms = self._due_ms + self._pauses.expovariate(1 / 10_000)
            # Each busy time has its own generator. Otherwise one more or fewer request would change all later ones.
            self._busy += 1
            self._dice = random.Random(f"{self._name} {self._busy}")
        if max(self._due_ms, self._now_ms) >= until_ms:
            return False
        self.size = max(100, round(self._client.request_bytes * self._dice.uniform(0.2, 1.8)))
        self.comes_ms = (
            max(self._now_ms, self._due_ms, self._free_ms) + self._lateness.random() * self._late_ms
        )
        return True

    def answered(self, wait_ms: int) -> None:
        """Note that the reply had a wait of `wait_ms`."""
        self._free_ms = self.comes_ms + wait_ms
        self._now_ms = self.comes_ms + _ROUND_TRIP_MS
        # A throttled client drops a part of the requests that it could not send.
        due_ms = self._due_ms + self._dice.expovariate(1 / (1000 * self._client.pace_s))
        self._due_ms = max(due_ms, self._now_ms - _BACKLOG_MS)
        self.held = False


def truth_of(
    client: Client,
    *,
    seconds: float,
    seed: int,
    late_ms: float = 0.0,
    share_at: Callable[[int], float] | None = None,
) -> Truth:
    """A client's run in simulated time.

    Args:
        client: a producer.
        seconds: how long the client sends requests.
        seed: seed of its request times and sizes.
        late_ms: each request comes up to this much later, with its own random generator.
        share_at: the part of its quota that the client gets of a divided capacity, by second since the start; None if
            no capacity is divided.
    """
    limits = Limits()
    limits.set(QuotaEntity(client_id=client.client_id), QuotaKey.PRODUCER_BYTE_RATE, client.quota)
    quotas = ByteRateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings())
    listed: list[UsageRow] = []
    row = UsageRow(RowKey("", "", client.client_id, UsageApi.PRODUCE, -1), ("", "", ""), listed)
    truth, second = Truth(), _START_MS // 1000
    name, until_ms = f"{seed} {client.client_id}", _START_MS + seconds * 1000
    connections = [
        _Connection(client, f"{name} {number}" if number else name, number, late_ms)
        for number in range(client.connections)
    ]
    coming = [(each.comes_ms, each.number) for each in connections if each.plan(until_ms)]
    heapq.heapify(coming)
    while coming or listed:
        now_ms = int(coming[0][0]) if coming else (second + 1) * 1000
        while now_ms >= (second + 1) * 1000:
            if listed:
                listed.clear()
                level = Level(client.quota, None, in_force=_in_force(quotas, client))
                end_ms = (second + 1) * 1000
                truth.seconds[second] = row.take(level, begin_ms=second * 1000, now_ms=end_ms)
            second += 1
        if share_at is not None:
            _lend(quotas, client, share_at(second - _START_MS // 1000), now_ms)
        if coming:
            one = connections[heapq.heappop(coming)[1]]
            tracker = quotas.tracker("", client.client_id, now_ms=now_ms)
            assert tracker is not None
            again_ms = _receive(one, tracker, row, truth, now_ms)
            if again_ms or one.plan(until_ms):
                heapq.heappush(coming, (again_ms or one.comes_ms, one.number))
    return truth


def _lend(quotas: ByteRateQuotas, client: Client, share: float, now_ms: int) -> None:
    """Limit the client to a share of its quota, as the division of a capacity does."""
    tracker = quotas.tracker("", client.client_id, now_ms=now_ms)
    assert tracker is not None
    limit = share * client.quota
    if tracker.match.lent is None or tracker.match.limit != limit:
        claim = Claim(ceiling=float(client.quota), demand=0.0)
        match = replace(tracker.match, limit=limit, burst_s=LENT_BURST_S, lent=claim)
        tracker.bind(match, tracker.version, now_ms=now_ms)


def _in_force(quotas: ByteRateQuotas, client: Client) -> float:
    """The limit in force, as `gateway.usage.table` writes it."""
    tracker = quotas.tracker("", client.client_id, now_ms=0)
    assert tracker is not None
    match = tracker.match
    return match.limit if match.limit is not None and match.is_below_ceiling else 0.0


def _receive(one: _Connection, tracker: RateTracker, row: UsageRow, truth: Truth, now_ms: int) -> float:
    """Count a request as the gateway does for Produce; if it has to wait, the time of its next attempt, else 0."""
    held_ms = tracker.wait_ms(one, one.size, now_ms=now_ms)
    wait_ms = held_ms
    if not held_ms:
        row.use(one.number + 1, now_ms=now_ms)
        row.count(one.size)
        wait_ms = tracker.record(one.size, one, now_ms=now_ms)
        truth.requests += 1
    if wait_ms:
        row.mute(now_ms + wait_ms, now_ms=now_ms)
        truth.told_ms += wait_ms
        truth.throttled += not one.held
    one.held = held_ms > 0
    if held_ms:
        one.comes_ms = now_ms + held_ms
        return one.comes_ms
    one.answered(wait_ms)
    return 0


@dataclass(frozen=True, slots=True)
class Errors:
    """Differences between two results for the same clients.

    Attributes:
        share: mean over clients of the difference of their throttled shares, 0 to 1.
        time: median over throttled clients of the relative difference of the times reported.
    """

    share: float
    time: float


def replayed(
    clients: Sequence[Client], truths: Sequence[Truth], settings: ReplaySettings | None = None
) -> list[tuple[float, float]]:
    """Throttled share and sum of the reported times (ms) of each client, computed from its usage seconds alone.

    Args:
        clients: clients whose quotas are replayed.
        truths: their runs.
        settings: settings of the replay; None for byte rates without a burst.
    """
    rows: list[dict[str, Any]] = []
    for client, truth in zip(clients, truths, strict=True):
        row: dict[str, Any] = {"client_id": client.client_id, "api": UsageApi.PRODUCE.value}
        row["t"] = list(truth.seconds)
        row |= {name: [each[at] for each in truth.seconds.values()] for name, at in _COLUMNS.items()}
        rows.append(row)
    (demand,) = demands(compacted_batch(*rows))
    quotas = np.array([[float(client.quota)] for client in clients])
    outcome = replay(demand, quotas, settings or ReplaySettings()).outcome
    return [
        (outcome.throttled[i, 0] / max(1, truth.requests), float(outcome.wait_ms[i, 0]))
        for i, truth in enumerate(truths)
    ]


def errors(truths: Sequence[Truth], others: Sequence[tuple[float, float]]) -> Errors:
    """See `Errors`; times are relative to those of `truths`. At least one client must have been throttled."""
    pairs = list(zip(truths, others, strict=True))
    return Errors(
        share=float(np.mean([abs(truth.share - share) for truth, (share, _) in pairs])),
        time=float(
            np.median(
                [abs(told - truth.told_ms) / truth.told_ms for truth, (_, told) in pairs if truth.told_ms]
            )
        ),
    )
