"""The Grafana dashboard: `python -m monitoring.dashboard` writes monitoring/dashboard.json.

One list of panels; everything else follows from it. Every query has been answered by a real Prometheus
(tests/integration/test_prometheus.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("dashboard.json")
_WIDTH: Final = 24
_HERE: Final = 'instance=~"$instance"'


def _per_s(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{{{_HERE}}}[$__rate_interval]))"


def _rate_of_clients(metric: str) -> str:
    """What each client uses over all gateways, of a gauge with the average of its counter.

    Members of a fleet each report the rate of all of it, so of each fleet the highest counts; gateways without a
    fleet report their own, which add up.
    """
    of_gateways = f"sum by (user, client_id, instance, job) ({metric}{{{_HERE}}})"
    of_fleets = f"{of_gateways} * on (instance, job) group_left (fleet) gateway_fleet_info"
    alone = f"{of_gateways} unless on (instance, job) gateway_fleet_info"
    return f"sum by (user, client_id) (max by (user, client_id, fleet) ({of_fleets}) or {alone})"


def _highest(metric: str, *by: str) -> str:
    return f"max by ({', '.join(by)}) ({metric}{{{_HERE}}})"


def _lowest(metric: str, *by: str) -> str:
    return f"min by ({', '.join(by)}) ({metric}{{{_HERE}}})"


def _most(query: str) -> str:
    return f"topk(10, {query})"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: says what is seen.
        queries: PromQL and the legend of its series.
        unit: one of Grafana's.
        kind: of Grafana's panels.
        width: of 24.
        description: what Grafana shows beside the title; empty: nothing.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    description: str = ""


_CLIENT: Final = "{{user}} {{client_id}}"
_OF_CLIENTS: Final = (
    "Over all gateways. Each member of a fleet reports the rate of the whole fleet, so the highest of them counts. "
    "The rates of gateways without a fleet are added up."
)
_OF_COUNTERS: Final = "The counter with the highest value: of a fleet, or of a gateway without one."

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "At a glance",
        (
            Panel("Ready", ((f"min(gateway_ready{{{_HERE}}})", "ready"),), kind="stat", width=4),
            Panel(
                "Connections",
                ((f"sum(gateway_connections_active{{{_HERE}}})", "open"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Muted by quotas",
                ((f'sum(gateway_channels_muted{{reason="throttled", {_HERE}}})', "muted"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Nearest to a limit",
                (
                    (f"max(gateway_produce_utilisation_ratio{{{_HERE}}})", "produce"),
                    (f"max(gateway_fetch_utilisation_ratio{{{_HERE}}})", "fetch"),
                    (f"max(gateway_request_utilisation_ratio{{{_HERE}}})", "request time"),
                ),
                unit="percentunit",
                kind="stat",
                width=6,
            ),
            Panel(
                "Quota store",
                (
                    (f"max(gateway_quota_store_version{{{_HERE}}})", "version"),
                    (f"min(gateway_quota_store_writable{{{_HERE}}})", "writable"),
                ),
                kind="stat",
                width=6,
            ),
        ),
    ),
    (
        "Which clients wait, and why",
        (
            Panel(
                "Throttled requests by quota and level",
                (
                    (
                        _per_s("gateway_throttled_requests_total", "quota", "rule"),
                        "{{quota}} {{rule}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                "Throttle time per second, by API",
                (
                    (
                        _per_s("gateway_throttle_seconds_total", "api"),
                        "{{api}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Muted connections by reason",
                ((f"sum by (reason) (gateway_channels_muted{{{_HERE}}})", "{{reason}}"),),
            ),
            Panel(
                "Producers that are throttled most",
                (
                    (
                        _most(_per_s("gateway_produce_throttled_requests_total", "user", "client_id")),
                        _CLIENT,
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                "Consumers that are throttled most",
                (
                    (
                        _most(_per_s("gateway_fetch_throttled_requests_total", "user", "client_id")),
                        _CLIENT,
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                "Topics refused (KIP-599)",
                (
                    (
                        _per_s("gateway_controller_mutation_refused_topics_total", "user", "client_id"),
                        _CLIENT,
                    ),
                ),
            ),
        ),
    ),
    (
        "Usage by client",
        (
            Panel(
                "Produced",
                ((_most(_rate_of_clients("gateway_produce_byte_rate")), _CLIENT),),
                unit="Bps",
                description=_OF_CLIENTS,
            ),
            Panel(
                "Fetched",
                ((_most(_rate_of_clients("gateway_fetch_byte_rate")), _CLIENT),),
                unit="Bps",
                description=_OF_CLIENTS,
            ),
            Panel(
                "Request time",
                ((_most(_rate_of_clients("gateway_request_time_percent")), _CLIENT),),
                unit="percent",
                description=_OF_CLIENTS,
            ),
            Panel(
                "Produce: part of the limit",
                ((_most(_highest("gateway_produce_utilisation_ratio", "user", "client_id")), _CLIENT),),
                unit="percentunit",
                description=_OF_COUNTERS,
            ),
            Panel(
                "Fetch: part of the limit",
                ((_most(_highest("gateway_fetch_utilisation_ratio", "user", "client_id")), _CLIENT),),
                unit="percentunit",
                description=_OF_COUNTERS,
            ),
            Panel(
                "Mutation tokens left",
                (
                    (
                        f"bottomk(10, {_lowest('gateway_controller_mutation_tokens', 'user', 'client_id')})",
                        _CLIENT,
                    ),
                ),
                description="The counter with the lowest value: of a fleet, or of a gateway without one.",
            ),
        ),
    ),
    (
        "Connections",
        (
            Panel(
                "Open connections and limit",
                (
                    (f"sum by (listener) (gateway_connections_active{{{_HERE}}})", "{{listener}}"),
                    (f"sum(gateway_overall_connections_limit{{{_HERE}}})", "limit of all listeners"),
                ),
            ),
            Panel(
                "New",
                (
                    (
                        _per_s("gateway_connections_opened_total", "listener"),
                        "{{listener}}",
                    ),
                ),
                unit="cps",
            ),
            Panel(
                "Closed connections, by cause",
                (
                    (
                        _per_s("gateway_connections_closed_total", "cause"),
                        "{{cause}}",
                    ),
                ),
                unit="cps",
            ),
            Panel(
                "Refused and throttled",
                (
                    (
                        _per_s("gateway_connections_refused_total", "cause"),
                        "refused {{cause}}",
                    ),
                    (f"sum(gateway_held_connections{{{_HERE}}})", "throttled now"),
                ),
            ),
            Panel(
                "Accepting stopped",
                (
                    (
                        "max by (listener) "
                        f"(rate(gateway_acceptor_blocked_seconds_total{{{_HERE}}}[$__rate_interval]))",
                        "{{listener}}",
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Back pressure",
                (
                    (
                        _per_s("gateway_back_pressure_seconds_total", "side"),
                        "{{side}}",
                    ),
                ),
                unit="s",
            ),
        ),
    ),
    (
        "The gateway itself",
        (
            Panel(
                "Requests by API",
                (
                    (
                        f"sum by (api) (rate(gateway_requests_total{{{_HERE}}}[$__rate_interval])) > 0",
                        "{{api}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                "Delay of the event loop",
                (
                    (
                        "histogram_quantile(0.99, "
                        + _per_s("gateway_event_loop_stall_seconds_bucket", "le")
                        + ")",
                        "p99",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Store: writes and failures",
                (
                    (
                        f"sum(rate(gateway_quota_store_writes_total{{{_HERE}}}[$__rate_interval]))",
                        "writes",
                    ),
                    (
                        f"sum(rate(gateway_quota_store_write_failures_total{{{_HERE}}}[$__rate_interval]))",
                        "failures",
                    ),
                ),
            ),
            Panel(
                "Usage records",
                (
                    (
                        _per_s("gateway_usage_lines_total", "result"),
                        "{{result}}",
                    ),
                ),
            ),
            Panel(
                "Certificates end in",
                (
                    (
                        _lowest("gateway_tls_certificate_expiry_timestamp_seconds", "section") + " - time()",
                        "{{section}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Fleet: in touch, and members",
                (
                    (f"gateway_fleet_connected{{{_HERE}}}", "{{instance}} in touch"),
                    (f"gateway_fleet_members{{{_HERE}}}", "{{instance}} members"),
                ),
            ),
            Panel("Enforcement", ((f"max by (mode) (gateway_enforcement{{{_HERE}}})", "{{mode}}"),)),
        ),
    ),
)


def panels() -> list[Panel]:
    """All of them."""
    return [panel for _, row in ROWS for panel in row]


def dashboard() -> dict[str, Any]:
    """As Grafana imports it."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
            }
        )
        y += 1
        x, height = 0, 4 if row[0].kind == "stat" else 8
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            placed.append(_panel(panel, len(placed) + 1, {"x": x, "y": y, "w": panel.width, "h": height}))
            x += panel.width
        y += height
    return {
        "uid": "sluice",
        "title": "Sluice",
        "tags": ["kafka", "quotas"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Gateway",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": "label_values(gateway_ready, instance)",
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "refresh": 2,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": placed,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.description} if panel.description else {}),
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0} if panel.unit != "short" else {},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": source, "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """The file's."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
