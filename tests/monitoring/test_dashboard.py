"""Numbers of clients on the dashboard are right over several gateways, with and without fleets; by Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from monitoring.dashboard import Panel, panels
from testkit.metrics_page import families
from tests.monitoring.test_rules import promtool

_METRIC: Final = re.compile(r"\bgateway_\w+")

RATE, HIGHEST, LOWEST, COUNTED = "rate", "highest", "lowest", "counted"
KINDS: Final = {
    "gateway_produce_byte_rate": RATE,
    "gateway_fetch_byte_rate": RATE,
    "gateway_request_time_percent": RATE,
    "gateway_produce_utilisation_ratio": HIGHEST,
    "gateway_fetch_utilisation_ratio": HIGHEST,
    "gateway_request_utilisation_ratio": HIGHEST,
    "gateway_controller_mutation_tokens": LOWEST,
    "gateway_produce_throttled_requests_total": COUNTED,
    "gateway_fetch_throttled_requests_total": COUNTED,
    "gateway_controller_mutation_refused_topics_total": COUNTED,
}
"""What several gateways' values of a client come to. A rate is a counter's: members of a fleet say the same."""

GATEWAYS: Final = {"a": "one", "b": "one", "c": "two", "d": "two", "e": "", "f": ""}
"""Gateways and their fleets."""
VALUES: Final = {"a": 100, "b": 90, "c": 50, "d": 40, "e": 30, "f": 20}
CLIENT: Final = {"user": "u", "client_id": "app"}


def of_clients() -> Iterator[tuple[Panel, str, str]]:
    """Panels and queries about single clients, with their metric."""
    labels = {name: family.labels for family in families() for name in family.series}
    for panel in panels():
        for query, _ in panel.queries:
            for name in dict.fromkeys(_METRIC.findall(query)):
                if {"user", "client_id"} & set(labels[name]):
                    yield panel, query, name


def expected(kind: str, gateways: list[str]) -> float:
    values = {gateway: VALUES[gateway] for gateway in gateways}
    if kind == HIGHEST:
        return max(values.values())
    if kind == LOWEST:
        return min(values.values())
    if kind == COUNTED:
        return sum(values.values())
    # Of each fleet the highest, of the others all.
    counters: dict[str, float] = {}
    for gateway, value in values.items():
        counter = GATEWAYS[gateway] or gateway
        counters[counter] = max(value, counters.get(counter, 0))
    return sum(counters.values())


def cases() -> list[tuple[str, str, str]]:
    return [(query, name, KINDS[name]) for _, query, name in of_clients()]


def test_each_number_of_clients_is_one_that_is_known_how_to_bring_together() -> None:
    found = {name for _, _, name in of_clients()}
    assert found == KINDS.keys()
    for panel, _, name in of_clients():
        # The panel says what several gateways come to, but where they simply add up or only the largest is shown.
        assert panel.description or KINDS[name] == COUNTED or panel.kind == "stat"


@pytest.mark.parametrize("gateways", ["abcdef", "ab", "ef", "a", "e", "ce"])
def test_values_of_several_gateways_come_to_what_the_client_uses(gateways: str, tmp_path: Path) -> None:
    chosen = list(gateways)
    tests: list[dict[str, Any]] = []
    for query, name, kind in cases():
        there = "|".join(chosen)
        text = query.replace("$__rate_interval", "5m").replace("$instance", there)
        series = []
        for gateway, fleet in GATEWAYS.items():
            if fleet:
                info = f'gateway_fleet_info{{instance="{gateway}", job="sluice", fleet="{fleet}"}}'
                series.append({"series": info, "values": "1+0x10"})
            value = VALUES[gateway]
            labels = f'instance="{gateway}", job="sluice", user="u", client_id="app", rule="user"'
            values = f"0+{60 * value}x10" if kind == COUNTED else f"{value}+0x10"
            series.append({"series": f"{name}{{{labels}}}", "values": values})
        labels_found = "{}" if "by (user" not in query else '{client_id="app", user="u"}'
        tests.append(
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": f"round({text}, 0.01)",
                        "eval_time": "10m",
                        "exp_samples": [{"labels": labels_found, "value": expected(kind, chosen)}],
                    }
                ],
            }
        )
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
