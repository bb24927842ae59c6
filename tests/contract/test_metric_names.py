"""Names and labels of metrics are a contract with dashboards: promtool has no objection, and the bound holds."""

import asyncio
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.net.back_pressure import BackPressure
from gateway.observability.connection_metrics import ConnectionMetrics
from gateway.observability.events import ReloadResult, Side
from gateway.observability.operation_metrics import ReloadMetrics
from gateway.observability.quota_metrics import MAX_ENTITY_SERIES, QuotaMetrics
from gateway.observability.request_metrics import RequestMetrics
from gateway.server.admin import render
from gateway.session.client_quotas import ClientQuotas
from gateway.session.mute import MuteReason
from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.entities import DEFAULT, QuotaEntity
from quotas.limits import CLIENT_KEYS, Limits
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.rate_quotas import RateQuotas, RateSettings
from quotas.resolution import Rule
from testkit.conversation import Conversation
from testkit.frames import heartbeat
from testkit.packages import require_package

NOW_MS = 7_300_000


class Listener:
    """A listener, as far as metrics are concerned."""

    channels: tuple[Any, ...] = ()
    accepted = held = awaiting_header = 0
    back_pressure = BackPressure()
    received_bytes = dict.fromkeys(Side, 0)


class Crowd(Listener):
    """A listener with ten thousand connections that have sent something."""

    channels = (SimpleNamespace(session=Conversation().client_sends(heartbeat(1)).session),) * 10_000


def exposition(clients: int) -> str:
    """What is scraped when so many clients have used and exceeded every quota."""
    return generate_latest(registry_of(clients)).decode()


def registry_of(clients: int) -> CollectorRegistry:
    """The metrics after that."""
    limits = Limits()
    for key in CLIENT_KEYS:
        limits.set(QuotaEntity(client_id=DEFAULT), key, 1)
    requests, reloads = RequestMetrics(), ReloadMetrics()
    client_quotas = ClientQuotas(limits, RateSettings(), requests)
    mutations = MutationQuotas(limits, MutationSettings())
    connections = ConnectionMetrics(lambda: NOW_MS, MuteReason)
    connections.watch_listener("a", Listener())
    produce, fetch, request_time = client_quotas.produce, client_quotas.fetch, client_quotas.request_time
    quota_metrics = QuotaMetrics(
        limits, produce=produce, fetch=fetch, request_time=request_time, mutations=mutations, now_ms=lambda: NOW_MS
    )
    rates: list[RateQuotas] = [produce, fetch, request_time]
    for at in range(clients):
        for quotas in rates:
            tracker = quotas.tracker("u", f"c{at}", now_ms=NOW_MS)
            assert tracker is not None
            tracker.throttles.record(tracker.record(1000, now_ms=NOW_MS), now_ms=NOW_MS)
        mutations.charge("u", f"c{at}", 1000, strict=False, now_ms=NOW_MS)
        mutations.count_throttle("u", f"c{at}", 1000, now_ms=NOW_MS)
    requests.throttled(ApiKey.PRODUCE, Rule.CLIENT, 5, by=ThrottledBy.PRODUCE)
    reloads.config_reloaded(ReloadResult.APPLIED, awaiting_restart=0)
    registry = CollectorRegistry()
    for metrics in (connections, requests, quota_metrics, reloads):
        registry.register(metrics)
    return registry


@pytest.fixture(scope="module")
def crowd() -> str:
    """The exposition with more clients than have series of their own."""
    return exposition(2 * MAX_ENTITY_SERIES)


def test_promtool_finds_nothing(crowd: str) -> None:
    promtool = require_package("prometheus", "promtool")
    done = subprocess.run([promtool, "check", "metrics"], input=crowd, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_i01_series_are_bounded_for_any_number_of_client_ids(crowd: str) -> None:
    samples = [sample for family in text_string_to_metric_families(crowd) for sample in family.samples]
    assert len(samples) <= 10_000
    assert all(len(value) <= 128 for sample in samples for value in sample.labels.values())


def test_i07_a_scrape_of_all_there_can_be_costs_at_most_a_quarter_of_a_second_of_cpu() -> None:
    registry = registry_of(2 * MAX_ENTITY_SERIES)
    connections = ConnectionMetrics(lambda: NOW_MS, MuteReason)
    connections.watch_listener("b", Crowd())
    registry.register(connections)
    began_s = time.thread_time()
    text = asyncio.run(render(registry))
    cost_s = time.thread_time() - began_s
    assert text.count(b"\n") > 5_000
    assert cost_s < 0.25


def test_only_series_per_client_have_labels_that_clients_choose(crowd: str) -> None:
    for family in text_string_to_metric_families(crowd):
        for sample in family.samples:
            if {"user", "client_id"} & sample.labels.keys():
                assert {"user", "client_id", "rule"} == sample.labels.keys()
                assert family.name.startswith(
                    ("gateway_produce_", "gateway_fetch_", "gateway_request_", "gateway_controller_mutation_")
                )


def test_every_quota_has_the_same_series_per_client() -> None:
    names = {family.name for family in text_string_to_metric_families(exposition(1)) if family.samples}
    for prefix, rate in (
        ("produce", "produce_byte_rate"),
        ("fetch", "fetch_byte_rate"),
        ("request", "request_time_percent"),
    ):
        assert names >= {f"gateway_{rate}{end}" for end in ("", "_limit")}
        ends = ("utilisation_ratio", "throttle_time_seconds", "throttled_requests", "would_throttle")
        assert names >= {f"gateway_{prefix}_{end}" for end in ends}
