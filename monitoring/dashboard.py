"""The Grafana dashboard: `python -m monitoring.dashboard` writes monitoring/dashboard.json.

One list of panels; everything else follows from it. Every query about gateways has been answered by a real Prometheus
(tests/integration/test_prometheus.py), and those about the pipeline by promtool (tests/monitoring/test_dashboard.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("dashboard.json")
_WIDTH: Final = 24
_LISTENERS: Final = frozenset(
    {
        "gateway_acceptor_blocked_seconds_total",
        "gateway_back_pressure_seconds_total",
        "gateway_channels_muted",
        "gateway_connections_active",
        "gateway_connections_closed_total",
        "gateway_connections_opened_total",
        "gateway_connections_refused_total",
        "gateway_held_connections",
        "gateway_requests_total",
    }
)
"""Series with the label `listener`."""
_CLIENTS: Final = ("gateway_produce_", "gateway_fetch_", "gateway_request_", "gateway_controller_mutation_")
"""Beginnings of the names of series with the labels `user` and `client_id`."""


def _of(metric: str, *more: str) -> str:
    """The series that the variables choose. Without [[clusters]] no series has a cluster, which `.*` matches too."""
    chosen = ['cluster=~"$cluster"', 'instance=~"$instance"']
    if metric in _LISTENERS:
        chosen.append('listener=~"$listener"')
    if metric.startswith(_CLIENTS):
        chosen += ['user=~"$user"', 'client_id=~"$client"']
    return f"{metric}{{{', '.join([*more, *chosen])}}}"


def _by(how: str, labels: tuple[str, ...], series: str) -> str:
    # Two clusters are never brought together: their clients, listeners and stores have nothing in common but names.
    return f"{how} by ({', '.join(('cluster', *labels))}) ({series})"


def _sum(metric: str, *by: str, of: str = "") -> str:
    return _by("sum", by, _of(metric, *([of] if of else [])))


def _rate(metric: str) -> str:
    return f"rate({_of(metric)}[$__rate_interval])"


def _per_s(metric: str, *by: str) -> str:
    return _by("sum", by, _rate(metric))


def _rate_of_clients(metric: str) -> str:
    """What each client uses over all gateways, of a gauge with the average of its counter.

    Members of a fleet each report the rate of all of it, so of each fleet the highest counts; gateways without a
    fleet report their own, which add up.
    """
    of_gateways = _sum(metric, "user", "client_id", "instance", "job")
    matched = "on (cluster, instance, job)"
    of_fleets = f"{of_gateways} * {matched} group_left (fleet) gateway_fleet_info"
    alone = f"{of_gateways} unless {matched} gateway_fleet_info"
    highest = _by("max", ("user", "client_id", "fleet"), of_fleets)
    return _by("sum", ("user", "client_id"), f"{highest} or {alone}")


def _highest(metric: str, *by: str) -> str:
    return _by("max", by, _of(metric))


def _lowest(metric: str, *by: str) -> str:
    return _by("min", by, _of(metric))


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


_CLIENT: Final = "{{user}} {{client_id}} {{cluster}}"
_OF_CLIENTS: Final = (
    "Over all gateways. Each member of a fleet reports the rate of the whole fleet, so the highest of them counts. "
    "The rates of gateways without a fleet are added up."
)
_OF_COUNTERS: Final = "The counter with the highest value: of a fleet, or of a gateway without one."

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "At a glance",
        (
            Panel("Ready", ((_lowest("gateway_ready"), "ready {{cluster}}"),), kind="stat", width=4),
            Panel(
                "Connections",
                ((_sum("gateway_connections_active"), "open {{cluster}}"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Muted by quotas",
                ((_sum("gateway_channels_muted", of='reason="throttled"'), "muted {{cluster}}"),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Nearest to a limit",
                (
                    (_highest("gateway_produce_utilisation_ratio"), "produce {{cluster}}"),
                    (_highest("gateway_fetch_utilisation_ratio"), "fetch {{cluster}}"),
                    (_highest("gateway_request_utilisation_ratio"), "request time {{cluster}}"),
                ),
                unit="percentunit",
                kind="stat",
                width=6,
            ),
            Panel(
                "Quota store",
                (
                    (_highest("gateway_quota_store_version"), "version {{cluster}}"),
                    (_lowest("gateway_quota_store_writable"), "writable {{cluster}}"),
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
                        "{{quota}} {{rule}} {{cluster}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                "Throttle time per second, by API",
                (
                    (
                        _per_s("gateway_throttle_seconds_total", "api"),
                        "{{api}} {{cluster}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Muted connections by reason",
                ((_sum("gateway_channels_muted", "reason"), "{{reason}} {{cluster}}"),),
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
                    (_sum("gateway_connections_active", "listener"), "{{listener}} {{cluster}}"),
                    (_sum("gateway_overall_connections_limit"), "limit of all listeners {{cluster}}"),
                ),
            ),
            Panel(
                "New",
                (
                    (
                        _per_s("gateway_connections_opened_total", "listener"),
                        "{{listener}} {{cluster}}",
                    ),
                ),
                unit="cps",
            ),
            Panel(
                "Closed connections, by cause",
                (
                    (
                        _per_s("gateway_connections_closed_total", "cause"),
                        "{{cause}} {{cluster}}",
                    ),
                ),
                unit="cps",
            ),
            Panel(
                "Refused and throttled",
                (
                    (
                        _per_s("gateway_connections_refused_total", "cause"),
                        "refused {{cause}} {{cluster}}",
                    ),
                    (_sum("gateway_held_connections"), "throttled now {{cluster}}"),
                ),
            ),
            Panel(
                "Accepting stopped",
                (
                    (
                        _by("max", ("listener",), _rate("gateway_acceptor_blocked_seconds_total")),
                        "{{listener}} {{cluster}}",
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Back pressure",
                (
                    (
                        _per_s("gateway_back_pressure_seconds_total", "side"),
                        "{{side}} {{cluster}}",
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
                        _per_s("gateway_requests_total", "api") + " > 0",
                        "{{api}} {{cluster}}",
                    ),
                ),
                unit="reqps",
            ),
            Panel(
                "Delay of the event loop, 99 % of the time",
                (
                    (
                        "histogram_quantile(0.99, "
                        + _per_s("gateway_event_loop_stall_seconds_bucket", "instance", "le")
                        + ")",
                        "{{instance}} {{cluster}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Store: writes and failures",
                (
                    (
                        _per_s("gateway_quota_store_writes_total"),
                        "writes {{cluster}}",
                    ),
                    (
                        _per_s("gateway_quota_store_write_failures_total"),
                        "failures {{cluster}}",
                    ),
                ),
            ),
            Panel(
                "Usage records",
                (
                    (
                        _per_s("gateway_usage_lines_total", "result"),
                        "{{result}} {{cluster}}",
                    ),
                ),
            ),
            Panel(
                "Certificates end in",
                (
                    (
                        _lowest("gateway_tls_certificate_expiry_timestamp_seconds", "section") + " - time()",
                        "{{section}} {{cluster}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Fleet: in touch, and members",
                (
                    (_of("gateway_fleet_connected"), "{{instance}} {{cluster}} in touch"),
                    (_of("gateway_fleet_members"), "{{instance}} {{cluster}} members"),
                ),
            ),
            Panel(
                "Enforcement: gateways in each mode",
                ((_sum("gateway_enforcement", "mode"), "{{mode}} {{cluster}}"),),
            ),
        ),
    ),
)


_PIPELINE: Final = "sluice_pipeline_"


def _age(metric: str) -> str:
    return f"time() - {_PIPELINE}{metric}_timestamp_seconds"


def _in_an_hour(metric: str) -> str:
    # The pipeline's totals are gauges in a file: `prune` and `reprocess` make some of them smaller.
    return f"delta({_PIPELINE}{metric}[1h])"


PIPELINE_ROW: Final[tuple[str, tuple[Panel, ...]]] = (
    "The pipeline",
    (
        Panel(
            "Age of what is newest",
            (
                (_age("newest_line"), "record {{instance}}"),
                (_age("newest_day"), "compacted day {{instance}}"),
                (_age("plan"), "plan {{instance}}"),
                (_age("status"), "these figures {{instance}}"),
            ),
            unit="s",
            description="A day is compacted an hour after its end, so its age is up to 25 hours.",
        ),
        Panel(
            "Completeness of the newest day",
            ((f"{_PIPELINE}newest_day_completeness_ratio", "{{instance}}"),),
            unit="percentunit",
        ),
        Panel(
            "Days to compact",
            (
                (f"{_PIPELINE}days_not_compacted", "not compacted {{instance}}"),
                (f"{_PIPELINE}days_with_late_lines", "with late lines {{instance}}"),
            ),
        ),
        Panel(
            "Lines read in an hour",
            (
                (_in_an_hour("read_lines"), "read {{instance}}"),
                (_in_an_hour("duplicate_lines"), "read before {{instance}}"),
            ),
        ),
        Panel(
            "Lines missing or in quarantine",
            (
                (f"{_PIPELINE}missing_lines", "missing {{instance}}"),
                (f"{_PIPELINE}unreadable_lines", "in quarantine {{instance}}"),
            ),
        ),
        Panel(
            "Quotas of the newest plan",
            ((f"{_PIPELINE}plan_quotas", "{{action}} {{instance}}"),),
        ),
    ),
)
"""Metrics of `sluice-pipeline status --prometheus`, by node_exporter. The variables choose gateways, not these."""


_OF_ALL_CLIENTS: Final = _of("__name__").replace(
    "__name__{",
    '{__name__=~"gateway_(produce_byte|fetch_byte|controller_mutation)_rate|gateway_request_time_percent", ',
)
_VARIABLES: Final = (
    ("cluster", "Cluster", "label_values(gateway_ready, cluster)"),
    ("instance", "Gateway", 'label_values(gateway_ready{cluster=~"$cluster"}, instance)'),
    ("listener", "Listener", f"label_values({_of('gateway_connections_limit')}, listener)"),
    ("user", "User", f"label_values({_OF_ALL_CLIENTS}, user)"),
    ("client", "Client id", f"label_values({_OF_ALL_CLIENTS}, client_id)"),
)
"""Name, what Grafana shows, and where the values come from."""

_PUT_IN_FORCE: Final = 'result=~"applied|needs_restart"'
_ANNOTATIONS: Final = (
    (
        "Quotas changed",
        "max by (cluster) ({0} - {0} offset 1m) > 0".replace("{0}", _of("gateway_quota_store_version")),
        "{{cluster}}",
    ),
    (
        "Configuration reloaded",
        _by("sum", (), f"increase({_of('gateway_config_reloads_total', _PUT_IN_FORCE)}[1m])") + " > 0",
        "{{cluster}}",
    ),
)
"""What is marked on every panel: name, query, text."""


def annotation_queries() -> list[str]:
    """Their queries."""
    return [query for _, query, _ in _ANNOTATIONS]


def panels() -> list[Panel]:
    """All of gateways."""
    return [panel for _, row in ROWS for panel in row]


def dashboard() -> dict[str, Any]:
    """As Grafana imports it."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, row in (*ROWS, PIPELINE_ROW):
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
                *(_variable(*each) for each in _VARIABLES),
            ]
        },
        "annotations": {"list": [_annotation(*each) for each in _ANNOTATIONS]},
        "panels": placed,
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def _annotation(name: str, query: str, text_of_each: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "iconColor": "blue",
        "expr": query,
        "step": "60s",
        "titleFormat": name,
        "textFormat": text_of_each,
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
