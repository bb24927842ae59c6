"""Current and recent cuts of tiers, in plain words for the page, `sluice top` and `sluice why`. Pure.

People set brakes (`sluice shed`). The other cuts are those of `quotas.overload`, also if it only observes. Times are
wall times; those of brakes and of the overload are on the clock of the quotas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from quotas.entities import counted
from quotas.lending import Brake, Cut, CutBy
from quotas.overload import LEAST_CLIENTS, Overload
from quotas.rate_quotas import RateQuotas

MOST_EPISODES: Final = 50


def cut_json(cut: Cut) -> dict[str, Any]:
    """Why a client's limit is less than its share of a capacity; its times are wall times."""
    return {
        "by": cut.by.value,
        "tier": cut.tier,
        "percent": 100 * cut.part,
        "from_ms": cut.from_ms,
        "until_ms": cut.until_ms,
        "author": cut.author,
        "text": _sentence(cut),
    }


def _sentence(cut: Cut) -> str:
    percent = f"{100 * cut.part:.3g} %"
    if cut.by is CutBy.BRAKE:
        until = "" if cut.until_ms is None else f" until {_time(cut.until_ms)} UTC"
        return (
            f"brake of tier {cut.tier}{until}, set by {cut.author}: "
            f"its clients together keep {percent} of what they used before"
        )
    since = "" if cut.from_ms is None else f" since {_time(cut.from_ms)} UTC"
    kept = "as much as they used" if cut.part >= 1 else f"{percent} of their share of the capacity"
    return f"brokers are slow{since}: clients of tier {cut.tier} together keep {kept}"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@dataclass(slots=True)
class Episode:
    """A time in which a tier lost for slow brokers, or would have lost.

    Attributes:
        quota: the quota's word in metrics.
        tier: the tier.
        enforced: clients really lost.
        from_ms, until_ms: wall times; None: the episode has not ended.
        percent: the part of its share that is left to the tier now.
        least_percent: the least part that was left.
    """

    quota: str
    tier: int
    enforced: bool
    from_ms: int
    until_ms: int | None
    percent: float
    least_percent: float

    @property
    def json(self) -> dict[str, Any]:
        """The episode as JSON, for the status."""
        return {name: getattr(self, name) for name in self.__slots__} | {"text": self.text}

    @property
    def text(self) -> str:
        """The episode in words."""
        until = "" if self.until_ms is None else f" until {_time(self.until_ms)}"
        kept = f"{self.percent:.3g} %" if self.until_ms is None else f"at least {self.least_percent:.3g} %"
        verb = "keeps" if self.enforced else "would keep"
        if self.until_ms is not None:
            verb = "kept" if self.enforced else "would have kept"
        return f"tier {self.tier} {verb} {kept} of its {self.quota} share since {_time(self.from_ms)}{until}"


class Episodes:
    """The current episodes, and the last ones that have ended."""

    def __init__(self) -> None:
        """Starts without episodes."""
        self._now: dict[tuple[str, int], Episode] = {}
        self._over: deque[Episode] = deque(maxlen=MOST_EPISODES)

    def follow(
        self, overload: Overload | None, quotas: Mapping[str, RateQuotas], *, wall_ms: int
    ) -> list[Episode]:
        """Follow the last division of each quota; returns the episodes that begin or end with it.

        Args:
            overload: None: brokers are not measured.
            quotas: by the word with which their metrics begin.
            wall_ms: the present.
        """
        found = {} if overload is None else dict(_left(quotas))
        enforced = overload is not None and overload.enforce
        changed = []
        for key, episode in list(self._now.items()):
            if key not in found or episode.enforced is not enforced:
                episode.until_ms = wall_ms
                self._over.append(self._now.pop(key))
                changed.append(episode)
        for (quota, tier), percent in found.items():
            now = self._now.get((quota, tier))
            if now is None:
                now = Episode(quota, tier, enforced, wall_ms, None, percent, percent)
                self._now[quota, tier] = now
                changed.append(now)
            now.percent, now.least_percent = percent, min(now.least_percent, percent)
        return changed

    def latest(self) -> list[Episode]:
        """First the current episodes, then those that have ended, the last one first."""
        return [*self._now.values(), *reversed(self._over)][:MOST_EPISODES]


def _left(quotas: Mapping[str, RateQuotas]) -> Iterator[tuple[tuple[str, int], float]]:
    """For each quota and tier that loses, the percentage of its share that slow brokers leave."""
    for name, each in quotas.items():
        last = None if each.lender is None else each.lender.last
        for tier, most in () if last is None else last.shed.items():
            share = most + last.tiers[tier].shed if last is not None else 0.0
            if share > most:
                yield (name, tier), 100 * most / share


def brakes_json(brakes: Mapping[int, Brake], *, now_ms: int, wall_ms: int) -> list[dict[str, Any]]:
    """The brakes in force.

    Args:
        brakes: by tier.
        now_ms: the present, on their clock.
        wall_ms: the present.
    """
    return [
        cut_json(Cut(CutBy.BRAKE, tier, brake.part, None, brake.until_ms - now_ms + wall_ms, brake.by))
        for tier, brake in sorted(brakes.items())
        if brake.until_ms > now_ms
    ]


def overload_json(
    overload: Overload | None, episodes: Episodes, *, now_ms: int, wall_ms: int
) -> dict[str, Any] | None:
    """The part that brokers can take, and the losses of tiers; None: brokers are not measured.

    Args:
        overload: None: brokers are not measured.
        episodes: the episodes of the overload.
        now_ms: the present, on the clock of the overload.
        wall_ms: the present.
    """
    if overload is None:
        return None
    since_ms = overload.since_ms
    health = overload.health
    return {
        "enforced": overload.enforce,
        "usable": overload.usable,
        "slow": overload.slow,
        "since_ms": None if since_ms is None else since_ms - now_ms + wall_ms,
        "broker_time_ms": health.time_ms,
        "target_ms": overload.target_ms,
        "errors": health.errors,
        "target_errors": overload.target_errors,
        "growing": health.growing,
        "clients": health.clients,
        "text": _overload_text(overload, now_ms=now_ms, wall_ms=wall_ms),
        "episodes": [each.json for each in episodes.latest()],
    }


def _overload_text(overload: Overload, *, now_ms: int, wall_ms: int) -> str:
    """A sentence about the overload; "" while the whole capacity can be used and producers are measured."""
    health = overload.health
    if overload.since_ms is None:
        if not 0 < health.clients < LEAST_CLIENTS:
            return ""
        return (
            f"slow brokers are not noticed: requests of {counted(health.clients, 'client')} were measured in the "
            f"last second, and {LEAST_CLIENTS} are needed"
        )
    facts = []
    if health.time_ms is not None:
        facts.append(f"Produce takes {health.time_ms:.3g} ms, target {overload.target_ms} ms")
    if health.errors is not None:
        facts.append(
            f"{100 * health.errors:.3g} % of answers fail, target {100 * overload.target_errors:.3g} %"
        )
    state = "brokers are slow" if overload.slow else "brokers recover"
    may = "clients may" if overload.enforce else "only observed: clients would"
    return (
        f"{state} ({'; '.join(facts) or 'too few clients to measure'}) since "
        f"{_time(overload.since_ms - now_ms + wall_ms)} UTC; {may} use {100 * overload.usable:.3g} % of the capacity"
    )
