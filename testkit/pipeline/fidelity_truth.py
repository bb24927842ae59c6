"""Throttled clients request by request, without a machine in between: what a replay of their seconds is held against.

A real run cannot be made twice. Here the clients of `testkit.pipeline.fidelity` meet the gateway's own meter in
computed time, so that two runs can differ by nothing but a delay of up to two milliseconds per request. How far
those two are apart is what no replay can know better.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pipeline.replay.demand import demands
from pipeline.replay.dispatch import ReplaySettings, replay
from quotas.rate import SampledRate
from quotas.usage_record import UsageApi
from testkit.pipeline.compacted_rows import compacted_batch
from testkit.pipeline.fidelity import Client

_WINDOW_NUM: Final = 11
_WINDOW_MS: Final = 1_000
_ROUND_TRIP_MS: Final = 1.0
_BACKLOG_MS: Final = 5_000.0
_START_MS: Final = 1_000_000.0


@dataclass(slots=True)
class Truth:
    """What one client did and was told.

    Attributes:
        seconds: by second, what a usage record tells: requests, offered, max_units, muted_ms.
        requests, throttled: how many, and how many were told to wait.
        told_ms: sum of the times told.
    """

    seconds: dict[int, dict[str, float]] = field(default_factory=dict)
    requests: int = 0
    throttled: int = 0
    told_ms: int = 0

    @property
    def share(self) -> float:
        """Of its requests that were throttled."""
        return self.throttled / max(1, self.requests)

    def _at(self, second: int) -> dict[str, float]:
        return self.seconds.setdefault(
            second, dict.fromkeys(("requests", "offered", "max_units", "muted_ms"), 0)
        )

    def add(self, now_ms: int, size: int, wait_ms: int) -> None:
        """One request and its answer."""
        self.requests += 1
        self.throttled += wait_ms > 0
        self.told_ms += wait_ms
        told = self._at(now_ms // 1000)
        told["requests"] += 1
        told["offered"] += size
        told["max_units"] = max(told["max_units"], size)
        from_ms, until_ms = now_ms, now_ms + wait_ms
        while from_ms < until_ms:
            end_ms = min(until_ms, (from_ms // 1000 + 1) * 1000)
            self._at(from_ms // 1000)["muted_ms"] += end_ms - from_ms
            from_ms = end_ms


def truth_of(client: Client, *, seconds: float, seed: int, late_ms: float = 0.0) -> Truth:
    """A client's run in computed time.

    Args:
        client: of one connection, on and off for about ten seconds each.
        seconds: how long it wants something.
        seed: of its moments and sizes.
        late_ms: each request comes up to so much later, by dice of its own.
    """
    name = f"{seed} {client.client_id}"
    pauses, lateness = random.Random(f"{name} pauses"), random.Random(f"{name} late")
    busy = 0
    truth = Truth()
    pace_ms = 1000 * client.request_bytes / (client.quota * client.wanted) / 2
    now_ms = free_ms = _START_MS
    due_ms = now_ms + pauses.uniform(0, 5_000)
    off_at_ms = due_ms + pauses.expovariate(1 / 10_000)
    dice = random.Random(f"{name} {busy}")
    meter: SampledRate | None = None
    while True:
        if due_ms > off_at_ms:
            due_ms = off_at_ms + pauses.expovariate(1 / 10_000)
            off_at_ms = due_ms + pauses.expovariate(1 / 10_000)
            # Dice of their own for each busy time: a request more or less would else make another client of it.
            busy += 1
            dice = random.Random(f"{name} {busy}")
        if max(due_ms, now_ms) >= _START_MS + seconds * 1000:
            return truth
        size = max(100, round(client.request_bytes * dice.uniform(0.2, 1.8)))
        comes_ms = max(now_ms, due_ms, free_ms) + lateness.random() * late_ms
        at_ms = int(comes_ms)
        if meter is None:
            meter = SampledRate(_WINDOW_NUM, _WINDOW_MS, now_ms=at_ms)
        allowance = client.quota * (_WINDOW_NUM - 1) * _WINDOW_MS / 1000
        wait_ms = meter.record_and_check(size, client.quota, allowance, now_ms=at_ms)
        truth.add(at_ms, size, wait_ms)
        free_ms = comes_ms + wait_ms
        now_ms = comes_ms + _ROUND_TRIP_MS
        # What it could not send for being throttled it does not all want later.
        due_ms = max(due_ms + dice.expovariate(1 / pace_ms), now_ms - _BACKLOG_MS)


@dataclass(frozen=True, slots=True)
class Errors:
    """How far two accounts of the same clients are apart.

    Attributes:
        share: mean over clients of the difference of their throttled shares, 0 to 1.
        time: median over throttled clients of the relative difference of the times told.
    """

    share: float
    time: float


def replayed(clients: Sequence[Client], truths: Sequence[Truth]) -> list[tuple[float, float]]:
    """Throttled share and sum of the times told (ms) of each client, from nothing but its seconds."""
    rows: list[dict[str, Any]] = []
    for client, truth in zip(clients, truths, strict=True):
        seconds = sorted(truth.seconds)
        row: dict[str, Any] = {"client_id": client.client_id, "api": UsageApi.PRODUCE.value, "t": seconds}
        for name, kind in (("requests", int), ("offered", float), ("max_units", float), ("muted_ms", int)):
            row[name] = [kind(truth.seconds[second][name]) for second in seconds]
        rows.append(row)
    (demand,) = demands(compacted_batch(*rows))
    quotas = np.array([[float(client.quota)] for client in clients])
    outcome = replay(demand, quotas, ReplaySettings()).outcome
    return [
        (outcome.throttled[i, 0] / max(1, truth.requests), float(outcome.wait_ms[i, 0]))
        for i, truth in enumerate(truths)
    ]


def errors(truths: Sequence[Truth], others: Sequence[tuple[float, float]]) -> Errors:
    """See `Errors`; the times are relative to those of `truths`, of which one must have been throttled."""
    pairs = list(zip(truths, others, strict=True))
    return Errors(
        share=float(np.mean([abs(truth.share - share) for truth, (share, _) in pairs])),
        time=float(
            np.median(
                [abs(told - truth.told_ms) / truth.told_ms for truth, (_, told) in pairs if truth.told_ms]
            )
        ),
    )
