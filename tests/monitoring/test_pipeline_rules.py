"""Alerts of the pipeline: each fires alone on its fault and stops after it, by promtool; each is on a page."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.monitoring.test_rules import ROOT, promtool
from tests.pipeline.test_pipeline_metrics import metric_names

RULES: Final = ROOT / "monitoring" / "pipeline.yml"
PAGE: Final = ROOT / "docs" / "how-to" / "schedule-the-pipeline.md"
(GROUP,) = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: Final[dict[str, dict[str, Any]]] = {rule["alert"]: rule for rule in GROUP["rules"]}
_MINUTES: Final = 300
_NOW: Final = "0+60"
"""The time of a file that is written each minute: promtool begins at the epoch."""

# Alert -> series, and their values while the fault lasts and after it: a start, and a step for each minute.
FAULTS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "SluicePipelineStopped": {"status_timestamp_seconds": ("0+0", f"{_MINUTES * 60}+60")},
    "SluicePipelineBehind": {
        "status_timestamp_seconds": (_NOW, f"{_MINUTES * 60}+60"),
        "newest_line_timestamp_seconds": ("0+0", f"{_MINUTES * 60}+60"),
    },
    "SluicePipelineNotCompacting": {
        "status_timestamp_seconds": (_NOW, f"{_MINUTES * 60}+60"),
        "newest_day_timestamp_seconds": ("-130000+0", "0+0"),
    },
    "SluicePipelineRecordsMissing": {"newest_day_completeness_ratio": ("0.9+0", "1+0")},
    "SluicePipelineLinesUnreadable": {"unreadable_lines": ("0+1", f"{_MINUTES}+0")},
    "SluicePipelineQuotasLeftOut": {'plan_quotas{action="left_out"}': ("3+0", "0+0")},
}


def fault(alert: str) -> dict[str, Any]:
    """A test of promtool."""
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"sluice_pipeline_{name}", "values": f"{first}x{_MINUTES} {second}x{_MINUTES}"}
            for name, (first, second) in FAULTS[alert].items()
        ],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{_MINUTES}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
            },
            {"expr": firing, "eval_time": f"{2 * _MINUTES}m", "exp_samples": []},
        ],
    }


@pytest.mark.slow
def test_each_alert_fires_alone_on_its_fault_and_stops_after_it(tmp_path: Path) -> None:
    assert FAULTS.keys() == ALERTS.keys()
    file = tmp_path / "test.json"
    tests = [fault(alert) for alert in FAULTS]
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_its_part_of_the_page(alert: str) -> None:
    place = "{{ with $externalLabels.sluice_docs }}{{ . }}/how-to/schedule-the-pipeline/"
    place += "{{ else }}docs/how-to/schedule-the-pipeline.md{{ end }}"
    assert ALERTS[alert]["annotations"]["runbook_url"] == f"{place}#{alert.lower()}"
    (part,) = re.findall(rf"^### {alert}\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert all(f"**{what}.**" in part for what in ("Means", "Look", "Do"))


@pytest.mark.slow
def test_alerts_and_the_page_name_metrics_that_exist(tmp_path: Path) -> None:
    named = set(re.findall(r"sluice_pipeline_\w+", RULES.read_text()))
    known = metric_names(tmp_path)
    assert named <= known
    assert set(re.findall(r"`(sluice_pipeline_\w+)", PAGE.read_text())) == known
