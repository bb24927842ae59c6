"""Numbers of clients on the dashboard are right over several gateways, with and without fleets; by Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from monitoring.dashboard import PIPELINE_ROW, Panel, annotation_queries, panels
from testkit.metrics_page import families
from tests.monitoring.test_rules import promtool
from tests.pipeline.test_pipeline_metrics import metric_names

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


def with_variables(query: str, **chosen: str) -> str:
    """The query as Grafana sends it, with everything chosen but this."""
    text = query.replace("$__rate_interval", "5m")
    for name in ("cluster", "instance", "listener", "user", "client"):
        text = text.replace(f"${name}", chosen.get(name, ".*"))
    return text


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


def test_each_variable_narrows_every_query_whose_series_have_its_label() -> None:
    labels = {name: family.labels for family in families() for name in family.series}
    variables = {"listener": "listener", "user": "user", "client_id": "client"}
    queries = [query for panel in panels() for query, _ in panel.queries] + annotation_queries()
    for query in queries:
        for name, selector in re.findall(r"\b(gateway_\w+)(?:\{([^}]*)\})?", query):
            if name == "gateway_fleet_info":  # only joined to the rest, by its gateway
                continue
            asked = dict(re.findall(r'(\w+)=~"\$(\w+)"', selector))
            of_series = {label: variable for label, variable in variables.items() if label in labels[name]}
            assert asked == {"cluster": "cluster", "instance": "instance", **of_series}, query


def test_no_query_brings_two_clusters_together() -> None:
    for query in [query for panel in panels() for query, _ in panel.queries] + annotation_queries():
        assert all("cluster" in group.split(", ") for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query)), query
        assert not re.search(r"\b(?:sum|min|max|count|avg)\(", query), query


def test_a_client_of_two_clusters_behind_one_gateway_has_a_value_in_each(tmp_path: Path) -> None:
    tests: list[dict[str, Any]] = []
    for query, name, kind in cases():
        series = []
        for cluster, value in (("east", 5), ("west", 7)):
            of = f'instance="g", job="sluice", cluster="{cluster}"'
            series.append({"series": f'gateway_fleet_info{{{of}, fleet="one"}}', "values": "1+0x10"})
            values = f"0+{60 * value}x10" if kind == COUNTED else f"{value}+0x10"
            labels = f'{of}, user="u", client_id="app", rule="user"'
            series.append({"series": f"{name}{{{labels}}}", "values": values})
        client = ', client_id="app", user="u"' if "user, client_id" in query else ""
        for chosen, there in ((".*", {"east": 5, "west": 7}), ("west", {"west": 7})):
            samples = [
                {"labels": f'{{cluster="{cluster}"{client}}}', "value": value} for cluster, value in there.items()
            ]
            expression = f"round({with_variables(query, cluster=chosen)}, 0.01)"
            tests.append(
                {
                    "interval": "1m",
                    "input_series": series,
                    "promql_expr_test": [{"expr": expression, "eval_time": "10m", "exp_samples": samples}],
                }
            )
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_change_of_quotas_is_marked_once_however_many_gateways_show_it(tmp_path: Path) -> None:
    changed, _ = annotation_queries()
    series = [
        {"series": f'gateway_quota_store_version{{instance="{name}", job="sluice"}}', "values": values}
        for name, values in (("a", "3x4 4x5"), ("b", "3x4 4x5"), ("new", "_x4 4x5"))
    ]
    times = {f"{minute}m": [{"labels": "{}", "value": 1}] if minute == 5 else [] for minute in range(1, 10)}
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": with_variables(changed), "eval_time": at, "exp_samples": samples}
            for at, samples in times.items()
        ],
    }
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


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
        text = with_variables(query, instance=there)
        series = []
        for gateway, fleet in GATEWAYS.items():
            if fleet:
                info = f'gateway_fleet_info{{instance="{gateway}", job="sluice", fleet="{fleet}"}}'
                series.append({"series": info, "values": "1+0x10"})
            value = VALUES[gateway]
            labels = f'instance="{gateway}", job="sluice", user="u", client_id="app", rule="user"'
            values = f"0+{60 * value}x10" if kind == COUNTED else f"{value}+0x10"
            series.append({"series": f"{name}{{{labels}}}", "values": values})
        labels_found = "{}" if "user, client_id" not in query else '{client_id="app", user="u"}'
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


@pytest.mark.slow
def test_the_row_of_the_pipeline_shows_every_metric_that_it_writes(tmp_path: Path) -> None:
    queries = [query for panel in PIPELINE_ROW[1] for query, _ in panel.queries]
    asked = {name for query in queries for name in re.findall(r"sluice_pipeline_\w+", query)}
    assert asked == metric_names(tmp_path)


def test_the_row_of_the_pipeline_has_a_value_for_each_machine_that_runs_one(tmp_path: Path) -> None:
    known = {"instance": "node-1", "job": "node"}
    tests: list[dict[str, Any]] = []
    for panel in PIPELINE_ROW[1]:
        for query, legend in panel.queries:
            (name,) = re.findall(r"sluice_pipeline_\w+", query)
            of = known | ({"action": "set"} if "{{action}}" in legend else {})
            labels = ", ".join(f'{key}="{value}"' for key, value in sorted(of.items()))
            # 5 more each minute, as of a counter; a time of that size lies long ago.
            value = 300 if "delta" in query else 7_200 - 600 if "time()" in query else 600
            samples = [{"labels": f"{{{labels}}}" if value != 600 else f"{name}{{{labels}}}", "value": value}]
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": f"{name}{{{labels}}}", "values": "0+5x120"}],
                    "promql_expr_test": [{"expr": query, "eval_time": "2h", "exp_samples": samples}],
                }
            )
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
