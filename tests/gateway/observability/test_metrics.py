"""What a scrape finds: names and labels from closed sets, counters that add up, text that Prometheus can parse."""

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.net.back_pressure import BackPressure
from gateway.observability.connection_metrics import ConnectionMetrics
from gateway.observability.events import AuthenticationResult, CloseCause, Side
from gateway.observability.quota_metrics import QuotaMetrics
from gateway.observability.request_metrics import RequestMetrics
from gateway.session.mute import MuteReason
from protocol.api_keys import ApiKey, all_offered
from protocol.headers import api_number
from protocol.sasl import Mechanism
from quotas.combine import ThrottledBy
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Enforcement
from quotas.resolution import Rule
from testkit.conversation import Conversation
from testkit.core import START_MS, GatewayCore
from testkit.frames import heartbeat, metadata, produce, produce_reply


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
        self.received_bytes = dict.fromkeys(Side, 0)


class Metrics:
    """The metrics of a gateway with one listener and these connections."""

    def __init__(self, core: GatewayCore, *sessions: Any) -> None:
        self.listener = Listener(*sessions)
        self.connections = ConnectionMetrics(lambda: core.clock.now_ms, MuteReason)
        self.connections.watch_listener("tests", self.listener)
        self.requests = RequestMetrics()
        for api in all_offered():  # requests of which there were none are shown as 0
            core.routes.get(api_number(api.key, api.version))
        self.requests.watch_routes("tests", core.routes)
        quotas = QuotaMetrics(
            core.limits,
            produce=core.client_quotas.produce,
            fetch=core.client_quotas.fetch,
            request_time=core.client_quotas.request_time,
            mutations=core.mutations,
            topics=(core.client_quotas.produce_topics, core.client_quotas.fetch_topics),
            now_ms=lambda: core.clock.now_ms,
        )
        self.registry = CollectorRegistry()
        for each in (self.connections, self.requests, quotas):
            self.registry.register(each)

    def scrape(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """(series, labels) -> value, through the text that Prometheus reads."""
        text = generate_latest(self.registry).decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """One series."""
        return self.scrape()[name, tuple(sorted(labels.items()))]


def test_requests_are_counted_by_api_with_every_cause_from_the_start() -> None:
    metrics = Metrics(GatewayCore())
    causes = {
        dict(labels)["cause"] for name, labels in metrics.scrape() if name == "gateway_connections_closed_total"
    }
    assert causes == {cause.value for cause in CloseCause}
    c = Conversation().client_sends(heartbeat(1), heartbeat(2), metadata(3))
    metrics = Metrics(c.core, c.session)
    assert metrics.value("gateway_requests_total", listener="tests", api="heartbeat") == 2
    assert metrics.value("gateway_requests_total", listener="tests", api="metadata") == 1
    assert metrics.value("gateway_requests_total", listener="tests", api="fetch") == 0


def test_e12_throttles_and_mutations_are_counted_by_api_and_rule() -> None:
    metrics = Metrics(GatewayCore())
    metrics.requests.throttled(ApiKey.PRODUCE, Rule.USER, 1_500, by=ThrottledBy.PRODUCE)
    metrics.requests.throttled(ApiKey.PRODUCE, Rule.USER, 500, by=ThrottledBy.PRODUCE)
    metrics.requests.throttled(ApiKey.PRODUCE, Rule.USER, 500, by=ThrottledBy.REQUEST)
    labels = {"api": "produce", "rule": Rule.USER.value}
    assert metrics.value("gateway_throttled_requests_total", **labels, quota="produce") == 2
    assert metrics.value("gateway_throttle_seconds_total", **labels, quota="produce") == 2.0
    assert metrics.value("gateway_throttled_requests_total", **labels, quota="request") == 1
    metrics = Metrics(GatewayCore())
    metrics.requests.mutations_decided(ApiKey.CREATE_TOPICS, Rule.USER, accepted_permits=30, refused_topics=2)
    metrics.requests.mutations_decided(ApiKey.CREATE_TOPICS, Rule.USER, accepted_permits=5, refused_topics=0)
    metrics.requests.topics_auto_created(3)
    labels = {"api": "create_topics", "rule": Rule.USER.value}
    assert metrics.value("gateway_controller_mutation_permits_total", **labels) == 35
    assert metrics.value("gateway_refused_topics_total", **labels) == 2
    assert metrics.value("gateway_auto_created_topics_total") == 3
    metrics = Metrics(GatewayCore())
    metrics.connections.broker_port_failed("tests")
    assert metrics.value("gateway_broker_port_failures_total", listener="tests") == 1


def test_exchanges_are_counted_by_listener_mechanism_and_result() -> None:
    metrics = Metrics(GatewayCore())
    for _ in range(2):
        metrics.requests.authenticated("tests", Mechanism.SCRAM_SHA_256, AuthenticationResult.FAILED)
    metrics.requests.authenticated("tests", Mechanism.OTHER, AuthenticationResult.SUCCESS)
    found = {labels: n for (name, labels), n in metrics.scrape().items() if name == "gateway_authentications_total"}
    listener = ("listener", "tests")
    assert found == {
        (listener, ("mechanism", "scram-sha-256"), ("result", "failed")): 2,
        (listener, ("mechanism", "other"), ("result", "success")): 1,
    }


def test_muted_channels_are_counted_by_reason() -> None:
    core = GatewayCore()
    sessions = [core.new_session() for _ in range(3)]
    sessions[0].throttle(1_000, now_ms=START_MS)
    sessions[1].throttle(1_000, now_ms=START_MS)
    sessions[1].mute(MuteReason.CLIENT_FULL)
    metrics = Metrics(core, *sessions)
    for reason, count in {"throttled": 2, "client_full": 1, "half_closed": 0}.items():
        assert metrics.value("gateway_channels_muted", listener="tests", reason=reason) == count


def test_back_pressure_under_way_counts_at_every_moment_and_adds_up_by_side() -> None:
    core = GatewayCore()
    metrics = Metrics(core)
    pressure = metrics.listener.back_pressure

    def seconds() -> tuple[float, float]:
        name = "gateway_back_pressure_seconds_total"
        client, upstream = (metrics.value(name, listener="tests", side=side) for side in Side)
        return client, upstream

    pressure.begin(Side.CLIENT, now_ms=core.clock.now_ms)
    core.clock.advance(100)
    assert seconds() == (0.1, 0)
    pressure.begin(Side.CLIENT, now_ms=core.clock.now_ms)
    pressure.begin(Side.UPSTREAM, now_ms=core.clock.now_ms)
    core.clock.advance(100)
    pressure.end(Side.CLIENT, now_ms=core.clock.now_ms)
    core.clock.advance(100)
    assert seconds() == (0.4, 0.2)
    pressure.end(Side.CLIENT, now_ms=core.clock.now_ms)
    core.clock.advance(9_000)
    assert seconds() == (0.4, 9.2)


def test_the_state_of_quotas_and_their_enforcement_is_shown() -> None:
    c = Conversation(controller_mutation_rate=2)
    c.core.spend(30)
    metrics = Metrics(c.core, c.session)
    found = metrics.scrape()
    assert metrics.value("gateway_controller_mutation_tokens", user="ANONYMOUS", client_id="", rule="user") == -10
    limit = {v for (name, _), v in found.items() if name == "gateway_controller_mutation_limit"}
    assert limit == {2}
    core = GatewayCore(request_percentage=1)
    core.client_quotas.request_time.record_exempt(1_500_000_000)
    metrics = Metrics(core)
    assert metrics.value("gateway_request_time_exempt_seconds_total") == 1.5
    metrics = Metrics(GatewayCore())
    modes = {mode.value: metrics.value("gateway_enforcement", mode=mode.value) for mode in Enforcement}
    assert sum(modes.values()) == 1


def test_a23_names_that_clients_choose_cannot_break_the_text() -> None:
    hostile = [
        "nul\0byte", "cr\r\nlf\nevent=forged level=error", "\x1b[31mred\x1b[0m", "quote\"apostrophe'",
        "back\\slash\\n", "{braces}{}{0}%s%d%n", "<default>", "slash/and/../dots",
        'a="b",c="d"} 1\n# TYPE x counter', "\u202eright to left \u2028 line separator", "\ufffd", " ",
    ]  # fmt: skip
    core = GatewayCore()
    core.limits.set(QuotaEntity(client_id=DEFAULT), QuotaKey.CONTROLLER_MUTATION_RATE, 2)
    for client_id in hostile:
        core.spend(1, client_id=client_id)
    metrics = Metrics(core)
    shown = {
        dict(labels)["client_id"] for name, labels in metrics.scrape() if name == "gateway_controller_mutation_tokens"
    }
    assert shown == set(hostile)


def test_i05_no_label_has_the_name_of_a_topic() -> None:
    core = GatewayCore()
    for key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
        core.limits.set(QuotaEntity(topic=DEFAULT), key, 1)
    c = Conversation(core=core).client_sends(produce(1, size=5_000)).upstream_answers(produce_reply(1))
    assert [key.topic for key, _ in core.client_quotas.produce_topics.own()] == ["t"]
    found = Metrics(core, c.session).scrape()
    assert found
    assert not [name for name, labels in found if "topic" in dict(labels) or "t" in dict(labels).values()]


def test_counters_of_topics_that_were_long_silent_are_forgotten_as_those_of_clients() -> None:
    core = GatewayCore()
    core.limits.set(QuotaEntity(topic=DEFAULT), QuotaKey.PRODUCER_BYTE_RATE, 1_000)
    topics, metrics = core.client_quotas.produce_topics, Metrics(core)
    for number in range(200):
        (counter,) = topics.trackers("u", "c", f"t{number}", kind="", now_ms=core.clock.now_ms)
        counter.record(10, now_ms=core.clock.now_ms)
    metrics.scrape()
    assert len(topics.own()) == 200
    core.clock.advance(2 * 3_600_000)
    metrics.scrape()
    assert len(topics.own()) == 0
