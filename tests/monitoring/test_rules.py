"""Each alert fires on its fault and stops after it, by promtool; rules, dashboard and page name what exists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from monitoring import dashboard
from testkit.packages import require_package

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "monitoring" / "rules.yml"
ALERTS_PAGE: Final = ROOT / "docs" / "how-to" / "alerts.md"
LIST: Final = ROOT / "monitoring" / "must_not_wait.yml"
GROUPS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: Final = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}

_G: Final = '{instance="g", job="sluice"'
_DAY: Final = 86_400

# Alert -> series, and their values while the fault lasts and after it: a start, and a step for each minute. Where
# there is a second client, listener or cause, it is one that must not fire.
# fmt: off
FAULTS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "SluiceImportantClientThrottled": {
        f'gateway_produce_throttled_requests_total{_G}, user="billing", client_id=""}}': ("0+6", "360+0"),
        f'gateway_fetch_throttled_requests_total{_G}, user="batch", client_id=""}}': ("0+6", "360+6"),
    },
    "SluiceLimitNearlyReached": {
        f'gateway_fetch_utilisation_ratio{_G}, user="u", client_id="c", rule="user_client"}}': ("0.95+0", "0.5+0"),
        f'gateway_produce_utilisation_ratio{_G}, user="v", client_id="c", rule="user_client"}}': ("0.8+0", "0.8+0"),
    },
    "SluiceConnectionsNearlyUsedUp": {
        f'gateway_connections_active{_G}, listener="in"}}': ("95+0", "10+0"),
        f'gateway_connections_limit{_G}, listener="in"}}': ("100+0", "100+0"),
        f'gateway_overall_connections_limit{_G}}}': ("1000+0", "1000+0"),
    },
    "SluiceDown": {f"up{_G}}}": ("0+0", "1+0"), 'up{instance="x", job="kafka"}': ("0+0", "0+0")},
    "SluiceNotReady": {f"gateway_ready{_G}}}": ("0+0", "1+0")},
    "SluiceBrokersAway": {
        f'gateway_connections_closed_total{_G}, listener="in", cause="upstream_refused"}}': ("0+3", "180+0"),
        f'gateway_connections_closed_total{_G}, listener="out", cause="client_closed"}}': ("0+3", "180+3"),
    },
    "SluiceLoopStalled": {
        f"gateway_event_loop_stall_seconds_count{_G}}}": ("0+6000", "360000+6000"),
        f'gateway_event_loop_stall_seconds_bucket{_G}, le="0.1"}}': ("0+5990", "359400+6000"),
    },
    "SluiceStoreNotWritable": {f"gateway_quota_store_writable{_G}}}": ("0+0", "1+0")},
    "SluiceStoreNotFollowed": {f"gateway_quota_store_following{_G}}}": ("0+0", "1+0")},
    "SluiceMemberIsolated": {f"gateway_fleet_connected{_G}}}": ("0+0", "1+0")},
    "SluiceStoreWritesFail": {f"gateway_quota_store_write_failures_total{_G}}}": ("0+1", "60+0")},
    "SluiceCertificateEnds": {
        f'gateway_tls_certificate_expiry_timestamp_seconds{_G}, section="a"}}': (f"{13 * _DAY}+0", f"{90 * _DAY}+0"),
        f'gateway_tls_certificate_expiry_timestamp_seconds{_G}, section="b"}}': (f"{60 * _DAY}+0", f"{60 * _DAY}+0"),
    },
    "SluiceUsageRecordsDropped": {
        f'gateway_usage_lines_total{_G}, result="dropped"}}': ("0+1", "60+0"),
        f'gateway_usage_lines_total{_G}, result="delivered"}}': ("0+60", "3600+60"),
    },
    "SluiceReloadFailed": {f"gateway_config_last_reload_successful{_G}}}": ("0+0", "1+0")},
    "SluiceQuotasNotEnforced": {
        f'gateway_enforcement{_G}, mode="enforce"}}': ("0+0", "1+0"),
        f'gateway_enforcement{_G}, mode="off"}}': ("1+0", "0+0"),
    },
    "SluiceOwnTopicsTouched": {f"gateway_own_topic_refusals_total{_G}}}": ("0+1", "60+0")},
}
# fmt: on
_LONGEST: Final = "SluiceQuotasNotEnforced"
"""It fires after an hour, all others within 35 minutes."""
_AFTER: Final = 25
"""Minutes after a fault."""


def fault(alert: str) -> dict[str, Any]:
    """A test of promtool: at the end of the fault this alert fires and no other one, later none does."""
    minutes = 75 if alert == _LONGEST else 40
    series = [
        {"series": name, "values": f"{first}x{minutes} {second}x{_AFTER}"}
        for name, (first, second) in FAULTS[alert].items()
    ]
    return {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
            },
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes + _AFTER}m",
                "exp_samples": [],
            },
        ],
    }


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = require_package("prometheus", "promtool")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_each_alert_fires_alone_on_its_fault_and_stops_after_it(tmp_path: Path) -> None:
    assert FAULTS.keys() == ALERTS.keys()
    file = tmp_path / "test.json"
    file.write_text(
        json.dumps(
            {
                "rule_files": [str(RULES), str(LIST)],
                "evaluation_interval": "1m",
                "tests": [fault(alert) for alert in FAULTS],
            }
        )
    )
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


# Series that make an alert fire, the labels that it has, and its summary.
SUMMARIES: Final = [
    ("SluiceImportantClientThrottled",
     f'gateway_produce_throttled_requests_total{_G}, user="billing", client_id=""}}', "0+6x75",
     {"user": "billing", "quota": "produce", "severity": "page"},
     "the produce quota throttles user billing"),
    ("SluiceLimitNearlyReached", f'gateway_fetch_utilisation_ratio{_G}, user="", client_id="c"}}', "0.95+0x75",
     {"client_id": "c", "quota": "fetch", "severity": "ticket"},
     "the fetch quota of client c has been used to 90 % for half an hour"),
    ("SluiceConnectionsNearlyUsedUp", f"gateway_overall_connections_limit{_G}}}", "1+0x75",
     {"severity": "page"}, "g has hardly any connection left"),
]  # fmt: skip


def runbook_url(alert: str, docs: str | None) -> str:
    """Where the page about an alert is; without the label `sluice_docs` it is a path in the project."""
    return (f"{docs}/how-to/alerts/" if docs else "docs/how-to/alerts.md") + f"#{alert.lower()}"


@pytest.mark.slow
def test_summaries_have_no_gap_where_a_label_is_empty_and_the_runbook_is_where_the_docs_are(tmp_path: Path) -> None:
    used = {"series": f'gateway_connections_active{_G}, listener="in"}}', "values": "1+0x75"}
    tests = [
        {
            "interval": "1m",
            "external_labels": {} if docs is None else {"sluice_docs": docs},
            "input_series": [{"series": series, "values": values}, used],
            "alert_rule_test": [
                {
                    "eval_time": "60m",
                    "alertname": alert,
                    "exp_alerts": [
                        {
                            "exp_labels": {"instance": "g", "job": "sluice"} | labels,
                            "exp_annotations": {"summary": summary, "runbook_url": runbook_url(alert, docs)},
                        }
                    ],
                }
            ],
        }
        for alert, series, values, labels, summary in SUMMARIES
        for docs in (None, "https://docs.example/sluice")
    ]
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": [str(RULES), str(LIST)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", str(RULES), str(LIST))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_its_part_of_the_page(alert: str) -> None:
    there = "{{ with $externalLabels.sluice_docs }}{{ . }}/how-to/alerts/{{ else }}docs/how-to/alerts.md{{ end }}"
    assert ALERTS[alert]["annotations"]["runbook_url"] == f"{there}#{alert.lower()}"
    (part,) = re.findall(rf"^## {alert}\n(.*?)(?=^## |\Z)", ALERTS_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert all(f"**{what}.**" in part for what in ("Means", "Look", "Do"))


def test_clients_that_must_not_wait_are_in_a_file_of_their_own_that_an_update_of_the_rules_leaves() -> None:
    name = "sluice:must_not_wait"
    assert not [rule for group in GROUPS for rule in group["rules"] if rule.get("record") == name]
    (group,) = yaml.safe_load(LIST.read_text())["groups"]
    assert {rule["record"] for rule in group["rules"]} == {name}
    assert all(rule["labels"].keys() == {"user", "client_id"} for rule in group["rules"])


def test_the_dashboard_is_what_the_code_says() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "run: python -m monitoring.dashboard"
    placed = [panel["gridPos"] for panel in dashboard.dashboard()["panels"]]
    cells = [
        (x, y)
        for each in placed
        for x in range(each["x"], each["x"] + each["w"])
        for y in range(each["y"], each["y"] + each["h"])
    ]
    # Legends are names that clients choose: no panel takes text for HTML, and none makes links of it.
    kinds = {panel["type"] for panel in dashboard.dashboard()["panels"]}
    assert kinds == {"row", "stat", "timeseries"}
    assert not {'"links"', '"mappings"', '"transformations"'} & set(re.findall(r'"\w+"', dashboard.text()))
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
