"""Checks the rules for a storm, and lists the broken ones. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from campaigns.storms.client import Answer

OVER_S: Final = 2.0
"""Seconds after which a storm must be limited."""

MOST_P99: Final = 1.2
"""Largest p99 of honest clients, in multiples of that without a storm."""

LEAST_STORM: Final = 10
"""Without a limit the same storm must pass at least this many times the limit."""

_LATE_MS: Final = 20.0
"""An answer reaches the kernel up to this much after the gateway read its clock."""


@dataclass(frozen=True, slots=True)
class Storm:
    """One window with a storm, and the calm window before it.

    Attributes:
        kind: kind of the requests.
        limit_per_s: limit of the storm's client.
        connections: number of the storm's connections.
        seconds: duration.
        began_s: time of the begin.
        sent: number of sent requests.
        answers: answers to them.
        throttled: requests that the gateway counted as throttled.
        at_broker: requests that the broker has counted; None if it does not count this kind.
        calm_s, storm_s: answer times of honest clients, before and during the storm.
    """

    kind: str
    limit_per_s: float
    connections: int
    seconds: float
    began_s: float
    sent: int
    answers: tuple[Answer, ...]
    throttled: int
    at_broker: int | None
    calm_s: tuple[float, ...]
    storm_s: tuple[float, ...]

    @property
    def late(self) -> int:
        """The number of answers after `OVER_S`."""
        return sum(each.at_s > self.began_s + OVER_S for each in self.answers)

    @property
    def late_per_s(self) -> float:
        """The same per second."""
        return self.late / (self.seconds - OVER_S)

    @property
    def ratio(self) -> float:
        """The p99 of honest clients during the storm, divided by that before."""
        return p99(self.storm_s) / p99(self.calm_s)

    @property
    def with_wait(self) -> list[Answer]:
        """Answers with a throttle time."""
        return [each for each in self.answers if each.throttle_ms]


def p99(taken: Sequence[float]) -> float:
    """The 99th percentile: at least 99 % of the values are not larger."""
    return sorted(taken)[math.ceil(0.99 * len(taken)) - 1]


def too_early(storm: Storm) -> int:
    """Answers that came before the throttle time of the connection's previous answer was over (KIP-219)."""
    count = 0
    for number in range(storm.connections):
        own = [each for each in storm.answers if each.connection == number]
        count += sum(
            (later.at_s - answer.at_s) * 1000 < answer.throttle_ms - _LATE_MS
            for answer, later in pairwise(own)
        )
    return count


def faults(storm: Storm) -> list[str]:
    """The rules broken in this window, in words. Latencies are judged over all windows: see `median_ratio`."""
    found = []
    # Each connection may have had a request in flight at that moment.
    if storm.late > storm.limit_per_s * (storm.seconds - OVER_S) + storm.connections:
        found.append(f"{storm.late_per_s:.0f} requests/s passed after {OVER_S:g} s")
    if len(storm.answers) > storm.limit_per_s * (storm.seconds + OVER_S) + storm.connections:
        found.append(f"{len(storm.answers)} requests passed")
    if storm.sent < 2 * len(storm.answers):
        found.append(f"only {storm.sent} requests were sent")
    if not storm.with_wait:
        found.append("no answer had a wait")
    if len(storm.with_wait) > storm.throttled:
        found.append(f"{len(storm.with_wait)} answers had a wait, and {storm.throttled} were counted")
    if early := too_early(storm):
        found.append(f"{early} answers came on connections that had to wait")
    if storm.at_broker is not None:
        under_way = storm.at_broker - len(storm.answers)
        if not 0 <= under_way <= storm.connections:
            found.append(f"the broker has {storm.at_broker} of {len(storm.answers)} requests")
    return found


def median_ratio(storms: Sequence[Storm]) -> float:
    """Median ratio of the p99 of honest clients during a storm to that just before it."""
    return statistics.median(each.ratio for each in storms)
