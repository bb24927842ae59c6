"""What a scrape finds: names and labels from closed sets, counters that add up, text that Prometheus can parse."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.net.back_pressure import BackPressure, Side
from gateway.observability.close_cause import CloseCause
from gateway.observability.metrics import GatewayMetrics
from gateway.session.mute import MuteReason
from protocol.api_keys import ApiKey, all_offered
from protocol.headers import api_number
from quotas.combine import ThrottledBy
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Enforcement
from quotas.resolution import Rule
from testkit.conversation import Conversation
from testkit.core import START_MS, GatewayCore
from testkit.frames import heartbeat, heartbeat_reply, metadata


class Channel:
    """A channel, as far as metrics are concerned."""

    def __init__(self, session: Any) -> None:
        self.session = session


class Listener:
    """A listener, as far as metrics are concerned."""

    def __init__(self, *sessions: Any) -> None:
        self.channels = [Channel(session) for session in sessions]
        self.accepted = len(sessions)
        self.held = 0
        self.awaiting_header = 0
        self.back_pressure = BackPressure()


def metrics_of(core: GatewayCore, *sessions: Any) -> tuple[GatewayMetrics, Listener]:
    """The metrics of a gateway with one listener and these connections."""
    metrics = GatewayMetrics(lambda: core.clock.now_ms)
    listener = Listener(*sessions)
    for api in all_offered():  # requests that nobody made are told as 0
        core.routes.get(api_number(api.key, api.version))
    metrics.watch_listener("tests", core.routes, listener)
    metrics.watch_quotas(core.limits, core.client_quotas, core.mutations)
    return metrics, listener


def scrape(metrics: GatewayMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(series, labels) -> value, through the text that Prometheus reads."""
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float:
    """One series."""
    return scrape(metrics)[name, tuple(sorted(labels.items()))]


def names(samples: Iterable[tuple[str, Any]]) -> set[str]:
    """Names of the series."""
    return {name for name, _ in samples}


def test_active_connections_are_those_opened_and_not_closed() -> None:
    core = GatewayCore()
    sessions = [core.new_session() for _ in range(3)]
    metrics, _ = metrics_of(core, *sessions)
    for _ in range(5):
        metrics.connection_opened("tests")
    metrics.connection_closed("tests", CloseCause.CLIENT_CLOSED)
    metrics.connection_closed("tests", CloseCause.IDLE_TIMEOUT)
    closed = sum(v for (name, _), v in scrape(metrics).items() if name == "gateway_connections_closed_total")
    opened = value(metrics, "gateway_connections_opened_total", listener="tests")
    assert value(metrics, "gateway_connections_active", listener="tests") == opened - closed == 3


def test_every_cause_has_its_series_from_the_start() -> None:
    metrics, _ = metrics_of(GatewayCore())
    causes = {
        dict(labels)["cause"]
        for name, labels in scrape(metrics)
        if name == "gateway_connections_closed_total"
    }
    assert causes == {cause.value for cause in CloseCause}


def test_requests_are_counted_by_api() -> None:
    c = Conversation().client_sends(heartbeat(1), heartbeat(2), metadata(3))
    metrics, _ = metrics_of(c.core, c.session)
    assert value(metrics, "gateway_requests_total", listener="tests", api="heartbeat") == 2
    assert value(metrics, "gateway_requests_total", listener="tests", api="metadata") == 1
    assert value(metrics, "gateway_requests_total", listener="tests", api="fetch") == 0


def test_throttles_are_counted_by_api_rule_and_quota() -> None:
    metrics, _ = metrics_of(GatewayCore())
    metrics.throttled(ApiKey.PRODUCE, Rule.USER, 1_500, by=ThrottledBy.PRODUCE)
    metrics.throttled(ApiKey.PRODUCE, Rule.USER, 500, by=ThrottledBy.PRODUCE)
    metrics.throttled(ApiKey.PRODUCE, Rule.USER, 500, by=ThrottledBy.REQUEST)
    labels = {"api": "produce", "rule": Rule.USER.value}
    assert value(metrics, "gateway_throttled_requests_total", **labels, quota="produce") == 2
    assert value(metrics, "gateway_throttle_seconds_total", **labels, quota="produce") == 2.0
    assert value(metrics, "gateway_throttled_requests_total", **labels, quota="request") == 1


