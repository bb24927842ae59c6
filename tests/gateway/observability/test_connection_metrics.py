from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gateway.net.back_pressure import BackPressure
from gateway.observability.connection_metrics import ConnectionMetrics
from gateway.observability.events import CloseCause, Side
from gateway.session.mute import MuteReason
from quotas.connections import AdmissionCause, ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from testkit.clock import FakeClock


class Channel:
    """A channel that nothing is muted on."""

    muted = 0
    bytes_from_client = 30
    bytes_from_upstream = 4

    @property
    def session(self) -> Channel:
        return self


@dataclass
class StillListener:
    """A listener with given numbers."""

    channels: list[Channel] = field(default_factory=list)
    back_pressure: BackPressure = field(default_factory=BackPressure)
    accepted: int = 0
    held: int = 0
    awaiting_header: int = 0
    received_bytes: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))


class Scrape:
    """The series of one scrape."""

    def __init__(self, metrics: ConnectionMetrics, listener: StillListener) -> None:
        metrics.watch_listener("EXT", listener)
        self._samples = [sample for family in metrics.collect() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        wanted = {"listener": "EXT", **labels}
        (value,) = [each.value for each in self._samples if each.name == name and each.labels == wanted]
        return float(value)

    def by_ip(self) -> dict[str, float]:
        name = "gateway_ip_connection_accept_rate"
        return {each.labels["ip"]: each.value for each in self._samples if each.name == name}

    def overall(self, name: str) -> list[float]:
        return [each.value for each in self._samples if each.name == name and not each.labels]

    def sum_of(self, name: str) -> float:
        return sum(each.value for each in self._samples if each.name == name)


def test_i16_active_is_what_was_opened_and_not_closed_for_every_cause(clock: FakeClock) -> None:
    metrics = ConnectionMetrics(lambda: clock.now_ms, MuteReason)
    for _ in range(2 * len(CloseCause)):
        metrics.connection_opened("EXT")
    for cause in CloseCause:
        metrics.connection_closed("EXT", cause)
    scrape = Scrape(metrics, StillListener(channels=[Channel()] * len(CloseCause)))
    assert scrape.value("gateway_connections_closed_total", cause="evicted") == 1
    opened = scrape.value("gateway_connections_opened_total")
    closed = scrape.sum_of("gateway_connections_closed_total")
    assert scrape.value("gateway_connections_active") == opened - closed


def test_received_bytes_are_those_of_open_and_of_ended_connections(clock: FakeClock) -> None:
    metrics = ConnectionMetrics(lambda: clock.now_ms, MuteReason)
    ended = {Side.CLIENT: 1_000, Side.UPSTREAM: 200}
    scrape = Scrape(metrics, StillListener(channels=[Channel()] * 3, received_bytes=ended))
    assert scrape.value("gateway_received_bytes_total", side="client") == 1_090
    assert scrape.value("gateway_received_bytes_total", side="upstream") == 212


def test_delays_and_holds_are_counted_with_their_time_by_limit(clock: FakeClock) -> None:
    metrics = ConnectionMetrics(lambda: clock.now_ms, MuteReason)
    metrics.accept_delayed("EXT", AdmissionCause.GATEWAY_RATE, 300)
    metrics.accept_delayed("EXT", AdmissionCause.GATEWAY_RATE, 700)
    metrics.accept_delayed("EXT", AdmissionCause.NO_SLOT, 0)
    metrics.accept_blocked("EXT", 1_500)
    metrics.connection_held("EXT", 250)
    metrics.connection_would_be_held("EXT", 250)
    metrics.connection_refused("EXT", AdmissionCause.HELD_FULL)
    metrics.accept_failed("EXT")
    scrape = Scrape(metrics, StillListener(accepted=9, held=4))
    by_cause = {"gateway_rate": 2, "no_slot": 1, "listener_rate": 0}
    assert {cause: scrape.value("gateway_accept_delays_total", cause=cause) for cause in by_cause} == by_cause
    assert scrape.value("gateway_accept_throttle_seconds_total", cause="gateway_rate") == 1.0
    assert scrape.value("gateway_connections_refused_total", cause="held_full") == 1
    expected = {
        "acceptor_blocked_seconds_total": 1.5, "connections_held_total": 1,
        "ip_accept_throttle_seconds_total": 0.25, "connections_would_be_held_total": 1,
        "accept_failures_total": 1, "held_connections": 4, "connections_accepted_total": 9,
    }  # fmt: skip
    assert {name: scrape.value(f"gateway_{name}") for name in expected} == expected


@pytest.mark.parametrize("limited", [True, False])
def test_rates_are_told_beside_their_limits_where_there_are_any(clock: FakeClock, limited: bool) -> None:
    metrics = ConnectionMetrics(lambda: clock.now_ms, MuteReason)
    quotas = ConnectionQuotas(
        Limits(),
        ConnectionLimits(
            {"EXT": ListenerLimits(30, 20) if limited else ListenerLimits()},
            max_connections=100 if limited else None,
            max_connection_creation_rate=50 if limited else None,
        ),
        now_ms=clock.now_ms,
    )
    metrics.watch_connections(quotas, max_ip_series=10)
    for _ in range(5):
        quotas.admit("EXT", "10.0.0.1", now_ms=clock.now_ms)
    scrape = Scrape(metrics, StillListener())
    assert scrape.value("gateway_connection_accept_rate") == 0.5
    assert scrape.overall("gateway_overall_connection_accept_rate") == [0.5]
    assert scrape.overall("gateway_overall_connections_limit") == [100] * limited
    assert scrape.overall("gateway_overall_connection_accept_rate_limit") == [50] * limited
    assert scrape.sum_of("gateway_connections_limit") == 30 * limited
    assert scrape.sum_of("gateway_connection_accept_rate_limit") == 20 * limited


def test_i02_only_the_fastest_addresses_have_a_series_and_the_others_are_added_up(clock: FakeClock) -> None:
    limits = Limits()
    limits.set(QuotaEntity(ip=DEFAULT), QuotaKey.CONNECTION_CREATION_RATE, 100)
    quotas = ConnectionQuotas(limits, ConnectionLimits({"EXT": ListenerLimits()}), now_ms=clock.now_ms)
    for last, count in ((1, 5), (2, 40), (3, 20), (4, 10)):
        for _ in range(count):
            quotas.admit("EXT", f"10.0.0.{last}", now_ms=clock.now_ms)
    metrics = ConnectionMetrics(lambda: clock.now_ms, MuteReason)
    metrics.watch_connections(quotas, max_ip_series=2)
    assert Scrape(metrics, StillListener()).by_ip() == {"10.0.0.2": 4.0, "10.0.0.3": 2.0, "other": 1.5}
    metrics.watch_connections(quotas, max_ip_series=4)
    assert "other" not in Scrape(metrics, StillListener()).by_ip()
