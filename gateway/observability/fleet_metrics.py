"""Metrics of the exchange of usage between gateways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quotas.entities import QuotaKey

_MOST_MEMBERS: Final = 100
_OTHER: Final = "other"


class _Peers(Protocol):
    def lost_total(self) -> int: ...
    def repeated_total(self) -> int: ...


class _Member(Protocol):
    @property
    def id(self) -> str: ...


class _Exchange(Protocol):
    @property
    def member(self) -> _Member: ...
    @property
    def connected(self) -> bool: ...
    @property
    def lag_ms(self) -> int: ...
    @property
    def told(self) -> int: ...
    @property
    def heard(self) -> int: ...
    @property
    def used_by(self) -> Mapping[str, Mapping[QuotaKey, float]]: ...
    @property
    def peers(self) -> _Peers: ...


class _Topic(Protocol):
    @property
    def refused(self) -> int: ...
    @property
    def undelivered(self) -> int: ...


class _Fleet(Protocol):
    @property
    def exchange(self) -> _Exchange: ...
    @property
    def topic(self) -> _Topic: ...
    @property
    def members(self) -> int: ...
    @property
    def isolations(self) -> int: ...
    @property
    def interval_s(self) -> float: ...
    def ages(self) -> Iterable[tuple[str, float]]: ...


def members_json(fleet: _Fleet) -> list[dict[str, Any]]:
    """Each member as in the metrics, this one first. Values that only a member itself knows are null for others."""
    exchange = fleet.exchange
    used_by, me = exchange.used_by, exchange.member.id

    def used(member: str) -> dict[str, float]:
        return {quota.value: value for quota, value in used_by.get(member, {}).items()}

    this = {
        "member": me,
        "this": True,
        "isolated": not exchange.connected,
        "age_s": None,
        "lag_s": exchange.lag_ms / 1000,
        "used": used(me),
    }
    others = (
        {
            "member": member,
            "this": False,
            "isolated": None,
            "age_s": age_s,
            "lag_s": None,
            "used": used(member),
        }
        for member, age_s in islice(fleet.ages(), _MOST_MEMBERS)
    )
    return [this, *others]


class FleetMetrics(Collector):
    """Shows the fleet as one member knows it."""

    def __init__(self, fleet: _Fleet, name: Callable[[], str]) -> None:
        """Shows this member's view.

        Args:
            fleet: the member's view of the fleet.
            name: returns the fleet's name in usage records; empty: not known yet.
        """
        self._fleet = fleet
        self._name = name

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        fleet, exchange = self._fleet, self._fleet.exchange
        info = GaugeMetricFamily(
            "gateway_fleet_info",
            "1, with the name of the fleet: gateways with the same name share their counters.",
            labels=["fleet"],
        )
        if fleet_name := self._name():
            info.add_metric([fleet_name], 1)
        yield info
        yield GaugeMetricFamily(
            "gateway_fleet_members", "Gateways that share usage, this one included.", value=fleet.members
        )
        yield GaugeMetricFamily(
            "gateway_fleet_connected",
            "1 while this gateway's messages to the others come back to it; 0: it is isolated.",
            value=float(exchange.connected),
        )
        yield CounterMetricFamily(
            "gateway_fleet_isolations",
            "Times this gateway lost touch with the others.",
            value=fleet.isolations,
        )
        yield GaugeMetricFamily(
            "gateway_fleet_lag_seconds",
            "Time that the last message of this gateway took to come back.",
            value=exchange.lag_ms / 1000,
        )
        yield GaugeMetricFamily(
            "gateway_fleet_interval_seconds",
            "Time between two messages about a counter near its limit; it grows with the load.",
            value=fleet.interval_s,
        )
        ages = GaugeMetricFamily(
            "gateway_fleet_last_message_age_seconds",
            "Time since the last message of another member.",
            labels=["member"],
        )
        for at, (member, age_s) in enumerate(fleet.ages()):
            if at < _MOST_MEMBERS:
                ages.add_metric([member], age_s)
        yield ages
        used = CounterMetricFamily(
            "gateway_fleet_used",
            "What each member reported that its clients used, in units of the quota.",
            labels=["member", "quota"],
        )
        totals: dict[tuple[str, str], float] = {}
        for at, (member, by_quota) in enumerate(list(exchange.used_by.items())):
            for quota, value in by_quota.items():
                name = (member if at < _MOST_MEMBERS else _OTHER, quota.value)
                totals[name] = totals.get(name, 0.0) + value
        for labels, value in totals.items():
            used.add_metric(labels, value)
        yield used
        yield CounterMetricFamily(
            "gateway_fleet_counters_told", "Counters in messages that were sent.", value=exchange.told
        )
        yield CounterMetricFamily(
            "gateway_fleet_counters_heard", "Counters in messages that were received.", value=exchange.heard
        )
        yield CounterMetricFamily(
            "gateway_fleet_messages_lost",
            "Messages of other members that never came; the gateway then asked for the state of their counters.",
            value=exchange.peers.lost_total(),
        )
        yield CounterMetricFamily(
            "gateway_fleet_messages_repeated",
            "Messages that arrived more than once and were counted once.",
            value=exchange.peers.repeated_total(),
        )
        yield CounterMetricFamily(
            "gateway_fleet_messages_undelivered",
            "Messages of this gateway that the brokers did not take.",
            value=fleet.topic.undelivered,
        )
        yield CounterMetricFamily(
            "gateway_fleet_records_refused",
            "Records of the topic that are no messages or have no valid signature.",
            value=fleet.topic.refused,
        )