def test_mutations_are_counted_by_api_and_rule() -> None:
    metrics, _ = metrics_of(GatewayCore())
    metrics.mutations_decided(ApiKey.CREATE_TOPICS, Rule.USER, accepted_permits=30, refused_topics=2)
    metrics.mutations_decided(ApiKey.CREATE_TOPICS, Rule.USER, accepted_permits=5, refused_topics=0)
    metrics.topics_auto_created(3)
    labels = {"api": "create_topics", "rule": Rule.USER.value}
    assert value(metrics, "gateway_controller_mutation_permits_total", **labels) == 35
    assert value(metrics, "gateway_refused_topics_total", **labels) == 2
    assert value(metrics, "gateway_auto_created_topics_total") == 3


def test_e12_a_port_that_cannot_be_bound_shows() -> None:
    metrics, _ = metrics_of(GatewayCore())
    metrics.broker_port_failed("tests")
    assert value(metrics, "gateway_broker_port_failures_total", listener="tests") == 1


def test_muted_channels_are_counted_by_reason() -> None:
    core = GatewayCore()
    sessions = [core.new_session() for _ in range(3)]
    sessions[0].throttle(1_000, now_ms=START_MS)
    sessions[1].throttle(1_000, now_ms=START_MS)
    sessions[1].mute(MuteReason.CLIENT_FULL)
    metrics, _ = metrics_of(core, *sessions)
    assert value(metrics, "gateway_channels_muted", listener="tests", reason="throttled") == 2
    assert value(metrics, "gateway_channels_muted", listener="tests", reason="client_full") == 1
    assert value(metrics, "gateway_channels_muted", listener="tests", reason="half_closed") == 0


def test_back_pressure_under_way_counts_at_every_moment() -> None:
    core = GatewayCore()
    metrics, listener = metrics_of(core)
    listener.back_pressure.begin(Side.CLIENT, now_ms=core.clock.now_ms)
    core.clock.advance(1_500)
    assert value(metrics, "gateway_back_pressure_seconds_total", listener="tests", side="client") == 1.5
    assert value(metrics, "gateway_back_pressure_seconds_total", listener="tests", side="upstream") == 0


def test_the_state_of_a_clients_mutation_quota_is_shown() -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(30)
    metrics, _ = metrics_of(c.core, c.session)
    found = scrape(metrics)
    assert (
        value(metrics, "gateway_controller_mutation_tokens", user="ANONYMOUS", client_id="", rule="user")
        == -10
    )
    limit = {v for (name, _), v in found.items() if name == "gateway_controller_mutation_limit"}
    assert limit == {2}


def test_exempt_request_time_is_told_in_seconds() -> None:
    core = GatewayCore(request_percentage=1)
    core.client_quotas.request_time.record_exempt(1_500_000_000)
    metrics, _ = metrics_of(core)
    assert value(metrics, "gateway_request_time_exempt_seconds_total") == 1.5


def test_the_mode_of_enforcement_is_one_of_a_closed_set() -> None:
    metrics, _ = metrics_of(GatewayCore())
    modes = {mode.value: value(metrics, "gateway_enforcement", mode=mode.value) for mode in Enforcement}
    assert sum(modes.values()) == 1


def test_a23_names_that_clients_choose_cannot_break_the_text() -> None:
    hostile = [
        "\x00",
        "a\r\nb",
        "\x1b[31m",
        'q"uote',
        "back\\slash",
        "{}",
        "%s",
        "<default>",
        "a/b",
        "\ufffd",
    ]
    core = GatewayCore()
    core.limits.set(QuotaEntity(client_id=DEFAULT), QuotaKey.CONTROLLER_MUTATION_RATE, 2)
    for client_id in hostile:
        core.spend(1, client_id=client_id)
    metrics, _ = metrics_of(core)
    shown = {
        dict(labels)["client_id"]
        for name, labels in scrape(metrics)
        if name == "gateway_controller_mutation_tokens"
    }
    assert len(shown) == len(hostile)


def test_names_follow_one_pattern() -> None:
    c = Conversation(
        controller_mutation_rate=1, producer_byte_rate=1, consumer_byte_rate=1, request_percentage=1
    )
    c.client_sends(heartbeat(1)).upstream_answers(heartbeat_reply(1))
    metrics, _ = metrics_of(c.core, c.session)
    found = names(scrape(metrics))
    assert len(found) > 20
    assert all(re.fullmatch(r"gateway_[a-z][a-z0-9_]*", name) for name in found)
    assert not {name for name in found if name.endswith("_ms")}
