"""Alerts that real faults make fire, by a real Prometheus with the shipped rules in less time.

The cheapest of the campaign (`make campaigns ONLY=alerts`), which has a fault for each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.alerts.campaign import play
from testkit.alerts.faults import connections_used_up, reload_fails, throttled_client
from testkit.alerts.gateways import FaultyGateway, wait_for
from testkit.alerts.prometheus import Prometheus
from testkit.alerts.rules import RULES, alerts, shortened
from testkit.packages import require_package

pytestmark = pytest.mark.integration


def test_a_minute_becomes_a_second_and_nothing_else_changes() -> None:
    text = RULES.read_text()
    before, after = alerts(text), alerts(shortened(text))
    assert [rule["alert"] for rule in before] == [rule["alert"] for rule in after]
    assert {rule["alert"]: rule["for"] for rule in after if "for" in rule}["SluiceLimitNearlyReached"] == "30s"
    for long, short in zip(before, after, strict=True):
        for minutes, seconds in (("[5m]", "[5s]"), ("[10m]", "[10s]")):
            long["expr"] = long["expr"].replace(minutes, seconds)
        assert long["expr"] == short["expr"]
        assert short.get("for", "1s")[-1] in ("s" if long.get("for", "1m")[-1] == "m" else "m")


def test_alerts_fire_on_real_faults_and_stop_after_them(kafka: KafkaCluster, tmp_path: Path) -> None:
    program = require_package("prometheus")
    gateway = FaultyGateway(tmp_path / "gateway", ", ".join(f'"{each}"' for each in kafka.brokers.values()))
    try:
        gateway.start()
        with Prometheus(program, tmp_path, shortened(RULES.read_text()), [gateway.admin]) as prometheus:
            wait_for(lambda: prometheus.scraped() == {gateway.admin})
            outcomes = play(
                prometheus, (throttled_client(gateway), connections_used_up(gateway), reload_fails(gateway))
            )
    finally:
        gateway.close()
    assert [outcome.alert for outcome in outcomes if not outcome.held] == []
    assert [outcome.labels for outcome in outcomes][:2] == ["quota produce, user billing", "listener few"]
